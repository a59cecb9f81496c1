import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import LayerNorm


def _witness(x, gamma, beta, epsilon):
    x = x.astype("float64")
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


def _layer(epsilon: float, width: int, **options) -> LayerNorm:
    layer = LayerNorm(epsilon, **options)
    layer.build((None, 5, width))
    rng = np.random.default_rng(1)
    layer.gamma.assign(rng.normal(1, 0.3, width))
    layer.beta.assign(rng.normal(0, 0.3, width))
    return layer


def test_norm_keeps_the_layer_contract(tmp_path):
    check_layer(lambda **k: LayerNorm(1e-6, **k), (2, 5, 8), output_shape=(2, 5, 8), num_weights=2, tmp_path=tmp_path)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("offset", [0, 1000])
def test_norm_is_what_its_formula_says(training, offset):
    layer = _layer(1e-6, 16)
    x = (np.random.default_rng(0).normal(size=(3, 5, 16)) + offset).astype("float32")
    found = keras.ops.convert_to_numpy(layer(x, training=training))
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    np.testing.assert_allclose(found, _witness(x, gamma, beta, 1e-6), atol=1e-6 + 1e-6 * offset)


def test_epsilon_is_in_the_square_root():
    x = np.array([[1e-3, -1e-3]], "float32")
    expected = 1e-3 / np.sqrt(1e-6 + 1e-6)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(LayerNorm(1e-6)(x)), [[expected, -expected]], rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_16_bits_are_taken_in_32(training):
    """The sum of 1024 numbers around 30 has no place in the 8 digits of bfloat16."""
    layer = _layer(1e-6, 1024, dtype="mixed_bfloat16")
    x = keras.ops.cast(np.random.default_rng(0).normal(30, 1, (4, 1024)), "bfloat16")
    found = layer(x, training=training)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    expected = _witness(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")), gamma, beta, 1e-6)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")), expected, rtol=2**-8, atol=1e-5
    )


@pytest.mark.tensorflow
def test_the_gradient_in_training_is_that_of_the_formula():
    import tensorflow as tf

    layer = _layer(1e-6, 16)
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 16)).astype("float32"))
    found = []
    for training in (False, True):  # the first is TensorFlow's own
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(3 * layer(x, training=training)))
        found.append(tape.gradient(loss, [x, layer.gamma.value, layer.beta.value]))
    for own, ours in zip(*found, strict=True):
        np.testing.assert_allclose(own, ours, atol=2e-5)
        assert np.abs(own).max() > 0.1
