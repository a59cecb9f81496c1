"""GELU and layer normalization for training with TensorFlow: they keep less, and pass memory less often.

TensorFlow makes GELU and its gradient of two dozen operations, each a pass over the largest tensor of a block, and
keeps five such tensors; of a layer normalization it keeps three. Here each keeps its input. GELU is compiled by XLA
where a processor trains, one pass forward and one backward, while the products stay with oneDNN, which beats XLA at
them. 16-bit numbers are widened inside, so they are rounded once.
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
    """Whether a processor trains. A GPU's XLA may be incomplete, and for a TPU all is compiled anyway."""
    return not any(device.device_type in ("GPU", "TPU") for device in tf.config.list_logical_devices())


def compiled_gelu(x: tf.Tensor, form: str) -> tf.Tensor:
    """See `keras_vit.layers.gelu.gelu`."""
    value, slope = _gelu_functions(form)

    @tf.custom_gradient
    def gelu(x: tf.Tensor) -> Any:
        return value(x), lambda upstream: slope(x, upstream)

    return gelu(x)


def gelu_product(x: tf.Tensor, form: str, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns gelu(x) @ kernel + bias, (M, F) to (M, D), and keeps x: GELU is cheap beside the product.

    The weights may be wider than x: they are cast for each product, and no copy is kept.
    """
    value, slope = _gelu_functions(form)

    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            to_x = tf.matmul(upstream, _after(upstream, kernel, x.dtype), transpose_b=True)
            to_kernel = tf.matmul(value(_after(upstream, x, x.dtype)), upstream, transpose_a=True)
            return slope(x, to_x), tf.cast(to_kernel, kernel.dtype), _to_bias(upstream, bias)

        return _product(value(x), kernel, bias), gradients

    return product(x, kernel, bias)


def norm_products(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, weights: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns norm(x) @ kernel + bias for each kernel and bias in `weights`, (M, D) to (M, F), and keeps x."""

    def norm(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        _, inverse, normal = standardized(x, epsilon)
        return inverse, normal, tf.cast(normal * gamma + beta, x.dtype)

    @tf.custom_gradient
    def products(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *weights: tf.Tensor) -> Any:
        kernels, biases = weights[::2], weights[1::2]

        def gradients(*upstream: tf.Tensor) -> tuple:
            inverse, normal, tokens = norm(_after(upstream[0], x, x.dtype))
            narrow = [_after(upstream[0], kernel, x.dtype) for kernel in kernels]
            to_tokens = tf.add_n([tf.matmul(u, k, transpose_b=True) for u, k in zip(upstream, narrow, strict=True)])
            to_weights = []
            for u, kernel, bias in zip(upstream, kernels, biases, strict=True):
                to_weights += [tf.cast(tf.matmul(tokens, u, transpose_a=True), kernel.dtype), _to_bias(u, bias)]
            return *_through_norm(to_tokens, normal, inverse, gamma), *to_weights

        tokens = norm(x)[2]
        return [_product(tokens, kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)], gradients

    return products(x, gamma, beta, *weights)


def _product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, tf.cast(kernel, x.dtype)), tf.cast(bias, x.dtype))


def _to_bias(upstream: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=upstream), bias.dtype)


def attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """softmax(queries keys^T) values; keeps these three. (B, A, Q, K), (B, A, N, K), (B, A, N, K) to (B, A, Q, K)."""

    def probabilities(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(queries, keys, transpose_b=True)
        return tf.nn.softmax(_wide(logits))

    @tf.custom_gradient
    def attention(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            scores = probabilities(_after(upstream, queries, queries.dtype), keys)
            narrow = tf.cast(scores, values.dtype)
            to_values = tf.matmul(narrow, upstream, transpose_a=True)
            to_scores = _wide(tf.matmul(upstream, values, transpose_b=True))
            to_logits = scores * (to_scores - tf.reduce_sum(to_scores * scores, -1, keepdims=True))
            to_logits = tf.cast(to_logits, values.dtype)
            return tf.matmul(to_logits, keys), tf.matmul(to_logits, queries, transpose_a=True), to_values

        return tf.matmul(tf.cast(probabilities(queries, keys), values.dtype), values), gradients

    return attention(queries, keys, values)


def _after(first: tf.Tensor, x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """x, not before `first` is there: else TensorFlow merges what is computed again with its first computation."""
    with tf.control_dependencies([first]):
        return tf.cast(tf.identity(x), dtype)


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """See `keras_vit.layers.norm.LayerNorm`. `gamma` and `beta` are float32 or wider."""

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        mean, inverse, normal = standardized(x, epsilon)

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return _through_norm(upstream, (_wide(x) - mean) * inverse, inverse, gamma)

        return tf.cast(normal * gamma + beta, x.dtype), gradients

    return norm(x, gamma, beta)


def standardized(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns mean and inverse deviation of the last axis, (..., 1), and x standardized; in float32 or wider."""
    wide = _wide(x)
    mean = tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(wide, mean), -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return mean, inverse, (wide - mean) * inverse


def _through_norm(
    upstream: tf.Tensor, normal: tf.Tensor, inverse: tf.Tensor, gamma: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of x, gamma and beta, from that of what layer normalization gives; `normal` is x standardized."""
    dtype, upstream = upstream.dtype, _wide(upstream)
    inner = upstream * gamma
    mean, slope = tf.reduce_mean(inner, -1, keepdims=True), tf.reduce_mean(inner * normal, -1, keepdims=True)
    along = list(range(upstream.shape.rank - 1))
    to_x = tf.cast(inverse * (inner - mean - normal * slope), dtype)
    return to_x, tf.reduce_sum(upstream * normal, along), tf.reduce_sum(upstream, along)


@functools.cache
def _gelu_functions(form: str) -> tuple[Callable, Callable]:
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
