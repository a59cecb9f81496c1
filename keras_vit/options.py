"""The options of a ViT that are not in its row of the table of models: names, defaults and checks.

`cost/` and `models/` use the same names and checks. Nothing here depends on published weights.

Source: arXiv:2010.11929, sections 3.1, D.3, D.4; arXiv:2106.04560 ("map").
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from keras_vit.grid import padded, patch_grid
from keras_vit.variants import Classifier, Gelu, Interpolation, ViTVariant

Size = tuple[int, int]
Pooling = Literal["token", "avg", "max", "map", "token_avg"]
PositionEmbedding = Literal["learned_1d", "learned_2d", "sincos2d", "relative", "none"]
PositionPlacement = Literal["stem", "every_layer", "shared"]
WITHOUT_TABLE = ("relative", "none")  # position embeddings without a table
POOLING_OF: dict[str, Pooling] = {  # by classifier
    "token": "token",
    "gap": "avg",
    "map": "map",
    "token_gap": "token_avg",
}
READS_CLASS_TOKEN = ("token", "token_gap")  # classifiers


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderOptions:
    """How the encoder of a ViT is built.

    Attributes:
        position_embedding: "learned_1d" (the paper's choice), "learned_2d", "sincos2d", "relative"
            or "none".
        position_placement: Where positions are added: "stem", once before the first block;
            "every_layer", before each block, with a table for each; "shared", before each block,
            with one table for all.
        interpolation: How a position table is resampled, see
            `keras_vit.grid.interpolation_matrix`; None: as in the row of the table of models.
        gelu: "tanh", "exact" or "quick"; None: as in the row.
        norm_epsilon: Epsilon of layer normalization; None: as in the row.
        dropout_rate: In training, after the position embeddings and after every dense layer except
            query, key and value.
        attention_dropout_rate: Dropout of the attention probabilities, in training.
        stochastic_depth_rate: Rate of the last block, in training. It increases linearly from 0 at
            the first block.
        query_chunk: Number of tokens that attend at a time, such as 256, to save memory with large
            images; the results are the same. None: all at once.

    Raises:
        ValueError: If a name is unknown, or two options contradict each other.

    Example:
        >>> EncoderOptions(position_embedding="relative").position_placement
        'stem'
    """

    position_embedding: PositionEmbedding = "learned_1d"
    position_placement: PositionPlacement = "stem"
    interpolation: Interpolation | None = None
    gelu: Gelu | None = None
    norm_epsilon: float | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    query_chunk: int | None = None

    def __post_init__(self) -> None:
        check("position_embedding", self.position_embedding, PositionEmbedding)
        check("position_placement", self.position_placement, PositionPlacement)
        if self.interpolation is not None:
            check("interpolation", self.interpolation, Interpolation)
        if self.position_embedding in WITHOUT_TABLE and self.position_placement != "stem":
            raise ValueError(
                "`position_placement` applies to position tables, and "
                f"position_embedding={self.position_embedding!r} has none. "
                f'Received: position_placement={self.position_placement!r}. Use "stem".'
            )


def with_encoder_options(function: Callable) -> Callable:
    """Adds the fields of `EncoderOptions` to the signature of a function that takes them as
    `**options`.

    Example:
        >>> @with_encoder_options
        ... def build(variant, **options): ...
        >>> inspect.signature(build).parameters["dropout_rate"].default
        0.0
    """
    signature = inspect.signature(function)
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    for field in fields(EncoderOptions):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        named.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
            )
        )
    function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    return function


def check(option: str, value: str, valid: Any) -> None:
    """Raises ValueError if `value` is not one of the values of the Literal `valid`."""
    if value not in get_args(valid):
        raise ValueError(
            f"`{option}` must be one of {get_args(valid)}. Received: {option}={value!r}."
        )


def resolve_classifier(variant: ViTVariant, classifier: Classifier | None) -> Classifier:
    """Returns the classifier of a variant, by default that of its row, or "gap" if it is axial.

    Raises:
        ValueError: If the classifier is unknown, or is "token" for an axial variant.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> resolve_classifier(VIT_VARIANTS["ViT_B16"], None), resolve_classifier(VIT_VARIANTS["AxialViT_B16"], None)
        ('token', 'gap')
    """
    if classifier is None:
        return "gap" if variant.axial else variant.classifier
    check("classifier", classifier, Classifier)
    check_class_token(variant, classifier in READS_CLASS_TOKEN)
    return classifier


def has_class_token(variant: ViTVariant, classifier: Classifier | None) -> bool:
    """Returns whether a model has a class token: its classifier reads it, or its row has one."""
    return variant.class_token or resolve_classifier(variant, classifier) in READS_CLASS_TOKEN


def num_prefix_tokens(variant: ViTVariant, classifier: Classifier | None) -> int:
    """Returns the number of tokens before the patches: class, distillation and register tokens.

    Example:
        >>> from keras_vit.variants import VARIANTS
        >>> [num_prefix_tokens(VARIANTS[name], None) for name in ("ViT_B16", "DINOv2_B14_reg4", "SigLIP_B16")]
        [1, 5, 0]
    """
    return int(has_class_token(variant, classifier)) + variant.distilled + variant.num_registers


def num_prefix_positions(variant: ViTVariant, classifier: Classifier | None) -> int:
    """Returns the number of prefix tokens that have a row in the position table."""
    if variant.rotary or not variant.class_position:
        return 0
    return int(has_class_token(variant, classifier)) + variant.distilled


def check_class_token(variant: ViTVariant, class_token: bool) -> None:
    """Raises ValueError if a class token is requested for an axial variant."""
    if variant.axial and class_token:
        raise ValueError(
            f"Axial attention has no class token: {variant.name} attends along rows and columns, "
            'and a class token is in neither. Use `classifier="gap"`, "map" or "none".'
        )


def grid_of(variant: ViTVariant, image_size: Size, pad: bool = False) -> Size:
    """Returns the grid (rows, columns) of patches of an image of (height, width) pixels.

    Raises:
        ValueError: If the patches do not tile the image, and `pad` is False.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> grid_of(VIT_VARIANTS["ViT_B16"], (224, 384)), grid_of(VIT_VARIANTS["ViT_B16"], (225, 225), pad=True)
        ((14, 24), (15, 15))
    """
    halvings = 0 if variant.stem is None else variant.stem.num_halvings
    if pad:
        image_size = tuple(padded(side, variant.patch_size, halvings) for side in image_size)  # type: ignore[assignment]
    return patch_grid(image_size, variant.patch_size, halvings)


def check_head(
    classifier: Classifier, classes: int | None, representation_size: int | None
) -> None:
    """Raises ValueError if a head is requested for a model that returns tokens."""
    if classifier == "none" and (classes, representation_size) != (None, None):
        raise ValueError(
            f'`classifier="none"` returns tokens and has no head. Received: classes={classes}, '
            f"representation_size={representation_size}. Omit them (`include_top=False`)."
        )


def check_resnet_options(
    *,
    representation_size: int | None,
    classifier: Classifier | None,
    position_embedding: PositionEmbedding,
    position_placement: PositionPlacement,
) -> None:
    """Raises ValueError if an option of ViTs is used for a ResNet."""
    if (representation_size, classifier or "token") != (None, "token"):
        raise ValueError(
            "A ResNet has neither a `representation_size` nor a `classifier`. "
            f"Received: representation_size={representation_size}, classifier={classifier!r}. "
            "Omit them."
        )
    if (position_embedding, position_placement) != ("learned_1d", "stem"):
        raise ValueError(
            "A ResNet has no options for position embeddings. Received: "
            f"position_embedding={position_embedding!r}, "
            f"position_placement={position_placement!r}. Omit them."
        )
