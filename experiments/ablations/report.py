"""Report of an ablation: means and standard deviations beside the paper's numbers, verdicts on the
paper's claims, a CSV table and a plot.

The input is rows, one for each run: "arm", "seed", and the measurements so far. If a run diverged,
the table says so and no claim about its arm is judged: a mean over the other runs would be biased.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command_line.trials import flat

from ablations.arms import Arm, Claim, Study
from keras_vit.analyze.trend_plots import (
    Point,
    draw_accuracy_against_compute,
    draw_accuracy_against_data,
    draw_means,
)
from keras_vit.writing import table, write_csv, write_text

Row = Mapping[str, Any]
METRICS = {"fewshot": "fewshot/accuracy", "test": "test/accuracy"}
COLUMNS = (
    *(
        "arm",
        "seed",
        *METRICS.values(),
        "shots",
        "step",
        "train_images",
        "parameters",
        "exaflops",
        "relative_compute",
    ),
    *("images_per_second", "seconds", "memory_gb", "diverged", "command"),
)


def percents(rows: Sequence[Row], arm: str, metric: str) -> dict[int, float]:
    """Returns the accuracies of an arm in percent by seed, of the runs that are finished."""
    found = {row["seed"]: row.get(METRICS[metric]) for row in rows if row["arm"] == arm}
    return {seed: 100 * value for seed, value in found.items() if value is not None}


def with_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns mean and sample standard deviation, which is None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cell(rows: Sequence[Row], arm: str, metric: str) -> str:
    """Returns the table cell of an arm: its mean and standard deviation, if no run diverged."""
    runs = [row for row in rows if row["arm"] == arm]
    values = percents(runs, arm, metric)
    lost = sum(bool(row.get("diverged")) for row in runs)
    if lost:
        others = (
            f"; the others {', '.join(f'{value:.2f}' for value in values.values())}"
            if values
            else ""
        )
        return f"diverged in {lost} of {len(runs)}{others}"
    if not values:
        return "not yet"
    mean, deviation = with_deviation([*values.values()])
    return _format_number(mean, deviation) + (
        f" ({len(values)} of {len(runs)} runs)" if len(values) < len(runs) else ""
    )


def verdict(claim: Claim, study: Study, rows: Sequence[Row], metric: str) -> dict[str, Any]:
    """Judges a claim by the means of its arms over the seeds.

    Returns:
        "holds", "value", "deviation" (standard deviation of the value over the seeds), and "words",
        the verdict as text. The first three are None if an arm has no mean.
    """
    by_arm = {name: percents(rows, name, metric) for name in study.arms}
    seeds = sorted({row["seed"] for row in rows})
    complete = {name: values for name, values in by_arm.items() if len(values) == len(seeds)}
    try:
        value = claim.value(
            {name: statistics.fmean(values.values()) for name, values in complete.items()}
        )
    except KeyError as missing:
        name = missing.args[0]
        lost = any(row.get("diverged") for row in rows if row["arm"] == name)
        words = f"not decided: {study.arms[name].title} {'diverged' if lost else 'is not finished'}"
        return {"holds": None, "value": None, "deviation": None, "words": words}
    each = [
        claim.value({name: values[seed] for name, values in complete.items()}) for seed in seeds
    ]
    deviation = with_deviation(each)[1]
    is_noise = deviation is not None and abs(value) <= deviation
    answer = ("yes" if value > 0 else "no") + (", within the noise" if is_noise else "")
    words = f"{answer}: {_format_number(value, deviation, '+')} {claim.unit}"
    return {"holds": value > 0, "value": value, "deviation": deviation, "words": words}


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


def add_compute(study: Study, row: Row) -> Row:
    """Returns the row of a run with its compute."""
    arm = study.arms[row["arm"]]
    return {**row, "exaflops": arm.exaflops, "relative_compute": study.relative_compute(row["arm"])}


def write_report(folder: Path, study: Study, rows: Sequence[Row], command: str) -> Path:
    """Writes `ablation.md`, `ablation.csv` and `ablation.png` from the results so far. Each file is
    written atomically.

    Returns:
        The path of the page.
    """
    rows = [add_compute(study, row) for row in rows]
    lines = [[row.get(column, "") for column in COLUMNS] for row in rows]
    write_csv(folder / "ablation.csv", COLUMNS, lines)
    _draw(folder / "ablation.png", study, rows)
    write_text(folder / "ablation.md", "\n\n".join(_make_page(study, rows, command)) + "\n")
    return folder / "ablation.md"


def judge_claims(study: Study, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns each claim with its verdicts."""
    return [
        {
            "claim": claim.words,
            **{metric: verdict(claim, study, rows, metric) for metric in METRICS},
        }
        for claim in study.claims
    ]


def _format_number(mean: float, deviation: float | None, sign: str = "") -> str:
    return f"{mean:{sign}.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _make_page(study: Study, rows: Sequence[Row], command: str) -> list[str]:
    seeds, lost = len({row["seed"] for row in rows}), [row for row in rows if row.get("diverged")]
    shots = next((row["shots"] for row in rows if row.get("shots")), 10)
    page = [f"# {study.title}", f"```sh\n{command}\n```", f"{study.about} ({study.source}.)"]
    many = f"mean and sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    page += [
        f"Accuracy in %, {many}. Few-shot: ridge regression on the frozen features of {shots} "
        "training images per class, the mean of ten draws. Compute: multiply-adds per image, "
        "relative to the first arm; exaFLOPs of the training of one run, calculated from them.",
        _make_arm_table(study, rows, shots),
    ]
    if study.claims:
        header = ["the paper's claim", f"{shots}-shot", "test"]
        verdicts = [
            [each["claim"], *(each[metric]["words"] for metric in METRICS)]
            for each in judge_claims(study, rows)
        ]
        page += [table(header, verdicts)]
        page += ["Within the noise: at most one standard deviation over the seeds from 0."] * (
            seeds > 1
        )
    page += [
        f"![{study.title}](ablation.png)",
        "Differences between the arms:",
        _make_difference_table(study),
    ]
    if lost:
        lines = [
            f"- {study.arms[row['arm']].title}, seed {row['seed']}: {row['diverged']}"
            for row in lost
        ]
        page += ["Diverged runs:", "\n".join(lines)]
    return [*page, "[ablation.csv](ablation.csv) lists every run with its time and its command."]


def _make_arm_table(study: Study, rows: Sequence[Row], shots: int) -> str:
    header = ["arm", "parameters", "compute", "exaFLOPs", "images/s", f"{shots}-shot", "test"]
    header += [study.paper_label] * bool(study.paper_label)
    lines = []
    for name, arm in study.arms.items():
        runs = [row for row in rows if row["arm"] == name and row.get("parameters")]
        speed = (
            f"{statistics.median(row['images_per_second'] for row in runs):.0f}" if runs else "-"
        )
        line = [
            arm.title,
            f"{runs[0]['parameters']:,}" if runs else "-",
            f"{study.relative_compute(name):.2f}",
        ]
        line += [f"{arm.exaflops:.2g}", speed, *(cell(rows, name, metric) for metric in METRICS)]
        lines.append(line + [_format_published(arm)] * bool(study.paper_label))
    return table(header, lines)


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


def _draw(path: Path, study: Study, rows: Sequence[Row]) -> None:
    """Draws all arms except those without results and those with a diverged run."""
    lost = {row["arm"] for row in rows if row.get("diverged")}
    kept = {
        name: arm
        for name, arm in study.arms.items()
        if name not in lost and percents(rows, name, "test")
    }
    shots = next((row["shots"] for row in rows if row.get("shots")), 10)
    titles = {"fewshot": f"{shots}-shot accuracy", "test": "test accuracy"}
    if not kept:
        path.unlink(missing_ok=True)
    elif study.picture == "compute":
        panels = {
            titles[metric]: _group_points(kept, rows, metric, "relative_compute")
            for metric in METRICS
        }
        label = f"compute relative to: {next(iter(study.arms.values())).title}"
        draw_accuracy_against_compute(path, panels, x_label=label, joined=True)
    elif study.picture == "data":
        curves = _group_points(kept, rows, study.metric, "train_images")
        draw_accuracy_against_data(
            path, curves, x_label="training images", y_label=f"{titles[study.metric]}, %"
        )
    else:
        arms = {
            arm.title: [*percents(rows, name, study.metric).values()] for name, arm in kept.items()
        }
        paper = {arm.title: arm.paper for arm in kept.values() if arm.paper is not None}
        label = {"x_label": f"{titles[study.metric]}, %", "published_label": study.paper_label}
        draw_means(path, arms, paper or None, title=study.title, **label)


def _group_points(
    arms: Mapping[str, Arm], rows: Sequence[Row], metric: str, x: str
) -> dict[str, list[Point]]:
    """Returns the points of each family of arms, sorted by `x`, a key of the rows."""
    families: dict[str, list[Point]] = {}
    for name, arm in arms.items():
        mean, deviation = with_deviation([*percents(rows, name, metric).values()])
        where = next(row[x] for row in rows if row["arm"] == name and row.get(x))
        for family in arm.families:
            point = Point(where, mean, float("nan") if deviation is None else deviation)
            families.setdefault(family, []).append(point)
    return {name: sorted(points) for name, points in families.items()}
