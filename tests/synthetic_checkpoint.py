"""Full-size checkpoints without a download: names and shapes from a variant, values from the name.

The figures in `tests/golden/*_reference.json` were computed once, in float32, by the published Flax
implementations (google-research/vision_transformer, google-research/big_vision) on exactly these
arrays and images. So a full-size model of ours can be compared with them although no trained weight
is stored here. Changing the order or the kind of any random draw below makes those figures useless.

All names are canonical: those of the current Google linen code, group normalization vectors
one-dimensional.

Example:
    >>> from keras_vit.variants import VIT_VARIANTS
    >>> sum(array.size for array in checkpoint(VIT_VARIANTS["ViT_Ti16"]).values())
    5717416
"""

import json
import math
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from keras_vit.variants import ResNetVariant, ViTVariant

Shapes = dict[str, tuple[int, ...]]
Classifier = Literal["token", "gap", "map"]

_GOLDEN = Path(__file__).parent / "golden"


def reference_cases(family: Literal["vit", "bit"]) -> list[dict[str, Any]]:
    """The records of `golden/vit_reference.json` or `golden/bit_reference.json`."""
    return json.loads((_GOLDEN / f"{family}_reference.json").read_text())


def checkpoint(variant: ViTVariant | ResNetVariant, **options: Any) -> dict[str, np.ndarray]:
    """Arrays of a whole model under canonical names. The options are those of `array_shapes`."""
    return {
        name: synthetic_array(name, shape)
        for name, shape in array_shapes(variant, **options).items()
    }


def array_shapes(
    variant: ViTVariant | ResNetVariant,
    *,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = 1000,
    representation_size: int | None = None,
    classifier: Classifier | None = None,
) -> Shapes:
    """Canonical names and shapes of a model, written out from the published code, not from
    `keras_vit`.

    `classes=None` leaves the head out. A ResNet has neither `representation_size` nor `classifier`;
    the classifier of a ViT is that of its row, that of an axial one "gap". The default image size is
    that of the row, 224 for a ResNet.
    """
    image_size = image_size or getattr(variant, "image_size", 224)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if isinstance(variant, ResNetVariant):
        if representation_size is not None or classifier is not None:
            raise ValueError("A ResNet has neither a `representation_size` nor a `classifier`.")
        return _resnet_shapes(variant, size) | _dense_shapes("head", variant.out_channels, classes)
    width, classifier = (
        variant.width,
        classifier or ("gap" if variant.axial else variant.classifier),
    )
    # Every stride of the stem halves and rounds up; strides compose to one rounded-up division.
    stride = variant.stem.total_stride if variant.stem else 1
    tokens = math.prod(math.ceil(side / stride) // variant.patch_size for side in size)
    channels = variant.stem.out_channels if variant.stem else 3
    shapes: Shapes = _stem_shapes(variant.stem, size) if variant.stem else {}
    shapes["embedding/kernel"] = (variant.patch_size, variant.patch_size, channels, width)
    if variant.patch_bias:
        shapes["embedding/bias"] = (width,)
    learned = ["cls"] if variant.class_token or classifier in ("token", "token_gap") else []
    learned += ["dist"] if variant.distilled else []
    shapes |= {name: (1, 1, width) for name in learned}
    if variant.num_registers:
        shapes["registers"] = (1, variant.num_registers, width)
    positions = tokens + (len(learned) if variant.class_position else 0)
    if not variant.rotary:
        shapes["Transformer/posembed_input/pos_embedding"] = (1, positions, width)
    if variant.norm_before_blocks:
        shapes |= _norm_shapes("Transformer/norm_before_blocks", width)
    halves = ("row/", "column/") if variant.axial else ("",)
    for block in (
        f"Transformer/encoderblock_{index}/{half}"
        for index in range(variant.depth)
        for half in halves
    ):
        shapes |= _norm_shapes(block + "LayerNorm_0", width) | _attention_shapes(
            block, width, variant.num_heads
        )
        shapes |= _norm_shapes(block + "LayerNorm_1", width) | _mlp_shapes(
            block, width, variant.mlp_dim
        )
        shapes |= _block_options(block, variant)
        for part in {"all": (), "no_key": ("key",), "none": ("query", "key", "value")}[
            variant.attention_bias
        ]:
            del shapes[f"{block}MultiHeadDotProductAttention_0/{part}/bias"]
    features = 2 * width if classifier == "token_gap" else width
    if variant.norm_after_pooling:
        shapes |= _norm_shapes("pooled_norm", features)
    else:
        shapes |= _norm_shapes("Transformer/encoder_norm", width)
    if classifier == "map":
        shapes["MAPHead_0/probe"] = (1, 1, width)
        shapes |= _attention_shapes("MAPHead_0/", width, variant.num_heads)
        shapes |= _norm_shapes("MAPHead_0/LayerNorm_0", width) | _mlp_shapes(
            "MAPHead_0/", width, variant.mlp_dim
        )
    shapes |= _dense_shapes("pre_logits", features, representation_size)
    shapes |= _dense_shapes("head", representation_size or features, classes)
    if variant.distilled:
        shapes |= _dense_shapes("head_dist", width, classes)
    if variant.projection:
        shapes.pop("head/bias", None)
    return shapes


# What takes seconds; the others show the same paths before every commit.
LARGE = ("R50+ViT-B/16", "ViT-B/16 with pre_logits", "ViT-B/32 at 384 from a 224 checkpoint")


def synthetic_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 array that depends on its name and shape alone, scaled so that activations stay near
    one.
    """
    draw = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)
    leaf = name.split("/")[-1]
    if leaf == "scale":
        return 1.0 + 0.1 * draw
    if leaf == "bias":
        return 0.02 * draw
    if leaf in {"cls", "dist", "registers", "pos_embedding", "probe", "relative_embedding"}:
        return 0.2 * draw
    # Kernels end in (..., inputs, outputs), except that a query, key or value kernel is (inputs,
    # heads, head size).
    projects_to_heads = not {"query", "key", "value"}.isdisjoint(name.split("/"))
    inputs = shape[0] if projects_to_heads else math.prod(shape[:-1])
    return draw / np.float32(np.sqrt(inputs))


def synthetic_images(height: int, width: int, batch: int = 2, seed: int = 0) -> np.ndarray:
    """Float32 images (batch, height, width, 3) in [-1, 1]: one coloured wave per channel, and some
    noise.
    """
    rng = np.random.default_rng(seed)
    row_frequency, column_frequency = rng.uniform(1, 12, (2, batch, 1, 1, 3))
    phase = rng.uniform(0, 2 * np.pi, (batch, 1, 1, 3))
    rows = np.linspace(0, 1, height).reshape(1, height, 1, 1)
    columns = np.linspace(0, 1, width).reshape(1, 1, width, 1)
    waves = np.sin(2 * np.pi * (row_frequency * rows + column_frequency * columns) + phase)
    noise = rng.uniform(-1, 1, waves.shape)
    return (0.8 * waves + 0.2 * noise).astype(np.float32)


def _dense_shapes(name: str, inputs: int, outputs: int | None) -> Shapes:
    return (
        {} if outputs is None else {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}
    )


def _norm_shapes(name: str, channels: int) -> Shapes:
    return {f"{name}/scale": (channels,), f"{name}/bias": (channels,)}


def _attention_shapes(
    prefix: str, width: int, num_heads: int, module: str = "MultiHeadDotProductAttention_0"
) -> Shapes:
    attention, head_size = f"{prefix}{module}/", width // num_heads
    shapes: Shapes = {}
    for part in ("query", "key", "value"):
        shapes[f"{attention}{part}/kernel"] = (width, num_heads, head_size)
        shapes[f"{attention}{part}/bias"] = (num_heads, head_size)
    return shapes | {
        f"{attention}out/kernel": (num_heads, head_size, width),
        f"{attention}out/bias": (width,),
    }


def _mlp_shapes(prefix: str, width: int, mlp_dim: int) -> Shapes:
    mlp = prefix + "MlpBlock_0/"
    return _dense_shapes(mlp + "Dense_0", width, mlp_dim) | _dense_shapes(
        mlp + "Dense_1", mlp_dim, width
    )


def _block_options(block: str, variant: ViTVariant) -> Shapes:
    """Layer scale and the gate of SwiGLU."""
    shapes: Shapes = {}
    if variant.layer_scale:
        shapes |= {f"{block}LayerScale_{half}/scale": (variant.width,) for half in (0, 1)}
    if variant.mlp == "swiglu":
        shapes |= _dense_shapes(f"{block}MlpBlock_0/Gate_0", variant.width, variant.mlp_dim)
    return shapes


def _stem_shapes(stem: ResNetVariant, image_size: tuple[int, int]) -> Shapes:
    """Root and stages; the naming differs between the two families, and so does the place of the
    norms.
    """
    root = "root_block/conv_root/kernel" if stem.preactivation else "conv_root/kernel"
    shapes: Shapes = {root: (7, 7, 3, stem.width)}
    if not stem.preactivation:
        shapes |= _norm_shapes("gn_root", stem.width)
    inputs = stem.width
    for stage, num_units in enumerate(stem.units, start=1):
        inner = stem.width * 2 ** (stage - 1)
        for number in range(1, num_units + 1):
            unit = (
                f"block{stage}/unit{number:02d}"
                if stem.preactivation
                else f"block{stage}/unit{number}"
            )
            shapes |= _unit_shapes(unit, inputs, inner, stem.preactivation, project=number == 1)
            if stem.axial:
                # What a unit attends to: its input, before its own stride of 2, which is that of
                # the stage's first.
                stride = 2 * 2**stage if stage == 1 or number > 1 else 2**stage
                shapes |= _axial_shapes(
                    unit, inner, [math.ceil(side / stride) for side in image_size]
                )
                del shapes[f"{unit}/conv2/kernel"]
            inputs = 4 * inner
    return shapes


def _unit_shapes(unit: str, inputs: int, inner: int, preactivation: bool, project: bool) -> Shapes:
    shapes: Shapes = {
        f"{unit}/conv1/kernel": (1, 1, inputs, inner),
        f"{unit}/conv2/kernel": (3, 3, inner, inner),
        f"{unit}/conv3/kernel": (1, 1, inner, 4 * inner),
    }
    # Pre-activation normalizes what goes into a convolution, post-activation what comes out of it.
    normalized = (inputs, inner, inner) if preactivation else (inner, inner, 4 * inner)
    for number, channels in enumerate(normalized, start=1):
        shapes |= _norm_shapes(f"{unit}/gn{number}", channels)
    if project:
        shapes[f"{unit}/conv_proj/kernel"] = (1, 1, inputs, 4 * inner)
        if not preactivation:
            shapes |= _norm_shapes(f"{unit}/gn_proj", 4 * inner)
    return shapes


def _axial_shapes(unit: str, width: int, map_size: list[int]) -> Shapes:
    """arXiv:2010.11929, D.6: attention of eight heads along the rows and one along the columns, in
    place of conv2.
    """
    shapes: Shapes = {}
    for axis, length in (("column", map_size[0]), ("row", map_size[1])):
        shapes |= _attention_shapes(f"{unit}/", width, 8, axis)
        shapes[f"{unit}/{axis}/relative_embedding"] = (2 * length - 1, width // 8)
    return shapes


def _resnet_shapes(variant: ResNetVariant, image_size: tuple[int, int]) -> Shapes:
    shapes = _stem_shapes(variant, image_size)
    return (
        shapes | _norm_shapes("norm-pre-head", variant.out_channels)
        if variant.preactivation
        else shapes
    )
