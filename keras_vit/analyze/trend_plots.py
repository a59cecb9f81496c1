"""Pictures of how accuracy depends on something: on steps, compute, data, or one choice among
several.

Draws what it is given. All accuracies are in percent, as in `keras_vit.paper`; only
`draw_training_curve` takes metrics as they are logged. The insides of a model are drawn in
`plots.py`.

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
    """One model, or the mean over the seeds of one.

    Attributes:
        x: What it took: exaFLOPs, relative compute, images. Above 0.
        accuracy: In percent.
        deviation: Of the seeds, in percent; NaN for a single one.
        label: Written beside the point, or nothing.
        published: Whether the number is the paper's: then the mark is hollow.
    """

    x: float
    accuracy: float
    deviation: float = math.nan
    label: str = ""
    published: bool = False


def draw_training_curve(
    path: Path, runs: Mapping[str, Mapping[str, Curve]], title: str = ""
) -> None:
    """Draws loss and accuracy against steps, of one run or of several: Figure 9.

    A run has one color in both panels; what was measured on training batches is dashed.
    The file appears whole or not at all.

    Args:
        path: Of the PNG.
        runs: Name of a run to its metrics, as from `keras_vit.train.logs.read_metrics`: name of a
            metric to (step, value) pairs. Drawn are those whose name ends in "loss" or "accuracy",
            such as "validation/loss".
        title: What it is.

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
                label = ", ".join(part for part in (_in_legend(run), split) if part)
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
    """Returns Table 6 of the paper as points: "ViT", "Hybrid", "ResNet" to accuracy against
    exaFLOPs.

    Args:
        dataset: A column of Table 6, such as "imagenet", or "average5", the mean of five.

    Raises:
        ValueError: If Table 6 does not have it.

    Example:
        >>> published_compute("imagenet")["ViT"][0]
        Point(x=55, accuracy=80.73, deviation=nan, label='B/32', published=True)
    """
    rows = [row for row in published(table="Table 6") if row.dataset == dataset]
    if not rows:
        there = dict.fromkeys(row.dataset for row in published(table="Table 6"))
        raise ValueError(f"Table 6 has no {dataset}. It has: {', '.join(there)}.")
    families: dict[str, list[Point]] = {"ViT": [], "Hybrid": [], "ResNet": []}
    models = [row.model for row in rows]
    for row in rows:
        is_vit, label = row.model.startswith("ViT"), _label(row.model)
        if models.count(row.model) > 1:
            label += f", {row.epochs} ep."
        family = "ViT" if is_vit else "Hybrid" if row.model in VIT_VARIANTS else "ResNet"
        families[family].append(
            Point(row.exaflops or math.nan, row.accuracy, label=label, published=True)
        )
    return families


def _label(model: str) -> str:
    """ "B/16" of "ViT_B16", "R50+B/16" of "R50_ViT_B16", "R50x1" of "ResNet50x1"."""
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
    """Draws accuracy against compute, on a logarithmic axis: Figure 5; joined, Figure 8.

    A family has one color and one mark in all panels. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        panels: Title of a panel to its families, each a name to points: "ViT", "Hybrid", "ResNet".
        x_label: What `x` of the points is.
        y_label: What their accuracy is.
        joined: Whether a line joins the points of a family: where one thing grows, as in Figure 8.

    Raises:
        ValueError: If there is no point, or one has no finite accuracy or no `x` above 0.

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
    styles = _styles(name for families in panels.values() for name in families)
    with picture(path, 6.3 * columns, 5.0 * rows + 0.6) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in axes[len(panels) :]:
            panel.set_axis_off()
        for panel, (title, families) in zip(axes, panels.items(), strict=False):
            _draw_points(panel, families, styles, joined=joined)
            _name_axes(panel, x_label, y_label)
            panel.set_title(drawable(title, 50), parse_math=False)
        _finish_points(figure, axes[: len(panels)], [*panels.values()], _plainly)


def draw_accuracy_against_data(
    path: Path,
    curves: Mapping[str, Sequence[Point]],
    *,
    x_label: str = "images",
    y_label: str = "accuracy, %",
) -> None:
    """Draws accuracy against the number of images, on a logarithmic axis, a line for each model:
    Figure 4.

    The file appears whole or not at all.

    Args:
        path: Of the PNG.
        curves: Model to points; `x` is a number of images.
        x_label: Which images.
        y_label: What the accuracy is.

    Raises:
        ValueError: If there is no point, or one has no finite accuracy or no `x` above 0.

    Example:
        >>> draw_accuracy_against_data(Path("data.png"), {"ViT-B/32": [Point(9e6, 45.0), Point(303e6, 60.0)]})
        >>> Path("data.png").exists()
        True
    """
    _check(curves)
    with picture(path, 7.0, 5.2) as figure:
        axes = figure.subplots()
        _draw_points(axes, curves, _styles(curves), joined=True)
        _name_axes(axes, x_label, y_label)
        _finish_points(figure, [axes], [curves], _count)


def draw_means(
    path: Path,
    arms: Mapping[str, Sequence[float]],
    published: Mapping[str, float] | None = None,
    *,
    title: str = "",
    x_label: str = "accuracy, %",
    published_label: str = "the paper's accuracy, %",
) -> None:
    """Draws the arms of an ablation, one below the other: each seed, their mean, and their standard
    deviation (n - 1).

    The paper's numbers stand beside, in a panel with an axis of its own: they are of other data.
    The file appears whole or not at all.

    Args:
        path: Of the PNG.
        arms: Name of an arm to the accuracy of each of its seeds, in percent.
        published: Name of an arm to the paper's accuracy, in percent; arms that the paper does not
            have are left out.
        title: What it is.
        x_label: What was measured.
        published_label: What the paper measured.

    Raises:
        ValueError: If there is no arm, one has no seed or a value that is not finite, or
            `published` names others.

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
        _write_at_the_end(panel, place, words)
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
        _write_at_the_end(panel, place, "" if math.isnan(value) else f"{value:.2f}")
    _name_axes(panel, x_label)
    panel.tick_params(axis="y", length=0)
    panel.margins(x=0.15)


def _write_at_the_end(panel: Any, place: float, words: str) -> None:
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
        raise ValueError("There is nothing to draw: `arms` is empty.")
    empty = [name for name, values in arms.items() if not len(values)]
    broken = [name for name, values in arms.items() if not np.isfinite(values).all()]
    broken += [name for name, value in published.items() if not math.isfinite(value)]
    unknown = [name for name in published if name not in arms]
    if empty or broken or unknown:
        raise ValueError(
            "Every arm must have the finite accuracy of at least one seed, and `published` names "
            "arms. Without a seed: "
            f"{_listed(empty)}; not finite: {_listed(broken)}; no arms: {_listed(unknown)}. Leave "
            f"them out."
        )


def _check(curves: Mapping[str, Sequence[Point]]) -> None:
    if not any(len(points) for points in curves.values()):
        raise ValueError("There is nothing to draw: no point was given.")
    broken = [
        f"{name} at {point.x}"
        for name, points in curves.items()
        for point in points
        if not (math.isfinite(point.accuracy) and math.isfinite(point.x) and point.x > 0)
    ]
    if broken:
        raise ValueError(
            "A point must have a finite accuracy, and an `x` above 0, whose axis is logarithmic. "
            "Leave out: "
            f"{_listed(broken)}."
        )


def _in_legend(name: str) -> str:
    """Matplotlib leaves out what begins with an underscore."""
    words = drawable(name, 40)
    return f" {words}" if words.startswith("_") else words


def _name_axes(panel: Any, x_label: str, y_label: str = "") -> None:
    panel.set_xlabel(drawable(x_label, 60), parse_math=False)
    panel.set_ylabel(drawable(y_label, 60), parse_math=False)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + ", ..." * (len(names) > 6) if names else "none"


def _styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A color, a mark and a kind of line for each name: the first of them differ in color and mark,
    all in one.
    """
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
            label = _in_legend(name) + ", as published" * is_published
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
    """Axes, legend and, when everything has its place, the labels."""
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
    """Numbers at the values themselves, where these are few and stand apart; else at 1, 2, 5, 10,
    ...
    """
    panel.set_xlim(values[0] / 1.6, values[-1] * 1.6)
    apart = all(later > 1.4 * former for former, later in zip(values, values[1:], strict=False))
    if len(values) <= 6 and apart:
        panel.set_xticks(values, [written(value) for value in values])
    else:
        panel.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
        panel.xaxis.set_major_formatter(lambda value, _: written(value))
    panel.xaxis.set_minor_formatter("")
    panel.minorticks_off()


def _plainly(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _count(value: float) -> str:
    """ "9M", "1.28M", "50k", "1437"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / {'k': 1e3}.get(letter, size):.3g}{letter}"
    return f"{value:.4g}"
