"""A linear probe: logistic regression on the frozen features of a model.

    python experiments/probe.py --model=ViT_B16 --weights=imagenet21k --data=/data/pets,/data/dtd --workdir=runs/probe
    ... [--dev_share=0.1] [--seed=0] [--streaming] [--layer=pre_logits] [--image_size=224]

A share of each class of the training set is held out to choose the regularization. The classifier
is then fitted to the whole training set and measured once on the test set. With `--streaming` the
features stay on disk and are read in batches, for sets that do not fit into memory. The paper
reports no such numbers: its linear evaluation is few-shot.

Features are stored in the folder and never computed twice; if interrupted, rerun the same command
to resume. The results are written to `probe.md` and `probe.csv`; `DATA.npz` holds the kernel and
the bias for a Dense layer. For the values of `--data` and `--model` see
`command_line/frozen_features.py`.
"""

import sys
from collections.abc import Mapping, Sequence

import command_line.native_logs

import numpy as np
from absl import app, flags
from command_line import frozen_features
from command_line.exit_codes import exit_on_error

from keras_vit.evaluate import ProbeResult, linear_probe, streaming_probe
from keras_vit.weights.secrets import join_command
from keras_vit.writing import table, write_atomically, write_csv, write_text

_DEV_SHARE = flags.DEFINE_float("dev_share", 0.1, "Held-out share of each class.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the held-out images and of the batches.")
_STREAMING = flags.DEFINE_bool("streaming", False, "Read the features from disk in batches.")
flags.adopt_module_key_flags(frozen_features)  # so that --help shows them


@exit_on_error()
def main(_: list[str]) -> None:
    """Evaluates on every data set, and writes the report after each."""
    results: dict[str, ProbeResult] = {}
    seen: list[frozen_features.Frozen] = []
    probe = streaming_probe if _STREAMING.value else linear_probe
    for data in frozen_features.frozen():
        seen.append(data)
        arrays = (data.train.values, data.train.labels, data.test.values, data.test.labels)
        options = {
            "class_names": data.train.class_names,
            "dev_share": _DEV_SHARE.value,
            "seed": _SEED.value,
        }
        result = results[data.name] = probe(*arrays, **options)
        with write_atomically(frozen_features.workdir() / f"{data.name}.npz") as partial:
            np.savez(partial, kernel=result.kernel, bias=result.bias)
        write_report(results, seen)
    print((frozen_features.workdir() / "probe.md").read_text(encoding="utf-8"))


def write_report(
    results: Mapping[str, ProbeResult], seen: Sequence[frozen_features.Frozen]
) -> None:
    """Writes the report of the results so far."""
    folder = frozen_features.workdir()
    rows = [
        [name, f"{100 * one.accuracy:.2f}", f"{one.regularization:g}", _describe_notes(one)]
        for name, one in results.items()
    ]
    page = [
        f"# Linear probe: {frozen_features.title()}",
        f"```sh\n{join_command(['python', *sys.argv])}\n```",
        table(["data", "test accuracy in %", "regularization", "notes"], rows),
        f"The regularization was chosen on {_DEV_SHARE.value:.0%} of each class of the training "
        f"set:",
        *(_make_choice_table(name, one) for name, one in results.items()),
        *frozen_features.describe(seen),
    ]
    write_text(folder / "probe.md", "\n\n".join(page) + "\n")
    lines = []
    for name, one in results.items():
        for regularization, accuracy in one.dev_accuracies.items():
            test = f"{one.accuracy:.6f}" if regularization == one.regularization else ""
            lines.append([name, f"{regularization:g}", f"{accuracy:.6f}", test])
    write_csv(
        folder / "probe.csv", ["data", "regularization", "dev_accuracy", "test_accuracy"], lines
    )


def _make_choice_table(name: str, one: ProbeResult) -> str:
    header = [name, *(f"{regularization:g}" for regularization in one.dev_accuracies)]
    return table(
        header,
        [["accuracy in %", *(f"{100 * accuracy:.2f}" for accuracy in one.dev_accuracies.values())]],
    )


def _describe_notes(one: ProbeResult) -> str:
    notes = ["at the edge of the grid"] * one.at_edge
    notes += ["not converged"] * (not one.converged)
    return ", ".join(notes)


if __name__ == "__main__":
    app.run(main)
