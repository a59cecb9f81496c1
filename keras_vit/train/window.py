"""The measurements of the steps since the last row of metrics, and their means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """The means over a window of steps.

    Attributes:
        metrics: Loss, accuracy and gradient norm; empty if no image of the window could be read.
        steps: Number of steps.
        seconds: Duration of all steps together.
    """

    metrics: dict[str, float]
    steps: int
    seconds: float


class Window:
    """Collects the measurements of each step until the next row of metrics is written.

    A checkpoint contains them, so that a run that is resumed between two rows of metrics writes the
    same rows as an uninterrupted one.

    Args:
        rows: The rows of a checkpoint.

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
        """Adds the values of a step.

        Args:
            values: "loss", "accuracy", "gradient_norm", and "examples", the number of images that
                were used.
            seconds: Duration of the step.
        """
        self._rows.append(
            (*(values[name] for name in ("loss", "accuracy", "gradient_norm", "examples")), seconds)
        )

    def rows(self) -> list[Row]:
        """Returns one row per step. NaN and infinity, as after an overflow, are stored as -1."""
        return [
            tuple(number if np.isfinite(number) else -1.0 for number in row) for row in self._rows
        ]

    def take_means(self) -> Means:
        """Returns the means over the steps, and empties the window.

        Batches without a readable image, and norms of gradients that overflowed, are left out.
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
