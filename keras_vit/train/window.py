"""The steps since the last row of metrics, and their means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """Of a window.

    Attributes:
        metrics: Loss, accuracy and norm of the gradient; none of them if no image of the window
            could be read.
        steps: How many steps there were.
        seconds: How long they took.
    """

    metrics: dict[str, float]
    steps: int
    seconds: float


class Window:
    """Collects what each step measured until it is written.

    A checkpoint keeps what is collected, so that a run that is resumed between two rows of metrics
    writes the same rows as one that was never stopped.

    Args:
        rows: From a checkpoint.

    Example:
        >>> window = Window()
        >>> window.add({"loss": 2.0, "accuracy": 0.5, "gradient_norm": 1.0, "examples": 8.0}, seconds=0.1)
        >>> window.add({"loss": 1.0, "accuracy": 1.0, "gradient_norm": float("inf"), "examples": 8.0}, seconds=0.3)
        >>> window.take_means().metrics
        {'train/loss': 1.5, 'train/accuracy': 0.75, 'train/gradient_norm': 1.0}
    """

    def __init__(self, rows: Iterable[Iterable[float]] = ()):
        self._rows: list[Row] = [tuple(map(float, row)) for row in rows]

    def add(self, values: Mapping[str, Any], *, seconds: float) -> None:
        """Adds a step: "loss", "accuracy", "gradient_norm", and "examples", the images that were
        learned from.
        """
        self._rows.append(
            (*(values[name] for name in ("loss", "accuracy", "gradient_norm", "examples")), seconds)
        )

    def rows(self) -> list[Row]:
        """Returns what is collected. A gradient that overflowed is no number, and is kept as -1."""
        return [
            tuple(number if np.isfinite(number) else -1.0 for number in row) for row in self._rows
        ]

    def take_means(self) -> Means:
        """Returns the means of the steps, and empties the window.

        A batch of which no image could be read has no loss, and a gradient that overflowed has no
        norm: both are left out.
        """
        losses, accuracies, norms, examples, seconds = np.array(self._rows).T
        self._rows.clear()
        learned = examples > 0
        parts = {
            "train/loss": losses[learned],
            "train/accuracy": accuracies[learned],
            "train/gradient_norm": norms[learned & np.isfinite(norms) & (norms >= 0)],
        }
        metrics = {name: float(values.mean()) for name, values in parts.items() if values.size}
        return Means(metrics=metrics, steps=len(seconds), seconds=float(seconds.sum()))
