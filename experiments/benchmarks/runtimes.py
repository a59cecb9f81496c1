"""Latency and throughput of one model in all export formats and runtimes.

    pip install ".[tflite,onnx,openvino]"
    python experiments/benchmarks/runtimes.py --output=runs/runtimes     # ViT-B/16: half an hour on two cores
    python experiments/benchmarks/runtimes.py --output=runs/small --model=ViT_Ti16 --seconds=2

All files have the same random weights. Each file runs in its own process, on all cores. All are
measured alternately: compare ratios rather than milliseconds. Latency is that of one image, its p50
and p99 over all calls; throughput is that of batches of 16. Errors are the largest on 4 images,
relative to the largest output of the model. Writes the exported files, `runtimes.csv` and
`runtimes.md` to the folder; existing exported files are not written again. The table names runtimes
that are not installed.

The export of ViT-B/16 to ONNX needs 9 GB of memory.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import native_logs

import keras
import numpy as np
from absl import app, flags
from rivals.racing import Worker
from tqdm import tqdm

import keras_vit
from keras_vit.export import FLAVOURS
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.writing import table, write_array, write_csv, write_text

_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder of the files and of the results.", required=True
)
_MODEL = flags.DEFINE_enum(
    "model", "ViT_B16", [*VIT_VARIANTS, *RESNET_VARIANTS], "Name of the model in keras_vit."
)
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Side, in pixels.", lower_bound=16)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 16, "Images per batch, for throughput.", lower_bound=4
)
_FORMS = flags.DEFINE_list("forms", [], "Rows, such as `LiteRT int8`. Default: all.")
_REPEATS = flags.DEFINE_integer("repeats", 4, "Measurements of each form.", lower_bound=1)
_SECONDS = flags.DEFINE_float(
    "seconds", 6.0, "Minimum time of a measurement of latency or throughput."
)
_THREADS = flags.DEFINE_integer(
    "threads", os.cpu_count(), "Threads of the runtimes that can be limited; others use all cores."
)


@dataclass(frozen=True)
class Form:
    """An exported file and its runtime.

    Attributes:
        runtime: Name of the runtime, as in `rivals/runtime_worker.py`.
        folder: Folder of versions in the output folder; "" for the output folder itself.
        file: Name of the file; "" if the version folder is loaded.
        option: Precision or flavour of the export.
    """

    runtime: str
    folder: str
    file: str = ""
    option: str = ""

    def path(self, output: Path) -> Path:
        return output / self.folder / "1" / self.file if self.folder else output / self.file


FORMS = {
    "Keras": Form("keras", "", "model.keras"),
    "SavedModel float32": Form("saved_model", "saved_model", option="float32"),
    "SavedModel bfloat16": Form("saved_model", "saved_model_bfloat16", option="bfloat16"),
    **{
        f"LiteRT {name}": Form("litert", f"litert_{name}", f"{name}.tflite", name)
        for name in FLAVOURS
    },
    "ONNX Runtime": Form("onnx", "onnx", "model.onnx"),
    "OpenVINO float32": Form("openvino", "openvino", "model.xml"),
    "OpenVINO bfloat16": Form("openvino bfloat16", "openvino", "model.xml"),
}


@dataclass
class Result:
    """Measurements of a form: seconds of each call by batch size, memory, error, and why it is
    absent, or "".
    """

    seconds: dict[int, list[float]] = field(default_factory=dict)
    peak_mb: float = 0.0
    error: float = 0.0
    absent: str = ""


def main(_argv: list[str]) -> None:
    names = _FORMS.value or list(FORMS)
    if set(names) - set(FORMS):
        raise app.UsageError(
            f"`--forms` must be of {list(FORMS)}. Received: "
            f"{', '.join(sorted(set(names) - set(FORMS)))}."
        )
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    images = _draw_images()
    write_array(output / "images.npy", images)
    expected = _load_or_build(output).predict_on_batch(images)
    refusals = {
        name: _write_file(output, FORMS[name]) for name in tqdm(names, desc="files", disable=None)
    }
    results = {name: Result(absent=refusal) for name, refusal in refusals.items()}
    _race(output, results, expected)
    rows = [_make_row(output, name, result) for name, result in results.items()]
    head = [
        "form",
        "MB",
        "p50, ms",
        "p99, ms",
        f"images/s at {_BATCH_SIZE.value}",
        "peak MB",
        "error",
    ]
    write_text(output / "runtimes.md", table(head, rows) + "\n")
    write_csv(output / "runtimes.csv", head, rows)
    print(f"\n{table(head, rows)}\n\nIn {output}: runtimes.csv, runtimes.md and the files")


def _draw_images() -> np.ndarray:
    size = (_BATCH_SIZE.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3)
    return np.random.default_rng(0).uniform(-1, 1, size).astype("float32")


def _load_or_build(output: Path) -> keras.Model:
    file = output / "model.keras"
    if file.is_file():
        return keras.saving.load_model(file, compile=False)
    size = (_IMAGE_SIZE.value, _IMAGE_SIZE.value, 3)
    model = getattr(keras_vit, _MODEL.value)(
        weights=None, input_shape=size, classifier_activation=None
    )
    draws = np.random.default_rng(0)
    # converters would remove biases of zero together with their additions
    for weight in model.weights:
        weight.assign(weight + draws.normal(0, 0.02, weight.shape))
    model.save(file)
    return model


def _write_file(output: Path, form: Form) -> str:
    """Exports the model, unless the file exists. Returns the reason of a failure, or ""."""
    if form.path(output).exists():
        return ""
    model, folder, images = _load_or_build(output), output / form.folder, _draw_images()[:8]
    export = keras_vit.export
    try:
        if form.runtime == "saved_model":
            export.saved_model(model, folder, precision=form.option, images=images)
        elif form.runtime == "litert":
            export.tflite(
                model, folder, flavours=[form.option], images=images, num_images=8, min_agreement=0
            )
        else:
            (export.onnx if form.runtime == "onnx" else export.openvino)(
                model, folder, images=images
            )
    except (ImportError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""


def _race(output: Path, results: dict[str, Result], expected: np.ndarray) -> None:
    workers: dict[str, Worker] = {}
    try:
        for turn in tqdm(range(_REPEATS.value), unit="turn", disable=None):
            for name in list(results)[:: -1 if turn % 2 else 1]:
                result = results[name]
                if not result.absent and name not in workers:
                    form = FORMS[name]
                    arguments = [
                        form.runtime,
                        form.path(output),
                        output / "images.npy",
                        _THREADS.value,
                    ]
                    workers[name] = Worker("rivals.runtime_worker", *map(str, arguments))
                    _take_first(workers[name].answer(), result, expected)
                if not result.absent:
                    _take_turn(workers[name], result)
    finally:
        for worker in workers.values():
            worker.end()


def _take_first(answer: dict, result: Result, expected: np.ndarray) -> None:
    result.absent = answer.get("absent", "")
    if not result.absent:
        given = np.array(answer["outputs"])
        result.error = float(np.abs(given - expected[: len(given)]).max() / np.abs(expected).max())


def _take_turn(worker: Worker, result: Result) -> None:
    for batch_size in (1, _BATCH_SIZE.value):
        found = worker.ask(f"turn {batch_size} {_SECONDS.value}")
        result.absent = found.get("absent", "")
        if result.absent:
            return
        result.seconds.setdefault(batch_size, []).extend(found["seconds"])
        result.peak_mb = max(result.peak_mb, found["peak_mb"])


def _make_row(output: Path, name: str, result: Result) -> list[str]:
    if result.absent:
        return [name, *[""] * 5, result.absent]
    path = FORMS[name].path(output)
    if path.suffix == ".xml":
        path = path.parent
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    p50, p99 = np.percentile(result.seconds[1], [50, 99]) * 1000
    rate = _BATCH_SIZE.value / np.median(result.seconds[_BATCH_SIZE.value])
    size = sum(file.stat().st_size for file in files) / 1e6
    return [
        name,
        f"{size:.0f}",
        f"{p50:.1f}",
        f"{p99:.1f}",
        f"{rate:.2f}",
        f"{result.peak_mb:.0f}",
        f"{result.error:.1g}",
    ]


if __name__ == "__main__":
    app.run(main)
