"""Models that users build and save: each is fed as it was trained, or refused with a sentence that
helps.

The witnesses are Keras's own `evaluate` and `predict`, on images as `keras.utils.load_img` reads
them.
"""

import csv
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras.src.applications import resnet

import keras_vit
from keras_vit import keras_file
from keras_vit.evaluate import classifier
from keras_vit.keras_file import load
from keras_vit.pixels import pixels_of
from keras_vit.variants import VIT_VARIANTS

pytestmark = pytest.mark.tensorflow  # Keras's Rescaling needs it, on any backend

SHAPE = (32, 32, 3)
CLASSES = ("ash", "elm", "fir", "oak")
PHOTOS_PER_CLASS = 50


@keras.saving.register_keras_serializable(package="tests")
class OfAClass(keras.Model):
    """A subclassed model, whose graph cannot be read."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scale = keras.layers.Rescaling(1 / 255)
        self.cut, self.head = keras.layers.Conv2D(4, 8, 8), keras.layers.Dense(len(CLASSES))

    def call(self, images):
        return self.head(keras.ops.mean(keras.ops.tanh(self.cut(self.scale(images))), axis=(1, 2)))


TINY = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32
)


def ours(**options) -> keras.Model:
    options = {"classes": len(CLASSES), "classifier_activation": None} | options
    return keras_vit.application(TINY)(weights=None, input_shape=SHAPE, **options)


def within(*steps) -> keras.Model:
    """A functional model of layers and models, one after the other."""
    images = x = keras.Input(SHAPE)
    for step in steps:
        x = step(x)
    return keras.Model(images, x)


def integers(*steps) -> keras.Model:
    images = x = keras.Input(SHAPE, dtype="uint8")
    for step in steps:
        x = step(x)
    return keras.Model(images, x)


def small(*first) -> keras.Model:
    return within(
        *first,
        keras.layers.Conv2D(4, 8, 8),
        keras.layers.Flatten(),
        keras.layers.Dense(len(CLASSES), "softmax"),
    )


def moved(model: keras.Model, seed: int = 0) -> keras.Model:
    """Weights that are not those of the start, so that answers differ from image to image."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.3 + variable.path.endswith("gamma"))
    return model


def saved(model: keras.Model, folder: Path) -> Path:
    model.save(folder / "model.keras")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder / "model.keras"


def two_outputs() -> keras.Model:
    images = keras.Input(SHAPE)
    x = keras.layers.Flatten()(
        keras.layers.Conv2D(4, 8, 8)(keras.layers.Rescaling(1 / 255)(images))
    )
    return keras.Model(
        images, {"label": keras.layers.Dense(4, name="label")(x), "box": keras.layers.Dense(2)(x)}
    )


def of_any_size() -> keras.Model:
    images = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 8, 8, activation="tanh")(keras.layers.Rescaling(1 / 255)(images))
    return keras.Model(
        images, keras.layers.Dense(len(CLASSES))(keras.layers.GlobalAveragePooling2D()(x))
    )


# --- what is read from a file
# ----------------------------------------------------------------------------------------


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    for build in (classifier.build, classifier.representation):
        with pytest.raises(ValueError, match=r"There is no file .*no\.keras\."):
            build(tmp_path / "no.keras")


def test_a_file_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(small(keras.layers.Rescaling(1 / 255)), tmp_path)
    assert classifier.build("~/model.keras").output_shape == (None, len(CLASSES))
    assert classifier.class_names("~/model.keras") == list(CLASSES)


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError(5, "Input/output error")])
def test_a_machine_that_fails_is_not_a_damaged_file(error, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    (tmp_path / "model.keras").touch()
    monkeypatch.setattr(keras.models, "load_model", fail)
    with pytest.raises(type(error)) as raised:
        load(tmp_path / "model.keras")
    assert raised.value is error


def test_a_damaged_file(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"no zip archive")
    with pytest.raises(ValueError, match="cannot be loaded: "):
        load(tmp_path / "model.keras")


def test_a_class_that_cannot_be_found(tmp_path, monkeypatch):
    path = saved(moved_class(), tmp_path)
    monkeypatch.delitem(keras.saving.get_custom_objects(), "tests>OfAClass")
    monkeypatch.delattr(sys.modules[__name__], "OfAClass")
    with pytest.raises(ValueError, match="import them in Python"):
        load(path)


def moved_class() -> keras.Model:
    model = OfAClass(name="of_a_class")
    model(np.zeros((1, *SHAPE), "float32"))
    return moved(model)


def test_layers_that_may_run_any_code_are_loaded_where_the_user_trusts_them(tmp_path):
    path = saved(within(keras.layers.Lambda(lambda x: x / 255), small()), tmp_path)
    with pytest.raises(ValueError, match=r"`keras.config.enable_unsafe_deserialization\(\)`"):
        load(path)
    keras.config.enable_unsafe_deserialization()
    try:
        assert pixels_of(load(path)).range == [0, 255]
    finally:
        keras.src.backend.common.global_state.set_global_attribute("safe_mode_saving", None)


def test_two_outputs_are_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"has 2 outputs: `.*`.*`label` \(None, 4\).* keras.Model\(model.inputs, "
    ):
        load(saved(two_outputs(), tmp_path))


def test_a_model_of_any_size_needs_one(tmp_path):
    path = saved(of_any_size(), tmp_path)
    with pytest.raises(ValueError, match="takes images of any size. Choose one with --image_size"):
        load(path)
    assert load(path, (32, 48)).input_shape == (None, None, None, 3)


def test_a_model_of_one_size_has_that(tmp_path):
    path = saved(small(keras.layers.Rescaling(1 / 255)), tmp_path)
    assert load(path, (32, 32)).input_shape == (None, *SHAPE)
    with pytest.raises(
        ValueError, match="was saved for images of 32 x 32 pixels.*Omit the image size"
    ):
        load(path, (64, 64))


def test_a_model_that_takes_no_images(tmp_path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"must take images \(B, H, W, C\)"):
        load(tmp_path / "model.keras")


def test_a_sequential_model_becomes_a_functional_one(tmp_path):
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Rescaling(1 / 255), small()])
    found = load(saved(model, tmp_path))
    assert pixels_of(found).range == [0, 255]
    images = np.random.default_rng(0).uniform(0, 255, (2, *SHAPE)).astype("float32")
    np.testing.assert_allclose(found(images), model(images), atol=1e-6)


def test_a_model_of_a_class_becomes_a_functional_one_whose_pixels_must_be_said(tmp_path):
    path = saved(model := moved_class(), tmp_path)
    found = load(path)
    assert found.input_shape == (None, *SHAPE)
    with pytest.raises(ValueError, match="starts with OfAClass .* --pixels="):
        pixels_of(found)
    images = np.random.default_rng(0).uniform(0, 255, (2, *SHAPE)).astype("float32")
    np.testing.assert_allclose(
        classifier.build(path, pixels="0..255")(images), model(images), atol=1e-6
    )


def test_a_model_of_any_size_has_that_of_its_preprocessor():
    images = keras.Input((None, None, 3))
    plain = keras.Model(images, keras.layers.GlobalAveragePooling2D()(images))
    converter = SimpleNamespace(image_size=(20, 30), scale=1 / 255, offset=None)
    found = keras_file._add_preprocessor(plain, SimpleNamespace(image_converter=converter))
    assert found.input_shape == (None, 20, 30, 3)


@pytest.mark.parametrize(("shape", "channels"), [((None, 32, 32, 1), 1), ((None, 32, 32, None), 3)])
def test_a_model_of_a_class_has_the_channels_it_was_built_for_or_three(
    monkeypatch, shape, channels
):
    model = OfAClass()
    monkeypatch.setattr(model, "get_build_config", lambda: {"input_shape": shape})
    found = keras_file._make_functional(model, Path("model.keras"), None)
    assert found.input_shape == (None, 32, 32, channels)


@pytest.mark.parametrize(
    ("scale", "offset"),
    [
        (1 / 127.5, -1.0),
        (1 / 255, None),
        (None, -128.0),
        (None, None),
        ([0.02, 0.02, 0.02], [-2.0, -2.1, -1.8]),
    ],
)
def test_scaling_outside_the_graph_as_kerashub_keeps_it(scale, offset):
    model = small()
    preprocessor = SimpleNamespace(
        image_converter=SimpleNamespace(scale=scale, offset=offset, image_size=(32, 32))
    )
    found = keras_file._add_preprocessor(model, preprocessor)
    assert pixels_of(found).range == [0, 255]
    levels = np.random.default_rng(0).uniform(0, 255, (2, *SHAPE)).astype("float32")
    expected = model(
        levels * np.float32(scale or 1.0 if np.ndim(scale) == 0 else scale)
        + np.float32(offset or 0.0)
    )
    np.testing.assert_allclose(found(levels), expected, atol=1e-5)


def test_a_loaded_classifier_of_kerashub_keeps_its_scaling(tmp_path, monkeypatch):
    """KerasHub's classifiers are functional models with an attribute `preprocessor`."""
    path = saved(small(), tmp_path)
    model = keras.models.load_model(path)
    converter = SimpleNamespace(scale=1 / 255, offset=None, image_size=SHAPE[:2])
    model.preprocessor = SimpleNamespace(image_converter=converter)
    monkeypatch.setattr(keras.models, "load_model", lambda path, compile: model)
    levels = np.random.default_rng(0).uniform(0, 255, (2, *SHAPE)).astype("float32")
    found = load(path)
    assert pixels_of(found).range == [0, 255]
    np.testing.assert_allclose(found(levels), model(levels / np.float32(255)), atol=1e-6)


# --- twelve models, four commands
# ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model that a user saves.

    Attributes:
        build: Makes it.
        pixels: What the user must say, or None.
        trained: Pixels from 0 to 255 to what it was trained on.
        refusal: What is said of it without `pixels`.
    """

    build: object
    pixels: str | None = None
    trained: object = staticmethod(lambda levels: levels)
    refusal: str = ""


def centred(levels):
    return levels / 127.5 - 1


def adapted() -> keras.layers.Normalization:
    layer = keras.layers.Normalization()
    layer.adapt(np.random.default_rng(0).integers(0, 256, (8, *SHAPE)).astype("float32"))
    return layer


def resnet50() -> keras.Model:
    """Keras's ResNet50 with two blocks instead of sixteen; the public function has one size."""
    model = resnet.ResNet(
        lambda x: resnet.stack_residual_blocks_v1(x, 16, 2, name="conv2"),
        preact=False,
        use_bias=True,
        name="resnet50",
        weights=None,
        input_shape=SHAPE,
        classes=len(CLASSES),
    )
    kernel = model.get_layer("predictions").kernel
    kernel.assign(0.01 * kernel)  # else the loss is that of rounding, on levels up to 255
    return model


def own_head() -> keras.Model:
    trunk = ours(include_top=False, pooling="token", classes=1000)
    x = keras.layers.Dense(8, "relu")(trunk.output)
    return keras.Model(
        trunk.input, keras.layers.Dense(len(CLASSES), "softmax")(keras.layers.Dropout(0.2)(x))
    )


def kerashub() -> keras.Model:
    hub = pytest.importorskip("keras_hub", reason="needs KerasHub: pip install keras-hub")
    backbone = hub.models.ViTBackbone(
        image_shape=SHAPE, patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16
    )
    converter = hub.layers.ViTImageConverter(image_size=SHAPE[:2], scale=1 / 127.5, offset=-1.0)
    preprocessor = hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
    return hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=len(CLASSES), preprocessor=preprocessor
    )


def exported() -> keras.Model:
    folder = Path(tempfile.mkdtemp()) / "1"
    moved(ours()).export(folder, verbose=False)
    return within(keras.layers.TFSMLayer(str(folder), call_endpoint="serve"))


def in_front() -> keras.Model:
    return within(keras.layers.Rescaling(1 / 127.5, offset=-1), ours())


CASES = {
    "own head": Case(own_head, trained=centred),
    "Rescaling in front": Case(in_front),
    "Rescaling to 0 and 1": Case(lambda: within(keras.layers.Rescaling(1 / 255), ours())),
    "Normalization": Case(lambda: small(adapted())),
    "nested twice": Case(
        lambda: within(keras.layers.RandomFlip(), in_front(), keras.layers.Softmax())
    ),
    "of a class": Case(lambda: moved_class(), "0..255", refusal="starts with OfAClass"),
    "Sequential": Case(
        lambda: keras.Sequential(
            [
                keras.Input(SHAPE),
                keras.layers.Rescaling(1 / 255),
                *small().layers[1:-1],
                keras.layers.Dense(4),
            ]
        )
    ),
    "include_preprocessing": Case(lambda: ours(include_preprocessing=True)),
    "ours": Case(lambda: ours(classifier_activation="softmax"), trained=centred),
    "fed from 0 to 1": Case(
        lambda: small(), "0..1", trained=lambda levels: levels / 255, refusal="starts with Conv2D"
    ),
    "ResNet50": Case(lambda: resnet50(), "0..255", refusal="resnet50 starts with Conv2D"),
    "ResNet50 behind its preprocess_input": Case(
        lambda: within(keras.applications.resnet50.preprocess_input, resnet50())
    ),
    "KerasHub's ViT": Case(kerashub),
    "integers": Case(
        lambda: integers(
            lambda levels: keras.ops.cast(levels, "float32") / 255, *small().layers[1:]
        )
    ),
    "convolutions to the end": Case(
        lambda: within(
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(8, 8, 8, activation="tanh"),
            keras.layers.Conv2D(len(CLASSES), 1),
            keras.layers.GlobalAveragePooling2D(),
        )
    ),
    "log_softmax": Case(
        lambda: within(
            keras.layers.Rescaling(1 / 255),
            *small().layers[1:-1],
            keras.layers.Dense(len(CLASSES), "log_softmax"),
        )
    ),
    "exported and reloaded": Case(exported, refusal="contains a Lambda layer or a TFSMLayer"),
    "two outputs": Case(lambda: two_outputs(), refusal="has 2 outputs"),
}


# Of the two ResNet50, exported and analyzed is the one that needs no more to be said.
SMALL = [name for name in CASES if name != "ResNet50"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """200 photographs in a folder for each class; a quarter are JPEG files."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(1)
    places = np.stack(np.meshgrid(*[np.linspace(0, 1, SHAPE[0])] * 2), axis=-1)
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(PHOTOS_PER_CLASS):
            waves = np.sin(places @ rng.normal(0, 9, (2, 3)) + rng.uniform(0, 6, 3)) * rng.uniform(
                20, 110
            )
            pixels = np.clip(waves + rng.uniform(30, 220, 3), 0, 255).astype(np.uint8)
            suffix = "jpg" if number % 4 == 0 else "png"
            keras.utils.save_img(folder / name / f"{number:02}.{suffix}", pixels, scale=False)
    return folder


@pytest.fixture(scope="module", params=CASES)
def case(request, photos, tmp_path_factory):
    """A saved model, what Keras itself says of the photographs, and how."""
    build = CASES[request.param]
    model = build.build()
    if "ResNet50" not in request.param and request.param != "of a class":
        moved(model)
    path = saved(model, tmp_path_factory.mktemp("model"))
    if build.pixels is None and build.refusal:
        return SimpleNamespace(path=path, pixels=None, refusal=build.refusal, top1=None)
    files = [Path(file) for file in sorted(map(str, photos.glob("*/*")))]
    images = build.trained(
        np.stack([keras.utils.img_to_array(keras.utils.load_img(file)) for file in files])
    )
    labels = np.array([CLASSES.index(file.parent.name) for file in files])
    given = model.predict(images, verbose=0)
    is_softmax = bool(np.allclose(given.sum(axis=1), 1, atol=1e-4))
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=not is_softmax),
        metrics=["accuracy"],
        jit_compile=False,
    )
    numbers = model.evaluate(images, labels, verbose=0, return_dict=True)
    scores = given if is_softmax else keras.ops.convert_to_numpy(keras.ops.softmax(given))
    assert np.ptp(scores, axis=0).max() > 0.01  # answers differ from image to image
    return SimpleNamespace(
        path=path,
        pixels=build.pixels,
        refusal=build.refusal,
        top1=numbers["accuracy"],
        loss=numbers["loss"],
        given=given,
        scores=scores,
        files=files,
    )


def refused(case, call) -> bool:
    """Tries it without what a user must say; returns whether that is all."""
    if case.refusal:
        with pytest.raises(ValueError, match=case.refusal):
            call(None)
    return case.top1 is None


@pytest.mark.slow
def test_evaluate(case, photos):
    from keras_vit.evaluate.measure import measure

    def evaluate(pixels):
        return measure(case.path, photos, pixels=pixels)

    if refused(case, evaluate):
        return
    found = evaluate(case.pixels)
    assert found["images"] == len(CLASSES) * PHOTOS_PER_CLASS
    assert found["top1"] == pytest.approx(case.top1, abs=1e-7)
    assert found["loss"] == pytest.approx(case.loss, rel=1e-3)


@pytest.mark.slow
def test_predict(case, capsys):
    from keras_vit import cli

    def predict(pixels):
        flags = [] if pixels is None else [f"--pixels={pixels}"]
        command = [
            "predict",
            *map(str, case.files),
            f"--model={case.path}",
            "--format=json",
            "--top=4",
            *flags,
        ]
        code, said = cli.main(command), capsys.readouterr()
        if code:
            raise ValueError(said.err)
        return said

    if refused(case, lambda pixels: predict(pixels) if case.top1 else classifier.build(case.path)):
        return
    said = predict(case.pixels)
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["file"] for row in rows] == list(map(str, case.files))
    for row, scores in zip(rows, case.scores, strict=True):
        assert [guess["class"] for guess in row["guesses"]] == [
            CLASSES[i] for i in np.argsort(-scores, kind="stable")
        ]
        np.testing.assert_allclose(
            [guess["score"] for guess in row["guesses"]], np.sort(scores)[::-1], atol=2e-3
        )
    assert "takes pixels from" in said.err


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, indirect=True)
def test_export(case, photos, tmp_path):
    import tensorflow as tf

    from keras_vit.export.delivery import deliver

    def export(pixels, lines):
        return deliver(
            case.path,
            tmp_path / "out",
            images=photos,
            num_images=8,
            pixels=pixels,
            say=lines.append,
        )

    if refused(case, lambda pixels: export(pixels, [])):
        return
    lines: list[str] = []
    assert export(case.pixels, lines) == []
    assert "takes pixels from" in lines[0]
    images = np.stack([np.asarray(keras.utils.load_img(file)) for file in case.files])
    exported = tf.saved_model.load(tmp_path / "out" / "1").signatures["predict_uint8"]
    (given,) = exported(images=tf.constant(images)).values()
    np.testing.assert_allclose(given, case.given, atol=3e-3 * max(1, np.abs(case.given).max()))


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, indirect=True)
def test_analyze(case, photos, tmp_path):
    from keras_vit.analyze.inspection import inspect

    def analyze(pixels):
        return inspect(case.path, photos, tmp_path / "report", pixels=pixels, num_shown=1)

    if refused(case, analyze):
        return
    analyze(case.pixels)
    with open(tmp_path / "report" / "photos.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["answer"] for row in rows] == [CLASSES[i] for i in case.scores.argmax(axis=1)]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows], case.scores.max(axis=1), atol=2e-3
    )
