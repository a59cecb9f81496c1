"""What a model costs: parameters, multiply-adds, memory. Closed forms over a variant's numbers, no framework.

What lives here: arithmetic on integers. What does not: the numbers themselves (`variants.py`), and anything measured.

Convention: one MAC is one multiplication with its addition inside a matrix product or a convolution, and one MAC is
two FLOPs. Not counted: additions of biases, positions and shortcuts, normalizations, activations, softmax, pooling,
and the standardization of kernels. Counted so, six FLOPs per MAC and image (two forward, four backward) give the
exaFLOPs that Table 6 of arXiv:2010.11929 prints for ViT-B/16, L/32, L/16 and H/14 within 0.25 %; its ResNets come
out 3 to 4 % above.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol, runtime_checkable

Classifier = Literal["token", "gap", "map"]
Size = tuple[int, int]

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@runtime_checkable
class ResNet(Protocol):
    """What is read from a row of `RESNET_VARIANTS`, or from the stem of a hybrid."""

    @property
    def units(self) -> tuple[int, ...]: ...
    @property
    def width(self) -> int: ...
    @property
    def out_channels(self) -> int: ...
    @property
    def total_stride(self) -> int: ...
    @property
    def preactivation(self) -> bool: ...


@runtime_checkable
class Transformer(Protocol):
    """What is read from a row of `VIT_VARIANTS`."""

    @property
    def patch_size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def mlp_dim(self) -> int: ...
    @property
    def stem(self) -> ResNet | None: ...


def parameters(
    variant: Transformer | ResNet,
    *,
    image_size: Size = (224, 224),
    classes: int | None = 1000,
    representation_size: int | None = None,
    classifier: Classifier = "token",
    channels: int = 3,
) -> int:
    """Counts the trainable numbers of a model with learned one-dimensional position embeddings.

    Args:
        variant: Row of `VIT_VARIANTS` or `RESNET_VARIANTS`.
        image_size: (rows, columns) in pixels; decides the size of the position table.
        classes: Outputs of the head. None for no head.
        representation_size: Width of the tanh layer before the head. None for no such layer.
        classifier: "token" adds a class token and its position, "map" an attention pooling head.
        channels: Channels of the images.

    Raises:
        ValueError: If patches do not divide the image, or if a ResNet is given an option it does not have.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> parameters(VIT_VARIANTS["ViT_B16"])
        86567656
    """
    if not isinstance(variant, Transformer):
        _refuse_transformer_options(representation_size, classifier)
        return _trunk_parameters(variant, channels) + _dense(variant.out_channels, classes)
    width, patch_area = variant.width, variant.patch_size**2
    stem = _trunk_parameters(variant.stem, channels) if variant.stem else 0
    embedding = _dense(patch_area * (variant.stem.out_channels if variant.stem else channels), width)
    prefix = width * _prefix(classifier)
    positions = width * tokens(variant, image_size, classifier=classifier)
    # Queries, keys, values, output; then the two layers of the MLP. A norm has a scale and a bias.
    mixer = 4 * _dense(width, width) + _dense(width, variant.mlp_dim) + _dense(variant.mlp_dim, width)
    blocks = variant.depth * (mixer + 2 * 2 * width) + 2 * width
    pooling = width + mixer + 2 * width if classifier == "map" else 0
    head = _dense(width, representation_size) + _dense(representation_size or width, classes)
    return stem + embedding + prefix + positions + blocks + pooling + head


def tokens(variant: Transformer | ResNet, image_size: Size = (224, 224), *, classifier: Classifier = "token") -> int:
    """Counts the tokens that a Transformer block sees, the class token included.

    Raises:
        ValueError: If patches do not divide the image, or if the variant is a ResNet, which has no tokens.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> tokens(VIT_VARIANTS["ViT_H14"], (518, 518))
        1370
    """
    if not isinstance(variant, Transformer):
        raise ValueError(f"A ResNet has no tokens. Received: variant={variant}. Give a row of `VIT_VARIANTS`.")
    rows, columns = _map_size(variant, image_size)
    if rows % variant.patch_size or columns % variant.patch_size:
        total = variant.patch_size * (variant.stem.total_stride if variant.stem else 1)
        raise ValueError(
            f"`image_size` must be a multiple of {total}. Received: image_size={tuple(image_size)}. "
            "Resize the images, or choose another variant."
        )
    return _prefix(classifier) + (rows // variant.patch_size) * (columns // variant.patch_size)


def macs(
    variant: Transformer | ResNet,
    image_size: Size = (224, 224),
    *,
    classes: int | None = 1000,
    representation_size: int | None = None,
    classifier: Classifier = "token",
    channels: int = 3,
) -> int:
    """Counts the multiply-adds of one image's forward pass, by the convention of this module.

    The arguments are those of `parameters`.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> round(macs(VIT_VARIANTS["ViT_B16"]) / 1e9, 2)
        17.56
    """
    if not isinstance(variant, Transformer):
        _refuse_transformer_options(representation_size, classifier)
        trunk = sum(step.weights * step.cells for step in _convolutions(variant, image_size, channels))
        return trunk + variant.out_channels * (classes or 0)
    count, width = tokens(variant, image_size, classifier=classifier), variant.width
    stem = _convolutions(variant.stem, image_size, channels) if variant.stem else ()
    patch_values = variant.patch_size**2 * (variant.stem.out_channels if variant.stem else channels)
    embedding = (count - _prefix(classifier)) * patch_values * width
    # Four projections and the MLP per token; scores and weighted values per pair of tokens.
    block = count * (4 * width**2 + 2 * width * variant.mlp_dim) + 2 * count**2 * width
    # One query against all tokens: its own projections and MLP, keys and values of every token.
    pooling = 2 * width**2 + 2 * count * (width**2 + width) + 2 * width * variant.mlp_dim
    head = width * (representation_size or 0) + (representation_size or width) * (classes or 0)
    trunk = sum(step.weights * step.cells for step in stem)
    return trunk + embedding + variant.depth * block + (pooling if classifier == "map" else 0) + head


def flops(macs: int) -> int:
    """FLOPs of a number of multiply-adds: two each."""
    return 2 * macs


def training_exaflops(macs: int, images: int) -> float:
    """Compute of a training run in 1e18 FLOPs: six per MAC and image seen (images times epochs).

    Example:
        >>> round(training_exaflops(17_563_828_224, 7 * 303_021_387), 1)  # ViT-B/16, seven epochs of JFT-300M
        223.5
    """
    return 6 * macs * images / 1e18


def weight_bytes(parameters: int, dtype: str = "float32") -> int:
    """Memory of the weights alone. Keras keeps them in float32 under a mixed precision policy.

    Raises:
        ValueError: If the dtype is unknown.

    Example:
        >>> weight_bytes(86_567_656, "bfloat16")
        173135312
    """
    return parameters * _itemsize(dtype)


def activation_bytes(
    variant: Transformer | ResNet,
    image_size: Size = (224, 224),
    *,
    classifier: Classifier = "token",
    channels: int = 3,
    dtype: str = "float32",
) -> int:
    """Estimates the peak memory of activations while one image passes, without gradients.

    The model: tensors are freed after their last use, nothing is fused, computed in place or padded, and a library's
    scratch space is not seen. So the peak is the largest of these moments: softmax (tokens, queries, keys, values,
    scores and their softmax), GELU (tokens, hidden layer and its GELU), a patch embedding (its input and the tokens),
    the root (image, its output and the normalized output), and the begin and the end of every residual unit (its
    input, first convolution and its norm; the shortcut, last convolution and its norm).

    Raises:
        ValueError: If patches do not divide the image, or if the dtype is unknown.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> activation_bytes(VIT_VARIANTS["ViT_B16"])
        6146400
    """
    return _itemsize(dtype) * max(_live_values(variant, image_size, classifier, channels))


def _live_values(
    variant: Transformer | ResNet, image_size: Size, classifier: Classifier, channels: int
) -> Iterator[int]:
    """Numbers alive at each moment that `activation_bytes` names."""
    stem = variant.stem if isinstance(variant, Transformer) else variant
    cells, channels_in = math.prod(image_size), channels
    for step in _convolutions(stem, image_size, channels) if stem else ():
        if step.name in ("conv_root", "conv1"):
            yield step.cells_in * step.inputs + 2 * step.cells * step.outputs
        if step.name == "conv3":
            yield 3 * step.cells * step.outputs
    if not isinstance(variant, Transformer):
        return
    if stem:
        cells, channels_in = math.prod(_map_size(variant, image_size)), stem.out_channels
    count = tokens(variant, image_size, classifier=classifier)
    tokens_size = count * variant.width
    yield cells * channels_in + tokens_size
    yield 4 * tokens_size + 2 * variant.num_heads * count**2
    yield tokens_size + 2 * count * variant.mlp_dim


class _Convolution(NamedTuple):
    name: str
    size: int
    inputs: int
    outputs: int
    cells_in: int
    cells: int

    @property
    def weights(self) -> int:
        return self.size**2 * self.inputs * self.outputs


def _convolutions(resnet: ResNet, image_size: Size, channels: int) -> Iterator[_Convolution]:
    """All convolutions of a trunk in order. Every stride halves the map and rounds up, whatever the padding."""
    area = math.prod(image_size)
    rows, columns = (math.ceil(side / 2) for side in image_size)
    yield _Convolution("conv_root", 7, channels, resnet.width, area, rows * columns)
    rows, columns = math.ceil(rows / 2), math.ceil(columns / 2)
    inputs = resnet.width
    for stage, num_units in enumerate(resnet.units):
        inner = resnet.width * 2**stage
        for unit in range(num_units):
            before = rows * columns
            if stage > 0 and unit == 0:
                rows, columns = math.ceil(rows / 2), math.ceil(columns / 2)
            after = rows * columns
            if unit == 0:
                yield _Convolution("conv_proj", 1, inputs, 4 * inner, before, after)
            yield _Convolution("conv1", 1, inputs, inner, before, before)
            yield _Convolution("conv2", 3, inner, inner, before, after)
            yield _Convolution("conv3", 1, inner, 4 * inner, after, after)
            inputs = 4 * inner


def _trunk_parameters(resnet: ResNet, channels: int) -> int:
    """Kernels have no bias. Norms follow every convolution, or precede all but the root's and the projections'."""
    steps = list(_convolutions(resnet, (1, 1), channels))
    if resnet.preactivation:
        normalized = resnet.out_channels + sum(
            step.inputs for step in steps if step.name in ("conv1", "conv2", "conv3")
        )
    else:
        normalized = sum(step.outputs for step in steps)
    return sum(step.weights for step in steps) + 2 * normalized


def _dense(inputs: int, outputs: int | None) -> int:
    return (inputs + 1) * (outputs or 0)


def _map_size(variant: Transformer, image_size: Size) -> Size:
    """Rows and columns of what the patches are cut from. Halving and rounding up repeatedly is one division."""
    stride = variant.stem.total_stride if variant.stem else 1
    return math.ceil(image_size[0] / stride), math.ceil(image_size[1] / stride)


def _prefix(classifier: str) -> int:
    if classifier not in ("token", "gap", "map"):
        raise ValueError(f'`classifier` must be "token", "gap" or "map". Received: classifier={classifier!r}.')
    return int(classifier == "token")


def _itemsize(dtype: str) -> int:
    if dtype not in _BYTES:
        raise ValueError(f"`dtype` must be one of {tuple(_BYTES)}. Received: dtype={dtype!r}.")
    return _BYTES[dtype]


def _refuse_transformer_options(representation_size: int | None, classifier: str) -> None:
    if representation_size is not None or classifier != "token":
        raise ValueError(
            "A ResNet has neither a `representation_size` nor a `classifier`. "
            f"Received: representation_size={representation_size}, classifier={classifier!r}. Leave them out."
        )
