"""The report of a run: `report.md` with its results, and a figure of its learning curves.

It is generated from `metrics.csv` and the arguments alone, so it can be written again at any time,
also for a run that is in progress or was killed.
"""

import math
import os
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keras_vit.drawing import COLORS, TRAINING_PANELS, Curve, Line, check_can_draw, draw_training
from keras_vit.train.logs import read_metrics
from keras_vit.writing import cell, table, write_text

Point = tuple[int, float]

# How to choose the better of two values, by the last part of the name: "validation/loss" is a loss.
_BETTER: dict[str, Callable[..., Point]] = {
    "loss": min,
    "error": min,
    "accuracy": max,
    "top1": max,
    "top5": max,
}
_SHARES = ("accuracy", "top1", "top5")  # printed in percent
# Statistics over the whole run, by metric: description, aggregation, format.
_SPEED: dict[str, tuple[str, Callable[[list[float]], float], str]] = {
    "train/images_per_second": ("images per second, median", statistics.median, ",.1f"),
    "train/input_bound": (
        "share of the time spent waiting for images, mean",
        statistics.fmean,
        ".1%",
    ),
    "train/memory_gb": ("memory in GB, maximum", max, ".2f"),
}


def write_report(
    workdir: str | os.PathLike,
    *,
    title: str,
    facts: Mapping[str, str],
    command: str,
    sections: Sequence[str] = (),
) -> Path:
    """Writes `report.md` and `learning_curve.png` into the folder of a run, and replaces older
    ones.

    Both files are written atomically.

    Args:
        workdir: Folder of the run, with its `metrics.csv`.
        title: Title of the report: the model and the data.
        facts: Facts on which the results depend, by name: configuration, versions, devices.
        command: Command line that repeats the run. It is omitted if it is empty.
        sections: Further sections in Markdown, printed before the results.

    Returns:
        The path of `report.md`.

    Raises:
        FileNotFoundError: If the folder has no `metrics.csv`.
        ImportError: If matplotlib is not installed. The message names the package to install.

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
    page = [
        f"# {cell(title)}",
        *([f"```sh\n{command}\n```"] if command else []),
        *sections,
        _format_results(curves),
    ]
    page += [f"![Learning curve of {cell(title)}]({picture.name})"] * drawn
    page += [table(["fact", "value"], facts.items())] if facts else []
    page += [
        "All metrics are in [metrics.csv](metrics.csv). To plot them during the run, use "
        f"`{_make_tensorboard_command(workdir)}`."
    ]
    write_text(workdir / "report.md", "\n\n".join(page) + "\n")
    return workdir / "report.md"


def _make_tensorboard_command(workdir: Path) -> str:
    return shlex.join(["tensorboard", f"--logdir={(workdir / 'tensorboard').resolve()}"])


def _format_results(curves: Mapping[str, Curve]) -> str:
    """Formats the last and the best value of every metric, then the speed of the run."""
    if not curves:
        return "There are no metrics yet."
    metrics = [
        [name, *_format_point(name, curve[-1]), *_format_point(name, _find_best(name, curve))]
        for name, curve in curves.items()
        if name not in _SPEED
    ]
    speed = [
        [words, format(summary(values), style)]
        for name, (words, summary, style) in _SPEED.items()
        if (values := [value for _, value in curves.get(name, ()) if math.isfinite(value)])
    ]
    tables = [table(["metric", "last", "at step", "best", "at step"], metrics)] if metrics else []
    return "\n\n".join(tables + ([table(["whole run", "value"], speed)] if speed else []))


def _find_best(name: str, curve: Curve) -> Point | None:
    """Returns the first of the best finite points of a curve.

    None for metrics of training batches, whose best value is chance, and for metrics that are not
    in `_BETTER`.
    """
    finite = [point for point in curve if math.isfinite(point[1])]
    choose = _BETTER.get(_kind_of(name)) if _split_of(name) != "train" else None
    return choose(finite, key=lambda point: point[1]) if choose and finite else None


def _format_point(name: str, point: Point | None) -> tuple[str, str]:
    """Formats the value and the step of a point; empty strings if there is no point."""
    if point is None:
        return "", ""
    step, value = point
    share = _kind_of(name) in _SHARES and math.isfinite(value)
    return f"{value:.2%}" if share else f"{value:.4g}", f"{step:,}"


def _split_of(name: str) -> str:
    return name.rpartition("/")[0]


def _kind_of(name: str) -> str:
    return name.rpartition("/")[2]


def _draw(curves: Mapping[str, Curve], title: str, path: Path) -> bool:
    """Draws the curves, each split in one color in all panels. Returns whether there were any."""
    drawn = [name for name in curves if _kind_of(name) in TRAINING_PANELS]
    splits = list(dict.fromkeys(_split_of(name) for name in drawn))
    colors = {split: COLORS[number % len(COLORS)] for number, split in enumerate(splits)}
    lines = [
        Line(
            _kind_of(name),
            name,
            curves[name],
            colors[_split_of(name)],
            _make_label(name, curves[name]),
        )
        for name in drawn
    ]
    if lines:
        draw_training(path, lines, title)
    return bool(lines)


def _make_label(name: str, curve: Curve) -> str | None:
    if _kind_of(name) == "learning_rate":
        return None
    last, best = curve[-1], _find_best(name, curve)
    words = f"{_split_of(name) or name}: last {_format_point(name, last)[0]}"
    return f"{words}, best {' at '.join(_format_point(name, best))}" if best else words
