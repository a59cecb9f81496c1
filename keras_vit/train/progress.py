"""What a person sees while a run goes on: a bar with speed, time left, waiting for input, and
memory.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from keras_vit.devices import memory_gb

_SECONDS_BETWEEN_LINES = 30  # in a log file a bar is one line each time


class InputClock:
    """Measures which part of the time a step waits for its batch.

    The input pipeline calls `stamp` when a batch is ready, before it is queued; the loop calls
    `begin` when it asks for one and `end` when the step is done. Only what is ready after it was
    asked for was waited for.
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
        # some backends fetch the batch before they say that the step begins
        self._waited += now - self._ended
        self._begun = now

    def end(self) -> float:
        """Returns the seconds since the last end."""
        now = time.perf_counter()
        with self._lock:
            ready = self._ready.popleft() if self._ready else self._begun
        self._waited += max(0.0, min(ready, now) - self._begun)
        seconds, self._ended = now - self._ended, now
        self._total += seconds
        return seconds

    def restart(self) -> None:
        """Leaves out what happened since the last end: an evaluation, a checkpoint."""
        self._ended = time.perf_counter()

    def fraction(self) -> float:
        """Returns the waiting part of the time since the last call."""
        fraction = self._waited / self._total if self._total else 0.0
        self._waited = self._total = 0.0
        return fraction


def memory_in_use_gb() -> float:
    """Returns the memory in use, in 10^9 bytes: that of the accelerator if it says, else of this
    process.
    """
    of_accelerator = memory_gb()
    return psutil.Process().memory_info().rss / 1e9 if of_accelerator is None else of_accelerator


class SilenceAlarm:
    """Says it, once for each silence, when nothing has been heard of for long.

    Of several workers that compute together one may die, and the others wait for it in native code
    for ever.

    Args:
        say: Takes the sentence.
        seconds: How long a silence is.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = 300):
        self._say, self._seconds = say, seconds
        self._heard = threading.Event()
        self._over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def hear(self) -> None:
        self._heard.set()

    def close(self) -> None:
        self._over = True
        self._heard.set()

    def _listen(self) -> None:
        while not self._over:
            if not self._heard.wait(self._seconds):
                self._say(
                    f"No step has ended for {self._seconds:.0f} s. If another worker of this run "
                    "has died, end this process too, and start the same command on all of them: it "
                    "goes on from the last checkpoint."
                )
                self._heard.wait()
            self._heard.clear()


class ProgressBar:
    """A bar over the steps of a run.

    Args:
        total_steps: Where it ends.
        start_step: Where it begins.
        shown: Whether to show it.
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
        """Shows the figures that were just logged."""
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
