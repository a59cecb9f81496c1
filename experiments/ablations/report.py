"""Report of an ablation: means and standard deviations beside the paper's numbers, verdicts on the
paper's claims, and a plot. It depends on the rows and the plan alone: the same files give the same
bytes, without data and without training.

The verdict on a claim is that of `ablations/verdicts.py`; the value of the claim is computed for
each seed, from the accuracies of the arms with that seed. If a run of an arm of the claim diverged
or is not finished, the claim is not decided: a mean over the other runs would be biased. A smoke run
is not judged.
"""

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command_line.trials import flat

from ablations.arms import Arm, Claim, Study
from ablations.rates import find_best, find_rate, find_tried
from ablations.rows import FEWSHOT, TEST, Row
from ablations.verdicts import RULE, judge
from keras_vit.analyze.trend_plots import (
    Point,
    draw_accuracy_against_compute,
    draw_accuracy_against_data,
    draw_means,
)
from keras_vit.writing import table, write_text

PRETRAINED, PRETRAINING_IMAGES = "pretrained_accuracy", "pretraining_images"
COLUMNS = 100  # width of a line of a page
METRICS = {"fewshot": FEWSHOT, "test": TEST, "pretrained": PRETRAINED}


def percents(rows: Sequence[Row], arm: str, metric: str) -> dict[int, float]:
    """Returns the accuracies of an arm in percent by seed, of the runs that are finished."""
    found = {row["seed"]: row.get(METRICS[metric]) for row in rows if row["arm"] == arm}
    return {seed: 100 * value for seed, value in found.items() if value is not None}


def with_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns mean and sample standard deviation, which is None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cell(rows: Sequence[Row], arm: str, metric: str, seeds: int) -> str:
    """Returns the table cell of an arm: its mean and standard deviation, if no run diverged.

    Args:
        rows: From `select_tested`.
        arm: Name of the arm.
        metric: A key of `METRICS`.
        seeds: Number of runs that the plan asks for.
    """
    values = percents(rows, arm, metric)
    lost = sum(bool(row["diverged"]) for row in rows if row["arm"] == arm)
    if lost:
        others = (
            f"; the others {', '.join(f'{value:.2f}' for value in values.values())}"
            if values
            else ""
        )
        return f"diverged in {lost} of {seeds}{others}"
    if not values:
        return "not yet"
    mean, deviation = with_deviation([*values.values()])
    return _format_number(mean, deviation) + _count_runs(len(values), seeds)


def verdict(
    claim: Claim, study: Study, rows: Sequence[Row], metric: str, plan: Mapping[str, Any]
) -> str:
    """Returns the verdict on a claim as text, by the rule above.

    Args:
        claim: A claim of the study.
        study: The study.
        rows: From `select_tested`.
        metric: A key of `METRICS`.
        plan: Plan of the study; its entries "size" and "seeds" are used.
    """
    if plan["size"] == "smoke":
        return "not judged: a smoke run"
    seeds = range(plan["seeds"])
    by_arm = {name: percents(rows, name, metric) for name in study.arms}
    complete = {name: values for name, values in by_arm.items() if {*seeds} <= {*values}}
    try:
        values = [
            claim.value({name: values[seed] for name, values in complete.items()}) for seed in seeds
        ]
    except KeyError as missing:
        name = missing.args[0]
        lost = any(row["diverged"] for row in rows if row["arm"] == name)
        return f"not decided: {study.arms[name].title} {'diverged' if lost else 'is not finished'}"
    return judge(values, claim.unit, is_judged=claim.is_judged)


def find_differences(arms: Mapping[str, Arm]) -> dict[str, dict[str, Any]]:
    """Returns for each arm the fields of its config that differ between the arms, with their
    values.
    """
    leaves = {name: flat(asdict(arm.config)) for name, arm in arms.items()}
    flats = {
        name: {field: value for field, value in pairs if value != {}}
        for name, pairs in leaves.items()
    }
    fields = dict.fromkeys(field for values in flats.values() for field in values)
    varied = [
        field for field in fields if len({repr(values.get(field)) for values in flats.values()}) > 1
    ]
    return {
        name: {field: values[field] for field in varied if field in values}
        for name, values in flats.items()
    }


def select_tested(study: Study, rows: Sequence[Row], seeds: int) -> list[Row]:
    """Returns the rows of the runs that were tested, with a seed of the plan and the winning learning
    rate of their arm. Each has two more columns: the few-shot accuracy of the start that it
    fine-tuned, and the number of training images of this start.
    """
    rates = {name: _find_rate(study, rows, name) for name in study.arms}
    starts = {(row["arm"], row["seed"]): row for row in rows if row["kind"] == "start"}

    def find_start(row: Row, column: str) -> Any:
        return starts.get((study.arms[row["arm"]].start, row["seed"]), {}).get(column)

    return [
        {
            **row,
            PRETRAINED: find_start(row, FEWSHOT),
            PRETRAINING_IMAGES: find_start(row, "training_images"),
        }
        for row in rows
        if row["kind"] == "seed"
        and row["seed"] < seeds
        and row["learning_rate"] == rates[row["arm"]]
    ]


def write_report(
    folder: Path, study: Study, rows: Sequence[Row], plan: Mapping[str, Any], command: str
) -> Path:
    """Writes `ablation.md` and `ablation.png` from the rows so far, each atomically.

    Args:
        folder: Folder of the files.
        study: The study.
        rows: All rows of `trials.csv`.
        plan: Plan of the study, of which "size", "seeds" and "version" are used.
        command: The command that runs the study.

    Returns:
        The path of the page.
    """
    tested = select_tested(study, rows, plan["seeds"])
    draw(folder / "ablation.png", study, tested, plan["seeds"])
    write_text(folder / "ablation.md", "\n\n".join(_make_page(study, rows, plan, command)) + "\n")
    return folder / "ablation.md"


def _find_rate(study: Study, rows: Sequence[Row], arm: str) -> float | None:
    """Returns the winning rate, or None if there is none yet, or none inside the grid."""
    try:
        return find_rate(study, rows, arm)
    except ValueError:
        return None


def _count_runs(count: int, seeds: int) -> str:
    """Returns how many runs a mean is of, if these are fewer than `seeds`."""
    return f" ({count} of {seeds} runs)" if count < seeds else ""


def _format_number(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _first(rows: Sequence[Row], column: str, default: Any) -> Any:
    return next((row[column] for row in rows if row[column]), default)


def _make_page(
    study: Study, rows: Sequence[Row], plan: Mapping[str, Any], command: str
) -> list[str]:
    seeds = plan["seeds"]
    tested = select_tested(study, rows, seeds)
    images = _first(tested, "test_images", 0)
    many = (
        f"mean and sample standard deviation over {seeds} seeds"
        if seeds > 1
        else "one run with one seed"
    )
    page = [
        f"# {study.title}",
        f"```sh\n{command}\n```",
        f"{study.about} ({study.source}.)",
        f"Accuracy in %, {many}"
        + (f", on {images:,} test images" if images else "")
        + f". {_explain_metrics(study, tested)}Each arm has the learning rate that is best on held-out "
        "training images. Compute: multiply-adds per image, relative to the first arm; exaFLOPs of "
        "the training of one run, without that of its start, calculated from them.",
        make_arm_table(study, rows, seeds),
    ]
    if study.claims:
        page += [make_verdict_table(study, rows, plan), RULE]
    if study.starts:
        page += [
            "Starts: pre-training runs that arms fine-tune, one for each seed, at the learning rate "
            "of their config. 5-shot: ridge regression on their frozen features, before "
            "fine-tuning.",
            make_start_table(study, rows, seeds),
        ]
    page += [f"![{study.title}](ablation.png)"] * bool(find_drawable(study, tested))
    page += [
        "Accuracy in % on the held-out images by learning rate, one run each with seed 0; the best "
        "in bold:",
        _make_rate_table(study, rows),
        "Differences between the arms:",
        _make_difference_table(study),
    ]
    if lost := [row for row in tested if row["diverged"]]:
        lines = [
            f"- {study.arms[row['arm']].title}, seed {row['seed']}: {row['diverged']}"
            for row in lost
        ]
        page += ["Diverged runs:", "\n".join(lines)]
    return [
        *page,
        "[trials.csv](trials.csv) lists every run with its time and its command, "
        f"[study.json](study.json) the configs. Version of keras_vit: {plan['version']}. In the "
        "commands, the folders of the data and of the runs are examples.",
    ]


def name_metrics(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the title of each metric.

    Args:
        rows: From `select_tested`.
    """
    return {
        "fewshot": f"{_first(rows, 'shots', 10)}-shot",
        "test": "test",
        "pretrained": "5-shot, pre-trained",
    }


def _explain_metrics(study: Study, tested: Sequence[Row]) -> str:
    """Returns what the few-shot accuracies of a study are."""
    shots = _first(tested, "shots", 10)
    words = {
        "fewshot": f"Few-shot: ridge regression on the frozen features of {shots} training images "
        "per class, the mean of ten draws.",
        "pretrained": "5-shot, pre-trained: ridge regression on the frozen features of the start, "
        "before fine-tuning, of 5 training images per class, the mean of ten draws.",
    }
    return "".join(f"{words[metric]} " for metric in study.metrics if metric in words)


def make_verdict_table(study: Study, rows: Sequence[Row], plan: Mapping[str, Any]) -> str:
    """Returns the table of the claims of a study, with a verdict for each of its metrics.

    Args:
        study: The study.
        rows: All rows of `trials.csv`.
        plan: Plan of the study.
    """
    tested = select_tested(study, rows, plan["seeds"])
    titles = name_metrics(tested)
    lines = [
        [
            _name_claim(claim),
            *(verdict(claim, study, tested, metric, plan) for metric in study.metrics),
        ]
        for claim in study.claims
    ]
    kind = "claim" if any(claim.is_judged for claim in study.claims) else "difference"
    return table([kind, *(titles[metric] for metric in study.metrics)], lines)


def _name_claim(claim: Claim) -> str:
    """Returns the words of a claim, and whether the paper does not state it."""
    return claim.words + " Not stated in the paper." * (claim.is_judged and not claim.is_published)


def make_start_table(study: Study, rows: Sequence[Row], seeds: int) -> str:
    """Returns the table of the starts of a study.

    Args:
        study: The study.
        rows: All rows of `trials.csv`.
        seeds: Number of runs of each start that the plan asks for.
    """
    lines = []
    for name, config in study.starts.items():
        runs = [
            row
            for row in rows
            if (row["arm"], row["kind"]) == (name, "start") and row["seed"] < seeds
        ]
        lines.append(
            [
                name.replace("_", " "),
                f"{config.run.loop.total_steps:,} of {config.run.batch_size} images",
                f"{_first(runs, 'training_images', 0):,}" if runs else "-",
                f"{config.run.optimizer.learning_rate:g}",
                cell(runs, name, "fewshot", seeds),
            ]
        )
    header = ["start", "steps", "training images", "learning rate", "5-shot"]
    return table(header, lines)


def make_arm_table(study: Study, rows: Sequence[Row], seeds: int) -> str:
    """Returns the table of the arms of a study, with their accuracies.

    Args:
        study: The study.
        rows: All rows of `trials.csv`.
        seeds: Number of runs of each arm that the plan asks for.
    """
    header = ["arm", "parameters", "compute", "exaFLOPs", "learning rate"]
    tested, lines = select_tested(study, rows, seeds), []
    titles = name_metrics(tested)
    header += [titles[metric] for metric in study.metrics]
    header += [study.paper_label] * bool(study.paper_label)
    for name, arm in study.arms.items():
        runs = [row for row in tested if row["arm"] == name and row["parameters"]]
        rate = _find_rate(study, rows, name)
        line = [
            arm.title,
            f"{runs[0]['parameters']:,}" if runs else "-",
            f"{study.relative_compute(name):.2f}",
            f"{arm.exaflops:.2g}",
            "not yet" if rate is None else f"{rate:g}{_list_equal_rates(rows, name, rate)}",
            *(cell(tested, name, metric, seeds) for metric in study.metrics),
        ]
        lines.append(line + [_format_published(arm)] * bool(study.paper_label))
    return table(header, lines)


def _list_equal_rates(rows: Sequence[Row], arm: str, rate: float) -> str:
    """Returns the other rates whose accuracy equals that of the winning rate, as text."""
    others = sorted(find_best(find_tried(rows, arm)) - {rate})
    return f" ({', '.join(f'{other:g}' for other in others)} was equal)" if others else ""


def _make_rate_table(study: Study, rows: Sequence[Row]) -> str:
    lines = []
    for name, arm in study.arms.items():
        best = _find_rate(study, rows, name)
        words = [
            f"{'**' * (rate == best)}{rate:g}: "
            f"{'diverged' if accuracy is None else f'{100 * accuracy:.2f}'}{'**' * (rate == best)}"
            for rate, accuracy in sorted(find_tried(rows, name).items())
        ]
        if arm.rate_of:
            words = [f"that of: {study.arms[arm.rate_of].title}"]
        lines.append([arm.title, ", ".join(words) or "not yet"])
    return table(["arm", "learning rates"], lines)


def _format_published(arm: Arm) -> str:
    if arm.paper is None:
        return "-"
    return f"{arm.paper:g}" + (f" ({arm.paper_of})" if arm.paper_of else "")


def _make_difference_table(study: Study) -> str:
    lines = []
    for name, values in find_differences(study.arms).items():
        # of the many fields of a stem, only the units are of interest
        shown = {
            field: value
            for field, value in values.items()
            if "stem." not in field or field.endswith("units")
        }
        lines.append(
            [
                study.arms[name].title,
                ", ".join(f"`{field}` {_format_value(value)}" for field, value in shown.items()),
            ]
        )
    return table(["arm", "fields of its config"], lines)


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def find_drawable(study: Study, tested: Sequence[Row]) -> dict[str, Arm]:
    """Returns all arms except those without results and those with a diverged run."""
    lost = {row["arm"] for row in tested if row["diverged"]}
    return {
        name: arm
        for name, arm in study.arms.items()
        if name not in lost and percents(tested, name, "test")
    }


def draw(path: Path, study: Study, rows: Sequence[Row], seeds: int) -> None:
    """Draws the picture of a study, atomically, or removes it if no arm has a result. If there are fewer
    runs than planned, it says so, at the axis or at the arms that have fewer than others.

    Args:
        path: Path of the PNG.
        study: The study.
        rows: From `select_tested`.
        seeds: Number of runs of each arm that the plan asks for.
    """
    kept = find_drawable(study, rows)
    done = max((len(percents(rows, name, "test")) for name in kept), default=seeds)
    so_far = _count_runs(done, seeds)
    titles = {name: f"{title} accuracy" for name, title in name_metrics(rows).items()}
    if not kept:
        path.unlink(missing_ok=True)
    elif study.picture == "compute":
        # rounded, so that models of nearly equal compute have one tick
        places = {name: round(study.relative_compute(name), 2) for name in kept}
        panels = {
            titles[metric]: _group_points(kept, rows, metric, places, done)
            for metric in study.metrics
        }
        label = f"compute relative to: {next(iter(study.arms.values())).title}{so_far}"
        draw_accuracy_against_compute(path, panels, x_label=label, joined=True)
    elif study.picture == "pretraining":
        places = _find_places(kept, rows, PRETRAINING_IMAGES)
        panels = {
            titles[metric]: _group_points(kept, rows, metric, places, done)
            for metric in study.metrics
        }
        label = f"size of the set of pre-training images{so_far}"
        draw_accuracy_against_compute(path, panels, x_label=label, joined=True)
    elif study.picture == "data":
        places = _find_places(kept, rows, "training_images")
        curves = _group_points(kept, rows, study.metric, places, done)
        label = f"training images{so_far}"
        draw_accuracy_against_data(
            path, curves, x_label=label, y_label=f"{titles[study.metric]}, %"
        )
    else:
        values = {name: [*percents(rows, name, study.metric).values()] for name in kept}
        names = {
            name: arm.title + _count_runs(len(values[name]), seeds) for name, arm in kept.items()
        }
        arms = {names[name]: values[name] for name in kept}
        paper = {names[name]: arm.paper for name, arm in kept.items() if arm.paper is not None}
        label = {"x_label": f"{titles[study.metric]}, %", "published_label": study.paper_label}
        draw_means(path, arms, paper or None, title=study.title, **label)


def _find_places(arms: Iterable[str], rows: Sequence[Row], column: str) -> dict[str, float]:
    """Returns the place of each arm on the x axis: a number of images."""
    return {
        name: _first([row for row in rows if row["arm"] == name], column, None) for name in arms
    }


def _group_points(
    arms: Mapping[str, Arm],
    rows: Sequence[Row],
    metric: str,
    places: Mapping[str, float],
    most: int,
) -> dict[str, list[Point]]:
    """Returns the points of each family of arms, sorted by their places on the x axis. Those of fewer
    than `most` runs are labelled.
    """
    families: dict[str, list[Point]] = {}
    for name, arm in arms.items():
        values = [*percents(rows, name, metric).values()]
        mean, deviation = with_deviation(values)
        point = Point(
            x=places[name],
            accuracy=mean,
            deviation=float("nan") if deviation is None else deviation,
            label=_count_runs(len(values), most).strip(" ()"),
        )
        for family in arm.families:
            families.setdefault(family, []).append(point)
    return {name: sorted(points) for name, points in families.items()}


def wrap(text: str) -> str:
    """Returns a paragraph in lines of the width of a page."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
