"""Time and memory of attention distance and rollout, compared with a plain forward pass.

    python experiments/benchmarks/analysis.py [--model=ViT_B16] [--images=128] [--repeats=5]
    KERAS_BACKEND=jax python experiments/benchmarks/analysis.py --measure=speed

Both process the same images with the same model. The analysis is one call of `summarize_attention`
that keeps the rollout of every image; the forward pass is Keras's `predict_on_batch`, with the same
batch size. Both are compiled before they are timed, and are measured alternately. Compare ratios of
medians rather than seconds, and on a busy machine those of the CPU time. With `--measure=memory`
each runs in its own process, and its peak resident memory is reported.
"""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import native_logs

import numpy as np
from absl import app, flags

import keras_vit
from keras_vit.analyze.attention import summarize_attention

_MODEL = flags.DEFINE_string("model", "ViT_B16", "Name of the model; its weights are random.")
_IMAGES = flags.DEFINE_integer("images", 128, "Number of images.", lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "Side in pixels.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Images per step.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each contestant.", lower_bound=1)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["speed", "memory"], ["speed", "memory"], "What to measure."
)
_ONLY = flags.DEFINE_string(
    "only", None, "Run one contestant once; set in the processes that `memory` starts."
)

FORWARD, ANALYSIS = "forward pass", "distance and rollout"


def main(_argv: list[str]) -> None:
    if _ONLY.value:
        _make_contestants()[_ONLY.value]()
        print("peak:", _read_peak_gb())
        return
    size = _IMAGE_SIZE.value
    print(
        f"{_MODEL.value}, {_IMAGES.value} images of {size} x {size} pixels, steps of "
        f"{_BATCH_SIZE.value}",
        flush=True,
    )
    if "speed" in _MEASURE.value:
        _measure_speed()
    if "memory" in _MEASURE.value:
        _measure_memory()


def _make_contestants() -> dict[str, Callable[[], object]]:
    size, batch_size = _IMAGE_SIZE.value, _BATCH_SIZE.value
    model = getattr(keras_vit, _MODEL.value)(weights=None, input_shape=(size, size, 3))
    images = (
        np.random.default_rng(0).uniform(-1, 1, (_IMAGES.value, size, size, 3)).astype("float32")
    )
    starts = range(0, len(images), batch_size)
    return {
        FORWARD: lambda: [
            model.predict_on_batch(images[start : start + batch_size]) for start in starts
        ],
        ANALYSIS: lambda: summarize_attention(
            model, images, batch_size=batch_size, num_rollouts=len(images)
        ),
    }


def _measure_speed() -> None:
    contestants = _make_contestants()
    clocks = {"wall time": time.perf_counter, "CPU time": time.process_time}
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            start = np.array([clock() for clock in clocks.values()])
            contestants[name]()
            if turn:  # the first turn compiles
                seconds[name].append(np.array([clock() for clock in clocks.values()]) - start)
    for place, clock in enumerate(clocks):
        turns = {name: [each[place] for each in values] for name, values in seconds.items()}
        for name, values in turns.items():
            print(
                f"{name:<21} median {statistics.median(values):6.2f} s  fastest {min(values):6.2f} "
                f"s  {clock}"
            )
        median, fastest = (
            kind(turns[ANALYSIS]) / kind(turns[FORWARD]) for kind in (statistics.median, min)
        )
        print(
            f"analysis over forward pass: {median:.2f} (of the fastest {fastest:.2f}) {clock}",
            flush=True,
        )


def _measure_memory() -> None:
    peaks = []
    for name in (FORWARD, ANALYSIS):
        done = subprocess.run(
            [sys.executable, *sys.argv, f"--only={name}"],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(float(done.stdout.rpartition("peak:")[2]))
        print(f"{name:<21} {peaks[-1]:.2f} GB peak resident memory", flush=True)
    print(
        f"additional peak memory of the analysis: {peaks[1] - peaks[0]:.2f} GB",
        flush=True,
    )


def _read_peak_gb() -> float:
    """Returns the peak resident memory of this process; Linux only. `getrusage` would include the
    memory of the parent process, which a child is a copy of before it starts its program.
    """
    return (
        int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e9
    )


if __name__ == "__main__":
    app.run(main)
