"""A format that fails, in whatever way, costs only itself, and what is said of the others is
right.
"""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export import delivery
from keras_vit.export.examples import Examples
from keras_vit.export.verdicts import Verdict
from keras_vit.export.versions import new_version
from keras_vit.weights.published_crop import find_crop

pytestmark = pytest.mark.tensorflow


def _verdict(version: Path) -> Verdict:
    numbers = {
        "top1_agreement": 1.0,
        "max_error": 0.0,
        "mean_error": 0.0,
        "latency_ms": 1.0,
        "accuracy": None,
    }
    return Verdict(name="model", size_bytes=1, num_images=1, version=version, **numbers)


@pytest.fixture
def deliver(tiny_vit, tmp_path: Path, monkeypatch):
    """Delivers with exporters that write a file, or fail."""
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=3)
    monkeypatch.setattr(delivery.classifier, "build", lambda *_: model)
    images = Examples(images=np.zeros((2, 32, 32, 3), np.float32), labels=None, name="two")
    monkeypatch.setattr(delivery, "find_examples", lambda *_: images)
    parity = {
        name: value
        for name, value in dataclasses.asdict(_verdict(tmp_path)).items()
        if name != "version"
    }
    monkeypatch.setattr(delivery, "read_facts", lambda _: {"parity": parity})

    def exporter(format_: str, error: BaseException | None, others: int):
        def export(_: keras.Model, path: Path, **__: Any) -> Any:
            with new_version(path) as version:
                (version.folder / "model").write_text(format_)
                if error is not None:
                    raise error
            for _ in range(others):  # who are faster
                with new_version(path):
                    pass
            verdict = _verdict(version.path)
            return {"saved_model": version.path, "tflite": [verdict]}.get(format_, verdict)

        return export

    def delivered(errors: dict[str, BaseException], others: int = 0) -> tuple[list[str], list[str]]:
        for name in delivery.FORMATS:
            monkeypatch.setattr(delivery, name, exporter(name, errors.get(name), others))
        said: list[str] = []
        wanted = delivery.Wanted(formats=delivery.FORMATS)
        return delivery.deliver(
            "ViT_Ti16", tmp_path / "out", wanted, num_images=2, say=said.append
        ), said

    return delivered


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InvalidArgumentError(None, None, "empty line found at position 5"),
        RuntimeError("no reason"),
        KeyError("x"),
        MemoryError(),
        OSError(28, "No space left on device"),
        np.linalg.LinAlgError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ends_one_format_the_others_are_delivered(
    deliver, tmp_path: Path, error: Exception
):
    problems, said = deliver({"saved_model": error, "onnx": error})
    assert [problem.split(":")[0] for problem in problems] == ["saved_model", "onnx"]
    assert all(
        "Traceback" not in problem and len(problem.splitlines()) <= 10 for problem in problems
    )
    assert [path.parent.name for path in tmp_path.rglob("model")] == ["1", "1"]
    assert [line for line in said if "out/tflite/1" in line] and [
        line for line in said if "out/openvino/1" in line
    ]


def test_a_full_disk_is_said_in_a_sentence(deliver):
    error = tf.errors.ResourceExhaustedError(None, None, "/x/variables; No space left on device")
    problems, _ = deliver({"saved_model": error})
    assert (
        len(problems) == 1
        and "The disk is full: make room. The new version was not written" in problems[0]
    )


def test_the_version_that_is_named_is_the_own_one_and_not_the_latest(deliver):
    _, said = deliver({}, others=2)
    tables = [line for line in said if line.startswith("\n")]
    assert [Path(line.split("\n")[1]).name for line in tables] == ["1"] * 4


def test_every_format_is_judged_on_the_images_that_set_no_ranges(tiny_vit, tmp_path, monkeypatch):
    """Each exporter gets the same images, and the others for calibration if there is int8."""
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=3)
    built = []
    monkeypatch.setattr(delivery.classifier, "build", lambda *all_: built.append(all_) or model)
    pixels = np.random.default_rng(0).uniform(-1, 1, (12, 32, 32, 3)).astype(np.float32)
    images = Examples(images=pixels, labels=None, name="twelve")
    monkeypatch.setattr(delivery, "find_examples", lambda *_: images)
    monkeypatch.setattr(delivery, "_choose_crop", lambda *_: "resize_shorter")
    seen: dict[str, dict] = {}

    def exporter(name: str):
        def export(_model: keras.Model, _path: Path, **given: Any) -> Any:
            seen[name] = given
            raise ValueError("enough")

        return export

    for name in delivery.FORMATS:
        monkeypatch.setattr(delivery, name, exporter(name))
    of_saved_model = {"precision": "bfloat16", "attention": True, "any_size": True, "top": 2}
    of_tflite = {"fixed_batch": True, "preprocessing": True, "min_agreement": 0.5}
    for flavours, count in ((("int8", "float32"), 6), (("float32",), 12)):
        wanted = delivery.Wanted(
            formats=delivery.FORMATS, flavours=flavours, **of_saved_model, **of_tflite
        )
        options = {"image_size": (32, 32), "pixels": "0..1", "say": lambda _: None}
        assert len(delivery.deliver("ViT_Ti16", tmp_path, wanted, **options)) == 4
        assert built.pop() == ("ViT_Ti16", None, (32, 32), "0..1")
        assert seen.keys() == set(delivery.FORMATS)
        for given in seen.values():
            judged, calibration = given["images"], given["calibration"]
            assert len(judged.images) == given["num_images"] == count
            assert given["eval_crop"] == "resize_shorter" and given["identity"]["pixels"] == "0..1"
            if count == 12:
                assert calibration is None
                continue
            both = np.concatenate([judged.images, calibration.images])
            assert len(np.unique(both.reshape(12, -1), axis=0)) == 12
        # all differ from their defaults
        assert seen["tflite"].items() >= {"flavours": flavours, **of_tflite}.items()
        assert seen["saved_model"].items() >= of_saved_model.items()


@pytest.mark.parametrize(
    ("weights", "recorded"),
    [
        ("mine.npz", "{here}/mine.npz"),
        ("imagenet", "imagenet"),
        (
            "https://me:secret@example.org/mine.npz?token=secret",
            "https://***@example.org/mine.npz?***",
        ),
    ],
)
def test_the_origin_is_recorded_with_absolute_paths_and_without_secrets(
    tiny_vit, tmp_path: Path, monkeypatch, weights: str, recorded: str
):
    """A check from another folder finds the files, and the record can be published."""
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=3)
    monkeypatch.setattr(delivery.classifier, "build", lambda *_: model)
    images = Examples(images=np.zeros((2, 32, 32, 3), np.float32), labels=None, name="two")
    monkeypatch.setattr(delivery, "find_examples", lambda *_: images)
    seen = []

    def export(_model: keras.Model, _path: Path, **given: Any) -> Any:
        seen.append(given["identity"])
        raise ValueError("enough")

    monkeypatch.setattr(delivery, "onnx", export)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.npz").touch()
    (tmp_path / "photos").mkdir()
    wanted = delivery.Wanted(formats=["onnx"])
    options = {"weights": weights, "images": "photos", "num_images": 2, "say": lambda _: None}
    delivery.deliver("ViT_B16", tmp_path / "out", wanted, **options)
    here = tmp_path.resolve()
    assert seen == [
        {
            "model": "ViT_B16",
            "weights": recorded.format(here=here),
            "image_size": [32, 32],
            "judged_on": f"{here}/photos",
            "num_images": 2,
        }
    ]


def test_photos_are_cropped_as_in_the_published_evaluation():
    crop = find_crop("DeiT_B16", "in1k")
    assert crop != "resize" and delivery._choose_crop("DeiT_B16", "in1k", (224, 224)) == crop
    assert delivery._choose_crop("DeiT_B16", "in1k", (224, 256)) == "resize"
    assert delivery._choose_crop("DeiT_B16", None, (224, 224)) == "resize"
    assert delivery._choose_crop("ViT_B16", "imagenet", (224, 224)) == "resize"


def test_an_interruption_is_no_failure_of_a_format(deliver):
    with pytest.raises(KeyboardInterrupt):
        deliver({"tflite": KeyboardInterrupt()})
