"""The results of `models.py` as rows of a CSV, as tables and as a picture."""

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


def row(cell: Cell, rival: str, result: Result) -> Row:
    """One line of the CSV: numbers as text, "" where nothing was measured."""
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
        "gflop_per_image": f"{_gigaflops(cell):.2f}",
        "turns": str(len(result.rates)),
        "absent": result.absent,
    }


def _gigaflops(cell: Cell) -> float:
    """A backward pass takes twice the products of a forward pass."""
    macs = cost.macs(VIT_VARIANTS[cell.model], (cell.image_size, cell.image_size))
    return cost.flops(macs) * (3 if cell.trains else 1) / 1e9


def lines(rows: Sequence[Row], cell: str) -> Iterable[str]:
    """What to show while it runs: a line for each rival of a cell."""
    here = [row for row in rows if row["cell"] == cell]
    for row in here:
        if row["absent"] or not row["images_per_s"]:
            yield f"{row['rival']:14} {row['absent'] or 'not measured'}"
            continue
        text = f"{float(row['images_per_s']):8.2f} images/s ± {100 * float(row['spread']):.1f} %"
        yield f"{row['rival']:14} {text}, {100 * _share(row, here):.0f} % of the limit, {row['peak_mb']} MB"


def write(folder: Path, rows: Sequence[Row]) -> None:
    """Writes benchmark.md and benchmark.png."""
    groups = _best(rows)
    parts = [_summary(groups), _everything(rows)]
    write_text(folder / "benchmark.md", "\n\n".join(parts) + "\n")
    if any(OURS in best and len(best) > 1 for best in groups.values()):
        _draw(folder / "benchmark.png", groups)


def _share(row: Row, cell: Sequence[Row]) -> float:
    limit = max(float(other["limit_gflop_per_s"]) for other in cell if other["limit_gflop_per_s"])
    return float(row["images_per_s"]) * float(row["gflop_per_image"]) / limit


def _best(rows: Sequence[Row]) -> dict[tuple[str, ...], dict[str, Row]]:
    """(model, size, precision, task, "1" or "best") to the row of each rival: at batch 1, and at
    its best batch.
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
    # Where batch 1 is all there is, or the best for us, one line says it.
    return {
        key: best
        for key, best in groups.items()
        if key[-1] == "1" or (*key[:-1], "1") not in groups or groups[*key[:-1], "1"] != best
    }


def _summary(groups: dict[tuple[str, ...], dict[str, Row]]) -> str:
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
                f"{100 * _share(ours, list(best.values())):.0f} %",
                f"{rival['rival']} {rival['images_per_s']}" if rival else "nobody",
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
            "of the limit",
            "best rival, images/s",
            "ratio",
        ),
        *("our memory, MB", "the leanest rival's"),
    ]
    return "## At batch 1 and at each one's best batch\n\n" + table(head, found)


def _everything(rows: Sequence[Row]) -> str:
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
            figures += [f"{100 * _share(row, here):.0f} %", row["peak_mb"], row["ready_s"]]
        found.append([row["cell"], row["rival"], *figures])
    head = [
        "cell",
        "who",
        "images/s",
        "ours over it",
        "of the limit",
        "memory, MB",
        "first step after, s",
    ]
    return "## Everything\n\n" + table(head, found)


def _draw(path: Path, groups: dict[tuple[str, ...], dict[str, Row]]) -> None:
    """For each cell a line: everybody's rate as a part of ours."""
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
        axes.set_xlabel("images per second, as a part of ours")
        axes.set_title("Left of the line: slower than keras_vit")
        figure.legend(loc="outside lower center", ncols=min(len(rivals), 6))
