"""The number of tokens of a model, its defaults, and checks of its options."""

import math
from typing import Literal

from keras_vit.options import (
    Classifier,
    EncoderOptions,
    PositionEmbedding,
    PositionPlacement,
    Size,
    check_head,
    check_resnet_options,
    grid_of,
    num_prefix_tokens,
    resolve_classifier,
)
from keras_vit.variants import ResNetVariant, ViTVariant

_RESNET_SIZE = (224, 224)
_CLASSES = 1000

Classes = int | Literal["default"] | None
"""Outputs of a head: a number, that of the row ("default"), or None for no head."""


def native_size(variant: ViTVariant | ResNetVariant) -> Size:
    """Returns the image size of a row, 224 x 224 for a ResNet."""
    if not isinstance(variant, ViTVariant):
        return _RESNET_SIZE
    return variant.image_size, variant.image_size


def resolve_classes(variant: ViTVariant | ResNetVariant, classes: Classes) -> int | None:
    """Returns the number of outputs of the head, None for no head.

    By default it is that of the projection of the row, which CLIP has, else 1000.

    Example:
        >>> from keras_vit.variants import VARIANTS
        >>> [resolve_classes(VARIANTS["CLIP_B16"], classes) for classes in ("default", 10, None)]
        [512, 10, None]
        >>> resolve_classes(VARIANTS["ViT_B16"], "default")
        1000
    """
    if classes != "default":
        return classes
    projection = variant.projection if isinstance(variant, ViTVariant) else None
    return projection or _CLASSES


def tokens(
    variant: ViTVariant | ResNetVariant,
    image_size: Size | None = None,
    *,
    classifier: Classifier | None = None,
) -> int:
    """Counts the tokens of the encoder: patches, class and distillation tokens, and registers.

    Args:
        variant: Row of `VIT_VARIANTS`.
        image_size: (rows, columns) in pixels. Default: that of the row.
        classifier: See `parameters`.

    Raises:
        ValueError: If the image size is not a multiple of the patch size, or the variant is a
            ResNet, which has no tokens.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> tokens(VIT_VARIANTS["ViT_H14"], (518, 518))
        1370
    """
    if not isinstance(variant, ViTVariant):
        raise ValueError(
            f"A ResNet has no tokens. Received: variant={variant}. Pass a row of `VIT_VARIANTS`."
        )
    patches = math.prod(grid_of(variant, image_size or native_size(variant)))
    return num_prefix_tokens(variant, classifier) + patches


def map_size(variant: ViTVariant, image_size: Size) -> Size:
    """Returns rows and columns of the image or map from which patches are taken.

    Repeated halving with rounding up equals one division with rounding up.
    """
    stride = variant.stem.total_stride if variant.stem else 1
    return math.ceil(image_size[0] / stride), math.ceil(image_size[1] / stride)


def check_options(
    variant: ViTVariant | ResNetVariant,
    *,
    classes: int | None = None,
    representation_size: int | None = None,
    classifier: Classifier | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    position_placement: PositionPlacement = "stem",
) -> None:
    """Raises ValueError if no model can be built with these options."""
    EncoderOptions(position_embedding=position_embedding, position_placement=position_placement)
    if isinstance(variant, ViTVariant):
        check_head(resolve_classifier(variant, classifier), classes, representation_size)
    else:
        check_resnet_options(
            representation_size=representation_size,
            classifier=classifier,
            position_embedding=position_embedding,
            position_placement=position_placement,
        )
