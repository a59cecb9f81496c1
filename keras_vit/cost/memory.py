"""Bytes of weights and activations.

The closed forms assume that each tensor of TensorFlow's traced graph is kept until its last use.
Nothing is fused, overwritten or padded. Scratch space of libraries, and the few numbers per token
of norms and softmax, are not counted. They agree with the live tensors of that graph within 0.5 %,
and with the arrays that JAX keeps for a gradient within 2 %.

Real memory is smaller if a compiler fuses operations, and larger if it copies tensors. Measured per
image on a CPU, as a multiple of the closed form: TensorFlow, forward, 0.7 to 1.1 for ViTs and 1.4
to 1.7 for ResNets, whose convolutions copy maps; XLA, forward, 0.25 to 0.6 for ViTs and 1.7 for a
ResNet; XLA, training, 0.6 to 1.1.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.cost.parts import Attention, Convolution, attentions_of_block, parts_of_trunk
from keras_vit.cost.rows import check_options, map_size, native_size, tokens
from keras_vit.options import Classifier, PositionEmbedding, Size, grid_of, resolve_classifier
from keras_vit.variants import Mlp, ResNetVariant, ViTVariant

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
# Number of tensors of the size of the hidden layer in the forms of GELU: alive at the same time,
# and kept for the gradient.
_GELU_ALIVE = {"tanh": 4, "exact": 3, "quick": 3}
_GELU_KEPT = {"tanh": 5, "exact": 3, "quick": 3}
# The same for a gate, its activation, and what it multiplies.
_GATE_ALIVE, _GATE_KEPT = 4, 5


def weight_bytes(parameters: int, dtype: str = "float32") -> int:
    """Returns the bytes of the weights. Under a mixed precision policy, Keras stores float32.

    Raises:
        ValueError: If the dtype is unknown.

    Example:
        >>> weight_bytes(86_567_656, "bfloat16")
        173135312
    """
    return parameters * _itemsize(dtype)


def activation_bytes(
    variant: ViTVariant | ResNetVariant,
    image_size: Size | None = None,
    *,
    training: bool = False,
    classifier: Classifier | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    channels: int = 3,
    dtype: str = "float32",
) -> int:
    """Returns the bytes of activations for one image: the peak of a forward pass, or the
    activations kept for training.

    The peak of a forward pass is the largest of these moments: the softmax of an attention (its
    input, the shortcut, and scores before and after), the product of queries and keys before it, or
    the shift of relative scores; GELU (tokens and temporaries); the extraction and the embedding of
    patches; and in a trunk the root, its pooling, and each norm of a residual unit.

    Training keeps until the backward pass: the inputs of products, convolutions and maxima, three
    tensors for each layer norm, two and a mask of bytes for each group norm with ReLU, those of
    GELU and of the softmax. Automatic differentiation needs these; a compiler may recompute some of
    them instead.

    Args:
        variant, image_size, classifier, position_embedding, channels: See `parameters`.
        training: Whether a gradient is computed.
        dtype: Compute dtype of the layers. Softmax and norms compute in float32 or wider.

    Raises:
        ValueError: As `parameters` does, or if the dtype is unknown.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> activation_bytes(VIT_VARIANTS["ViT_B16"])
        10288128
        >>> round(activation_bytes(VIT_VARIANTS["ViT_B16"], training=True) / 1e6)  # MB
        309
    """
    check_options(variant, classifier=classifier, position_embedding=position_embedding)
    image_size = image_size or native_size(variant)
    narrow = _itemsize(dtype)
    wide, is_cast = max(narrow, 4), narrow < 4
    tensors = _list_kept if training else _list_moments
    found = [
        narrow * alive.values + wide * (alive.in_float32 + is_cast * alive.in_casting) + alive.masks
        for alive in tensors(variant, image_size, classifier, position_embedding, channels)
    ]
    return sum(found) if training else max(found)


class _Alive(NamedTuple):
    """Numbers that are alive at the same time, by type.

    `values` are in the compute dtype, `in_float32` in float32 or wider, and `masks` in bytes.
    `in_casting` are in float32, and exist only if the compute dtype is narrower.
    """

    values: int
    in_float32: int = 0
    masks: int = 0
    in_casting: int = 0


def _list_moments(
    variant: ViTVariant | ResNetVariant,
    image_size: Size,
    classifier: Classifier | None,
    position_embedding: PositionEmbedding,
    channels: int,
) -> Iterator[_Alive]:
    """Yields the live numbers at those moments of a forward pass that may be its peak."""
    stem = variant.stem if isinstance(variant, ViTVariant) else variant
    image = math.prod(image_size) * channels
    yield _Alive(image, image)  # the input in float32, and in the compute dtype
    if stem:
        yield from _list_trunk_moments(stem, image_size, channels)
    if not isinstance(variant, ViTVariant):
        return
    source = math.prod(map_size(variant, image_size)) * (stem.out_channels if stem else channels)
    count = tokens(variant, image_size, classifier=classifier)
    yield _Alive(2 * source)
    yield _Alive(source + math.prod(grid_of(variant, image_size)) * variant.width)
    if variant.mlp == "swiglu":
        # The input is still needed after the gate is computed.
        yield _Alive(count * (2 * variant.width + _GATE_ALIVE * variant.mlp_dim))
    else:
        yield _Alive(count * (variant.width + _GELU_ALIVE[variant.gelu] * variant.mlp_dim))
    for attention in attentions_of_block(variant, image_size, classifier, position_embedding):
        yield from _list_attention_moments(attention, shortcut=attention.values)


def _list_attention_moments(attention: Attention, shortcut: int) -> Iterator[_Alive]:
    """Yields the moments of an attention: with queries and keys, then with scores and softmax.

    The input and the shortcut are alive at all of them.
    """
    inside, scores = shortcut + attention.values, attention.scores
    yield _Alive(inside + 2 * attention.values + scores)
    yield _Alive(inside, 2 * scores)
    if attention.relative:
        # Scores of content, and relative scores of 2 N - 1 offsets padded to 2 N, before and after
        # the first numbers are dropped.
        surplus = attention.num_lines * attention.num_heads * (attention.length - 1)
        yield _Alive(inside + 5 * scores - surplus)


def _list_trunk_moments(resnet: ResNetVariant, image_size: Size, channels: int) -> Iterator[_Alive]:
    """Yields the moments of a trunk.

    A norm needs its input, another tensor, and the means of its rows. A unit keeps its shortcut
    until its end.
    """
    shortcut = 0
    for part in parts_of_trunk(resnet, image_size, channels):
        if isinstance(part, Attention):
            yield from _list_attention_moments(part, shortcut)
            continue
        normalized = part.values_in if resnet.preactivation else part.values_out
        row_means = normalized // (part.cells_in if resnet.preactivation else part.cells_out)[1]
        norm = 2 * normalized + row_means
        if part.name == "conv_root":
            yield (
                _Alive(part.values_out + _count_pooled(part))
                if resnet.preactivation
                else _Alive(0, norm)
            )
        elif part.name == "conv_proj":
            yield _Alive(0 if resnet.preactivation else part.values_in, norm)
            shortcut = part.values_out
        elif part.name == "conv1" and shortcut:
            continue  # never the peak: the moment of the projection is larger
        # The input of the norm is the shortcut itself.
        elif part.name == "conv1" and resnet.preactivation:
            shortcut = part.values_in
            yield _Alive(shortcut, 2 * normalized, in_casting=row_means)
        else:
            shortcut = shortcut or part.values_in
            yield _Alive(shortcut, norm)
        if part.name == "conv3":
            yield _Alive(3 * part.values_out)
            shortcut = 0


def _list_kept(
    variant: ViTVariant | ResNetVariant,
    image_size: Size,
    classifier: Classifier | None,
    position_embedding: PositionEmbedding,
    channels: int,
) -> Iterator[_Alive]:
    """Yields the numbers kept for the backward pass, part by part."""
    stem = variant.stem if isinstance(variant, ViTVariant) else variant
    if stem:
        yield from _list_trunk_kept(stem, image_size, channels)
    if not isinstance(variant, ViTVariant):
        return
    patches = math.prod(map_size(variant, image_size)) * (stem.out_channels if stem else channels)
    yield _Alive(patches)
    count = tokens(variant, image_size, classifier=classifier)
    norm, mlp = _count_norm_kept(variant, count), _count_mlp_kept(variant, count, variant.mlp)
    if variant.norm_before_blocks:
        yield norm
    for attention in variant.depth * attentions_of_block(
        variant, image_size, classifier, position_embedding
    ):
        yield from (norm, _count_attention_kept(attention), norm, mlp)
        if variant.layer_scale:
            yield _Alive(2 * attention.values)  # both branches before their factors
    yield _count_norm_kept(variant, 1) if variant.norm_after_pooling else norm
    if resolve_classifier(variant, classifier) == "map":
        # Tokens, keys and values; the query and its output; the softmax twice.
        yield _Alive((3 * count + 2) * variant.width, 2 * variant.num_heads * count)
        yield from (_count_norm_kept(variant, 1), _count_mlp_kept(variant, 1, "gelu"))


def _count_norm_kept(variant: ViTVariant, num_tokens: int) -> _Alive:
    return _Alive(0, 3 * num_tokens * variant.width)


def _count_mlp_kept(variant: ViTVariant, num_tokens: int, kind: Mlp) -> _Alive:
    """Counts the inputs of both layers and the tensors of GELU or of the gate."""
    inside = _GATE_KEPT if kind == "swiglu" else _GELU_KEPT[variant.gelu]
    return _Alive(num_tokens * (variant.width + (1 + inside) * variant.mlp_dim))


def _count_attention_kept(attention: Attention) -> _Alive:
    """Counts input, queries, keys, values, input of the projection, and the softmax twice."""
    return _Alive(5 * attention.values, 2 * attention.scores)


def _list_trunk_kept(resnet: ResNetVariant, image_size: Size, channels: int) -> Iterator[_Alive]:
    """Yields the numbers kept in a trunk.

    A convolution keeps its input, which the projection shares, a norm two tensors, and a ReLU a
    mask.
    """

    def count_norm(values: int, has_relu: bool = True) -> _Alive:
        return _Alive(0, 2 * values, values if has_relu else 0)

    for part in parts_of_trunk(resnet, image_size, channels):
        if isinstance(part, Attention):
            yield _count_attention_kept(part)
            continue
        is_projection = part.name == "conv_proj"
        if not is_projection:
            yield _Alive(_count_padded(part))
        if part.name == "conv_root":
            yield _Alive(_count_pooled(part))
        if not resnet.preactivation:
            yield count_norm(part.values_out, has_relu=not is_projection)
        if (
            part.name == "conv3"
            and resnet.axial
            or part.name in ("conv1", "conv2", "conv3")
            and resnet.preactivation
        ):
            yield count_norm(part.values_in)
    if resnet.preactivation:
        yield count_norm(
            math.prod(math.ceil(side / resnet.total_stride) for side in image_size)
            * resnet.out_channels
        )


def _count_padded(convolution: Convolution) -> int:
    """Counts the numbers in the input of a convolution, with BiT's padding."""
    margin = 2 * (convolution.size // 2) if convolution.is_centred else 0
    rows, columns = convolution.cells_in
    return (rows + margin) * (columns + margin) * convolution.inputs


def _count_pooled(root: Convolution) -> int:
    """Counts the numbers in the input of the root's max-pooling, with BiT's padding."""
    rows, columns = root.cells_out
    margin = 2 if root.is_centred else 0
    return (rows + margin) * (columns + margin) * root.outputs


def _itemsize(dtype: str) -> int:
    if dtype not in _BYTES:
        raise ValueError(f"`dtype` must be one of {tuple(_BYTES)}. Received: dtype={dtype!r}.")
    return _BYTES[dtype]
