"""The whole state of a run on disk: written atomically, verified when read, the last few kept and the best.

A checkpoint is a folder `checkpoints/<step>/` with `state.npz` (every array) and `state.json` (step, hashes, metrics).
It is written under another name and renamed when it is complete and on disk, so that a kill leaves the one before.
"""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.train.learner import Learner
from keras_vit.weights.restore import named_variables

State = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A state that was read.

    Attributes:
        step: Updates done.
        state: {name: array}.
        metrics: What was measured at that step.
        damaged: Newer checkpoints that could not be read, with the reason.
    """

    step: int
    state: State = field(repr=False)
    metrics: Mapping[str, float]
    damaged: tuple[str, ...] = ()


def state_of(learner: Learner, model: keras.Model) -> State:
    """Returns all that a run needs to go on: weights, optimizer, averages, seeds."""
    return {name: keras.ops.convert_to_numpy(v.value) for name, v in _variables(learner, model).items()}


def restore_state(learner: Learner, model: keras.Model, state: State) -> None:
    """Assigns a state, if it is that of this model and this optimizer.

    Raises:
        ValueError: If names or shapes differ.
    """
    variables = _variables(learner, model)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    stored = {name: array.shape for name, array in state.items()}
    if shapes != stored:
        names = sorted(name for name in {*shapes, *stored} if shapes.get(name) != stored.get(name))
        lines = [f"  {name}: run {shapes.get(name)}, checkpoint {stored.get(name)}" for name in names[:8]]
        raise ValueError(
            f"The checkpoint is of another model or optimizer; {len(names)} of {len(shapes)} variables differ:\n"
            + "\n".join(lines)
        )
    for name, variable in variables.items():
        variable.assign(state[name])


def state_sha256(state: State) -> str:
    """Returns the hash of names, types, shapes and bits of a state: equal if and only if the states are."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _variables(learner: Learner, model: keras.Model) -> dict[str, keras.Variable]:
    # Seeds and optimizer variables are numbered: Keras numbers their names anew in every process.
    named = {f"weights/{name}": variable for name, variable in named_variables(model.layers).items()}
    named |= {f"seeds/{number:03}": seed for number, seed in enumerate(learner.seeds)}
    variables = learner.optimizer.variables
    return named | {f"optimizer/{number:04}/{v.name}": v for number, v in enumerate(variables)}


class Checkpoints:
    """The checkpoints of a run.

    Args:
        workdir: Of the run.
        keep: How many of the newest to keep.
        best_metric: The checkpoint with the best value of it is kept too; None for none. Names that end in
            "loss" or "error" are better when smaller.
        is_writer: Whether this process saves; it removes what an earlier one left half-written.
    """

    def __init__(
        self, workdir: str | os.PathLike, *, keep: int = 2, best_metric: str | None = None, is_writer: bool = True
    ):
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: {keep}.")
        self.folder = Path(workdir) / "checkpoints"
        self.keep = keep
        self.best_metric = best_metric
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".writing-*") if is_writer else ():
            shutil.rmtree(leftover, ignore_errors=True)

    def steps(self) -> list[int]:
        """Returns the steps of complete checkpoints, oldest first."""
        return sorted(int(path.name) for path in self.folder.iterdir() if re.fullmatch(r"\d{10}", path.name))

    def path(self, step: int) -> Path:
        return self.folder / f"{step:010}"

    def save(self, step: int, state: State, metrics: Mapping[str, float] | None = None) -> Path:
        """Writes a checkpoint, then removes those that are no longer kept. One of the same step stays as it is.

        Raises:
            OSError: If the disk is full or not writable; older checkpoints are untouched.
        """
        target = self.path(step)
        if target.exists():
            self._add_metrics(target, metrics or {})
            return target
        writing = self.folder / f".writing-{step:010}-{os.getpid()}"
        try:
            writing.mkdir()
            _write(writing / "state.npz", lambda file: np.savez(file, **state))
            facts = {
                "step": step,
                "metrics": dict(metrics or {}),
                "state_sha256": state_sha256(state),
                "file_sha256": _file_sha256(writing / "state.npz"),
            }
            _write(writing / "state.json", lambda file: file.write(json.dumps(facts, indent=1).encode()))
            os.rename(writing, target)
            _sync(self.folder)
        except OSError:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        self._remove_old()
        return target

    def _add_metrics(self, path: Path, metrics: Mapping[str, float]) -> None:
        """A run that was stopped at a step is evaluated there when it goes on."""
        facts = json.loads((path / "state.json").read_bytes())
        if metrics and not facts["metrics"]:
            new = path / ".state.json"
            _write(new, lambda file: file.write(json.dumps({**facts, "metrics": dict(metrics)}, indent=1).encode()))
            os.replace(new, path / "state.json")

    def latest(self) -> Checkpoint | None:
        """Returns the newest checkpoint that is whole, or None if there is none.

        A damaged one is set aside as `<step>.damaged`, and named in the log and in the result.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                state, facts = _read(self.path(step))
                return Checkpoint(step=step, state=state, metrics=facts["metrics"], damaged=tuple(damaged))
            except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
                damaged.append(f"{self.path(step)}: {error}")
                logging.warning("Damaged checkpoint, going back to the one before: %s: %s", self.path(step), error)
        if damaged:
            raise ValueError(
                "No checkpoint of this run can be read:\n  "
                + "\n  ".join(damaged)
                + "\nRestore one from a backup, or start anew in another folder."
            )
        return None

    def set_aside(self, after_step: int) -> None:
        """Renames checkpoints newer than `after_step`: the run is about to write those steps again."""
        for step in self.steps():
            if step > after_step:
                aside = self.path(step).with_suffix(".damaged")
                shutil.rmtree(aside, ignore_errors=True)
                self.path(step).rename(aside)

    def best(self) -> int | None:
        """Returns the step of the best checkpoint, or None if no metric was recorded."""
        values = {}
        for step in self.steps():
            try:
                metrics = json.loads((self.path(step) / "state.json").read_bytes())["metrics"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if self.best_metric in metrics and np.isfinite(metrics[self.best_metric]):
                values[step] = metrics[self.best_metric]
        if not values:
            return None
        smaller_is_better = str(self.best_metric).endswith(("loss", "error"))
        return min(values, key=lambda step: (values[step] if smaller_is_better else -values[step], step))

    def _remove_old(self) -> None:
        steps = self.steps()
        for step in {*steps[: -self.keep]} - {self.best()}:
            # Renamed first: a folder that is half removed must not look like a checkpoint.
            leaving = self.folder / f".writing-{step:010}-old"
            shutil.rmtree(leaving, ignore_errors=True)
            os.rename(self.path(step), leaving)
            shutil.rmtree(leaving, ignore_errors=True)


def _write(path: Path, write: Any) -> None:
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> tuple[State, dict[str, Any]]:
    facts = json.loads((path / "state.json").read_bytes())
    if _file_sha256(path / "state.npz") != facts["file_sha256"]:
        raise ValueError("state.npz is not what was written (its hash differs)")
    with np.load(path / "state.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}, facts
