"""GELU and normalizations for training with TensorFlow, with less memory and fewer passes over it.

TensorFlow computes GELU and its gradient with two dozen operations, each a pass over the largest
tensor of a block, and stores five such tensors; for a layer normalization it stores three. Here
each operation stores only its input. On a CPU, XLA compiles GELU to one pass forward and one
backward, while oneDNN computes the products, which is faster than XLA. 16-bit numbers are computed
in float32, so they are rounded once.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@functools.cache
def compiles() -> bool:
    """Returns whether to compile with XLA: on a CPU alone.

    XLA for a GPU may be incompletely installed, and a TPU compiles everything.
    """
    return not any(
        device.device_type in ("GPU", "TPU") for device in tf.config.list_logical_devices()
    )


def compiled_gelu(x: tf.Tensor, form: str) -> tf.Tensor:
    """Computes `choice.gelu` with XLA."""
    value, slope = make_gelu_functions(form)

    @tf.custom_gradient
    def gelu(x: tf.Tensor) -> Any:
        return value(x), lambda upstream: slope(x, upstream)

    return gelu(x)


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Computes `choice.layer_norm`. `gamma` and `beta` are float32 or wider."""

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        mean, inverse, normal = standardize(x, epsilon)

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return compute_norm_gradients(upstream, (widen(x) - mean) * inverse, inverse, gamma)

        return tf.cast(normal * gamma + beta, x.dtype), gradients

    return norm(x, gamma, beta)


def group_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor,
    inverse: tf.Tensor,
    over_cells: Callable,
    over_groups: Callable,
) -> tf.Tensor:
    """Computes `choice.group_norm`. Only x is stored for the gradient.

    The gradient of x includes the dependence of the statistics on x.

    Args:
        x: (B, H, W, C).
        gamma, beta: (C,), float32 or wider, like the next two.
        mean, inverse: Mean and inverse deviation of the group of each channel, (B, 1, 1, C).
        over_cells: Function that returns the mean of each channel, (B, H, W, C) to (B, 1, 1, C).
        over_groups: Function that replaces the value of each channel by the mean of its group, (B,
            1, 1, C).
    """
    mean, inverse = tf.stop_gradient(mean), tf.stop_gradient(inverse)

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        scale = inverse * gamma

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream, centred = widen(upstream), widen(x) - mean
            to_beta, to_gamma = over_cells(upstream), over_cells(upstream * centred) * inverse
            slope, offset = (
                over_groups(to_gamma * gamma) * inverse**2,
                over_groups(to_beta * gamma) * inverse,
            )
            to_x = upstream * scale - centred * slope - offset
            cells = tf.cast(tf.shape(x)[1] * tf.shape(x)[2], upstream.dtype)
            to_gamma, to_beta = (
                cells * tf.reduce_sum(each, (0, 1, 2)) for each in (to_gamma, to_beta)
            )
            return tf.cast(to_x, x.dtype), to_gamma, to_beta

        return tf.cast(widen(x) * scale + (beta - mean * scale), x.dtype), gradients

    return norm(x, gamma, beta)


is_in_graph = tf.is_symbolic_tensor
squared_difference = tf.math.squared_difference


def standardize(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns mean and inverse deviation of the last axis, (..., 1), and the standardized x.

    All are float32 or wider.
    """
    values = tf.cast(x, wide_dtype(x))
    mean = tf.reduce_mean(values, -1, keepdims=True)
    variance = tf.reduce_mean(squared_difference(values, mean), -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return mean, inverse, (values - mean) * inverse


def compute_norm_gradients(
    upstream: tf.Tensor, normal: tf.Tensor, inverse: tf.Tensor, gamma: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of x, gamma and beta of a layer normalization.

    `upstream` is the gradient of its result, `normal` the standardized x.
    """
    dtype, upstream = upstream.dtype, widen(upstream)
    inner = upstream * gamma
    mean, slope = (
        tf.reduce_mean(inner, -1, keepdims=True),
        tf.reduce_mean(inner * normal, -1, keepdims=True),
    )
    along = list(range(upstream.shape.rank - 1))
    to_x = tf.cast(inverse * (inner - mean - normal * slope), dtype)
    return to_x, tf.reduce_sum(upstream * normal, along), tf.reduce_sum(upstream, along)


@functools.cache
def make_gelu_functions(form: str) -> tuple[Callable, Callable]:
    """Returns compiled functions x -> gelu(x) and (x, upstream) -> upstream * gelu'(x).

    They are cached, so that all layers share them.
    """
    derivative = {"tanh": _tanh_derivative, "exact": _exact_derivative}[form]
    compiler = functools.partial(
        tf.function, jit_compile=True, reduce_retracing=True, autograph=False
    )

    @compiler
    def value(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.nn.gelu(widen(x), approximate=form == "tanh"), x.dtype)

    @compiler
    def slope(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        return tf.cast(widen(upstream) * derivative(widen(x)), x.dtype)

    return value, slope


def widen(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, wide_dtype(x))


def wide_dtype(x: tf.Tensor) -> tf.DType:
    """Returns the dtype for sums over tensors of this dtype: float32 or wider."""
    return tf.float32 if x.dtype.size < 4 else x.dtype


def map_in_turn(compute: Callable, parts: Iterable[Sequence[tf.Tensor]]) -> list:
    """Returns [compute(*part) for each part], computed sequentially.

    In parallel, as TensorFlow would compute them, they would need more memory.
    """
    results = []
    for first, *others in parts:
        first = order_after(tf.nest.flatten(results[-1])[0], first) if results else first
        results.append(compute(first, *others))
    return results


def order_after(earlier: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns x, but not before `earlier` is computed.

    Without this order, TensorFlow would merge a recomputation with the first computation.
    """
    with tf.control_dependencies([earlier]):
        return tf.identity(x)


def _tanh_derivative(x: tf.Tensor) -> tf.Tensor:
    tanh = tf.tanh(_SLOPE * x * (1 + _CUBIC * x * x))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * _SLOPE * (1 + 3 * _CUBIC * x * x)


def _exact_derivative(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * (1 + tf.math.erf(x * math.sqrt(0.5))) + x * tf.exp(-0.5 * x * x) / math.sqrt(
        2 * math.pi
    )
