"""Files of a model: written, judged, refused; what is left in each case; what is inside them."""

import csv
import importlib
import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from ai_edge_litert.interpreter import Interpreter

import keras_vit
from keras_vit.data import sources
from keras_vit.export.examples import Examples, set_aside, take
from keras_vit.export.tflite import FLAVOURS, tflite
from keras_vit.export.tflite_flavours import Graph, convert

pytestmark = pytest.mark.tensorflow

# `keras_vit.export.tflite` is the function
module = importlib.import_module("keras_vit.export.tflite")
LEVELS = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3)).astype("uint8")
MORE_LEVELS = np.random.default_rng(1).integers(0, 256, (20, 32, 32, 3)).astype("uint8")
PIXELS = LEVELS / np.float32(127.5) - np.float32(1)
NAMES = ["cat", "dog", "cow", "hen", "bee", "emu", "ant"]


@pytest.fixture
def build(tiny_vit) -> Callable[..., keras.Model]:
    def built(**options) -> keras.Model:
        defaults = {
            "weights": None,
            "input_shape": (32, 32, 3),
            "classes": 7,
            "classifier_activation": None,
        }
        model = keras_vit.application(tiny_vit)(**{**defaults, **options})
        head = model.get_layer("predictions").kernel
        head.assign(np.random.default_rng(0).normal(0, 1, head.shape).astype("float32"))
        return model

    return built


def spoiled(model: keras.Model, *flavours: str) -> Callable[[Graph, str], bytes]:
    """Converts all flavours but some rightly; these give the contrary of what the model gives."""
    contrary = keras.Model(model.inputs[0], keras.ops.negative(model.outputs[0]), name=model.name)

    def converted(graph: Graph, flavour: str) -> bytes:
        if flavour in flavours:
            graph = Graph(
                **{
                    **{name: getattr(graph, name) for name in Graph.__annotations__},
                    "model": contrary,
                }
            )
        return convert(graph, "float32")

    return converted


def answers(file: Path, images: np.ndarray) -> np.ndarray:
    runner = Interpreter(model_path=str(file)).get_signature_runner()
    (outputs,) = runner(images=images).values()
    return outputs


# ── what is written ──


def test_all_flavours_are_written_and_judged(build, tmp_path: Path):
    model = build()
    verdicts = tflite(
        model, tmp_path / "vit", images=MORE_LEVELS, class_names=NAMES, min_agreement=0.5
    )
    assert [verdict.name for verdict in verdicts] == [f"{flavour}.tflite" for flavour in FLAVOURS]
    # the other half set the ranges of int8
    assert {verdict.num_images for verdict in verdicts} == {10}
    folder, expected = tmp_path / "vit" / "1", model.predict(PIXELS, verbose=0)
    for verdict, bound in zip(verdicts, (1e-5, 0.01, 0.05, 0.2, 0.05), strict=True):
        file = folder / verdict.name
        assert (
            verdict.size_bytes == file.stat().st_size
            and verdict.latency_ms > 0
            and verdict.accuracy is None
        )
        assert np.abs(answers(file, PIXELS) - expected).max() < bound * np.abs(expected).max()
        assert verdict.max_error < bound * np.abs(expected).max() and verdict.top1_agreement > 0.5
        with zipfile.ZipFile(file) as zipped:
            assert zipped.read("labels.txt").decode().splitlines() == NAMES
            assert json.loads(zipped.read("keras_vit.json"))["flavour"] == file.stem
    facts = json.loads((folder / "keras_vit.json").read_text())
    calibration, judged = set_aside(take(MORE_LEVELS, (32, 32), 20), 10)
    assert facts["calibrated_on"] == calibration.fingerprints()
    assert facts["judged"]["sha256"] == judged.fingerprint()
    # The outputs of damaged weights differ by about the largest output.
    assert all(
        bound < 0.5 * np.abs(expected).max() for bound in facts["accepted"]["max_error"].values()
    )
    rows = list(csv.DictReader((folder / "report.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [verdict.name for verdict in verdicts]
    assert [float(row["max_error"]) for row in rows] == [verdict.max_error for verdict in verdicts]
    assert "the same 10 images: the given images" in (folder / "report.md").read_text()


def test_a_file_says_of_itself_what_it_takes(build, tmp_path: Path):
    identity = {"weights": "a.npz", "licence": "Apache-2.0"}
    options = {
        "flavours": ["float32"],
        "images": LEVELS[:2],
        "eval_crop": "resize_shorter",
        "identity": identity,
    }
    tflite(build(), tmp_path / "vit", **options)
    tflite(build(include_preprocessing=True), tmp_path / "vit", **options)
    tflite(build(), tmp_path / "vit", preprocessing=True, fixed_batch=True, **options)
    found = []
    for number in (1, 2, 3):
        with zipfile.ZipFile(tmp_path / "vit" / str(number) / "float32.tflite") as zipped:
            facts = json.loads(zipped.read("keras_vit.json"))
        beside = json.loads((tmp_path / "vit" / str(number) / "keras_vit.json").read_text())
        assert beside == {key: value for key, value in facts.items() if key != "flavour"}
        assert (
            facts["weights"] == "a.npz"
            and facts["licence"] == "Apache-2.0"
            and len(facts["variables_sha256"]) == 64
        )
        assert (
            facts["accepted"]["top1_agreement"] == 0.95
            and 0 < facts["accepted"]["max_error"]["float32"] < 0.1
        )
        assert facts["input"]["resize"] == "resize_shorter"
        assert facts["input"]["image_size"] == [32, 32] and facts["output"]["name"] == "logits"
        found.append((facts["input"]["dtype"], facts["input"]["range"], facts["output"]["shape"]))
    assert found == [
        ("float32", [-1, 1], [None, 7]),
        ("float32", [0, 255], [None, 7]),
        ("uint8", [0, 255], [1, 7]),
    ]


def test_a_file_can_take_pixels_as_they_are(build, tmp_path: Path):
    model = build()
    (verdict,) = tflite(
        model, tmp_path / "vit", flavours="float32", images=LEVELS, preprocessing=True
    )
    file = tmp_path / "vit" / "1" / "float32.tflite"
    np.testing.assert_allclose(answers(file, LEVELS), model.predict(PIXELS, verbose=0), atol=1e-5)
    assert verdict.max_error < 1e-5 and verdict.num_images == 12


def test_large_weights_are_found_again(tiny_vit, tmp_path: Path):
    # Then ai-edge-quantizer writes them behind the graph, by their places in the file.
    row = replace(tiny_vit, width=128, mlp_dim=512)
    model = keras_vit.application(row)(
        weights=None, input_shape=(32, 32, 3), include_top=False, pooling="token"
    )
    (verdict,) = tflite(
        model, tmp_path / "vit", flavours=["weight_only_int8"], images=LEVELS, min_agreement=0
    )
    assert model.count_params() < verdict.size_bytes < 2 * model.count_params()
    assert verdict.max_error < 0.1
    given = answers(tmp_path / "vit" / "1" / "weight_only_int8.tflite", PIXELS)
    np.testing.assert_allclose(given, model.predict(PIXELS, verbose=0), atol=0.1)


def test_what_the_model_gave_lies_beside_the_files_for_the_images_of_which_it_is_surest(
    build, tmp_path: Path
):
    model = build()
    outputs = model.predict(PIXELS, verbose=0)
    margins = [sorted(row)[-1] - sorted(row)[-2] for row in outputs.tolist()]
    surest = sorted(sorted(range(12), key=lambda place: -margins[place])[:8])
    tflite(model, tmp_path / "vit", flavours=["float16"], images=LEVELS)
    with np.load(tmp_path / "vit" / "1" / "reference.npz") as kept:
        np.testing.assert_array_equal(kept["pixels"], LEVELS[surest])
        np.testing.assert_allclose(kept["outputs"], outputs[surest], atol=1e-5)


def test_accuracy_is_counted_where_labels_are_known(build, tmp_path: Path):
    model = build()
    right = model.predict(PIXELS, verbose=0).argmax(1)
    # 3 of 12 are called something else
    labels = np.where(np.arange(12) % 4 == 0, (right + 1) % 7, right)
    source = sources.arrays(LEVELS, labels, NAMES)
    # an agreement of exactly `min_agreement` is enough
    options = {"flavours": ["float32"], "images": source, "min_agreement": 1}
    (verdict,) = tflite(model, tmp_path / "vit", **options)
    assert verdict.accuracy == 0.75 and verdict.top1_agreement == 1.0


def test_a_model_without_a_head_gives_features(tiny_vit, tmp_path: Path):
    model = keras_vit.application(tiny_vit)(
        weights=None, include_top=False, pooling="token", input_shape=(32, 32, 3), name="body"
    )
    tflite(model, tmp_path / "vit", flavours=["float32"], images=LEVELS)
    file = tmp_path / "vit" / "1" / "float32.tflite"
    assert answers(file, PIXELS).shape == (12, 16)
    assert zipfile.ZipFile(file).namelist() == ["keras_vit.json"]
    with pytest.raises(
        ValueError, match="body has no head, so it has no classes. Received: 7 names"
    ):
        tflite(model, tmp_path / "vit", class_names=NAMES)


@pytest.mark.slow
def test_a_model_of_any_size_is_told_which(build, tmp_path: Path):
    model = build(input_shape=(None, None, 3))
    with pytest.raises(ValueError, match="images of any size: pass `image_size`, in pixels"):
        tflite(model, tmp_path / "vit")
    assert not (tmp_path / "vit").exists()
    tflite(model, tmp_path / "vit", flavours=["float32"], image_size=(16, 24), num_images=2)
    images = PIXELS[:, :16, :24]
    given = answers(tmp_path / "vit" / "1" / "float32.tflite", images)
    np.testing.assert_allclose(given, model.predict(images, verbose=0), atol=1e-5)


# ── images ──


def test_no_image_both_sets_ranges_and_is_judged():
    for total, count, expected in [(12, 100, 6), (250, 100, 100), (5, 100, 2), (7, 0, 0)]:
        images = np.linspace(-1, 1, total, dtype="float32")[:, None, None, None] * np.ones(
            (1, 1, 1, 3), "float32"
        )
        labels = np.arange(total)
        calibration, judged = set_aside(Examples(images=images, labels=labels, name="all"), count)
        assert (calibration is None) == (not expected)
        if calibration is not None:
            assert len(calibration.labels) == expected
            assert sorted([*calibration.labels, *judged.labels]) == labels.tolist()
            gaps = np.diff(calibration.labels)
            # Spread over all, since folders lie class by class.
            assert gaps.max(initial=0) - gaps.min(initial=total) <= 1
        else:
            assert judged.labels.tolist() == labels.tolist()
        for part in filter(None, (calibration, judged)):
            np.testing.assert_array_equal(part.images, images[part.labels])


def test_a_copy_of_an_image_that_sets_ranges_is_not_judged():
    images = np.concatenate([PIXELS, PIXELS[:6]])
    calibration, judged = set_aside(Examples(images=images, labels=None, name="all"), 6)
    assert not set(calibration.fingerprints()) & set(judged.fingerprints())
    assert len(set(calibration.fingerprints())) == 6 and len(set(judged.fingerprints())) == 6


def test_int8_on_too_few_images_is_refused_and_the_others_are_written(build, tmp_path: Path):
    few = np.repeat(LEVELS, 4, axis=0)  # 48, of which 12 differ
    with pytest.raises(
        ValueError, match="at least 8 different images .* as many others .*Received: 6 and 6"
    ):
        tflite(build(), tmp_path / "vit", flavours=["int8", "float32"], images=few)
    assert [path.name for path in (tmp_path / "vit" / "1").glob("*.tflite")] == ["float32.tflite"]


@pytest.mark.parametrize("counts", [(12, 7), (7, 12)])
def test_int8_needs_enough_images_for_its_ranges_and_enough_for_the_judgement(counts):
    images = np.random.default_rng(0).uniform(-1, 1, (12, 8, 8, 3)).astype(np.float32)
    both = [Examples(images=images[:count], labels=None, name="all") for count in counts]
    reasons = module._refuse_weak_evidence(*both)
    assert reasons["int8"].endswith("Received: {} and {}".format(*counts))


def test_int8_on_images_that_hardly_differ_is_refused_and_the_report_says_why(
    build, tmp_path: Path
):
    alike = np.full((40, 32, 32, 3), 7, np.uint8)
    # no two are equal
    alike[np.arange(40), 0, np.arange(40) % 32] += np.arange(40, dtype=np.uint8)[:, None]
    with pytest.raises(
        ValueError,
        match=r"int8: the images \(the given images\) are too similar to set ranges for",
    ):
        tflite(build(), tmp_path / "vit", flavours=["int8", "float32"], images=alike)
    assert "The images are very similar" in (tmp_path / "vit" / "1" / "report.md").read_text()
    tflite(build(), tmp_path / "all", flavours=["int8"], images=alike, min_agreement=0)
    assert (tmp_path / "all" / "1" / "int8.tflite").is_file()


@pytest.mark.parametrize("count", [2, 20, pytest.param(200, marks=pytest.mark.slow)])
def test_generated_pictures_differ_enough(count: int):
    assert not take(None, (32, 32), count).are_alike()


def test_a_file_that_is_further_off_than_rounding_explains_is_refused(
    build, tmp_path: Path, monkeypatch
):
    model = build()
    moved = keras.Model(
        model.inputs[0], model.outputs[0] + 0.1 * keras.ops.sin(100 * model.outputs[0]), name="tiny"
    )

    def converted(graph: Graph, flavour: str) -> bytes:
        return convert(replace(graph, model=moved), flavour)

    monkeypatch.setattr(module, "convert", converted)
    with pytest.raises(ValueError, match="max error .*, of which rounding explains 0.0"):
        tflite(model, tmp_path / "vit", flavours=["float32"], images=LEVELS, min_agreement=0.5)
    assert list((tmp_path / "vit").iterdir()) == []


def test_one_image_is_enough(build, tmp_path: Path):
    (verdict,) = tflite(
        build(), tmp_path / "vit", flavours=["int8"], images=LEVELS[:1], min_agreement=0
    )
    assert verdict.num_images == 1


# ── what is refused ──


def test_a_refused_file_costs_only_itself(build, tmp_path: Path, monkeypatch):
    model = build()
    monkeypatch.setattr(module, "convert", spoiled(model, "dynamic_int8"))
    with pytest.raises(ValueError) as raised:
        tflite(
            model, tmp_path / "vit", flavours=["float32", "dynamic_int8", "float16"], images=LEVELS
        )
    message, folder = str(raised.value), tmp_path / "vit" / "1"
    assert "tiny must agree with it on 95.0% of the images" in message
    assert (
        "- dynamic_int8: top-1 agreement 0.0% on 12 images; max error" in message
        and "MB" in message
    )
    assert f"The other files are in {folder}" in message and "float16" not in message
    assert sorted(path.name for path in folder.glob("*.tflite")) == [
        "float16.tflite",
        "float32.tflite",
    ]
    rows = list(csv.DictReader((folder / "report.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [
        "float32.tflite",
        "dynamic_int8, refused",
        "float16.tflite",
    ]
    assert rows[1]["top1_agreement"] == "0.0"


def test_if_all_are_refused_nothing_is_written(build, tmp_path: Path, monkeypatch):
    model = build()
    monkeypatch.setattr(module, "convert", spoiled(model, "float32"))
    with pytest.raises(
        ValueError, match="(?s)- float32: top-1 agreement 0.0%.*Nothing was written"
    ):
        tflite(model, tmp_path / "vit", flavours=["float32"], images=LEVELS)
    assert list((tmp_path / "vit").iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.float32(3e38)])
def test_a_model_of_numbers_that_are_not_finite_is_refused_before_it_is_converted(
    build, tmp_path: Path, monkeypatch, value: float
):
    """The quantizer crashes with such weights, and the process with it."""
    model = build()
    kernel = model.get_layer("embedding").kernel
    kernel.assign(np.full(kernel.shape, value))
    monkeypatch.setattr(module, "convert", lambda *_: pytest.fail("converted"))
    with pytest.raises(
        ValueError, match=r"^The model returns \d+ NaN or infinite outputs on these"
    ):
        tflite(model, tmp_path / "vit", images=LEVELS, min_agreement=0)
    assert not (tmp_path / "vit").exists()


def test_without_a_threshold_all_are_written(build, tmp_path: Path, monkeypatch):
    model = build()
    monkeypatch.setattr(module, "convert", spoiled(model, "float32"))
    (verdict,) = tflite(
        model, tmp_path / "vit", flavours=["float32"], images=LEVELS, min_agreement=0
    )
    folder = tmp_path / "vit" / "1"
    assert verdict.top1_agreement == 0 and (folder / "float32.tflite").is_file()
    # so that the file passes a later check
    accepted = json.loads((folder / "keras_vit.json").read_text())["accepted"]["max_error"]
    assert accepted == {"float32": pytest.approx(2 * verdict.max_error)}


class Seen(Exception):
    """Ends an export before anything is converted."""


@pytest.mark.parametrize("preprocessing", [False, True])
def test_int8_is_calibrated_on_the_images_that_judge_nothing(
    preprocessing: bool, build, tmp_path: Path, monkeypatch
):
    seen = []

    def end(**named):
        seen.append(named["calibration"])
        raise Seen

    monkeypatch.setattr(module, "Graph", end)
    with pytest.raises(Seen):
        tflite(build(), tmp_path, images=MORE_LEVELS, preprocessing=preprocessing)
    ours, judged = set_aside(take(MORE_LEVELS, (32, 32), 200), 100)
    assert (len(ours.images), len(judged.images)) == (10, 10)
    levels = ours.pixels()
    scaled = levels if preprocessing else levels / 127.5 - 1
    np.testing.assert_allclose(seen[0], scaled, atol=1e-6)
    with pytest.raises(Seen):
        tflite(build(), tmp_path, images=LEVELS, calibration=judged, preprocessing=preprocessing)
    levels = judged.pixels()
    scaled = levels if preprocessing else levels / 127.5 - 1
    np.testing.assert_allclose(seen[1], scaled, atol=1e-6)


def test_a_file_that_cannot_be_made_costs_only_itself(build, tmp_path: Path, monkeypatch):
    def converted(graph: Graph, flavour: str) -> bytes:
        if flavour == "int8":
            raise ValueError("tiny cannot be converted to int8: no reason")
        return convert(graph, flavour)

    monkeypatch.setattr(module, "convert", converted)
    with pytest.raises(ValueError, match="- int8: tiny cannot be converted to int8: no reason"):
        tflite(build(), tmp_path / "vit", flavours=["int8", "float32"], images=MORE_LEVELS)
    assert [path.name for path in (tmp_path / "vit" / "1").glob("*.tflite")] == ["float32.tflite"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"flavours": ["int4"]},
            r"must be distinct names out of float32, float16, .*Received: \['int4'\]",
        ),
        ({"flavours": []}, "must be distinct names out of"),
        ({"flavours": ["int8", "int8"]}, "must be distinct"),
        ({"min_agreement": 95}, "must be between 0 and 1. Received: 95"),
        ({"num_images": 0}, "at least 1. Received: 0"),
        ({"image_size": 48}, "takes images of 32 x 32 pixels. Received: image_size=48"),
        ({"class_names": ["cat"]}, "7 classes. Received: 1 names"),
        ({"images": LEVELS[:, :16]}, "32 x 32 pixels. Received: 16 x 32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(
    build, tmp_path: Path, options, message
):
    with pytest.raises(ValueError, match=message):
        tflite(build(), tmp_path / "vit", **options)
    assert not (tmp_path / "vit").exists()


def test_models_that_do_not_fit_are_refused(build, tmp_path: Path):
    with pytest.raises(ValueError, match="input of images .* Received: inputs of shape .*None, 3"):
        tflite(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), tmp_path / "vit")
    keras.config.set_dtype_policy("mixed_bfloat16")
    with pytest.raises(ValueError, match="layers that compute in bfloat16. Build it under"):
        tflite(build(), tmp_path / "vit")


@pytest.mark.parametrize("package", ["ai_edge_litert", "ai_edge_quantizer"])
def test_what_is_missing_is_named_with_what_to_install(
    build, tmp_path: Path, monkeypatch, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="pip install .*ai-edge-litert"):
        tflite(build(), tmp_path / "vit", images=LEVELS)
    assert not (tmp_path / "vit").exists()


# ── models of real size ──


# Run in a new process, because a conversion holds several copies of the weights.
REAL = """
import sys
import numpy as np
import keras_vit
from keras_vit.export.tflite import tflite
model = keras_vit.ViT_S16(weights=None, classes=10, classifier_activation=None)
head = model.get_layer("predictions").kernel
# Logits of about 1, as a trained model has them: what rounding costs grows with them.
head.assign(np.random.default_rng(0).normal(0, 0.055, head.shape).astype("float32"))
plain, rounded = tflite(
    model, sys.argv[1], flavours=["float32", "dynamic_int8"], num_images=4, min_agreement=0.75
)
assert plain.max_error < 1e-3 and plain.top1_agreement == 1.0, plain
assert rounded.size_bytes < 0.3 * plain.size_bytes, rounded
"""


@pytest.mark.slow
def test_a_model_of_real_size_can_be_exported(tmp_path: Path):
    command = [sys.executable, "-c", REAL, str(tmp_path / "vit")]
    done = warm.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
