"""Memory of a training step or of inference, what saving it costs, and the largest batch that fits;
beside timm.

    python experiments/benchmarks/memory.py --output=runs/memory                     # ViT-B/16 at 224, 384, 512 px
    python experiments/benchmarks/memory.py --output=runs/l16 --models=ViT_L16@384 --megabytes=40000

Each contestant runs alone in a process of its own, with batches of 2 and of 8 images, and then
where a line through those that were run meets --megabytes, until the largest batch that fits is
known to 3 %: every batch that is named was run. What stays and what an image takes are those of the
least and the largest of them; images/s are those of 8. On an accelerator memory is what was
allocated there, else all that the process held at its peak, the framework included.

    plain         nothing is asked for; keras_vit keeps what is dear to compute, timm has its fused attention
    remat         blocks are computed twice: `remat=True` of a recipe, timm's `set_grad_checkpointing`
    query_chunk   256 queries attend at a time: `keras_vit.ViT_B16(query_chunk=256)`; where there are more than these

Leaves `memory.csv` and `memory.md` in the folder.
"""

import csv
from dataclasses import replace
from pathlib import Path

import native_logs

from absl import app, flags
from rivals.cells import PATCH_SIZE, QUERY_CHUNK, Cell, model_and_size
from rivals.memory import available_megabytes
from rivals.racing import Result, race
from tqdm import tqdm

from keras_vit.writing import table, write_text

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MODELS = flags.DEFINE_list(
    "models", ["ViT_B16@224", "ViT_B16@384", "ViT_B16@512"], "Names, @ a side in pixels."
)
_TASKS = flags.DEFINE_list(
    "tasks", ["adamw", "inference"], "Steps with this optimizer, and forward passes."
)
_PRECISION = flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Of the products.")
_MEGABYTES = flags.DEFINE_integer(
    "megabytes", None, "Of the device; default: what is free on this machine now."
)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Least length of a turn.", lower_bound=0)

_FIRST = (2, 8)  # images
_GROWTH = 4  # from one batch to the next, at most: what is far away is not on the line
_CLOSE = 0.03  # a batch that is larger by no more than this part is not tried
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
    try:
        asked = _cells()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    cells = [
        (rival, replace(cell, saving=saving))
        for cell in asked
        for rival, saving in CONTESTANTS
        if _can_save(saving, cell)
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
        model, image_size = model_and_size(name)
        cells += [
            Cell(model, image_size, _FIRST[0], _PRECISION.value, task) for task in _TASKS.value
        ]
    return cells


def _can_save(saving: str, cell: Cell) -> bool:
    if saving == "query_chunk":
        return (cell.image_size // PATCH_SIZE) ** 2 >= QUERY_CHUNK
    return cell.trains or not saving


def _row(rival: str, cell: Cell, budget: float) -> list[str]:
    names = [f"{cell.model} {cell.image_size} px", cell.task, rival, cell.saving or "plain"]
    tried = {size: _run(rival, replace(cell, batch_size=size)) for size in _FIRST}
    absent = next((result.absent for result in tried.values() if result.absent), "")
    if absent:
        return [*names, *[""] * 5, absent]
    while (size := _next(tried, budget)) is not None:
        tried[size] = _run(rival, replace(cell, batch_size=size))
    largest = max((size for size, result in tried.items() if _fits(result, budget)), default=0)
    found = (
        [str(largest), f"{tried[largest].peak_mb:.0f}", f"{tried[largest].median:.2f}"]
        if largest
        else ["none", "", ""]
    )
    least, most = min(tried), max(size for size, result in tried.items() if not result.absent)
    slope = (tried[most].peak_mb - tried[least].peak_mb) / (most - least)
    fixed = tried[least].peak_mb - least * slope
    return [*names, f"{fixed:.0f}", f"{slope:.0f}", f"{tried[_FIRST[-1]].median:.2f}", *found]


def _next(tried: dict[int, Result], budget: float) -> int | None:
    """Where a line through what was measured meets the budget; None once that is
    known well enough.
    """
    seen = {size: result.peak_mb for size, result in tried.items() if not result.absent}
    fits = max((size for size in tried if _fits(tried[size], budget)), default=0)
    too_large = min((size for size in tried if not _fits(tried[size], budget)), default=_MOST + 1)
    if too_large in tried and too_large not in seen:  # it died, and did not say how much it took
        guess = (fits + too_large) // 2
    else:
        low, high = (fits, too_large) if fits and too_large in seen else sorted(seen)[-2:]
        slope = max((seen[high] - seen[low]) / (high - low), 1e-3)
        guess = int(low + (budget - seen[low]) / slope)
    guess = min(guess, _GROWTH * max(fits, 1), too_large - 1)
    return guess if guess - fits > _CLOSE * fits else None


def _fits(result: Result, budget: float) -> bool:
    return not result.absent and result.peak_mb <= budget


def _run(rival: str, cell: Cell) -> Result:
    return race(cell, [rival], repeats=1, seconds=_SECONDS.value)[rival]


if __name__ == "__main__":
    app.run(main)
