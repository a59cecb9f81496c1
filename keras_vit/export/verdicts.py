"""Comparison of an exported file with its model.

An exporter that returns does not prove that its file works. So each file is loaded and run, in a
separate process.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vit.export.versions import temporary_folder
from keras_vit.extras import install
from keras_vit.writing import write_array

_RUNNER = Path(__file__).with_name("runner.py")
_BATCH = 8
# Without TensorFlow's log lines, which would mix with the answer, and without GPUs, which round
# differently. OpenVINO sends usage data unless CI is set.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "CI": "true"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outputs of an exported file.

    Attributes:
        outputs: (n, ...) float32.
        latency_ms: Median time for a batch of one, on two threads, in milliseconds; NaN if it was
            not measured.
    """

    outputs: np.ndarray
    latency_ms: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Differences between an exported file and its model.

    Attributes:
        name: Name of the file, or of its format.
        size_bytes: Size of the file, or of all files in the folder.
        num_images: Number of images on which both were run.
        top1_agreement: Share of images with the same highest output.
        max_error: Largest absolute difference of an output.
        mean_error: Mean absolute difference of the outputs.
        latency_ms: As in `Outcome`.
        accuracy: Share of images that the file classifies correctly; None without labels.
        version: Folder of the export; None until it is written.
    """

    name: str
    size_bytes: int
    num_images: int
    top1_agreement: float
    max_error: float
    mean_error: float
    latency_ms: float
    accuracy: float | None
    version: Path | None = None


def run(
    path: str | os.PathLike, images: np.ndarray, *, signature: str = "predict", repeats: int = 0
) -> Outcome:
    """Runs an exported file on images, in a new process without Keras.

    Args:
        path: Folder of a SavedModel, or a file `.tflite`, `.onnx`, or `.xml` of OpenVINO.
        images: (n, ...) in the form that the file takes.
        signature: Signature of a SavedModel with one input. The first numeric output, in
            alphabetical order, is returned: for `serving_default` the `class_ids`.
        repeats: Number of timed runs of a batch of one.

    Raises:
        ValueError: If the file cannot be loaded or run. The message is that of the runtime.
    """
    with temporary_folder("keras_vit_run_") as folder:
        request = {
            "path": str(Path(path).resolve()),
            "images": str(folder / "images.npy"),
            "outputs": str(folder / "outputs.npy"),
            "signature": signature,
            "batch_size": _BATCH,
            "repeats": repeats,
        }
        write_array(folder / "images.npy", images)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        # -I: imports nothing from the current folder or PYTHONPATH.
        done = subprocess.run(
            [sys.executable, "-I", str(_RUNNER), str(folder / "request.json")],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | _ENVIRONMENT,
        )
        if done.returncode:
            raise ValueError(f"{path} cannot be run: {_explain_failure(done)}")
        latency_ms = json.loads(done.stdout.splitlines()[-1])["latency_ms"]
        outputs = np.load(folder / "outputs.npy")
    return Outcome(outputs=outputs, latency_ms=float("nan") if latency_ms is None else latency_ms)


def _explain_failure(done: subprocess.CompletedProcess[str]) -> str:
    said, complained = done.stdout.strip().splitlines(), done.stderr.strip()[-1000:]
    if said and said[-1].startswith('{"error": '):
        told = json.loads(said[-1])
        return f"{told['error']}. {install(told['extra'])}" if told["extra"] else told["error"]
    if done.returncode < 0:
        return f"the process ended with signal {-done.returncode}. {complained}".strip()
    return complained or f"exit code {done.returncode}, without output."


def check_finite(answers: np.ndarray) -> None:
    """Raises a ValueError if an output of a model is NaN or infinite."""
    if not np.isfinite(answers).all():
        raise ValueError(
            f"The model returns {np.sum(~np.isfinite(answers))} NaN or infinite outputs on these "
            f"images, so no export can be compared with it. Check its weights."
        )


def judge(
    path: str | os.PathLike,
    images: np.ndarray,
    expected: np.ndarray,
    *,
    labels: np.ndarray | None = None,
    name: str = "",
    repeats: int = 20,
) -> Verdict:
    """Runs an exported file and compares its outputs with those of the model.

    Args:
        path, images, repeats: As in `run`.
        expected: (n, Y) outputs of the model for the same images.
        labels: (n,) true classes, if known.
        name: Name in tables; default: the name of the file.

    Raises:
        ValueError: If the file cannot be run, its outputs have another shape, or an output of the
            file or of the model is NaN or infinite.
    """
    outcome = run(path, images, repeats=repeats)
    given = outcome.outputs
    if given.shape != expected.shape:
        raise ValueError(
            f"{path} returns outputs of shape {given.shape}; the model returns {expected.shape}."
        )
    check_finite(expected)
    if not np.isfinite(given).all():
        raise ValueError(
            f"{path} returns {np.isnan(given).sum()} NaN and {np.isinf(given).sum()} infinite "
            f"outputs."
        )
    errors = np.abs(given - expected)
    answers, right = (
        given.reshape(len(given), -1).argmax(1),
        expected.reshape(len(given), -1).argmax(1),
    )
    return Verdict(
        name=name or Path(path).name,
        size_bytes=size_bytes(Path(path)),
        num_images=len(images),
        top1_agreement=float(np.mean(answers == right)),
        max_error=float(errors.max()),
        mean_error=float(errors.mean()),
        latency_ms=outcome.latency_ms,
        accuracy=None if labels is None else float(np.mean(answers == labels)),
    )


def size_bytes(path: Path) -> int:
    """Returns the size of all files in a folder, or of a file with its separate weights, if any."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    weights = path.with_suffix(".bin")
    return path.stat().st_size + (
        weights.stat().st_size if path.suffix == ".xml" and weights.is_file() else 0
    )
