"""Speed of feature extraction, compared with Keras's `predict`, and its memory for more images.

    python experiments/benchmarks/features.py --images=/data/cifar10/test [--repeats=7]
    python experiments/benchmarks/features.py --images=/data/cifar10/test --measure=memory

Both compute features of the same folder with ViT-Ti/16 at 32 pixels and with the same batch size;
the rival reads the folder with Keras's `image_dataset_from_directory`. They are measured
alternately. Compare ratios of medians rather than seconds. With `--measure=memory` features are
streamed to disk, once and ten times over the same files, each in its own process, and the peak
resident memory is reported.
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

_IMAGES = flags.DEFINE_string("images", None, "Folder with one folder per class.", required=True)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["speed", "memory"], ["speed", "memory"], "What to measure."
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Measurements of each contestant.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Images per step.", lower_bound=1)
_TIMES = flags.DEFINE_integer(
    "times", 0, "Number of times each file is read; set in the processes that `memory` starts."
)

SIZE = 32


def main(_argv: list[str]) -> None:
    if _TIMES.value:
        print("peak:", _measure_peak_mb(_TIMES.value))
        return
    if "speed" in _MEASURE.value:
        _measure_speed()
    if "memory" in _MEASURE.value:
        for times in (1, 10):
            command = [sys.executable, sys.argv[0], f"--images={_IMAGES.value}", f"--times={times}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            count, peak = done.stdout.rpartition("peak:")[2].split()
            print(
                f"{int(count):,} images to disk: {float(peak):,.0f} MB peak resident memory",
                flush=True,
            )


def _build() -> keras.Model:
    return keras_vit.ViT_Ti16(
        weights=None, include_top=False, pooling="token", input_shape=(SIZE, SIZE, 3)
    )


def _measure_speed() -> None:
    model, batch_size = _build(), _BATCH_SIZE.value
    contestants = {
        "predict": lambda: model.predict(_read_batches(batch_size), verbose=0),
        # the default batch size of Keras
        "predict, steps of 32": lambda: model.predict(_read_batches(32), verbose=0),
        "extract, in memory": lambda: extract(
            model, _make_source(), batch_size=batch_size, progress=False
        ),
        "extract, to disk": lambda: _extract_to_disk(model),
    }
    count = _make_source().num_examples
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            contestants[name]()
            if turn:  # the first turn compiles
                rates[name].append(count / (time.perf_counter() - start))
    print(f"{count:,} images, steps of {batch_size}, {_REPEATS.value} measurements, images/s")
    for name, values in rates.items():
        median = statistics.median(values)
        ratio = median / statistics.median(rates["predict"])
        print(
            f"{name:<21} median {median:6.0f}  fastest {max(values):6.0f}  ratio {ratio:.2f}",
            flush=True,
        )


def _read_batches(batch_size: int) -> Any:
    """Returns batches of images that Keras reads from the folder."""
    options = {
        "image_size": (SIZE, SIZE),
        "batch_size": batch_size,
        "shuffle": False,
        "verbose": False,
    }
    batches = keras.utils.image_dataset_from_directory(_IMAGES.value, **options)
    return batches.map(lambda images, labels: images / 127.5 - 1).prefetch(2)


def _make_source() -> sources.Source:
    return sources.image_folder(_IMAGES.value)


def _extract_to_disk(model: keras.Model) -> None:
    with tempfile.TemporaryDirectory() as folder:
        extract(model, _make_source(), output=folder, batch_size=_BATCH_SIZE.value, progress=False)


def _measure_peak_mb(times: int) -> str:
    """Streams the features of the images to disk, each image `times` times.

    Returns:
        The number of features and the peak resident memory in MB, separated by a space.
    """
    source = _make_source()
    source = source.subset(np.tile(np.arange(source.num_examples), times))
    with tempfile.TemporaryDirectory() as folder:
        extract(_build(), source, output=folder, batch_size=_BATCH_SIZE.value, progress=False)
    # Linux only. `getrusage` would include the memory of the parent process, which a child is a
    # copy of before it starts its program.
    kilobytes = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
    return f"{source.num_examples} {kilobytes * 1024 / 1e6:.0f}"


if __name__ == "__main__":
    app.run(main)
