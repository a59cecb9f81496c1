"""What the closed forms read: the numbers of a row, and the options that a model is built with.

Rows are read through protocols, so that a row of your own needs no base class and this folder imports nothing of the
package.
"""

import math
from typing import Any, Literal, Protocol, get_args, runtime_checkable

Classifier = Literal["token", "gap", "map", "none"]
PositionEmbedding = Literal["learned_1d", "learned_2d", "sincos2d", "relative", "none"]
PositionPlacement = Literal["stem", "every_layer", "shared"]
Size = tuple[int, int]


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
    @property
    def axial(self) -> bool: ...


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
    @property
    def gelu(self) -> Literal["tanh", "exact"]: ...
    @property
    def axial(self) -> bool: ...


def tokens(
    variant: Transformer | ResNet, image_size: Size = (224, 224), *, classifier: Classifier | None = None
) -> int:
    """Counts the tokens of the encoder, the class token included.

    Args:
        variant: Row of `VIT_VARIANTS`.
        image_size: (rows, columns) in pixels.
        classifier: See `parameters`.

    Raises:
        ValueError: If patches do not divide the image, or if the variant is a ResNet, which has no tokens.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> tokens(VIT_VARIANTS["ViT_H14"], (518, 518))
        1370
    """
    if not isinstance(variant, Transformer):
        raise ValueError(f"A ResNet has no tokens. Received: variant={variant}. Give a row of `VIT_VARIANTS`.")
    return num_prefix_tokens(variant, classifier) + math.prod(patch_grid(variant, image_size))


def map_size(variant: Transformer, image_size: Size) -> Size:
    """Rows and columns of what the patches are cut from. Halving and rounding up repeatedly is one division."""
    stride = variant.stem.total_stride if variant.stem else 1
    return math.ceil(image_size[0] / stride), math.ceil(image_size[1] / stride)


def patch_grid(variant: Transformer, image_size: Size) -> Size:
    """Rows and columns of patches.

    Raises:
        ValueError: If patches do not divide the image.
    """
    rows, columns = map_size(variant, image_size)
    if any(side < variant.patch_size or side % variant.patch_size for side in (rows, columns)):
        total = variant.patch_size * (variant.stem.total_stride if variant.stem else 1)
        raise ValueError(
            f"`image_size` must be a multiple of {total}. Received: image_size={tuple(image_size)}. "
            "Resize the images, or choose another variant."
        )
    return rows // variant.patch_size, columns // variant.patch_size


def num_prefix_tokens(variant: Transformer, classifier: Classifier | None) -> int:
    """1 with a class token, else 0."""
    return int(resolved(variant, classifier) == "token")


def resolved(variant: Transformer, classifier: Classifier | None) -> Classifier:
    """What the classifier reads where nothing is said: the class token; the mean where attention is axial.

    Raises:
        ValueError: If there is no such classifier, or if an axial variant is given a class token.
    """
    if classifier is None:
        return "gap" if variant.axial else "token"
    check("classifier", classifier, Classifier)
    if variant.axial and classifier == "token":
        raise ValueError(
            'Axial attention has no class token, which would lie in no row. Received: classifier="token". '
            'Use "gap", "map" or "none", or leave it out.'
        )
    return classifier


def check(option: str, value: str, valid: Any) -> None:
    """Raises ValueError if `value` is none of those in `valid`, a Literal."""
    *others, last = (f'"{name}"' for name in get_args(valid))
    if value not in get_args(valid):
        raise ValueError(f"`{option}` must be {', '.join(others)} or {last}. Received: {option}={value!r}.")


def check_options(
    variant: Transformer | ResNet,
    *,
    classes: int | None = None,
    representation_size: int | None = None,
    classifier: Classifier | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    position_placement: PositionPlacement = "stem",
) -> None:
    """Raises ValueError where no model can be built with these options, in the words of the models."""
    check("position_embedding", position_embedding, PositionEmbedding)
    check("position_placement", position_placement, PositionPlacement)
    if isinstance(variant, Transformer):
        _check_head(resolved(variant, classifier), classes, representation_size)
        if position_placement != "stem" and position_embedding in ("relative", "none"):
            raise ValueError(
                f"`position_placement` places a table, and position_embedding={position_embedding!r} has none. "
                f'Received: position_placement={position_placement!r}. Leave it at "stem".'
            )
    elif (representation_size, classifier or "token") != (None, "token"):
        raise ValueError(
            "A ResNet has neither a `representation_size` nor a `classifier`. "
            f"Received: representation_size={representation_size}, classifier={classifier!r}. Leave them out."
        )
    elif (position_embedding, position_placement) != ("learned_1d", "stem"):
        raise ValueError(
            "A ResNet has no position embeddings of its own choice. Received: "
            f"position_embedding={position_embedding!r}, position_placement={position_placement!r}. Leave them out."
        )


def _check_head(classifier: Classifier, classes: int | None, representation_size: int | None) -> None:
    if classifier == "none" and (classes, representation_size) != (None, None):
        raise ValueError(
            f'`classifier="none"` returns tokens and has no head. Received: classes={classes}, '
            f"representation_size={representation_size}. Pass classes=None and leave out the other."
        )
