"""Google's checkpoint layouts ↔ one canonical form; identification of a model by its shapes.

The canonical form has the names of the current linen code, group norms of shape (C,), a head kernel
of shape (in, classes) and a position table of shape (1, prefix + N, D). `dialects.py` converts the
names of timm and Hugging Face. Nothing is modified in place, and results are views where NumPy can
express the change as a view.

Source: vision_transformer@c6de1e5 `models_vit.py`; big_vision@0127fb6 `models/vit.py`,
    `models/bit_paper.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from keras_vit.variants import (
    FAMILY_VARIANTS,
    RESNET_VARIANTS,
    VIT_VARIANTS,
    ResNetVariant,
    ViTVariant,
)
from keras_vit.weights.renaming import gather, join_sorted, split_numbers

_POSITIONS = "Transformer/posembed_input/pos_embedding"

# Wrapper -> names beside it that do not belong to the image model: big_vision's timers; the text
# tower of SigLIP with its temperature `t` and bias `b`. Optimizer slots, `opt/...`, never belong.
_WRAPPERS = {"opt/target/": None, "params/": r"chrono/", "img/": r"txt/|[tb]$"}

# Before linen, Flax numbered all modules of a block together; linen numbers each class separately.
_PRE_LINEN = {
    "LayerNorm_2": "LayerNorm_1",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "MlpBlock_3": "MlpBlock_0",
}
_LINEN = {after: before for before, after in _PRE_LINEN.items()}
_IN_BLOCK = re.compile(r"(Transformer/encoderblock_\d+/)([^/]+)(/.+)")

# Published names of BiT to canonical names. `{}` is the number of a block or unit.
_BIT = {
    "resnet/root_block/standardized_conv2d/kernel": "root_block/conv_root/kernel",
    "resnet/block{}/unit{}/a/group_norm/gamma": "block{}/unit{}/gn1/scale",
    "resnet/block{}/unit{}/a/group_norm/beta": "block{}/unit{}/gn1/bias",
    "resnet/block{}/unit{}/a/standardized_conv2d/kernel": "block{}/unit{}/conv1/kernel",
    "resnet/block{}/unit{}/a/proj/standardized_conv2d/kernel": "block{}/unit{}/conv_proj/kernel",
    "resnet/block{}/unit{}/b/group_norm/gamma": "block{}/unit{}/gn2/scale",
    "resnet/block{}/unit{}/b/group_norm/beta": "block{}/unit{}/gn2/bias",
    "resnet/block{}/unit{}/b/standardized_conv2d/kernel": "block{}/unit{}/conv2/kernel",
    "resnet/block{}/unit{}/c/group_norm/gamma": "block{}/unit{}/gn3/scale",
    "resnet/block{}/unit{}/c/group_norm/beta": "block{}/unit{}/gn3/bias",
    "resnet/block{}/unit{}/c/standardized_conv2d/kernel": "block{}/unit{}/conv3/kernel",
    "resnet/group_norm/gamma": "norm-pre-head/scale",
    "resnet/group_norm/beta": "norm-pre-head/bias",
    "resnet/head/conv2d/kernel": "head/kernel",
    "resnet/head/conv2d/bias": "head/bias",
}
_BIT_PUBLISHED = {after: before for before, after in _BIT.items()}

# The position table of big_vision: at the root (added before the class token is prepended), in
# older files inside the encoder (added after).
_ROOT_POSITIONS = "pos_embedding"
_RENAMED = {_ROOT_POSITIONS: _POSITIONS, "Transformer/pos_embedding": _POSITIONS}

_MAX_DEPTH = 1000  # of stacked blocks: each becomes one array per name, even if it is empty
_GROUP_NORM = re.compile(r"(.*/)?(gn\w+|norm-pre-head)/(scale|bias)")
_GOOGLE = re.compile(r"(.*/)?(Transformer/.+|block\d+/unit\d+/.+|root_block/.+)")


def to_canonical(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts a checkpoint of any Google layout to the canonical names and shapes.

    Wrappers (`opt/target/`, `params/`, `params/img/`) are removed, and arrays beside them dropped:
    optimizer slots, timers, a text tower. Stacked blocks are split. A position table at the root
    has no row for the class token, so a row of zeros is prepended if there is a class token.
    Unknown names are kept, so that `restore` can report them.

    Args:
        arrays: The arrays of a file under the names of the file.

    Raises:
        ValueError: If a block has modules numbered in both ways, if two arrays get the same name,
            if stacked blocks have different depths, or if a position table at the root does not
            have the shape (1, N, D).

    Example:
        >>> sorted(to_canonical({"opt/target/cls": np.zeros((1, 1, 4)), "opt/state/step": np.array(7)}))
        ['cls']
    """
    unstacked = _unstack(_unwrap(arrays))
    _check_counters(unstacked)
    has_class_token = "cls" in unstacked
    return gather(
        (name, _to_linen_name(name), _fix_shape(name, x, has_class_token))
        for name, x in unstacked.items()
    )


def names_of_model(names: Iterable[str]) -> list[str]:
    """Returns the names of the image model: without optimizer slots, timers and text tower.

    Example:
        >>> names_of_model(["opt/target/cls", "opt/state/step"])
        ['opt/target/cls']
    """
    return list(_unwrap({name: name for name in names}).values())


def to_published(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts canonical arrays to the layout of the published files.

    ViTs and hybrids: no wrapper, modules numbered as before linen. BiT: `resnet/...`, with the head
    as a 1x1 convolution of shape (1, 1, in, classes). Unknown names are kept.

    Example:
        >>> list(to_published({"Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias": np.zeros(4)}))
        ['Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias']
    """
    if family(arrays) != "bit":
        return gather((name, _recount(name, _LINEN), x) for name, x in arrays.items())
    return gather(
        (name, _rename(name, _BIT_PUBLISHED), x[None, None] if name == "head/kernel" else x)
        for name, x in arrays.items()
    )


def is_google(arrays: Iterable[str]) -> bool:
    """Returns whether the names are those of any Google layout, with or without wrapper."""
    return any(_GOOGLE.fullmatch(name) for name in arrays)


def family(names: Iterable[str]) -> Literal["vit", "stem", "hybrid", "resnet", "bit"]:
    """Returns the kind of model with these canonical names.

    "stem" is a ViT on a convolutional root without residual units, "hybrid" one with units.
    "resnet" is the trunk of the hybrids with its own head, "bit" the pre-activation ResNet.
    """
    names = list(names)
    roots = {name.split("/")[0] for name in names}
    has_units = any(re.match(r"block\d+/unit\d+/", name) for name in names)
    if roots & {"Transformer", "embedding"}:
        return "hybrid" if has_units else "stem" if roots & {"conv_root", "gn_root"} else "vit"
    if roots & {"root_block", "norm-pre-head"} or any(
        re.match(r"block\d+/unit0\d/", name) for name in names
    ):
        return "bit"
    return "resnet" if has_units or roots & {"conv_root", "gn_root"} else "vit"


def identify(arrays: Mapping[str, np.ndarray], expected: str | None = None) -> str:
    """Returns the name of the model whose row matches the shapes of canonical arrays.

    Families share shapes: ViT-B/16 has those of DINO's and MAE's. Then the result is `expected` if
    it is among them, else the first of the table.

    Args:
        arrays: Canonical arrays. Only shapes are read; image size and classes do not matter.
        expected: Name of the model that the arrays are meant for.

    Raises:
        ValueError: If no row matches. The message states the shapes and the closest rows.

    Example:
        >>> units = [f"block{b}/unit{u:02d}/gn1/bias" for b, n in enumerate((3, 4, 6, 3), 1) for u in range(1, n + 1)]
        >>> identify({"root_block/conv_root/kernel": np.zeros((7, 7, 3, 64)), **dict.fromkeys(units, np.zeros(64))})
        'BiT_R50x1'
    """
    is_resnet = family(arrays) in ("resnet", "bit")
    rows = RESNET_VARIANTS if is_resnet else VIT_VARIANTS | FAMILY_VARIANTS
    found = _read_resnet_facts(arrays) if is_resnet else _read_vit_facts(arrays)
    table = {name: _list_row_facts(row) for name, row in rows.items()}
    matching = [name for name, facts in table.items() if facts == found]
    if matching:
        return expected if expected in matching else matching[0]
    nearest = sorted(table, key=lambda name: _compute_distance(table[name], found))[:3]
    raise ValueError(
        f"No model of the table has the shapes of this checkpoint. Found: {_describe(found)}. "
        f"Nearest rows: {'; '.join(f'{name} ({_describe(table[name])})' for name in nearest)}. "
        "If arrays of one of these models are missing, name that model."
    )


def find_similar_rows(arrays: Mapping[str, np.ndarray]) -> list[ViTVariant]:
    """Returns the rows of ViTs with the width and depth of canonical arrays.

    If several remain, those with other facts than the arrays are left out, except for the head
    count: arrays from PyTorch do not have it.
    """
    width, depth = measure(arrays)
    rows = [
        row
        for row in (VIT_VARIANTS | FAMILY_VARIANTS).values()
        if (row.width, row.depth) == (width, depth)
    ]
    facts = {fact: value for fact, value in _read_vit_facts(arrays).items() if value is not None}
    facts.pop("num_heads", None)
    exact = [
        row
        for row in rows
        if all(_list_row_facts(row)[fact] == value for fact, value in facts.items())
    ]
    return exact or rows


def measure(arrays: Mapping[str, np.ndarray]) -> tuple[int | None, int]:
    """Returns width and depth of the encoder with these canonical arrays.

    Example:
        >>> measure({"Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel": np.zeros((4, 1, 4))})
        (4, 1)
    """
    queries = [
        x for name, x in arrays.items() if re.fullmatch(r"Transformer/.+/query/kernel", name)
    ]
    return (queries[0].shape[0] if queries else None), len(queries)


def _unwrap(arrays: Mapping[str, Any]) -> dict[str, Any]:
    arrays = dict(arrays)
    while found := [
        prefix for prefix in _WRAPPERS if any(name.startswith(prefix) for name in arrays)
    ]:
        prefix, beside = found[0], _WRAPPERS[found[0]]
        arrays = gather(
            (name, name.removeprefix(prefix), x)
            for name, x in arrays.items()
            if not (beside and re.match(beside, name))
        )
    return {name: x for name, x in arrays.items() if not name.startswith("opt/")}


def _unstack(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    prefix = "Transformer/encoderblock/"
    depths = {name: np.shape(x)[:1] for name, x in arrays.items() if name.startswith(prefix)}
    if () in depths.values() or len(set(depths.values())) > 1:
        shapes = join_sorted(f"{name} {np.shape(arrays[name])}" for name in depths)
        raise ValueError(
            "The leading axis of all stacked blocks must be the depth. "
            f"Received: {shapes}. The file is damaged, or contains several models."
        )
    if any(depth > (_MAX_DEPTH,) for depth in depths.values()):
        raise ValueError(
            f"At most {_MAX_DEPTH} blocks can be stacked. Received: {max(depths.values())[0]}."
        )
    entries = []
    for name, x in arrays.items():
        if name in depths:
            rest = name.removeprefix(prefix)
            entries += [(name, f"Transformer/encoderblock_{i}/{rest}", x[i]) for i in range(len(x))]
        else:
            entries.append((name, name, x))
    return gather(entries)


def _check_counters(arrays: Iterable[str]) -> None:
    blocks = defaultdict(lambda: (set(), set()))
    for name in arrays:
        if match := _IN_BLOCK.fullmatch(name):
            block, module, _ = match.groups()
            if module in _PRE_LINEN:
                blocks[block][0].add(module)
            elif module in _LINEN:
                blocks[block][1].add(module)
    mixed = [
        block + name
        for block, both in sorted(blocks.items())
        if all(both)
        for name in sorted(both[0] | both[1])
    ]
    if mixed:
        raise ValueError(
            f"A block has modules numbered in both ways: {join_sorted(mixed)}. Expected either the "
            f"names before linen ({', '.join(_PRE_LINEN)}) or those of linen ({', '.join(_LINEN)})."
        )


def _to_linen_name(name: str) -> str:
    if name.startswith("resnet/"):
        # In some files of BiT the convolutions are numbered.
        return _rename(
            re.sub(r"/standardized_conv2d_\d+/", "/standardized_conv2d/", name), _BIT, fallback=name
        )
    return _recount(_RENAMED.get(name, name), _PRE_LINEN)


def _rename(name: str, table: dict[str, str], fallback: str | None = None) -> str:
    template, numbers = split_numbers(name)
    return table[template].format(*numbers) if template in table else fallback or name


def _recount(name: str, counters: dict[str, str]) -> str:
    match = _IN_BLOCK.fullmatch(name)
    return match[1] + counters.get(match[2], match[2]) + match[3] if match else name


def _fix_shape(name: str, x: np.ndarray, has_class_token: bool) -> np.ndarray:
    if name == _ROOT_POSITIONS:
        if x.ndim != 3 or x.shape[0] != 1:
            raise ValueError(f"`{name}` must have the shape (1, N, D). Received: {x.shape}.")
        return np.concatenate([np.zeros_like(x[:, :1]), x], axis=1) if has_class_token else x
    if _GROUP_NORM.fullmatch(name) and x.ndim == 4 and x.shape[:3] == (1, 1, 1):
        return x.reshape(-1)
    if (
        name in ("head/kernel", "resnet/head/conv2d/kernel")
        and x.ndim == 4
        and x.shape[:2] == (1, 1)
    ):
        return x[0, 0]
    return x


def _read_vit_facts(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    axial = any(re.match(r"Transformer/encoderblock_\d+/row/", name) for name in arrays)
    block = "Transformer/encoderblock_0/" + "row/" * axial
    patch = _shape_of(arrays, "embedding/kernel")[:2]
    has_stem = family(arrays) != "vit"
    return {
        "width": _axis_of(arrays, "embedding/kernel", -1),
        "depth": len({match[1] for name in arrays if (match := _IN_BLOCK.fullmatch(name))}),
        "num_heads": _axis_of(arrays, f"{block}MultiHeadDotProductAttention_0/query/kernel", 1),
        "mlp_dim": _axis_of(arrays, f"{block}MlpBlock_0/Dense_0/kernel", -1),
        "patch_size": patch[0] if len(set(patch)) == 1 else patch or None,
        "stem_units": _count_units(arrays) if has_stem else None,
        "stem_width": _axis_of(arrays, "conv_root/kernel", -1),
        "axial": axial,
        "registers": _axis_of(arrays, "registers", 1) or 0,
        "gated": any("/Gate_0/" in name for name in arrays),
        "layer_scale": any("/LayerScale_0/" in name for name in arrays),
        "distilled": "dist" in arrays,
        "norm_before_blocks": "Transformer/norm_before_blocks/scale" in arrays,
    }


def _read_resnet_facts(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    preactivation = family(arrays) == "bit"
    root = "root_block/conv_root/kernel" if preactivation else "conv_root/kernel"
    axial = any(re.match(r"block\d+/unit\d+/row/", name) for name in arrays)
    return {
        "units": _count_units(arrays),
        "width": _axis_of(arrays, root, -1),
        "preactivation": preactivation,
        "axial": axial,
    }


def _list_row_facts(row: ViTVariant | ResNetVariant) -> dict[str, Any]:
    if isinstance(row, ResNetVariant):
        return {
            "units": row.units,
            "width": row.width,
            "preactivation": row.preactivation,
            "axial": row.axial,
        }
    return {
        "width": row.width,
        "depth": row.depth,
        "num_heads": row.num_heads,
        "mlp_dim": row.mlp_dim,
        "patch_size": row.patch_size,
        "stem_units": row.stem.units if row.stem else None,
        "stem_width": row.stem.width if row.stem else None,
        "axial": row.axial,
        "registers": row.num_registers,
        "gated": row.mlp == "swiglu",
        "layer_scale": row.layer_scale,
        "distilled": row.distilled,
        "norm_before_blocks": row.norm_before_blocks,
    }


def _count_units(arrays: Iterable[str]) -> tuple[int, ...]:
    units = defaultdict(set)
    for name in arrays:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            units[int(match[1])].add(int(match[2]))
    return tuple(len(units[block]) for block in sorted(units))


def _shape_of(arrays: Mapping[str, np.ndarray], name: str) -> tuple[int, ...]:
    return arrays[name].shape if name in arrays else ()


def _axis_of(arrays: Mapping[str, np.ndarray], name: str, axis: int) -> int | None:
    shape = _shape_of(arrays, name)
    return shape[axis] if len(shape) > axis and shape else None


def _compute_distance(row: dict[str, Any], found: dict[str, Any]) -> tuple[int, int]:
    return sum(row[fact] != found[fact] for fact in row), abs(row["width"] - (found["width"] or 0))


def _describe(facts: dict[str, Any]) -> str:
    """Lists facts; those of other families than the paper's only if they have them."""
    rare = ("registers", "gated", "layer_scale", "distilled", "norm_before_blocks")
    return ", ".join(
        f"{fact}={value}" for fact, value in facts.items() if value or fact not in rare
    )
