import functools

import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import GroupNorm, LayerNorm


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
    check_layer(
        lambda **k: LayerNorm(1e-6, **k),
        (2, 5, 8),
        output_shape=(2, 5, 8),
        num_weights=2,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("offset", [0, 1000])
def test_norm_is_what_its_formula_says(training, offset):
    layer = _layer(1e-6, 16)
    x = (np.random.default_rng(0).normal(size=(3, 5, 16)) + offset).astype("float32")
    found = keras.ops.convert_to_numpy(layer(x, training=training))
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    np.testing.assert_allclose(found, _witness(x, gamma, beta, 1e-6), atol=1e-6 + 1e-6 * offset)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_epsilon_is_in_the_square_root(epsilon, training):
    x = np.array([[1e-3, -1e-3]], "float32")
    expected = 1e-3 / np.sqrt(1e-6 + epsilon)
    found = keras.ops.convert_to_numpy(LayerNorm(epsilon)(x, training=training))
    np.testing.assert_allclose(found, [[expected, -expected]], rtol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("epsilon", [0, -1e-6, 1.5, float("nan"), "1e-6", None])
def test_an_epsilon_must_be_a_small_number_above_0(epsilon):
    for make in (LayerNorm, functools.partial(GroupNorm, 2)):
        with pytest.raises(ValueError, match=f"above 0 and at most 1. Received: {epsilon!r}"):
            make(epsilon=epsilon)


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
        keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")),
        expected,
        rtol=2**-8,
        atol=1e-5,
    )


def _check_gradient(layer: keras.layers.Layer, x, atol: float) -> None:
    """That of a call in training beside TensorFlow's own, of a call that is not."""
    import tensorflow as tf

    found = []
    for training in (False, True):  # the first is TensorFlow's own
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(3 * layer(x, training=training)))
        found.append(tape.gradient(loss, [x, layer.gamma.value, layer.beta.value]))
    for own, ours in zip(*found, strict=True):
        np.testing.assert_allclose(own, ours, atol=atol)
        assert np.abs(own).max() > 0.1


@pytest.mark.tensorflow
def test_the_gradient_in_training_is_that_of_the_formula():
    import tensorflow as tf

    layer = _layer(1e-6, 16)
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 16)).astype("float32"))
    _check_gradient(layer, x, atol=2e-5)


def _group_witness(x, groups, gamma, beta, epsilon):
    batch, height, width, channels = x.shape
    grouped = x.astype("float64").reshape(batch, height * width, groups, channels // groups)
    mean, variance = (of(grouped, axis=(1, 3), keepdims=True) for of in (np.mean, np.var))
    return gamma * ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) + beta


def _group_layer(groups: int, channels: int, **options) -> GroupNorm:
    layer = GroupNorm(groups, epsilon=1e-6, **options)
    layer.build((None, None, None, channels))
    rng = np.random.default_rng(1)
    layer.gamma.assign(rng.normal(1, 0.3, channels))
    layer.beta.assign(rng.normal(0, 0.3, channels))
    return layer


def test_group_norm_keeps_the_layer_contract(tmp_path):
    make = functools.partial(GroupNorm, 2, epsilon=1e-6)
    check_layer(make, (2, 5, 3, 8), output_shape=(2, 5, 3, 8), num_weights=2, tmp_path=tmp_path)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_group_norm_is_what_its_formula_says(training, offset, groups):
    """Channels of a group differ in mean and deviation, so that a statistic of channels alone would
    be another.
    """
    layer = _group_layer(groups, 16)
    rng = np.random.default_rng(0)
    x = (
        rng.normal(size=(3, 5, 4, 16)) * rng.uniform(0.5, 2, 16) + rng.normal(size=16) + offset
    ).astype("float32")
    found = keras.ops.convert_to_numpy(layer(x, training=training))
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    expected = _group_witness(x, groups, gamma, beta, 1e-6)
    np.testing.assert_allclose(found, expected, atol=2e-6 + 1e-6 * offset)


@pytest.mark.parametrize("training", [False, True])
def test_group_norm_of_many_cells_loses_no_digits(training):
    """Added one by one, as TensorFlow does over two axes at once, they are 5e-6 off, and 50 layers
    make 2e-4 of it.
    """
    layer = _group_layer(4, 8)
    layer.gamma.assign(np.ones(8))
    layer.beta.assign(np.zeros(8))
    x = np.random.default_rng(0).normal(5, 1, (1, 224, 224, 8)).astype("float32")
    found = keras.ops.convert_to_numpy(layer(x, training=training))
    np.testing.assert_allclose(found, _group_witness(x, 4, 1, 0, 1e-6), rtol=0, atol=2.5e-6)


def test_a_group_norm_that_starts_at_zero_gives_zero():
    layer = GroupNorm(2, epsilon=1e-6, gamma_initializer="zeros")
    assert not keras.ops.convert_to_numpy(
        layer(np.random.default_rng(0).normal(size=(1, 3, 3, 4)))
    ).any()


def test_groups_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match="3 groups, 8 channels"):
        GroupNorm(3, epsilon=1e-6).build((None, 4, 4, 8))


@pytest.mark.parametrize("training", [False, True])
def test_group_statistics_of_16_bits_are_taken_in_32(training):
    layer = _group_layer(2, 8, dtype="mixed_bfloat16")
    x = keras.ops.cast(np.random.default_rng(0).normal(30, 1, (2, 16, 16, 8)), "bfloat16")
    found = layer(x, training=training)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    expected = _group_witness(
        keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")), 2, gamma, beta, 1e-6
    )
    numbers = keras.ops.convert_to_numpy(keras.ops.cast(found, "float32"))
    np.testing.assert_allclose(numbers, expected, rtol=2**-8, atol=1e-4)


@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_of_group_norm_in_training_is_that_of_the_formula(dtype):
    import tensorflow as tf

    layer = _group_layer(4, 16, dtype=dtype)
    rng = np.random.default_rng(0)
    x = tf.constant(
        rng.normal(size=(3, 5, 4, 16)) * rng.uniform(0.5, 2, 16) + rng.normal(size=16), dtype
    )
    _check_gradient(layer, x, atol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["layer", "group"])
def test_frozen_into_constants_it_keeps_its_epsilon(kind):
    """TensorFlow 2.21 makes one operation of a norm written as x * scale + (beta - mean * scale),
    with constants, and puts in an epsilon of 0.001, whatever it was."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    shape = (3, 16) if kind == "layer" else (2, 3, 4, 16)
    layer = _layer(1e-6, 16) if kind == "layer" else _group_layer(16, 16)
    x = np.random.default_rng(0).normal(0, 1e-3, shape).astype("float32")
    gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.gamma, layer.beta))
    sine = np.sin(x)
    expected = (
        _witness(sine, gamma, beta, 1e-6)
        if kind == "layer"
        else _group_witness(sine, 16, gamma, beta, 1e-6)
    )
    traced = tf.function(lambda x: tf.tanh(layer(tf.sin(x)))).get_concrete_function(
        tf.TensorSpec(shape)
    )
    (found,) = convert_variables_to_constants_v2(traced)(tf.constant(x))
    np.testing.assert_allclose(found, np.tanh(expected), atol=1e-3)
