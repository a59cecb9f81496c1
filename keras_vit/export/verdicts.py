"""How far an exported file is from the model it was made of.

The return value of an exporter proves nothing: a file is judged by loading and running it, in a
    process of its own.
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

_RUNNER = Path(__file__).with_name("runner.py")
_BATCH = 8
# TensorFlow's log lines are no answer, graphics cards round otherwise, and OpenVINO sends usage
# data unless this is CI.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "CI": "true"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an exported file gives.

    Attributes:
        outputs: (n, ...) float32.
        latency_ms: Median time for a batch of one, on two threads, in milliseconds; NaN if it was
            not asked for.
    """

    outputs: np.ndarray
    latency_ms: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far an exported file is from the model.

    Attributes:
        name: Of the file, or of what it is.
        size_bytes: Of the file, or of all that is in the folder.
        num_images: How many images both were asked about.
        top1_agreement: The share of images whose highest output is the same.
        max_error: The greatest absolute difference of an output.
        mean_error: The mean of the absolute differences.
        latency_ms: As in `Outcome`.
        accuracy: The share of images that the file names correctly, or None without labels.
        version: Folder in which the export is, once it is there.
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
    """Runs an exported file on images, in a fresh process without Keras.

    Args:
        path: Folder of a SavedModel; or a file `.tflite`, `.onnx`, or `.xml` of OpenVINO.
        images: (n, ...) as the file takes them.
        signature: Of a SavedModel; it must take one input. Of its outputs the first is returned
            that holds numbers, in
            the order of their names: of `serving_default` the `class_ids`.
        repeats: How often to time a batch of one.

    Raises:
        ValueError: If the file cannot be loaded or run; the message is that of the runtime.
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
        np.save(folder / "images.npy", images)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        # -I: neither the current folder nor PYTHONPATH lends it anything.
        done = subprocess.run(
            [sys.executable, "-I", str(_RUNNER), str(folder / "request.json")],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | _ENVIRONMENT,
        )
        if done.returncode:
            raise ValueError(f"{path} cannot be run: {_reason(done)}")
        latency_ms = json.loads(done.stdout.splitlines()[-1])["latency_ms"]
        outputs = np.load(folder / "outputs.npy")
    return Outcome(outputs=outputs, latency_ms=float("nan") if latency_ms is None else latency_ms)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    said, complained = done.stdout.strip().splitlines(), done.stderr.strip()[-1000:]
    if said and said[-1].startswith('{"error": '):
        told = json.loads(said[-1])
        return f"{told['error']}. {install(told['extra'])}" if told["extra"] else told["error"]
    if done.returncode < 0:
        return f"the process ended with signal {-done.returncode}. {complained}".strip()
    return complained or f"exit code {done.returncode}, without a word."


def judge(
    path: str | os.PathLike,
    images: np.ndarray,
    expected: np.ndarray,
    *,
    labels: np.ndarray | None = None,
    name: str = "",
    repeats: int = 20,
) -> Verdict:
    """Runs an exported file and compares what it gives with what the model gave.

    Args:
        path, images, repeats: As in `run`.
        expected: (n, Y) outputs of the model for the same images.
        labels: (n,) the right classes, if they are known.
        name: For the table; default: the name of the file.

    Raises:
        ValueError: If the file cannot be run, or gives outputs of another shape; or outputs, of the
            file or of the model, are no numbers.
    """
    outcome = run(path, images, repeats=repeats)
    given = outcome.outputs
    if given.shape != expected.shape:
        raise ValueError(
            f"{path} gives outputs of shape {given.shape}, the model {expected.shape}."
        )
    if not np.isfinite(expected).all():
        raise ValueError(
            f"The model gives {np.sum(~np.isfinite(expected))} outputs that are no numbers."
        )
    if not np.isfinite(given).all():
        raise ValueError(
            f"{path} gives {np.isnan(given).sum()} NaN and {np.isinf(given).sum()} infinite "
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
    """Returns the size of a file, with the weights beside it where they are apart, or of all files
    in a folder.
    """
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    weights = path.with_suffix(".bin")
    return path.stat().st_size + (
        weights.stat().st_size if path.suffix == ".xml" and weights.is_file() else 0
    )
