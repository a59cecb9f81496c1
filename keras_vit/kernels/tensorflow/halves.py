"""The halves of an encoder block in training with TensorFlow, with less memory for the gradient.

They store the input of each half, queries, keys, values, outputs of the heads, and the hidden layer
before GELU. Normalized tokens, probabilities and GELU are recomputed for the gradient, which is
cheap compared with the products. `keras_vit.train.remat` stores even less, for a third more
compute.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_vit.kernels.tensorflow import products
from keras_vit.kernels.tensorflow.training import compiles, wide_dtype


def fits(block: Any) -> bool:
    """Returns whether these functions support a `TransformerBlock`.

    They do not support dropout within a half, relative positions, adapters, quantization, layers
    without biases, and other MLPs than two layers with a GELU in the tanh or the exact form.
    """
    if block.mlp_kind != "gelu" or block.gelu == "quick" or block.attention_bias != "all":
        return False
    attention, mlp = block.attention, block.mlp
    dense = (
        attention.query,
        attention.key,
        attention.value,
        attention.out,
        mlp.dense_0,
        mlp.dense_1,
    )
    return (
        not attention.dropout_rate
        and not mlp.dropout_rate
        and attention.relative_positions is None
        and all(type(layer) is keras.layers.Dense for layer in dense)
        and not any(layer.lora_enabled or layer.quantization_mode for layer in dense)
        and compiles()
    )


def attention(block: Any, own: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Computes the first half for `own`: all tokens x, (B, N, D), or the first one, (B, 1, D)."""
    layer = block.attention
    to_attended = (layer.key, layer.value)
    if own is x:
        queries, *attended = _multiply_normalized(
            block.attention_norm, x, layer.query, *to_attended
        )
    else:
        (queries,) = _multiply_normalized(block.attention_norm, own, layer.query)
        attended = _multiply_normalized(block.attention_norm, x, *to_attended)
    queries = _split_heads(queries * layer.head_dim**-0.5, own, layer)
    keys, values = (_split_heads(rows, x, layer) for rows in attended)
    kernel, bias = _weights(layer.out)
    rows = products.attention_product(queries, keys, values, kernel, bias, layer.query_chunk)
    return tf.reshape(rows, tf.shape(own))


def mlp(block: Any, x: tf.Tensor) -> tf.Tensor:
    """Computes the second half, (B, N, D) to (B, N, D)."""
    (hidden,) = _multiply_normalized(block.mlp_norm, x, block.mlp.dense_0)
    return tf.reshape(
        products.gelu_product(hidden, block.mlp.gelu, *_weights(block.mlp.dense_1)), tf.shape(x)
    )


def _multiply_normalized(norm: Any, x: tf.Tensor, *layers: keras.layers.Dense) -> list[tf.Tensor]:
    gamma, beta = (tf.cast(weight.value, wide_dtype(x)) for weight in (norm.gamma, norm.beta))
    weights = [weight for layer in layers for weight in _weights(layer)]
    return products.norm_products(
        tf.reshape(x, (-1, x.shape[-1])), gamma, beta, norm.epsilon, weights
    )


def _weights(layer: keras.layers.Dense) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.convert_to_tensor(layer.kernel.value), tf.convert_to_tensor(layer.bias.value)


def _split_heads(rows: tf.Tensor, x: tf.Tensor, layer: Any) -> tf.Tensor:
    """Converts rows (B * N, D) to heads (B, A, N, K)."""
    batch, length = (known or tf.shape(x)[axis] for axis, known in enumerate(x.shape[:2]))
    return tf.transpose(
        tf.reshape(rows, (batch, length, layer.num_heads, layer.head_dim)), (0, 2, 1, 3)
    )
