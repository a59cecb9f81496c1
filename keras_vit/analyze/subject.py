"""What a report is of: a model and its photographs. And how its parts say that they are absent, and
write numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.analyze.attention import AttentionSummary
from keras_vit.drawing import shortened


class Photo(NamedTuple):
    """A photograph, and what a model says of it.

    Attributes:
        name: As it is shown.
        answer: The most likely class; empty where the model has no classes, or the photo could not
            be read.
        probability: Of that class; NaN where there is no answer.
        problem: Why it could not be read, or nothing.
    """

    name: str
    answer: str = ""
    probability: float = float("nan")
    problem: str = ""

    def heading(self, number: int) -> str:
        """Returns what stands above it in a picture, where not every sign can be drawn: the answer,
        or its name.

        Example:
            >>> Photo("holiday/cat.jpg", "tabby", 0.93).heading(1), Photo("holiday/cat.jpg").heading(2)
            ('1. tabby, 93 %', '2. cat')
        """
        if self.answer:
            return f"{number}. {shortened(self.answer, number, 28)}, {self.share()}"
        name = shortened(Path(self.name).stem, number, 28)
        return f"{number}." if name.endswith(f"[class {number}]") else f"{number}. {name}"

    def share(self) -> str:
        """Returns the probability as it is written."""
        return f"{self.probability:.0%}".replace("%", " %")


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A photograph that is drawn.

    Attributes:
        photo: Its name and answer.
        seen: (H, W, 3) float in [-1, 1], of the size of the model.
        picture: (h, w, 3) float in [-1, 1], in its own aspect.
    """

    photo: Photo
    seen: np.ndarray
    picture: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What a report is of.

    Attributes:
        title: Of the page: the model and its weights.
        model: Built, with its weights.
        variant: Its name in `keras_vit.variants`, or nothing.
        attention: Of all photos that could be read; None for a model without attention.
        photos: All of them.
        shown: Those that are drawn, at least one; of the first, every head.
        curves: Metrics of its training, as from `keras_vit.train.logs.read_metrics`; empty if they
            are not known.
        facts: What the page begins with, by name.
        absent: What is already known not to apply: of which part, and why.
        left_out: Paths of the other files of the folder, with reasons.
    """

    title: str
    model: keras.Model
    variant: str = ""
    attention: AttentionSummary | None
    photos: Sequence[Photo]
    shown: Sequence[Shown]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    absent: Sequence["Absent"] = ()
    left_out: Sequence[tuple[str, str]] = ()


class Absent(NamedTuple):
    """A part that the report of this model does not have, and why."""

    part: str
    reason: str


def counted(number: int, word: str) -> str:
    """Returns a number with its noun.

    Example:
        >>> counted(1, "photo"), counted(1000, "photo")
        ('1 photo', '1,000 photos')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"
