"""Which pixels a model takes, for models as users build them; Keras's own `evaluate` is the
witness.
"""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pixels import (
    Pixels,
    copy_declaration,
    declare,
    describe_pixels,
    find_entry,
    pixels_of,
)

pytestmark = pytest.mark.tensorflow  # Keras's Rescaling needs it, on any backend

SHAPE = (32, 32, 3)
rescaling = keras.layers.Rescaling


def behind_nothing(layer: keras.layers.Layer) -> keras.Model:
    images = keras.Input(SHAPE)
    return keras.Model(images, layer(images))


def normalization(mean, variance, **options):
    return keras.layers.Normalization(mean=mean, variance=variance, **options)


def behind(*first, dtype: str = "float32") -> keras.Model:
    """A functional model: these layers or functions, then some that see the pixels."""
    images = x = keras.Input(SHAPE, dtype=dtype)
    for layer in first:
        x = layer(x)
    x = keras.layers.Conv2D(4, 8, 8)(x)
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def trunk(tiny_vit, **options) -> keras.Model:
    return keras_vit.application(tiny_vit)(
        weights=None, input_shape=SHAPE, classes=10, classifier_activation=None, **options
    )


RANGES = {
    "to 0 and 1": ("0..255", lambda: behind(rescaling(1 / 255))),
    "to -1 and 1": ("0..255", lambda: behind(rescaling(1 / 127.5, offset=-1))),
    "by 128": ("0..255", lambda: behind(rescaling(1 / 128, offset=-1))),
    "each channel": (
        "0..255",
        lambda: behind(rescaling([1 / 58, 1 / 57, 1 / 57], offset=[-2.1, -2.0, -1.8])),
    ),
    "mean and variance": (
        "0..255",
        lambda: behind(normalization([123.7, 116.3, 103.5], [3409.0, 3262.0, 3291.0])),
    ),
    "augmented before": (
        "0..255",
        lambda: behind(
            keras.layers.RandomFlip(), keras.layers.Resizing(32, 32), rescaling(1 / 255)
        ),
    ),
    "padded before": ("0..255", lambda: behind(keras.layers.ZeroPadding2D(4), rescaling(1 / 255))),
    "augmented by a model": (
        "0..255",
        lambda: behind(keras.Sequential([keras.layers.RandomFlip()]), rescaling(1 / 255)),
    ),
    "nested twice": (
        "0..255",
        lambda: behind(keras.Sequential([keras.Input(SHAPE), behind_nothing(rescaling(1 / 255))])),
    ),
    "scaled, then shifted": (
        "0..255",
        lambda: behind(rescaling(1 / 255), normalization([0.5] * 3, [0.25] * 3)),
    ),
    "a mean taken off": ("0..255", lambda: behind(rescaling(1.0, offset=-127.5))),
    "integers": ("0..255", lambda: behind(lambda x: keras.ops.cast(x, "float32"), dtype="uint8")),
    "a Lambda": ("0..255", lambda: behind(keras.layers.Lambda(lambda x: x / 255.0))),
    "preprocess_input, caffe": (
        "0..255",
        lambda: behind(keras.applications.resnet50.preprocess_input),
    ),
    "preprocess_input, torch": (
        "0..255",
        lambda: behind(keras.applications.densenet.preprocess_input),
    ),
    "preprocess_input, tf": (
        "0..255",
        lambda: behind(keras.applications.resnet_v2.preprocess_input),
    ),
    "from 0 and 1": ("0..1", lambda: behind(rescaling(2.0, offset=-1.0))),
    "from 0 and 1 in two steps": ("0..1", lambda: behind(lambda x: x - 0.5, lambda x: x * 2.0)),
    "from 0 and 1 to levels": ("0..1", lambda: behind(rescaling(255.0), rescaling(1 / 255))),
    "from 0 and 1, nested": ("0..1", lambda: behind(behind_nothing(rescaling(2.0, offset=-1.0)))),
    "back to levels": ("-1..1", lambda: behind(rescaling(127.5, offset=127.5))),
    "from -1 and 1": ("-1..1", lambda: behind(rescaling(0.5, offset=0.5))),
}
UNKNOWN = {
    "nothing": (lambda: behind(), r"starts with Conv2D \(`conv2d"),
    "augmented": (
        lambda: behind(keras.layers.RandomFlip(), keras.layers.ZeroPadding2D(4)),
        "starts with Conv2D",
    ),
    "as they are": (lambda: behind(rescaling(1.0)), "starts with Conv2D"),
    "a dense layer": (
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
        "starts with Dense",
    ),
    "means of 0 and 1": (
        lambda: behind(normalization([0.485, 0.456, 0.406], [0.05, 0.05, 0.05])),
        r"computes \[4.4721, 4.4721, 4.4721\] \* pixel \+ \[-2.1",
    ),
    "a batch normalization": (
        lambda: behind(keras.layers.BatchNormalization()),
        "starts with BatchNormalization",
    ),
    "more than scaling": (
        lambda: behind(keras.layers.Lambda(lambda x: keras.ops.clip(x, 0, 1))),
        "does more than scale",
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_that_the_graph_tells(name: str):
    expected, build = RANGES[name]
    taken = pixels_of(build())
    assert f"{taken.low:g}..{taken.high:g}" == expected


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_said(name: str):
    build, words = UNKNOWN[name]
    model = build()
    with pytest.raises(
        ValueError,
        match=rf"{words}.* is unknown\. Pass the range of its training with --pixels=0\.\.255\|",
    ):
        pixels_of(model)


def test_a_normalization_that_never_saw_data():
    layer = keras.layers.Normalization()
    model = behind(layer)
    layer.mean = None
    with pytest.raises(ValueError, match="has no statistics: call its `adapt`"):
        pixels_of(model)


def test_branches_that_disagree():
    images = keras.Input(SHAPE)
    both = keras.layers.Concatenate()(
        [rescaling(1 / 255)(images), rescaling(2.0, offset=-1.0)(images)]
    )
    with pytest.raises(ValueError, match="in different ways at once"):
        pixels_of(keras.Model(images, keras.layers.Conv2D(2, 3)(both)))


def test_ours(tiny_vit):
    assert pixels_of(trunk(tiny_vit)).range == [-1, 1]
    assert pixels_of(trunk(tiny_vit, include_preprocessing=True)).range == [0, 255]


def test_ours_is_known_when_it_was_saved_and_when_it_is_within_another(tiny_vit, tmp_path):
    images = keras.Input(SHAPE)
    keras.Model(images, keras.layers.Softmax()(trunk(tiny_vit)(images))).save(
        tmp_path / "model.keras"
    )
    assert pixels_of(keras.models.load_model(tmp_path / "model.keras")).range == [-1, 1]


def test_ours_behind_a_scaling_that_fits_several_ranges(tiny_vit):
    images = keras.Input(SHAPE)
    with pytest.raises(ValueError, match="fits several ranges"):
        pixels_of(keras.Model(images, trunk(tiny_vit)(rescaling(1.7, offset=-0.8)(images))))


def test_a_declaration_holds_for_all_models_of_the_same_input():
    model = behind()
    declare(model, "0..1")
    features = keras.Model(model.inputs[0], model.layers[1].output)
    assert str(pixels_of(features)) == "from 0 to 1 (as declared)"
    declare(features, "0..255")
    assert pixels_of(model).range == [0, 255]
    with pytest.raises(
        ValueError, match=r"`pixels` must be one of 0\.\.255, 0\.\.1, -1\.\.1. Received: '0-1'"
    ):
        declare(model, "0-1")


def test_what_was_decided_is_a_sentence():
    model = behind(rescaling(1 / 255, name="to_one"))
    expected = f"{model.name} takes pixels from 0 to 255 (its layer `to_one` scales them), images of 32 x 48."
    assert describe_pixels(model, (32, 48)) == expected


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (0.0, 1.0), (-1.0, 1.0)])
def test_pixels_are_brought_into_a_range(low: float, high: float):
    pixels, levels = Pixels(low, high, ""), np.arange(256, dtype=np.float32)
    expected = low + levels.astype(np.float64) * (high - low) / 255
    np.testing.assert_allclose(pixels.from_levels(levels), expected, atol=1e-5 * high)
    assert pixels.from_levels(levels).dtype == np.float32


@pytest.mark.parametrize(
    ("scaling", "ends"),
    [
        (rescaling(1 / 127.5, offset=-1), (-1, 1)),
        (rescaling(1 / 255), (0, 1)),
        (keras.layers.Identity(), (-1, 1)),
    ],
)
def test_the_range_at_the_first_layer_with_weights(tiny_vit, scaling, ends):
    images = keras.Input(SHAPE)
    entry = find_entry(keras.Model(images, trunk(tiny_vit)(scaling(images))))
    assert (entry.low, entry.high) == pytest.approx(ends, abs=1e-6)
    assert entry.model.name == tiny_vit.name.lower()


def test_images_pass_a_model_that_scales_and_augments_them_alone(tiny_vit):
    images = keras.Input(SHAPE)
    inner = keras.Sequential([keras.Input(SHAPE), rescaling(1 / 127.5, offset=-1)])
    in_front = keras.Sequential([keras.Input(SHAPE), keras.layers.RandomFlip(), inner])
    entry = find_entry(keras.Model(images, trunk(tiny_vit)(in_front(images))))
    assert (entry.low, entry.high) == pytest.approx((-1, 1), abs=1e-6)
    assert entry.model.name == tiny_vit.name.lower()
    with pytest.raises(ValueError, match="has no layer that scales"):
        find_entry(keras.Model(images, keras.layers.RandomFlip()(images)))
    with pytest.raises(ValueError, match="has no layer with weights that its images reach"):
        find_entry(in_front)


def test_the_range_of_a_model_of_integers_is_measured_on_integers(tiny_vit):
    images = keras.Input(SHAPE, dtype="uint8")
    scaled = keras.ops.cast(images, "float32") / 127.5 - 1
    entry = find_entry(keras.Model(images, trunk(tiny_vit)(scaled)))
    assert (entry.low, entry.high) == pytest.approx((-1, 1), abs=1e-6)


def test_two_trunks_have_no_one_layer_that_begins_them(tiny_vit):
    images = keras.Input(SHAPE)
    trunks = [keras.layers.Conv2D(2, 8, 8), keras.layers.Conv2D(2, 8, 8)]
    scaled = rescaling(1 / 255)(images)
    with pytest.raises(ValueError, match="^2 layers of .* read its images.*Keras's `fit`"):
        find_entry(keras.Model(images, keras.layers.Add()([step(scaled) for step in trunks])))


def builds(tiny_vit) -> dict[str, keras.Model]:
    """Models as users build them around ours, which take pixels from 0 to 255."""
    images = keras.Input(SHAPE)
    in_front = keras.Model(images, trunk(tiny_vit)(rescaling(1 / 127.5, offset=-1)(images)))
    sequential = keras.Sequential(
        [keras.Input(SHAPE), rescaling(1 / 127.5, offset=-1), trunk(tiny_vit)]
    )
    return {
        "in front": in_front,
        "to 0 and 1": keras.Model(images, trunk(tiny_vit)(rescaling(1 / 255)(images))),
        "sequential": keras.Model(sequential.inputs[0], sequential.outputs[0]),
        "twice": keras.Model(images, keras.layers.Softmax()(in_front(images))),
    }


@pytest.mark.parametrize(
    "name",
    [
        "in front",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("to 0 and 1", "sequential", "twice")
        ),
    ],
)
def test_evaluations_equal_those_of_keras(tiny_vit, name: str):
    from keras_vit.data import sources
    from keras_vit.evaluate.accuracy import accuracy

    model = builds(tiny_vit)[name]
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.3 + variable.path.endswith("gamma"))
    pixels = rng.integers(0, 256, (60, *SHAPE), np.uint8) // rng.integers(
        1, 9, (60, 1, 1, 1), np.uint8
    )
    labels = np.argmax(model.predict(pixels.astype("float32"), verbose=0), axis=1)
    labels[::3] = (labels[::3] + 1) % 10  # two thirds are right
    model.compile(
        metrics=["accuracy"],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=name != "twice"),
    )
    expected = model.evaluate(pixels.astype("float32"), labels, verbose=0, return_dict=True)
    source = sources.arrays(pixels, labels, class_names=[f"class {i}" for i in range(10)])
    found = accuracy(model, source)
    assert found["top1"] == pytest.approx(expected["accuracy"]) == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_a_copy_in_another_precision_takes_the_declared_pixels():
    model = behind_nothing(keras.layers.Conv2D(4, 8, 8))
    copy = keras.models.clone_model(model)
    copy_declaration(model, copy)  # nothing is declared
    with pytest.raises(ValueError, match="pixels"):
        pixels_of(copy)
    declare(model, "0..1")
    copy_declaration(model, copy)
    assert str(pixels_of(copy)) == "from 0 to 1 (as declared)"
