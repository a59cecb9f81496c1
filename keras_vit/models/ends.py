"""The two ends that all models share: where images come in, and the classification head.

Source: arXiv:2010.11929, sections 3.1, 3.2 and B.1.1; keras-team/keras, keras/src/applications (checks of the input).
"""

from collections.abc import Callable

import keras


def check_input_shape(shape: tuple, is_pretrained: bool) -> None:
    """Raises ValueError if `shape` is not (height, width, channels) of images; trained weights expect 3 channels."""
    if len(shape) != 3:
        raise ValueError(f"`input_shape` must be a tuple of three integers. Received: input_shape={shape}")
    height, width, channels = shape
    if any(size is not None and (not isinstance(size, int) or size < 1) for size in shape):
        raise ValueError(f"`input_shape` must hold positive integers, or None. Received: input_shape={shape}")
    if channels is None:
        raise ValueError(f"The number of channels must be known. Received: input_shape={shape}")
    if is_pretrained and channels != 3:
        raise ValueError(f"The input must have 3 channels; Received `input_shape={shape}`")


def shape_of_images(
    input_tensor: keras.KerasTensor | None, input_shape: tuple | None, default: tuple, *, is_pretrained: bool
) -> tuple:
    """Returns (height, width, channels): that of the tensor, or the one asked for, or the default.

    Raises:
        ValueError: If the tensor is no batch of images, or of another shape than the one asked for.
    """
    if input_tensor is not None and keras.backend.is_keras_tensor(input_tensor):
        shape = tuple(input_tensor.shape[1:])
        if len(shape) != 3 or (input_shape is not None and tuple(input_shape) != shape):
            raise ValueError(
                "`input_tensor` must be a batch of images, (batch, height, width, channels), and agree with "
                f"`input_shape`. Received: a tensor of shape {tuple(input_tensor.shape)}, input_shape={input_shape}"
            )
        check_input_shape(shape, is_pretrained)
        return shape
    return default if input_shape is None else tuple(input_shape)


def as_pixels(
    input_tensor: keras.KerasTensor | None, shape: tuple, include_preprocessing: bool
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the images as given, and as pixels in [-1, 1]."""
    if input_tensor is None:
        images = keras.Input(shape)
    elif keras.backend.is_keras_tensor(input_tensor):
        images = input_tensor
    else:
        images = keras.Input(shape, tensor=input_tensor)
    if not include_preprocessing:
        return images, images
    # Not `keras.layers.Rescaling`: it imports TensorFlow whatever the backend.
    return images, keras.ops.subtract(keras.ops.divide(images, 127.5), 1.0)


def source_inputs(images: keras.KerasTensor):
    """The input, or inputs, that `images` was computed from; `images` itself where it is an input."""
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


def pre_logits(features: keras.KerasTensor, representation_size: int) -> keras.KerasTensor:
    """The tanh layer of the paper's pre-training head, (B, D) to (B, representation_size)."""
    return keras.layers.Dense(
        representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
    )(features)


def full_precision() -> str | None:
    """float32 where the global policy computes in 16 bits, else the policy itself."""
    compute_dtype = keras.config.dtype_policy().compute_dtype
    return "float32" if compute_dtype in ("float16", "bfloat16") else None
