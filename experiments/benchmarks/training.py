"""Training speed: `fit` compared with Keras's and a bare loop, the input pipeline with timm's.

    python experiments/benchmarks/training.py --photos=/data/photos     # everything; any folder of JPEGs
    python experiments/benchmarks/training.py --measure=fit --repeats=9

The contestants are measured alternately, so that load on the machine affects all of them equally:
compare ratios rather than rates. timm runs in a separate process. If timm or torchvision is not
installed (`pip install ".[benchmark]"`), its rows are omitted, with a message. The speed of drawing
fractals has no rival.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import native_logs

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from keras_vit.data import pipeline, randaugment, sources, transforms
from keras_vit.models import vision_transformer
from keras_vit.train.learner import make_learner
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer
from keras_vit.variants import VIT_VARIANTS

_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["fit", "input", "fractals"], ["fit", "input", "fractals"], "What to measure."
)
_PHOTOS = flags.DEFINE_string(
    "photos", None, "Folder of JPEGs, searched with its subfolders; required by `input`."
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Measurements of each contestant.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Time of a measurement of the input pipelines.")

BATCH_SIZE, STEPS = 50, 60
Turn = Callable[[], float]  # measures once and returns a rate


def main(_argv: list[str]) -> None:
    print(
        f"Keras {keras.__version__}, TensorFlow {tf.__version__}, {os.cpu_count()} cores, "
        f"{_REPEATS.value} measurements\n"
    )
    print("| measured | contestant | median | best | ratio to the rival |\n|---|---|---|---|---|")
    if "fit" in _MEASURE.value:
        contestants = {
            "Keras's `fit`": _prepare_keras_fit(),
            "our step in a bare loop": _prepare_bare_loop(),
            "our `fit`": _prepare_our_fit(),
        }
        _report("`fit`, small ViT, images/s", _race(contestants))
    if "input" in _MEASURE.value:
        _compare_input()
    if "fractals" in _MEASURE.value:
        source = sources.fractals(1000, image_size=64)
        _report("fractals at 64 px, images/s", _race({"ours": _prepare_input(source, [])}))


def _build() -> keras.Model:
    changes = {
        "name": "small",
        "patch_size": 4,
        "width": 96,
        "depth": 6,
        "num_heads": 3,
        "mlp_dim": 192,
    }
    row = replace(VIT_VARIANTS["ViT_Ti16"], **changes)
    return vision_transformer(row, keras.Input((32, 32, 3)), classes=10, classifier="gap")


def _make_learner() -> keras.Model:
    model = _build()
    config = OptimizerConfig(
        name="adamw", weight_decay=0.05, warmup_steps=10, average_momentum=0.999
    )
    return make_learner(model, make_optimizer(config, model, 10_000), batch_rows=64, clip_norm=1.0)


def _prepare_our_fit() -> Turn:
    return _prepare_fit(_make_learner(), np.ones(64, "float32"))


def _prepare_bare_loop() -> Turn:
    """Returns a loop over the compiled step alone, without metrics, callbacks and epochs."""
    step = tf.function(_make_learner().train_step)
    batches = iter(_make_batches(np.ones(64, "float32")))

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            logs = step(next(batches))
        logs["loss"].numpy()
        return STEPS * 64 / (time.perf_counter() - start)

    return turn


def _prepare_keras_fit() -> Turn:
    model = _build()
    rate = keras.optimizers.schedules.CosineDecay(0.0, 10_000, warmup_target=1e-3, warmup_steps=10)
    optimizer = keras.optimizers.AdamW(
        rate, weight_decay=0.05, global_clipnorm=1.0, use_ema=True, ema_momentum=0.999
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return _prepare_fit(model)


def _prepare_fit(model: keras.Model, *weights: np.ndarray) -> Turn:
    """Returns one call of `fit` with enough steps that its start does not matter."""
    batches = _make_batches(*weights)

    def turn() -> float:
        start = time.perf_counter()
        model.fit(batches, steps_per_epoch=STEPS, epochs=1, verbose=0, shuffle=False)
        return STEPS * 64 / (time.perf_counter() - start)

    return turn


def _make_batches(*weights: np.ndarray) -> tf.data.Dataset:
    draws = np.random.RandomState(0)
    batch = (
        draws.normal(size=(64, 32, 32, 3)).astype("float32"),
        draws.randint(0, 10, 64),
        *weights,
    )
    return tf.data.Dataset.from_tensors(batch).repeat()


def _compare_input() -> None:
    if not _PHOTOS.value:
        print("\n`input` is omitted: it needs --photos=FOLDER, a folder of JPEGs.\n")
        return
    source = _read_photos(_PHOTOS.value)
    crop, flip = transforms.inception_crop(224), transforms.flip_left_right
    scale = transforms.scale_to(-1, 1)
    ours = {
        "default": ("published resize", [crop, flip, scale]),
        "no colour jitter": (
            "antialiased",
            [transforms.inception_crop(224, antialias=True), flip, scale],
        ),
        "rand-m9-mstd0.5": (
            "RandAugment(2, 9)",
            [crop, flip, transforms.to_uint8, randaugment.rand_augment(2, 9)],
        ),
    }
    has_rival = all(map(importlib.util.find_spec, ("timm", "torchvision")))
    if not has_rival:
        print(
            "| JPEG to 224 px | timm or torchvision is not installed: its rows are omitted | | | |"
        )
    for rival, (name, chosen) in ours.items():
        contestants = {f"timm, {rival}": _start_timm(rival)} if has_rival else {}
        contestants[f"ours, {name}"] = _prepare_input(source, chosen)
        if rival == "default":
            contestants["ours, published resize, uint8 batches"] = _prepare_input(
                source, [crop, flip, transforms.to_uint8]
            )
        _report("JPEG to 224 px, images/s", _race(contestants))


def _read_photos(folder: str) -> sources.Source:
    """Returns the JPEGs of a folder, kept in memory."""
    paths = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    if not paths:
        raise app.UsageError(f"--photos must contain .jpg or .jpeg files. {folder} has none.")
    files = tf.constant([Path(path).read_bytes() for path in paths])
    zero = tf.constant(0, tf.int64)
    return sources.Source(
        name=folder,
        class_names=("photo",),
        num_examples=len(paths),
        read=lambda index: (files[index], zero),
        locate=paths.__getitem__,
    )


def _prepare_input(source: sources.Source, chosen: list) -> Turn:
    batches = iter(pipeline.training_batches(source, chosen, batch_size=BATCH_SIZE, seed=0))
    for _ in range(4):
        next(batches)
    return lambda: _measure_rate(batches)


def _measure_rate(batches: Iterator) -> float:
    for _ in range(5):  # batches that were prefetched while the others were measured
        next(batches)
    start, images = time.perf_counter(), 0
    while time.perf_counter() - start < _SECONDS.value:
        next(batches)
        images += BATCH_SIZE
    return images / (time.perf_counter() - start)


def _start_timm(name: str) -> Turn:
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).parent / "rivals" / "timm_input.py"),
        _PHOTOS.value,
        name,
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline().strip() != "ready":
        raise RuntimeError("timm's pipeline did not start; see its message above.")

    def turn() -> float:
        process.stdin.write(f"{_SECONDS.value}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return turn


def _race(contestants: dict[str, Turn]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        # reverse the order every other time, as later contestants find a warmer machine
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            rate = contestants[name]()
            if turn:  # the first turn compiles
                rates[name].append(rate)
    return rates


def _report(title: str, rates: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rival = next(iter(medians.values()))
    for name, values in rates.items():
        print(
            f"| {title} | {name} | {medians[name]:.0f} | {max(values):.0f} | "
            f"{medians[name] / rival:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
