"""The two ends that all models share: where images come in, and the classification head.

Source: arXiv:2010.11929, sections 3.1, 3.2 and B.1.1; keras-team/keras, keras/src/applications
    (checks of the input).
"""

from collections.abc import Callable

import keras

from keras_vit.levels import to_pixels
from keras_vit.models.class_token import ClassTokenModel

_FEW = 4  # channels; a side of an image is longer


def check_input_shape(shape: tuple) -> None:
    """Raises ValueError if `shape` is not (height, width, channels) of images."""
    if len(shape) != 3:
        raise ValueError(
            f"`input_shape` must be a tuple of three integers. Received: input_shape={shape}"
        )
    height, width, channels = shape
    is_first = isinstance(height, int) and 1 <= height <= _FEW
    if is_first and (channels is None or (isinstance(channels, int) and channels > _FEW)):
        raise ValueError(
            "`input_shape` is (height, width, channels): channels come last. Received: "
            f"input_shape={shape}, which has them first. Use {(width, channels, height)}, and "
            "transpose the images to match: `numpy.moveaxis(images, 1, -1)`."
        )
    if any(size is not None and (not isinstance(size, int) or size < 1) for size in shape):
        raise ValueError(
            f"`input_shape` must hold positive integers, or None. Received: input_shape={shape}"
        )
    if channels is None:
        raise ValueError(f"The number of channels must be known. Received: input_shape={shape}")


def shape_of_images(
    input_tensor: keras.KerasTensor | None, input_shape: tuple | None, default: tuple
) -> tuple:
    """Returns (height, width, channels): that of the tensor, or the one asked for, or the default.

    Raises:
        ValueError: If the tensor is no Keras tensor, no batch of images, or of another shape than
            the one asked for.
    """
    if input_tensor is not None:
        _check_symbolic(input_tensor)
        shape = tuple(input_tensor.shape[1:])
        if len(shape) != 3 or (input_shape is not None and tuple(input_shape) != shape):
            raise ValueError(
                "`input_tensor` must be a batch of images, (batch, height, width, channels), and "
                "agree with `input_shape`. Received: a tensor of shape "
                f"{tuple(input_tensor.shape)}, input_shape={input_shape}"
            )
        check_input_shape(shape)
        return shape
    return default if input_shape is None else tuple(input_shape)


def _check_symbolic(input_tensor: object) -> None:
    if not keras.backend.is_keras_tensor(input_tensor):
        shape = getattr(input_tensor, "shape", None)
        described = type(input_tensor).__name__ + (
            "" if shape is None else f" of shape {tuple(shape)}"
        )
        raise ValueError(
            "`input_tensor` must be a Keras tensor, such as `keras.Input((224, 224, 3))` or the "
            "output of a layer: it says where images come in, and holds none. Received: "
            f"{described}. Leave it out, and give images to the model: `model.predict(images)`."
        )


def as_pixels(
    input_tensor: keras.KerasTensor | None, shape: tuple, include_preprocessing: bool
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the images as given, and as pixels in [-1, 1]."""
    images = keras.Input(shape) if input_tensor is None else input_tensor
    if not include_preprocessing:
        return images, images
    # Not `keras.layers.Rescaling`: it imports TensorFlow whatever the backend.
    return images, to_pixels(images)


def source_inputs(images: keras.KerasTensor):
    """The input, or inputs, that `images` was computed from; `images` itself where it
    is an input.
    """
    sources = keras.utils.get_source_inputs(images)
    return sources[0] if len(sources) == 1 else sources


def classify(
    features: keras.KerasTensor,
    classes: int,
    *,
    representation_size: int | None = None,
    activation: str | Callable | None = None,
    bias: float = 0.0,
) -> keras.KerasTensor:
    """Maps features (B, D) to class scores (B, classes), in float32 under mixed precision.

    Args:
        features: (B, D).
        classes: Number of classes.
        representation_size: Width of a tanh layer before the final one, as in the paper's
            pre-training; None for none, as in its fine-tuning.
        activation: Activation of the final layer, fused into it.
        bias: Start of the final layer's bias; its kernel starts at zero.
    """
    x = features if representation_size is None else pre_logits(features, representation_size)
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias),
        dtype=full_precision(),
        name="predictions",
    )(x)


def replace_head(
    model: keras.Model, classes: int, classifier_activation: str | None = "softmax"
) -> keras.Model:
    """Returns the model with a new, zero-initialized `predictions` layer in place of its whole
    head.

    The tanh layer of pre-training goes too, as in the paper's fine-tuning (B.1.1). All other layers
    are shared with the given model.

    Raises:
        ValueError: If the model is none, or has no such layer, or `classes` is no number of
            classes.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> keras_vit.replace_head(model, classes=10).output_shape
        (None, 10)
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`replace_head` takes a model. Received: {model!r}. Build it first: "
            f'`keras_vit.replace_head(keras_vit.ViT_B16(weights="imagenet"), {classes})`.'
        )
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"`classes` is the number of classes, at least 1. Received: {classes!r}.")
    names = [layer.name for layer in model.layers]
    if "predictions" not in names:
        raise ValueError(
            f"{model.name} has no layer `predictions` to replace. Its last layers: {names[-3:]}. A "
            f"model "
            "without a head (`include_top=False`, with `pooling`) gets one from Keras: "
            "`keras.Model(model.input, keras.layers.Dense("
            f'{classes}, activation="softmax", kernel_initializer="zeros", '
            f'name="predictions")(model.output))`.'
        )
    features = model.get_layer("pre_logits" if "pre_logits" in names else "predictions").input
    outputs = classify(features, classes, activation=classifier_activation)
    return ClassTokenModel(model.input, outputs, name=model.name)


def pre_logits(features: keras.KerasTensor, representation_size: int) -> keras.KerasTensor:
    """The tanh layer of the paper's pre-training head, (B, D) to (B, representation_size)."""
    return keras.layers.Dense(
        representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
    )(features)


def full_precision() -> str | None:
    """float32 where the global policy computes in 16 bits, else the policy itself."""
    compute_dtype = keras.config.dtype_policy().compute_dtype
    return "float32" if compute_dtype in ("float16", "bfloat16") else None
