"""Training speed beside its rivals: `fit` beside Keras's own and a bare loop, JPEG to batch beside
timm's, fractals.

    python experiments/benchmarks/training.py --photos=/data/photos    # everything; any folder of JPEGs
    python experiments/benchmarks/training.py --measure=fit --repeats=9

Contestants take turns in one run, so that a busy machine hurts all alike: read ratios, not rates.
timm runs in a separate process. If timm or torchvision is not installed (`pip install
".[benchmark]"`), its rows are omitted and named.
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
    "photos", None, "A folder of JPEGs, in folders or not; needed for `input`."
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Turns that each contestant takes.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Length of a turn of the input pipelines.")

BATCH_SIZE, STEPS = 50, 60
Turn = Callable[[], float]  # takes a turn, returns a rate


def main(_argv: list[str]) -> None:
    print(
        f"Keras {keras.__version__}, TensorFlow {tf.__version__}, {os.cpu_count()} cores, "
        f"{_REPEATS.value} turns\n"
    )
    print("| measured | contestant | median | best | ratio to the rival |\n|---|---|---|---|---|")
    if "fit" in _MEASURE.value:
        contestants = {
            "Keras's `fit`": _keras_fit(),
            "our step in a bare loop": _bare_loop(),
            "our `fit`": _our_fit(),
        }
        _report("`fit`, small ViT, images/s", _race(contestants))
    if "input" in _MEASURE.value:
        _compare_input()
    if "fractals" in _MEASURE.value:
        source = sources.fractals(1000, image_size=64)
        _report("fractals at 64 px, images/s", _race({"ours": _input(source, [])}))


def _small() -> keras.Model:
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


def _learner() -> keras.Model:
    model = _small()
    config = OptimizerConfig(
        name="adamw", weight_decay=0.05, warmup_steps=10, average_momentum=0.999
    )
    return make_learner(model, make_optimizer(config, model, 10_000), batch_rows=64, clip_norm=1.0)


def _our_fit() -> Turn:
    return _fit(_learner(), np.ones(64, "float32"))


def _bare_loop() -> Turn:
    """Nothing but the compiled step: no metrics, callbacks or epochs."""
    step, batches = tf.function(_learner().train_step), iter(_batches(np.ones(64, "float32")))

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            logs = step(next(batches))
        logs["loss"].numpy()
        return STEPS * 64 / (time.perf_counter() - start)

    return turn


def _keras_fit() -> Turn:
    model = _small()
    rate = keras.optimizers.schedules.CosineDecay(0.0, 10_000, warmup_target=1e-3, warmup_steps=10)
    optimizer = keras.optimizers.AdamW(
        rate, weight_decay=0.05, global_clipnorm=1.0, use_ema=True, ema_momentum=0.999
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return _fit(model)


def _fit(model: keras.Model, *weights: np.ndarray) -> Turn:
    """A run is one call of `fit`: short turns would measure the start of the call."""
    batches = _batches(*weights)

    def turn() -> float:
        start = time.perf_counter()
        model.fit(batches, steps_per_epoch=STEPS, epochs=1, verbose=0, shuffle=False)
        return STEPS * 64 / (time.perf_counter() - start)

    return turn


def _batches(*weights: np.ndarray) -> tf.data.Dataset:
    draws = np.random.RandomState(0)
    batch = (
        draws.normal(size=(64, 32, 32, 3)).astype("float32"),
        draws.randint(0, 10, 64),
        *weights,
    )
    return tf.data.Dataset.from_tensors(batch).repeat()


def _compare_input() -> None:
    if not _PHOTOS.value:
        print("\n`input` needs --photos=FOLDER, a folder of JPEGs.\n")
        return
    source = _photos(_PHOTOS.value)
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
            "| JPEG to 224 px | timm or torchvision is not installed: its rows are missing | | | |"
        )
    for rival, (name, chosen) in ours.items():
        contestants = {f"timm, {rival}": _timm(rival)} if has_rival else {}
        contestants[f"ours, {name}"] = _input(source, chosen)
        if rival == "default":
            contestants["ours, published resize, uint8 batches"] = _input(
                source, [crop, flip, transforms.to_uint8]
            )
        _report("JPEG to 224 px, images/s", _race(contestants))


def _photos(folder: str) -> sources.Source:
    paths = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    if not paths:
        raise app.UsageError(f"No .jpg or .jpeg in {folder}.")
    files = tf.constant([Path(path).read_bytes() for path in paths])
    zero = tf.constant(0, tf.int64)
    return sources.Source(
        name=folder,
        class_names=("photo",),
        num_examples=len(paths),
        read=lambda index: (files[index], zero),
        locate=paths.__getitem__,
    )


def _input(source: sources.Source, chosen: list) -> Turn:
    batches = iter(pipeline.training_batches(source, chosen, batch_size=BATCH_SIZE, seed=0))
    for _ in range(4):
        next(batches)
    return lambda: _rate(batches)


def _rate(batches: Iterator) -> float:
    for _ in range(5):  # what was made while the others had their turns
        next(batches)
    start, images = time.perf_counter(), 0
    while time.perf_counter() - start < _SECONDS.value:
        next(batches)
        images += BATCH_SIZE
    return images / (time.perf_counter() - start)


def _timm(name: str) -> Turn:
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
        raise RuntimeError("timm's pipeline did not start; its message is above.")

    def turn() -> float:
        process.stdin.write(f"{_SECONDS.value}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return turn


def _race(contestants: dict[str, Turn]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        # Every other turn the other way round: whoever comes second finds a warmer machine.
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
