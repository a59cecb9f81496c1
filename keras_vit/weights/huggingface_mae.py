"""Saves a masked autoencoder as a Hugging Face folder, encoder and decoder.

`save.py` saves models without a decoder.

Source: transformers 5.24.0 `models/vit_mae/{configuration,modeling}_vit_mae.py`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.layers.masking import RandomMask
from keras_vit.layers.pixels import PatchNormalization
from keras_vit.layers.transformer import TransformerBlock
from keras_vit.weights import dialects, files, huggingface_config, renaming, variables
from keras_vit.weights.huggingface_names import find_model_type, make_decoder_rules
from keras_vit.weights.model_content import check_finite, collect_facts, to_canonical
from keras_vit.weights.restore import state
from keras_vit.weights.torch_modules import POSITIONS

# Our layers of the decoder, and the layers of an encoder that have the same variables. The blocks
# are `decoderblock_0` and `encoderblock_0`.
_AS_ENCODER = {
    "decoder_embedding": "embedding",
    "decoder_mask_token": "mask_token",
    "decoder_posembed": "posembed_input",
    "decoder_norm": "encoder_norm",
    "decoder_predictions": "patch_predictions",
}
_BLOCK = "decoderblock_"


def save_vit_mae(model: keras.Model, folder: str | os.PathLike) -> None:
    """Writes a masked autoencoder as a folder for `ViTMAEForPreTraining` of Transformers.

    With the same `noise`, this class computes the same mask and the same predictions as the model.
    The folder contains `config.json`, `preprocessor_config.json` and `model.safetensors`.
    `weights=folder` reads the encoder alone. Each file is written atomically.

    Args:
        model: From `keras_vit.models.mae.masked_autoencoder`.
        folder: The folder, which is created.

    Raises:
        ValueError: If the class cannot express the encoder, such as one without a class token, or
            if a weight is NaN or infinite. Nothing is written then.

    Example:
        >>> from keras_vit.models.mae import masked_autoencoder
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], depth=1)
        >>> model = masked_autoencoder(row, 32, decoder_width=16, decoder_depth=1, decoder_heads=2)
        >>> save_vit_mae(model, "vit_mae")
        >>> sorted(os.listdir("vit_mae"))
        ['config.json', 'model.safetensors', 'preprocessor_config.json']
    """
    encoder, decoder = _split_layers(model)
    facts = collect_facts(encoder, model.inputs[0])
    canonical = to_canonical(encoder, facts)
    if problems := find_problems(model):
        raise ValueError(
            f"ViTMAEForPreTraining cannot express this model: {renaming.join_sorted(problems)}. "
            "Save the encoder alone, with `keras_vit.save_checkpoint(encoder_of(model), path)`."
        )
    arrays = dialects.from_canonical(canonical, "huggingface", grid=facts["grid"])
    arrays = {f"vit.{name}": array for name, array in arrays.items()}
    arrays |= _collect_decoder(decoder)
    check_finite(Path(folder), arrays)
    known = {**facts, "rotary": False}
    config = huggingface_config.make_config(canonical, known) | _describe(model, decoder)
    preprocessor = huggingface_config.make_preprocessor_config(canonical, known)
    files.write_huggingface(folder, arrays, facts, config, preprocessor)


def find_problems(model: keras.Model) -> list[str]:
    """Returns the reasons why `save_vit_mae` cannot write a masked autoencoder, or an empty list.

    Example:
        >>> from keras_vit.models.mae import masked_autoencoder
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], depth=1)
        >>> options = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
        >>> find_problems(masked_autoencoder(row, 32, class_token=False, **options))
        ['its encoder has no class token']
    """
    encoder, _ = _split_layers(model)
    canonical = to_canonical(encoder, collect_facts(encoder, model.inputs[0]))
    names, model_type = set(canonical), find_model_type(canonical)
    attention = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0"
    problems = {
        "its encoder has no class token": "cls" not in names,
        f"its encoder is that of a {model_type}": model_type not in ("vit", "ijepa"),
        "its positions are not a table, or not before the first block": POSITIONS not in names,
        "its attention has no biases": f"{attention}/key/bias" not in names,
        "its MLPs have gates": any("/Gate_0/" in name for name in names),
        "its patch embedding has no bias": "embedding/bias" not in names,
    }
    return [problem for problem, is_there in problems.items() if is_there]


def _split_layers(
    model: keras.Model,
) -> tuple[list[keras.layers.Layer], list[keras.layers.Layer]]:
    """Returns the layers of the encoder, and those of the decoder."""
    decoder = [layer for layer in model.layers if layer.name.startswith("decoder")]
    return [layer for layer in model.layers if layer not in decoder], decoder


def _find_blocks(layers: Sequence[keras.layers.Layer]) -> list[TransformerBlock]:
    return [layer for layer in layers if isinstance(layer, TransformerBlock)]


def _collect_decoder(decoder: Sequence[keras.layers.Layer]) -> dict[str, np.ndarray]:
    """Returns the arrays of the decoder under the names of Transformers."""
    renamed = {}
    for name, array in state(decoder).items():
        layer, _, rest = name.partition("/")
        if layer.startswith(_BLOCK):
            layer = layer.replace(_BLOCK, "encoderblock_")
        renamed[f"{_AS_ENCODER.get(layer, layer)}/{rest}"] = array
    canonical = variables.from_keras(renamed, _find_blocks(decoder)[0].num_heads)
    return renaming.write(canonical, make_decoder_rules())


def _describe(model: keras.Model, decoder: Sequence[keras.layers.Layer]) -> dict[str, Any]:
    """Returns the fields of `config.json` that models without a decoder do not have."""
    blocks = _find_blocks(decoder)
    (mask,) = (layer for layer in model.layers if isinstance(layer, RandomMask))
    return {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_hidden_size": model.get_layer("decoder_embedding").units,
        "decoder_num_hidden_layers": len(blocks),
        "decoder_num_attention_heads": blocks[0].num_heads,
        "decoder_intermediate_size": blocks[0].mlp_dim,
        "mask_ratio": mask.mask_share,
        "norm_pix_loss": any(isinstance(layer, PatchNormalization) for layer in model.layers),
    }
