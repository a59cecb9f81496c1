"""Which pixels a model takes, for models as users build them; Keras's own `evaluate` is the witness."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pixels import scales_pixels

pytestmark = pytest.mark.tensorflow  # Keras's Rescaling needs it, on any backend

SHAPE = (32, 32, 3)
rescaling = keras.layers.Rescaling


def behind_nothing(layer: keras.layers.Layer) -> keras.Model:
    images = keras.Input(SHAPE)
    return keras.Model(images, layer(images))


def normalization(mean, variance, **options):
    return keras.layers.Normalization(mean=mean, variance=variance, **options)


def behind(*first: keras.layers.Layer) -> keras.Model:
    """A functional model: these layers, then some that see the pixels."""
    images = x = keras.Input(SHAPE)
    for layer in first:
        x = layer(x)
    x = keras.layers.Conv2D(4, 8, 8)(x)
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def trunk(tiny_vit, **options) -> keras.Model:
    return keras_vit.application(tiny_vit)(
        weights=None, input_shape=SHAPE, classes=10, classifier_activation=None, **options
    )


LEVELS = {
    "to 0 and 1": lambda: behind(rescaling(1 / 255)),
    "to -1 and 1": lambda: behind(rescaling(1 / 127.5, offset=-1)),
    "each channel": lambda: behind(rescaling([1 / 58, 1 / 57, 1 / 57], offset=[-2.1, -2.0, -1.8])),
    "mean and variance": lambda: behind(normalization([123.7, 116.3, 103.5], [3409.0, 3262.0, 3291.0])),
    "augmented before": lambda: behind(keras.layers.RandomFlip(), keras.layers.Resizing(32, 32), rescaling(1 / 255)),
    "augmented by a model": lambda: behind(keras.Sequential([keras.layers.RandomFlip()]), rescaling(1 / 255)),
    "nested twice": lambda: behind(keras.Sequential([keras.Input(SHAPE), behind_nothing(rescaling(1 / 255))])),
    "scaled, then shifted": lambda: behind(rescaling(1 / 255), normalization([0.5] * 3, [0.25] * 3)),
    "arithmetic": lambda: keras.applications.MobileNetV3Small(weights=None, input_shape=SHAPE, classes=10),
}
CENTRED = {
    "nothing": lambda: behind(),
    "augmented": lambda: behind(keras.layers.RandomFlip(), keras.layers.ZeroPadding2D(4)),
    "as they are": lambda: behind(rescaling(1.0)),
    "back to levels": lambda: behind(rescaling(127.5, offset=127.5)),
    "to 0 and 1": lambda: behind(rescaling(0.5, offset=0.5)),
}
UNKNOWN = {
    "of 0 and 1": lambda: behind(rescaling(2.0, offset=-1.0)),
    "from 0 and 1 to levels": lambda: behind(rescaling(255.0)),
    "means of 0 and 1": lambda: behind(normalization([0.485, 0.456, 0.406], [0.05, 0.05, 0.05])),
    "anything": lambda: behind(keras.layers.Lambda(lambda x: x / 255.0)),
    "nested": lambda: behind(behind_nothing(rescaling(2.0, offset=-1.0))),
    "never adapted": lambda: behind(keras.layers.Normalization()),
}


@pytest.mark.parametrize("name", LEVELS)
def test_models_that_scale_pixels(name: str):
    assert scales_pixels(LEVELS[name]())


@pytest.mark.parametrize("name", CENTRED)
def test_models_that_take_them_as_ours_do(name: str):
    assert not scales_pixels(CENTRED[name]())


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_said(name: str):
    with pytest.raises(ValueError, match="cannot be known. Begin it with|has never seen data: call its `adapt`"):
        scales_pixels(UNKNOWN[name]())


def test_ours(tiny_vit):
    assert not scales_pixels(trunk(tiny_vit))
    assert scales_pixels(trunk(tiny_vit, include_preprocessing=True))


def builds(tiny_vit) -> dict[str, keras.Model]:
    """Models as users build them around ours, which take pixels from 0 to 255."""
    images = keras.Input(SHAPE)
    in_front = keras.Model(images, trunk(tiny_vit)(rescaling(1 / 127.5, offset=-1)(images)))
    sequential = keras.Sequential([keras.Input(SHAPE), rescaling(1 / 127.5, offset=-1), trunk(tiny_vit)])
    return {
        "in front": in_front,
        "sequential": keras.Model(sequential.inputs[0], sequential.outputs[0]),
        "twice": keras.Model(images, keras.layers.Softmax()(in_front(images))),
        "ours": trunk(tiny_vit, include_preprocessing=True),
    }


@pytest.mark.parametrize("name", ["in front", "sequential", "twice", "ours"])
def test_evaluations_equal_those_of_keras(tiny_vit, name: str):
    from keras_vit.data import sources
    from keras_vit.evaluate.accuracy import accuracy

    model = builds(tiny_vit)[name]
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.3 + variable.path.endswith("gamma"))
    pixels = rng.integers(0, 256, (60, *SHAPE), np.uint8) // rng.integers(1, 9, (60, 1, 1, 1), np.uint8)
    labels = np.argmax(model.predict(pixels.astype("float32"), verbose=0), axis=1)
    labels[::3] = (labels[::3] + 1) % 10  # two thirds are right
    model.compile(metrics=["accuracy"], loss=keras.losses.SparseCategoricalCrossentropy(from_logits=name != "twice"))
    expected = model.evaluate(pixels.astype("float32"), labels, verbose=0, return_dict=True)
    source = sources.arrays(pixels, labels, class_names=[f"class {i}" for i in range(10)])
    found = accuracy(model, source)
    assert found["top1"] == pytest.approx(expected["accuracy"]) == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
