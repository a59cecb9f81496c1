"""Fine-tuning as in the paper: chooses the learning rate on held-out images, then runs three seeds.

    python experiments/sweep.py --config=experiments/configs/finetune.py:cifar10 --workdir=runs/sweep
    ... [--learning_rates=0.001,0.003] [--held_out=0.02] [--seeds=3] [--parallel=2] [--config.<field>=value ...]

1. One run for each learning rate, on the training set without its held-out part. The rate with the
  highest accuracy on that part at the end of its run wins; of equals, the smaller one. A run that
  diverges cannot win. The test set is not opened.
2. One run for each seed with the winning rate, on the whole training set. Each is evaluated on the
  test set once, at its end.

The grid and the held-out share are those of the recipe's `get_sweep(arg)`, unless flags set them.
Each run is a process with its own folder, `trials/lr_0.003` or `final/seed_0`; its output is in
`log.txt`. If interrupted, rerun the same command to resume; finished runs are not repeated. Another
grid needs another folder. SIGTERM is passed on to the runs; when they have saved, the exit code is
75. The results are written to `sweep.md`, `sweep.png` and `sweep.json`.

`--parallel` starts another run while the machine has enough free memory for the largest run so far.
In a container with less memory than the machine, choose a smaller number. GPU memory is not
monitored. With CUDA_VISIBLE_DEVICES=0,1 each parallel run gets one of these GPUs. Where runs share
a GPU, TensorFlow is told to allocate memory as needed (TF_FORCE_GPU_ALLOW_GROWTH); for JAX, set
XLA_PYTHON_CLIENT_PREALLOCATE=false yourself.

Source: arXiv:2010.11929, table 4 and B.1.1. The paper holds out 10 % of Pets and Flowers, 2 % of
    CIFAR, and 1 % of ImageNet.
"""

import json
import runpy
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import command_line.native_logs

from absl import flags
from command_line import run_recipe
from command_line.trials import (
    Plan,
    Pool,
    Trial,
    claim,
    data_of,
    leave_accelerators,
    read_json,
)
from matplotlib.figure import Figure

from keras_vit.train import Diverged, FinetuneConfig
from keras_vit.train.finetune_recipe import settle
from keras_vit.train.workdir import versions
from keras_vit.weights.secrets import join_command
from keras_vit.writing import write_atomically, write_json, write_text

_RATES = flags.DEFINE_list("learning_rates", None, "The grid. Default: the recipe's `get_sweep`.")
_HELD_OUT = flags.DEFINE_float(
    "held_out", None, "Held-out share of the training set. Default: the recipe's `get_sweep`."
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs with the winning learning rate.")
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Maximum number of parallel runs.")
flags.adopt_module_key_flags(run_recipe)  # so that --help shows them

SCRIPTS = {"FinetuneConfig": "finetune.py", "PretrainConfig": "pretrain.py"}
SWEPT = {"run.optimizer.learning_rate": "--learning_rates", "run.data.held_out": "--held_out"}
OVERRIDES = [arg for arg in sys.argv if arg.lstrip("-").startswith("config.")]


def main(config: Any, workdir: str) -> None:
    """Runs the sweep in `workdir`, or the rest of it."""
    leave_accelerators()
    plan, folder = make_plan(config), Path(workdir).expanduser()
    if not (folder / "sweep.json").exists() and any(folder.glob("*/*/config.json")):
        raise ValueError(
            f"{folder} holds runs, but no sweep.json that tells of which sweep. Restore it, or choose "
            "another `--workdir`."
        )
    # the runs of the grid do not open the test set, so its name can be corrected before the others
    is_tested = any(folder.glob("final/*/config.json"))
    claim(folder / "sweep.json", plan, free=() if is_tested else ("config.run.data.test",))
    note_versions(folder)
    pool = Pool(_PARALLEL.value, folder, "sweep")
    pool.catch_signals()
    grid = [
        _make_trial(plan, folder / "trials" / f"lr_{rate!r}", rate)
        for rate in plan["learning_rates"]
    ]
    pool.run(grid, folder / "trials")
    _write_report(folder, plan, grid)
    winner = choose(grid)
    if winner is None:
        raise Diverged(
            f"All learning rates diverged; see {folder / 'sweep.md'}. Try smaller ones in another "
            f"folder."
        )
    rate = winner.tries["learning_rate"]
    print(
        f"The winner is {rate!r}: {winner.accuracy():.2%} on the held-out part.{warn_of_edge(grid)} "
        "Next: training on the whole training set."
    )
    seeds = range(config.run.seed, config.run.seed + plan["seeds"])
    final = [_make_trial(plan, folder / "final" / f"seed_{seed}", rate, seed) for seed in seeds]
    _check_test_set(config, folder)
    pool.run(final, folder / "final")
    for trial in final:
        if trial.accuracy() is None:  # a mean over the other runs alone would be biased
            raise Diverged(
                f"{trial.folder} diverged with the winning learning rate. "
                f"{trial.notes()['diverged']}"
            )
    print(
        f"Test accuracy: {_write_report(folder, plan, grid, final)}\n{folder / 'sweep.md'}",
        flush=True,
    )


def choose(grid: Sequence[Trial]) -> Trial | None:
    """Returns the trial with the highest accuracy (of equals, the one with the smaller learning
    rate), or None if all diverged.
    """
    finished = [trial for trial in grid if trial.accuracy() is not None]
    return max(
        finished, key=lambda trial: (trial.accuracy(), -trial.tries["learning_rate"]), default=None
    )


def warn_of_edge(grid: Sequence[Trial]) -> str:
    """Returns a sentence if the winner is at an edge of the grid, beyond which no rate was tried."""
    winner, rates = choose(grid), [trial.tries["learning_rate"] for trial in grid]
    if winner is None or len(grid) < 2:
        return ""
    rate = winner.tries["learning_rate"]
    edges = {min(rates): "smaller", max(rates): "larger"}
    return (
        f" It is at the edge of the grid: try {edges[rate]} learning rates too, in another folder."
        if rate in edges
        else ""
    )


def note_versions(folder: Path) -> None:
    """Adds the versions of the software to sweep.json, if they are others than before."""
    found, ours = read_json(folder / "sweep.json"), versions()
    before = found.get("versions", [])
    if ours in before:
        return
    if before:
        print(
            "This sweep was started with other versions, so the results of its runs may differ "
            f"slightly. Versions now: {_format_versions(ours)}.",
            flush=True,
        )
    write_json(folder / "sweep.json", {**found, "versions": [*before, ours]})


def _format_versions(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts.items())


def make_plan(config: Any) -> Plan:
    """Reads the flags.

    Raises:
        ValueError: Lists all faults of the flags.
    """
    kind, (path, _, argument) = type(config).__name__, flags.FLAGS.config.partition(":")
    if kind not in SCRIPTS:
        raise ValueError(
            f"A sweep takes a recipe that returns a {' or a '.join(SCRIPTS)}. Received: a recipe "
            f"that returns a {kind}."
        )
    given = {"learning_rates": _RATES.value, "held_out": _HELD_OUT.value}
    if None in given.values():
        get_sweep = runpy.run_path(path).get("get_sweep")
        if get_sweep is None:
            raise ValueError(
                f"{path} has no function `get_sweep(arg)`. Set both the grid and the held-out "
                "share, for example --learning_rates=0.001,0.003,0.01,0.03 and --held_out=0.02."
            )
        given = {
            **get_sweep(argument),
            **{name: value for name, value in given.items() if value is not None},
        }
    try:
        given["learning_rates"] = sorted(float(word) for word in given["learning_rates"])
    except ValueError as error:
        raise ValueError(
            f"Learning rates must be numbers, such as --learning_rates=0.001,0.003: {error}."
        ) from error
    if faults := _find_faults(config, given["learning_rates"], given["held_out"]):
        raise ValueError("\n".join(faults))
    recorded = settle(config)[0] if isinstance(config, FinetuneConfig) else config
    # Without the test set, which must not be opened before the winner is known; the final runs
    # record theirs.
    training = data_of(replace(config.run, data=replace(config.run.data, test="")))
    plan = {
        **given,
        "seeds": _SEEDS.value,
        "kind": kind,
        "config": asdict(recorded),
        "data_sha256": training,
    }
    return json.loads(json.dumps(plan, default=repr))


def _find_faults(config: Any, rates: Sequence[float], held_out: float) -> list[str]:
    changed = [arg.lstrip("-").removeprefix("config.").partition("=")[0] for arg in OVERRIDES]
    unusable = [rate for rate in rates if not 0 < rate < float("inf")]
    has_repeated, is_share = len(set(rates)) < len(rates), 0 < held_out < 1
    faults = {
        "The grid is empty: name a learning rate, such as --learning_rates=0.001,0.003.": not rates,
        f"Learning rates must be finite and greater than 0. Received: {unusable}.": unusable,
        f"Learning rates must differ from each other. Received: {rates}.": has_repeated,
        f"`--held_out` must be between 0 and 1, such as 0.02. Received: {held_out}.": not is_share,
        f"`--seeds` must be at least 1. Received: {_SEEDS.value}.": _SEEDS.value < 1,
        f"`--parallel` must be at least 1. Received: {_PARALLEL.value}.": _PARALLEL.value < 1,
        "A sweep needs a test set: name one with --config.run.data.test=NAME.": not config.run.data.test,
    }
    test = Path(config.run.data.name).expanduser() / config.run.data.test
    faults[f"There is no folder {test}: name the test set with --config.run.data.test=FOLDER."] = (
        config.run.data.kind == "image_folder" and not test.is_dir()
    )
    faults |= {
        f"The sweep sets `{name}` itself: use {flag}.": name in changed
        for name, flag in SWEPT.items()
    }
    return [message for message, is_present in faults.items() if is_present]


def _check_test_set(config: Any, folder: Path) -> None:
    """Records the data of the final runs, which the plan does not contain: it is made before the
    test set may be opened.

    Raises:
        ValueError: If finished runs in the folder were measured on another test set.
    """
    path, ours = folder / "sweep.json", data_of(config.run)
    found = read_json(path)
    if found.get("test_sha256", ours) != ours and any(folder.glob("final/*/config.json")):
        raise ValueError(
            f"The test set has changed since the runs in {folder / 'final'} were started. Restore "
            "it, or remove that folder to repeat them."
        )
    write_json(path, {**found, "test_sha256": ours})


def _make_trial(plan: Plan, folder: Path, rate: float, seed: int | None = None) -> Trial:
    """Returns a run of the grid, or, with a seed, a final run, which is evaluated only at its end
    and on the test set.
    """
    changes = {
        "run.optimizer.learning_rate": rate,
        "run.data.held_out": plan["held_out"] if seed is None else 0.0,
    }
    if seed is not None:
        changes |= {"run.seed": seed, "run.loop.evaluate_every": 0}
    elif plan["config"]["run"]["data"]["kind"] != "fractals":  # some of them are the test set
        changes |= {"run.data.test": ""}
    script = str(Path(sys.argv[0]).with_name(SCRIPTS[plan["kind"]]))
    last = [f"--config.{name}={value!r}" for name, value in changes.items()]
    command = (script, f"--config={flags.FLAGS.config}", f"--workdir={folder}", *OVERRIDES, *last)
    return Trial(
        name=folder.name,
        folder=folder,
        command=command,
        tries={"learning_rate": rate, "seed": seed},
    )


def _write_report(
    folder: Path, plan: Plan, grid: Sequence[Trial], final: Sequence[Trial] = ()
) -> str:
    """Writes sweep.json, sweep.png and sweep.md, with the test accuracy once the final runs are
    finished.

    Returns:
        The test accuracy as text; empty before the final runs.
    """
    values, winner = [trial.accuracy() for trial in final], choose(grid)
    results = {"winner": winner and winner.tries["learning_rate"], "test": None}
    results |= {"grid": [trial.row() for trial in grid], "final": [trial.row() for trial in final]}
    in_words, sections = (
        "",
        [f"# Sweep: {flags.FLAGS.config}", f"```sh\n{join_command(['python', *sys.argv])}\n```"],
    )
    if final:
        mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        results["test"] = {"mean": mean, "std": std, "values": values}
        in_words = f"{mean:.2%}, one run" if std is None else f"{mean:.2%} ± {std:.2%}"
        each = ", ".join(f"{value:.2%}" for value in values)
        sections += [
            f"Test accuracy: **{in_words}** (mean and sample standard deviation of {each})"
        ]
    write_json(folder / "sweep.json", {**read_json(folder / "sweep.json"), **results})
    with write_atomically(folder / "sweep.png") as partial:
        _draw(results, f"test: {in_words}").savefig(partial)
    steps = plan["config"]["run"]["loop"]["total_steps"]
    sections += [
        f"Accuracy on the held-out part, a share of {plan['held_out']:.4g} of the training set, by "
        f"learning rate:"
    ]
    sections += [
        _make_table("learning_rate", results["grid"], steps, results["winner"]),
        "![](sweep.png)",
    ]
    if final:
        sections += [
            f"Test accuracy of the winner, {results['winner']!r}, after training on the whole "
            f"training set, by seed:"
        ]
        sections += [_make_table("seed", results["final"], steps)]
    if edge := warn_of_edge(grid):
        sections += [f"The winner is {results['winner']!r}.{edge}"]
    used = read_json(folder / "sweep.json").get("versions", [])
    sections += [f"Versions: {'; then '.join(map(_format_versions, used))}."]
    sections += [
        "Seconds count the whole process. The folder of each run holds its command (`trial.json`) "
        "and its output (`log.txt`)."
    ]
    write_text(folder / "sweep.md", "\n\n".join(sections) + "\n")
    return in_words


def _make_table(
    name: str, rows: Sequence[Mapping[str, Any]], steps: int, winner: float | None = None
) -> str:
    lines = [f"| {name.replace('_', ' ')} | accuracy | steps | seconds |", "|---|---|---|---|"]
    for row in rows:
        lost = (row["diverged"] or "").partition(". ")[0]
        measured = f"diverged | {lost}" if lost else f"{row['accuracy']:.2%} | {steps:,}"
        seconds = "not measured" if row["seconds"] is None else f"{row['seconds']:.0f}"
        lines.append(
            f"| {row[name]!r}{' (winner)' if row[name] == winner else ''} | {measured} | {seconds} "
            f"|"
        )
    return "\n".join(lines)


def _draw(results: Mapping[str, Any], test_in_words: str) -> Figure:
    """Plots the accuracy on the held-out part by learning rate; the test accuracy as a band."""
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    curve = {row["learning_rate"]: row["accuracy"] for row in results["grid"]}
    reached = {rate: accuracy for rate, accuracy in curve.items() if accuracy is not None}
    axes.plot(
        reached.keys(), reached.values(), "o-", color="#0072B2", label="held-out part of train"
    )
    if lost := sorted(curve.keys() - reached):
        axes.plot(
            lost, [0.03] * len(lost), "kx", transform=axes.get_xaxis_transform(), label="diverged"
        )
    if (best := results["winner"]) is not None:
        ring = {"markersize": 14, "fillstyle": "none", "markeredgewidth": 2, "color": "#0072B2"}
        axes.plot(best, curve[best], "o", **ring, label=f"winner, {best!r}: {curve[best]:.2%}")
    if test := results["test"]:
        spread = test["std"] or 0.0
        axes.axhline(test["mean"], color="#D55E00", linestyle="--", label=test_in_words)
        axes.axhspan(
            test["mean"] - spread, test["mean"] + spread, color="#D55E00", alpha=0.15, linewidth=0
        )
    axes.set(xscale="log", xlabel="learning rate", ylabel="accuracy at the end of a run")
    axes.set_xticks(list(curve), [f"{rate:g}" for rate in curve])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    axes.set_title(Path(flags.FLAGS.config).name, loc="left", fontweight="bold", parse_math=False)
    axes.grid(color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    run_recipe.main(object, main)
