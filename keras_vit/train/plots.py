"""Pictures of what a model gets right and wrong. Draws what it is given, computes nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.train.whole import whole

_MOST_NAMED = 120  # classes whose names can be read along an axis; more are numbered
_MOST_COUNTED = 25  # classes whose counts fit into the cells
_COLUMNS = 4  # of a gallery


def draw_confusion(path: Path, counts: np.ndarray, class_names: Sequence[str]) -> None:
    """Draws which class is taken for which. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        counts: (Y, Y) integers: images of the class of the row that were taken for that of the column.
        class_names: Y of them.
    """
    from matplotlib.colors import PowerNorm

    num_classes = len(class_names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(3.5 + 0.3 * num_classes, 5.5, 18))
    figure = _figure(side, 0.9 * side)  # the bar on the right takes the tenth
    axes = figure.subplots()
    # The square root: a tenth of a class that goes astray should be seen.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    if num_classes <= _MOST_COUNTED:
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.4 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color, fontsize=8)
    if num_classes <= _MOST_NAMED:
        names = [_shortened(name, number, 28) for number, name in enumerate(class_names)]
        size = float(np.clip(16 * 30 / num_classes, 4.5, 10))
        axes.set_xticks(range(num_classes), names, rotation=90, fontsize=size, parse_math=False)
        axes.set_yticks(range(num_classes), names, fontsize=size, parse_math=False)
    axes.set_xlabel("taken for" if num_classes <= _MOST_NAMED else "taken for, number of the class")
    axes.set_ylabel("class" if num_classes <= _MOST_NAMED else "number of the class")
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    bar.set_label("share of the images of the class")
    _save(figure, path)


def draw_mistakes(
    path: Path,
    images: Sequence[np.ndarray],
    labels: Sequence[int],
    answers: Sequence[int],
    shares: Sequence[float],
    class_names: Sequence[str],
) -> None:
    """Draws images, each with its class and what it was taken for. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        images: (H, W, 3) uint8 of any size.
        labels: The class of each.
        answers: The class that each was taken for.
        shares: The probability that each answer was given.
        class_names: Of all classes.
    """
    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure = _figure(3.0 * max(columns, 2), 3.4 * rows)
    figure.get_layout_engine().set(h_pad=0.12)
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []}).ravel()
    for panel in panels:
        panel.spines[:].set_visible(False)
    for panel, image, label, answer, share in zip(panels, images, labels, answers, shares, strict=False):
        panel.imshow(image)
        answered, true = (_shortened(class_names[number], number, 24) for number in (answer, label))
        panel.set_title(f"taken for {answered}  {share:.0%}\nis {true}", fontsize=9, parse_math=False)
    _save(figure, path)


def draw_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Draws images side by side, one row below the other. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        rows: Names to images, (B, H, W, 3) from 0 to 1.
    """
    count = len(next(iter(rows.values())))
    figure = _figure(1.5 * count + 1, 1.6 * len(rows))
    lines = figure.subplots(len(rows), count, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for line, (name, images) in zip(lines, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image, interpolation="nearest")
    _save(figure, path)


def _shortened(name: str, number: int, length: int) -> str:
    """A name that fits and can be drawn: without its middle, and without signs that the font lacks."""
    words = " ".join(name.split())
    drawn = "".join(sign for sign in words if ord(sign) in _signs()).strip()
    if len(drawn) > length:
        return f"{drawn[: length - 9]}…{drawn[-8:]}"
    return drawn if drawn == words else f"{drawn} [class {number}]".strip()


_SIGNS: set[int] = set()


def _signs() -> set[int]:
    from matplotlib import font_manager

    if not _SIGNS:
        _SIGNS.update(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
    return _SIGNS


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # not pyplot, which asks for a screen and keeps its figures

    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def _save(figure: Any, path: Path) -> None:
    with whole(path) as partial:
        figure.savefig(partial, format="png")
