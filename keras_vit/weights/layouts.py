"""Google's checkpoint layouts: every spelling found in the published files ↔ one canonical form.

What lives here: renaming and reshaping between dictionaries of NumPy arrays, and the recognition of
a model by its shapes. What does not: reading files (`files.py`), foreign vocabularies
(`dialects.py`). The canonical form has the names of the current linen code, group norms of shape
(C,), a head kernel of shape (in, classes) and a position table of shape (1, prefix + N, D). Nothing
is modified in place, and arrays are views of the given ones wherever NumPy can express the change
as a view.

Source: vision_transformer@c6de1e5 `models_vit.py`; big_vision@0127fb6 `models/vit.py`,
    `models/bit_paper.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights.renaming import gather, join_sorted, split_numbers

_POSITIONS = "Transformer/posembed_input/pos_embedding"

# wrapper -> what lies beside it and is no part of the image model: big_vision's timers; the text
# tower of SigLIP with its temperature `t` and bias `b`. Optimiser slots, `opt/...`, never are.
_WRAPPERS = {"opt/target/": None, "params/": r"chrono/", "img/": r"txt/|[tb]$"}

# Before linen, Flax counted all modules of a block together; linen counts each class apart.
_PRE_LINEN = {
    "LayerNorm_2": "LayerNorm_1",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "MlpBlock_3": "MlpBlock_0",
}
_LINEN = {after: before for before, after in _PRE_LINEN.items()}
_IN_BLOCK = re.compile(r"(Transformer/encoderblock_\d+/)([^/]+)(/.+)")

# The files of BiT; `{}` stands for the number of a block or unit. The key is the published name.
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

# Where big_vision kept the position table: at the root (added before the class token joins), and
# earlier inside the encoder (added after).
_ROOT_POSITIONS = "pos_embedding"
_RENAMED = {_ROOT_POSITIONS: _POSITIONS, "Transformer/pos_embedding": _POSITIONS}

_MAX_DEPTH = 1000  # of stacked blocks: each becomes an array, even if it is empty
_GROUP_NORM = re.compile(r"(.*/)?(gn\w+|norm-pre-head)/(scale|bias)")
_GOOGLE = re.compile(r"(.*/)?(Transformer/.+|block\d+/unit\d+/.+|root_block/.+)")


def to_canonical(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Brings a checkpoint of any Google layout to the canonical names and shapes.

    Wrappers (`opt/target/`, `params/`, `params/img/`) are taken off, and what lies beside them is
    dropped: optimiser slots, timers, a text tower. Stacked blocks are split. A position table at
    the root has no row for the class token, so a zero row is put before it where there is such a
    token. A name that no rule knows passes unchanged: who restores reports it.

    Args:
        arrays: The arrays of a file under the names of the file.

    Raises:
        ValueError: If a block mixes both ways of counting modules, if two arrays end up under one
            name, if stacked blocks disagree about the depth, or if a root position table is not (1,
            N, D).

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
    """Returns the names that belong to the image model: no slots of an optimizer, timers, or text
    tower.

    Example:
        >>> names_of_model(["opt/target/cls", "opt/state/step"])
        ['opt/target/cls']
    """
    return list(_unwrap({name: name for name in names}).values())


def to_published(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Spells canonical arrays as the published files do: the inverse of `to_canonical` for such files.

    ViTs and hybrids: no wrapper, modules counted as before linen. BiT: `resnet/...`, with the head
    as a 1x1 convolution of shape (1, 1, in, classes). Names that no rule knows pass unchanged.

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
    """Whether the names are those of a Google layout, of whatever age and
    under whatever wrapper.
    """
    return any(_GOOGLE.fullmatch(name) for name in arrays)


def family(names: Iterable[str]) -> Literal["vit", "stem", "hybrid", "resnet", "bit"]:
    """Tells the kind of model from its canonical names.

    "stem" is a ViT on a convolutional root without residual units, "hybrid" one with units;
    "resnet" is the trunk of the hybrids with a head of its own, "bit" the pre-activation ResNet.
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


def identify(arrays: Mapping[str, np.ndarray]) -> str:
    """Names the model whose row of the table fits the shapes of canonical arrays.

    Args:
        arrays: Canonical arrays. Only shapes are read; image size and classes play no part.

    Raises:
        ValueError: If no row fits; it says what was found and which rows come nearest.

    Example:
        >>> units = [f"block{b}/unit{u:02d}/gn1/bias" for b, n in enumerate((3, 4, 6, 3), 1) for u in range(1, n + 1)]
        >>> identify({"root_block/conv_root/kernel": np.zeros((7, 7, 3, 64)), **dict.fromkeys(units, np.zeros(64))})
        'BiT_R50x1'
    """
    is_resnet = family(arrays) in ("resnet", "bit")
    rows = RESNET_VARIANTS if is_resnet else VIT_VARIANTS
    found = _read_resnet_facts(arrays) if is_resnet else _read_vit_facts(arrays)
    table = {name: _list_row_facts(row) for name, row in rows.items()}
    for name, facts in table.items():
        if facts == found:
            return name
    nearest = sorted(table, key=lambda name: _compute_distance(table[name], found))[:3]
    raise ValueError(
        f"No model of the table has the shapes of this checkpoint. Found: {_describe(found)}. "
        f"Nearest rows: {'; '.join(f'{name} ({_describe(table[name])})' for name in nearest)}. "
        "Name the model yourself if the checkpoint is one of these with something missing."
    )


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
            "Stacked blocks must all have the depth as their leading axis. "
            f"Received: {shapes}. The file is damaged or not one model."
        )
    if any(depth > (_MAX_DEPTH,) for depth in depths.values()):
        raise ValueError(
            f"Stacked blocks can be {_MAX_DEPTH}. Received: {max(depths.values())[0]}."
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
            f"A block counts its modules in two ways at once: {join_sorted(mixed)}. Expected either the "
            f"names before linen ({', '.join(_PRE_LINEN)}) or those of linen ({', '.join(_LINEN)})."
        )


def _to_linen_name(name: str) -> str:
    if name.startswith("resnet/"):
        # Some files of BiT number their convolutions.
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
    return ", ".join(f"{fact}={value}" for fact, value in facts.items())
