"""Speed and memory of inference and training, compared with all other ViTs that are installed.

    python experiments/benchmarks/models.py --output=runs/benchmark     # everything: hours on two cores
    python experiments/benchmarks/models.py --output=runs/b16 --models=ViT_B16 --tasks=inference --batch_sizes=16
    KERAS_BACKEND=jax python experiments/benchmarks/models.py --output=runs/gpu --batch_sizes=1,128

A cell is one combination of model, task, precision and batch size. Each rival runs in its own
process, on the device that its framework finds. In each cell all rivals are measured alternately,
so that load on the machine affects all of them equally: compare ratios rather than rates. Writes
`benchmark.csv`, `benchmark.md` and `benchmark.png` to the folder after each cell. If interrupted,
rerun the same command to resume. All rivals of a cell are measured together: if a rival is added,
or a missing one has been installed, the whole cell is measured again.

The limit is the fastest product of two 4096 x 4096 matrices that any of the frameworks reached in
the same cell. The share of the limit is the FLOP/s of the model's products (in training, three
times those of inference), divided by the limit. The tables name rivals that are not installed; `pip
install ".[benchmark]"` installs all of them.

Sources of the rivals: keras-team/keras-hub; faustomorales/vit-keras;
huggingface/pytorch-image-models, eager and `torch.compile`; huggingface/transformers; a ViT in Flax
modelled on google-research/vision_transformer.
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

from keras_vit.writing import write_csv

_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results.", required=True)
_MODELS = flags.DEFINE_list(
    "models",
    [*SHAPES, "ViT_B16@384", "ViT_B16@512"],
    "NAME or NAME@SIDE; default side: 224 pixels.",
)
_TASKS = flags.DEFINE_list(
    "tasks", ["inference", "adamw", "sgd"], "`inference`, or training steps with an optimizer."
)
_PRECISIONS = flags.DEFINE_list("precisions", ["float32", "bfloat16"], "Dtypes of matrix products.")
_BATCH_SIZES = flags.DEFINE_list(
    "batch_sizes", ["1", "16"], "Images per batch; tables show each rival's best batch size."
)
flags.register_validator(
    "batch_sizes", lambda sizes: all(map(str.isdecimal, sizes)), "must be whole numbers."
)
_RIVALS = flags.DEFINE_list("rivals", list(NEEDS), "Packages to measure.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each rival.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Minimum time of a measurement.", lower_bound=0)


def main(_argv: list[str]) -> None:
    try:
        cells = _make_cells()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    unknown = set(_RIVALS.value) - set(NEEDS)
    if unknown:
        raise app.UsageError(
            f"`--rivals` must be of {', '.join(NEEDS)}. Received: {', '.join(sorted(unknown))}."
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
        known += [report.make_row(cell, rival, result) for rival, result in results.items()]
        write_csv(file, list(known[0]), [list(row.values()) for row in known])
        for line in report.make_lines(known, str(cell)):
            tqdm.write(f"    {line}")
        report.write_report(output, known)
    report.write_report(output, known)
    print(
        f"\n{(output / 'benchmark.md').read_text()}\nIn {output}: benchmark.csv, benchmark.md, "
        f"benchmark.png"
    )


def _is_settled(row: report.Row) -> bool:
    """Whether a row of an earlier run is still valid: not if its package was missing then and is
    installed now.
    """
    was_missing = row["absent"].startswith("No module named")
    return not (was_missing and all(map(importlib.util.find_spec, NEEDS[row["rival"]])))


def _make_cells() -> list[Cell]:
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


if __name__ == "__main__":
    app.run(main)
