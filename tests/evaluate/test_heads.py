"""How a classifier ends: told by its graph, or by the names of its classes."""

import keras
import numpy as np
import pytest

from keras_vit import application
from keras_vit.evaluate.accuracy import log_probabilities
from keras_vit.evaluate.heads import gives_classes, last_activation, outputs_of, why_no_classes


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


@pytest.mark.parametrize(
    "norm",
    [
        keras.layers.LayerNormalization,  # ConvNeXt
        keras.layers.BatchNormalization,
        keras.layers.UnitNormalization,
    ],
)
def test_a_normalization_gives_features(norm):
    assert not gives_classes(convolutional(norm()))
    assert gives_classes(convolutional(norm(), keras.layers.Dense(5)))


def test_the_tanh_layer_of_pre_training_gives_features(tiny_vit):
    options = {"weights": None, "input_shape": (32, 32, 3), "representation_size": 6}
    trunk = application(tiny_vit)(include_top=False, pooling="token", **options)
    assert trunk.output_shape == (None, 6) and not gives_classes(trunk)


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
        lambda: keras.ops.log_softmax,
        lambda: keras.layers.Activation("log_softmax"),
        lambda: keras.layers.Dense(5, "log_softmax"),
    ],
    ids=["operation", "activation", "dense"],
)
def test_a_log_softmax_counts_as_logits(end):
    model = ending_in(keras.layers.Flatten(), keras.layers.Dense(5), end())
    assert last_activation(model) == "log_softmax"
    logits = np.random.default_rng(0).normal(size=(3, 5))
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(log_probabilities(model, expected), expected, rtol=1e-12)


class Ending(keras.Model):
    """A model without a graph, of which nothing tells how it ends."""

    def __init__(self, end):
        super().__init__()
        self.head, self.end = keras.layers.Dense(5), end

    def call(self, x):
        return self.end(self.head(keras.ops.mean(x, axis=(1, 2))))


def mean_of_two(activation: str | None, dtype: str = "float32") -> keras.Model:
    images = keras.Input((None, None, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    heads = [keras.layers.Dense(5, activation, dtype=dtype)(pooled) for _ in range(2)]
    return keras.Model(images, keras.layers.Average()(heads))


ENDS = {"softmax": keras.ops.softmax, "sigmoid": keras.ops.sigmoid, "logits": keras.ops.copy}


@pytest.mark.parametrize("kind", ENDS)
def test_what_a_model_outputs_is_known_without_a_graph(kind: str):
    assert outputs_of(ending_in(Ending(ENDS[kind]))) == kind
    assert outputs_of(mean_of_two(None if kind == "logits" else kind)) == kind


def test_a_head_of_zeros_gives_logits():
    model = mean_of_two(None)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    assert outputs_of(model) == "logits"


def test_probabilities_of_a_mean_are_scores_as_they_are():
    given = np.array([[0.2, 0.8, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        np.exp(log_probabilities(mean_of_two("softmax"), given)), given, atol=1e-12
    )


def test_probabilities_in_sixteen_bits_add_up_to_one_within_their_rounding():
    for dtype in ("bfloat16", "float16"):
        assert outputs_of(mean_of_two("softmax", dtype)) == "softmax"


def test_the_classes_of_imagenet_21k_have_a_sigmoid_each_and_others_are_refused():
    classes = keras.layers.Dense(21843)
    model = ending_in(keras.layers.GlobalAveragePooling2D(), classes)
    assert outputs_of(model) == "sigmoid logits"
    logits = np.random.default_rng(0).normal(size=(2, 21843))
    np.testing.assert_allclose(
        np.exp(log_probabilities(model, logits)), 1 / (1 + np.exp(-logits)), rtol=1e-12
    )
    with pytest.raises(ValueError, match="ends in relu. Build it with"):
        outputs_of(ending_in(keras.layers.Flatten(), keras.layers.Dense(5, "relu")))
