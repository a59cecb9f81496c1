"""Canonical names ↔ the names of the variables of our models: tables, applied in both directions.

Nothing is modified in place, and results are views. `layouts.py` and `dialects.py` convert foreign
names to canonical ones.

Google's names are extended in their style for parts that only other families have, such as
registers and layer scale. No published file contains axial attention, so its names are defined
here too: the two halves of a block are `Transformer/encoderblock_3/row/...` and `.../column/...`,
each with the modules of a whole block. The two attentions of a residual unit are
`block1/unit1/row/{query,key,value,out}` and `block1/unit1/column/...`, each with a
`relative_embedding`.
"""

from collections.abc import Mapping

import numpy as np

from keras_vit.variants import AXIAL_HEADS
from keras_vit.weights import layouts, renaming
from keras_vit.weights.renaming import (
    Leaf,
    Rows,
    Rule,
    join_sorted,
    make_rules,
    merge_first,
    merge_last,
    split_first,
    split_last,
    use_two_digits,
)

_BLOCK = "Transformer/encoderblock_{}"
_POOL = "MAPHead_0"
_POOL_ATTENTION = f"{_POOL}/MultiHeadDotProductAttention_0"
_QKV = ("query", "key", "value")


def _make_block_rows(ours: str, canonical: str) -> Rows:
    """Returns the rows of a block, or of one half of an axial block."""
    attention = f"{canonical}/MultiHeadDotProductAttention_0"
    return (
        (f"{ours}/attention_norm", f"{canonical}/LayerNorm_0", "norm"),
        *((f"{ours}/attention/{part}", f"{attention}/{part}", "heads") for part in _QKV),
        (f"{ours}/attention/out", f"{attention}/out", "out"),
        (f"{ours}/attention/relative_embedding", f"{attention}/relative_embedding", "array"),
        (f"{ours}/mlp_norm", f"{canonical}/LayerNorm_1", "norm"),
        *((f"{ours}/mlp/dense_{i}", f"{canonical}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
        (f"{ours}/mlp/gate", f"{canonical}/MlpBlock_0/Gate_0", "dense"),
        (f"{ours}/attention_scale", f"{canonical}/LayerScale_0", "scale"),
        (f"{ours}/mlp_scale", f"{canonical}/LayerScale_1", "scale"),
    )


_PLACES = ("input", "shared", "{}")
_TABLES = ("pos_embedding", "row_embedding", "column_embedding", "prefix_embedding")
_VIT: Rows = (
    ("embedding", "embedding", "dense"),
    ("class_token/cls", "cls", "array"),
    ("distillation_token/cls", "dist", "array"),
    ("registers/registers", "registers", "array"),
    ("norm_before_blocks", "Transformer/norm_before_blocks", "norm"),
    ("mask_token/mask", "mask_token", "array"),
    *(
        (f"posembed_{p}/{table}", f"Transformer/posembed_{p}/{table}", "array")
        for p in _PLACES
        for table in _TABLES
    ),
    *(
        row
        for half in ("", "/row", "/column")
        for row in _make_block_rows(f"encoderblock_{{}}{half}", f"{_BLOCK}{half}")
    ),
    ("encoder_norm", "Transformer/encoder_norm", "norm"),
    ("map_head/probe", f"{_POOL}/probe", "array"),
    *((f"map_head/attention/{part}", f"{_POOL_ATTENTION}/{part}", "heads") for part in _QKV),
    ("map_head/attention/out", f"{_POOL_ATTENTION}/out", "out"),
    ("map_head/mlp_norm", f"{_POOL}/LayerNorm_0", "norm"),
    *((f"map_head/mlp/dense_{i}", f"{_POOL}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
    *((head, head, "dense") for head in ("pre_logits", "patch_predictions")),
    ("pooled_norm", "pooled_norm", "norm"),
    ("predictions", "head", "dense"),
    ("predictions_distilled", "head_dist", "dense"),
)
_ROOT: Rows = (("conv_root", "conv_root", "dense"), ("gn_root", "gn_root", "norm"))
_UNITS: Rows = (
    *(
        (f"block{{}}_unit{{}}/conv{i}", f"block{{}}/unit{{}}/conv{i}", "dense")
        for i in (1, 2, 3, "_proj")
    ),
    *(
        (f"block{{}}_unit{{}}/gn{i}", f"block{{}}/unit{{}}/gn{i}", "norm")
        for i in (1, 2, 3, "_proj")
    ),
)
_AXIAL: Rows = tuple(
    (f"block{{}}_unit{{}}/{part}", f"block{{}}/unit{{}}/{part}", kind)
    for axis in ("row", "column")
    for part, kind in (
        *((f"{axis}/{part}", "unit_heads") for part in _QKV),
        (f"{axis}/out", "unit_out"),
        (f"{axis}/relative_embedding", "array"),
    )
)
_BIT: Rows = (
    ("conv_root", "root_block/conv_root", "dense"),
    ("norm_pre_head", "norm-pre-head", "norm"),
)

# For our variables, a convolution is converted like a dense layer.
_OURS: dict[str, tuple[Leaf, ...]] = {
    "array": (Leaf("", ""),),
    "norm": (Leaf("/gamma", "/scale"), Leaf("/beta", "/bias")),
    "scale": (Leaf("/gamma", "/scale"),),
    "dense": (Leaf("/kernel", "/kernel"), Leaf("/bias", "/bias")),
    "heads": (
        Leaf("/kernel", "/kernel", (2, 3), split_last, merge_last),
        Leaf("/bias", "/bias", (1, 2), split_first, merge_first),
    ),
    "out": (Leaf("/kernel", "/kernel", (2, 3), split_first, merge_first), Leaf("/bias", "/bias")),
    # In a residual unit the number of heads is a constant.
    "unit_heads": (
        Leaf("/kernel", "/kernel", (2, 3), lambda x, _: split_last(x, AXIAL_HEADS), merge_last),
        Leaf("/bias", "/bias", (1, 2), lambda x, _: split_first(x, AXIAL_HEADS), merge_first),
    ),
    "unit_out": (
        Leaf("/kernel", "/kernel", (2, 3), lambda x, _: split_first(x, AXIAL_HEADS), merge_first),
        Leaf("/bias", "/bias"),
    ),
}


def to_keras(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts canonical arrays to the variables of a Keras model, by path.

    Unknown names are kept, so that `restore` can report them.

    Example:
        >>> list(to_keras({"Transformer/encoder_norm/scale": np.ones(4)}))
        ['encoder_norm/gamma']
    """
    return renaming.write(arrays, _make_rules(preactivation=layouts.family(arrays) == "bit"))


_OF_AUTOENCODER = (
    " Of a masked autoencoder, save `keras_vit.models.mae.encoder_of(model)`, or all of it with "
    "`keras_vit.weights.huggingface_mae.save_vit_mae`."
)


def from_keras(arrays: Mapping[str, np.ndarray], num_heads: int | None) -> dict[str, np.ndarray]:
    """Converts the variables of a Keras model, by path, to canonical arrays.

    Args:
        arrays: The values of the variables, by path.
        num_heads: Number of attention heads; None for a model without attention.

    Raises:
        ValueError: If a name is unknown, or if the model has attention and `num_heads` is None.

    Example:
        >>> list(from_keras({"predictions/bias": np.zeros(10)}, num_heads=None))
        ['head/bias']
    """
    roots = {name.split("/")[0] for name in arrays}
    rules = _make_rules(
        preactivation="norm_pre_head" in roots or ("conv_root" in roots and "gn_root" not in roots)
    )
    if unknown := renaming.find_unknown_theirs(arrays, rules):
        raise ValueError(
            f"These variables cannot be stored in a checkpoint: {join_sorted(unknown)}. Expected "
            "variables of a keras_vit model."
            + _OF_AUTOENCODER
            * any(name.startswith("decoder") for name in unknown)
        )
    if num_heads is None and any("attention/" in name for name in arrays):
        raise ValueError(
            "The model has attention, so `num_heads` must be an integer. Received: num_heads=None."
        )
    return renaming.read(arrays, rules, 1 if num_heads is None else num_heads)


def _make_rules(preactivation: bool) -> list[Rule]:
    trunk = _BIT + use_two_digits(_UNITS) if preactivation else _ROOT + _UNITS + _AXIAL
    return make_rules(_VIT + trunk, _OURS)
