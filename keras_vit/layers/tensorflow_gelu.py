"""GELU for training with TensorFlow on processors: two small functions that XLA compiles, and nothing else.

TensorFlow computes GELU and its gradient in about two dozen operations, each a pass over the largest tensor of a block,
and keeps five such tensors for the gradient. A function of one pass each leaves the products to oneDNN, which beats XLA
at them, and keeps one tensor. 16-bit numbers are widened inside, so they are rounded once.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@functools.cache
def compiles() -> bool:
    """Whether this is a processor. On accelerators the whole step is compiled, or a GPU's XLA may be incomplete."""
    return not any(device.device_type in ("GPU", "TPU") for device in tf.config.list_logical_devices())


def compiled(x: tf.Tensor, form: str) -> tf.Tensor:
    """See `keras_vit.layers.gelu.gelu`."""
    value, slope = _functions(form)

    @tf.custom_gradient
    def gelu(x: tf.Tensor) -> Any:
        return value(x), lambda upstream: slope(x, upstream)

    return gelu(x)


@functools.cache
def _functions(form: str) -> tuple[Callable, Callable]:
    """(x -> gelu(x), (x, upstream) -> upstream * gelu'(x)), compiled; once, so that all layers share them."""
    derivative = {"tanh": _tanh_derivative, "exact": _exact_derivative}[form]
    compiler = functools.partial(tf.function, jit_compile=True, reduce_retracing=True)

    @compiler
    def value(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.nn.gelu(_wide(x), approximate=form == "tanh"), x.dtype)

    @compiler
    def slope(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        return tf.cast(_wide(upstream) * derivative(_wide(x)), x.dtype)

    return value, slope


def _wide(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def _tanh_derivative(x: tf.Tensor) -> tf.Tensor:
    tanh = tf.tanh(_SLOPE * x * (1 + _CUBIC * x * x))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * _SLOPE * (1 + 3 * _CUBIC * x * x)


def _exact_derivative(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * (1 + tf.math.erf(x * math.sqrt(0.5))) + x * tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
