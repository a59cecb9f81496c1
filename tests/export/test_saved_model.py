"""A model as a SavedModel on the disk: what is there, whether it is the model, and what happens
when it goes wrong.
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import warm
from PIL import Image
from warm import HUNG_SECONDS

import keras_vit
from keras_vit.data.sources import digits
from keras_vit.export import verdicts
from keras_vit.export.saved_model import saved_model
from keras_vit.export.versions import latest, versions
from keras_vit.graph import precisions_of
from keras_vit.pixels import declare, pixels_of
from keras_vit.variants import VIT_VARIANTS

pytestmark = pytest.mark.tensorflow
module = sys.modules[saved_model.__module__]

SIZE = (32, 48)
CLASSES = 7
NAMES = ["tench", "goldfish", "great white shark", "été", "a b", "ß", "last"]
RNG = np.random.default_rng(0)
LEVELS = RNG.integers(0, 256, (3, *SIZE, 3)).astype(np.uint8)
PIXELS = LEVELS / np.float32(127.5) - np.float32(1)
ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32
)


def build(**options) -> keras.Model:
    given = {
        "input_shape": (*SIZE, 3),
        "classes": CLASSES,
        "classifier_activation": None,
        **options,
    }
    model = keras_vit.application(ROW)(weights=None, **given)
    if "predictions" in [layer.name for layer in model.layers]:  # a new head is all zeros
        kernel = model.get_layer("predictions").kernel
        kernel.assign(RNG.normal(0, 0.3, kernel.shape))
    return model


def outputs_of(model: keras.Model, images: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(images))


def facts_of(version: Path) -> dict:
    return json.loads((version / "assets.extra" / "keras_vit.json").read_text(encoding="utf-8"))


@pytest.fixture
def unjudged(monkeypatch) -> None:
    """Spares the process in which an export is compared, where a test is of something else."""
    verdict = verdicts.Verdict(
        name="",
        size_bytes=0,
        num_images=8,
        top1_agreement=1,
        max_error=0,
        mean_error=0,
        latency_ms=0,
        accuracy=None,
    )
    monkeypatch.setattr(verdicts, "judge", lambda *_, **__: verdict)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, Path]:
    """A classifier and its export."""
    model = build()
    identity = {"tag": "augreg", "sha256": "0" * 64}
    return model, saved_model(
        model, tmp_path_factory.mktemp("m") / "vit", class_names=NAMES, identity=identity
    )


# ── what is there ──


def test_a_version_has_the_graph_the_names_and_what_to_know(exported):
    _, version = exported
    assert version.name == "1" and [path.name for path in version.parent.iterdir()] == ["1"]
    files = {path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file()}
    assert files == {
        "saved_model.pb",
        "fingerprint.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
        "assets/classes.txt",
        "assets.extra/SHA256SUMS",
        "assets.extra/keras_vit.json",
        "assets.extra/reference.npz",
        "assets.extra/tf_serving_warmup_requests",
    }
    assert (version / "assets" / "classes.txt").read_text(encoding="utf-8").splitlines() == NAMES


def test_the_metadata_say_what_it_is_and_how_near(exported):
    model, version = exported
    facts = facts_of(version)
    assert (facts["model"], facts["tag"], facts["sha256"]) == ("tiny", "augreg", "0" * 64)
    assert facts["input"]["image_size"] == [*SIZE] and facts["input"]["range"] == [-1, 1]
    assert facts["files"]["max_pixels"] == 2**26 and "damaged" in facts["files"]["statuses"]
    assert (
        facts["precision"] == "float32" and facts["made_with"]["keras-vit"] == keras_vit.__version__
    )
    assert facts["parameters"] == model.count_params()
    assert 0 <= facts["parity"]["max_error"] < 1e-5 and facts["parity"]["top1_agreement"] == 1
    assert facts["parity"]["max_error"] < facts["accepted"]["max_error"] < 1e-2
    assert facts["signatures"]["predict_uint8"] == {
        "takes": {"images": "uint8 (None, 32, 48, 3)"},
        "gives": {"logits": "float32 (None, 7)"},
    }
    assert [*facts["signatures"]] == ["serving_default", "predict", "predict_uint8", "features"]


def test_the_reference_checks_the_export_without_the_model(exported):
    model, version = exported
    with np.load(version / "assets.extra" / "reference.npz") as reference:
        pixels, outputs = reference["pixels"], reference["outputs"]
    assert pixels.shape == (8, *SIZE, 3) and pixels.dtype == np.uint8
    np.testing.assert_allclose(
        outputs, outputs_of(model, pixels / np.float32(127.5) - 1), atol=1e-5
    )
    found = verdicts.run(version, pixels, signature="predict_uint8").outputs
    np.testing.assert_allclose(found, outputs, atol=1e-5)


# ── whether it is the model ──


def test_loaded_without_keras_every_float_signature_is_the_model(exported):
    model, version = exported
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    np.testing.assert_allclose(
        verdicts.run(version, PIXELS).outputs, outputs_of(model, PIXELS), atol=1e-5
    )
    features = verdicts.run(version, PIXELS, signature="features").outputs  # the first of the two
    candidates = outputs_of(tokens, PIXELS)
    expected = candidates if features.ndim == 3 else candidates[:, 0]
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_files_of_photographs_are_answered_like_their_pixels(exported):
    model, version = exported
    buffer = io.BytesIO()
    Image.fromarray(LEVELS[0]).save(buffer, "JPEG")
    decoded = np.asarray(Image.open(buffer))[None] / np.float32(127.5) - 1
    loaded = tf.saved_model.load(str(version))
    answer = loaded.signatures["serving_default"](
        image_bytes=tf.constant([buffer.getvalue(), buffer.getvalue()[:99]])
    )
    logits = outputs_of(model, decoded)[0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    assert answer["status"].numpy().tolist() == [b"ok", b"damaged"]
    np.testing.assert_allclose(answer["scores"][0], np.sort(probabilities)[::-1][:5], atol=1e-5)
    assert answer["labels"][0, 0].numpy().decode() == NAMES[logits.argmax()]


def test_bfloat16_is_near_the_model_and_keeps_its_weights(tmp_path: Path):
    model = build()
    version = saved_model(model, tmp_path / "vit", precision="bfloat16", class_names=NAMES)
    facts = facts_of(version)
    assert facts["precision"] == "bfloat16" and 1e-4 < facts["parity"]["max_error"] < 0.3
    with np.load(version / "assets.extra" / "reference.npz") as reference:
        # The outputs of a wrong graph differ by about the largest output.
        assert facts["accepted"]["max_error"] < 0.5 * np.abs(reference["outputs"]).max()
    loaded = tf.saved_model.load(str(version))
    found = loaded.signatures["predict"](images=tf.constant(PIXELS))["logits"]
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, outputs_of(model, PIXELS), atol=0.05 * np.abs(found).max())
    assert {variable.dtype for variable in loaded.model_variables} == {tf.float32}
    # the model stays as it is
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}


def test_a_nested_model_computes_in_bfloat16_too(tmp_path: Path):
    """In a Sequential model and in a functional one, whose own layers have no precision to change."""
    inner, images = build(), keras.Input((*SIZE, 3))
    sequential = keras.Sequential([keras.Input((*SIZE, 3)), inner])
    for number, model in enumerate((sequential, keras.Model(images, inner(images)))):
        copy = module._cast(model, "mixed_bfloat16")
        computes = {
            layer.name: layer.compute_dtype
            for layer in copy._flatten_layers(include_self=False)
            if not isinstance(layer, keras.layers.InputLayer | keras.Model)
        }
        assert computes.pop("predictions") == "float32" and set(computes.values()) == {"bfloat16"}
        version = saved_model(model, tmp_path / f"vit{number}", precision="bfloat16", warmup=False)
        assert 1e-4 < facts_of(version)["parity"]["max_error"]
        assert precisions_of(model) == {"float32"}  # the model stays as it is


def test_a_nested_subclass_is_refused_in_bfloat16_and_exported_in_float32(tmp_path: Path):
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.head = keras.layers.Dense(3)

        def call(self, images):
            return self.head(keras.ops.mean(images, (1, 2)))

    images = keras.Input((*SIZE, 3))
    model = keras.Model(images, Own()(images))
    declare(model, "-1..1")
    with pytest.raises(ValueError, match="own, a subclass of keras.Model. Omit `precision`"):
        saved_model(model, tmp_path / "own", precision="bfloat16")
    assert not (tmp_path / "own").exists()
    assert module._cast(model, "float32") is model


def test_the_bound_is_relative_to_the_largest_output(tmp_path: Path):
    """Of 200 probabilities none is above a few percent, which 0.1 would accept whatever they are."""
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(*SIZE, 3), classes=200)
    head = model.get_layer("predictions")
    head.kernel.assign(np.random.default_rng(0).normal(0, 0.02, head.kernel.shape))
    for precision, share in (("float32", 1e-4), ("bfloat16", 0.1)):
        version = saved_model(model, tmp_path / precision, precision=precision, warmup=False)
        facts = facts_of(version)
        with np.load(version / "assets.extra" / "reference.npz") as reference:
            largest = np.abs(reference["outputs"]).max()
        assert largest < 0.1
        assert facts["accepted"]["max_error"] == pytest.approx(share * largest, rel=1e-3)


def test_a_sequential_model_and_names_in_an_array_are_exported(tmp_path: Path):
    inner = build()
    model = keras.Sequential([keras.Input((*SIZE, 3)), inner])
    names = np.array([str(number) for number in range(inner.output_shape[-1])])
    version = saved_model(model, tmp_path / "vit", class_names=names, warmup=False)
    assert (version / "assets" / "classes.txt").read_text().split() == names.tolist()
    loaded = tf.saved_model.load(str(version))
    found = loaded.signatures["features"](images=tf.constant(PIXELS))["pre_logits"]
    expected = keras.Model(inner.input, inner.get_layer("predictions").input)(PIXELS)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.usefixtures("unjudged")
def test_a_model_in_bfloat16_is_exported_in_float32(tmp_path: Path, monkeypatch):
    compared, judge = [], verdicts.judge
    monkeypatch.setattr(
        verdicts, "judge", lambda *given, **named: compared.append(given) or judge(*given, **named)
    )
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = build()
    keras.config.set_dtype_policy("float32")
    model = build()
    model.set_weights(mixed.get_weights())
    loaded = tf.saved_model.load(str(saved_model(mixed, tmp_path / "vit", warmup=False)))
    found = loaded.signatures["predict"](images=tf.constant(PIXELS))["logits"]
    np.testing.assert_allclose(found, outputs_of(model, PIXELS), atol=1e-5)
    # and is compared with the model in float32
    ((_, images, expected),) = compared
    np.testing.assert_allclose(expected, outputs_of(model, images), atol=1e-5)


@pytest.mark.usefixtures("unjudged")
@pytest.mark.slow
def test_a_model_with_operations_changes_its_precision_too(tmp_path: Path):
    """`include_preprocessing` scales pixels with operations, which have no precision."""
    model = build(include_preprocessing=True)
    version = saved_model(model, tmp_path / "vit", precision="bfloat16", warmup=False)
    found = tf.saved_model.load(str(version)).signatures["predict_uint8"](images=LEVELS)["logits"]
    expected = outputs_of(model, LEVELS.astype(np.float32))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.usefixtures("unjudged")
def test_a_model_of_any_size_has_one_for_files(tmp_path: Path):
    version = saved_model(build(input_shape=(None, None, 3)), tmp_path / "vit", image_size=SIZE)
    facts = facts_of(version)
    assert facts["input"]["image_size"] == [*SIZE]
    assert facts["signatures"]["predict"]["takes"] == {"images": "float32 (None, None, None, 3)"}


@pytest.mark.slow
@pytest.mark.usefixtures("unjudged")
def test_images_to_compare_on_may_be_given(tmp_path: Path):
    for number, given in enumerate([LEVELS, PIXELS, digits("test")], start=1):
        version = saved_model(build(), tmp_path / "vit", images=given, warmup=False)
        with np.load(version / "assets.extra" / "reference.npz") as reference:
            pixels = reference["pixels"]
        assert (
            version.name == str(number)
            and not (version / "assets.extra" / "tf_serving_warmup_requests").exists()
        )
        if number < 3:
            np.testing.assert_array_equal(pixels, LEVELS)
        else:
            assert pixels.shape == (8, *SIZE, 3)


# ── when it goes wrong ──


def test_an_export_that_is_not_the_model_is_not_written(tmp_path: Path, monkeypatch):
    write = tf.saved_model.save

    def save(holder: tf.Module, *arguments, **options) -> None:
        kernel = holder.model_variables[-2]
        kept = kernel.numpy()
        kernel.assign(kept * 1.01)
        write(holder, *arguments, **options)
        kernel.assign(kept)

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(
        ValueError,
        match="differ from those of the model by up to .*; rounding explains .* Nothing was",
    ):
        saved_model(build(), tmp_path / "vit")
    assert not list((tmp_path / "vit").iterdir())


@pytest.mark.parametrize(
    ("model_options", "options", "message"),
    [
        (
            {},
            {"precision": "float16"},
            "`precision` must be one of float32, bfloat16. Received: 'float16'",
        ),
        (
            {},
            {"eval_crop": "middle"},
            "`eval_crop` must be one of resize, .* Received: 'middle'",
        ),
        ({}, {"eval_crop": "resize_shorter"}, r"gives squares. Received: size=\(32, 48\)"),
        ({}, {"top": 0}, "`top` must be at least 1. Received: 0"),
        ({}, {"max_pixels": 0}, "`max_pixels` must be positive"),
        ({}, {"image_size": 48}, "takes images of 32 x 48 pixels. Received: image_size=48"),
        ({}, {"class_names": ["one"]}, "has 7 classes. Received: 1 names"),
        ({"input_shape": (None, None, 3)}, {}, "of any size: pass `image_size`"),
        (
            {"include_top": False},
            {"class_names": ["one"]},
            "has no head, so it has no classes. Received: 1 names",
        ),
        ({"input_shape": (*SIZE, 4)}, {}, r"input of images \(B, H, W, 3\)"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(
    tmp_path: Path, model_options: dict, options: dict, message: str
):
    with pytest.raises(ValueError, match=message):
        saved_model(build(**model_options), tmp_path / "vit", **options)
    assert not versions(tmp_path / "vit") and not list(tmp_path.glob("vit/*"))


class Seen(Exception):
    """Ends an export before the graph is saved."""


def test_each_option_reaches_the_signatures(tmp_path: Path, monkeypatch):
    """All differ from their defaults."""
    seen = []

    def end(model, **given):
        seen.append((model, given))
        raise Seen

    monkeypatch.setattr(sys.modules[saved_model.__module__], "signatures", end)
    options = {"eval_crop": "resize_shorter", "top": 2, "attention": True, "any_size": True}
    options |= {"max_pixels": 5000}
    model = build(input_shape=(32, 32, 3))
    with pytest.raises(Seen):
        saved_model(model, tmp_path / "vit", class_names=NAMES, **options)
    ((asked, given),) = seen
    assert asked is model and given.pop("class_file").name == "classes.txt"
    assert given == {**options, "image_size": (32, 32)}
    declare(model, "0..1")
    with pytest.raises(Seen):
        saved_model(model, tmp_path / "vit", precision="bfloat16")
    copy = seen[1][0]
    assert copy.get_layer("encoderblock_0").compute_dtype == "bfloat16"
    # Logits in bfloat16 have three digits, and close classes would tie.
    assert copy.get_layer("predictions").compute_dtype == "float32"
    assert pixels_of(copy).range == [0, 1]
    assert not list(tmp_path.glob("vit/*"))


def test_a_model_without_a_graph_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="must be functional"):
        saved_model(keras.Sequential([build()]), tmp_path / "vit")


# ── processes ──

EXPORT = """
import dataclasses, sys, time
from pathlib import Path

def wait_before_a_version(event, arguments):
    if event == "os.rename" and Path(arguments[1]).parent == Path(sys.argv[1]):
        time.sleep(3600)

if sys.argv[2:] == ["wait"]:
    sys.addaudithook(wait_before_a_version)
import keras_vit
from keras_vit.export.saved_model import saved_model
row = keras_vit.variants.VIT_VARIANTS["ViT_Ti16"]
row = dataclasses.replace(row, name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32)
saved_model(keras_vit.application(row)(weights=None, input_shape=(32, 48, 3), classes=7), sys.argv[1])
"""


def start(base: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-c", EXPORT, str(base), *options]
    return warm.Popen(command, stderr=subprocess.DEVNULL)


def kill_when(process: subprocess.Popen, has_come: Callable[[], bool]) -> None:
    """Kills the process and what it started, as soon as something has come."""
    deadline = time.monotonic() + HUNG_SECONDS
    while not has_come():
        assert process.poll() is None and time.monotonic() < deadline, (
            "It ended before the moment came."
        )
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def partial_folders(base: Path) -> list[Path]:
    return [path for path in base.glob(".partial-*") if path.is_dir()]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("assets/classes.txt", marks=pytest.mark.slow),
        pytest.param("variables/variables.index", marks=pytest.mark.slow),
        pytest.param("saved_model.pb", marks=pytest.mark.slow),
        pytest.param("assets.extra/tf_serving_warmup_requests", marks=pytest.mark.slow),
    ],
)
def test_a_killed_export_leaves_no_version(tmp_path: Path, file: str):
    base = tmp_path / "vit"
    # the last files come just before the version: it waits there
    kill_when(
        start(base, "wait"),
        lambda: any((folder / file).exists() for folder in partial_folders(base)),
    )
    assert not versions(base)
    assert all(path.name.startswith(".") for path in base.iterdir())


@pytest.mark.slow
def test_several_exporters_at_once_do_not_collide_and_a_killed_one_costs_nobody(tmp_path: Path):
    base = tmp_path / "vit"
    processes = [start(base) for _ in range(3)]
    kill_when(processes[0], lambda: len(partial_folders(base)) > 0)
    assert [process.wait(timeout=HUNG_SECONDS) for process in processes[1:]] == [0, 0]
    assert versions(base) == [1, 2]
    files = [
        sorted(path.relative_to(base / name) for path in (base / name).rglob("*")) for name in "12"
    ]
    assert files[0] == files[1]
    for name in "12":
        with np.load(base / name / "assets.extra" / "reference.npz") as reference:
            verdict = verdicts.judge(
                base / name, reference["pixels"] / np.float32(127.5) - 1, reference["outputs"]
            )
        assert verdict.max_error < 1e-5


REAL = """
import json, sys
import numpy as np
import keras_vit
from keras_vit.export.saved_model import saved_model
name, base, shape, size = sys.argv[1:]
shape = tuple(json.loads(shape))
model = getattr(keras_vit, name)(weights=None, input_shape=shape, classifier_activation=None)
kernel = model.get_layer("predictions").kernel
kernel.assign(np.random.default_rng(0).normal(0, 0.05, kernel.shape))
saved_model(model, base, image_size=json.loads(size))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("ViT_B16", (224, 224, 3), None),
        ("R26_ViT_S32", (224, 288, 3), None),
        ("BiT_R50x1", (None, None, 3), [128, 128]),
    ],
)
def test_models_of_real_size_are_exported(
    tmp_path: Path, name: str, shape: tuple, size: list | None
):
    command = [
        sys.executable,
        "-c",
        REAL,
        name,
        str(tmp_path / "real"),
        json.dumps(shape),
        json.dumps(size),
    ]
    done = warm.run(
        command,
        env={**os.environ, warm.REAL_CHILDREN: "1"},
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = facts_of(latest(tmp_path / "real"))
    # Fifty convolutions with random weights add up what the order of summation rounds away: 3e-5 of
    # 3.4 was measured.
    assert facts["parity"]["max_error"] < (1e-4 if name.startswith("BiT") else 1e-5), facts[
        "parity"
    ]
    assert facts["parity"]["top1_agreement"] == 1
    assert facts["input"]["image_size"] == (size or [*shape[:2]])
