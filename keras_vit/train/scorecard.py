"""What a classifier gets right and wrong on images with known classes: numbers, tables, and what to draw.

The pictures themselves are drawn in `plots.py`.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.reading import read_pixels
from keras_vit.data.sources import Source
from keras_vit.train import plots
from keras_vit.train.report import table
from keras_vit.train.whole import whole

MOST_MISTAKES = 16  # drawn
MOST_CLASSES = 100  # in the table of the report
_THUMBNAIL = 320  # pixels, about


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """The answers of a classifier, one for each image that could be read.

    Attributes:
        source: Where the images are.
        indices: (n,) of the images in the source.
        labels: (n,) their classes.
        answers: (n,) the classes that the model gives the highest probability.
        shares: (n,) that probability.
    """

    source: Source
    indices: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    shares: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.answers == self.labels))

    def confusion(self) -> np.ndarray:
        """Returns (Y, Y) counts: images of the class of the row that were taken for that of the column."""
        num_classes = len(self.source.class_names)
        pairs = np.bincount(self.labels * num_classes + self.answers, minlength=num_classes**2)
        return pairs.reshape(num_classes, num_classes)

    def worst(self, count: int = MOST_MISTAKES) -> np.ndarray:
        """Returns where the mistakes stand of which the model was most sure, the worst first."""
        wrong = np.flatnonzero(self.answers != self.labels)
        return wrong[np.argsort(-self.shares[wrong], kind="stable")][:count]


def score(model: keras.Model, source: Source, batches: Iterable[Any]) -> Scorecard:
    """Asks a model about every image of a source.

    Args:
        model: Gives logits (B, Y), of pixels in [-1, 1].
        source: Where the images are.
        batches: Of `evaluation_batches` for this source, as uint8.

    Raises:
        ValueError: If not one image could be read.
    """
    labels, answers, shares, read = [], [], [], []
    for images, classes, weights in batches:
        # Called, not `predict`: over several devices each of them would answer for the whole batch.
        logits = model(np.asarray(images, np.float32) / 127.5 - 1.0, training=False)
        logits = keras.ops.convert_to_numpy(logits).astype(np.float64)
        answers.append(logits.argmax(axis=1))
        shares.append(1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))  # the largest of the softmax
        labels.append(np.asarray(classes))
        read.append(np.asarray(weights) > 0)
    kept = np.flatnonzero(np.concatenate(read))
    if not kept.size:
        raise ValueError(f"No image of {source.name} could be read.")
    columns = (np.concatenate(column)[kept] for column in (labels, answers, shares))
    return Scorecard(source=source, indices=kept, **dict(zip(("labels", "answers", "shares"), columns, strict=True)))


def write_pictures(card: Scorecard, folder: Path) -> list[str]:
    """Writes `confusion.png` and, if there are mistakes, `errors.png`; an older one is removed. Returns their names."""
    plots.draw_confusion(folder / "confusion.png", card.confusion(), card.source.class_names)
    worst = card.worst()
    if not worst.size:
        (folder / "errors.png").unlink(missing_ok=True)
        return ["confusion.png"]
    images = [read_pixels(card.source, int(index)) for index in card.indices[worst]]
    steps = [max(1, max(image.shape[:2]) // _THUMBNAIL) for image in images]
    plots.draw_mistakes(
        folder / "errors.png",
        [image[::step, ::step] for image, step in zip(images, steps, strict=True)],
        card.labels[worst].tolist(),
        card.answers[worst].tolist(),
        card.shares[worst].tolist(),
        card.source.class_names,
    )
    return ["confusion.png", "errors.png"]


def write_answers(card: Scorecard, path: Path) -> None:
    """Writes every image with its class, the answer and its probability. The file appears whole or not at all."""
    names = card.source.class_names
    with whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "class", "answer", "probability", "right"])
        for index, label, answer, share in zip(card.indices, card.labels, card.answers, card.shares, strict=True):
            place = card.source.locate(int(index))
            rows.writerow([place, names[label], names[answer], f"{share:.6f}", int(label == answer)])


def headline(card: Scorecard) -> str:
    """Returns the accuracy in words, with its 95 % interval."""
    right, total = int((card.answers == card.labels).sum()), len(card.labels)
    low, high = _wilson(right, total)
    return (
        f"**{right / total:.2%} of {total:,} images named correctly** ({right:,} right, {total - right:,} wrong; 95 % "
        f"interval for so many images: {low:.1%} to {high:.1%})."
    )


def class_table(card: Scorecard) -> str:
    """Returns a table of the classes: how many are found, how many of the answers are right, what is mixed up."""
    counts, names = card.confusion(), card.source.class_names
    found, given = counts.sum(axis=1), counts.sum(axis=0)
    recall = np.divide(counts.diagonal(), found, out=np.full(len(names), np.nan), where=found > 0)
    shown = np.arange(len(names))
    note = ""
    if len(names) > MOST_CLASSES:
        shown = np.argsort(np.where(np.isnan(recall), 2.0, recall), kind="stable")[:MOST_CLASSES]
        note = f"The {MOST_CLASSES} of {len(names):,} classes that are found least.\n\n"
    rows = []
    for number in shown.tolist():
        others = counts[number].copy()
        others[number] = 0
        mixed = f"{names[others.argmax()]} ({others.max():,})" if others.any() else ""
        right = int(counts[number, number])
        rows.append(
            [number, names[number], f"{found[number]:,}", _share(right, found[number]), _share(right, given[number])]
            + [mixed]
        )
    return note + table(["", "class", "images", "found", "answers that are right", "most often taken for"], rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _wilson(right: int, total: int, deviations: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share; Wilson's, which holds near 0 and 1 and for few images."""
    square = deviations**2
    middle = (right + square / 2) / (total + square)
    width = deviations / (total + square) * math.sqrt(right * (total - right) / total + square / 4)
    return max(0.0, middle - width), min(1.0, middle + width)
