"""Analysis of attention and embeddings. `plots` and `trend_plots` draw the results."""

from keras_vit.analyze.attention import (
    AttentionSummary,
    attention_maps,
    attention_rollout,
    grid_of_model,
    has_attention,
    patch_px_of_model,
    summarize_attention,
)
from keras_vit.analyze.attention_arithmetic import distances_px, mean_distance, rollout
from keras_vit.analyze.embeddings import (
    FilterComponents,
    filter_components,
    has_positions,
    position_similarity,
)

__all__ = [
    "AttentionSummary",
    "FilterComponents",
    "attention_maps",
    "attention_rollout",
    "distances_px",
    "filter_components",
    "grid_of_model",
    "has_attention",
    "has_positions",
    "mean_distance",
    "patch_px_of_model",
    "position_similarity",
    "rollout",
    "summarize_attention",
]
