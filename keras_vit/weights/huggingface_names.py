"""Hugging Face Transformers' names of the arrays of ViTs, one table for each architecture.

In the tables, `{}` is the number of a block. Transformers 5 renames arrays when it loads them and
writes the names of version 4, which are written here too. Names of a state dict of version 5 are
read as well.

Source: transformers 5.24.0 `models/{vit,deit,ijepa,vit_mae,dinov2,dinov2_with_registers,dinov3_vit,
    siglip,clip}/modeling_*.py`, `conversion_mapping.py`.
"""

from collections.abc import Collection, Iterable
from typing import Literal

from keras_vit.weights.renaming import Rows, Rule, make_rules
from keras_vit.weights.torch_modules import (
    ATTENTION,
    BLOCK,
    GATED,
    LEAVES,
    MLP,
    POOL,
    POOL_ATTENTION,
    POSITIONS,
    QKV,
)

ModelType = Literal[
    "vit",
    "deit",
    "ijepa",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "siglip_vision_model",
    "clip_vision_model",
]

_LAYER = "encoder.layer.{}"
_EMBEDDINGS: Rows = (
    ("embeddings.cls_token", "cls", "array"),
    ("embeddings.distillation_token", "dist", "array"),
    ("embeddings.register_tokens", "registers", "array"),
    ("embeddings.position_embeddings", POSITIONS, "array"),
    ("embeddings.patch_embeddings.projection", "embedding", "conv"),
)
_CLASSIC_ATTENTION: Rows = (
    *(
        (f"{_LAYER}.attention.attention{part.replace('/', '.')}", ATTENTION + part, "heads")
        for part in QKV
    ),
    (f"{_LAYER}.attention.output.dense", f"{ATTENTION}/out", "out"),
)
# ViT, DeiT, I-JEPA and the encoder of MAE
_VIT: Rows = (
    *_EMBEDDINGS,
    (f"{_LAYER}.layernorm_before", f"{BLOCK}/LayerNorm_0", "norm"),
    *_CLASSIC_ATTENTION,
    (f"{_LAYER}.layernorm_after", f"{BLOCK}/LayerNorm_1", "norm"),
    (f"{_LAYER}.intermediate.dense", f"{MLP}/Dense_0", "dense"),
    (f"{_LAYER}.output.dense", f"{MLP}/Dense_1", "dense"),
    ("layernorm", "Transformer/encoder_norm", "norm"),
    ("pooler.dense", "pre_logits", "dense"),
    ("classifier", "head", "dense"),
)
# The decoder of MAE, with its own prefix. It has the canonical names of an encoder.
_MAE_DECODER: Rows = (
    ("mask_token", "mask_token", "array"),
    ("decoder_embed", "embedding", "dense"),
    ("decoder_pos_embed", POSITIONS, "array"),
    *(
        (row[0].replace("encoder.layer", "decoder_layers"), row[1], row[2])
        for row in _VIT
        if row[0].startswith(_LAYER)
    ),
    ("decoder_norm", "Transformer/encoder_norm", "norm"),
    ("decoder_pred", "patch_predictions", "dense"),
)
_TWO_HEADS: Rows = (
    ("cls_classifier", "head", "dense"),
    ("distillation_classifier", "head_dist", "dense"),
)
# DINOv2, with and without registers
_DINOV2: Rows = (
    *_EMBEDDINGS,
    (f"{_LAYER}.norm1", f"{BLOCK}/LayerNorm_0", "norm"),
    *_CLASSIC_ATTENTION,
    (f"{_LAYER}.layer_scale1", f"{BLOCK}/LayerScale_0", "lambda1"),
    (f"{_LAYER}.norm2", f"{BLOCK}/LayerNorm_1", "norm"),
    (f"{_LAYER}.layer_scale2", f"{BLOCK}/LayerScale_1", "lambda1"),
    ("layernorm", "Transformer/encoder_norm", "norm"),
    ("classifier", "head", "dense"),
)
_DINOV2_MLP: Rows = (
    (f"{_LAYER}.mlp.fc1", f"{MLP}/Dense_0", "dense"),
    (f"{_LAYER}.mlp.fc2", f"{MLP}/Dense_1", "dense"),
)
_DINOV2_GATED_MLP: Rows = (
    (f"{_LAYER}.mlp.weights_in", MLP, "dense", GATED),
    (f"{_LAYER}.mlp.weights_out", f"{MLP}/Dense_1", "dense"),
)
_DINOV3: Rows = (
    ("embeddings.cls_token", "cls", "array"),
    ("embeddings.register_tokens", "registers", "array"),
    ("embeddings.patch_embeddings", "embedding", "conv"),
    ("layer.{}.norm1", f"{BLOCK}/LayerNorm_0", "norm"),
    *((f"layer.{{}}.attention.{part[1]}_proj", ATTENTION + part, "heads") for part in QKV),
    ("layer.{}.attention.o_proj", f"{ATTENTION}/out", "out"),
    ("layer.{}.layer_scale1", f"{BLOCK}/LayerScale_0", "lambda1"),
    ("layer.{}.norm2", f"{BLOCK}/LayerNorm_1", "norm"),
    ("layer.{}.mlp.gate_proj", f"{MLP}/Gate_0", "dense"),
    ("layer.{}.mlp.up_proj", f"{MLP}/Dense_0", "dense"),
    ("layer.{}.mlp.down_proj", f"{MLP}/Dense_1", "dense"),
    ("layer.{}.layer_scale2", f"{BLOCK}/LayerScale_1", "lambda1"),
    ("norm", "Transformer/encoder_norm", "norm"),
)
# The image towers of SigLIP and CLIP have the same blocks.
_TOWER_LAYER = "encoder.layers.{}"
_TOWER: Rows = (
    ("embeddings.patch_embedding", "embedding", "conv"),
    ("embeddings.position_embedding.weight", POSITIONS, "table"),
    (f"{_TOWER_LAYER}.layer_norm1", f"{BLOCK}/LayerNorm_0", "norm"),
    *((f"{_TOWER_LAYER}.self_attn.{part[1]}_proj", ATTENTION + part, "heads") for part in QKV),
    (f"{_TOWER_LAYER}.self_attn.out_proj", f"{ATTENTION}/out", "out"),
    (f"{_TOWER_LAYER}.layer_norm2", f"{BLOCK}/LayerNorm_1", "norm"),
    (f"{_TOWER_LAYER}.mlp.fc1", f"{MLP}/Dense_0", "dense"),
    (f"{_TOWER_LAYER}.mlp.fc2", f"{MLP}/Dense_1", "dense"),
    ("post_layernorm", "Transformer/encoder_norm", "norm"),
)
_SIGLIP: Rows = (
    *_TOWER,
    ("head.probe", f"{POOL}/probe", "array"),
    ("head.attention.in_proj", POOL_ATTENTION, "in_proj", QKV),
    ("head.attention.out_proj", f"{POOL_ATTENTION}/out", "out"),
    ("head.layernorm", f"{POOL}/LayerNorm_0", "norm"),
    *((f"head.mlp.fc{i + 1}", f"{POOL}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
    ("classifier", "head", "dense"),
)
_CLIP: Rows = (
    *_TOWER,
    ("embeddings.class_embedding", "cls", "vector"),
    ("pre_layrnorm", "Transformer/norm_before_blocks", "norm"),
    ("visual_projection", "head", "dense"),
)
# Read alone: the names of a state dict of version 5.
_STATE_DICT: Rows = tuple(
    row
    for layer in ("layers.{}", _LAYER)
    for row in (
        (f"{layer}.layernorm_before", f"{BLOCK}/LayerNorm_0", "norm"),
        *((f"{layer}.attention.{part[1]}_proj", ATTENTION + part, "heads") for part in QKV),
        (f"{layer}.attention.o_proj", f"{ATTENTION}/out", "out"),
        (f"{layer}.layernorm_after", f"{BLOCK}/LayerNorm_1", "norm"),
        *((f"{layer}.mlp.fc{i + 1}", f"{MLP}/Dense_{i}", "dense") for i in (0, 1)),
        (f"{layer}.mlp.gate_proj", f"{MLP}/Gate_0", "dense"),
        (f"{layer}.mlp.up_proj", f"{MLP}/Dense_0", "dense"),
        (f"{layer}.mlp.down_proj", f"{MLP}/Dense_1", "dense"),
    )
)

# Read alone: a linear classifier that a training script adds to a model without one.
_ADDED_HEAD: Rows = (("head", "head", "dense"),)

_READ = (
    *(_STATE_DICT + _VIT + _TWO_HEADS + _DINOV2 + _DINOV2_MLP + _DINOV2_GATED_MLP),
    *(_DINOV3 + _SIGLIP + _CLIP + _ADDED_HEAD),
)
# Prefix of the encoder's names in a model with a head. Models without a head have none.
_PREFIX: dict[ModelType, str] = {
    "vit": "vit.",
    "deit": "deit.",
    "ijepa": "ijepa.",
    "dinov2": "dinov2.",
    "dinov2_with_registers": "dinov2_with_registers.",
    "siglip_vision_model": "vision_model.",
    "clip_vision_model": "vision_model.",
}
_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")


def make_reading_rules() -> list[Rule]:
    """Returns the rules for the names of all architectures, without prefixes."""
    return make_rules(_READ, LEAVES)


def make_writing_rules(arrays: Collection[str], rotary: bool) -> list[Rule]:
    """Returns the rules for canonical arrays."""
    model_type = find_model_type(arrays, rotary)
    rows = {
        "vit": _VIT,
        "deit": (*_VIT[:-1], *_TWO_HEADS) if "head_dist/kernel" in arrays else _VIT,
        "ijepa": _VIT,
        "dinov3_vit": _DINOV3,
        "siglip_vision_model": _SIGLIP,
        "clip_vision_model": _CLIP,
    }.get(model_type)
    if rows is None:
        is_gated = any("/Gate_0/" in name for name in arrays)
        rows = _DINOV2 + (_DINOV2_GATED_MLP if is_gated else _DINOV2_MLP)
    return make_rules(rows, LEAVES)


def make_decoder_rules() -> list[Rule]:
    """Returns the rules for the decoder of MAE, whose canonical names are those of an encoder."""
    return make_rules(_MAE_DECODER, LEAVES, prefix="decoder.")


def find_model_type(arrays: Iterable[str], rotary: bool = False) -> ModelType:
    """Returns the architecture of Transformers for canonical arrays.

    Example:
        >>> find_model_type(["cls", "registers", "Transformer/encoderblock_0/LayerScale_0/scale"])
        'dinov2_with_registers'
    """
    names = set(arrays)
    if rotary:
        return "dinov3_vit"
    if "Transformer/norm_before_blocks/scale" in names:
        return "clip_vision_model"
    if "registers" in names:
        return "dinov2_with_registers"
    if any("/LayerScale_0/" in name for name in names):
        return "dinov2"
    if f"{POOL}/probe" in names:
        return "siglip_vision_model"
    if "dist" in names:
        return "deit"
    return "vit" if "cls" in names else "ijepa"


def add_prefix(names: Iterable[str], model_type: ModelType) -> dict[str, str]:
    """Returns {name: name in a file}, with the prefix that a model with a head has.

    Example:
        >>> add_prefix(["layernorm.bias", "classifier.bias"], "vit")
        {'layernorm.bias': 'vit.layernorm.bias', 'classifier.bias': 'classifier.bias'}
    """
    names = list(names)
    has_head = any(name.startswith(_HEADS) for name in names)
    prefix = _PREFIX.get(model_type, "") if has_head else ""
    return {name: name if name.startswith(_HEADS) else prefix + name for name in names}
