"""ONNX and OpenVINO: each file is run by its own runtime here too, and everything that may be wrong
with it.
"""

import dataclasses
import gc
import json
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import warm

import keras_vit
from keras_vit.cost import parameters
from keras_vit.export import exchange
from keras_vit.export.exchange import onnx, openvino
from keras_vit.export.metadata import read_facts
from keras_vit.export.runner import opened, unreported
from keras_vit.export.verdicts import Verdict
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

pytestmark = pytest.mark.tensorflow
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
with unreported():
    runtime = pytest.importorskip("openvino")

SIZE = (32, 48)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (5, *SIZE, 3)).astype(np.float32)


def answering(model: keras.Model) -> keras.Model:
    """The head of a new model is all zeros: then any two of them agree. Here it gives logits of
    about 3.
    """
    for variable in model.layers[-1].trainable_variables:
        variable.assign(RNG.normal(size=variable.shape) * 3 / variable.shape[0] ** 0.5)
    return model


@pytest.fixture
def build(tiny_vit) -> Callable[..., keras.Model]:
    def build(**options) -> keras.Model:
        defaults = {
            "weights": None,
            "input_shape": (*SIZE, 3),
            "classes": 7,
            "classifier_activation": None,
        }
        return answering(keras_vit.application(tiny_vit)(**(defaults | options)))

    return build


def run_onnx(folder: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    given = session.run(None, {"images": images})
    return dict(zip([output.name for output in session.get_outputs()], given, strict=True))


def run_openvino(folder: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    compile_with = json.loads((folder / "keras_vit.json").read_text())["compile_with"]
    compiled = runtime.Core().compile_model(folder / "model.xml", "CPU", compile_with)
    given = compiled({"images": images})
    return {output.get_any_name(): given[output] for output in compiled.outputs}


FORMATS = {"onnx": (onnx, run_onnx), "openvino": (openvino, run_openvino)}


# ── what is written ──


@pytest.mark.parametrize("name", FORMATS)
def test_a_version_holds_the_model_its_labels_and_what_it_says_of_itself(
    build, tmp_path: Path, name: str, capfd
):
    export, run = FORMATS[name]
    model = build(gelu="exact")
    weights, expected = model.get_weights(), model.predict_on_batch(IMAGES)
    # What the conversion says goes to no one: neither words nor warnings, which are errors here.
    capfd.readouterr()
    verdict = export(
        model, tmp_path / "vit", class_names=[*"abcdefg"], identity={"weights": "of my own"}
    )
    assert capfd.readouterr() == ("", "")
    folder = tmp_path / "vit" / "1"
    files = {"onnx": {"model.onnx"}, "openvino": {"model.xml", "model.bin"}}[name]
    assert {path.name for path in folder.iterdir()} == files | {
        "labels.txt",
        "keras_vit.json",
        "reference.npz",
        "SHA256SUMS",
    }
    assert (folder / "labels.txt").read_text() == "a\nb\nc\nd\ne\nf\ng\n"
    said = json.loads((folder / "keras_vit.json").read_text())
    assert said["weights"] == "of my own" and said["output"] == {
        "name": "logits",
        "shape": [None, 7],
    }
    assert (said["input"]["image_size"], said["input"]["range"]) == ([*SIZE], [-1, 1])
    assert said["parity"]["max_error"] == verdict.max_error < 1e-5
    assert verdict.top1_agreement == 1 and verdict.latency_ms > 0 and verdict.accuracy is None
    assert verdict.size_bytes == sum((folder / file).stat().st_size for file in files)
    assert np.abs(expected).max() > 1
    for count in (5, 1, 3):
        (given,) = run(folder, IMAGES[:count]).items()
        assert given[0] == "logits"
        np.testing.assert_allclose(given[1], expected[:count], atol=1e-5)
    # The model is as it was.
    assert all((now == then).all() for now, then in zip(model.get_weights(), weights, strict=True))
    assert (model.predict_on_batch(IMAGES) == expected).all() and model.output_names == [
        "predictions"
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_of_a_model_of_any_size_records_the_size_that_was_chosen(
    build, tmp_path: Path, monkeypatch, name: str
):
    monkeypatch.setattr(
        exchange, f"_write_{name}", lambda model, path, signature: path.write_bytes(b"graph")
    )
    numbers = dict.fromkeys(("top1_agreement", "max_error", "mean_error", "latency_ms"), 0.0)
    verdict = Verdict(name="model", size_bytes=1, num_images=2, accuracy=None, **numbers)
    monkeypatch.setattr(exchange, "judge", lambda *_, **__: verdict)
    model, levels = build(input_shape=(None, None, 3)), np.zeros((2, *SIZE, 3), np.uint8)
    FORMATS[name][0](model, tmp_path, image_size=SIZE, images=levels)
    (file,) = (tmp_path / "1").glob("model.*")
    assert read_facts(file)["input"]["image_size"] == [*SIZE]


def test_openvino_left_to_itself_may_be_far_off_and_the_metadata_says_how_to_be_exact(
    build, tmp_path: Path
):
    model = build()
    openvino(model, tmp_path)
    hasty = runtime.Core().compile_model(tmp_path / "1" / "model.xml", "CPU")
    expected = model.predict_on_batch(IMAGES)
    # as the processor has it
    if hasty.get_property("INFERENCE_PRECISION_HINT") != runtime.Type.f32:
        assert np.abs(hasty(IMAGES)[0] - expected).max() > 1e-3
    np.testing.assert_allclose(run_openvino(tmp_path / "1", IMAGES)["logits"], expected, atol=1e-5)


def test_each_runtime_takes_as_many_threads_as_it_is_told(build, tmp_path: Path, monkeypatch):
    asked, session = [], onnxruntime.InferenceSession

    def opened_by_onnx(path, options, **named):
        asked.append(("onnx", options.intra_op_num_threads))
        return session(path, options, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened_by_onnx)
    monkeypatch.setattr(
        runtime.Core,
        "compile_model",
        lambda core, path, kind, settings: asked.append(
            ("openvino", settings["INFERENCE_NUM_THREADS"])
        ),
    )
    onnx(build(), tmp_path)
    asked.clear()
    for number in (1, 3):
        opened(tmp_path / "1" / "model.onnx", "", num_threads=number)
        opened(tmp_path / "1" / "model.xml", "", num_threads=number)
    assert asked == [("onnx", 1), ("openvino", 1), ("onnx", 3), ("openvino", 3)]


def test_images_of_the_callers_are_judged_and_their_labels_counted(build, tmp_path: Path):
    from keras_vit.data import sources

    model = build(input_shape=(32, 32, 3), classes=10)
    levels = RNG.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    answers = model.predict_on_batch((levels / 127.5 - 1).astype(np.float32)).argmax(1)
    labels = np.where(np.arange(20) < 5, (answers + 1) % 10, answers)  # a quarter is wrong
    verdict = openvino(model, tmp_path, images=sources.arrays(levels, labels, name="noise"))
    assert verdict.num_images == 20 and verdict.accuracy == pytest.approx(0.75)
    assert (
        "noise" in json.loads((tmp_path / "1" / "keras_vit.json").read_text())["judged"]["images"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_model_is_exported(build, tiny_vit, tiny_resnet, tmp_path: Path, name: str):
    stem = dataclasses.replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1, 1))
    shape = {
        "weights": None,
        "input_shape": (*SIZE, 3),
        "classes": 7,
        "classifier_activation": None,
    }
    axial = dataclasses.replace(tiny_vit, name="axial", axial=True)
    models = {
        "gap": build(classifier="gap", gelu="exact"),
        "map": build(classifier="map"),
        "tanh layer": build(representation_size=9),
        "hybrid": answering(
            keras_vit.application(dataclasses.replace(tiny_vit, stem=stem, patch_size=1))(**shape)
        ),
        "bit": answering(keras_vit.application(tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]))(**shape)),
        "axial": answering(keras_vit.application(axial)(**shape)),
        "any size": build(input_shape=(None, None, 3)),
        "pixels": build(include_preprocessing=True),
        "softmax": build(classifier_activation="softmax"),
        "no head": build(include_top=False, pooling="token"),
        "tokens": build(include_top=False),
    }
    export, run = FORMATS[name]
    named = {"softmax": "probabilities", "no head": "features", "tokens": "features"}
    for kind, model in models.items():
        verdict = export(model, tmp_path / kind, image_size=SIZE)
        images = np.round(127.5 * (IMAGES + 1)) if kind == "pixels" else IMAGES
        ((output, given),) = run(tmp_path / kind / "1", images).items()
        np.testing.assert_allclose(given, model.predict_on_batch(images), atol=1e-4, err_msg=kind)
        assert output == named.get(kind, "logits") and verdict.top1_agreement == 1
        assert (tmp_path / kind / "1" / "labels.txt").exists() == (output != "features")


REAL = """
import sys
import numpy as np
import keras_vit
name, model_name, folder = sys.argv[1:]
model = getattr(keras_vit, model_name)(weights=None, classifier_activation=None)
kernel = model.get_layer("predictions").kernel
kernel.assign(np.random.default_rng(0).normal(0, 0.05, kernel.shape))
verdict = getattr(keras_vit.export, name)(model, folder)
assert verdict.max_error < 1e-4 and verdict.top1_agreement == 1, verdict
assert abs(verdict.size_bytes / (4 * model.count_params()) - 1) < 0.03, verdict
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_name"), [("onnx", "R_ViT_Ti16"), ("openvino", "ViT_Ti16")])
def test_models_of_real_size_are_exported(tmp_path: Path, name: str, model_name: str):
    """The smallest of the published sizes: tf2onnx takes 9 GB for ViT-B/16."""
    command = [sys.executable, "-c", REAL, name, model_name, str(tmp_path)]
    done = warm.run(
        command, env={**os.environ, warm.REAL_CHILDREN: "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "1" / "labels.txt").read_text().splitlines()[:2] == ["tench", "goldfish"]


# ── exact GELU ──


@pytest.mark.slow
# of tf2onnx, when it is imported
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
def test_what_keras_alone_writes_of_exact_gelu_does_not_load(build, tmp_path: Path, caplog):
    """When this fails, Keras and tf2onnx can do without `_register_erfc`."""
    model, path = build(gelu="exact"), tmp_path / "plain.onnx"
    signature = [tf.TensorSpec((None, *SIZE, 3), tf.float32)]
    model.export(str(path), format="onnx", verbose=False, input_signature=signature)
    with pytest.raises(Exception, match="No Op registered for Erfc"):
        onnxruntime.InferenceSession(path)


def test_a_conversion_that_tf2onnx_brings_itself_goes_first():
    from tf2onnx import constants, handler, onnx_opset  # noqa: F401 - the last brings the converters

    converters = handler.tf_op.get_opsets()[constants.ONNX_DOMAIN]

    def found() -> list:
        return [of_opset["Erfc"][0] for of_opset in converters if "Erfc" in of_opset]

    with exchange._register_erfc():
        assert found() == [exchange._convert_erfc]
    assert not found()
    theirs = object()
    converters[13]["Erfc"] = (theirs, {})
    try:
        with exchange._register_erfc():
            assert found() == [theirs]
        assert found() == [theirs]
    finally:
        del converters[13]["Erfc"]


# ── group normalization ──


def background() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """Group normalization, images before one background, and what is exact.

    Where the same number is added again and again, it is rounded to the same side.
    """
    images = keras.Input((112, 112, 64))
    model = keras.Model(
        images, {"logits": keras.layers.GroupNormalization(32, epsilon=1e-6)(images)}
    )
    rng = np.random.default_rng(0)
    pixels = rng.normal(0, 2, (2, 112, 112, 64)).astype(np.float32)
    pixels[rng.uniform(size=(2, 112, 112)) < 0.9] = rng.normal(0, 2, 64)
    exact = pixels.astype(np.float64).reshape(2, -1, 32, 2)
    exact = (exact - exact.mean((1, 3), keepdims=True)) / np.sqrt(
        exact.var((1, 3), keepdims=True) + 1e-6
    )
    return model, pixels, exact.reshape(pixels.shape)


LARGE = [tf.TensorSpec((None, 112, 112, 64), tf.float32, name="images")]


def test_onnx_normalizes_groups_of_many_numbers_exactly(tmp_path: Path):
    """When the last line fails, ONNX Runtime can do without `_take_means_in_stages`."""
    model, pixels, exact = background()

    def error(path: Path) -> float:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return np.abs(session.run(None, {session.get_inputs()[0].name: pixels})[0] - exact).max()

    exchange._write_onnx(model, tmp_path / "model.onnx", LARGE)
    assert error(tmp_path / "model.onnx") < 1e-5
    model.export(str(tmp_path / "plain.onnx"), format="onnx", verbose=False, input_signature=LARGE)
    assert error(tmp_path / "plain.onnx") > 5e-5


def test_openvino_normalizes_groups_of_many_numbers_exactly(tmp_path: Path):
    """When the last line fails, OpenVINO can do without `_take_mean_in_stages`."""
    model, pixels, exact = background()

    def error(path: Path) -> float:
        compiled = runtime.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.abs(compiled(pixels)[0] - exact).max()

    exchange._write_openvino(model, tmp_path / "model.xml", LARGE)
    assert {path.name for path in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    assert error(tmp_path / "model.xml") < 1e-5
    with unreported():
        model.export(
            str(tmp_path / "plain.xml"), format="openvino", verbose=False, input_signature=LARGE
        )
    assert error(tmp_path / "plain.xml") > 5e-5


# ── what is refused ──


@pytest.mark.parametrize("name", ["onnx"])
def test_a_file_that_answers_differently_is_not_left(build, tmp_path: Path, monkeypatch, name: str):
    other, write = build(), getattr(exchange, f"_write_{name}")

    def write_other(model: keras.Model, path: Path, signature: list) -> None:
        write(keras.Model(other.inputs[0], {"logits": other.outputs[0]}), path, signature)

    monkeypatch.setattr(exchange, f"_write_{name}", write_other)
    with pytest.raises(
        ValueError,
        match=r"outputs of model\.\w+ differ from those of the model by up to \d.*Nothing was written",
    ):
        FORMATS[name][0](build(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_does_not_load_is_not_left(build, tmp_path: Path, monkeypatch, name: str):
    monkeypatch.setattr(
        exchange, f"_write_{name}", lambda model, path, signature: path.write_bytes(b"no model")
    )
    with pytest.raises(ValueError, match=r"model\.\w+ cannot be run"):
        FORMATS[name][0](build(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_rounding_explains_depends_on_the_largest_output():
    assert exchange._choose_bound(np.array([[3.0, -20.0]])) == pytest.approx(1e-4)
    assert exchange._choose_bound(np.array([[0.01, 0.002]])) == pytest.approx(1e-6)
    assert exchange._choose_bound(np.array([[100.0, -200.0]])) == pytest.approx(1e-3)
    numbers = {
        "size_bytes": 1,
        "num_images": 2,
        "top1_agreement": 1.0,
        "mean_error": 0.0,
        "latency_ms": 1.0,
    }
    verdict = Verdict(name="model.onnx", max_error=5e-5, accuracy=None, **numbers)
    exchange._check_close(verdict, 1e-4)
    with pytest.raises(
        ValueError, match="differ from those of the model by up to 5e-05; rounding explains 1e-06"
    ):
        exchange._check_close(verdict, 1e-6)


@pytest.mark.parametrize("export", [onnx, openvino])
def test_what_is_no_such_model_is_refused_before_anything_is_written(build, tmp_path: Path, export):
    def refused(model, message: str, **options) -> None:
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "new", **options)

    model = build()
    refused(build(input_shape=(None, None, 3)), "images of any size: pass `image_size`, in pixels")
    refused(model, r"takes images of 32 x 48 pixels. Received: image_size=32\.", image_size=32)
    refused(
        model,
        r"takes images of 32 x 48 pixels. Received: image_size=\(32, 32\)",
        image_size=(32, 32),
    )
    refused(build(input_shape=(None, 48, 3)), "takes images of None x 48", image_size=(32, 32))
    refused(model, "The model has 7 classes. Received: 2 names", class_names=["a", "b"])
    refused(
        build(include_top=False),
        "no head, so it has no classes. Received: 1 names",
        class_names=["a"],
    )
    refused(
        keras.Sequential([keras.layers.Dense(2)]),
        r"must be functional.*Received: inputs of shape \[\]",
    )
    refused("ViT_B16", "must be functional, with one input of images")
    refused(keras.Model(model.inputs[0], [model.outputs[0]] * 2), "and one output")
    vector = keras.Input((3,))
    refused(
        keras.Model(vector, keras.layers.Dense(2)(vector)),
        r"input of images \(B, H, W, 3\).*\(None, 3\)",
    )
    keras.config.set_dtype_policy("mixed_bfloat16")
    refused(
        build(),
        "must compute in float32. Received: layers that compute in bfloat16.*set_dtype_policy",
    )
    assert not (tmp_path / "new").exists()


def test_weights_that_one_message_cannot_hold_are_refused(build, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(keras.Model, "count_params", lambda _: 2**31 // 4)
    with pytest.raises(
        ValueError,
        match="take 2.0 GiB; an ONNX file is smaller than 2. Export it with `openvino`",
    ):
        onnx(build(), tmp_path)
    largest = [name for name, row in VIT_VARIANTS.items() if 4 * parameters(row) > 2**31 - 2**24]
    assert largest == ["ViT_H14"]


@pytest.mark.parametrize(
    ("export", "package", "extra"),
    [(onnx, "tf2onnx", "onnx"), (onnx, "onnxruntime", "onnx"), (openvino, "openvino", "openvino")],
)
def test_a_package_that_is_not_there_is_named_before_the_conversion(
    build, tmp_path: Path, monkeypatch, export, package: str, extra: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install .*{extra}"):
        export(build(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# ── the process stays as it is ──


IN_A_NEW_PROCESS = """
import os, sys
from openvino_telemetry import main
main.TelemetrySender.send = lambda *message: print("sent", message)
import keras
from keras_vit.export import exchange
judge = exchange.judge
exchange.judge = lambda *given, **named: print("judged under", os.environ["CI"]) or judge(*given, **named)
images = keras.Input((8, 8, 3))
exchange.openvino(keras.Model(images, keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))), sys.argv[1])
print("written, then", os.environ.get("CI"))
"""

RUN_IN_A_NEW_PROCESS = """
import os, sys
from pathlib import Path
from openvino_telemetry import main
main.TelemetrySender.send = lambda *message: print("sent", message)
from keras_vit.export import runner
runner.opened(Path(sys.argv[1]), "")
print("ran")
print("then", os.environ.get("CI"))
"""


def test_openvino_reports_to_nobody(tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(tmp_path)]
    done = warm.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["judged under true", "written, then None"], done.stderr
    run = [sys.executable, "-c", RUN_IN_A_NEW_PROCESS, str(next(tmp_path.rglob("model.xml")))]
    done = warm.run(run, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["ran", "then None"], done.stderr


def test_what_the_caller_says_of_ci_is_as_it_was(monkeypatch):
    monkeypatch.setenv("CI", "no")
    with unreported():
        assert os.environ["CI"] == "true"
    assert os.environ["CI"] == "no"


def test_copies_that_refer_to_themselves_are_collected_while_tf2onnx_works():
    class Copy:
        def __init__(self):
            self.itself = self

    def most_alive() -> int:
        alive, most = [], 0
        for _ in range(30):
            alive.append(weakref.ref(Copy()))
            _ = [[] for _ in range(20_000)]  # what else a copy of a graph consists of
            most = max(most, sum(reference() is not None for reference in alive))
        return most

    before = gc.get_threshold(), gc.get_freeze_count() > 0
    with exchange._collect_garbage_often():
        assert most_alive() <= 3
    assert (gc.get_threshold(), gc.get_freeze_count() > 0) == before
