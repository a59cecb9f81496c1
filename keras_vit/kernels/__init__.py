"""Implementations of norms, GELU, softmax and the halves of the encoder block.

`choice.py` selects the implementation.
"""

from keras_vit.kernels.choice import (
    first_token_suffices,
    fused_attention,
    fused_mlp,
    gelu,
    group_norm,
    has_fused_halves,
    layer_norm,
    map_in_turn,
    softmax,
)

__all__ = [
    "first_token_suffices",
    "fused_attention",
    "fused_mlp",
    "gelu",
    "group_norm",
    "has_fused_halves",
    "layer_norm",
    "map_in_turn",
    "softmax",
]
