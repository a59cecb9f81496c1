"""ResNets with group normalization: BiT, the paper's baselines, AxialResNet, trunk of the hybrids.

Models have random weights; `keras_vit.weights` loads files.

Source: arXiv:2010.11929, sections 3.1, 4.1 and D.6; arXiv:1912.11370, section 3.3.
"""

import functools
from collections.abc import Callable
from typing import Literal, get_args

import keras

from keras_vit.layers.axial import AxialUnit
from keras_vit.layers.norm import GroupNorm
from keras_vit.layers.resnet import (
    NUM_GROUPS,
    BiTMaxPool,
    BiTUnit,
    PoolPadding,
    StdConv2D,
    StemUnit,
)
from keras_vit.models.ends import classify, source_inputs
from keras_vit.variants import ResNetVariant

MapPooling = Literal["avg", "max"]


def resnet_trunk(
    images: keras.KerasTensor, variant: ResNetVariant, pool_padding: PoolPadding = "ignored"
) -> keras.KerasTensor:
    """Maps images (B, H, W, C) to the feature map of the last stage, (B, H / s, W / s, channels).

    A BiT trunk ends with the normalization and ReLU after its last pre-activation unit. An axial
    trunk needs a fixed image size.

    Raises:
        ValueError: If the variant is axial, and the image size is open or the units are
            pre-activation.

    Example:
        >>> trunk = resnet_trunk(keras.Input((224, 224, 3)), RESNET_VARIANTS["ResNet50x1"])
        >>> trunk.shape
        (None, 7, 7, 2048)
    """
    if variant.axial and variant.preactivation:
        raise ValueError(
            f"Axial units are post-activation. {variant.name} has `axial=True` and "
            "`preactivation=True`. Set one of them to False."
        )
    constants = {"std_epsilon": variant.std_epsilon, "variance_epsilon": variant.variance_epsilon}
    norm = functools.partial(GroupNorm, NUM_GROUPS, epsilon=variant.norm_epsilon)
    root = functools.partial(StdConv2D, variant.width, 7, strides=2, name="conv_root", **constants)
    if variant.preactivation:
        x = root(padding="fixed")(images)
        x = BiTMaxPool(pool_padding, name="pool_root")(x)
    else:
        x = norm(name="gn_root")(root(padding="same")(images))
        x = keras.layers.ReLU(name="relu_root")(x)
        x = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="pool_root")(x)
    unit = BiTUnit if variant.preactivation else AxialUnit if variant.axial else StemUnit
    for block, num_units in enumerate(variant.units, start=1):
        for index in range(1, num_units + 1):
            x = unit(
                variant.width * 2 ** (block - 1),
                strides=2 if block > 1 and index == 1 else 1,
                norm_epsilon=variant.norm_epsilon,
                name=f"block{block}_unit{index}",
                **constants,
            )(x)
    if variant.preactivation:
        x = norm(name="norm_pre_head")(x)
        x = keras.layers.ReLU(name="relu_pre_head")(x)
    return x


def resnet(
    variant: ResNetVariant,
    images: keras.KerasTensor | None = None,
    *,
    pooling: MapPooling | None = "avg",
    classes: int | None = None,
    classifier_activation: str | Callable | None = None,
    head_bias: float = 0.0,
    pool_padding: PoolPadding = "ignored",
    name: str | None = None,
) -> keras.Model:
    """Builds a BiT ResNet, a ResNet baseline of the paper or an AxialResNet, with random weights.

    Args:
        variant: A row of `keras_vit.variants.RESNET_VARIANTS`, or a similar one.
        images: (B, H, W, C) Keras tensor, pixels in [-1, 1]. Default: a new input of 224 x 224 x 3.
        pooling: "avg", "max", or None for the feature map.
        classes: Number of outputs of the final layer, which is initialized to zeros. None for no
            such layer.
        classifier_activation: Activation of the final layer.
        head_bias: Initial bias of the final layer.
        pool_padding: Padding in BiT's root: "ignored" as in big_vision, "zeros" as in big_transfer
            and timm.
        name: Name of the model.

    Returns:
        A functional model from images to (B, classes), (B, channels) or (B, H / 32, W / 32,
        channels).

    Example:
        >>> resnet(RESNET_VARIANTS["BiT_R50x1"], classes=1000).count_params()
        25549352
    """
    if pooling is not None and pooling not in get_args(MapPooling):
        raise ValueError(
            f"`pooling` must be None or one of {get_args(MapPooling)}. Received: {pooling!r}."
        )
    if classes is not None and pooling is None:
        raise ValueError("A classifier needs pooled features. Pass `pooling`, or omit `classes`.")
    images = keras.Input((224, 224, 3)) if images is None else images
    x = resnet_trunk(images, variant, pool_padding)
    if pooling is not None:
        layer = (
            keras.layers.GlobalAveragePooling2D
            if pooling == "avg"
            else keras.layers.GlobalMaxPooling2D
        )
        x = layer(name=f"{pooling}_pool")(x)
    if classes is not None:
        x = classify(x, classes, activation=classifier_activation, bias=head_bias)
    return keras.Model(source_inputs(images), x, name=name or variant.name.lower())
