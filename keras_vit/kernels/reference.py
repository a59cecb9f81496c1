"""Norms, GELU and softmax in `keras.ops`, for any backend.

Source: GELU: arXiv:1606.08415; layer normalization: arXiv:1607.06450; group normalization:
    arXiv:1803.08494.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

_SCALE = math.sqrt(2 / math.pi)


def gelu(x: Any, form: str) -> Any:
    """See `choice.gelu`."""
    # TensorFlow 2.21 fuses product, bias and GELU only if the name "gelu" sorts after the name of
    # the product.
    with keras.name_scope("gelu"):
        return keras.activations.gelu(x, approximate=form == "tanh")


def quick_gelu(x: Any) -> Any:
    """Computes x * sigmoid(1.702 x), the form of OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


def reproducible_tanh_gelu(x: Any) -> Any:
    """Computes the tanh form without a power or a product of three factors.

    TensorFlow's graph optimizer would rewrite these, and change the rounding.
    """
    inner = x * (_SCALE + 0.044715 * _SCALE * ops.square(x))
    return x * (0.5 + 0.5 * ops.tanh(inner))


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """See `choice.layer_norm`."""
    return ops.layer_normalization(x, gamma, beta, -1, epsilon)


def softmax(logits: Any) -> Any:
    """Computes the softmax over the last axis.

    For a single key the result is 1 and its gradient 0; it is computed without Keras's softmax,
    which would print a warning.
    """
    return logits - logits + 1.0 if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def group_statistics(
    x: Any, groups: int, epsilon: float, squared_difference: Callable
) -> tuple[Any, Any]:
    """Returns mean and inverse deviation of the group of each channel, (B, 1, 1, C) each.

    They are computed per channel first, then per group, so that memory is read sequentially.
    Keras's layer takes 1.1 to 3.5 times as long on a CPU.
    """
    means = mean_of_cells(x)  # per channel
    mean = over_groups(means, groups)
    inside = mean_of_cells(squared_difference(x, means))
    return mean, ops.rsqrt(over_groups(inside + ops.square(means - mean), groups) + epsilon)


def mean_of_cells(x: Any) -> Any:
    """Returns the mean of each channel, (B, H, W, C) to (B, 1, 1, C).

    It is computed by rows first: TensorFlow adds float32 numbers one by one, which loses digits for
    many cells.
    """
    return ops.mean(ops.mean(x, 2, keepdims=True), 1, keepdims=True)


def over_groups(means: Any, groups: int) -> Any:
    """Replaces the value of each channel by the mean of its group, (B, 1, 1, C)."""
    channels = means.shape[-1]
    size = channels // groups
    of_groups = ops.mean(ops.reshape(means, (-1, groups, size)), -1, keepdims=True)
    return ops.reshape(ops.tile(of_groups, (1, 1, size)), (-1, 1, 1, channels))


def squared_difference(x: Any, y: Any) -> Any:
    """Computes (x - y) ** 2. On TensorFlow an operation without a temporary tensor replaces it."""
    return ops.square(x - y)
