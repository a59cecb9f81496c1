"""Input of a report (a model and its photographs), and types shared by its sections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.analyze.attention import AttentionSummary
from keras_vit.drawing import shortened


class Photo(NamedTuple):
    """A photograph and its prediction.

    Attributes:
        name: Displayed name.
        answer: The most likely class; "" if the model has no classes or the photo is unreadable.
        probability: Probability of that class; NaN without an answer.
        problem: Reason why the photo could not be read, or "".
    """

    name: str
    answer: str = ""
    probability: float = float("nan")
    problem: str = ""

    def heading(self, number: int) -> str:
        """Returns its title in a figure: the answer, or the name of the file.

        Characters that the font lacks are replaced.

        Example:
            >>> Photo("holiday/cat.jpg", "tabby", 0.93).heading(1), Photo("holiday/cat.jpg").heading(2)
            ('1. tabby, 93 %', '2. cat')
        """
        if self.answer:
            return f"{number}. {shortened(self.answer, number, 28)}, {self.share()}"
        name = shortened(Path(self.name).stem, number, 28)
        return f"{number}." if name.endswith(f"[class {number}]") else f"{number}. {name}"

    def share(self) -> str:
        """Formats the probability."""
        return f"{self.probability:.0%}".replace("%", " %")


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A photograph that is drawn.

    Attributes:
        photo: Its name and answer.
        seen: (H, W, 3) float from 0 to 255, resized for the model.
        picture: (h, w, 3) float in [-1, 1], in its original aspect ratio.
    """

    photo: Photo
    seen: np.ndarray
    picture: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """Input of a report.

    Attributes:
        title: Title of the page: model and weights.
        model: The model, with its weights.
        variant: Its name in `keras_vit.variants`, or "".
        attention: Summary over all readable photos; None for a model without attention.
        photos: All photos.
        shown: Photos that are drawn, at least one. All heads are drawn for the first.
        curves: Metrics of its training, as from `keras_vit.train.logs.read_metrics`; empty if
            unknown.
        facts: First rows of the table of the model, by name.
        absent: Sections that are already known not to apply.
        left_out: Paths of skipped files of the folder, with reasons.
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
    """A section that is omitted from the report, and the reason."""

    part: str
    reason: str


def counted(number: int, word: str) -> str:
    """Returns a number with its noun.

    Example:
        >>> counted(1, "photo"), counted(1000, "photo")
        ('1 photo', '1,000 photos')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"
