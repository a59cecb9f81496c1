"""How a classifier ends: told by its graph, or by the names of its classes."""

import keras
import numpy as np
import pytest

from keras_vit.evaluate.accuracy import log_probabilities
from keras_vit.evaluate.heads import gives_classes, last_activation, why_no_classes


def ending_in(*steps) -> keras.Model:
    images = x = keras.Input((8, 8, 3))
    for step in steps:
        x = step(x)
    return keras.Model(images, x)


def convolutional(*more) -> keras.Model:
    return ending_in(keras.layers.Conv2D(5, 1), keras.layers.GlobalAveragePooling2D(), *more)


def test_a_pooling_gives_features_unless_their_number_is_that_of_the_names():
    model = convolutional()
    assert not gives_classes(model) and not gives_classes(model, 4)
    assert gives_classes(model, 5)


@pytest.mark.parametrize("softmax", [keras.layers.Softmax(), keras.ops.softmax])
def test_a_softmax_behind_a_pooling_gives_classes(softmax):
    assert gives_classes(convolutional(softmax))
    assert not gives_classes(convolutional(keras.layers.ReLU()))


def test_a_map_of_one_place_is_to_be_flattened():
    model = ending_in(keras.layers.Conv2D(5, 8))
    assert not gives_classes(model, 5)
    assert (
        "(None, 1, 1, 5). Expected (None, classes). Save the model with `keras.layers.Flatten()`"
        in (why_no_classes(model))
    )
    assert "has no head" in why_no_classes(convolutional())


@pytest.mark.parametrize(
    "end",
    [
        keras.ops.log_softmax,
        keras.layers.Activation("log_softmax"),
        keras.layers.Dense(5, "log_softmax"),
    ],
)
def test_a_log_softmax_counts_as_logits(end):
    model = ending_in(keras.layers.Flatten(), keras.layers.Dense(5), end)
    assert last_activation(model) == "log_softmax"
    logits = np.random.default_rng(0).normal(size=(3, 5))
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(log_probabilities(model, expected), expected, rtol=1e-12)
