"""Feature extraction beside Keras's own `predict`, in images per second, and its memory as the
number of images grows.

    python experiments/benchmarks/features.py --images=/data/cifar10/test [--repeats=7]
    python experiments/benchmarks/features.py --images=/data/cifar10/test --measure=memory

Both go from the same folder to features with ViT-Ti/16 at 32 pixels, in steps of as many images,
the rival through Keras's `image_dataset_from_directory`. They take turns in one run; read the ratio
of the medians, not the seconds. With `--measure=memory` features are streamed to disk, once and ten
times over the same files, each in a process of its own: what counts is the largest resident memory.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import native_logs

import keras
import numpy as np
from absl import app, flags

import keras_vit
from keras_vit.data import sources
from keras_vit.evaluate import extract

_IMAGES = flags.DEFINE_string("images", None, "Folder of classes.", required=True)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["speed", "memory"], ["speed", "memory"], "What to measure."
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Turns that each contestant takes.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Images of a step.", lower_bound=1)
_TIMES = flags.DEFINE_integer(
    "times", 0, "How often each file is read; set in the processes that `memory` starts."
)

SIZE = 32


def main(_argv: list[str]) -> None:
    if _TIMES.value:
        print("peak:", _peak_mb(_TIMES.value))
        return
    if "speed" in _MEASURE.value:
        _speed()
    if "memory" in _MEASURE.value:
        for times in (1, 10):
            command = [sys.executable, sys.argv[0], f"--images={_IMAGES.value}", f"--times={times}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            count, peak = done.stdout.rpartition("peak:")[2].split()
            print(
                f"{int(count):,} images to disk: {float(peak):,.0f} MB resident at most", flush=True
            )


def _model() -> keras.Model:
    return keras_vit.ViT_Ti16(
        weights=None, include_top=False, pooling="token", input_shape=(SIZE, SIZE, 3)
    )


def _speed() -> None:
    model, batch_size = _model(), _BATCH_SIZE.value
    contestants = {
        "predict": lambda: model.predict(_batches(batch_size), verbose=0),
        # Keras's own, if nothing is said
        "predict, steps of 32": lambda: model.predict(_batches(32), verbose=0),
        "extract, in memory": lambda: extract(
            model, _source(), batch_size=batch_size, progress=False
        ),
        "extract, to disk": lambda: _to_disk(model),
    }
    count = _source().num_examples
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            contestants[name]()
            if turn:  # the first turn compiles
                rates[name].append(count / (time.perf_counter() - start))
    print(f"{count:,} images, steps of {batch_size}, {_REPEATS.value} turns each, images/s")
    for name, values in rates.items():
        median = statistics.median(values)
        ratio = median / statistics.median(rates["predict"])
        print(
            f"{name:<21} median {median:6.0f}  fastest {max(values):6.0f}  ratio {ratio:.2f}",
            flush=True,
        )


def _batches(batch_size: int) -> Any:
    """As Keras reads a folder."""
    options = {
        "image_size": (SIZE, SIZE),
        "batch_size": batch_size,
        "shuffle": False,
        "verbose": False,
    }
    batches = keras.utils.image_dataset_from_directory(_IMAGES.value, **options)
    return batches.map(lambda images, labels: images / 127.5 - 1).prefetch(2)


def _source() -> sources.Source:
    return sources.image_folder(_IMAGES.value)


def _to_disk(model: keras.Model) -> None:
    with tempfile.TemporaryDirectory() as folder:
        extract(model, _source(), output=folder, batch_size=_BATCH_SIZE.value, progress=False)


def _peak_mb(times: int) -> str:
    """Streams the features of the images, each so many times, and returns their number and the most
    memory in use.
    """
    source = _source()
    source = source.subset(np.tile(np.arange(source.num_examples), times))
    with tempfile.TemporaryDirectory() as folder:
        extract(_model(), source, output=folder, batch_size=_BATCH_SIZE.value, progress=False)
    # Of this program, on Linux. Not `getrusage`, which counts what the process was before: a copy
    # of its parent.
    kilobytes = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
    return f"{source.num_examples} {kilobytes * 1024 / 1e6:.0f}"


if __name__ == "__main__":
    app.run(main)
