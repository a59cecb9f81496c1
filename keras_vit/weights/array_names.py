"""The canonical names of the arrays in a checkpoint of each model.

The names are written out from the sources of `witness.py`, independently of the code of the models.
`witness.py` checks shapes; `variables.py` translates names.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import product

from keras_vit.variants import ResNetVariant, ViTVariant

_MIXER = (
    "MultiHeadDotProductAttention_0/{query,key,value,out}/{kernel,bias}",
    "MlpBlock_0/Dense_{0,1}/{kernel,bias}",
)
_POOLING = ("probe", "LayerNorm_0/{scale,bias}", *_MIXER)
_UNIT = ("conv{1,2,3}/kernel", "gn{1,2,3}/{scale,bias}")
_AXES = ("{row,column}/{query,key,value,out}/{kernel,bias}", "{row,column}/relative_embedding")
_AXIAL_UNIT = ("conv{1,3}/kernel", "gn{1,2,3}/{scale,bias}", *_AXES)


def check_names(arrays: Iterable[str], variant: ViTVariant | ResNetVariant) -> None:
    """Raises ValueError if arrays are missing or unused. The message lists all of them."""
    arrays = set(arrays)
    expected = {name for pattern in _list_patterns(arrays, variant) for name in _expand(pattern)}
    missing, unused = sorted(expected - arrays), sorted(arrays - expected)
    if missing or unused:
        raise ValueError(
            f"The arrays are not those of {variant.name}. Missing ({len(missing)}): "
            f"{', '.join(missing) or 'none'}. Unused ({len(unused)}): "
            f"{', '.join(unused) or 'none'}. Choose the variant of the file."
        )


def unit_names(variant: ResNetVariant) -> list[list[str]]:
    """Returns the names of the units of each stage, counted from 1, with two digits in BiT."""
    digits = "02d" if variant.preactivation else "d"
    stages = enumerate(variant.units, start=1)
    return [
        [f"block{stage}/unit{unit:{digits}}" for unit in range(1, count + 1)]
        for stage, count in stages
    ]


def _list_patterns(arrays: set[str], variant: ViTVariant | ResNetVariant) -> Iterator[str]:
    """Yields the patterns of all arrays that the forward pass reads.

    An optional part is included if one of its arrays is present.
    """
    trunk = variant.stem if isinstance(variant, ViTVariant) else variant
    yield from _list_trunk_patterns(trunk) if trunk else ()
    if isinstance(variant, ViTVariant):
        yield from _list_encoder_patterns(arrays, variant)
    elif variant.preactivation:
        yield "norm-pre-head/{scale,bias}"
    if _has(arrays, "head"):
        is_projection = isinstance(variant, ViTVariant) and variant.projection is not None
        yield "head/kernel" if is_projection else "head/{kernel,bias}"


def _list_encoder_patterns(arrays: set[str], variant: ViTVariant) -> Iterator[str]:
    yield "embedding/{kernel,bias}" if variant.patch_bias else "embedding/kernel"
    if not variant.rotary:
        yield "Transformer/posembed_input/pos_embedding"
    if variant.norm_before_blocks:
        yield "Transformer/norm_before_blocks/{scale,bias}"
    block = "encoderblock_{}/{{row,column}}" if variant.axial else "encoderblock_{}"
    yield from (
        f"Transformer/{block.format(i)}/{pattern}"
        for i in range(variant.depth)
        for pattern in _list_block_patterns(variant)
    )
    if _has(arrays, "MAPHead_0"):
        yield from (f"MAPHead_0/{pattern}" for pattern in _POOLING)
    if variant.distilled:
        yield "dist"
        if _has(arrays, "head_dist"):
            yield "head_dist/{kernel,bias}"
    if variant.num_registers:
        yield "registers"
    is_read = "cls" in arrays and not variant.axial and not _has(arrays, "MAPHead_0")
    if variant.class_token or is_read:
        yield "cls"
    if _has(arrays, "pooled_norm"):
        yield "pooled_norm/{scale,bias}"
    else:
        yield "Transformer/encoder_norm/{scale,bias}"
    if _has(arrays, "pre_logits"):
        yield "pre_logits/{kernel,bias}"


def _list_block_patterns(variant: ViTVariant) -> Iterator[str]:
    yield "LayerNorm_{0,1}/{scale,bias}"
    yield "MultiHeadDotProductAttention_0/{query,key,value,out}/kernel"
    with_bias = {"all": "query,key,value,out", "no_key": "query,value,out", "none": "out"}
    yield f"MultiHeadDotProductAttention_0/{{{with_bias[variant.attention_bias]}}}/bias"
    yield "MlpBlock_0/Dense_{0,1}/{kernel,bias}"
    if variant.mlp == "swiglu":
        yield "MlpBlock_0/Gate_0/{kernel,bias}"
    if variant.layer_scale:
        yield "LayerScale_{0,1}/scale"


def _list_trunk_patterns(variant: ResNetVariant) -> Iterator[str]:
    yield "root_block/conv_root/kernel" if variant.preactivation else "conv_root/kernel"
    for units in unit_names(variant):
        yield from (
            f"{unit}/{pattern}"
            for unit in units
            for pattern in (_AXIAL_UNIT if variant.axial else _UNIT)
        )
        yield f"{units[0]}/conv_proj/kernel"
    if not variant.preactivation:
        yield from (
            "gn_root/{scale,bias}",
            *(f"{units[0]}/gn_proj/{{scale,bias}}" for units in unit_names(variant)),
        )


def _expand(pattern: str) -> Iterator[str]:
    """Yields the names that match a pattern: "gn{1,2}/{scale,bias}" expands to four."""
    return map("".join, product(*(part.split(",") for part in re.split("[{}]", pattern))))


def _has(arrays: Iterable[str], scope: str) -> bool:
    return any(name.startswith(scope + "/") for name in arrays)
