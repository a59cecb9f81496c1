"""The Vision Transformer, with or without a convolutional stem, assembled from layers.

Random weights only; files are the business of `keras_vit.weights`. The two seams are functions:
`embed_patches` (image to patch tokens) and `encode_tokens` (patch tokens to representation).

Source: arXiv:2010.11929, sections 3.1, D.3, D.4 and D.6; vision_transformer@c6de1e5 models_vit.py.
"""

import functools
from collections.abc import Callable
from typing import Literal, get_args

import keras

from keras_vit.grid import Interpolation, padded, patch_grid
from keras_vit.layers.axial import AxialTransformerBlock
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.patches import PadToPatches, PatchEmbedding
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs, PositionKind
from keras_vit.layers.tokens import ClassToken
from keras_vit.layers.transformer import TransformerBlock
from keras_vit.models.ends import classify, pre_logits, source_inputs
from keras_vit.models.resnet import resnet_trunk
from keras_vit.variants import ViTVariant

Classifier = Literal["token", "gap", "map", "none"]
Pooling = Literal["token", "avg", "max", "map"]
PositionEmbedding = Literal["learned_1d", "learned_2d", "sincos2d", "relative", "none"]
PositionPlacement = Literal["stem", "every_layer", "shared"]


def grid_of(variant: ViTVariant, image_size: tuple[int, int], pad: bool = False) -> tuple[int, int]:
    """Returns the (rows, columns) of patches that `variant` cuts an image of (height, width) pixels into.

    Raises:
        ValueError: If the patches do not tile the image, and it is not padded.
    """
    halvings = _num_halvings(variant)
    if pad:
        image_size = (
            padded(image_size[0], variant.patch_size, halvings),
            padded(image_size[1], variant.patch_size, halvings),
        )
    return patch_grid(image_size, variant.patch_size, halvings)


def _num_halvings(variant: ViTVariant) -> int:
    return 0 if variant.stem is None else 2 + max(len(variant.stem.units) - 1, 0)


def default_classifier(variant: ViTVariant) -> Classifier:
    """What the classifier reads where nothing is said: the class token; the mean where attention is axial."""
    return "gap" if variant.axial else "token"


def embed_patches(images: keras.KerasTensor, variant: ViTVariant) -> keras.KerasTensor:
    """Maps images (B, H, W, C) to a grid of patch tokens, (B, rows, columns, D)."""
    if variant.stem is not None:
        images = resnet_trunk(images, variant.stem)
    return PatchEmbedding(variant.patch_size, variant.width, flatten=False, name="embedding")(images)


def encode_tokens(
    patches: keras.KerasTensor,
    variant: ViTVariant,
    *,
    class_token: bool | None = None,
    position_grid: tuple[int, int] | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    position_placement: PositionPlacement = "stem",
    interpolation: Interpolation = "bilinear",
    gelu: Literal["tanh", "exact"] | None = None,
    norm_epsilon: float | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    query_chunk: int | None = None,
) -> keras.KerasTensor:
    """Maps a grid of patch tokens to the encoder's normalized output tokens.

    Args:
        patches: (B, rows, columns, D); rows and columns may be None.
        variant: A row of `keras_vit.variants.VIT_VARIANTS`, or one like it.
        class_token: Whether to prepend a class token. Default: unless the variant is axial, which cannot have one.
        position_grid: (rows, columns) of the position table; default: the grid of `patches`. Where
            the two differ, the table is resampled in the graph.
        position_embedding, position_placement, interpolation: See `vision_transformer`.
        gelu, norm_epsilon: Override the variant's, for checkpoints of another origin.
        dropout_rate, attention_dropout_rate, stochastic_depth_rate, query_chunk: See `vision_transformer`.

    Returns:
        (B, T + rows * columns, D), T = 1 with a class token, else 0.

    Raises:
        ValueError: If options contradict each other, or the variant (axial: no class token, a fixed grid).
    """
    rows, columns, width = patches.shape[1:]
    grid = (rows, columns)
    class_token = not variant.axial if class_token is None else class_token
    if variant.axial:
        _check_axial(variant, class_token, grid, query_chunk)
    position_grid = grid if position_grid is None else position_grid
    tokens = keras.layers.Reshape((-1 if None in grid else grid[0] * grid[1], width), name="flatten_patches")(patches)
    if class_token:
        tokens = ClassToken(name="class_token")(tokens)
    add_positions = _position_adder(
        patches, position_grid, int(class_token), position_embedding, position_placement, interpolation
    )
    epsilon = variant.norm_epsilon if norm_epsilon is None else norm_epsilon
    dropout = keras.layers.Dropout(dropout_rate, name="dropout")
    relative = position_embedding == "relative"
    if variant.axial:
        block = functools.partial(AxialTransformerBlock, grid=grid, relative_positions=relative)
    else:
        length = tokens.shape[1] if relative else None
        block = functools.partial(TransformerBlock, relative_positions=length, query_chunk=query_chunk)
    for index in range(variant.depth):
        tokens = add_positions(tokens, index)
        tokens = dropout(tokens) if index == 0 else tokens
        tokens = block(
            variant.num_heads,
            variant.mlp_dim,
            norm_epsilon=epsilon,
            gelu=variant.gelu if gelu is None else gelu,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            # Linear in depth, from 0 to the full rate, as in arXiv:1603.09382.
            drop_path_rate=stochastic_depth_rate * index / max(variant.depth - 1, 1),
            name=f"encoderblock_{index}",
        )(tokens)
    return LayerNorm(epsilon, name="encoder_norm")(tokens)


def _check_axial(
    variant: ViTVariant, class_token: bool, grid: tuple[int | None, int | None], query_chunk: int | None
) -> None:
    if query_chunk is not None:
        raise ValueError(f"{variant.name} attends to few tokens at a time anyway. Leave out `query_chunk`.")
    if class_token:
        raise ValueError(
            f"{variant.name} attends along rows and columns, and a class token lies in none. "
            'Use `classifier="gap"`, "map" or "none".'
        )
    if None in grid:
        raise ValueError(f"{variant.name} needs a fixed image size. Pass `input_shape` with integers.")


def _position_adder(
    patches: keras.KerasTensor,
    position_grid: tuple[int, int],
    num_prefix_tokens: int,
    position_embedding: PositionEmbedding,
    position_placement: PositionPlacement,
    interpolation: Interpolation,
) -> Callable[[keras.KerasTensor, int], keras.KerasTensor]:
    """Returns (tokens, block index) -> tokens, which adds what belongs before that block."""
    _check("position_embedding", position_embedding, PositionEmbedding)
    _check("position_placement", position_placement, PositionPlacement)
    tabled = position_embedding in get_args(PositionKind)
    if not tabled and position_placement != "stem":
        raise ValueError(
            f"`position_placement` places a table, and position_embedding={position_embedding!r} has none. "
            f'Received: position_placement={position_placement!r}. Leave it at "stem".'
        )
    if position_embedding == "relative" and None in patches.shape[1:3]:
        raise ValueError("Relative positions need a fixed image size. Pass `input_shape` with integers.")
    if position_embedding == "none" or position_embedding == "relative":
        return lambda tokens, index: tokens
    if None in position_grid:
        raise ValueError("The position table needs a grid where the image size is open. Pass `position_grid`.")

    def layer(name: str) -> AddPositionEmbs:
        return AddPositionEmbs(
            position_grid, num_prefix_tokens, kind=position_embedding, interpolation=interpolation, name=name
        )

    shared = None if position_placement == "every_layer" else layer(_TABLE_NAMES[position_placement])
    reference = () if tuple(patches.shape[1:3]) == tuple(position_grid) else (patches,)

    def add(tokens: keras.KerasTensor, index: int) -> keras.KerasTensor:
        if position_placement == "stem" and index > 0:
            return tokens
        return (shared or layer(f"posembed_{index}"))(tokens, *reference)

    return add


_TABLE_NAMES = {"stem": "posembed_input", "shared": "posembed_shared"}


_POOLING_OF: dict[Classifier, Pooling] = {"token": "token", "gap": "avg", "map": "map"}


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
    position_embedding: PositionEmbedding = "learned_1d",
    position_placement: PositionPlacement = "stem",
    interpolation: Interpolation = "bilinear",
    gelu: Literal["tanh", "exact"] | None = None,
    norm_epsilon: float | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    query_chunk: int | None = None,
    name: str | None = None,
) -> keras.Model:
    """Builds a ViT or a hybrid with random weights.

    Args:
        variant: A row of `keras_vit.variants.VIT_VARIANTS`, or one like it.
        images: (B, H, W, C) Keras tensor, pixels in [-1, 1]; default: a new input of 224 x 224 x 3.
            H and W may be None, but not for an axial variant.
        pad: Whether images that the patches do not tile are padded, with zeros below and to the right.
        classifier: What the classifier reads: "token", the class token (the paper's choice); "gap",
            the mean of the patch tokens; "map", attention pooling; "none", nothing: tokens come out.
            Only "token" has a class token. Default: "token"; "gap" for an axial variant, which can have no class
            token.
        pooling: With `classes=None`, how tokens become one vector: "token", "avg", "max", "map"
            or None for all tokens.
        classes: Size of the final layer, which starts at zero; None for no such layer.
        classifier_activation: Activation of the final layer.
        representation_size: Width of the tanh layer of the paper's pre-training; None for none.
        head_bias: Start of the final layer's bias (the paper's pre-training used -10).
        position_grid: (rows, columns) of the position table; default: that of `images`.
        position_embedding: "learned_1d" (the paper's choice), "learned_2d", "sincos2d", "relative", "none".
        position_placement: "stem", once before the first block; "every_layer", a table before each
            block; "shared", one table before each block.
        interpolation: How the table is resampled; see `keras_vit.grid.interpolation_matrix`.
        gelu, norm_epsilon: Override the variant's, for checkpoints of another origin.
        dropout_rate: After positions and every dense layer but query, key and value.
        attention_dropout_rate: Of the attention probabilities.
        stochastic_depth_rate: Of the last block; it grows linearly from 0 at the first.
        query_chunk: How many tokens attend at a time, for less memory at large sizes; the numbers are the same. None:
            all at once.
        name: Name of the model.

    Returns:
        A functional model: images to (B, classes), (B, D) or (B, T + N, D).

    Raises:
        ValueError: If the patches do not tile the image, or two options contradict each other.

    Example:
        >>> vision_transformer(VIT_VARIANTS["ViT_Ti16"], classes=1000).count_params()
        5717416
    """
    classifier = default_classifier(variant) if classifier is None else classifier
    _check("classifier", classifier, Classifier)
    if classifier == "none" and classes is not None:
        raise ValueError('`classifier="none"` returns tokens. Leave out `classes` (`include_top=False`).')
    if images is None:
        images = keras.Input((224, 224, 3))
    _, height, width, _ = keras.ops.shape(images)
    if height is not None and width is not None:
        _check_tiling(variant, (height, width), pad)
    elif position_grid is None:
        position_grid = grid_of(variant, (224, 224))
    pixels = images
    if pad:
        pixels = PadToPatches(variant.patch_size, _num_halvings(variant), name="pad_to_patches")(images)
    tokens = encode_tokens(
        embed_patches(pixels, variant),
        variant,
        class_token=classifier == "token",
        position_grid=position_grid,
        position_embedding=position_embedding,
        position_placement=position_placement,
        interpolation=interpolation,
        gelu=gelu,
        norm_epsilon=norm_epsilon,
        dropout_rate=dropout_rate,
        attention_dropout_rate=attention_dropout_rate,
        stochastic_depth_rate=stochastic_depth_rate,
        query_chunk=query_chunk,
    )
    mode = pooling if classes is None else _POOLING_OF[classifier]
    outputs = tokens
    if mode is not None:
        outputs = _pool(tokens, variant, mode, int(classifier == "token"), gelu, norm_epsilon)
    if classes is not None:
        outputs = classify(
            outputs,
            classes,
            representation_size=representation_size,
            activation=classifier_activation,
            bias=head_bias,
        )
    elif representation_size is not None:
        if mode is None:
            raise ValueError("`representation_size` needs one vector per image. Pass `pooling`.")
        outputs = pre_logits(outputs, representation_size)
    return keras.Model(source_inputs(images), outputs, name=name or variant.name.lower())


def _check_tiling(variant: ViTVariant, image_size: tuple[int, int], pad: bool) -> None:
    """Names the valid sizes where the patches do not tile the image."""
    try:
        grid_of(variant, image_size, pad)
    except ValueError as error:
        raise ValueError(f"{error} `pad=True` pads them inside the model.") from None


def _pool(
    tokens: keras.KerasTensor,
    variant: ViTVariant,
    mode: Pooling,
    num_prefix_tokens: int,
    gelu: Literal["tanh", "exact"] | None,
    norm_epsilon: float | None,
) -> keras.KerasTensor:
    _check("pooling", mode, Pooling)
    if mode != "map":
        return TokenPooling(mode, num_prefix_tokens, name="pooled")(tokens)
    return AttentionPooling(
        variant.num_heads,
        variant.mlp_dim,
        norm_epsilon=variant.norm_epsilon if norm_epsilon is None else norm_epsilon,
        gelu=variant.gelu if gelu is None else gelu,
        name="map_head",
    )(tokens)


def _check(argument: str, value: str, valid: object) -> None:
    if value not in get_args(valid):
        raise ValueError(f"`{argument}` must be one of {get_args(valid)}. Received: {value!r}.")
