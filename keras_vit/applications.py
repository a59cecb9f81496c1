"""Functions that build the models: `ViT_B16(weights=...)` and the others, with the conventions of
`keras.applications`.

This module combines models and checkpoint files. The public names are defined at the end.

Source: keras-team/keras, keras/src/applications (signature, checks, messages).
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_vit import cost
from keras_vit.layers.resnet import PoolPadding
from keras_vit.models.ends import as_pixels, check_input_shape, shape_of_images
from keras_vit.models.resnet import MapPooling, resnet
from keras_vit.models.vit import vision_transformer
from keras_vit.options import (
    Classifier,
    EncoderOptions,
    Pooling,
    grid_of,
    resolve_classifier,
    with_encoder_options,
)
from keras_vit.variants import (
    FAMILY_VARIANTS,
    RESNET_VARIANTS,
    VARIANTS,
    VIT_VARIANTS,
    ResNetVariant,
    ViTVariant,
)
from keras_vit.weights import catalog, source
from keras_vit.weights.metadata import check_grid
from keras_vit.weights.restore import PositionResize, channels_of, restore

Weights = str | os.PathLike | None
Activation = str | Callable | None

_RESNET_IMAGE_SIZE = 224

_SHARED_DOC = """Builds {name}, a `keras.Model`.

    {parameters} parameters with 1000 classes. Source: {source}.

    The first eight arguments are those of `keras.applications`, with these differences:

    - `weights` also takes a catalog tag (see `keras_vit.list_weights("{name}")`), the path of a
      file (.npz, .safetensors, .weights.h5), a Hugging Face folder, or a URL.
    - `input_shape` may differ from the image size of the weights, also with
      `include_top=True`{any_size}
    - Pixels must be in [-1, 1] (`preprocess_input`, mode "tf"), channels last.
    {pooling}

    Args:
        include_top: Whether to add the classification layer, `predictions`.
        weights: None (random), "imagenet", another tag, a file, or a URL.
        input_tensor: Keras tensor to use as the images.
        input_shape: (height, width, channels). Height and width may be None, except for axial
            models. The number of channels may differ from that of the weights: for one channel, the
            kernels of red, green and blue are summed; for other numbers they are repeated in turn
            and scaled by 3 / channels, as in timm.
            Default with the top: the image size that the weights were trained at, or that of their
            position table, or 224 x 224 if both are unknown. Default without the top: (None, None,
            channels); for axial models, as with the top. The default number of channels is that of
            the weights, or 3.
        pooling: Without the top, how the output becomes one vector per image.
        classes: Number of classes; with weights it must equal that of their head.
        classifier_activation: Activation of `predictions`; with weights, "softmax", "sigmoid" (for
            files whose labels do not exclude each other) or None.
        name: Name of the model.
        include_preprocessing: Whether the model takes pixels in [0, 255] and scales them itself.
        {more_args}

    Returns:
        A functional `keras.Model`.

    Raises:
        ValueError: If an argument is invalid, or if the names or shapes of the weights do not match
            the model.
        OSError: If the weights cannot be read or downloaded; the message names the missing file and
            where to put it.

    Example:
        >>> model = keras_vit.{name}(weights=None, input_shape={example_shape}, classes=10)
        >>> model.output_shape
        (None, 10)
    """

_VIT_ARGS = """pad: Whether the model pads images whose size is not a multiple of the patch size, with
            zeros (gray for pixels in [-1, 1]) below and to the right. The grid is then
            ceil(side / patch).
        classifier: "token" (class token), "gap" (mean of the patches), "map" (attention pooling) or
            "none" (returns all tokens; needs `include_top=False`). Default: that of the head of the
            weights, if they tell; otherwise "gap" for axial models, which have no class token, and
            the classifier of the model for others.
        representation_size: Width of a tanh layer before `predictions`. Default: that of the
            weights, if they have one and `include_top=True`.
        head_bias: Initial bias of `predictions`, whose kernel is initialized to zeros.
        checkpoint_grid: (rows, columns) of the stored position table, if it is neither square nor
            recorded in the file.
        **options: See `keras_vit.options.EncoderOptions`; `gelu` and `norm_epsilon` default to
            those that the weights were trained with."""

_RESNET_ARGS = """head_bias: Initial bias of `predictions`, whose kernel is initialized to zeros.
        pool_padding: Padding of the max-pooling in BiT's root: "ignored" as in big_vision, "zeros"
            as in big_transfer and timm."""


def application(variant: ViTVariant | ResNetVariant) -> Callable[..., keras.Model]:
    """Returns a function that builds models of a row of your own, with the arguments of `ViT_B16`
    or of `BiT_R50x1`.

    Tags exist only for published rows; weights of your own rows come from files and URLs.

    Raises:
        ValueError: If the patches do not tile images of the row's own `image_size`.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], name="ViT_Mine", width=64, depth=4, num_heads=4)
        >>> keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=10).name
        'vit_mine'
    """
    return (
        _make_vit_application(variant)
        if isinstance(variant, ViTVariant)
        else _make_resnet_application(variant)
    )


def _make_vit_application(variant: ViTVariant) -> Callable[..., keras.Model]:
    try:
        grid_of(variant, (variant.image_size, variant.image_size))
    except ValueError as error:
        raise ValueError(
            f"The row {variant.name} has image_size={variant.image_size}, the size of its position "
            f"table. Set `image_size` in the row. {error}"
        ) from None
    default = resolve_classifier(variant, None)

    @with_encoder_options
    def build(
        include_top: bool = True,
        weights: Weights = "imagenet",
        input_tensor: keras.KerasTensor | None = None,
        input_shape: tuple | None = None,
        pooling: Pooling | None = None,
        classes: int = variant.projection or 1000,
        classifier_activation: Activation = None if variant.projection else "softmax",
        name: str = variant.name.lower(),
        *,
        include_preprocessing: bool = False,
        pad: bool = False,
        classifier: Classifier = default,
        representation_size: int | None = None,
        head_bias: float = 0.0,
        checkpoint_grid: tuple[int, int] | None = None,
        **options: Any,
    ) -> keras.Model:
        # Checked first, so that a wrong option raises its error before a download.
        interpolation = EncoderOptions(**options).interpolation or variant.interpolation
        if checkpoint_grid is not None:
            check_grid(checkpoint_grid)
        pretrained = _load_pretrained(
            variant, weights, include_top, classes, classifier_activation, input_shape
        )
        shape = _choose_image_shape(variant, input_shape, pretrained, include_top, input_tensor)
        row = variant
        if pretrained is not None:
            row = source.adapt(variant, pretrained)
            if include_top and classifier == default:
                classifier = source.find_classifier(variant, pretrained) or default
            of_weights = {"gelu": pretrained.gelu, "norm_epsilon": pretrained.norm_epsilon}
            options |= {
                name: value for name, value in of_weights.items() if options.get(name) is None
            }
            source.check_grid(pretrained, partial(grid_of, variant, pad=pad))
            stored_grid = checkpoint_grid or (pretrained.grid if pretrained.grid_is_known else None)
            checkpoint_grid = checkpoint_grid or pretrained.grid
            if include_top and representation_size is None:
                representation_size = pretrained.representation_size
        else:
            stored_grid = None
        position_grid = None
        if None in shape[:2]:
            size = _trained_size(variant, pretrained)
            position_grid = checkpoint_grid or grid_of(variant, size, pad)
        images, pixels = as_pixels(input_tensor, shape, include_preprocessing)
        model = vision_transformer(
            row,
            pixels,
            pad=pad,
            classifier=classifier,
            pooling=pooling,
            classes=classes if include_top else None,
            classifier_activation=classifier_activation,
            representation_size=representation_size,
            head_bias=head_bias,
            position_grid=position_grid,
            name=name,
            **options,
        )
        positions = PositionResize(checkpoint_grid=stored_grid, interpolation=interpolation)
        model = _restore(model, images, pretrained, include_top, positions)
        if pretrained is not None:
            source.check_heads(pretrained, variant.name, variant.num_heads)
        return model

    return _document(build, variant, _VIT_ARGS, _VIT_POOLING, _VIT_SIZE)


_VIT_POOLING = """- `pooling` is None (all tokens, (B, T + N, D)), "token", "avg" or "max" (over patch
      tokens), "token_avg" (class token and mean, concatenated), or "map"."""
_VIT_SIZE = """: position embeddings are resampled.
      A size that is not a multiple of the patch size raises an error, unless `pad=True`."""
_RESNET_POOLING = (
    """- `pooling` is None (the feature map, (B, H / 32, W / 32, C)), "avg" or "max"."""
)


def _make_resnet_application(variant: ResNetVariant) -> Callable[..., keras.Model]:
    def build(
        include_top: bool = True,
        weights: Weights = "imagenet",
        input_tensor: keras.KerasTensor | None = None,
        input_shape: tuple | None = None,
        pooling: MapPooling | None = None,
        classes: int = 1000,
        classifier_activation: Activation = "softmax",
        name: str = variant.name.lower(),
        *,
        include_preprocessing: bool = False,
        head_bias: float = 0.0,
        pool_padding: PoolPadding = "ignored",
    ) -> keras.Model:
        pretrained = _load_pretrained(
            variant, weights, include_top, classes, classifier_activation, input_shape
        )
        shape = _choose_image_shape(variant, input_shape, pretrained, include_top, input_tensor)
        images, pixels = as_pixels(input_tensor, shape, include_preprocessing)
        model = resnet(
            variant,
            pixels,
            pooling="avg" if include_top else pooling,
            classes=classes if include_top else None,
            classifier_activation=classifier_activation,
            head_bias=head_bias,
            pool_padding=pool_padding,
            name=name,
        )
        return _restore(model, images, pretrained, include_top, PositionResize())

    return _document(build, variant, _RESNET_ARGS, _RESNET_POOLING, ".")


def _document(
    build: Callable,
    variant: ViTVariant | ResNetVariant,
    more_args: str,
    pooling: str,
    any_size: str,
) -> Callable[..., keras.Model]:
    name = build.__name__ = build.__qualname__ = variant.name
    classes = inspect.signature(build).parameters["classes"].default
    build.__doc__ = _SHARED_DOC.format(
        name=name,
        parameters=f"{cost.parameters(variant, classes=classes):,}",
        source=variant.source,
        more_args=more_args,
        pooling=pooling,
        any_size=any_size,
        example_shape="(64, 64, 3)" if name != "ViT_H14" else "(56, 56, 3)",
    )
    return build


def _load_pretrained(
    variant: ViTVariant | ResNetVariant,
    weights: Weights,
    include_top: bool,
    classes: int,
    classifier_activation: Activation,
    input_shape: tuple | None,
) -> source.Pretrained | None:
    """Checks the arguments as far as possible before a download, then reads the weights."""
    if keras.config.image_data_format() != "channels_last":
        raise ValueError(
            "Only `channels_last` images are supported. Set it in ~/.keras/keras.json, or with "
            '`keras.config.set_image_data_format("channels_last")`.'
        )
    found = None if weights is None else source.find(variant.name, weights, variant=variant)
    row = None if found is None else found.row
    if found is not None and row is not None and include_top and found.is_published:
        if row.classes is None:
            raise ValueError(
                f"{source.origin_of(found)} has no classification head. Use `include_top=False` "
                'with `pooling="token"` or another, and add your own head.'
            )
        if found.is_tag and classes != row.classes:
            raise ValueError(
                f'If using `weights="{weights}"` with `include_top=True`, `classes` should be '
                f"{row.classes}.  Received classes={classes}. For other classes use "
                f"`include_top=False`, or load with classes={row.classes} and call "
                f"`keras_vit.replace_head(model, {classes})`."
            )
        if not row.head_is_valid:
            raise ValueError(source.zero_head_message(found))
    if input_shape is not None:
        check_input_shape(input_shape)
    if found is None:
        return None
    activation = keras.activations.serialize(keras.activations.get(classifier_activation))
    allowed = ("softmax", "linear") if found.is_tag else ("softmax", "linear", "sigmoid")
    if include_top and activation not in allowed:
        raise ValueError(
            "Only `None` and `softmax` activations are allowed for the `classifier_activation` "
            "argument when using pretrained weights, with `include_top=True`; Received: "
            f"classifier_activation={classifier_activation}"
        )
    pretrained = source.load(found)
    if include_top and pretrained.head_is_zero:
        raise ValueError(source.zero_head_message(found))
    if include_top:
        source.check_activation(found, pretrained, activation)
    return pretrained


def _trained_size(
    variant: ViTVariant | ResNetVariant, pretrained: source.Pretrained | None
) -> tuple[int, int]:
    if pretrained is not None and pretrained.image_size is not None:
        return pretrained.image_size
    if pretrained is not None and pretrained.grid is not None and isinstance(variant, ViTVariant):
        rows, columns = pretrained.grid
        return rows * variant.total_stride, columns * variant.total_stride
    side = variant.image_size if isinstance(variant, ViTVariant) else _RESNET_IMAGE_SIZE
    return side, side


def _choose_image_shape(
    variant: ViTVariant | ResNetVariant,
    input_shape: tuple | None,
    pretrained: source.Pretrained | None,
    include_top: bool,
    input_tensor: keras.KerasTensor | None,
) -> tuple:
    # Axial layers are built for one grid, so axial models always have a fixed size.
    is_fixed = include_top or variant.axial
    channels = (pretrained and channels_of(pretrained.arrays)) or 3
    default = (
        (*_trained_size(variant, pretrained), channels) if is_fixed else (None, None, channels)
    )
    return shape_of_images(input_tensor, input_shape, default)


def _restore(
    model: keras.Model,
    images: keras.KerasTensor,
    pretrained: source.Pretrained | None,
    include_top: bool,
    positions: PositionResize,
) -> keras.Model:
    if pretrained is None:
        return model
    # Layers of the caller, which compute `input_tensor`, are not in the checkpoint.
    upstream = keras.Model(model.inputs, images).layers
    layers = [layer for layer in model.layers if layer not in upstream]
    names = {layer.name for layer in layers}
    heads = () if include_top else _HEADS
    # Checkpoints of masked patch prediction contain two parts that these models do not have.
    heads = (*heads, "mask_token", "patch_predictions")
    skip = tuple(f"{head}/.*" for head in heads if head not in names)
    restore(layers, pretrained.arrays, skip=skip, positions=positions, origin=pretrained.origin)
    return model


_HEADS = ("predictions", "predictions_distilled", "pre_logits", "map_head", "pooled_norm")


def list_models() -> list[str]:
    """Returns the names of all models, such as "ViT_B16"."""
    return [*VARIANTS]


def list_weights(model: str) -> list[str]:
    """Returns the tags that `weights=` accepts for a model, besides files and URLs.

    Example:
        >>> "imagenet21k" in keras_vit.list_weights("ViT_B16")
        True
    """
    return catalog.list_weights(model)


ViT_Ti16 = application(VIT_VARIANTS["ViT_Ti16"])
ViT_S32 = application(VIT_VARIANTS["ViT_S32"])
ViT_S16 = application(VIT_VARIANTS["ViT_S16"])
ViT_B32 = application(VIT_VARIANTS["ViT_B32"])
ViT_B16 = application(VIT_VARIANTS["ViT_B16"])
ViT_B8 = application(VIT_VARIANTS["ViT_B8"])
ViT_L32 = application(VIT_VARIANTS["ViT_L32"])
ViT_L16 = application(VIT_VARIANTS["ViT_L16"])
ViT_H14 = application(VIT_VARIANTS["ViT_H14"])
R_ViT_Ti16 = application(VIT_VARIANTS["R_ViT_Ti16"])
R26_ViT_S32 = application(VIT_VARIANTS["R26_ViT_S32"])
R26_ViT_B32 = application(VIT_VARIANTS["R26_ViT_B32"])
R50_ViT_B32 = application(VIT_VARIANTS["R50_ViT_B32"])
R50_ViT_B16 = application(VIT_VARIANTS["R50_ViT_B16"])
R50_ViT_L32 = application(VIT_VARIANTS["R50_ViT_L32"])
R50_ViT_L16 = application(VIT_VARIANTS["R50_ViT_L16"])
AxialViT_B32 = application(VIT_VARIANTS["AxialViT_B32"])
AxialViT_B16 = application(VIT_VARIANTS["AxialViT_B16"])
BiT_R50x1 = application(RESNET_VARIANTS["BiT_R50x1"])
BiT_R50x3 = application(RESNET_VARIANTS["BiT_R50x3"])
BiT_R101x1 = application(RESNET_VARIANTS["BiT_R101x1"])
BiT_R101x3 = application(RESNET_VARIANTS["BiT_R101x3"])
BiT_R152x2 = application(RESNET_VARIANTS["BiT_R152x2"])
BiT_R152x4 = application(RESNET_VARIANTS["BiT_R152x4"])
ResNet50x1 = application(RESNET_VARIANTS["ResNet50x1"])
ResNet50x2 = application(RESNET_VARIANTS["ResNet50x2"])
ResNet101x1 = application(RESNET_VARIANTS["ResNet101x1"])
ResNet152x1 = application(RESNET_VARIANTS["ResNet152x1"])
ResNet152x2 = application(RESNET_VARIANTS["ResNet152x2"])
ResNet200x3 = application(RESNET_VARIANTS["ResNet200x3"])
AxialResNet50 = application(RESNET_VARIANTS["AxialResNet50"])
SigLIP_B16 = application(FAMILY_VARIANTS["SigLIP_B16"])
SigLIP_L16 = application(FAMILY_VARIANTS["SigLIP_L16"])
SigLIP_So400m14 = application(FAMILY_VARIANTS["SigLIP_So400m14"])
SigLIP_So400m16 = application(FAMILY_VARIANTS["SigLIP_So400m16"])
SigLIP_gopt16 = application(FAMILY_VARIANTS["SigLIP_gopt16"])
DINO_S16 = application(FAMILY_VARIANTS["DINO_S16"])
DINO_S8 = application(FAMILY_VARIANTS["DINO_S8"])
DINO_B16 = application(FAMILY_VARIANTS["DINO_B16"])
DINO_B8 = application(FAMILY_VARIANTS["DINO_B8"])
MAE_B16 = application(FAMILY_VARIANTS["MAE_B16"])
MAE_L16 = application(FAMILY_VARIANTS["MAE_L16"])
MAE_H14 = application(FAMILY_VARIANTS["MAE_H14"])
IJEPA_H14 = application(FAMILY_VARIANTS["IJEPA_H14"])
IJEPA_H16 = application(FAMILY_VARIANTS["IJEPA_H16"])
IJEPA_G16 = application(FAMILY_VARIANTS["IJEPA_G16"])
DeiT_Ti16 = application(FAMILY_VARIANTS["DeiT_Ti16"])
DeiT_S16 = application(FAMILY_VARIANTS["DeiT_S16"])
DeiT_B16 = application(FAMILY_VARIANTS["DeiT_B16"])
DeiT_Ti16_distilled = application(FAMILY_VARIANTS["DeiT_Ti16_distilled"])
DeiT_S16_distilled = application(FAMILY_VARIANTS["DeiT_S16_distilled"])
DeiT_B16_distilled = application(FAMILY_VARIANTS["DeiT_B16_distilled"])
DeiT3_S16 = application(FAMILY_VARIANTS["DeiT3_S16"])
DeiT3_M16 = application(FAMILY_VARIANTS["DeiT3_M16"])
DeiT3_B16 = application(FAMILY_VARIANTS["DeiT3_B16"])
DeiT3_L16 = application(FAMILY_VARIANTS["DeiT3_L16"])
DeiT3_H14 = application(FAMILY_VARIANTS["DeiT3_H14"])
CLIP_B32 = application(FAMILY_VARIANTS["CLIP_B32"])
CLIP_B16 = application(FAMILY_VARIANTS["CLIP_B16"])
CLIP_L14 = application(FAMILY_VARIANTS["CLIP_L14"])
CLIP_H14 = application(FAMILY_VARIANTS["CLIP_H14"])
CLIP_g14 = application(FAMILY_VARIANTS["CLIP_g14"])
CLIP_bigG14 = application(FAMILY_VARIANTS["CLIP_bigG14"])
DINOv2_S14 = application(FAMILY_VARIANTS["DINOv2_S14"])
DINOv2_B14 = application(FAMILY_VARIANTS["DINOv2_B14"])
DINOv2_L14 = application(FAMILY_VARIANTS["DINOv2_L14"])
DINOv2_g14 = application(FAMILY_VARIANTS["DINOv2_g14"])
DINOv2_S14_reg4 = application(FAMILY_VARIANTS["DINOv2_S14_reg4"])
DINOv2_B14_reg4 = application(FAMILY_VARIANTS["DINOv2_B14_reg4"])
DINOv2_L14_reg4 = application(FAMILY_VARIANTS["DINOv2_L14_reg4"])
DINOv2_g14_reg4 = application(FAMILY_VARIANTS["DINOv2_g14_reg4"])
TIPSv2_B14 = application(FAMILY_VARIANTS["TIPSv2_B14"])
TIPSv2_L14 = application(FAMILY_VARIANTS["TIPSv2_L14"])
TIPSv2_So400m14 = application(FAMILY_VARIANTS["TIPSv2_So400m14"])
TIPSv2_g14 = application(FAMILY_VARIANTS["TIPSv2_g14"])
DINOv3_S16 = application(FAMILY_VARIANTS["DINOv3_S16"])
DINOv3_S16plus = application(FAMILY_VARIANTS["DINOv3_S16plus"])
DINOv3_B16 = application(FAMILY_VARIANTS["DINOv3_B16"])
DINOv3_L16 = application(FAMILY_VARIANTS["DINOv3_L16"])
DINOv3_H16plus = application(FAMILY_VARIANTS["DINOv3_H16plus"])
DINOv3_7B16 = application(FAMILY_VARIANTS["DINOv3_7B16"])
