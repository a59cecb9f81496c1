"""Memory of training and inference, the cost of saving it, and the largest batch; ours and timm.

    python experiments/benchmarks/memory.py --output=runs/memory                     # ViT-B/16 at 224, 384, 512 px
    python experiments/benchmarks/memory.py --output=runs/l16 --models=ViT_L16@384 --megabytes=40000

Each contestant runs alone in its own process, first with batches of 2 and of 8 images. A line
through the measurements then predicts the largest batch that fits into --megabytes; predicted
batches are run until that batch is known to 3 %. All reported batches were run. "fixed" and "an
image" come from a line through the smallest and the largest batch that ran; "images/s" is the speed
at a batch of 8. On an accelerator, memory is the peak allocation there; on a CPU, it is the peak of
the whole process, framework included.

    plain         the defaults: keras_vit keeps results that are expensive to recompute; timm uses
                  its fused attention
    remat         recomputes blocks in the backward pass: `remat=True` of a recipe, timm's
                  `set_grad_checkpointing`
    query_chunk   attends with 256 queries at a time, `keras_vit.ViT_B16(query_chunk=256)`; only for
                  images with at least so many patches

Writes `memory.csv` and `memory.md` to the folder.
"""

from dataclasses import replace
from pathlib import Path

import native_logs

from absl import app, flags
from rivals.cells import PATCH_SIZE, QUERY_CHUNK, Cell, model_and_size
from rivals.memory import available_megabytes
from rivals.racing import Result, race
from tqdm import tqdm

from keras_vit.writing import table, write_csv, write_text

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MODELS = flags.DEFINE_list(
    "models", ["ViT_B16@224", "ViT_B16@384", "ViT_B16@512"], "Models as NAME@SIDE, in pixels."
)
_TASKS = flags.DEFINE_list(
    "tasks", ["adamw", "inference"], "Training steps with an optimizer, or `inference`."
)
_PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"], "Dtype of matrix products."
)
_MEGABYTES = flags.DEFINE_integer(
    "megabytes", None, "Memory of the device. Default: the free memory of this machine."
)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Minimum time of a measurement.", lower_bound=0)

_FIRST = (2, 8)  # images
_GROWTH = 4  # maximum ratio of one batch to the previous one: the line is not reliable far away
_CLOSE = 0.03  # batches within this relative distance of the largest fitting one are not tried
_MOST = 4096  # images, the maximum batch
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
        asked = _make_cells()
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
        rows.append(_measure_row(rival, cell, budget))
        title = f"{budget:.0f} MB, {_PRECISION.value}"
        write_text(output / "memory.md", f"{title}\n\n{table(HEAD, rows)}\n")
        write_csv(output / "memory.csv", HEAD, rows)
    print((output / "memory.md").read_text())


def _make_cells() -> list[Cell]:
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


def _measure_row(rival: str, cell: Cell, budget: float) -> list[str]:
    names = [f"{cell.model} {cell.image_size} px", cell.task, rival, cell.saving or "plain"]
    tried = {size: _run(rival, replace(cell, batch_size=size)) for size in _FIRST}
    absent = next((result.absent for result in tried.values() if result.absent), "")
    if absent:
        return [*names, *[""] * 5, absent]
    while (size := _choose_next(tried, budget)) is not None:
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


def _choose_next(tried: dict[int, Result], budget: float) -> int | None:
    """Returns the batch at which a line through the measurements reaches the budget, or None once
    the largest fitting batch is known to 3 %.
    """
    seen = {size: result.peak_mb for size, result in tried.items() if not result.absent}
    fits = max((size for size in tried if _fits(tried[size], budget)), default=0)
    too_large = min((size for size in tried if not _fits(tried[size], budget)), default=_MOST + 1)
    if too_large in tried and too_large not in seen:  # it crashed before it reported its memory
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
