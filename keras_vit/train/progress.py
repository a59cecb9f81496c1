"""The progress bar of a run: speed, time left, share of time waiting for input, and memory."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from keras_vit.devices import memory_gb

_SECONDS_BETWEEN_LINES = 30  # in a log file each update of the bar is a line


class InputClock:
    """Measures the share of time that steps wait for their batches.

    The input pipeline calls `stamp` when a batch is ready, before it is queued. The loop calls
    `begin` when it requests a batch and `end` when the step is done. A step has waited if its batch
    became ready after `begin`.
    """

    def __init__(self) -> None:
        self._ready: deque[float] = deque()
        self._lock = threading.Lock()
        self._begun = self._ended = time.perf_counter()
        self._waited = self._total = 0.0

    def stamp(self) -> np.int64:
        with self._lock:
            self._ready.append(time.perf_counter())
        return np.int64(0)

    def begin(self) -> None:
        now = time.perf_counter()
        # Some backends fetch the batch before they call `on_train_batch_begin`.
        self._waited += now - self._ended
        self._begun = now

    def end(self) -> float:
        """Returns the seconds since the previous `end`."""
        now = time.perf_counter()
        with self._lock:
            ready = self._ready.popleft() if self._ready else self._begun
        self._waited += max(0.0, min(ready, now) - self._begun)
        seconds, self._ended = now - self._ended, now
        self._total += seconds
        return seconds

    def restart(self) -> None:
        """Excludes the time since the last `end`, such as an evaluation or a checkpoint."""
        self._ended = time.perf_counter()

    def fraction(self) -> float:
        """Returns the share of time spent waiting since the last call of this method."""
        fraction = self._waited / self._total if self._total else 0.0
        self._waited = self._total = 0.0
        return fraction


def memory_in_use_gb() -> float:
    """Returns the memory in use, in 10^9 bytes.

    The memory of the accelerator if it reports it, else the resident memory of this process.
    """
    of_accelerator = memory_gb()
    return psutil.Process().memory_info().rss / 1e9 if of_accelerator is None else of_accelerator


class StallWatchdog:
    """Prints a warning if no step ends for a long time; one warning per stall.

    If one of several workers dies, the others wait for it in native code without a time limit.

    Args:
        warn: Called with the message.
        seconds: Time without a step after which it warns.
    """

    def __init__(self, warn: Callable[[str], None], seconds: float = 300):
        self._warn, self._seconds = warn, seconds
        self._is_reset = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._watch, daemon=True).start()

    def reset(self) -> None:
        """Restarts the waiting time. The loop calls this after each step."""
        self._is_reset.set()

    def close(self) -> None:
        self._is_closed = True
        self._is_reset.set()

    def _watch(self) -> None:
        while not self._is_closed:
            if not self._is_reset.wait(self._seconds):
                self._warn(
                    f"No step has ended for {self._seconds:.0f} s. If another worker of this run "
                    "has died, end this process too, and rerun the same command on all workers to "
                    "resume from the last checkpoint."
                )
                self._is_reset.wait()
            self._is_reset.clear()


class ProgressBar:
    """A progress bar over the steps of a run.

    Args:
        total_steps: Length of the run.
        start_step: Steps done before this process, 0 for a new run.
        shown: Whether to show the bar.
    """

    def __init__(self, total_steps: int, start_step: int, *, shown: bool = True):
        from tqdm import tqdm

        self._bar = tqdm(
            total=total_steps,
            initial=start_step,
            unit="step",
            disable=not shown,
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES,
        )

    def step(self) -> None:
        self._bar.update()

    def show(self, metrics: dict[str, float]) -> None:
        """Shows the metrics of the last logged steps."""
        texts: dict[str, Any] = {
            "loss": f"{metrics['train/loss']:.4g}",
            "accuracy": f"{metrics['train/accuracy']:.1%}",
            "images/s": f"{metrics['train/images_per_second']:.0f}",
            "input-bound": f"{metrics['train/input_bound']:.0%}",
            "memory": f"{metrics['train/memory_gb']:.1f} GB",
        }
        self._bar.set_postfix(texts)

    def say(self, message: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(message, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
