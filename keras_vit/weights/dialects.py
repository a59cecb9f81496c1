"""Names of timm, Hugging Face and OpenCLIP ↔ canonical names, in both directions.

`timm_names.py`, `huggingface_names.py` and `openclip_names.py` contain the tables, `layouts.py`
converts Google's names, `variables.py` the names of our variables. Nothing is modified in place.
Transposed, split and reshaped arrays are views, so they may not be contiguous in memory. Copied are
fused arrays when they are written, and position tables that gain or lose rows.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import numpy as np

from keras_vit.variants import ResNetVariant, ViTVariant
from keras_vit.weights import (
    belonging,
    huggingface_names,
    layouts,
    openclip_names,
    renaming,
    timm_names,
)
from keras_vit.weights.renaming import Rule, join_sorted
from keras_vit.weights.torch_modules import POSITIONS

Dialect = Literal["google", "timm", "huggingface", "openclip"]
Variant = ViTVariant | ResNetVariant

# Names of computations that no model of this package has, without prefixes.
_REFUSED = {
    r".*\.[qk]_norm\..*": "normalized queries and keys",
    r"attn_pool\.pos_embed": "positions inside the attention pooling",
}
# Found in names without prefixes.
_FOREIGN: dict[Dialect, str] = {
    "timm": r"(blocks|stages|stem|patch_embed|attn_pool)\..*",
    "huggingface": r"embeddings\..*|encoder\.layers?\.\d.*|layers?\.\d+\.(attention|mlp|layernorm_|norm)"
    r".*",
    "openclip": r"conv1\.weight|class_embedding|transformer\.resblocks\..*",
}


def detect(arrays: Iterable[str]) -> Dialect:
    """Detects the dialect of the names of a checkpoint.

    Raises:
        ValueError: If they match no dialect, or several. The message lists some of the names.

    Example:
        >>> detect(["cls_token", "blocks.0.norm1.weight"])
        'timm'
    """
    names = sorted(arrays)
    found: list[Dialect] = ["google"] if layouts.is_google(names) else []
    plain = belonging.strip(names).values()
    for dialect, pattern in _FOREIGN.items():
        if any(re.fullmatch(pattern, name) for name in plain):
            found.append(dialect)
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"The names of a checkpoint must be those of one dialect: {_join_dialects()}. "
        f"Matching: {' and '.join(found) or 'none'}. Received {len(names)} names: "
        f"{join_sorted(names)}."
    )


def names_of_model(names: Iterable[str], dialect: Dialect) -> list[str]:
    """Returns the names of a file that belong to the image model.

    Example:
        >>> names_of_model(["visual.proj", "visual.conv1.weight", "text_projection"], "openclip")
        ['visual.proj', 'visual.conv1.weight']
    """
    return layouts.names_of_model(names) if dialect == "google" else list(belonging.strip(names))


def to_canonical(
    arrays: Mapping[str, np.ndarray],
    num_heads: int | None = None,
    grid: tuple[int, int] | None = None,
    *,
    dialect: Dialect | None = None,
    variant: Variant | None = None,
) -> dict[str, np.ndarray]:
    """Converts a checkpoint of any dialect to canonical names and shapes.

    Unknown names are kept, so that `restore` can report them. Decoders, text towers and mask tokens
    are dropped.

    Args:
        arrays: The arrays of a file under the names of the file.
        num_heads: Number of attention heads. PyTorch files do not store it: by default it is that
            of `variant`, or else is looked up in the table of models.
        grid: (rows, columns) of the position table. It is needed only if a timm table may or may
            not have a row for the class token (FlexiViT's tables have none, and get a row of
            zeros).
        dialect: Dialect of the names. Default: detected.
        variant: Row of the model that the file is loaded into. It determines whether the position
            table has a row for the class token: a missing one is added as zeros, another one is
            added to the token.

    Raises:
        ValueError: If dialect, head count or position table are ambiguous, if the checkpoint has a
            computation that no model of this package has, or if arrays have a wrong rank or size.

    Example:
        >>> to_canonical({"patch_embed.proj.weight": np.zeros((192, 3, 16, 16))})["embedding/kernel"].shape
        (16, 16, 3, 192)
    """
    dialect = dialect or detect(arrays)
    if dialect == "google":
        result = layouts.to_canonical(arrays)
        _check_num_heads(result, num_heads)
        return _fit_class_rows(result, _count_google_class_rows(result, grid, variant), variant)
    short = belonging.strip(arrays)
    plain = renaming.gather((name, short[name], x) for name, x in arrays.items() if name in short)
    _refuse(plain)
    plain = _drop_unused(plain)
    rules = _make_reading_rules(plain, dialect)
    if num_heads is None and isinstance(variant, ViTVariant):
        num_heads = variant.num_heads
    if num_heads is None:
        num_heads = _look_up_num_heads(renaming.read(plain, rules, 1))
    result = renaming.read(plain, rules, num_heads)
    if "storage_tokens" in plain:
        # DINOv3 masks the biases of its keys with zeros.
        result = {name: x for name, x in result.items() if not name.endswith("_0/key/bias")}
    result = _drop_zero_bias(result, variant)
    return _fit_class_rows(
        result, _count_class_rows(result, plain, dialect, grid, variant), variant
    )


def from_canonical(
    arrays: Mapping[str, np.ndarray],
    dialect: Dialect,
    *,
    grid: tuple[int, int] | None = None,
    rotary: bool = False,
) -> dict[str, np.ndarray]:
    """Converts canonical arrays to a dialect: the inverse of `to_canonical`.

    A ViT with average pooling corresponds to timm's with `global_pool="avg", class_token=False,
    fc_norm=False`. For Hugging Face the names of version 4 of Transformers are written, which
    version 5 writes too: those of the class with a head if there is a head. Arrays that the owner
    of a dialect needs and our models do not have are written as zeros: mask tokens of DINOv2 and
    DINOv3, the position of a class token, the bias of CLIP's projection in timm.

    Args:
        arrays: Canonical arrays.
        dialect: The dialect to write.
        grid: (rows, columns) of the position table. Default: the table has a row for each class and
            distillation token.
        rotary: Whether the model has rotary positions, so timm's class is `Eva`.

    Raises:
        ValueError: If the dialect cannot express an array. The message names the dialects that can.

    Example:
        >>> list(from_canonical({"head/bias": np.zeros(10)}, "google"))
        ['head/bias']
    """
    if dialect == "google":
        return layouts.to_published(arrays)
    if dialect not in _FOREIGN:
        raise ValueError(f"`dialect` must be one of {_join_dialects()}. Received: {dialect}.")
    if problems := _find_inexpressible(arrays, dialect, rotary):
        able = [
            "google",
            *(other for other in _FOREIGN if not _find_inexpressible(arrays, other, rotary)),
        ]
        raise ValueError(
            f"The dialect {dialect} cannot express this checkpoint: {join_sorted(problems)}. Use "
            f"{' or '.join(able)}."
        )
    arrays = _prepare_writing(arrays, dialect, grid)
    result = renaming.write(arrays, _make_writing_rules(arrays, dialect, rotary))
    if dialect == "openclip":
        return {f"visual.{name}": x for name, x in result.items()}
    if dialect == "timm":
        return result
    model_type = huggingface_names.find_model_type(arrays, rotary)
    result |= _make_mask_token(arrays, model_type)
    names = huggingface_names.add_prefix(result, model_type)
    return {names[name]: x for name, x in result.items()}


def _join_dialects() -> str:
    return ", ".join(get_args(Dialect))


def _make_reading_rules(arrays: Mapping[str, np.ndarray], dialect: Dialect) -> list[Rule]:
    if dialect == "openclip":
        return openclip_names.make_openclip_rules()
    if dialect == "timm":
        return timm_names.make_reading_rules(arrays)
    return huggingface_names.make_reading_rules()


def _make_writing_rules(
    arrays: Mapping[str, np.ndarray], dialect: Dialect, rotary: bool
) -> list[Rule]:
    if dialect == "openclip":
        return openclip_names.make_openclip_rules()
    table = timm_names if dialect == "timm" else huggingface_names
    return table.make_writing_rules(arrays, rotary)


def _refuse(arrays: Mapping[str, np.ndarray]) -> None:
    problems = []
    for pattern, reason in _REFUSED.items():
        if names := [name for name in arrays if re.fullmatch(pattern, name)]:
            problems.append(f"{reason} ({join_sorted(names, limit=4)})")
    if "classifier.weight" in arrays and "pooler.dense.weight" in arrays:
        problems.append(
            "a classifier and a pooler that the classifier does not use (remove classifier.* or "
            "pooler.*)"
        )
    if "classifier.weight" in arrays and "pre_layrnorm.weight" in arrays:
        problems.append("a classifier on CLIP's tokens without their last norm (classifier.weight)")
    if problems:
        raise ValueError(
            f"No model of this package matches this checkpoint: {join_sorted(problems)}."
        )


def _drop_unused(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drops the attention pooling beside a classifier: SiglipForImageClassification reads the mean
    of the tokens.
    """
    if "classifier.weight" not in arrays or "head.probe" not in arrays:
        return arrays
    return {name: x for name, x in arrays.items() if not name.startswith("head.")}


def _drop_zero_bias(
    arrays: dict[str, np.ndarray], variant: Variant | None
) -> dict[str, np.ndarray]:
    """Drops the zeros that timm adds to CLIP's projection, which has no bias."""
    bias = arrays.get("head/bias")
    if not isinstance(variant, ViTVariant) or variant.projection is None or bias is None:
        return arrays
    return arrays if bias.any() else {n: x for n, x in arrays.items() if n != "head/bias"}


def _find_inexpressible(
    arrays: Mapping[str, np.ndarray], dialect: Dialect, rotary: bool
) -> list[str]:
    problems = renaming.find_unknown_canonical(arrays, _make_writing_rules(arrays, dialect, rotary))
    if dialect != "timm" and POSITIONS not in arrays and not rotary:
        problems.append(f"{POSITIONS} is missing, which this dialect requires")
    if dialect == "openclip":
        problems += [
            f"{name} is missing, which this dialect requires"
            for name in ("cls", "Transformer/norm_before_blocks/scale")
            if name not in arrays
        ]
    if dialect == "huggingface" and "head/kernel" in arrays:
        if "pre_logits/kernel" in arrays:
            problems.append(
                "pre_logits/kernel beside head/kernel, because its classifier does not use the "
                "tanh layer"
            )
        if "MAPHead_0/probe" in arrays:
            problems.append(
                "MAPHead_0/probe beside head/kernel, because its classifier reads the mean of the "
                "tokens"
            )
    if dialect == "timm" and "dist" in arrays:
        if "registers" in arrays:
            problems.append("registers beside a distillation token")
        if "head/kernel" in arrays and "head_dist/kernel" not in arrays:
            problems.append("head/kernel without head_dist/kernel beside a distillation token")
    return problems


def _prepare_writing(
    arrays: Mapping[str, np.ndarray], dialect: Dialect, grid: tuple[int, int] | None
) -> dict[str, np.ndarray]:
    """Gives the position table the rows that the owner of a dialect expects, and CLIP's projection
    in timm a bias.
    """
    arrays = dict(arrays)
    table, learned = arrays.get(POSITIONS), _count_learned(arrays)
    if dialect == "timm" and "head/kernel" in arrays and "head/bias" not in arrays:
        arrays["head/bias"] = np.zeros_like(arrays["head/kernel"][0])
    if table is None or not learned:
        return arrays
    stored = learned if grid is None else table.shape[1] - math.prod(grid)
    if dialect != "timm":
        return _change_class_rows(arrays, stored, learned)
    # timm's registers have no positions only if the class token has none.
    return _change_class_rows(arrays, stored, 0) if "registers" in arrays else arrays


def _make_mask_token(
    arrays: Mapping[str, np.ndarray], model_type: huggingface_names.ModelType
) -> dict[str, np.ndarray]:
    axes = {"dinov2": 2, "dinov2_with_registers": 2, "dinov3_vit": 3}.get(model_type)
    if axes is None or "cls" not in arrays:
        return {}
    token = arrays["cls"]
    return {"embeddings.mask_token": np.zeros((1,) * (axes - 1) + token.shape[-1:], token.dtype)}


def _look_up_num_heads(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns the head count of the table of models for arrays that were read with one head."""
    if not any("MultiHeadDotProductAttention" in name for name in arrays):
        return 1
    heads = {row.num_heads for row in layouts.find_similar_rows(arrays)}
    if len(heads) != 1:
        width, depth = layouts.measure(arrays)
        raise ValueError(
            "The head count is not in the file, and the table of models has "
            f"{'none' if not heads else sorted(heads)} for width={width}, depth={depth}. Pass "
            "`num_heads`."
        )
    return heads.pop()


def _check_num_heads(arrays: Mapping[str, np.ndarray], num_heads: int | None) -> None:
    queries = [
        x
        for name, x in arrays.items()
        if re.fullmatch(r"(Transformer|MAPHead_0)/.+/query/kernel", name)
    ]
    found = {x.shape[1] for x in queries if x.ndim == 3}
    if num_heads is not None and found - {num_heads}:
        raise ValueError(
            f"The checkpoint has {sorted(found)} attention heads. Received: num_heads={num_heads}."
        )


def _count_learned(arrays: Iterable[str]) -> int:
    """Returns the number of tokens that may have a row of their own in the position table."""
    return len({"cls", "dist"} & set(arrays))


def _count_google_class_rows(
    arrays: Mapping[str, np.ndarray], grid: tuple[int, int] | None, variant: Variant | None
) -> int:
    table, learned = arrays.get(POSITIONS), _count_learned(arrays)
    if table is None or table.ndim != 3:
        return learned
    if grid is not None:
        return _match_grid(table.shape[1], grid, learned, may_lack=_lacks_class_position(variant))
    return 0 if _lacks_class_position(variant) else learned


def _count_class_rows(
    arrays: Mapping[str, np.ndarray],
    plain: Mapping[str, np.ndarray],
    dialect: Dialect,
    grid: tuple[int, int] | None,
    variant: Variant | None,
) -> int:
    """Returns how many rows of a position table belong to class and distillation token."""
    table, learned = arrays.get(POSITIONS), _count_learned(arrays)
    if table is None or table.ndim != 3:
        return learned
    rows = table.shape[1]
    if grid is not None:
        return _match_grid(rows, grid, learned, may_lack=dialect == "timm")
    if dialect != "timm" or not learned or "register_tokens" in plain:
        return learned
    if "reg_token" in plain:  # timm's registers: neither they nor the class token have positions
        return 0
    if variant is None:
        similar = layouts.find_similar_rows(arrays)
        variant = similar[0] if similar else None
    if _lacks_class_position(variant):
        return 0
    if math.isqrt(rows) ** 2 == rows:
        raise ValueError(
            f"It is ambiguous whether the {rows} rows of pos_embed are a square grid, or one row "
            f"for the class token and a grid of {rows - 1}. Pass `grid`, the (rows, columns) of "
            "the position table."
        )
    return learned


def _match_grid(rows: int, grid: tuple[int, int], learned: int, may_lack: bool) -> int:
    patches = math.prod(grid)
    if rows == patches + learned:
        return learned
    if may_lack and rows == patches:
        return 0
    raise ValueError(
        f"The position table must have {patches + learned} rows for the grid {grid}. Received: "
        f"{rows}."
    )


def _lacks_class_position(variant: Variant | None) -> bool:
    return isinstance(variant, ViTVariant) and not variant.class_position


def _fit_class_rows(
    arrays: dict[str, np.ndarray], stored: int, variant: Variant | None
) -> dict[str, np.ndarray]:
    """Gives the position table a row for class and distillation token if the model has them."""
    table = arrays.get(POSITIONS)
    if table is None or table.ndim != 3:
        return arrays
    learned = _count_learned(arrays)
    if variant is None:
        similar = layouts.find_similar_rows(arrays)
        variant = similar[0] if similar else None
    return _change_class_rows(arrays, stored, 0 if _lacks_class_position(variant) else learned)


def _change_class_rows(
    arrays: dict[str, np.ndarray], stored: int, wanted: int
) -> dict[str, np.ndarray]:
    """Adds rows of zeros to a position table, or adds its first rows to the tokens.

    Neither changes what the model computes.
    """
    table = arrays[POSITIONS]
    if stored < wanted:
        zeros = np.zeros_like(table[:, : wanted - stored])
        return arrays | {POSITIONS: np.concatenate([zeros, table], axis=1)}
    if stored == wanted:
        return arrays
    tokens = [name for name in ("cls", "dist") if name in arrays]
    rows = {name: table[:, i : i + 1] for i, name in enumerate(tokens)}
    moved = {name: arrays[name] + row for name, row in rows.items() if row.any()}
    return arrays | moved | {POSITIONS: table[:, stored:]}
