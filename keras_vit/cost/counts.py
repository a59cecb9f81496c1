"""The number of trainable parameters of a model."""

from keras_vit.cost.parts import Convolution, attentions_of_block, dense_parameters, parts_of_trunk
from keras_vit.cost.rows import check_options, native_size, num_prefix_tokens
from keras_vit.options import (
    Classifier,
    PositionEmbedding,
    PositionPlacement,
    Size,
    grid_of,
    num_prefix_positions,
    resolve_classifier,
)
from keras_vit.variants import ResNetVariant, ViTVariant


def parameters(
    variant: ViTVariant | ResNetVariant,
    *,
    image_size: Size | None = None,
    classes: int | None = 1000,
    representation_size: int | None = None,
    classifier: Classifier | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    position_placement: PositionPlacement = "stem",
    channels: int = 3,
) -> int:
    """Counts the trainable parameters of a model.

    Args:
        variant: Row of `VIT_VARIANTS` or `RESNET_VARIANTS`.
        image_size: (rows, columns) in pixels, which determines the size of position tables.
            Default: that of the row.
        classes: Outputs of the head, which has no bias if the row has a projection, and is two
            layers if it is distilled. None for no head.
        representation_size: Width of the tanh layer before the head. None for no such layer.
        classifier: "token" and "token_gap" add a class token and its position, unless the row has
            one anyway; "token_gap" also doubles the inputs of the head; "map" adds an attention
            pooling head, "gap" and "none" nothing. Default: that of the row, but "gap" for an axial
            variant, which has no class token.
        position_embedding: "learned_1d", "learned_2d", "sincos2d", "relative" or "none".
        position_placement: "stem" or "shared": one table; "every_layer": a table per block.
        channels: Number of channels of the images.

    Raises:
        ValueError: If the image size is not a multiple of the patch size, if options contradict
            each other, or if a ResNet does not have an option.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> parameters(VIT_VARIANTS["ViT_B16"])
        86567656
        >>> parameters(VIT_VARIANTS["ViT_B16"], position_embedding="relative") - parameters(
        ...     VIT_VARIANTS["ViT_B16"], position_embedding="none")
        301824
    """
    check_options(
        variant,
        classes=classes,
        representation_size=representation_size,
        classifier=classifier,
        position_embedding=position_embedding,
        position_placement=position_placement,
    )
    image_size = image_size or native_size(variant)
    if not isinstance(variant, ViTVariant):
        return _count_trunk(variant, image_size, channels) + dense_parameters(
            variant.out_channels, classes
        )
    width, stem = variant.width, variant.stem
    classifier = resolve_classifier(variant, classifier)
    patch_values = variant.patch_size**2 * (stem.out_channels if stem else channels)
    embedding = (_count_trunk(stem, image_size, channels) if stem else 0) + dense_parameters(
        patch_values, width, variant.patch_bias
    )
    prefix = width * num_prefix_tokens(variant, classifier)
    tables = variant.depth if position_placement == "every_layer" else 1
    positions = tables * _count_table(variant, image_size, classifier, position_embedding)
    attentions = attentions_of_block(variant, image_size, classifier, position_embedding)
    # A norm has a scale and a bias. There is one before each attention and each MLP. Layer scale is
    # a vector after each of them.
    mlp = dense_parameters(width, variant.mlp_dim) + dense_parameters(variant.mlp_dim, width)
    gate = dense_parameters(width, variant.mlp_dim) if variant.mlp == "swiglu" else 0
    norms = 2 * 2 * width + (2 * width if variant.layer_scale else 0)
    blocks = variant.depth * sum(
        attention.parameters + mlp + gate + norms for attention in attentions
    )
    features = 2 * width if classifier == "token_gap" else width
    pooling = 4 * dense_parameters(width, width) + mlp + 3 * width if classifier == "map" else 0
    head = dense_parameters(features, representation_size) + dense_parameters(
        representation_size or features, classes, has_bias=variant.projection is None
    )
    if variant.distilled and variant.distilled_head:
        head += dense_parameters(width, classes, has_bias=variant.projection is None)
    outer_norms = _count_outer_norms(variant, classifier, features)
    return embedding + prefix + positions + blocks + outer_norms + pooling + head


def _count_outer_norms(variant: ViTVariant, classifier: Classifier, features: int) -> int:
    """Counts the parameters of the norms before the blocks, and after them or the pooling."""
    before = 2 * variant.width if variant.norm_before_blocks else 0
    if not variant.norm_after_pooling:
        return before + 2 * variant.width
    return before + (0 if classifier in ("map", "none") else 2 * features)


def _count_table(
    variant: ViTVariant,
    image_size: Size,
    classifier: Classifier | None,
    position_embedding: PositionEmbedding,
) -> int:
    """Counts the numbers in a position table. Relative embeddings are counted in attention."""
    if variant.rotary:
        return 0
    rows, columns = grid_of(variant, image_size)
    prefix = num_prefix_positions(variant, classifier)
    if position_embedding == "learned_1d":
        return (prefix + rows * columns) * variant.width
    if position_embedding == "learned_2d":
        return (rows + columns) * (variant.width // 2) + prefix * variant.width
    return 0


def _count_trunk(resnet: ResNetVariant, image_size: Size, channels: int) -> int:
    """Counts the parameters of a trunk: kernels without bias, and norms.

    A norm follows each convolution. With pre-activation, a norm precedes each convolution except
    the root and the projections.
    """
    parts = list(parts_of_trunk(resnet, image_size, channels))
    convolutions = [part for part in parts if isinstance(part, Convolution)]
    if resnet.preactivation:
        inside = [conv.inputs for conv in convolutions if conv.name in ("conv1", "conv2", "conv3")]
        normalized = sum(inside) + resnet.out_channels
    else:
        normalized = sum(conv.outputs for conv in convolutions)
    if resnet.axial:  # a norm follows the two attentions
        normalized += sum(conv.outputs for conv in convolutions if conv.name == "conv1")
    return sum(part.parameters for part in parts) + 2 * normalized
