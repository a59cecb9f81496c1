"""Judging a file: what a fresh process finds, and everything that may be wrong with the file."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import warm

from keras_vit.export import runner, verdicts
from keras_vit.export.verdicts import judge, run, size_bytes

pytestmark = pytest.mark.tensorflow

IMAGES = np.random.default_rng(0).uniform(-1, 1, (11, 4, 4, 3)).astype(np.float32)


def _sums(images: tf.Tensor) -> tf.Tensor:
    """Two outputs of an image: the sums of its left and of its right half."""
    halves = tf.reduce_sum(tf.reshape(images, (-1, 4, 2, 2, 3)), axis=(1, 3, 4))
    return tf.cast(halves, tf.float32)


EXPECTED = _sums(tf.constant(IMAGES)).numpy()


def _save(folder: Path, function=_sums) -> Path:
    module = tf.Module()
    spec = tf.TensorSpec((None, 4, 4, 3), tf.float32, name="images")
    module.answer = tf.function(lambda images: {"logits": function(images)}, input_signature=[spec])
    tf.saved_model.save(module, folder, signatures={"predict": module.answer})
    return folder


def test_a_file_is_run_in_batches_and_timed(tmp_path: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(verdicts, "subprocess", subprocess)  # the process that users start
        outcome = run(_save(tmp_path / "model"), IMAGES, repeats=3)
    np.testing.assert_allclose(outcome.outputs, EXPECTED, atol=1e-5)
    assert outcome.latency_ms > 0
    assert np.isnan(run(tmp_path / "model", IMAGES[:1]).latency_ms)


TIMES = """
import sys
from pathlib import Path
from keras_vit.export import runner
seconds = iter([9.0, 9.0, 0.25, 0.5, 0.125])  # the first two runs warm up
runner.opened = lambda *_: lambda images: images
runner._measure_seconds = lambda run, images: next(seconds)
runner.main(Path(sys.argv[1]))
"""


def test_the_latency_is_the_median_in_milliseconds(tmp_path: Path):
    """The runner runs in another process, because it blocks the import of Keras."""
    np.save(tmp_path / "images.npy", IMAGES)
    request = {"path": "model.onnx", "images": f"{tmp_path}/images.npy", "signature": "predict"}
    request |= {"batch_size": 4, "repeats": 3, "outputs": f"{tmp_path}/outputs.npy"}
    (tmp_path / "request.json").write_text(json.dumps(request))
    line = [sys.executable, "-c", TIMES, f"{tmp_path}/request.json"]
    done = warm.run(line, capture_output=True, text=True, timeout=warm.HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"latency_ms": 250.0}
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), IMAGES)


def test_files_are_passed_as_they_are_and_the_first_numbers_by_name_come_back(tmp_path: Path):
    module = tf.Module()
    spec = tf.TensorSpec((None,), tf.string, name="image_bytes")
    module.answer = tf.function(
        lambda files: {"b": -tf.strings.length(files), "a": files, "c": tf.strings.length(files)},
        input_signature=[spec],
    )
    tf.saved_model.save(module, tmp_path / "model", signatures={"serving_default": module.answer})
    outcome = run(
        tmp_path / "model", np.array([b"ab\xff\x00c", b""]), signature="serving_default", repeats=1
    )
    assert outcome.outputs.tolist() == [-5, 0]


def test_a_verdict_counts_by_hand(tmp_path: Path):
    # As if the model had said otherwise of three images, by swapping its two outputs.
    expected, labels = EXPECTED.copy(), EXPECTED.argmax(1)
    expected[:3] = expected[:3, ::-1]
    labels[:2] = 1 - labels[:2]
    verdict = judge(_save(tmp_path / "model"), IMAGES, expected, labels=labels, repeats=1)
    assert verdict.name == "model" and verdict.num_images == 11
    assert verdict.top1_agreement == pytest.approx(8 / 11)
    assert verdict.accuracy == pytest.approx(9 / 11)
    gaps = np.abs(EXPECTED[:3, 0] - EXPECTED[:3, 1])
    assert verdict.max_error == pytest.approx(gaps.max(), abs=1e-4)
    assert verdict.mean_error == pytest.approx(2 * gaps.sum() / 22, abs=1e-4)
    assert verdict.size_bytes == sum(
        path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_an_answer_that_is_too_low_is_as_wrong_as_one_that_is_too_high(
    tmp_path: Path, shift: float
):
    verdict = judge(_save(tmp_path / "model"), IMAGES, EXPECTED + np.float32(shift), repeats=1)
    assert verdict.max_error == pytest.approx(0.5, abs=1e-4) == verdict.mean_error


def test_weights_beside_the_graph_count_too(tmp_path: Path):
    (tmp_path / "model.xml").write_bytes(bytes(10))
    assert size_bytes(tmp_path / "model.xml") == 10
    (tmp_path / "model.bin").write_bytes(bytes(100))
    assert size_bytes(tmp_path / "model.xml") == 110


@pytest.mark.parametrize(
    ("value", "said"),
    [("nan", "returns 22 NaN and 0 infinite outputs"), ("inf", "returns 0 NaN and 22 infinite")],
)
def test_outputs_that_are_no_numbers_are_no_answer(tmp_path: Path, value: str, said: str):
    """No comparison with NaN is true, so a difference above a tolerance is not seen."""
    folder = _save(tmp_path / "model", lambda images: tf.abs(_sums(images)) + float(value))
    with pytest.raises(ValueError, match=said):
        judge(folder, IMAGES, EXPECTED)


def test_outputs_of_another_shape_are_no_answer(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"outputs of shape \(11, 2\); the model returns \(11, 3\)"
    ):
        judge(_save(tmp_path / "model"), IMAGES, np.zeros((11, 3)))


def test_a_file_that_leans_on_python_of_its_maker_is_found_out(tmp_path: Path):
    """A `tf.numpy_function` lives in the process that made it: that one would never notice."""
    made = _save(
        tmp_path / "model",
        lambda x: tf.ensure_shape(
            tf.numpy_function(lambda x: x, [_sums(x)], tf.float32), (None, 2)
        ),
    )
    loaded = tf.saved_model.load(made)
    np.testing.assert_allclose(
        loaded.signatures["predict"](tf.constant(IMAGES))["logits"], EXPECTED, atol=1e-5
    )
    with pytest.raises(ValueError, match="cannot be run: .*"):
        run(made, IMAGES)


@pytest.mark.parametrize("name", ["model.tflite", "model.onnx", "model.xml"])
def test_rubbish_is_named_and_ends_nothing_but_its_own_process(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"rubbish" * 100)
    with pytest.raises(ValueError, match=rf"{name} cannot be run: .+"):
        run(tmp_path / name, IMAGES)


def test_what_is_no_export_and_a_signature_that_is_not_there_are_said(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        ValueError, match=r"cannot be run: expected a SavedModel or a file \.tflite, \.onnx, \.xml"
    ):
        run(tmp_path / "notes.txt", IMAGES)
    with pytest.raises(ValueError, match="has no signature 'attention'. It has predict"):
        run(_save(tmp_path / "model"), IMAGES, signature="attention")


def test_an_export_is_run_without_keras_and_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def opened(*_):
        for name in ("keras", "keras_vit"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)
        return lambda images: images

    for name in ("keras", "keras_vit"):  # which the runner takes out of this process
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    monkeypatch.setattr(runner, "opened", opened)
    np.save(tmp_path / "images.npy", IMAGES)
    request = {
        "path": str(tmp_path),
        "images": str(tmp_path / "images.npy"),
        "signature": None,
        "batch_size": 4,
        "repeats": 0,
        "outputs": str(tmp_path / "outputs.npy"),
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    runner.main(tmp_path / "request.json")
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), IMAGES)
