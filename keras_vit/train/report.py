"""A run on one page: `report.md` with its results, and the picture of its curves.

Everything is made from `metrics.csv` and from what the caller says of the run, so a report can be made again at any
time, also of a run that goes on or was killed. Nothing is measured here.
"""

import math
import os
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.drawing import COLORS, check_can_draw, picture
from keras_vit.train.logs import read_metrics
from keras_vit.writing import cell, table, write_text

Point = tuple[int, float]
Curve = Sequence[Point]

# The last part of a metric's name is its kind: "validation/loss" is a loss. Which of two values is the better one?
_BETTER: dict[str, Callable[..., Point]] = {"loss": min, "error": min, "accuracy": max, "top1": max, "top5": max}
_SHARES = ("accuracy", "top1", "top5")  # written in percent
# Kinds that have a panel in the picture, how much of the height it takes, and where a curve rarely comes by.
_PANELS = {"loss": (3.0, "upper right"), "accuracy": (2.4, "lower right"), "learning_rate": (1.3, "upper right")}
# What is said of a whole run, by metric: in words, from its values, and how it is written.
_SPEED: dict[str, tuple[str, Callable[[list[float]], float], str]] = {
    "train/images_per_second": ("images per second, median", statistics.median, ",.1f"),
    "train/input_bound": ("share of the time spent waiting for images, mean", statistics.fmean, ".1%"),
    "train/memory_gb": ("memory, most, in GB", max, ".2f"),
}
_FEW = 60  # points that can still be told apart; more are smoothed


def write_report(
    workdir: str | os.PathLike, *, title: str, facts: Mapping[str, str], command: str, sections: Sequence[str] = ()
) -> Path:
    """Writes `report.md` and `learning_curve.png` into the folder of a run, in place of earlier ones.

    Each appears whole or not at all.

    Args:
        workdir: Folder of the run, with its `metrics.csv`.
        title: What was trained on what.
        facts: What the numbers depend on, by name: configuration, versions, devices.
        command: What to type to do the same again; nothing if it is empty.
        sections: What else there is to say, in Markdown; it comes first.

    Returns:
        The path of `report.md`.

    Raises:
        FileNotFoundError: If there is no `metrics.csv` in the folder.
        ImportError: If matplotlib is absent; the message says what to install.

    Example:
        >>> from keras_vit.train.logs import MetricsLog
        >>> with MetricsLog("run", resume_step=0) as log:
        ...     log.write(10, {"train/loss": 2.3, "validation/accuracy": 0.5})
        >>> write_report("run", title="A first run", facts={"Keras": "3.15.1"}, command="python train.py").name
        'report.md'
    """
    check_can_draw()
    workdir = Path(workdir)
    curves = read_metrics(workdir)
    picture = workdir / "learning_curve.png"
    drawn = _draw(curves, title, picture)
    page = [f"# {cell(title)}", *([f"```sh\n{command}\n```"] if command else []), *sections, _results(curves)]
    page += [f"![{cell(title)}: its learning curve]({picture.name})"] * drawn
    page += [table(["fact", "value"], facts.items())] if facts else []
    page += [f"Every number is in [metrics.csv](metrics.csv); `{_tensorboard(workdir)}` shows them live."]
    write_text(workdir / "report.md", "\n\n".join(page) + "\n")
    return workdir / "report.md"


def _tensorboard(workdir: Path) -> str:
    return shlex.join(["tensorboard", f"--logdir={(workdir / 'tensorboard').resolve()}"])


def _results(curves: Mapping[str, Curve]) -> str:
    """The last and the best value of every metric, then the speed of the run."""
    if not curves:
        return "Nothing has been measured."
    metrics = [
        [name, *_point(name, curve[-1]), *_point(name, _best(name, curve))]
        for name, curve in curves.items()
        if name not in _SPEED
    ]
    speed = [
        [words, format(summary(values), style)]
        for name, (words, summary, style) in _SPEED.items()
        if (values := [value for _, value in curves.get(name, ()) if math.isfinite(value)])
    ]
    tables = [table(["metric", "last", "at step", "best", "at step"], metrics)] if metrics else []
    return "\n\n".join(tables + ([table(["the whole run", ""], speed)] if speed else []))


def _best(name: str, curve: Curve) -> Point | None:
    """The first of the best finite points. Of a training batch the best is luck, and other metrics have none."""
    finite = [point for point in curve if math.isfinite(point[1])]
    choose = _BETTER.get(_kind(name)) if _split(name) != "train" else None
    return choose(finite, key=lambda point: point[1]) if choose and finite else None


def _point(name: str, point: Point | None) -> tuple[str, str]:
    """The value and its step, as they are written everywhere."""
    if point is None:
        return "", ""
    step, value = point
    share = _kind(name) in _SHARES and math.isfinite(value)
    return f"{value:.2%}" if share else f"{value:.4g}", f"{step:,}"


def _split(name: str) -> str:
    return name.rpartition("/")[0]


def _kind(name: str) -> str:
    return name.rpartition("/")[2]


def _draw(curves: Mapping[str, Curve], title: str, path: Path) -> bool:
    """One panel below the other, over the same steps. Says whether there was something to draw."""
    kinds = [kind for kind in _PANELS if any(_kind(name) == kind for name in curves)]
    if not kinds:
        return False
    heights = [_PANELS[kind][0] for kind in kinds]
    with picture(path, 9, sum(heights) + 1) as figure:
        axes = figure.subplots(len(kinds), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _fill(dict(zip(kinds, axes, strict=True)), curves)
        axes[0].set_title(title, loc="left", fontweight="bold", wrap=True, parse_math=False)
        figure.align_ylabels(axes)
    return True


def _fill(panels: Mapping[str, Any], curves: Mapping[str, Curve]) -> None:
    """Each curve into the panel of its kind; a split has one color in all of them."""
    splits = list(dict.fromkeys(_split(name) for name in curves if _kind(name) in panels))
    for kind, panel in panels.items():
        shown = {name: curve for name, curve in curves.items() if _kind(name) == kind}
        for name, curve in shown.items():
            _draw_curve(panel, name, curve, COLORS[splits.index(_split(name)) % len(COLORS)])
        _finish_panel(panel, kind, [value for curve in shown.values() for _, value in curve if math.isfinite(value)])
    _finish_steps(panel, max(step for curve in curves.values() for step, _ in curve))


def _draw_curve(panel: Any, name: str, curve: Curve, color: str) -> None:
    """Few points as points; many as a faint line below a smooth one; what is not finite as ticks at the bottom."""
    steps, values = np.array([step for step, _ in curve]), np.array([value for _, value in curve])
    finite = np.isfinite(values)
    label = _label(name, curve) if _kind(name) != "learning_rate" else None
    if len(curve) <= _FEW:
        panel.plot(steps[finite], values[finite], "o-", color=color, markersize=4.5, linewidth=1.6, label=label)
    elif _kind(name) == "learning_rate":
        panel.plot(steps, np.where(finite, values, np.nan), color=color, linewidth=2.0, label=label)
    else:
        panel.plot(steps, np.where(finite, values, np.nan), color=color, alpha=0.25, linewidth=0.8)
        panel.plot(steps, _smooth(values), color=color, linewidth=2.0, label=label)
    if not finite.all():
        base = np.full((~finite).sum(), 0.03)
        panel.plot(steps[~finite], base, "|", color="black", transform=panel.get_xaxis_transform(), markersize=9)
        panel.plot([], [], "|", color="black", markersize=9, label=f"{name}: not finite, {len(base)} times")


def _label(name: str, curve: Curve) -> str:
    last, best = curve[-1], _best(name, curve)
    words = f"{_split(name) or name}: last {_point(name, last)[0]}"
    return f"{words}, best {' at '.join(_point(name, best))}" if best else words


def _smooth(values: np.ndarray) -> np.ndarray:
    """The mean of the finite values nearby, a fiftieth of the curve; at the ends, of those there are."""
    window = np.ones(2 * max(2, len(values) // 100) + 1)
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), window, mode="same")
    count = np.convolve(finite.astype(float), window, mode="same")
    return np.divide(total, count, out=np.full(len(values), np.nan), where=finite)


def _finish_panel(panel: Any, kind: str, values: list[float]) -> None:
    panel.set_ylabel(kind.replace("_", " "))
    if kind == "learning_rate":
        panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    if kind in _SHARES:
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    # A loss that falls through more than an order of magnitude would otherwise end as a line along the axis.
    if kind == "loss" and values and min(values) > 0 and max(values) > 30 * min(values):
        panel.set_yscale("log")
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc=_PANELS[kind][1])


def _finish_steps(panel: Any, last_step: int) -> None:
    panel.set_xlim(0, 1.02 * max(1, last_step))
    panel.set_xlabel("step")
    panel.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
