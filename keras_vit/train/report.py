"""A run on one page: `report.md` with its results, and the picture of its curves.

Everything is made from `metrics.csv` and from what the caller says of the run, so a report can be
made again at any time, also of a run that goes on or was killed. Nothing is measured here.
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

# The last part of a metric's name is its kind: "validation/loss" is a loss. Which of two values is
# the better one?
_BETTER: dict[str, Callable[..., Point]] = {
    "loss": min,
    "error": min,
    "accuracy": max,
    "top1": max,
    "top5": max,
}
_SHARES = ("accuracy", "top1", "top5")  # written in percent
# What is said of a whole run, by metric: in words, from its values, and how it is written.
_SPEED: dict[str, tuple[str, Callable[[list[float]], float], str]] = {
    "train/images_per_second": ("images per second, median", statistics.median, ",.1f"),
    "train/input_bound": (
        "share of the time spent waiting for images, mean",
        statistics.fmean,
        ".1%",
    ),
    "train/memory_gb": ("memory, most, in GB", max, ".2f"),
}


def write_report(
    workdir: str | os.PathLike,
    *,
    title: str,
    facts: Mapping[str, str],
    command: str,
    sections: Sequence[str] = (),
) -> Path:
    """Writes `report.md` and `learning_curve.png` into the folder of a run, in place of earlier
    ones.

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
    page = [
        f"# {cell(title)}",
        *([f"```sh\n{command}\n```"] if command else []),
        *sections,
        _format_results(curves),
    ]
    page += [f"![{cell(title)}: its learning curve]({picture.name})"] * drawn
    page += [table(["fact", "value"], facts.items())] if facts else []
    page += [
        f"Every number is in [metrics.csv](metrics.csv); `{_make_tensorboard_command(workdir)}` shows them live."
    ]
    write_text(workdir / "report.md", "\n\n".join(page) + "\n")
    return workdir / "report.md"


def _make_tensorboard_command(workdir: Path) -> str:
    return shlex.join(["tensorboard", f"--logdir={(workdir / 'tensorboard').resolve()}"])


def _format_results(curves: Mapping[str, Curve]) -> str:
    """The last and the best value of every metric, then the speed of the run."""
    if not curves:
        return "Nothing has been measured."
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
    return "\n\n".join(tables + ([table(["the whole run", ""], speed)] if speed else []))


def _find_best(name: str, curve: Curve) -> Point | None:
    """The first of the best finite points. Of a training batch the best is luck, and other metrics
    have none.
    """
    finite = [point for point in curve if math.isfinite(point[1])]
    choose = _BETTER.get(_kind_of(name)) if _split_of(name) != "train" else None
    return choose(finite, key=lambda point: point[1]) if choose and finite else None


def _format_point(name: str, point: Point | None) -> tuple[str, str]:
    """The value and its step, as they are written everywhere."""
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
    """A split has one color in all panels. Says whether there was something to draw."""
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
