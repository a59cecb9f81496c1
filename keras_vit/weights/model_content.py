"""The content of a checkpoint of a model: its arrays under canonical names, and its metadata.

`save.py` and `huggingface_mae.py` write it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.layers.axial import AxialTransformerBlock
from keras_vit.layers.patches import PatchEmbedding
from keras_vit.layers.pixels import PixelNormalization
from keras_vit.layers.pooling import TokenPooling
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.transformer import TransformerBlock
from keras_vit.weights import variables
from keras_vit.weights.restore import state

# Suffixes of the variables that Keras adds to Dense layers, and the name of the change.
_CHANGED = {
    "lora_kernel_a": "layers with LoRA",
    "kernel_scale": "quantized layers",
    "kernel_amax_history": "quantized layers",
    "quantized_kernel": "quantized layers",
}


def collect_facts(
    layers: Sequence[keras.layers.Layer], images: keras.KerasTensor
) -> dict[str, Any]:
    """Returns the metadata of a model, see `files.py`.

    Args:
        layers: The layers of the model.
        images: Its input.
    """
    facts: dict[str, Any] = {}
    height, width = images.shape[1:3]
    if height and width:
        facts["image_size"] = (height, width)
    for layer in layers:
        if isinstance(layer, PatchEmbedding):
            facts = {"pixel_mean": (0.5, 0.5, 0.5), "pixel_std": (0.5, 0.5, 0.5)} | facts
        if isinstance(layer, PixelNormalization):
            facts |= {"pixel_mean": layer.mean, "pixel_std": layer.std}
        if isinstance(layer, AddPositionEmbs):
            facts["grid"] = layer.grid
        if isinstance(layer, (TransformerBlock, AxialTransformerBlock)):
            facts |= {
                "gelu": layer.gelu,
                "layer_norm_epsilon": layer.norm_epsilon,
                "num_heads": layer.num_heads,
            }
        if isinstance(layer, TokenPooling):
            facts |= layer.describe_head()
    if all(layer.name != "predictions" for layer in layers):
        facts.pop("classifier", None)  # without a head, each use chooses its own pooling
    return facts


def to_canonical(
    layers: Sequence[keras.layers.Layer], facts: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the canonical arrays of the layers of a model, see `collect_facts`."""
    arrays = state(layers)
    for suffix, kind in _CHANGED.items():
        if any(name.endswith(suffix) for name in arrays):
            raise ValueError(
                f"A checkpoint contains plain weights, and the model has {kind} ({suffix}). Use "
                'Keras\'s file format, `model.save("model.keras")`, which contains them'
                + (
                    " merged: the loaded model is plain and can be saved as a checkpoint."
                    if "LoRA" in kind
                    else "."
                )
            )
    return variables.from_keras(arrays, facts.get("num_heads"))


def check_finite(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if an array contains NaN or infinity."""
    if wrong := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise ValueError(
            f"{path} is not written: {len(wrong)} of {len(arrays)} arrays contain NaN or infinity "
            f"({', '.join(wrong[:3])}). The training has diverged: save an earlier state."
        )
