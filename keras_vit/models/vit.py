"""The Vision Transformer, with or without a convolutional stem, assembled from layers.

Models have random weights; `keras_vit.weights` loads files. `embed_patches` maps images to patch
tokens, `encode_tokens` maps patch tokens to output tokens.

Source: arXiv:2010.11929, sections 3.1, D.3, D.4 and D.6; vision_transformer@c6de1e5 models_vit.py.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import keras

from keras_vit.layers.axial import AxialTransformerBlock
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.patches import PadToPatches, PatchEmbedding
from keras_vit.layers.pixels import PixelNormalization
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.tokens import ClassToken, Registers
from keras_vit.layers.transformer import TransformerBlock
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.models.ends import classify, pre_logits, source_inputs
from keras_vit.models.resnet import resnet_trunk
from keras_vit.options import (
    POOLING_OF,
    WITHOUT_TABLE,
    Classifier,
    EncoderOptions,
    Pooling,
    check,
    check_class_token,
    check_head,
    grid_of,
    has_class_token,
    num_prefix_tokens,
    resolve_classifier,
    with_encoder_options,
)
from keras_vit.variants import ViTVariant


def embed_patches(
    images: keras.KerasTensor, variant: ViTVariant, pad: bool = False
) -> keras.KerasTensor:
    """Maps images (B, H, W, C), pixels in [-1, 1], to a grid of patch tokens, (B, rows, columns, D).

    Args:
        images: Their pixels are normalized as the row says.
        variant: A row of `keras_vit.variants.VARIANTS`, or a similar one.
        pad: Whether to pad images with zeros at the bottom and right to a multiple of the patch
            size.
    """
    if {*variant.pixel_mean, *variant.pixel_std} != {0.5}:
        normalize = PixelNormalization(
            variant.pixel_mean, variant.pixel_std, name="pixel_normalization"
        )
        images = normalize(images)
    if pad:
        halvings = 0 if variant.stem is None else variant.stem.num_halvings
        images = PadToPatches(variant.patch_size, halvings, name="pad_to_patches")(images)
    if variant.stem is not None:
        images = resnet_trunk(images, variant.stem)
    return PatchEmbedding(
        variant.patch_size,
        variant.width,
        flatten=False,
        use_bias=variant.patch_bias,
        name="embedding",
    )(images)


@with_encoder_options
def encode_tokens(
    patches: keras.KerasTensor,
    variant: ViTVariant,
    *,
    class_token: bool | None = None,
    position_grid: tuple[int, int] | None = None,
    **options: Any,
) -> keras.KerasTensor:
    """Maps a grid of patch tokens to the output tokens of the encoder.

    These are equations 1 to 4 of the paper, with all tokens in equation 4.

    Args:
        patches: (B, rows, columns, D). `rows` and `columns` may be None.
        variant: A row of `keras_vit.variants.VARIANTS`, or a similar one.
        class_token: Whether to prepend a class token. Default: True, except for axial variants,
            which cannot have one.
        position_grid: (rows, columns) of the position table. Default: the grid of `patches`. If the
            two differ, the table is resampled in the graph.
        **options: See `keras_vit.options.EncoderOptions`.

    Returns:
        (B, T + rows * columns, D), with T prefix tokens: class token, distillation token,
        registers.

    Raises:
        ValueError: If options contradict each other or the variant. Axial variants need a fixed
            grid and have no class token.
    """
    return encode_selected_tokens(
        patches,
        variant,
        lambda tokens: tokens,
        class_token=class_token,
        position_grid=position_grid,
        **options,
    )


@with_encoder_options
def encode_selected_tokens(
    patches: keras.KerasTensor,
    variant: ViTVariant,
    select: Callable[[keras.KerasTensor], keras.KerasTensor],
    *,
    class_token: bool | None = None,
    position_grid: tuple[int, int] | None = None,
    **options: Any,
) -> keras.KerasTensor:
    """Maps a grid of patch tokens to the output tokens of an encoder that sees some of them.

    Args:
        patches, variant, class_token, position_grid, **options: As in `encode_tokens`. With a
            selection, positions must be added once, before the first block.
        select: Function from all tokens with their positions, (B, T + rows * columns, D), to the
            tokens that enter the blocks.

    Returns:
        The output token of each selected token.
    """
    o = EncoderOptions(**options)
    rows, columns, width = patches.shape[1:]
    grid = (rows, columns)
    class_token = not variant.axial if class_token is None else class_token
    check_class_token(variant, class_token)
    _check_grid(variant, grid, o)
    tokens = keras.layers.Reshape(
        (-1 if None in grid else grid[0] * grid[1], width), name="flatten_patches"
    )(patches)
    num_learned = int(class_token) + variant.distilled  # prefix tokens besides registers
    add_positions = _make_position_adder(
        patches, position_grid or grid, num_learned if variant.class_position else 0, variant, o
    )
    # Made before the positions: the order in which layers draw their seeds is part of a seeded run.
    dropout = keras.layers.Dropout(o.dropout_rate, name="dropout")
    tokens = dropout(_add_prefix_tokens(tokens, variant, class_token, add_positions))  # equation 1
    tokens = select(tokens)
    epsilon = variant.norm_epsilon if o.norm_epsilon is None else o.norm_epsilon
    if variant.norm_before_blocks:
        tokens = LayerNorm(epsilon, name="norm_before_blocks")(tokens)
    block = _choose_block(tokens, grid, variant, o)
    num_prefix_tokens = num_learned + variant.num_registers
    rotation = _compute_rotation(patches, variant, num_prefix_tokens)
    for index in range(variant.depth):
        if index > 0:
            tokens = add_positions(tokens, index)
        tokens = block(  # equations 2 and 3
            variant.num_heads,
            variant.mlp_dim,
            norm_epsilon=epsilon,
            gelu=o.gelu or variant.gelu,
            dropout_rate=o.dropout_rate,
            attention_dropout_rate=o.attention_dropout_rate,
            # The rate increases linearly with depth, from 0 to its maximum, as in arXiv:1603.09382.
            drop_path_rate=o.stochastic_depth_rate * index / max(variant.depth - 1, 1),
            name=f"encoderblock_{index}",
        )(tokens, *rotation)
    if variant.norm_after_pooling:
        return tokens
    return LayerNorm(epsilon, name="encoder_norm")(tokens)  # equation 4, for all tokens


def _add_prefix_tokens(
    tokens: keras.KerasTensor,
    variant: ViTVariant,
    class_token: bool,
    add_positions: Callable[[keras.KerasTensor, int], keras.KerasTensor],
) -> keras.KerasTensor:
    """Prepends class token, distillation token and registers, and adds positions."""
    if not variant.class_position:
        tokens = add_positions(tokens, 0)
    if variant.distilled:
        tokens = ClassToken(name="distillation_token")(tokens)
    if class_token:
        tokens = ClassToken(name="class_token")(tokens)
    if variant.class_position:
        tokens = add_positions(tokens, 0)
    if variant.num_registers:
        place = int(class_token) + variant.distilled
        tokens = Registers(variant.num_registers, place=place, name="registers")(tokens)
    return tokens


def _compute_rotation(
    patches: keras.KerasTensor, variant: ViTVariant, num_prefix_tokens: int
) -> tuple[keras.KerasTensor, ...]:
    """Returns the second argument of the blocks, or nothing without rotary positions."""
    if not variant.rotary:
        return ()
    head_dim = variant.width // variant.num_heads
    return (RotaryPositions(head_dim, num_prefix_tokens, name="rotary_positions")(patches),)


def _choose_block(
    tokens: keras.KerasTensor,
    grid: tuple[int, int],
    variant: ViTVariant,
    options: EncoderOptions,
) -> Callable[..., keras.layers.Layer]:
    """Returns the class of the blocks, with the arguments that the row and the grid determine."""
    relative = options.position_embedding == "relative"
    if variant.axial:
        return partial(AxialTransformerBlock, grid=grid, relative_positions=relative)
    return partial(
        TransformerBlock,
        relative_positions=tokens.shape[1] if relative else None,
        query_chunk=options.query_chunk,
        mlp=variant.mlp,
        layer_scale=variant.layer_scale,
        attention_bias=variant.attention_bias,
    )


def _check_grid(
    variant: ViTVariant, grid: tuple[int | None, int | None], options: EncoderOptions
) -> None:
    if variant.axial and (changed := _find_options_of_families(variant)):
        raise ValueError(
            f"{variant.name} has axial attention, which does not support {', '.join(changed)}. "
            "Leave them at their defaults."
        )
    if variant.rotary and options.position_embedding != "learned_1d":
        raise ValueError(
            f"{variant.name} has rotary positions and no position embedding. Received: "
            f"position_embedding={options.position_embedding!r}. Omit it."
        )
    is_at_stem = variant.num_registers or variant.rotary or not variant.class_position
    if is_at_stem and options.position_placement != "stem":
        raise ValueError(
            f"{variant.name} has tokens without a position, so positions cannot be added before "
            f"each block. Received: position_placement={options.position_placement!r}. "
            'Use "stem".'
        )
    if variant.axial and options.query_chunk is not None:
        raise ValueError(
            f"{variant.name} has axial attention, which does not support `query_chunk`. Leave it "
            "out."
        )
    if variant.axial and None in grid:
        raise ValueError(
            f"{variant.name} needs a fixed image size. Pass `input_shape` with integers."
        )
    if options.position_embedding == "relative" and None in grid:
        raise ValueError(
            "Relative positions need a fixed image size. Pass `input_shape` with integers."
        )


def _find_options_of_families(variant: ViTVariant) -> list[str]:
    """Returns the names of the fields that change blocks or tokens of other families."""
    names = ("distilled", "num_registers", "layer_scale", "mlp", "attention_bias", "rotary")
    defaults = {field.name: field.default for field in dataclasses.fields(ViTVariant)}
    return [name for name in names if getattr(variant, name) != defaults[name]]


def _make_position_adder(
    patches: keras.KerasTensor,
    position_grid: tuple[int, int],
    num_prefix_positions: int,
    variant: ViTVariant,
    options: EncoderOptions,
) -> Callable[[keras.KerasTensor, int], keras.KerasTensor]:
    """Returns a function (tokens, block index) -> tokens that adds positions before that block."""
    kind, placement = options.position_embedding, options.position_placement
    if kind in WITHOUT_TABLE or variant.rotary:
        return lambda tokens, index: tokens
    if None in position_grid:
        raise ValueError(
            "With an open image size, the position table needs a grid. Pass `position_grid`."
        )
    table = partial(
        AddPositionEmbs,
        position_grid,
        num_prefix_positions,
        kind=kind,
        interpolation=options.interpolation or variant.interpolation,
    )
    reference = () if tuple(patches.shape[1:3]) == tuple(position_grid) else (patches,)
    shared = None if placement == "every_layer" else table(name=_TABLE_NAMES[placement])

    def add(tokens: keras.KerasTensor, index: int) -> keras.KerasTensor:
        if placement == "stem" and index > 0:
            return tokens
        return (shared or table(name=f"posembed_{index}"))(tokens, *reference)

    return add


_TABLE_NAMES = {"stem": "posembed_input", "shared": "posembed_shared"}


@with_encoder_options
def vision_transformer(
    variant: ViTVariant,
    images: keras.KerasTensor | None = None,
    *,
    pad: bool = False,
    classifier: Classifier | None = None,
    pooling: Pooling | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable | None = None,
    representation_size: int | None = None,
    head_bias: float = 0.0,
    position_grid: tuple[int, int] | None = None,
    name: str | None = None,
    **options: Any,
) -> keras.Model:
    """Builds a ViT or a hybrid with random weights.

    Args:
        variant: A row of `keras_vit.variants.VIT_VARIANTS`, or a similar one.
        images: (B, H, W, C) Keras tensor, pixels in [-1, 1]. Default: a new input of the image size
            of the row, with 3 channels.
            H and W may be None, except for an axial variant.
        pad: Whether to pad images with zeros at the bottom and right to a multiple of the patch
            size.
        classifier: Input of the classifier: "token", the class token (the paper's choice); "gap",
            the mean of the patch tokens; "map", attention pooling; "token_gap", class token and
            mean, concatenated; "none", no classifier. There is a class token if the classifier
            reads it, or the row has one anyway. Default: that of the row, "token" for the paper's.
        pooling: With `classes=None`, the pooling of tokens to one vector: "token", "avg", "max",
            "map" or "token_avg"; None for all tokens.
        classes: Number of outputs of the final layer, which is initialized to zeros. None for no
            such layer.
        classifier_activation: Activation of the final layer.
        representation_size: Width of the tanh layer of the paper's pre-training. None for no such
            layer.
        head_bias: Initial bias of the final layer (the paper's pre-training used -10).
        position_grid: (rows, columns) of the position table. Default: the grid of `images`.
        name: Name of the model.
        **options: See `keras_vit.options.EncoderOptions`.

    Returns:
        A functional model from images to (B, classes), (B, D) or (B, T + N, D).

    Raises:
        ValueError: If the image size is not a multiple of the patch size, or options contradict
            each other.

    Example:
        >>> vision_transformer(VIT_VARIANTS["ViT_Ti16"], classes=1000).count_params()
        5717416
    """
    classifier = resolve_classifier(variant, classifier)
    check_head(classifier, classes, representation_size if classes is not None else None)
    if images is None:
        images = keras.Input((variant.image_size, variant.image_size, 3))
    _, height, width, _ = keras.ops.shape(images)
    if height is not None and width is not None:
        _check_tiling(variant, (height, width), pad)
    elif position_grid is None:
        position_grid = grid_of(variant, (variant.image_size, variant.image_size))
    tokens = encode_tokens(
        embed_patches(images, variant, pad),
        variant,
        class_token=has_class_token(variant, classifier),
        position_grid=position_grid,
        **options,
    )
    mode = pooling if classes is None else POOLING_OF[classifier]
    outputs = tokens
    if mode is not None:
        pool = partial(_pool, tokens, variant, classifier, EncoderOptions(**options))
        outputs = pool(mode)
    if classes is not None:
        has_second_head = variant.distilled and variant.distilled_head
        outputs = classify(
            outputs,
            classes,
            distilled=pool("distillation") if has_second_head else None,
            representation_size=representation_size,
            activation=classifier_activation,
            bias=head_bias if variant.projection is None else None,
        )
    elif representation_size is not None:
        if mode is None:
            raise ValueError("`representation_size` needs one vector per image. Pass `pooling`.")
        outputs = pre_logits(outputs, representation_size)
    make = ClassTokenModel if mode == "token" else keras.Model
    return make(source_inputs(images), outputs, name=name or variant.name.lower())


def _check_tiling(variant: ViTVariant, image_size: tuple[int, int], pad: bool) -> None:
    """Raises ValueError with the valid sizes if the image size is not a multiple of the patches."""
    try:
        grid_of(variant, image_size, pad)
    except ValueError as error:
        raise ValueError(f"{error} Or pass `pad=True` to pad images inside the model.") from None


def _pool(
    tokens: keras.KerasTensor,
    variant: ViTVariant,
    classifier: Classifier,
    options: EncoderOptions,
    mode: Pooling | Literal["distillation"],
) -> keras.KerasTensor:
    epsilon = variant.norm_epsilon if options.norm_epsilon is None else options.norm_epsilon
    if mode == "map":
        return AttentionPooling(
            variant.num_heads,
            variant.mlp_dim,
            norm_epsilon=epsilon,
            gelu=options.gelu or variant.gelu,
            name="map_head",
        )(tokens)
    if mode != "distillation":
        check("pooling", mode, Pooling)
    name = "pooled_distillation" if mode == "distillation" else "pooled"
    prefix = num_prefix_tokens(variant, classifier)
    vectors = TokenPooling(mode, prefix, name=name)(tokens)
    return (
        LayerNorm(epsilon, name="pooled_norm")(vectors) if variant.norm_after_pooling else vectors
    )
