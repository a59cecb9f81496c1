"""The style of all pictures, the one door to matplotlib's figures, and what several callers draw
alike.

What is drawn is the business of the callers, but for two pictures: rows of images, and the curves
    of a training.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.extras import absent
from keras_vit.writing import write_atomically

Curve = Sequence[tuple[int, float]]  # steps, and what was measured at each

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # told apart without seeing red or green
MARKS = ("o", "s", "^", "D", "v", "P")  # told apart without colors
_STYLE = {
    "font.size": 11,
    "axes.titlesize": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
}
# The panels of a training: how much of the height each takes, and where a curve rarely comes by.
TRAINING_PANELS = {
    "loss": (3.0, "upper right"),
    "accuracy": (2.4, "lower right"),
    "learning_rate": (1.3, "upper right"),
}
_FEW = 60  # points that can still be told apart; more are smoothed
_DOT_PX = 10.0  # from the middle of a mark to its edge, at 150 pixels to the inch
_FEW_LABELS = 4  # for which there is room within a panel
# Where a label may stand beside its point, across and up; the best place first.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def check_can_draw() -> None:
    """Raises ImportError if nothing could be drawn: before a long run, not after it."""
    _matplotlib()


@contextmanager
def picture(path: Path, width: float, height: float, *, plain: bool = False) -> Iterator[Any]:
    """Gives a matplotlib figure; it is saved as a PNG, whole or not at all, when all has been
    drawn.

    Args:
        path: Of the PNG.
        width, height: In inches, of 150 pixels each.
        plain: Axes without the grid and with their frame, for images.

    Raises:
        FileNotFoundError: If the folder of `path` is not there; before anything is drawn.
        ImportError: If matplotlib is absent; the message says what to install.

    Example:
        >>> with picture(Path("line.png"), 4, 3) as figure:
        ...     _ = figure.subplots().plot([1, 2])
        >>> Path("line.png").exists()
        True
    """
    new_figure, style = _matplotlib()
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent} to draw {path.name} into. Make it first."
        )
    with style({} if plain else _STYLE):
        figure = new_figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        with write_atomically(path) as partial:
            figure.savefig(partial, format="png")


def draw_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Draws images side by side, one row below the other. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        rows: Names to images, (B, H, W, 3) from 0 to 1.
    """
    count = len(next(iter(rows.values())))
    with picture(path, 1.5 * count + 1, 1.6 * len(rows), plain=True) as figure:
        lines = figure.subplots(
            len(rows), count, squeeze=False, subplot_kw={"xticks": [], "yticks": []}
        )
        for line, (name, images) in zip(lines, rows.items(), strict=True):
            line[0].set_ylabel(name)
            for panel, image in zip(line, images, strict=True):
                panel.imshow(image, interpolation="nearest")


class Line(NamedTuple):
    """One metric of a training, as it is drawn.

    Attributes:
        panel: Into which it goes: "loss", "accuracy" or "learning_rate".
        name: Of the metric.
        curve: (step, value) of each time it was measured.
        color: Of the line.
        label: What the legend says; None for nothing.
        dashed: Whether the line is.
    """

    panel: str
    name: str
    curve: Curve
    color: str
    label: str | None
    dashed: bool = False


def draw_training(path: Path, lines: Sequence[Line], title: str) -> None:
    """Draws the metrics of a training, one panel below the other, over the same steps.

    Few points are drawn as points, many as a faint line below a smooth one. What is not finite is
    marked at the bottom of its panel. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        lines: At least one.
        title: Above the picture.
    """
    kinds = [kind for kind in TRAINING_PANELS if any(line.panel == kind for line in lines)]
    heights = [TRAINING_PANELS[kind][0] for kind in kinds]
    crowded = any(sum(line.panel == kind for line in lines) > _FEW_LABELS for kind in kinds)
    with picture(path, 13 if crowded else 9, sum(heights) + 1) as figure:
        panels = figure.subplots(len(kinds), sharex=True, squeeze=False, height_ratios=heights)[
            :, 0
        ]
        for kind, panel in zip(kinds, panels, strict=True):
            shown = [line for line in lines if line.panel == kind]
            for line in shown:
                _draw_line(panel, line)
            _finish_panel(
                panel,
                kind,
                [value for line in shown for _, value in line.curve if math.isfinite(value)],
            )
        _finish_steps(panels[-1], max(step for line in lines for step, _ in line.curve))
        panels[0].set_title(title, loc="left", fontweight="bold", wrap=True, parse_math=False)
        figure.align_ylabels(panels)


def _draw_line(panel: Any, line: Line) -> None:
    steps, values = (
        np.array([step for step, _ in line.curve]),
        np.array([value for _, value in line.curve]),
    )
    finite = np.isfinite(values)
    style: dict[str, Any] = {"color": line.color, "linestyle": "--" if line.dashed else "-"}
    if len(line.curve) <= _FEW:
        style |= {"marker": "o", "markersize": 4.5, "linewidth": 1.6}
        panel.plot(steps[finite], values[finite], label=line.label, **style)
    elif line.panel == "learning_rate":
        panel.plot(
            steps, np.where(finite, values, np.nan), linewidth=2.0, label=line.label, **style
        )
    else:
        panel.plot(
            steps, np.where(finite, values, np.nan), color=line.color, alpha=0.25, linewidth=0.8
        )
        panel.plot(steps, smoothed(values), linewidth=2.0, label=line.label, **style)
    if not finite.all():
        base = np.full((~finite).sum(), 0.03)
        panel.plot(
            steps[~finite],
            base,
            "|",
            color="black",
            transform=panel.get_xaxis_transform(),
            markersize=9,
        )
        label = f"{drawable(line.name, 60)}: not finite, {len(base)} times"
        panel.plot([], [], "|", color="black", markersize=9, label=label)


def smoothed(values: np.ndarray) -> np.ndarray:
    """Returns the mean of the finite values nearby, a fiftieth of the curve; at the ends, of those
    there are.

    Example:
        >>> smoothed(np.array([1.0, 2.0, 3.0, np.nan, 5.0]))
        array([2.  , 2.  , 2.75,  nan, 4.  ])
    """
    window = np.ones(2 * max(2, len(values) // 100) + 1)
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), window, mode="same")
    count = np.convolve(finite.astype(float), window, mode="same")
    return np.divide(total, count, out=np.full(len(values), np.nan), where=finite)


def _finish_panel(panel: Any, kind: str, values: list[float]) -> None:
    panel.set_ylabel(kind.replace("_", " "))
    if kind == "learning_rate":
        panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    if kind == "accuracy":
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    # A loss that falls through more than an order of magnitude would otherwise end as a line along
    # the axis.
    if kind == "loss" and values and min(values) > 0 and max(values) > 30 * min(values):
        panel.set_yscale("log")
    if count := len(panel.get_legend_handles_labels()[0]):
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        spell_plainly(
            panel.legend(**({"loc": TRAINING_PANELS[kind][1]} if count <= _FEW_LABELS else beside))
        )


def _finish_steps(panel: Any, last_step: int) -> None:
    panel.set_xlim(0, 1.02 * max(1, last_step))
    panel.set_xlabel("step")
    panel.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def spell_plainly(legend: Any) -> None:
    """Takes what stands in a legend for words: a dollar sign in a name begins no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def write_beside(panel: Any, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Writes a label beside each point of a panel, where it covers least of points and of other
    labels.

    To be called when everything else has its place: after `figure.draw_without_rendering()`.

    Args:
        panel: The axes.
        points: In data coordinates.
        labels: One for each; an empty one is not written.
    """
    dots = panel.transData.transform(points)
    taken = np.concatenate([dots - _DOT_PX, dots + _DOT_PX], axis=1)
    for number in sorted(range(len(dots)), key=lambda number: tuple(dots[number])):
        if words := drawable(labels[number], 30):
            text = panel.annotate(
                words, points[number], (0, 0), textcoords="offset pixels", fontsize=8
            )
            text.set(ha="center", va="center", in_layout=False, parse_math=False)
            half = np.array(text.get_window_extent().size) / 2
            shifts = np.array(
                [
                    np.array(side) * (half + reach)
                    for reach in (_DOT_PX + 3, 20, 32, 46)
                    for side in _SIDES
                ]
            )
            boxes = np.concatenate(
                [dots[number] + shifts - half, dots[number] + shifts + half], axis=1
            )
            best = int(np.argmin(_covered(boxes, taken, panel.bbox.extents)))
            text.set_position(shifts[best])
            taken = np.concatenate([taken, boxes[best : best + 1]])


def _covered(boxes: np.ndarray, taken: np.ndarray, panel: np.ndarray) -> np.ndarray:
    """(n,) of (n, 4) boxes: how much of each, in square pixels, lies on others or outside of the
    panel.
    """
    outside = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) - _overlaps(boxes, panel[None])[:, 0]
    return (outside + _overlaps(boxes, taken).sum(axis=1)).round(3)


def _overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    least, most = (
        np.maximum(boxes[:, None, :2], others[:, :2]),
        np.minimum(boxes[:, None, 2:], others[:, 2:]),
    )
    return np.prod(np.maximum(most - least, 0.0), axis=2)


def shortened(name: str, number: int, length: int) -> str:
    """Returns a class name that fits and can be drawn: without its middle, and without signs that
    the font lacks.

    Args:
        name: Of a class.
        number: Of the class, said where the name is not whole.
        length: In signs.

    Example:
        >>> shortened("a very long name of a class", 3, 16)
        'a very … a class'
    """
    drawn = drawable(name, len(name))
    if len(drawn) > length or drawn == " ".join(name.split()):
        return drawable(name, length)
    return f"{drawn} [class {number}]".strip()


def drawable(text: str, length: int) -> str:
    """Returns a text as `shortened` does a name, without saying where signs are lacking: on one
    line, for a picture.

    Example:
        >>> drawable("a photo\\nof a \\u732b cat", 40)
        'a photo of a cat'
    """
    words = " ".join(
        "".join(sign for sign in " ".join(text.split()) if ord(sign) in _signs()).split()
    )
    return f"{words[: length - 9]}…{words[-8:]}" if len(words) > length else words


_SIGNS: set[int] = set()


def _signs() -> set[int]:
    from matplotlib import font_manager

    if not _SIGNS:
        _SIGNS.update(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
    return _SIGNS


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import (
            Figure,  # not pyplot, which asks for a screen and keeps its figures
        )
    except ImportError as error:
        raise absent("train", "A picture needs matplotlib", error) from error
    return Figure, rc_context
