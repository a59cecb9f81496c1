"""Matrix products that recompute their inputs for the gradient instead of storing them.

The recomputed operation before the product is a layer normalization, GELU, or the probabilities of
an attention. All three are cheap compared with the product. Weights may be wider than tokens: they
are cast for each product.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.kernels.tensorflow.training import (
    compute_norm_gradients,
    make_gelu_functions,
    map_in_turn,
    order_after,
    standardize,
    widen,
)

# Size of the logits of a part of a batch, in numbers: 8 MB in float32.
_PART_SIZE = 2**21


def norm_products(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, weights: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Computes norm(x) @ kernel + bias for each kernel and bias in `weights`, (M, D) to (M, F).

    Only x is stored for the gradient.
    """

    @tf.custom_gradient
    def products(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *weights: tf.Tensor) -> Any:
        kernels, biases = weights[::2], weights[1::2]
        mean, inverse, normal = standardize(x, epsilon)
        tokens = tf.cast(normal * gamma + beta, x.dtype)

        def gradients(*upstream: tf.Tensor) -> tuple:
            normal = (widen(order_after(upstream[0], x)) - mean) * inverse
            tokens = tf.cast(normal * gamma + beta, x.dtype)
            narrow = [tf.cast(order_after(upstream[0], kernel), x.dtype) for kernel in kernels]
            to_tokens = tf.add_n(
                [tf.matmul(u, k, transpose_b=True) for u, k in zip(upstream, narrow, strict=True)]
            )
            to_weights = []
            for u, kernel, bias in zip(upstream, kernels, biases, strict=True):
                to_weights += [
                    tf.cast(tf.matmul(tokens, u, transpose_a=True), kernel.dtype),
                    _compute_bias_gradient(u, bias),
                ]
            return *compute_norm_gradients(to_tokens, normal, inverse, gamma), *to_weights

        return [
            _multiply(tokens, kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)
        ], gradients

    return products(x, gamma, beta, *weights)


def gelu_product(x: tf.Tensor, form: str, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Computes gelu(x) @ kernel + bias, (M, F) to (M, D). Only x is stored for the gradient."""
    value, slope = make_gelu_functions(form)

    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            to_x = tf.matmul(
                upstream, tf.cast(order_after(upstream, kernel), x.dtype), transpose_b=True
            )
            to_kernel = tf.matmul(value(order_after(upstream, x)), upstream, transpose_a=True)
            return (
                slope(x, to_x),
                tf.cast(to_kernel, kernel.dtype),
                _compute_bias_gradient(upstream, bias),
            )

        return _multiply(value(x), kernel, bias), gradients

    return product(x, kernel, bias)


def attention_product(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    query_chunk: int | None = None,
) -> tf.Tensor:
    """Computes attention and its output projection.

    Queries, keys, values and the outputs of the heads are stored for the gradient.

    Args:
        queries: (B, A, N, K), scaled.
        keys: (B, A, N, K).
        values: (B, A, N, K).
        kernel: (A * K, D).
        bias: (D,).
        query_chunk: Number of queries per chunk. None: all queries, of a part of the images.

    Returns:
        (B * N, D).
    """

    @tf.custom_gradient
    def product(
        queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
    ) -> Any:
        parts = map_in_turn(_attend, _split_parts(query_chunk, [queries], [keys, values]))
        heads_BNAK = tf.transpose(tf.concat(parts, 2 if query_chunk else 0), (0, 2, 1, 3))
        rows = tf.reshape(heads_BNAK, (-1, kernel.shape[0]))

        def gradients(upstream: tf.Tensor) -> tuple:
            to_rows = tf.matmul(
                upstream, tf.cast(order_after(upstream, kernel), rows.dtype), transpose_b=True
            )
            to_kernel = tf.cast(tf.matmul(rows, upstream, transpose_a=True), kernel.dtype)
            # The sum over keys of probability times gradient equals a sum over the head dimension:
            # arXiv:2205.14135, B.2.
            sums = tf.reduce_sum(
                tf.reshape(widen(to_rows) * widen(rows), tf.shape(heads_BNAK)), -1, keepdims=True
            )
            to_heads, sums = (
                tf.transpose(x, (0, 2, 1, 3))
                for x in (tf.reshape(to_rows, tf.shape(heads_BNAK)), sums)
            )
            by_query = [order_after(upstream, queries), to_heads, sums]
            found = map_in_turn(
                _compute_attention_gradients, _split_parts(query_chunk, by_query, [keys, values])
            )
            to_queries, to_keys, to_values = zip(*found, strict=True)
            if query_chunk:
                to_all = [tf.concat(to_queries, 2), tf.add_n(to_keys), tf.add_n(to_values)]
            else:
                to_all = [tf.concat(parts, 0) for parts in (to_queries, to_keys, to_values)]
            return *to_all, to_kernel, _compute_bias_gradient(upstream, bias)

        return _multiply(rows, kernel, bias), gradients

    return product(queries, keys, values, kernel, bias)


def _split_parts(
    query_chunk: int | None, by_query: Sequence[tf.Tensor], by_key: Sequence[tf.Tensor]
) -> Iterator[tuple[tf.Tensor, ...]]:
    """Splits tensors into chunks of queries, or into parts of the batch if its size is known.

    Splitting the first axis makes no copies.
    """
    batch, num_heads, length, _ = by_query[0].shape
    if query_chunk and length:
        sizes = [min(query_chunk, length - start) for start in range(0, length, query_chunk)]
        return (
            (*parts, *by_key)
            for parts in zip(*(tf.split(x, sizes, 2) for x in by_query), strict=True)
        )
    count = 1
    if batch and num_heads and length:
        wanted = batch * num_heads * length**2 / _PART_SIZE
        count = next((n for n in range(1, batch + 1) if batch % n == 0 and n >= wanted), batch)
    return zip(*(tf.split(x, count) for x in (*by_query, *by_key)), strict=True)


def _attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    scores = tf.nn.softmax(widen(tf.matmul(queries, keys, transpose_b=True)))
    return tf.matmul(tf.cast(scores, values.dtype), values)


def _compute_attention_gradients(
    queries: tf.Tensor, upstream: tf.Tensor, sums: tf.Tensor, keys: tf.Tensor, values: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of queries, keys and values.

    `upstream` is the gradient of softmax(queries keys^T) values, `sums` the sum of upstream times
    the outputs of the heads, (B, A, N, 1).
    """
    scores = tf.nn.softmax(widen(tf.matmul(queries, keys, transpose_b=True)))
    to_values = tf.matmul(tf.cast(scores, values.dtype), upstream, transpose_a=True)
    to_logits = tf.cast(
        scores * (widen(tf.matmul(upstream, values, transpose_b=True)) - sums), values.dtype
    )
    return tf.matmul(to_logits, keys), tf.matmul(to_logits, queries, transpose_a=True), to_values


def _multiply(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, tf.cast(kernel, x.dtype)), tf.cast(bias, x.dtype))


def _compute_bias_gradient(upstream: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=upstream), bias.dtype)
