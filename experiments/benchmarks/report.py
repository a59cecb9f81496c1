"""Results of `models.py`: rows of a CSV file, tables and a plot."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from rivals.cells import Cell
from rivals.racing import Result

from keras_vit import cost
from keras_vit.drawing import COLORS, picture
from keras_vit.variants import VIT_VARIANTS
from keras_vit.writing import table, write_text

OURS = "keras_vit"
Row = dict[str, str]


def make_row(cell: Cell, rival: str, result: Result) -> Row:
    """Returns a row of the CSV file: numbers as text, "" for missing ones."""
    found = result.rates and not result.absent
    return {
        "cell": str(cell),
        "model": cell.model,
        "image_size": str(cell.image_size),
        "batch_size": str(cell.batch_size),
        "precision": cell.precision,
        "task": cell.task,
        "rival": rival,
        "images_per_s": f"{result.median:.4g}" if found else "",
        "spread": f"{result.spread:.3f}" if found else "",
        "peak_mb": f"{result.peak_mb:.0f}" if found else "",
        "ready_s": f"{result.ready_s:.1f}" if found else "",
        "limit_gflop_per_s": f"{median(result.limits):.0f}" if found else "",
        "gflop_per_image": f"{_count_gigaflops(cell):.2f}",
        "turns": str(len(result.rates)),
        "absent": result.absent,
    }


def _count_gigaflops(cell: Cell) -> float:
    macs = cost.macs(VIT_VARIANTS[cell.model], (cell.image_size, cell.image_size))
    # a backward pass takes twice the products of a forward pass
    return cost.flops(macs) * (3 if cell.trains else 1) / 1e9


def make_lines(rows: Sequence[Row], cell: str) -> Iterable[str]:
    """Yields one line for each rival of a cell, to show progress."""
    here = [row for row in rows if row["cell"] == cell]
    for row in here:
        if row["absent"] or not row["images_per_s"]:
            yield f"{row['rival']:14} {row['absent'] or 'not measured'}"
            continue
        text = f"{float(row['images_per_s']):8.2f} images/s ± {100 * float(row['spread']):.1f} %"
        share = f"{100 * _compute_share(row, here):.0f} % of the limit"
        yield f"{row['rival']:14} {text}, {share}, {row['peak_mb']} MB"


def write_report(folder: Path, rows: Sequence[Row]) -> None:
    """Writes benchmark.md and benchmark.png."""
    groups = _select_best(rows)
    parts = [_make_summary(groups), _make_full_table(rows)]
    write_text(folder / "benchmark.md", "\n\n".join(parts) + "\n")
    if any(OURS in best and len(best) > 1 for best in groups.values()):
        _draw(folder / "benchmark.png", groups)


def _compute_share(row: Row, cell: Sequence[Row]) -> float:
    """Returns the share of the limit that a rival of the cell reaches."""
    limit = max(float(other["limit_gflop_per_s"]) for other in cell if other["limit_gflop_per_s"])
    return float(row["images_per_s"]) * float(row["gflop_per_image"]) / limit


def _select_best(rows: Sequence[Row]) -> dict[tuple[str, ...], dict[str, Row]]:
    """Maps (task, model, size, precision, "1" or "best") to the row of each rival: at batch size 1,
    and at its best batch size.
    """
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if not row["images_per_s"]:
            continue
        for batch in ["best"] + ["1"] * (row["batch_size"] == "1"):
            key = (row["task"], row["model"], row["image_size"], row["precision"], batch)
            kept = groups.setdefault(key, {}).get(row["rival"])
            if kept is None or float(kept["images_per_s"]) < float(row["images_per_s"]):
                groups[key][row["rival"]] = row
    # "best" is omitted if it equals "1" for all rivals
    return {
        key: best
        for key, best in groups.items()
        if key[-1] == "1" or (*key[:-1], "1") not in groups or groups[*key[:-1], "1"] != best
    }


def _make_summary(groups: dict[tuple[str, ...], dict[str, Row]]) -> str:
    found = []
    for (task, model, size, precision, _), best in sorted(groups.items()):
        if OURS not in best:
            continue
        ours = best[OURS]
        others = [row for rival, row in best.items() if rival != OURS]
        rival = max(others, key=lambda row: float(row["images_per_s"]), default=None)
        lean = min((float(row["peak_mb"]) for row in others), default=None)
        found.append(
            [
                f"{model} {size} px",
                f"{task}, {precision}",
                ours["batch_size"],
                f"{ours['images_per_s']} ± {100 * float(ours['spread']):.0f} %",
                f"{100 * _compute_share(ours, list(best.values())):.0f} %",
                f"{rival['rival']} {rival['images_per_s']}" if rival else "none",
                f"**{float(ours['images_per_s']) / float(rival['images_per_s']):.2f}**"
                if rival
                else "",
                ours["peak_mb"],
                f"{lean:.0f}" if lean else "",
            ]
        )
    head = [
        *(
            "model",
            "task",
            "batch",
            "ours, images/s",
            "share of the limit",
            "best rival, images/s",
            "ours / best rival",
        ),
        *("our memory, MB", "least memory of a rival, MB"),
    ]
    return "## At batch size 1 and at the best batch size of each\n\n" + table(head, found)


def _make_full_table(rows: Sequence[Row]) -> str:
    found = []
    for row in rows:
        here = [other for other in rows if other["cell"] == row["cell"]]
        figures = ["", "", row["absent"], "", ""]
        if row["images_per_s"]:
            ours = next(
                (
                    float(o["images_per_s"])
                    for o in here
                    if o["rival"] == OURS and o["images_per_s"]
                ),
                None,
            )
            rate = float(row["images_per_s"])
            figures = [
                f"{rate:.4g} ± {100 * float(row['spread']):.1f} %",
                f"{ours / rate:.2f}" if ours else "",
            ]
            figures += [f"{100 * _compute_share(row, here):.0f} %", row["peak_mb"], row["ready_s"]]
        found.append([row["cell"], row["rival"], *figures])
    head = [
        "cell",
        "rival",
        "images/s",
        "ours / rival",
        "share of the limit",
        "memory, MB",
        "time to first step, s",
    ]
    return "## All measurements\n\n" + table(head, found)


def _draw(path: Path, groups: dict[tuple[str, ...], dict[str, Row]]) -> None:
    """Draws one line for each cell: the rates of all rivals relative to ours."""
    keys = [
        key for key, best in sorted(groups.items(), reverse=True) if OURS in best and len(best) > 1
    ]
    rivals = sorted({rival for key in keys for rival in groups[key]} - {OURS})
    marks = "os^Dv*"
    with picture(path, 9.5, 1.6 + 0.32 * len(keys)) as figure:
        axes = figure.subplots()
        axes.axvline(1, color="black", linewidth=1)
        for index, rival in enumerate(rivals):
            points = [
                (
                    float(groups[key][rival]["images_per_s"])
                    / float(groups[key][OURS]["images_per_s"]),
                    place,
                )
                for place, key in enumerate(keys)
                if rival in groups[key]
            ]
            style = {
                "marker": marks[index % len(marks)],
                "color": COLORS[index % len(COLORS)],
                "linestyle": "none",
            }
            axes.plot(*zip(*points, strict=True), label=rival, **style)
        names = [
            f"{key[1]} {key[2]} px, {key[0]}, {key[3]}, "
            f"{'batch 1' if key[4] == '1' else 'best batch'}"
            for key in keys
        ]
        axes.set_yticks(range(len(keys)), names)
        axes.set_ylim(-0.6, len(keys) - 0.4)
        axes.set_xlim(left=0)
        axes.set_xlabel("images per second, relative to keras_vit")
        axes.set_title("Speed of other packages (below 1: slower than keras_vit)")
        figure.legend(loc="outside lower center", ncols=min(len(rivals), 6))
