"""Startup time: import, building and restoring, first prediction, first training step; ours,
KerasHub and timm.

    python experiments/benchmarks/startup.py     # ViT-B/16 and L/16: a quarter of an hour
    python experiments/benchmarks/startup.py --models=ViT_S16 --repeats=2

Every measurement is a new process that reads a file written by the same package: npz, weights.h5 or
pth. The packages are measured alternately, so that load on the machine affects all of them equally:
compare ratios rather than seconds. After the first measurement, which does not count, the files are
cached in memory. Rivals that are not installed (`pip install ".[benchmark]"`) are named.

Sources of the rivals: keras-team/keras-hub; huggingface/pytorch-image-models.
"""

import statistics
import tempfile

import native_logs

from absl import app, flags
from rivals.racing import Worker
from rivals.startup_worker import STARTS
from tqdm import tqdm

from keras_vit.writing import table

_MODELS = flags.DEFINE_list("models", ["ViT_B16", "ViT_L16"], "Names of models in keras_vit.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each package.", lower_bound=1)


def main(_argv: list[str]) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in _MODELS.value:
            rows += _make_rows(model, _race(model, folder))
    print(
        table(["model", "phase", *(f"{rival}, s" for rival in STARTS), "ours / best rival"], rows)
    )


def _race(model: str, folder: str) -> dict[str, list[dict]]:
    """Returns the answers of each rival's processes, without the first."""
    said: dict[str, list[dict]] = {rival: [] for rival in STARTS}
    for turn in tqdm(range(_REPEATS.value + 1), desc=model, unit="turn", disable=None):
        for rival in list(STARTS)[:: -1 if turn % 2 else 1]:
            with Worker("rivals.startup_worker", rival, model, folder) as worker:
                said[rival].append(worker.answer())
    return {rival: answers[1:] for rival, answers in said.items()}


def _make_rows(model: str, said: dict[str, list[dict]]) -> list[list[str]]:
    for rival, answers in said.items():
        for absent in {answer["absent"] for answer in answers if "absent" in answer}:
            print(f"{rival} is omitted: {absent}")
    there = {
        rival: answers
        for rival, answers in said.items()
        if not any("absent" in answer for answer in answers)
    }
    if not there:
        raise app.UsageError(f"No package could be measured on {model}; see the messages above.")
    phases = list(next(iter(there.values()))[0])
    medians = {
        rival: {phase: statistics.median(answer[phase] for answer in answers) for phase in phases}
        for rival, answers in there.items()
    }
    for values in medians.values():
        values["all"] = sum(values.values())
    rows = []
    for phase in [*phases, "all"]:
        seconds = [f"{medians[rival][phase]:.2f}" if rival in medians else "" for rival in STARTS]
        others = [values[phase] for rival, values in medians.items() if rival != "keras_vit"]
        ratio = (
            f"{medians['keras_vit'][phase] / min(others):.2f}"
            if others and "keras_vit" in medians
            else ""
        )
        rows.append([model, phase, *seconds, ratio])
    return rows


if __name__ == "__main__":
    app.run(main)
