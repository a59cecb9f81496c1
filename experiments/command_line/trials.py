"""Processes of an experiment: started, monitored, stopped and resumed, each in its own folder.

What lives here: `Trial`, a run whose folder shows whether it is finished; `Pool`, which runs the
unfinished trials, as many in parallel as memory allows; the plan file, which prevents two
experiments from sharing a folder. What does not: the definition of the trials, and the reports
(`sweep.py`, `ablations.py`).
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf

from keras_vit.folder_lock import lock_folder
from keras_vit.train import EXIT_STOPPED, RunConfig, Stopped
from keras_vit.train.inputs import make_sources
from keras_vit.train.workdir import data_sha256
from keras_vit.weights.secrets import join_command
from keras_vit.writing import remove_partial_files, write_json

POLL_SECONDS = 0.5
MEMORY_MARGIN = 1.2
STOPPING = (signal.SIGTERM, signal.SIGINT)
# fields that may differ when an experiment is resumed, as in a single run
WHERE = ("run.devices.kind", "run.devices.names", "run.devices.jit_compile")

Plan = Mapping[str, Any]  # what distinguishes experiments; only values that JSON preserves


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of an experiment. Its state is read from its folder.

    Attributes:
        name: Name in messages.
        folder: Folder of the run.
        command: Arguments of `python` that start it. Its exit code is 75 if it was stopped and can
            be resumed.
        tries: The settings that distinguish it from the other trials.
        result: Name of the JSON file that the finished run leaves in its folder.
        metric: Key of the accuracy in that file.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    tries: Mapping[str, Any]
    result: str = "results.json"
    metric: str = "validation/accuracy"

    def results(self) -> dict[str, Any]:
        """Returns the measurements of the run; empty before it is finished."""
        found = read_json(self.folder / self.result)
        return found if self.metric in found else {}

    def accuracy(self) -> float | None:
        """Returns the accuracy of the finished run, or None before."""
        return self.results().get(self.metric)

    def notes(self) -> dict[str, Any]:
        """Returns the record of the pool: command, process, seconds, cpu_seconds, memory_gb, and
        `diverged`, a message.
        """
        return read_json(self.folder / "trial.json")

    def is_over(self) -> bool:
        """Whether the run has finished or diverged."""
        return self.accuracy() is not None or "diverged" in self.notes()

    def row(self) -> dict[str, Any]:
        """Returns the row of the trial in a report."""
        notes = {
            name: self.notes().get(name) for name in ("diverged", "seconds", "memory_gb", "command")
        }
        return {**self.tries, "accuracy": self.accuracy(), **notes}


def leave_accelerators() -> None:
    """Leaves the GPUs to the trials: TensorFlow would reserve their memory in this process at its
    first operation, which may be the reading of a folder.
    """
    with suppress(RuntimeError):  # they are in use already
        tf.config.set_visible_devices([], "GPU")


def data_of(*configs: RunConfig) -> str:
    """Returns a hash of all data of these runs. It is part of the plan, as results on other data
    belong to another experiment.
    """
    whole = {
        (replace(config.data, held_out=0.0, train_share=1.0), config.seed) for config in configs
    }
    parts = [data_sha256(make_sources(data, seed)) for data, seed in sorted(whole, key=repr)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def claim(path: Path, plan: Plan, *, free: Collection[str] = ()) -> None:
    """Writes the plan of an experiment into its folder, or checks that the one there is the same.

    Args, Raises: As of `check_plan`.
    """
    plan = json.loads(json.dumps(plan, default=repr))
    path.parent.mkdir(parents=True, exist_ok=True)
    # without the lock, two that start at the same moment would both find the folder free
    with lock_folder(path.parent):
        found = check_plan(path, plan, free=free)
        write_json(
            path, {**found, "plan": plan, "process": [os.getpid(), psutil.Process().create_time()]}
        )


def check_plan(path: Path, plan: Plan, *, free: Collection[str] = ()) -> dict[str, Any]:
    """Checks that a folder can be used for this plan.

    Args:
        path: Plan file in the folder, such as "sweep.json"; messages name the experiment by it.
        plan: The plan, which must equal the one in the folder.
        free: Dotted names of entries in the plan that may differ.

    Returns:
        The content of the plan file.

    Raises:
        ValueError: If the folder holds another plan or a damaged one, or another process works on
            it.
    """
    folder, kind, plan = path.parent, path.stem, json.loads(json.dumps(plan, default=repr))
    found = read_json(path)
    if path.exists() and "plan" not in found:
        raise ValueError(
            f"{path} is damaged, so nothing tells which {kind} the runs in {folder} belong to. "
            "Restore it, or choose another `--workdir`."
        )
    if other := _alive(found.get("process")):
        raise ValueError(
            f"Another {kind} is running in {folder}, as process {other.pid}. Wait until it ends, "
            "or stop it."
        )
    # If no run has started, the folder stays free: a wrong command must not occupy it. Without a
    # plan the folder holds single runs only, and each checks its own config.
    if "plan" not in found or not any(folder.glob("*/*/config.json")):
        found = {"plan": plan}
    if lines := find_plan_differences(found["plan"], plan, free=free):
        raise ValueError(
            "\n".join([f"{folder} holds another {kind}:", *lines, "Choose another `--workdir`."])
        )
    return found


def find_plan_differences(there: Plan, here: Plan, *, free: Collection[str] = ()) -> list[str]:
    """Returns a line for each entry that differs between two plans, at most twelve.

    Args:
        there: The plan in a folder.
        here: The plan of this process.
        free: Dotted names of entries that may differ, besides the devices of a run.
    """
    here = dict(flat(json.loads(json.dumps(here, default=repr))))
    there = dict(flat(json.loads(json.dumps(there, default=repr))))
    names = [
        name
        for name in sorted({*here, *there} - {*free})
        if here.get(name) != there.get(name) and not name.endswith(WHERE)
    ]
    return [f"  {name}: there {there.get(name)}, here {here.get(name)}" for name in names[:12]]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested mappings with their dotted names."""
    for name, value in tree.items():
        yield from (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, dict) and value
            else [(prefix + name, value)]
        )


def read_json(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; empty if the file is absent or incomplete."""
    with suppress(FileNotFoundError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _alive(identity: Sequence[float] | None) -> psutil.Process | None:
    """Returns the process if it still runs, and None if another process has its number now."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(identity[0])) if identity else None
        if (
            process
            and process.status() != psutil.STATUS_ZOMBIE
            and abs(process.create_time() - identity[1]) < 2
        ):
            return process
    return None


def _find_unrecorded(trial: Trial) -> psutil.Process | None:
    """Returns the process of a trial whose pool was killed before it could record the number of the
    process. It has the command of the trial and the current folder, as the paths in the command may
    be relative to it.
    """
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command, folder = process.info["cmdline"] or (), process.info["cwd"]
        if tuple(command[1:]) == trial.command and folder == os.getcwd():
            return process
    return None


@dataclass(kw_only=True)
class Running:
    """A trial whose process runs."""

    trial: Trial
    process: psutil.Popen
    slot: int
    log_start: int
    started: float = field(default_factory=time.monotonic)
    told: int = 0  # number of signals passed on
    cpu: float = 0.0  # seconds of all cores, child processes included
    memory: int = 0  # bytes, child processes included
    most_memory: int = 0
    metrics_size: int = 0
    has_trained: bool = False

    def observe(self) -> None:
        """Updates its processor time, its memory, and whether it has started to train: before that,
        its memory does not count.
        """
        with suppress(psutil.Error):
            members = [self.process, *self.process.children(recursive=True)]
            self.memory = sum(member.memory_info().rss for member in members)
            times = [member.cpu_times() for member in members]
            self.cpu = max(self.cpu, sum(each.user + each.system for each in times))
        self.most_memory = max(self.memory, self.most_memory)
        # exists before training starts, with its header and the rows of earlier parts
        path = self.trial.folder / "metrics.csv"
        size = path.stat().st_size if path.exists() else 0
        self.has_trained, self.metrics_size = self.has_trained or 0 < self.metrics_size < size, size

    def outcome(self) -> str:
        """Returns the error at the end of the log, or else the last line."""
        text = (
            (self.trial.folder / "log.txt").read_bytes()[self.log_start :].decode(errors="replace")
        )
        lines = [line for line in text.splitlines() if line.strip()][-20:] or ["no output."]
        errors = [
            i
            for i, line in enumerate(lines)
            if line.partition(": ")[0].endswith(("Error", "Diverged"))
        ]
        return "\n".join(lines[errors[-1] if errors else -1 :])


class Pool:
    """Runs trials, at most `parallel` at a time and as many as fit into memory. The first one runs
    alone until it trains, which shows how much memory a trial takes.
    """

    def __init__(
        self,
        parallel: int,
        workdir: Path,
        kind: str,
        on_end: Callable[[Trial], None] = lambda _: None,
    ):
        self.parallel = parallel
        self.on_end = on_end  # called with each trial whose process has ended
        self.kind = kind  # name in messages, such as "sweep"
        self.asked_by: list[str] = []  # one name for each signal to stop
        self.failures: list[str] = []
        self.running: list[Running] = []
        seen = [read_json(path).get("memory_gb", 0) for path in workdir.glob("*/*/trial.json")]
        self.largest = 1e9 * max(seen, default=0)

    def catch_signals(self) -> None:
        """Passes SIGTERM and SIGINT on to the runs from now on."""
        for number in STOPPING:
            signal.signal(number, lambda got, _: self.asked_by.append(signal.Signals(got).name))

    def run(self, trials: Sequence[Trial], where: Path) -> None:
        """Runs all trials that are not over, and returns when all are.

        Args:
            trials: Trials that are over are not run again.
            where: Name of the trials in messages.

        Raises:
            Stopped: After a signal, when all running trials have saved.
            ChildProcessError: If a trial failed, when all other running trials have saved.
        """
        for trial in trials:
            # of one that is over, nothing is written again
            remove_partial_files(trial.folder)
            if left := _alive(trial.notes().get("process")) or _find_unrecorded(trial):
                print(
                    f"{trial.name} still runs, though the {self.kind} was killed. Waiting until it "
                    f"has saved.",
                    flush=True,
                )
                left.terminate()
                left.wait()
                # nobody has measured the time of this part
                unmeasured = {"seconds": None, "cpu_seconds": None}
                write_json(trial.folder / "trial.json", {**trial.notes(), **unmeasured})
        waiting = [trial for trial in trials if not trial.is_over()]
        print(f"{where}: {len(waiting)} of {len(trials)} runs to do.", flush=True)
        try:
            while self.running or (waiting and not self.asked_by and not self.failures):
                if waiting and not self.asked_by and not self.failures and self._has_room():
                    self._start(waiting.pop(0))
                time.sleep(POLL_SECONDS)
                self._observe()
        finally:
            for running in self.running:  # none is left, unless this loop raised an error
                running.process.terminate()
        if self.failures:
            raise ChildProcessError("\n".join(self.failures))
        if self.asked_by:
            raise Stopped(f"Stopped by {self.asked_by[0]}: rerun the same command to resume.")

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
        notes = {**trial.notes(), "command": join_command(["python", *trial.command])}
        print(f"{trial.name} starts: {notes['command']}", flush=True)
        with open(trial.folder / "log.txt", "ab") as log:
            # in a new session, so that Ctrl-C in a terminal reaches the run once, through us
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            log_start = log.tell()  # before the process writes
            process = psutil.Popen(
                [sys.executable, *trial.command], env=env, start_new_session=True, **streams
            )
            self.running.append(
                Running(trial=trial, process=process, slot=slot, log_start=log_start)
            )
        write_json(
            trial.folder / "trial.json", {**notes, "process": [process.pid, process.create_time()]}
        )

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
        """Records how a trial ended."""
        trial, code, outcome = running.trial, running.process.returncode, running.outcome()
        notes, name, accuracy = trial.notes(), trial.name, trial.accuracy()
        times = {"seconds": time.monotonic() - running.started, "cpu_seconds": running.cpu}
        for kind, more in times.items():
            if (before := notes.get(kind, 0)) is not None:
                notes[kind] = round(before + more, 1)
        notes["memory_gb"] = round(max(notes.get("memory_gb", 0), running.most_memory / 1e9), 3)
        self.largest = max(self.largest, running.most_memory)
        if accuracy is not None:
            seconds = "" if notes["seconds"] is None else f", {notes['seconds']:.0f} s"
            print(f"{name} is finished: {trial.metric} {accuracy:.4f}{seconds}", flush=True)
        elif code == 1 and outcome.startswith("Diverged: "):
            notes["diverged"] = outcome.removeprefix("Diverged: ")
            print(f"{name} diverged: {notes['diverged']}", flush=True)
        elif code == EXIT_STOPPED or running.told or (self.asked_by and -code in STOPPING):
            print(f"{name} was stopped: {outcome}", flush=True)
            self.asked_by += [] if running.told or self.asked_by else [f"a signal to {name}"]
        else:
            of_memory = (
                " If it was killed because memory ran out, choose a smaller --parallel."
                if code == -signal.SIGKILL
                else ""
            )
            self.failures.append(
                f"{name} failed with exit code {code}: {outcome}{of_memory} See "
                f"{trial.folder / 'log.txt'}."
            )
        write_json(trial.folder / "trial.json", notes)
        self.on_end(trial)
