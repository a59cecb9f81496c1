"""Memory of a training step or of inference, what saving it costs, and the largest batch that fits; beside timm.

    python experiments/benchmark_memory.py --output=runs/memory                       # ViT-B/16 at 224, 384, 512 px
    python experiments/benchmark_memory.py --output=runs/l16 --models=ViT_L16@384 --megabytes=40000 --precision=bfloat16

Each contestant runs alone in a process of its own, with batches of 2 and then of 4 images; the least batch tells what
stays, the difference what an image takes. From these follows the largest batch that fits into --megabytes, and that
batch is then run: where it takes more, a smaller one is, until one fits. On an accelerator memory is what was allocated
there, else all that the process held at its peak, the framework included.

    plain         nothing is asked for; keras_vit keeps what is dear to compute, timm has its fused attention
    remat         blocks are computed twice: `remat=True` of a recipe, timm's `set_grad_checkpointing`
    query_chunk   256 queries attend at a time: `keras_vit.ViT_B16(query_chunk=256)`

Leaves `memory.csv` and `memory.md` in the folder.
"""

import csv
import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags
from rivals.cells import SHAPES, Cell
from rivals.memory import available_megabytes
from rivals.racing import Result, race
from tqdm import tqdm

from keras_vit.writing import table, write_text

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MODELS = flags.DEFINE_list("models", ["ViT_B16@224", "ViT_B16@384", "ViT_B16@512"], "Names, @ a side in pixels.")
_TASKS = flags.DEFINE_list("tasks", ["adamw", "inference"], "Steps with this optimizer, and forward passes.")
_PRECISION = flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Of the products.")
_MEGABYTES = flags.DEFINE_integer("megabytes", None, "Of the device; default: what is free on this machine now.")
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Least length of a turn.", lower_bound=0)

_SMALL, _LARGE = 2, 4
_MOST = 4096  # images; nobody's step is larger
HEAD = [
    "model",
    "task",
    "who",
    "saving",
    "fixed, MB",
    "an image, MB",
    "images/s",
    "largest batch",
    "its MB",
    "its images/s",
]
CONTESTANTS = [
    ("keras_vit", ""),
    ("keras_vit", "query_chunk"),
    ("keras_vit", "remat"),
    ("timm", ""),
    ("timm", "remat"),
]


def main(_argv: list[str]) -> None:
    budget = _MEGABYTES.value or available_megabytes()
    cells = [
        (rival, replace(cell, saving=saving))
        for cell in _cells()
        for rival, saving in CONTESTANTS
        if cell.trains or saving != "remat"
    ]
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    for rival, cell in tqdm(cells, unit="row", disable=None):
        rows.append(_row(rival, cell, budget))
        title = f"{budget:.0f} MB, {_PRECISION.value}"
        write_text(output / "memory.md", f"{title}\n\n{table(HEAD, rows)}\n")
        with (output / "memory.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEAD, *rows])
    print((output / "memory.md").read_text())


def _cells() -> list[Cell]:
    cells = []
    for name in _MODELS.value:
        model, _, size = name.partition("@")
        if model not in SHAPES or not (size or "224").isdigit():
            raise app.UsageError(f"{name} is none of {', '.join(SHAPES)}, with @ and a side in pixels or without.")
        cells += [Cell(model, int(size or 224), _SMALL, _PRECISION.value, task) for task in _TASKS.value]
    return cells


def _row(rival: str, cell: Cell, budget: float) -> list[str]:
    names = [f"{cell.model} {cell.image_size} px", cell.task, rival, cell.saving or "plain"]
    small = _run(rival, cell)
    if small.absent:
        return [*names, *[""] * 5, small.absent]
    large = _run(rival, replace(cell, batch_size=_LARGE))
    slope = max((large.peak_mb - small.peak_mb) / (_LARGE - _SMALL), 1e-3)
    fixed = small.peak_mb - _SMALL * slope
    batch_size, largest = _largest(rival, cell, budget, int((budget - fixed) / slope))
    found = [str(batch_size), f"{largest.peak_mb:.0f}", f"{largest.median:.2f}"] if largest else ["none", "", ""]
    return [*names, f"{fixed:.0f}", f"{slope:.0f}", f"{large.median:.2f}", *found]


def _largest(rival: str, cell: Cell, budget: float, guess: int) -> tuple[int, Result | None]:
    """The largest batch that was seen to fit, at most `guess` images."""
    batch_size = min(guess, _MOST)
    while batch_size >= 1:
        result = _run(rival, replace(cell, batch_size=batch_size))
        if not result.absent and result.peak_mb <= budget:
            return batch_size, result
        batch_size = int(batch_size * (0.9 if result.absent else min(0.97, budget / result.peak_mb)))
    return 0, None


def _run(rival: str, cell: Cell) -> Result:
    return race(cell, [rival], repeats=1, seconds=_SECONDS.value)[rival]


if __name__ == "__main__":
    app.run(main)
