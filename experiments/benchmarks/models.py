"""Inference and training steps beside every other ViT that is installed, in turns, with memory and
share of the limit.

    python experiments/benchmarks/models.py --output=runs/benchmark                     # everything: hours on two cores
    python experiments/benchmarks/models.py --output=runs/b16 --models=ViT_B16 --tasks=inference --batch_sizes=16
    KERAS_BACKEND=jax python experiments/benchmarks/models.py --output=runs/gpu --batch_sizes=1,128

Each rival runs in a process of its own, on the device that its framework finds; in each cell they
take turns, so that a busy machine hurts all alike: read ratios, not rates. Leaves `benchmark.csv`,
`benchmark.md` and `benchmark.png` in the folder, written anew after each cell; a run that was
stopped goes on where it was. All who are in a cell have run beside each other: a cell to which a
rival comes later, or which one missed that is installed now, is run anew.

The limit is the best product of two matrices of 4096 x 4096 that any of their frameworks reached in
the same turns, and a share of it counts the multiply-adds of the model, three times in training,
over that. A rival that is not installed is named in the tables; `pip install ".[benchmark]"` has
all of them.

Source of the rivals: keras-team/keras-hub; faustomorales/vit-keras;
huggingface/pytorch-image-models, eager and `torch.compile`; huggingface/transformers; a ViT in Flax
in the way of google-research/vision_transformer.
"""

import csv
import importlib.util
from pathlib import Path

import native_logs

import report
from absl import app, flags
from rivals.cells import NEEDS, SHAPES, Cell, model_and_size
from rivals.racing import race
from tqdm import tqdm

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MODELS = flags.DEFINE_list(
    "models", [*SHAPES, "ViT_B16@384", "ViT_B16@512"], "Which; @ a side in pixels, else 224 x 224."
)
_TASKS = flags.DEFINE_list(
    "tasks", ["inference", "adamw", "sgd"], "Forward passes, and steps with these optimizers."
)
_PRECISIONS = flags.DEFINE_list("precisions", ["float32", "bfloat16"], "Of the products.")
_BATCH_SIZES = flags.DEFINE_list(
    "batch_sizes", ["1", "16"], "Images; the tables name each rival's best."
)
flags.register_validator(
    "batch_sizes", lambda sizes: all(map(str.isdecimal, sizes)), "must be whole numbers."
)
_RIVALS = flags.DEFINE_list("rivals", list(NEEDS), "Who takes part.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Turns that each takes.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Least length of a turn.", lower_bound=0)


def main(_argv: list[str]) -> None:
    try:
        cells = _cells()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    unknown = set(_RIVALS.value) - set(NEEDS)
    if unknown:
        raise app.UsageError(
            f"No such rivals: {', '.join(sorted(unknown))}. There are: {', '.join(NEEDS)}."
        )
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "benchmark.csv"
    known = _read(file)
    for cell in tqdm(cells, unit="cell", disable=None):
        settled = {row["rival"] for row in known if row["cell"] == str(cell) and _is_settled(row)}
        if settled >= set(_RIVALS.value):
            continue
        tqdm.write(str(cell))
        rivals = [rival for rival in NEEDS if rival in settled.union(_RIVALS.value)]
        results = race(cell, rivals, repeats=_REPEATS.value, seconds=_SECONDS.value)
        known = [row for row in known if row["cell"] != str(cell)]
        known += [report.row(cell, rival, result) for rival, result in results.items()]
        _write(file, known)
        for line in report.lines(known, str(cell)):
            tqdm.write(f"    {line}")
        report.write(output, known)
    report.write(output, known)
    print(
        f"\n{(output / 'benchmark.md').read_text()}\nIn {output}: benchmark.csv, benchmark.md, "
        f"benchmark.png"
    )


def _is_settled(row: report.Row) -> bool:
    """Whether a line of an earlier run still holds; not so where a package was missing that is
    there now.
    """
    was_missing = row["absent"].startswith("No module named")
    return not (was_missing and all(map(importlib.util.find_spec, NEEDS[row["rival"]])))


def _cells() -> list[Cell]:
    cells = []
    for name in _MODELS.value:
        model, image_size = model_and_size(name)
        cells += [
            Cell(model, image_size, int(batch_size), precision, task)
            for task in _TASKS.value
            for precision in _PRECISIONS.value
            for batch_size in _BATCH_SIZES.value
        ]
    return cells


def _read(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _write(file: Path, rows: list[dict[str, str]]) -> None:
    part = file.with_suffix(".part")
    with part.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    part.replace(file)


if __name__ == "__main__":
    app.run(main)
