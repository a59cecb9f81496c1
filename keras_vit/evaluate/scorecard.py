"""Confusion matrix, most confident errors, tables and files of an evaluation.

`accuracy.py` computes the numbers, `plots.py` draws the figures.
"""

import math
from pathlib import Path

import numpy as np

from keras_vit.data.reading import read_pixels
from keras_vit.evaluate import plots
from keras_vit.evaluate.accuracy import Answers
from keras_vit.writing import table, write_csv

MOST_MISTAKES = 16  # errors that are drawn
MOST_CLASSES = 100  # rows of the table of classes
MOST_CONFUSED = 2000  # largest number of classes of a confusion matrix, which is held in memory
_THUMBNAIL = 320  # approximate side in pixels


def worst(card: Answers, count: int = MOST_MISTAKES) -> np.ndarray:
    """Returns the rows of the most confident errors, in descending order of confidence."""
    wrong = np.flatnonzero(card.ranks)
    return wrong[np.argsort(-card.shares[wrong], kind="stable")][:count]


def write_pictures(card: Answers, folder: Path) -> list[str]:
    """Writes `confusion.png` and `errors.png`, and returns their names.

    With more classes than `MOST_CONFUSED`, there is no `confusion.png`. Without errors, there is no
    `errors.png`, and an older one is removed.
    """
    drawn = []
    if len(card.source.class_names) <= MOST_CONFUSED:
        plots.draw_confusion(folder / "confusion.png", card.confusion(), card.source.class_names)
        drawn = ["confusion.png"]
    shown = worst(card)
    if not shown.size:
        (folder / "errors.png").unlink(missing_ok=True)
        return drawn
    images = [read_pixels(card.source, int(index)) for index in card.indices[shown]]
    steps = [max(1, max(image.shape[:2]) // _THUMBNAIL) for image in images]
    plots.draw_mistakes(
        folder / "errors.png",
        [image[::step, ::step] for image, step in zip(images, steps, strict=True)],
        card.labels[shown].tolist(),
        card.answers[shown].tolist(),
        card.shares[shown].tolist(),
        card.source.class_names,
    )
    return [*drawn, "errors.png"]


def write_answers(card: Answers, path: Path) -> None:
    """Writes the class, prediction and probability of every image, atomically."""
    names = card.source.class_names
    answers = zip(card.indices, card.labels, card.answers, card.shares, strict=True)
    rows = (
        [
            card.source.locate(int(index)),
            names[label],
            names[answer],
            f"{share:.6f}",
            int(label == answer),
        ]
        for index, label, answer, share in answers
    )
    write_csv(path, ["image", "class", "answer", "probability", "right"], rows)


def headline(card: Answers) -> str:
    """Returns a sentence with the accuracy and its 95 % interval."""
    right, total = int((card.answers == card.labels).sum()), len(card.labels)
    low, high = _compute_interval(right, total)
    return (
        f"**Accuracy {right / total:.2%} on {total:,} images** ({right:,} correct, "
        f"{total - right:,} wrong; 95 % confidence interval: {low:.1%} to {high:.1%})."
    )


def class_table(card: Answers) -> str:
    """Returns a table with recall, precision and most frequent confusion of each class."""
    names, num_classes = card.source.class_names, len(card.source.class_names)
    found, given, hits = (
        np.bincount(column, minlength=num_classes)
        for column in (card.labels, card.answers, card.labels[card.ranks == 0])
    )
    recall = card.per_class()
    shown = np.arange(num_classes)
    note = ""
    if num_classes > MOST_CLASSES:
        shown = np.argsort(np.where(np.isnan(recall), 2.0, recall), kind="stable")[:MOST_CLASSES]
        note = f"The {MOST_CLASSES} of {num_classes:,} classes with the lowest recall.\n\n"
    rows = []
    for number in shown.tolist():
        others = np.bincount(
            card.answers[(card.labels == number) & (card.ranks > 0)], minlength=num_classes
        )
        mixed = f"{names[others.argmax()]} ({others.max():,})" if others.any() else ""
        right = int(hits[number])
        rows.append(
            [
                number,
                names[number],
                f"{found[number]:,}",
                _format_share(right, found[number]),
                _format_share(right, given[number]),
            ]
            + [mixed]
        )
    return note + table(["", "class", "images", "recall", "precision", "most frequent error"], rows)


def _format_share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _compute_interval(right: int, total: int, deviations: float = 1.96) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a share, which is valid near 0 and 1 and for few images."""
    square = deviations**2
    middle = (right + square / 2) / (total + square)
    width = deviations / (total + square) * math.sqrt(right * (total - right) / total + square / 4)
    return max(0.0, middle - width), min(1.0, middle + width)
