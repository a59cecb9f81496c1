"""The two ends that all models share: where images come in, and the classification head.

Source: arXiv:2010.11929, sections 3.1, 3.2 and B.1.1.
"""

from collections.abc import Callable

import keras


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
