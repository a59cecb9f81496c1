"""Accuracy, agreement, size and latency of all TFLite flavours of a model, compared with KerasHub.

    python experiments/benchmarks/export.py --model=model.keras --data=FOLDER [--limit=1000] [--fixed_batch]

FOLDER holds one folder for each class, in the order of the model's classes. The rival is KerasHub's
`ViTBackbone` with a dense head, with the same numbers of layers, heads and patches, the same width,
and random weights, converted by the same function. All files of both run on one image at a time,
alternately, in one process with two threads. Compare ratios of medians rather than milliseconds. A
flavour that loses more than 0.5 points of accuracy is marked.
"""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import native_logs

import keras
import numpy as np
from absl import app, flags

from keras_vit.data import sources
from keras_vit.export import FLAVOURS, Verdict, latest, take, tflite
from keras_vit.writing import table

_MODEL = flags.DEFINE_string("model", None, "A trained ViT, `model.keras`.", required=True)
_DATA = flags.DEFINE_string(
    "data", None, "Folder with one folder of images per class.", required=True
)
_LIMIT = flags.DEFINE_integer(
    "limit", 1000, "Maximum number of images to measure accuracy on.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer("repeats", 100, "Measurements of each file.", lower_bound=1)
_FIXED_BATCH = flags.DEFINE_bool(
    "fixed_batch", False, "Export files for one image instead of any number of images."
)
_FLAVOURS = flags.DEFINE_list("flavours", list(FLAVOURS), "Flavours to export.")

_MOST_POINTS_LOST = 0.5
_NUM_THREADS = 2


def main(_argv: list[str]) -> None:
    model = _remove_softmax(keras.saving.load_model(_MODEL.value, compile=False))
    height, width = model.input_shape[1:3]
    source = sources.image_folder(_DATA.value)
    print(
        f"{model.name}, {model.count_params():,} parameters, {height} x {width} pixels, "
        f"{source.name}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        options = {
            "flavours": _FLAVOURS.value,
            "min_agreement": 0,
            "fixed_batch": _FIXED_BATCH.value,
        }
        verdicts = tflite(
            model, Path(name, "ours"), images=source, num_images=_LIMIT.value, **options
        )
        files = {"ours": latest(Path(name, "ours"))}
        if importlib.util.find_spec("keras_hub") is None:
            print('KerasHub is not installed, its latency is omitted: pip install ".[benchmark]"')
        else:
            tflite(_build_rival(model), Path(name, "rival"), num_images=1, **options)
            files["keras-hub"] = latest(Path(name, "rival"))
        paths = {
            (whose, flavour): files[whose] / f"{flavour}.tflite"
            for whose in files
            for flavour in _FLAVOURS.value
        }
        sizes = {key: path.stat().st_size for key, path in paths.items()}
        image = take(source, (height, width), 1).images
        latency = _measure_latency_ms({key: _load(path, image) for key, path in paths.items()})
    print(_make_accuracy_table(verdicts))
    print(f"\n{_make_latency_table(sizes, latency)}")


def _remove_softmax(model: keras.Model) -> keras.Model:
    """Returns the model with logits as output, as probabilities near 0 and 1 hide differences."""
    model.get_layer("predictions").activation = keras.activations.linear
    return model


def _build_rival(model: keras.Model) -> keras.Model:
    """Returns KerasHub's ViT with the layers, heads, patches and width of `model`."""
    import keras_hub

    blocks = [layer for layer in model.layers if layer.name.startswith("encoderblock_")]
    sizes, patches = blocks[0].get_config(), model.get_layer("embedding")
    backbone = keras_hub.models.ViTBackbone(
        image_shape=model.input_shape[1:],
        patch_size=model.input_shape[1] // patches.output.shape[1],
        num_layers=len(blocks),
        num_heads=sizes["num_heads"],
        hidden_dim=patches.output.shape[-1],
        mlp_dim=sizes["mlp_dim"],
    )
    classes = model.output_shape[-1]
    logits = keras.layers.Dense(classes, name="predictions")(backbone.output[:, 0])
    rival = keras.Model(backbone.input, logits, name="keras_hub_vit")
    rng = np.random.default_rng(0)
    # the converter would remove biases of zero together with their additions
    for weight in rival.weights:
        weight.assign(weight + rng.normal(0, 0.02, weight.shape))
    print(f"{rival.name}, {rival.count_params():,} parameters", flush=True)
    return rival


def _load(path: Path, image: np.ndarray) -> Callable[[], None]:
    """Returns a function that runs the file on the image."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=_NUM_THREADS)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
    return interpreter.invoke


def _measure_latency_ms(
    files: dict[tuple[str, str], Callable[[], None]],
) -> dict[tuple[str, str], float]:
    milliseconds: dict[tuple[str, str], list[float]] = {key: [] for key in files}
    for turn in range(_REPEATS.value + 2):
        for key in list(files)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            files[key]()
            if turn >= 2:  # the first two are warm-up
                milliseconds[key].append(1000 * (time.perf_counter() - start))
    return {key: statistics.median(values) for key, values in milliseconds.items()}


def _make_accuracy_table(verdicts: list[Verdict]) -> str:
    best = next(
        (verdict for verdict in verdicts if verdict.name == "float32.tflite"), verdicts[0]
    ).accuracy
    rows = []
    for found in verdicts:
        gained = 100 * (found.accuracy - best)
        words = "not recommended" if gained < -_MOST_POINTS_LOST else ""
        errors = [f"{found.max_error:.2g}", f"{found.mean_error:.2g}"]
        rows.append(
            [
                found.name,
                f"{found.accuracy:.2%}",
                f"{gained:+.2f}",
                f"{found.top1_agreement:.2%}",
                *errors,
                words,
            ]
        )
    header = ["file", "accuracy", "points", "agreement", "max error", "mean error", ""]
    return f"{verdicts[0].num_images:,} images\n{table(header, rows)}"


def _make_latency_table(
    sizes: dict[tuple[str, str], int], latency: dict[tuple[str, str], float]
) -> str:
    header, rows = ["flavour"], [[flavour] for flavour in _FLAVOURS.value]
    names = list(dict.fromkeys(whose for whose, _ in latency))
    for whose in names:
        header += [f"{whose}, MB", f"{whose}, ms"]
        for row in rows:
            row += [f"{sizes[whose, row[0]] / 1e6:.3f}", f"{latency[whose, row[0]]:.3f}"]
    if len(names) == 2:
        header.append("ours / keras-hub")
        for row in rows:
            row.append(f"{latency[names[0], row[0]] / latency[names[1], row[0]]:.2f}")
    return table(header, rows)


if __name__ == "__main__":
    app.run(main)
