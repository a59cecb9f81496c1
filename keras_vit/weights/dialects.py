"""timm's and Hugging Face's names ↔ canonical names: tables, applied in both directions.

In the tables, `{}` is the number of a block. `layouts.py` converts Google's names, `variables.py`
the names of our variables. Nothing is modified in place. Transposed, split and reshaped arrays are
views, so they may not be contiguous in memory. Only the fused arrays of timm are copied, when they
are written.

Source: timm 1.0.31 `vision_transformer.py`, `vision_transformer_hybrid.py`, `resnetv2.py`,
    `layers/attention_pool.py`; transformers 5.23.0 `models/vit/modeling_vit.py`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from keras_vit.variants import VIT_VARIANTS
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

Dialect = Literal["google", "timm", "huggingface"]

_POSITIONS = "Transformer/posembed_input/pos_embedding"
_BLOCK = "Transformer/encoderblock_{}"
_ATTENTION = f"{_BLOCK}/MultiHeadDotProductAttention_0"
_POOL = "MAPHead_0"
_POOL_ATTENTION = f"{_POOL}/MultiHeadDotProductAttention_0"
_QKV = ("query", "key", "value")

_TIMM_VIT: Rows = (
    ("cls_token", "cls", "array"),
    ("pos_embed", _POSITIONS, "array"),
    ("patch_embed.proj", "embedding", "conv"),
    ("blocks.{}.norm1", f"{_BLOCK}/LayerNorm_0", "norm"),
    ("blocks.{}.attn.qkv", _ATTENTION, "heads", ("/query", "/key", "/value")),
    ("blocks.{}.attn.proj", f"{_ATTENTION}/out", "out"),
    ("blocks.{}.norm2", f"{_BLOCK}/LayerNorm_1", "norm"),
    *((f"blocks.{{}}.mlp.fc{i + 1}", f"{_BLOCK}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
    ("norm", "Transformer/encoder_norm", "norm"),
    ("attn_pool.latent", f"{_POOL}/probe", "array"),
    ("attn_pool.q", f"{_POOL_ATTENTION}/query", "heads"),
    ("attn_pool.kv", _POOL_ATTENTION, "heads", ("/key", "/value")),
    ("attn_pool.proj", f"{_POOL_ATTENTION}/out", "out"),
    ("attn_pool.norm", f"{_POOL}/LayerNorm_0", "norm"),
    *((f"attn_pool.mlp.fc{i + 1}", f"{_POOL}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
    ("head", "head", "dense"),
)
# timm has removed its tanh layer: it is read from old files, but cannot be written.
_TIMM_OLD: Rows = (("pre_logits.fc", "pre_logits", "dense"),)
_TIMM_ROOT: Rows = (("conv", "conv_root", "conv"), ("norm", "gn_root", "norm"))
_TIMM_UNITS: Rows = (
    *(
        (f"stages.{{}}.blocks.{{}}.conv{i}", f"block{{}}/unit{{}}/conv{i}", "conv")
        for i in (1, 2, 3)
    ),
    *((f"stages.{{}}.blocks.{{}}.norm{i}", f"block{{}}/unit{{}}/gn{i}", "norm") for i in (1, 2, 3)),
    ("stages.{}.blocks.{}.downsample.conv", "block{}/unit{}/conv_proj", "conv"),
    ("stages.{}.blocks.{}.downsample.norm", "block{}/unit{}/gn_proj", "norm"),
)
_TIMM_BIT: Rows = (("stem.conv", "root_block/conv_root", "conv"), ("norm", "norm-pre-head", "norm"))
_TIMM_HEAD: Rows = (("head.fc", "head", "pointwise"),)

_HUGGINGFACE: Rows = (
    ("embeddings.cls_token", "cls", "array"),
    ("embeddings.position_embeddings", _POSITIONS, "array"),
    ("embeddings.patch_embeddings.projection", "embedding", "conv"),
    ("encoder.layer.{}.layernorm_before", f"{_BLOCK}/LayerNorm_0", "norm"),
    *(
        (f"encoder.layer.{{}}.attention.attention.{part}", f"{_ATTENTION}/{part}", "heads")
        for part in _QKV
    ),
    ("encoder.layer.{}.attention.output.dense", f"{_ATTENTION}/out", "out"),
    ("encoder.layer.{}.layernorm_after", f"{_BLOCK}/LayerNorm_1", "norm"),
    ("encoder.layer.{}.intermediate.dense", f"{_BLOCK}/MlpBlock_0/Dense_0", "dense"),
    ("encoder.layer.{}.output.dense", f"{_BLOCK}/MlpBlock_0/Dense_1", "dense"),
    ("layernorm", "Transformer/encoder_norm", "norm"),
    ("pooler.dense", "pre_logits", "dense"),
    ("classifier", "head", "dense"),
)
# The names of a state dict of transformers 5. Its files still have the classic names.
_STATE_DICT: Rows = (
    ("layers.{}.layernorm_before", f"{_BLOCK}/LayerNorm_0", "norm"),
    *((f"layers.{{}}.attention.{part[0]}_proj", f"{_ATTENTION}/{part}", "heads") for part in _QKV),
    ("layers.{}.attention.o_proj", f"{_ATTENTION}/out", "out"),
    ("layers.{}.layernorm_after", f"{_BLOCK}/LayerNorm_1", "norm"),
    *((f"layers.{{}}.mlp.fc{i + 1}", f"{_BLOCK}/MlpBlock_0/Dense_{i}", "dense") for i in (0, 1)),
)

# Names of computations that no model of this package has.
_REFUSED = {
    r"fc_norm\..*": "fc_norm normalises after pooling, and models of this package before it",
    r"(.*\.)?(dist_token|head_dist\..*|distillation_token|(cls|distillation)_classifier\..*)": "a distilled DeiT",
    r"reg_token": "register tokens",
    r"norm_pre\..*": "a norm before the first block",
    r"blocks\.\d+\.ls[12]\..*": "layer scale",
    r".*\.[qk]_norm\..*": "normalised queries and keys",
    r"attn_pool\.pos_embed": "positions inside the attention pooling",
}
# One per block, (rows, D). Width and depth are read from them.
_QUERIES = r"blocks\.\d+\.attn\.qkv\.weight|(encoder\.layer|layers)\.\d+\.attention\.(attention\.query|q_proj)\.weight"
_FOREIGN: dict[Dialect, str] = {
    "timm": r"(blocks|stages|stem|patch_embed|attn_pool)\..*",
    "huggingface": r"(\w+\.)?(embeddings\.|encoder\.layer\.\d|layers\.\d+\.(attention|mlp|layernorm_)).*",
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
    for dialect, pattern in _FOREIGN.items():
        if any(re.fullmatch(pattern, name) for name in names):
            found.append(dialect)
    if len(found) == 1:
        return found[0]
    raise ValueError(
        "The names of a checkpoint must be those of one dialect: google, timm or huggingface. "
        f"Matching: {' and '.join(found) or 'none'}. Received {len(names)} names: "
        f"{join_sorted(names)}."
    )


def to_canonical(
    arrays: Mapping[str, np.ndarray],
    num_heads: int | None = None,
    grid: tuple[int, int] | None = None,
    *,
    dialect: Dialect | None = None,
) -> dict[str, np.ndarray]:
    """Converts a checkpoint of any dialect to canonical names and shapes.

    Unknown names are kept, so that `restore` can report them.

    Args:
        arrays: The arrays of a file under the names of the file.
        num_heads: Number of attention heads. timm and Hugging Face do not store it: by default it
            is looked up in the table of models by width and depth.
        grid: (rows, columns) of the position table. It is needed only if a timm table may or may
            not have a row for the class token (FlexiViT's tables have none, and get a row of
            zeros).
        dialect: Dialect of the names. Default: detected.

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
    else:
        plain = renaming.gather((name, name.removeprefix("vit."), x) for name, x in arrays.items())
        _refuse(plain)
        result = renaming.read(
            plain, _make_reading_rules(plain, dialect), _find_num_heads(plain, num_heads)
        )
    return _add_class_row(result, grid, may_lack_row=dialect == "timm")


def from_canonical(arrays: Mapping[str, np.ndarray], dialect: Dialect) -> dict[str, np.ndarray]:
    """Converts canonical arrays to a dialect: the inverse of `to_canonical`.

    A ViT with average pooling corresponds to timm's with `global_pool="avg", class_token=False,
    fc_norm=False`. For Hugging Face the classic names are written: those of
    ViTForImageClassification if there is a head, else those of ViTModel.

    Raises:
        ValueError: If the dialect cannot express an array. The message names the dialects that can.

    Example:
        >>> list(from_canonical({"head/bias": np.zeros(10)}, "timm"))
        ['head.bias']
    """
    if dialect == "google":
        return layouts.to_published(arrays)
    if dialect not in _FOREIGN:
        raise ValueError(
            f"`dialect` must be one of google, timm, huggingface. Received: {dialect}."
        )
    if problems := _find_inexpressible(arrays, dialect):
        able = ["google", *(other for other in _FOREIGN if not _find_inexpressible(arrays, other))]
        raise ValueError(
            f"The dialect {dialect} cannot express this checkpoint: {join_sorted(problems)}. Use "
            f"{' or '.join(able)}."
        )
    result = renaming.write(arrays, _make_writing_rules(arrays, dialect))
    if dialect == "timm" or not any(name.startswith("head/") for name in arrays):
        return result
    return {
        name if name.startswith("classifier.") else f"vit.{name}": x for name, x in result.items()
    }


# In PyTorch, dense kernels are (out, in) and convolutions OIHW. A "pointwise" convolution is a
# dense layer in our models.
_BIAS = Leaf(".bias", "/bias", (1, 1))
_TORCH: dict[str, tuple[Leaf, ...]] = {
    "array": (Leaf("", "", (3, 3)),),
    "norm": (Leaf(".weight", "/scale", (1, 1)), _BIAS),
    "dense": (Leaf(".weight", "/kernel", (2, 2), lambda x, _: x.T, lambda x: x.T), _BIAS),
    "conv": (
        Leaf(
            ".weight",
            "/kernel",
            (4, 4),
            lambda x, _: x.transpose(2, 3, 1, 0),
            lambda x: x.transpose(3, 2, 0, 1),
        ),
        _BIAS,
    ),
    "pointwise": (
        Leaf(
            ".weight",
            "/kernel",
            (4, 2),
            lambda x, _: x.reshape(x.shape[:2]).T,
            lambda x: x.T[:, :, None, None],
        ),
        _BIAS,
    ),
    "heads": (
        Leaf(
            ".weight",
            "/kernel",
            (2, 3),
            lambda x, heads: split_last(x.T, heads),
            lambda x: merge_last(x).T,
        ),
        Leaf(".bias", "/bias", (1, 2), split_first, merge_first),
    ),
    "out": (
        Leaf(
            ".weight",
            "/kernel",
            (2, 3),
            lambda x, heads: split_first(x.T, heads),
            lambda x: merge_first(x).T,
        ),
        _BIAS,
    ),
}


def _make_timm_rules(family: str, more: Rows = ()) -> list[Rule]:
    if family == "bit":
        return make_rules(_TIMM_BIT + _TIMM_HEAD, _TORCH) + make_rules(
            use_two_digits(_TIMM_UNITS), _TORCH, offset=1
        )
    if family == "resnet":
        root = make_rules(_TIMM_ROOT, _TORCH, "stem.") + make_rules(_TIMM_HEAD, _TORCH)
        return root + make_rules(_TIMM_UNITS, _TORCH, offset=1)
    backbone, rules = "patch_embed.backbone.", make_rules(_TIMM_VIT + more, _TORCH)
    # Without residual units timm's backbone is the root itself.
    root = make_rules(_TIMM_ROOT, _TORCH, backbone if family == "stem" else f"{backbone}stem.")
    return rules + root + make_rules(_TIMM_UNITS, _TORCH, backbone, offset=1)


def _detect_timm_family(names: Iterable[str]) -> str:
    names = list(names)
    if any(name.startswith("patch_embed.backbone.") for name in names):
        return (
            "hybrid"
            if any(re.match(r"patch_embed\.backbone\.(stem|stages)\.", name) for name in names)
            else "stem"
        )
    if any(name.startswith(("stem.", "stages.")) for name in names):
        return "resnet" if any(name.startswith("stem.norm.") for name in names) else "bit"
    return "vit"


def _make_reading_rules(names: Iterable[str], dialect: Dialect) -> list[Rule]:
    is_timm = dialect == "timm"
    return (
        _make_timm_rules(_detect_timm_family(names), _TIMM_OLD)
        if is_timm
        else make_rules(_HUGGINGFACE + _STATE_DICT, _TORCH)
    )


def _make_writing_rules(names: Iterable[str], dialect: Dialect) -> list[Rule]:
    return (
        _make_timm_rules(layouts.family(names))
        if dialect == "timm"
        else make_rules(_HUGGINGFACE, _TORCH)
    )


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
    if problems:
        raise ValueError(
            f"No model of this package matches this checkpoint: {join_sorted(problems)}."
        )


def _find_inexpressible(arrays: Mapping[str, np.ndarray], dialect: Dialect) -> list[str]:
    problems = renaming.find_unknown_canonical(arrays, _make_writing_rules(arrays, dialect))
    if dialect == "huggingface":
        problems += [
            f"{name} is missing, which this dialect requires"
            for name in ("cls", _POSITIONS)
            if name not in arrays
        ]
        if "head/kernel" in arrays and "pre_logits/kernel" in arrays:
            problems.append(
                "pre_logits/kernel beside head/kernel, because its classifier does not use the "
                "tanh layer"
            )
    return problems


def _find_num_heads(arrays: Mapping[str, np.ndarray], num_heads: int | None) -> int:
    if num_heads is not None:
        return num_heads
    if not any("attn" in name or "attention" in name for name in arrays):
        return 1
    widths = [x.shape[-1] for name, x in arrays.items() if re.fullmatch(_QUERIES, name)]
    width, depth = widths[0] if widths else None, len(widths)
    heads = {
        row.num_heads for row in VIT_VARIANTS.values() if (row.width, row.depth) == (width, depth)
    }
    if len(heads) != 1:
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


def _add_class_row(
    arrays: dict[str, np.ndarray], grid: tuple[int, int] | None, may_lack_row: bool
) -> dict[str, np.ndarray]:
    table, prefix = arrays.get(_POSITIONS), int("cls" in arrays)
    if table is None or table.ndim != 3:
        return arrays
    rows, patches = table.shape[1], math.prod(grid) if grid else None
    if patches is None and may_lack_row and prefix and math.isqrt(rows) ** 2 == rows:
        raise ValueError(
            f"It is ambiguous whether the {rows} rows of pos_embed are a square grid, or one row "
            f"for the class token and a grid of {rows - 1}. Pass `grid`, the (rows, columns) of "
            "the position table."
        )
    if patches in (None, rows - prefix):
        return arrays
    if may_lack_row and patches == rows:
        return arrays | {_POSITIONS: np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)}
    raise ValueError(
        f"The position table must have {patches + prefix} rows for the grid {grid}. Received: "
        f"{rows}."
    )
