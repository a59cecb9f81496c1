"""Fine-tuning as the paper does it: a learning rate chosen without the test set, then three runs, tested once each.

    python experiments/sweep.py --config=experiments/configs/finetune.py:cifar10 --workdir=runs/sweep
    ... [--learning_rates=0.001,0.003] [--held_out=0.02] [--seeds=3] [--parallel=2] [--config.<field>=value ...]

1. One run for each learning rate, on the training set without a held-out part; the rate that is best on that part when
   its run ends wins, the smaller of equals. The test set is not opened. A run that diverges loses.
2. The winner on the whole training set, once for each seed; each run is evaluated on the test set when it ends.

Grid and held-out share are those of the recipe's `get_sweep(arg)`, if no flags say otherwise. Each run is a process in
a folder of its own, `trials/lr_0.003` or `final/seed_0`, with its output in `log.txt`. The same command goes on where
it stopped, and repeats no finished run; another grid needs another folder. SIGTERM is passed on to the runs; when they
have saved, the exit code is 75. The results are in `sweep.md`, `sweep.png` and `sweep.json`.

`--parallel` starts further runs while there is memory for what the largest was seen to take (memory of the machine: in
a container with less, choose a smaller number). Memory of GPUs is not watched. With CUDA_VISIBLE_DEVICES=0,1 each of
several runs gets one of these GPUs; where they share one, TensorFlow is told not to take all of its memory
(TF_FORCE_GPU_ALLOW_GROWTH), and JAX must be told by you (XLA_PYTHON_CLIENT_PREALLOCATE=false).

arXiv:2010.11929, table 4 and B.1.1; held out there: 10 % of Pets and Flowers, 2 % of CIFAR, 1 % of ImageNet.
"""

import json
import os
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import run_recipe  # --config, --workdir and the exit codes; before Keras
from absl import flags
from matplotlib.figure import Figure

from keras_vit.train import EXIT_STOPPED, Diverged, Stopped

_RATES = flags.DEFINE_list("learning_rates", None, "The grid; default: the recipe's `get_sweep`.")
_HELD_OUT = flags.DEFINE_float("held_out", None, "Share of train to choose on; default: the recipe's `get_sweep`.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs of the winner.")
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Runs at a time, where memory allows.")

METRIC = "validation/accuracy"
SCRIPTS = {"FinetuneConfig": "finetune.py", "PretrainConfig": "pretrain.py"}
SWEPT = {"run.optimizer.learning_rate": "--learning_rates", "run.data.held_out": "--held_out"}
WHERE = ("config.run.devices.kind", "config.run.devices.names", "config.run.devices.jit_compile")  # as in a run: free
POLL_SECONDS = 0.5
MEMORY_MARGIN = 1.2
OVERRIDES = [arg for arg in sys.argv if arg.lstrip("-").startswith("config.")]

Plan = Mapping[str, Any]  # what makes one sweep different from another, as JSON gives it back


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of its own, with what it tries. Its folder knows the rest."""

    folder: Path
    command: tuple[str, ...]
    tries: Mapping[str, float]

    def accuracy(self) -> float | None:
        """Returns the value of the evaluation at the end, or None before it."""
        return _read(self.folder / "results.json").get(METRIC)

    def notes(self) -> dict[str, Any]:
        """Returns what the sweep wrote down: command, process, seconds, memory_gb, and `diverged`, a message."""
        return _read(self.folder / "trial.json")

    def is_over(self) -> bool:
        return self.accuracy() is not None or "diverged" in self.notes()

    def row(self) -> dict[str, Any]:
        """Returns what is reported."""
        notes = {name: self.notes().get(name) for name in ("diverged", "seconds", "memory_gb", "command")}
        return {**self.tries, "accuracy": self.accuracy(), **notes}


def main(config: Any, workdir: str) -> None:
    """Does what is left of the sweep in `workdir`."""
    plan, folder = make_plan(config), Path(workdir).expanduser()
    _claim(folder, plan)
    pool = Pool(_PARALLEL.value, folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: pool.asked_by.append(signal.Signals(got).name))
    grid = [_trial(plan, folder / "trials" / f"lr_{rate!r}", rate) for rate in plan["learning_rates"]]
    pool.run(grid)
    _write_report(folder, plan, grid)
    winner = choose(grid)
    if winner is None:
        raise Diverged(f"All learning rates diverged, see {folder / 'sweep.md'}. Try smaller ones in another folder.")
    rate = winner.tries["learning_rate"]
    print(f"The winner is {rate!r}: {winner.accuracy():.2%} on the held-out part. Now on the whole training set.")
    seeds = range(config.run.seed, config.run.seed + plan["seeds"])
    final = [_trial(plan, folder / "final" / f"seed_{seed}", rate, seed) for seed in seeds]
    pool.run(final)
    for trial in final:
        if trial.accuracy() is None:  # a mean over the others would be of lucky runs
            raise Diverged(f"{trial.folder}, though its learning rate has won. {trial.notes()['diverged']}")
    print(f"Test accuracy: {_write_report(folder, plan, grid, final)}\n{folder / 'sweep.md'}", flush=True)


def choose(grid: Sequence[Trial]) -> Trial | None:
    """Returns the best trial, of equals that with the smaller learning rate, or None if all diverged."""
    finished = [trial for trial in grid if trial.accuracy() is not None]
    return max(finished, key=lambda trial: (trial.accuracy(), -trial.tries["learning_rate"]), default=None)


def make_plan(config: Any) -> Plan:
    """Reads the flags; an error names everything that is wrong with them."""
    kind, (path, _, argument) = type(config).__name__, flags.FLAGS.config.partition(":")
    if kind not in SCRIPTS:
        raise ValueError(f"A sweep takes a recipe that makes a {' or a '.join(SCRIPTS)}. This one makes a {kind}.")
    given = {"learning_rates": _RATES.value, "held_out": _HELD_OUT.value}
    if None in given.values():
        get_sweep = runpy.run_path(path).get("get_sweep")
        if get_sweep is None:
            raise ValueError(
                f"{path} does not say what to sweep: it has no function `get_sweep(arg)`. Say it with both "
                "--learning_rates=0.001,0.003,0.01,0.03 and --held_out=0.02, for example."
            )
        given = {**get_sweep(argument), **{name: value for name, value in given.items() if value is not None}}
    try:
        given["learning_rates"] = sorted(float(word) for word in given["learning_rates"])
    except ValueError as error:
        raise ValueError(f"Learning rates are numbers, such as --learning_rates=0.001,0.003: {error}.") from error
    if mistakes := _mistakes(config, given["learning_rates"], given["held_out"]):
        raise ValueError("\n".join(mistakes))
    plan = {**given, "seeds": _SEEDS.value, "kind": kind, "config": asdict(config)}
    return json.loads(json.dumps(plan, default=repr))


def _mistakes(config: Any, rates: Sequence[float], held_out: float) -> list[str]:
    changed = [arg.lstrip("-").removeprefix("config.").partition("=")[0] for arg in OVERRIDES]
    unusable = [rate for rate in rates if not 0 < rate < float("inf")]
    mistakes = {
        "The grid is empty: name a learning rate, such as --learning_rates=0.001,0.003.": not rates,
        f"Learning rates must be finite, and greater than 0. Received: {unusable}.": unusable,
        f"Each learning rate is tried once: leave out the repeated ones of {rates}.": len(set(rates)) < len(rates),
        f"`--held_out` must be between 0 and 1, such as 0.02. Received: {held_out}.": not 0 < held_out < 1,
        f"`--seeds` must be at least 1. Received: {_SEEDS.value}.": _SEEDS.value < 1,
        f"`--parallel` must be at least 1. Received: {_PARALLEL.value}.": _PARALLEL.value < 1,
        "There is no test set to report on: name one with --config.run.data.test=NAME.": not config.run.data.test,
    }
    mistakes |= {f"The sweep sets `{name}` itself: use {flag}.": name in changed for name, flag in SWEPT.items()}
    return [message for message, is_made in mistakes.items() if is_made]


def _claim(folder: Path, plan: Plan) -> None:
    """Writes the plan into the folder, or checks that the one there is the same, and that nobody works on it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = _read(folder / "sweep.json")
    if other := _alive(found.get("process")):
        raise ValueError(f"A sweep is running in {folder}, as process {other.pid}. Wait for it, or stop it.")
    if not any(folder.glob("*/*/config.json")):  # no run has begun: a mistake must not take the folder
        found = {"plan": plan}
    here, there = dict(_flat(plan)), dict(_flat(found["plan"]))
    names = [name for name in sorted({*here, *there} - {*WHERE}) if here.get(name) != there.get(name)]
    if names:
        lines = [f"  {name}: there {there.get(name)}, here {here.get(name)}" for name in names[:12]]
        raise ValueError("\n".join([f"{folder} holds another sweep:", *lines, "Choose another `--workdir`."]))
    _write(folder / "sweep.json", {**found, "process": [os.getpid(), psutil.Process().create_time()]})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield from _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [(prefix + name, value)]


def _trial(plan: Plan, folder: Path, rate: float, seed: int | None = None) -> Trial:
    """Without a seed, a run of the grid; with one, a run that is evaluated on the test set, and at its end alone."""
    changes = {"run.optimizer.learning_rate": rate, "run.data.held_out": plan["held_out"] if seed is None else 0.0}
    if seed is not None:
        changes |= {"run.seed": seed, "run.loop.evaluate_every": 0}
    script = str(Path(sys.argv[0]).with_name(SCRIPTS[plan["kind"]]))
    last = [f"--config.{name}={value!r}" for name, value in changes.items()]
    command = (script, f"--config={flags.FLAGS.config}", f"--workdir={folder}", *OVERRIDES, *last)
    return Trial(folder=folder, command=command, tries={"learning_rate": rate, "seed": seed})


def _read(path: Path) -> dict[str, Any]:
    """Returns what is in a JSON file: nothing, if it is absent or was cut short."""
    with suppress(FileNotFoundError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return {}


def _write(path: Path, content: Mapping[str, Any] | str) -> None:
    partial = path.with_name(path.name + ".partial")
    text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _alive(identity: Sequence[float] | None) -> psutil.Process | None:
    """Returns the process, if it is there still, and not another one with its number."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(identity[0])) if identity else None
        if process and process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - identity[1]) < 2:
            return process
    return None


@dataclass(kw_only=True)
class Running:
    """A trial while it runs."""

    trial: Trial
    process: psutil.Popen
    slot: int
    log_start: int
    started: float = field(default_factory=time.monotonic)
    told: int = 0  # signals passed on
    memory: int = 0  # bytes; of child processes too
    most_memory: int = 0
    metrics_size: int = 0
    has_trained: bool = False

    def observe(self) -> None:
        """Looks at its memory, and whether it trains yet: before that, its memory says nothing."""
        with suppress(psutil.Error):
            members = [self.process, *self.process.children(recursive=True)]
            self.memory = sum(member.memory_info().rss for member in members)
        self.most_memory = max(self.memory, self.most_memory)
        path = self.trial.folder / "metrics.csv"  # there with its header before, and maybe with earlier measurements
        size = path.stat().st_size if path.exists() else 0
        self.has_trained, self.metrics_size = self.has_trained or 0 < self.metrics_size < size, size

    def outcome(self) -> str:
        """Returns the error that it ended with, or else its last line."""
        text = (self.trial.folder / "log.txt").read_bytes()[self.log_start :].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-20:] or ["no output."]
        errors = [i for i, line in enumerate(lines) if line.partition(": ")[0].endswith(("Error", "Diverged"))]
        return "\n".join(lines[errors[-1] if errors else -1 :])


class Pool:
    """Runs trials, as many at a time as are allowed and fit into memory; the very first alone until it trains."""

    def __init__(self, parallel: int, workdir: Path):
        self.parallel = parallel
        self.asked_by: list[str] = []  # grows with each signal to stop
        self.failures: list[str] = []
        self.running: list[Running] = []
        seen = [_read(path).get("memory_gb", 0) for path in workdir.glob("*/*/trial.json")]
        self.largest = 1e9 * max(seen, default=0)

    def run(self, trials: Sequence[Trial]) -> None:
        """Returns when all are over. After a signal or a failure all save; then it raises Stopped or OSError."""
        for trial in trials:
            if left := _alive(trial.notes().get("process")):
                print(f"{trial.folder.name} still runs, of a sweep that was killed: waiting until it has saved.")
                left.terminate()
                left.wait()
        waiting = [trial for trial in trials if not trial.is_over()]
        print(f"{trials[0].folder.parent}: {len(waiting)} of {len(trials)} runs to do.", flush=True)
        try:
            while self.running or (waiting and not self.asked_by and not self.failures):
                if waiting and not self.asked_by and not self.failures and self._has_room():
                    self._start(waiting.pop(0))
                time.sleep(POLL_SECONDS)
                self._observe()
        finally:
            for running in self.running:  # after an error of our own
                running.process.terminate()
        if self.failures:
            raise ChildProcessError("\n".join(self.failures))
        if self.asked_by:
            raise Stopped(f"Stopped by {self.asked_by[0]}: run the same command to go on.")

    def _has_room(self) -> bool:
        if not self.running or len(self.running) >= self.parallel or not self.largest:
            return not self.running
        growth = sum(max(0, self.largest - running.memory) for running in self.running)
        return psutil.virtual_memory().available - growth > MEMORY_MARGIN * self.largest

    def _start(self, trial: Trial) -> None:
        trial.folder.mkdir(parents=True, exist_ok=True)
        slot = min(set(range(self.parallel)) - {running.slot for running in self.running})
        env, gpus = dict(os.environ), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if self.parallel > 1:
            env.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            env |= {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if len(gpus) > 1 else {}
        notes = {**trial.notes(), "command": shlex.join(["python", *trial.command])}
        print(f"{trial.folder.name} starts: {notes['command']}", flush=True)
        with open(trial.folder / "log.txt", "ab") as log:
            # A session of its own: Ctrl-C in a terminal reaches it once, through us.
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = psutil.Popen([sys.executable, *trial.command], env=env, start_new_session=True, **streams)
            self.running.append(Running(trial=trial, process=process, slot=slot, log_start=log.tell()))
        _write(trial.folder / "trial.json", {**notes, "process": [process.pid, process.create_time()]})

    def _observe(self) -> None:
        signals = max(len(self.asked_by), int(bool(self.failures)))
        for running in list(self.running):
            running.observe()
            if running.has_trained:
                self.largest = max(self.largest, running.most_memory)
            if running.process.poll() is not None:
                self.running.remove(running)
                self._settle(running)
            elif running.told < signals:
                running.told += 1
                running.process.terminate()

    def _settle(self, running: Running) -> None:
        """Writes down what became of a trial."""
        trial, code, outcome = running.trial, running.process.returncode, running.outcome()
        notes, name, accuracy = trial.notes(), trial.folder.name, trial.accuracy()
        notes["seconds"] = round(notes.get("seconds", 0) + time.monotonic() - running.started, 1)
        notes["memory_gb"] = round(max(notes.get("memory_gb", 0), running.most_memory / 1e9), 3)
        self.largest = max(self.largest, running.most_memory)
        if accuracy is not None:
            print(f"{name} is finished: {METRIC} {accuracy:.4f}, {notes['seconds']:.0f} s", flush=True)
        elif code == 1 and outcome.startswith("Diverged: "):
            notes["diverged"] = outcome.removeprefix("Diverged: ")
            print(f"{name} diverged: {notes['diverged']}", flush=True)
        elif code == EXIT_STOPPED or running.told:
            print(f"{name} is stopped: {outcome}", flush=True)
            self.asked_by += [] if running.told else [f"a signal to {name}"]
        else:
            of_memory = " Killed for want of memory? Try a smaller --parallel." if code == -signal.SIGKILL else ""
            self.failures.append(f"{name}, code {code}: {outcome}{of_memory} See {trial.folder / 'log.txt'}.")
        _write(trial.folder / "trial.json", notes)


def _write_report(folder: Path, plan: Plan, grid: Sequence[Trial], final: Sequence[Trial] = ()) -> str:
    """Writes sweep.json, sweep.png and sweep.md, with the test as soon as there is one. Returns that in words."""
    values, winner = [trial.accuracy() for trial in final], choose(grid)
    results = {"winner": winner and winner.tries["learning_rate"], "test": None}
    results |= {"grid": [trial.row() for trial in grid], "final": [trial.row() for trial in final]}
    in_words, sections = "", [f"# Sweep: {flags.FLAGS.config}", f"```sh\n{shlex.join(['python', *sys.argv])}\n```"]
    if final:
        mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        results["test"] = {"mean": mean, "std": std, "values": values}
        in_words = f"{mean:.2%}, one run" if std is None else f"{mean:.2%} ± {std:.2%}"
        each = ", ".join(f"{value:.2%}" for value in values)
        sections += [f"Test accuracy: **{in_words}** (mean and sample standard deviation of {each})"]
    _write(folder / "sweep.json", {**_read(folder / "sweep.json"), **results})
    _draw(results, f"test: {in_words}").savefig(folder / "sweep.png")
    steps = plan["config"]["run"]["loop"]["total_steps"]
    sections += [f"The learning rate, chosen on a share of {plan['held_out']:.4g} of the training set, held out:"]
    sections += [_table("learning_rate", results["grid"], steps, results["winner"]), "![](sweep.png)"]
    if final:
        sections += [f"The winner, {results['winner']!r}, on the whole training set; each run was tested once:"]
        sections += [_table("seed", results["final"], steps)]
    sections += ["Seconds are of the whole process. Commands are in each run's `trial.json`, its output in `log.txt`."]
    _write(folder / "sweep.md", "\n\n".join(sections) + "\n")
    return in_words


def _table(name: str, rows: Sequence[Mapping[str, Any]], steps: int, winner: float | None = None) -> str:
    lines = [f"| {name.replace('_', ' ')} | accuracy | steps | seconds |", "|---|---|---|---|"]
    for row in rows:
        lost = (row["diverged"] or "").partition(". ")[0]
        measured = f"diverged | {lost}" if lost else f"{row['accuracy']:.2%} | {steps:,}"
        seconds = "not measured" if row["seconds"] is None else f"{row['seconds']:.0f}"
        lines.append(f"| {row[name]!r}{' (winner)' if row[name] == winner else ''} | {measured} | {seconds} |")
    return "\n".join(lines)


def _draw(results: Mapping[str, Any], test_in_words: str) -> Figure:
    """Accuracy on the held-out part by learning rate; the test as a band."""
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    curve = {row["learning_rate"]: row["accuracy"] for row in results["grid"]}
    reached = {rate: accuracy for rate, accuracy in curve.items() if accuracy is not None}
    axes.plot(reached.keys(), reached.values(), "o-", color="#0072B2", label="held-out part of train")
    if lost := sorted(curve.keys() - reached):
        axes.plot(lost, [0.03] * len(lost), "kx", transform=axes.get_xaxis_transform(), label="diverged")
    if (best := results["winner"]) is not None:
        ring = {"markersize": 14, "fillstyle": "none", "markeredgewidth": 2, "color": "#0072B2"}
        axes.plot(best, curve[best], "o", **ring, label=f"winner, {best!r}: {curve[best]:.2%}")
    if test := results["test"]:
        spread = test["std"] or 0.0
        axes.axhline(test["mean"], color="#D55E00", linestyle="--", label=test_in_words)
        axes.axhspan(test["mean"] - spread, test["mean"] + spread, color="#D55E00", alpha=0.15, linewidth=0)
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
