"""The input and the classification head of all models.

Source: arXiv:2010.11929, sections 3.1, 3.2 and B.1.1; keras-team/keras, keras/src/applications
    (checks of the input).
"""

from collections.abc import Callable, Sequence
from functools import partial

import keras

from keras_vit.graph import MEAN_OF_HEADS
from keras_vit.levels import to_pixels
from keras_vit.models.class_token import ClassTokenModel

_FEW = 4  # most channels of an image; its sides are longer


def check_input_shape(shape: Sequence[int | None]) -> None:
    """Raises ValueError if `shape` is not (height, width, channels) of images."""
    if not isinstance(shape, tuple | list) or len(shape) != 3:
        raise ValueError(
            "`input_shape` must be a tuple of three integers, (height, width, channels), such as "
            f"(224, 224, 3). Received: input_shape={shape!r}"
        )
    height, width, channels = shape
    is_first = isinstance(height, int) and 1 <= height <= _FEW
    if is_first and (channels is None or (isinstance(channels, int) and channels > _FEW)):
        raise ValueError(
            "`input_shape` must be (height, width, channels), with channels last. Received: "
            f"input_shape={shape}, with channels first. Use {(width, channels, height)}, and "
            "transpose the images: `numpy.moveaxis(images, 1, -1)`."
        )
    if any(size is not None and (not isinstance(size, int) or size < 1) for size in shape):
        raise ValueError(
            f"`input_shape` must contain positive integers, or None. Received: input_shape={shape}"
        )
    if channels is None:
        raise ValueError(f"The number of channels must be known. Received: input_shape={shape}")


def shape_of_images(
    input_tensor: keras.KerasTensor | None, input_shape: tuple | None, default: tuple
) -> tuple:
    """Returns (height, width, channels) of the tensor, else `input_shape`, else the default.

    Raises:
        ValueError: If the tensor is not a Keras tensor, not a batch of images, or has another shape
            than `input_shape`.
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
            "`input_tensor` must be a symbolic Keras tensor, such as `keras.Input((224, 224, 3))` "
            f"or the output of a layer. Received: {described}. To classify images, leave it out "
            "and call `model.predict(images)`."
        )


def as_pixels(
    input_tensor: keras.KerasTensor | None, shape: tuple, include_preprocessing: bool
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the input images, and the same images scaled to [-1, 1]."""
    images = keras.Input(shape) if input_tensor is None else input_tensor
    if not include_preprocessing:
        return images, images
    # Not `keras.layers.Rescaling`, which imports TensorFlow on all backends.
    return images, to_pixels(images)


def source_inputs(images: keras.KerasTensor):
    """Returns the input, or the list of inputs, from which `images` is computed."""
    sources = keras.utils.get_source_inputs(images)
    return sources[0] if len(sources) == 1 else sources


def classify(
    features: keras.KerasTensor,
    classes: int,
    *,
    distilled: keras.KerasTensor | None = None,
    representation_size: int | None = None,
    activation: str | Callable | None = None,
    bias: float | None = 0.0,
) -> keras.KerasTensor:
    """Maps features (B, D) to class scores (B, classes), in float32 under mixed precision.

    Args:
        features: (B, D).
        classes: Number of classes.
        distilled: Distillation token, (B, D), which has a separate final layer. The scores are the
            mean of the outputs of both layers, before the activation, as in DeiT.
        representation_size: Width of a tanh layer before the final layer, as in the paper's
            pre-training. None for no such layer, as in its fine-tuning.
        activation: Activation of the final layer.
        bias: Initial bias of the final layer, None for no bias. Its kernel is initialized to zeros.
    """
    x = features if representation_size is None else pre_logits(features, representation_size)
    dense = partial(
        keras.layers.Dense,
        classes,
        use_bias=bias is not None,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias or 0.0),
        dtype=full_precision(),
    )
    if distilled is None:
        return dense(activation=activation, name="predictions")(x)
    heads = [dense(name="predictions")(x), dense(name="predictions_distilled")(distilled)]
    mean = keras.layers.Average(dtype=full_precision(), name=MEAN_OF_HEADS)(heads)
    return keras.layers.Activation(activation, dtype=full_precision(), name="scores")(mean)


def replace_head(
    model: keras.Model, classes: int, classifier_activation: str | None = "softmax"
) -> keras.Model:
    """Returns the model with a new `predictions` layer of zeros instead of its head.

    The new layer also replaces the tanh layer of pre-training, as in the paper's fine-tuning
    (B.1.1). In a distilled DeiT, both final layers are replaced. All other layers are shared with
    the given model.

    Raises:
        ValueError: If `model` is not a model or has no layer `predictions`, or `classes` is not an
            integer of at least 1.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> keras_vit.replace_head(model, classes=10).output_shape
        (None, 10)
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`replace_head` takes a model. Received: {model!r}. Build it first: "
            f'`keras_vit.replace_head(keras_vit.ViT_B16(weights="imagenet"), {classes})`, or load '
            "it with `keras.models.load_model`."
        )
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"`classes` is the number of classes, at least 1. Received: {classes!r}.")
    names = [layer.name for layer in model.layers]
    if "predictions" not in names:
        raise ValueError(
            f"{model.name} has no layer `predictions` to replace. Its last layers: {names[-3:]}. "
            "To add a head to a model without one (`include_top=False`, with `pooling`), use "
            "`keras.Model(model.input, keras.layers.Dense("
            f'{classes}, activation="softmax", kernel_initializer="zeros", '
            f'name="predictions")(model.output))`.'
        )
    features = model.get_layer("pre_logits" if "pre_logits" in names else "predictions").input
    second = "predictions_distilled"
    outputs = classify(
        features,
        classes,
        distilled=model.get_layer(second).input if second in names else None,
        activation=classifier_activation,
    )
    return ClassTokenModel(model.input, outputs, name=model.name)


def pre_logits(features: keras.KerasTensor, representation_size: int) -> keras.KerasTensor:
    """Adds the tanh layer of the paper's pre-training, (B, D) to (B, representation_size)."""
    return keras.layers.Dense(
        representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
    )(features)


def full_precision() -> str | None:
    """Returns "float32" if the global policy computes in 16 bits, else None for the policy."""
    compute_dtype = keras.config.dtype_policy().compute_dtype
    return "float32" if compute_dtype in ("float16", "bfloat16") else None
