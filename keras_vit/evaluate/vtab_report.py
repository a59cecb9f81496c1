"""The results of VTAB on one page: `vtab.csv`, `vtab.md`, and `vtab.png`, which is drawn like
Figure 2 of the paper.

Everything is made from the `result.json` files in the folders of the tasks, so a report can be made
again at any time. A mean over fewer tasks than its group has is never called the mean of the group,
and stands beside the paper's mean over the same tasks.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from keras_vit.drawing import COLORS, picture, shortened
from keras_vit.paper import VTAB_GROUPS, vtab_bars, vtab_scores
from keras_vit.writing import cell, table, write_csv, write_json, write_text

OWN = "own"  # the group of folders that are none of VTAB's tasks
ALL = "all"
_TASKS = {name: group for group, names in VTAB_GROUPS.items() for name in names}
_COLUMNS = {
    "ViT-H/14, JFT-300M": ("ViT_H14", "jft300m"),
    "ViT-L/16, JFT-300M": ("ViT_L16", "jft300m"),
    "ViT-L/16, ImageNet-21k": ("ViT_L16", "imagenet21k"),
}
_BIT = "BiT-L, JFT-300M"
_PAPER = {label: vtab_scores(*key) for label, key in _COLUMNS.items()}
_BARS = {
    label: vtab_bars()[key] for label, key in {**_COLUMNS, _BIT: ("BiT_R152x4", "jft300m")}.items()
}
_COLOR_OF = {"this run": COLORS[0], **dict(zip(_COLUMNS, COLORS[1:], strict=True)), _BIT: "#888888"}

_ON_TEST = (
    "A task is learned from 1000 images (800 and 200), and measured once, on its whole test set."
)
_ON_VALIDATION = (
    "A task is learned from 800 images and **measured on 200 others**; no image of a test set is "
    "read. That is for "
    "choosing a setting: numbers of test sets are others."
)
_OF_TABLE_2 = "The paper's numbers: arXiv:2010.11929, Table 9, and over all 19 tasks Table 2, which is of three runs."
_OF_TABLE_9 = "The paper's numbers: arXiv:2010.11929, Table 9; its means are over the same tasks as this run's."


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a task.

    Attributes:
        task: Its name, as in `keras_vit.evaluate.vtab_tasks.TASKS`; of a folder of your own,
            another.
        title: Its name for people.
        group: "natural", "specialized", "structured" or "own".
        data: Which examples.
        learned_from: How many images.
        measured_on: "test" or "validation".
        numbers: Of `keras_vit.evaluate.accuracy`: "top1" (a share), "images", "unreadable" and
            more.
    """

    task: str
    title: str
    group: str
    data: str
    learned_from: int
    measured_on: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over the tasks of a group that were run, in percent.

    Attributes:
        group: A group of VTAB, "all" of it, or "own".
        tasks: Those that were run.
        of: How many there are.
        ours: The mean of their accuracies.
        paper: Label to the paper's mean over the same tasks.
    """

    group: str
    tasks: tuple[str, ...]
    of: int
    ours: float
    paper: Mapping[str, float]

    @property
    def is_whole(self) -> bool:
        return len(self.tasks) == self.of

    @property
    def title(self) -> str:
        name = {ALL: "VTAB", OWN: "Your own"}.get(self.group, self.group.capitalize())
        count = f"{self.of}" if self.is_whole else f"{len(self.tasks)} of {self.of}"
        return f"{name} ({count} task{'s' * (self.of > 1)})"


def write_result(folder: Path, result: Result) -> None:
    """Writes `result.json`: a task that has one is finished."""
    write_json(folder / "result.json", asdict(result))


def read_result(folder: Path) -> Result:
    """Returns what `write_result` wrote."""
    return Result(**json.loads((folder / "result.json").read_text(encoding="utf-8")))


def read_results(workdir: Path) -> list[Result]:
    """Returns the results of all finished tasks: in the order of Table 9, then your own by name."""
    found = [read_result(path.parent) for path in workdir.glob("*/result.json")]
    order = {name: place for place, name in enumerate(_TASKS)}
    return sorted(found, key=lambda result: (order.get(result.task, len(order)), result.task))


def means(results: Sequence[Result]) -> list[Mean]:
    """Returns the mean over all of VTAB, over each of its groups, and over your own tasks, where
    any were run.

    Source: arXiv:1910.04867 (VTAB): the score is the mean over the tasks.
    """
    ours = {result.task: 100 * result.numbers["top1"] for result in results}
    own = [result.task for result in results if result.group == OWN]
    found = []
    for group, names in {ALL: [*_TASKS], **VTAB_GROUPS, OWN: own}.items():
        run = tuple(name for name in names if name in ours)
        if run:
            mean = fmean(ours[name] for name in run)
            found.append(
                Mean(group=group, tasks=run, of=len(names), ours=mean, paper=_papers(group, run))
            )
    return found


def _papers(group: str, run: Sequence[str]) -> dict[str, float]:
    if group == OWN:
        return {}
    if len(run) == len(VTAB_GROUPS.get(group, _TASKS)):
        return {label: bars[group] for label, bars in _BARS.items() if group in bars}
    return {label: fmean(scores[name] for name in run) for label, scores in _PAPER.items()}


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Returns accuracies by name: "vtab/<task>", "vtab/<group>" for each whole group, and
    "vtab/mean" for all 19.

    Example:
        >>> pets = Result(task="pets", title="Pets", group="natural", data="", learned_from=1000, measured_on="test",
        ...               numbers={"top1": 0.9, "images": 3669, "unreadable": 0})
        >>> summary([pets])
        {'vtab/pets': 0.9}
    """
    names = {ALL: "mean"}
    whole_groups = [mean for mean in means(results) if mean.is_whole and mean.group != OWN]
    return {f"vtab/{result.task}": result.numbers["top1"] for result in results} | {
        f"vtab/{names.get(mean.group, mean.group)}": mean.ours / 100 for mean in whole_groups
    }


def write_report(
    workdir: Path,
    *,
    title: str,
    facts: Mapping[str, str],
    left_out: Mapping[str, str] | None = None,
) -> Path:
    """Writes `vtab.csv`, `vtab.md` and `vtab.png`, in place of earlier ones. Each appears whole or
    not at all.

    Args:
        workdir: Of the run: `<task>/result.json` are in it, at least one.
        title: What was measured.
        facts: What the numbers depend on, by name.
        left_out: Task to the reason why it was not run.

    Returns:
        The path of `vtab.md`.

    Raises:
        ValueError: If no task is finished.
    """
    results = read_results(workdir)
    if not results:
        raise ValueError(f"No task is finished in {workdir}: there is no {workdir}/*/result.json.")
    _write_csv(workdir / "vtab.csv", results)
    _draw(workdir / "vtab.png", results, title)
    write_text(
        workdir / "vtab.md", "\n\n".join(_page(results, title, facts, left_out or {})) + "\n"
    )
    return workdir / "vtab.md"


def _write_csv(path: Path, results: Sequence[Result]) -> None:
    """In percent; a cell is empty where the paper has no number."""
    rows = []
    for result in results:
        paper = [scores.get(result.task, "") for scores in _PAPER.values()]
        ours = f"{100 * result.numbers['top1']:.4f}"
        rows.append([result.task, result.group, ours, int(result.numbers["images"]), *paper])
    write_csv(path, ["task", "group", "ours", "images", *_PAPER], rows)


def _page(
    results: Sequence[Result], title: str, facts: Mapping[str, str], left_out: Mapping[str, str]
) -> list[str]:
    found = means(results)
    labels = [label for label in _BARS if any(label in mean.paper for mean in found)]
    rows = [[mean.title, *_percents(mean.ours, mean.paper, labels)] for mean in found]
    page = [f"# VTAB-1k: {cell(title)}", _headline(results, found[0])]
    page += [table(["mean of", "this run", *labels], rows), "![Means, and every task](vtab.png)"]
    page += ["## Tasks", _tasks(results), *_not_run(results, left_out)]
    return [*page, "## Setting", table(["field", "value"], facts.items())]


def _headline(results: Sequence[Result], first: Mean) -> str:
    is_test = results[0].measured_on == "test"
    names = "tasks of VTAB" if first.group == ALL else "tasks of your own"
    which = (
        f"all {first.of} {names}"
        if first.is_whole
        else f"{len(first.tasks)} of the {first.of} {names}"
    )
    words = [
        f"**{first.ours:.2f}%**: the mean over {which}.",
        _ON_TEST if is_test else _ON_VALIDATION,
    ]
    usual = 1000 if is_test else 800
    fewer = [
        f"{cell(each.title)} from {each.learned_from:,}"
        for each in results
        if each.learned_from != usual
    ]
    words += (
        [f"Learned from all that there are, which is fewer: {', '.join(fewer)}."] if fewer else []
    )
    if first.group == ALL:
        words += [_OF_TABLE_2 if first.is_whole else _OF_TABLE_9]
    return " ".join(words)


def _tasks(results: Sequence[Result]) -> str:
    labels = [
        label
        for label, scores in _PAPER.items()
        if any(result.task in scores for result in results)
    ]
    rows = []
    for result in results:
        paper = {
            label: _PAPER[label][result.task] for label in labels if result.task in _PAPER[label]
        }
        images, bad = f"{result.numbers['images']:,.0f}", result.numbers.get("unreadable", 0)
        images += f" ({bad:,.0f} unreadable)" if bad else ""
        percents = _percents(100 * result.numbers["top1"], paper, labels, digits=1)
        rows.append([result.title, result.group, f"{result.learned_from:,}", images, *percents])
    return table(["task", "group", "learned from", "measured on", "this run", *labels], rows)


def _not_run(results: Sequence[Result], left_out: Mapping[str, str]) -> list[str]:
    run = {result.task for result in results}
    reasons = [f"- `{name}`: {' '.join(left_out[name].split())}" for name in left_out]
    others = (
        [f"`{name}`" for name in _TASKS if name not in run | {*left_out}] if run & {*_TASKS} else []
    )
    words = [f"Not named in the last call: {', '.join(others)}."] if others else []
    words = (["\n".join(reasons)] if reasons else []) + words
    return ["## Not run", *words] if words else []


def _percents(
    ours: float, paper: Mapping[str, float], labels: Sequence[str], *, digits: int = 2
) -> list[str]:
    return [
        f"{ours:.2f}",
        *(f"{paper[label]:.{digits}f}" if label in paper else "-" for label in labels),
    ]


def _draw(path: Path, results: Sequence[Result], title: str) -> None:
    """Means in panels, as in Figure 2; below them, every task."""
    found = [mean for mean in means(results) if mean.group != OWN]
    with picture(path, 13, 8.6 if found else 4.6) as figure:
        parts = figure.subfigures(
            2 if found else 1, 1, height_ratios=[1, 1.25] if found else [1], squeeze=False
        )[:, 0]
        if found:
            _draw_means(parts[0], found)
        _draw_tasks(parts[-1], results)
        where = (
            ""
            if results[0].measured_on == "test"
            else ", on the 200 validation images of each task"
        )
        text = {"fontweight": "bold", "x": 0.01, "ha": "left", "wrap": True, "parse_math": False}
        figure.suptitle(f"VTAB-1k: {title}{where}", **text)


def _draw_means(figure: Any, found: Sequence[Mean]) -> None:
    bars = [{"this run": mean.ours, **mean.paper} for mean in found]
    panels = figure.subplots(
        1, len(found), sharey=True, squeeze=False, width_ratios=[len(each) for each in bars]
    )[0]
    values = [value for each in bars for value in each.values()]
    lowest = max(0, 10 * int((min(values) - 4) // 10))
    for panel, mean, each in zip(panels, found, bars, strict=True):
        for place, (label, value) in enumerate(each.items()):
            panel.bar(
                place,
                value - lowest,
                bottom=lowest,
                width=0.82,
                color=_COLOR_OF[label],
                label=label,
            )
            panel.annotate(
                f"{value:.1f}",
                (place, value),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        panel.set_title(mean.title, fontsize=12)
        panel.set(xticks=[], ylim=(lowest, max(values) + 0.06 * (max(values) - lowest)))
        panel.grid(axis="x", visible=False)
        panel.tick_params(axis="y", length=0)
    panels[0].set_ylabel("mean accuracy, %")
    handles = {
        label: bar
        for panel in panels
        for bar, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=len(handles),
        fontsize=10,
    )


def _draw_tasks(figure: Any, results: Sequence[Result]) -> None:
    """A bar for each task, and a dot for each of the paper's models; a gap between groups."""
    axes = figure.subplots()
    groups = list(dict.fromkeys(result.group for result in results))
    places = [number + 0.7 * groups.index(result.group) for number, result in enumerate(results)]
    shares = [result.numbers["top1"] for result in results]
    axes.bar(places, [100 * share for share in shares], width=0.78, color=COLORS[0])
    for place, share in zip(places, shares, strict=True):
        text = {"ha": "center", "fontsize": 8, "color": "white" if share > 0.08 else "black"}
        axes.annotate(f"{100 * share:.1f}", (place, 0), (0, 3), textcoords="offset points", **text)
    dots = {
        "linestyle": "none",
        "marker": "o",
        "markersize": 6.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.9,
    }
    for shift, (label, scores) in zip((-0.2, 0.0, 0.2), _PAPER.items(), strict=True):
        values = [scores.get(result.task, math.nan) for result in results]
        axes.plot([place + shift for place in places], values, color=_COLOR_OF[label], **dots)
    for group in groups:
        first = places[[result.group for result in results].index(group)]
        name = "your own" if group == OWN else group
        axes.annotate(
            name.capitalize(),
            (first - 0.39, 103),
            annotation_clip=False,
            fontsize=11,
            color="#555555",
        )
    titles = [shortened(result.title, number, 22) for number, result in enumerate(results)]
    axes.set_xticks(
        places,
        titles,
        rotation=35,
        ha="right",
        rotation_mode="anchor",
        fontsize=10,
        parse_math=False,
    )
    axes.tick_params(length=0)
    axes.grid(axis="x", visible=False)
    # few tasks: no broad bars
    middle, width = (places[0] + places[-1]) / 2, max(places[-1] - places[0] + 1.4, 9)
    axes.set(ylim=(0, 102), xlim=(middle - width / 2, middle + width / 2), ylabel="accuracy, %")
