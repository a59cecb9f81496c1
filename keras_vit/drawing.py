"""The style of all figures, the access to matplotlib, and shared drawing functions.

Callers draw their own figures. This module draws two: rows of images, and training curves.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.extras import absent
from keras_vit.writing import write_atomically

Curve = Sequence[tuple[int, float]]  # (step, value)

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # distinguishable with color blindness
MARKS = ("o", "s", "^", "D", "v", "P")  # distinguishable without colors
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
# The panels of a training figure: relative height, and the corner of the legend, where curves are
# rare.
TRAINING_PANELS = {
    "loss": (3.0, "upper right"),
    "accuracy": (2.4, "lower right"),
    "learning_rate": (1.3, "upper right"),
}
_FEW = 60  # curves with more points are drawn smoothed
_DOT_PX = 10.0  # radius of a marker at 150 pixels per inch
_FEW_LABELS = 4  # more labels are placed beside the panel
# Directions (right, up) in which a label may be placed from its point; the preferred ones first.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def check_can_draw() -> None:
    """Raises ImportError if matplotlib is not installed. Call it before a long run."""
    _import_matplotlib()


@contextmanager
def picture(path: Path, width: float, height: float, *, plain: bool = False) -> Iterator[Any]:
    """Yields a matplotlib figure and writes it atomically as a PNG file at the end of the block.

    Args:
        path: The PNG file.
        width, height: In inches of 150 pixels.
        plain: Whether the axes have a frame and no grid, for images.

    Raises:
        FileNotFoundError: If the folder of `path` does not exist; raised before the block runs.
        ImportError: If matplotlib is not installed; the message names the package to install.

    Example:
        >>> with picture(Path("line.png"), 4, 3) as figure:
        ...     _ = figure.subplots().plot([1, 2])
        >>> Path("line.png").exists()
        True
    """
    new_figure, style = _import_matplotlib()
    path = Path(path).expanduser()
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"Cannot write the figure {path.name}: the folder {path.parent} does not exist. Create "
            "it first."
        )
    with style({} if plain else _STYLE):
        figure = new_figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        with write_atomically(path) as partial:
            figure.savefig(partial, format="png")


def draw_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Draws rows of images, one below the other. The file is written atomically.

    Args:
        path: The PNG file.
        rows: Name of each row, and its images (B, H, W, 3) in [0, 1].
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
    """The curve of one metric of a training.

    Attributes:
        panel: "loss", "accuracy" or "learning_rate".
        name: Name of the metric.
        curve: (step, value) of each measurement.
        color: Color of the line.
        label: Text in the legend, or None.
        dashed: Whether the line is dashed.
    """

    panel: str
    name: str
    curve: Curve
    color: str
    label: str | None
    dashed: bool = False


def draw_training(path: Path, lines: Sequence[Line], title: str) -> None:
    """Draws the metrics of a training over the steps, one panel below the other.

    Curves of up to 60 points are drawn with markers; longer ones as a faint line with a smoothed
    line above it. Values that are not finite are marked at the bottom of the panel. The file is
    written atomically.

    Args:
        path: The PNG file.
        lines: At least one curve.
        title: Title of the figure.
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
    """Returns the moving average over a fiftieth of the curve, at least five values. It ignores
    values that are not finite; at the ends the window is cut off.

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
    # On a linear axis, a loss that falls by more than an order of magnitude ends as a line along
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
    """Turns off math formulas in a legend, so that names may contain dollar signs."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def write_beside(panel: Any, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Writes a label beside each point of a panel, where it overlaps other points and labels least.

    Call it when the layout of the figure is final: after `figure.draw_without_rendering()`.

    Args:
        panel: The axes.
        points: (x, y) in data coordinates.
        labels: One for each point; empty labels are omitted.
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
            best = int(np.argmin(_measure_overlap(boxes, taken, panel.bbox.extents)))
            text.set_position(shifts[best])
            taken = np.concatenate([taken, boxes[best : best + 1]])


def _measure_overlap(boxes: np.ndarray, taken: np.ndarray, panel: np.ndarray) -> np.ndarray:
    """Returns for each of (n, 4) boxes the area, in square pixels, that overlaps boxes of `taken`
    or is outside the panel, as (n,).
    """
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    outside = areas - _intersect(boxes, panel[None])[:, 0]
    return (outside + _intersect(boxes, taken).sum(axis=1)).round(3)


def _intersect(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the areas (n, m) that (n, 4) boxes share with (m, 4) others."""
    least, most = (
        np.maximum(boxes[:, None, :2], others[:, :2]),
        np.minimum(boxes[:, None, 2:], others[:, 2:]),
    )
    return np.prod(np.maximum(most - least, 0.0), axis=2)


def shortened(name: str, number: int, length: int) -> str:
    """Returns a class name for a figure: shortened in the middle if it is too long, and without
    characters that the font lacks.

    Args:
        name: Name of the class.
        number: Index of the class, which is added if the font lacks characters of the name.
        length: Maximum number of characters.

    Example:
        >>> shortened("a very long name of a class", 3, 16)
        'a very … a class'
    """
    drawn = drawable(name, len(name))
    if len(drawn) > length or drawn == " ".join(name.split()):
        return drawable(name, length)
    return f"{drawn} [class {number}]".strip()


def drawable(text: str, length: int) -> str:
    """Returns a text for a figure: on one line, shortened in the middle if it is too long, and
    without characters that the font lacks.

    Example:
        >>> drawable("a photo\\nof a \\u732b cat", 40)
        'a photo of a cat'
    """
    words = " ".join(
        "".join(sign for sign in " ".join(text.split()) if ord(sign) in _load_signs()).split()
    )
    return f"{words[: length - 9]}…{words[-8:]}" if len(words) > length else words


_SIGNS: set[int] = set()


def _load_signs() -> set[int]:
    from matplotlib import font_manager

    if not _SIGNS:
        _SIGNS.update(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
    return _SIGNS


def _import_matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import rc_context

        # pyplot would need a display, and would keep all figures in memory.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise absent("train", "A picture needs matplotlib", error) from error
    return Figure, rc_context
