"""Figures of accuracy against steps, compute, data and ablations.

Accuracies are in percent, as in `keras_vit.paper`; only `draw_training_curve` takes logged metrics.
`plots.py` contains the figures of attention and embeddings.

Source: arXiv:2010.11929, Figures 4, 5, 8, 9, 12 and 13.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.drawing import (
    COLORS,
    MARKS,
    Curve,
    Line,
    draw_training,
    drawable,
    picture,
    spell_plainly,
    write_beside,
)
from keras_vit.paper import published
from keras_vit.variants import VIT_VARIANTS

_CURVES = ("loss", "accuracy")


class Point(NamedTuple):
    """One model, or the mean over several seeds of it.

    Attributes:
        x: Cost: exaFLOPs, relative compute, or number of images. Above 0.
        accuracy: Accuracy in percent.
        deviation: Standard deviation over seeds, in percent; NaN for a single seed.
        label: Text next to the point, or "".
        published: Whether the number is from the paper; such points have hollow marks.
    """

    x: float
    accuracy: float
    deviation: float = math.nan
    label: str = ""
    published: bool = False


def draw_training_curve(
    path: Path, runs: Mapping[str, Mapping[str, Curve]], title: str = ""
) -> None:
    """Draws loss and accuracy of one or several runs against steps, as in Figure 9.

    A run has the same color in both panels. Metrics of training batches are dashed. The file is
    written atomically.

    Args:
        path: Path of the PNG.
        runs: Maps the name of a run to its metrics, as from `keras_vit.train.logs.read_metrics`:
            name of a metric to (step, value) pairs. Metrics whose names end in "loss" or "accuracy"
            are drawn, such as "validation/loss".
        title: Title of the figure.

    Raises:
        ValueError: If no run has such a metric.

    Example:
        >>> token, gap = {"validation/accuracy": [(10, 0.1), (20, 0.5)]}, {"validation/accuracy": [(10, 0.2)]}
        >>> draw_training_curve(Path("curve.png"), {"class token": token, "mean of the patches": gap})
        >>> Path("curve.png").exists()
        True
    """
    lines = []
    for number, (run, metrics) in enumerate(runs.items()):
        for name, curve in metrics.items():
            split, _, kind = name.rpartition("/")
            if kind in _CURVES and curve:
                label = ", ".join(part for part in (_format_for_legend(run), split) if part)
                label += (
                    f": last {curve[-1][1]:.1%}"
                    if kind == "accuracy"
                    else f": last {curve[-1][1]:.4g}"
                )
                lines.append(
                    Line(
                        kind,
                        f"{run} {name}",
                        curve,
                        COLORS[number % len(COLORS)],
                        label,
                        split == "train",
                    )
                )
    if not lines:
        names = [name for metrics in runs.values() for name in metrics]
        raise ValueError(
            f"No run has a metric whose name ends in {' or '.join(_CURVES)}. Received: "
            f"{', '.join(names) or 'nothing'}."
        )
    draw_training(path, lines, drawable(title, 90))


def published_compute(dataset: str) -> dict[str, list[Point]]:
    """Returns Table 6 of the paper as points of the families "ViT", "Hybrid" and "ResNet".

    Args:
        dataset: A column of Table 6, such as "imagenet", or "average5", the mean of five.

    Raises:
        ValueError: If Table 6 has no such column.

    Example:
        >>> published_compute("imagenet")["ViT"][0]
        Point(x=55, accuracy=80.73, deviation=nan, label='B/32', published=True)
    """
    rows = [row for row in published(table="Table 6") if row.dataset == dataset]
    if not rows:
        there = dict.fromkeys(row.dataset for row in published(table="Table 6"))
        raise ValueError(f"Table 6 has no column {dataset}. It has {', '.join(there)}.")
    families: dict[str, list[Point]] = {"ViT": [], "Hybrid": [], "ResNet": []}
    models = [row.model for row in rows]
    for row in rows:
        is_vit, label = row.model.startswith("ViT"), _shorten_name(row.model)
        if models.count(row.model) > 1:
            label += f", {row.epochs} ep."
        family = "ViT" if is_vit else "Hybrid" if row.model in VIT_VARIANTS else "ResNet"
        families[family].append(
            Point(row.exaflops or math.nan, row.accuracy, label=label, published=True)
        )
    return families


def _shorten_name(model: str) -> str:
    """Shortens "ViT_B16" to "B/16", "R50_ViT_B16" to "R50+B/16", "ResNet50x1" to "R50x1"."""
    name = re.sub(r"ViT_([A-Z][a-z]?)(\d+)$", r"\1/\2", model)
    return name.replace("_", "+").replace("ResNet", "R")


def draw_accuracy_against_compute(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    *,
    x_label: str = "pre-training compute, exaFLOPs",
    y_label: str = "accuracy, %",
    joined: bool = False,
) -> None:
    """Draws accuracy against compute on a logarithmic axis, as in Figure 5, or Figure 8 if joined.

    A family has the same color and mark in all panels. The file is written atomically.

    Args:
        path: Path of the PNG.
        panels: Maps the title of a panel to its families, which map a name to points: "ViT",
            "Hybrid", "ResNet".
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        joined: Whether a line connects the points of a family, as in Figure 8.

    Raises:
        ValueError: If there are no points, or a point has no finite accuracy or no `x` above 0.

    Example:
        >>> draw_accuracy_against_compute(Path("compute.png"), {"ImageNet": published_compute("imagenet")})
        >>> Path("compute.png").exists()
        True
    """
    columns = min(3, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    _check(
        {
            f"{title}: {name}": points
            for title, each in panels.items()
            for name, points in each.items()
        }
    )
    styles = _assign_styles(name for families in panels.values() for name in families)
    with picture(path, 6.3 * columns, 5.0 * rows + 0.6) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in axes[len(panels) :]:
            panel.set_axis_off()
        for panel, (title, families) in zip(axes, panels.items(), strict=False):
            _draw_points(panel, families, styles, joined=joined)
            _name_axes(panel, x_label, y_label)
            panel.set_title(drawable(title, 50), parse_math=False)
        _finish_points(figure, axes[: len(panels)], [*panels.values()], _format_number)


def draw_accuracy_against_data(
    path: Path,
    curves: Mapping[str, Sequence[Point]],
    *,
    x_label: str = "images",
    y_label: str = "accuracy, %",
) -> None:
    """Draws accuracy against the number of images on a logarithmic axis, as in Figure 4.

    Each model has one line. The file is written atomically.

    Args:
        path: Path of the PNG.
        curves: Maps the name of a model to its points; `x` is a number of images.
        x_label: Label of the x axis.
        y_label: Label of the y axis.

    Raises:
        ValueError: If there are no points, or a point has no finite accuracy or no `x` above 0.

    Example:
        >>> draw_accuracy_against_data(Path("data.png"), {"ViT-B/32": [Point(9e6, 45.0), Point(303e6, 60.0)]})
        >>> Path("data.png").exists()
        True
    """
    _check(curves)
    with picture(path, 7.0, 5.2) as figure:
        axes = figure.subplots()
        _draw_points(axes, curves, _assign_styles(curves), joined=True)
        _name_axes(axes, x_label, y_label)
        _finish_points(figure, [axes], [curves], _format_count)


def draw_means(
    path: Path,
    arms: Mapping[str, Sequence[float]],
    published: Mapping[str, float] | None = None,
    *,
    title: str = "",
    x_label: str = "accuracy, %",
    published_label: str = "the paper's accuracy, %",
) -> None:
    """Draws the arms of an ablation: each seed, the mean, and the standard deviation (n - 1).

    The results of the paper are drawn in a second panel with a separate axis, since they are
    measured on other data. The file is written atomically.

    Args:
        path: Path of the PNG.
        arms: Maps the name of an arm to the accuracies of its seeds, in percent.
        published: Maps the name of an arm to the paper's accuracy, in percent. Arms that the paper
            lacks are omitted.
        title: Title of the figure.
        x_label: Label of the x axis.
        published_label: Label of the x axis of the second panel.

    Raises:
        ValueError: If there are no arms, an arm has no seeds or a value that is not finite, or
            `published` contains unknown arms.

    Example:
        >>> draw_means(Path("means.png"), {"none": [61.2, 61.5], "learned_1d": [64.1, 64.3]}, {"none": 61.38})
        >>> Path("means.png").exists()
        True
    """
    _check_arms(arms, published or {})
    with picture(path, 10.5 if published else 8.0, 0.42 * len(arms) + 1.7) as figure:
        panels = figure.subplots(
            1,
            2 if published else 1,
            sharey=True,
            squeeze=False,
            width_ratios=[2, 1][: 1 + bool(published)],
        )[0]
        _draw_arms(panels[0], arms, x_label)
        if published:
            _draw_published(
                panels[1], [published.get(name, math.nan) for name in arms], published_label
            )
        if title.strip():
            figure.suptitle(
                drawable(title, 80),
                fontsize=13,
                fontweight="bold",
                x=0.01,
                ha="left",
                parse_math=False,
            )


def _draw_arms(panel: Any, arms: Mapping[str, Sequence[float]], x_label: str) -> None:
    for place, values in enumerate(arms.values()):
        mean = float(np.mean(values))
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        panel.plot(
            values,
            [place + 0.22] * len(values),
            "o",
            color=COLORS[0],
            alpha=0.35,
            markersize=5,
            markeredgewidth=0,
        )
        error = None if math.isnan(deviation) else deviation
        panel.errorbar(
            mean,
            place,
            xerr=error,
            fmt="o",
            color=COLORS[0],
            markersize=8,
            capsize=4,
            linewidth=1.8,
        )
        words = f"{mean:.2f}" if math.isnan(deviation) else f"{mean:.2f} ± {deviation:.2f}"
        _annotate_row(panel, place, words)
    names = [drawable(name, 44) for name in arms]
    panel.set_yticks(range(len(names)), names, parse_math=False)
    panel.set(ylim=(len(names) - 0.4, -0.6))
    _name_axes(panel, x_label)
    panel.tick_params(axis="y", length=0)
    panel.margins(x=0.08)


def _draw_published(panel: Any, values: Sequence[float], x_label: str) -> None:
    style = {
        "color": COLORS[1],
        "markersize": 8,
        "markerfacecolor": "white",
        "markeredgewidth": 1.8,
    }
    panel.plot(values, range(len(values)), "D", **style)
    for place, value in enumerate(values):
        _annotate_row(panel, place, "" if math.isnan(value) else f"{value:.2f}")
    _name_axes(panel, x_label)
    panel.tick_params(axis="y", length=0)
    panel.margins(x=0.15)


def _annotate_row(panel: Any, place: float, words: str) -> None:
    panel.text(
        1.02,
        place,
        words,
        transform=panel.get_yaxis_transform(),
        va="center",
        fontsize=9.5,
        color="#444444",
    )


def _check_arms(arms: Mapping[str, Sequence[float]], published: Mapping[str, float]) -> None:
    if not arms:
        raise ValueError("`arms` is empty. Pass at least one arm.")
    empty = [name for name, values in arms.items() if not len(values)]
    broken = [name for name, values in arms.items() if not np.isfinite(values).all()]
    broken += [name for name, value in published.items() if not math.isfinite(value)]
    unknown = [name for name in published if name not in arms]
    if empty or broken or unknown:
        raise ValueError(
            "Every arm must have at least one seed and finite accuracies, and `published` must "
            f"contain only names of arms. Without seeds: {_list_names(empty)}; not finite: "
            f"{_list_names(broken)}; not arms: {_list_names(unknown)}. Omit them."
        )


def _check(curves: Mapping[str, Sequence[Point]]) -> None:
    if not any(len(points) for points in curves.values()):
        raise ValueError("There are no points. Pass at least one.")
    broken = [
        f"{name} at {point.x}"
        for name, points in curves.items()
        for point in points
        if not (math.isfinite(point.accuracy) and math.isfinite(point.x) and point.x > 0)
    ]
    if broken:
        raise ValueError(
            "Points must have a finite accuracy, and an `x` above 0 for the logarithmic axis. "
            f"Omit: {_list_names(broken)}."
        )


def _format_for_legend(name: str) -> str:
    """Returns a name that Matplotlib shows in a legend."""
    words = drawable(name, 40)
    # Matplotlib omits names that start with an underscore.
    return f" {words}" if words.startswith("_") else words


def _name_axes(panel: Any, x_label: str, y_label: str = "") -> None:
    panel.set_xlabel(drawable(x_label, 60), parse_math=False)
    panel.set_ylabel(drawable(y_label, 60), parse_math=False)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + ", ..." * (len(names) > 6) if names else "none"


def _assign_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Assigns a color, a mark and a line style to each name."""
    # Colors and marks repeat after a while, then the line style changes.
    unique = list(dict.fromkeys(names))
    return {
        name: {
            "color": COLORS[number % len(COLORS)],
            "marker": MARKS[number % len(MARKS)],
            "linestyle": ("-", "--", ":")[number // len(COLORS) % 3],
        }
        for number, name in enumerate(unique)
    }


def _draw_points(
    panel: Any,
    families: Mapping[str, Sequence[Point]],
    styles: Mapping[str, dict[str, Any]],
    *,
    joined: bool,
) -> None:
    panel.set_xscale("log")
    for name, points in families.items():
        for is_published in (False, True):
            shown = sorted(point for point in points if point.published == is_published)
            if not shown:
                continue
            style = styles[name] if joined else {**styles[name], "linestyle": "none"}
            style |= {
                "markerfacecolor": "white" if is_published else style["color"],
                "markeredgewidth": 1.6,
            }
            x, accuracy, deviation = (
                np.array([point[place] for point in shown], float) for place in range(3)
            )
            label = _format_for_legend(name) + ", as published" * is_published
            error = None if np.isnan(deviation).all() else np.nan_to_num(deviation)
            panel.errorbar(
                x,
                accuracy,
                yerr=error,
                markersize=7,
                capsize=3,
                linewidth=1.6,
                label=label,
                **style,
            )


def _finish_points(
    figure: Any,
    panels: Sequence[Any],
    families: Sequence[Mapping[str, Sequence[Point]]],
    written: Callable[[float], str],
) -> None:
    """Sets axes and legend, then, when the layout is final, the labels of the points."""
    everything = [[point for points in each.values() for point in points] for each in families]
    for panel, points in zip(panels, everything, strict=True):
        if points:
            _finish_x(panel, sorted({point.x for point in points}), written)
    handles = {
        name: mark
        for panel in panels
        for mark, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if handles:
        columns = min(len(handles), 2 * len(panels) + 1)
        spell_plainly(
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=columns
            )
        )
    figure.draw_without_rendering()
    for panel, points in zip(panels, everything, strict=True):
        write_beside(
            panel,
            [(point.x, point.accuracy) for point in points],
            [point.label for point in points],
        )


def _finish_x(panel: Any, values: Sequence[float], written: Callable[[float], str]) -> None:
    """Sets ticks at the values if these are few and far apart, else at 1, 2, 5, 10, ..."""
    # Without automatic limits: for a single value, rounding can make both of these equal.
    panel.set_autoscalex_on(False)
    panel.set_xlim(values[0] / 1.6, values[-1] * 1.6)
    apart = all(later > 1.4 * former for former, later in zip(values, values[1:], strict=False))
    if len(values) <= 6 and apart:
        panel.set_xticks(values, [written(value) for value in values])
    else:
        panel.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
        panel.xaxis.set_major_formatter(lambda value, _: written(value))
    panel.xaxis.set_minor_formatter("")
    panel.minorticks_off()


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _format_count(value: float) -> str:
    """Formats a count as "9M", "1.28M", "50k" or "1437"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / {'k': 1e3}.get(letter, size):.3g}{letter}"
    return f"{value:.4g}"
