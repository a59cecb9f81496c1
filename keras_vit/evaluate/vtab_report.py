"""The VTAB report: `vtab.csv`, `vtab.md`, and `vtab.png` in the style of Figure 2 of the paper.

The report is created from the `result.json` files in the folders of the tasks, so it can be
recreated at any time. A mean over a part of a group is labelled as such, and compared with the
paper's mean over the same tasks.
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

OWN = "own"  # the group of the user's own folders
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
    "Each task is trained on 1000 images (800 and 200), and evaluated once, on its whole test set."
)
_ON_VALIDATION = (
    "Each task is trained on 800 images and **evaluated on 200 validation images**; no image of a "
    "test set is read. These results are for selecting hyperparameters and are not comparable with "
    "results on test sets."
)
_OF_TABLE_2 = (
    "The paper's results are from arXiv:2010.11929, Table 9; those over all 19 tasks are from Table 2, "
    "the mean of three runs."
)
_OF_TABLE_9 = (
    "The paper's results are from arXiv:2010.11929, Table 9, with means over the same tasks."
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a task.

    Attributes:
        task: Name of the task, as in `keras_vit.evaluate.vtab_tasks.TASKS`, or of the user's folder.
        title: Displayed name.
        group: "natural", "specialized", "structured" or "own".
        data: Description of the examples.
        learned_from: Number of training images.
        measured_on: "test" or "validation".
        numbers: Metrics of `keras_vit.evaluate.accuracy`: "top1" (a share), "images", "unreadable"
            and more.
        left_out: Summary of the files of an own folder that are not examples, or "".
    """

    task: str
    title: str
    group: str
    data: str
    learned_from: int
    measured_on: str
    numbers: Mapping[str, float]
    left_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over the finished tasks of a group, in percent.

    Attributes:
        group: A group of VTAB, "all" groups, or "own".
        tasks: Finished tasks.
        of: Number of tasks in the group.
        ours: Mean of their accuracies.
        paper: Maps the label of a model to the paper's mean over the same tasks.
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
        name = {ALL: "VTAB", OWN: "Own"}.get(self.group, self.group.capitalize())
        count = f"{self.of}" if self.is_whole else f"{len(self.tasks)} of {self.of}"
        return f"{name} ({count} task{'s' * (self.of > 1)})"


def write_result(folder: Path, result: Result) -> None:
    """Writes `result.json`, which marks a task as finished."""
    write_json(folder / "result.json", asdict(result))


def read_result(folder: Path) -> Result:
    """Reads a result that `write_result` wrote."""
    return Result(**json.loads((folder / "result.json").read_text(encoding="utf-8")))


def read_results(workdir: Path) -> list[Result]:
    """Reads the results of all finished tasks, in the order of Table 9, then own tasks by name."""
    found = [read_result(path.parent) for path in workdir.glob("*/result.json")]
    order = {name: place for place, name in enumerate(_TASKS)}
    return sorted(found, key=lambda result: (order.get(result.task, len(order)), result.task))


def means(results: Sequence[Result]) -> list[Mean]:
    """Returns the means over VTAB, each of its groups, and own tasks, if any task is finished.

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
                Mean(
                    group=group,
                    tasks=run,
                    of=len(names),
                    ours=mean,
                    paper=_find_paper_means(group, run),
                )
            )
    return found


def _find_paper_means(group: str, run: Sequence[str]) -> dict[str, float]:
    if group == OWN:
        return {}
    if len(run) == len(VTAB_GROUPS.get(group, _TASKS)):
        return {label: bars[group] for label, bars in _BARS.items() if group in bars}
    return {label: fmean(scores[name] for name in run) for label, scores in _PAPER.items()}


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Returns accuracies by name: "vtab/<task>", "vtab/<group>" for complete groups, "vtab/mean".

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
    """Writes `vtab.csv`, `vtab.md` and `vtab.png`, each atomically, and replaces earlier ones.

    Args:
        workdir: Folder of the run, with at least one `<task>/result.json`.
        title: Title of the report.
        facts: Settings of the run, by name.
        left_out: Maps skipped tasks to the reasons.

    Returns:
        The path of `vtab.md`.

    Raises:
        ValueError: If no task is finished.
    """
    results = read_results(workdir)
    if not results:
        raise ValueError(
            f"{workdir} contains no finished task: there is no {workdir}/*/result.json."
        )
    _write_csv(workdir / "vtab.csv", results)
    _draw(workdir / "vtab.png", results, title)
    write_text(
        workdir / "vtab.md", "\n\n".join(_make_page(results, title, facts, left_out or {})) + "\n"
    )
    return workdir / "vtab.md"


def _write_csv(path: Path, results: Sequence[Result]) -> None:
    """Writes accuracies in percent; cells are empty if the paper has no result."""
    rows = []
    for result in results:
        paper = [scores.get(result.task, "") for scores in _PAPER.values()]
        ours = f"{100 * result.numbers['top1']:.4f}"
        rows.append([result.task, result.group, ours, int(result.numbers["images"]), *paper])
    write_csv(path, ["task", "group", "ours", "images", *_PAPER], rows)


def _make_page(
    results: Sequence[Result], title: str, facts: Mapping[str, str], left_out: Mapping[str, str]
) -> list[str]:
    found = means(results)
    labels = [label for label in _BARS if any(label in mean.paper for mean in found)]
    rows = [[mean.title, *_format_percents(mean.ours, mean.paper, labels)] for mean in found]
    page = [f"# VTAB-1k: {cell(title)}", _make_headline(results, found[0])]
    page += [table(["mean of", "this run", *labels], rows), "![Means and all tasks](vtab.png)"]
    page += ["## Tasks", _make_task_table(results)]
    page += [f"{cell(each.title)}: {each.left_out}" for each in results if each.left_out]
    page += _list_not_run(results, left_out)
    return [*page, "## Setting", table(["field", "value"], facts.items())]


def _make_headline(results: Sequence[Result], first: Mean) -> str:
    is_test = results[0].measured_on == "test"
    names = "tasks of VTAB" if first.group == ALL else "own tasks"
    which = (
        f"all {first.of} {names}"
        if first.is_whole
        else f"{len(first.tasks)} of the {first.of} {names}"
    )
    words = [
        f"**{first.ours:.2f}%**: mean accuracy over {which}.",
        _ON_TEST if is_test else _ON_VALIDATION,
    ]
    usual = 1000 if is_test else 800
    fewer = [
        f"{cell(each.title)} from {each.learned_from:,}"
        for each in results
        if each.learned_from != usual
    ]
    words += [f"Some folders have fewer training images: {', '.join(fewer)}."] if fewer else []
    if first.group == ALL:
        words += [_OF_TABLE_2 if first.is_whole else _OF_TABLE_9]
    return " ".join(words)


def _make_task_table(results: Sequence[Result]) -> str:
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
        percents = _format_percents(100 * result.numbers["top1"], paper, labels, digits=1)
        rows.append([result.title, result.group, f"{result.learned_from:,}", images, *percents])
    return table(["task", "group", "trained on", "evaluated on", "this run", *labels], rows)


def _list_not_run(results: Sequence[Result], left_out: Mapping[str, str]) -> list[str]:
    run = {result.task for result in results}
    reasons = [f"- `{name}`: {' '.join(left_out[name].split())}" for name in left_out]
    others = (
        [f"`{name}`" for name in _TASKS if name not in run | {*left_out}] if run & {*_TASKS} else []
    )
    words = [f"Not requested in the last call: {', '.join(others)}."] if others else []
    words = (["\n".join(reasons)] if reasons else []) + words
    return ["## Not run", *words] if words else []


def _format_percents(
    ours: float, paper: Mapping[str, float], labels: Sequence[str], *, digits: int = 2
) -> list[str]:
    return [
        f"{ours:.2f}",
        *(f"{paper[label]:.{digits}f}" if label in paper else "-" for label in labels),
    ]


def _draw(path: Path, results: Sequence[Result], title: str) -> None:
    """Draws the means in panels, as in Figure 2, and all tasks below them."""
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
    """Draws a bar for each task and a dot for each model of the paper, with gaps between groups."""
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
        name = "own tasks" if group == OWN else group
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
    # The least width keeps bars narrow if there are few tasks.
    middle, width = (places[0] + places[-1]) / 2, max(places[-1] - places[0] + 1.4, 9)
    axes.set(ylim=(0, 102), xlim=(middle - width / 2, middle + width / 2), ylabel="accuracy, %")
