"""Checkpoints: the whole state of a run, written atomically and verified when read.

A checkpoint is a folder `checkpoints/<step>/` with `state.npz` (every array) and `state.json`
(step, hashes, metrics). It is written under a temporary name and renamed when it is complete and on
disk, so that a killed process leaves the previous checkpoint intact. The newest checkpoints and the
best one are kept.
"""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """The content of a checkpoint.

    Attributes:
        step: Number of updates before it was saved.
        state: {name: array}.
        metrics: Results of the evaluation at that step, if there was one.
        window: Values of the steps since the last row of metrics; see `keras_vit.train.window`.
        damaged: Newer checkpoints that could not be read, each with the reason.
    """

    step: int
    state: State = field(repr=False)
    metrics: Mapping[str, float]
    window: Sequence[Sequence[float]] = ()
    damaged: tuple[str, ...] = ()


def state_of(learner: Learner, model: keras.Model) -> State:
    """Returns the state that a run needs to resume: weights, optimizer, averages, seeds."""
    return {
        name: keras.ops.convert_to_numpy(v.value)
        for name, v in _name_variables(learner, model).items()
    }


def restore_state(learner: Learner, model: keras.Model, state: State) -> None:
    """Assigns a state to the variables of a model and its optimizer.

    Raises:
        ValueError: If names or shapes differ. Nothing is assigned then.
    """
    variables = _name_variables(learner, model)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    stored = {name: array.shape for name, array in state.items()}
    if shapes != stored:
        names = sorted(name for name in {*shapes, *stored} if shapes.get(name) != stored.get(name))
        lines = [
            f"  {name}: run {shapes.get(name)}, checkpoint {stored.get(name)}" for name in names[:8]
        ]
        raise ValueError(
            f"The checkpoint belongs to another model or optimizer: {len(names)} of {len(shapes)} "
            "variables differ:\n" + "\n".join(lines)
        )
    for name, variable in variables.items():
        variable.assign(state[name])


def find_not_finite(learner: Learner, model: keras.Model) -> list[str]:
    """Returns the names of the variables that contain NaN or infinity."""
    named = _name_variables(learner, model).items()
    return _find_not_finite(
        (name, keras.ops.convert_to_numpy(variable.value)) for name, variable in named
    )


def _find_not_finite(arrays: Iterable[tuple[str, np.ndarray]]) -> list[str]:
    return [name for name, array in arrays if not np.isfinite(array).all()]


def state_sha256(state: State) -> str:
    """Returns the SHA-256 of the names, dtypes, shapes and bytes of a state."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _name_variables(learner: Learner, model: keras.Model) -> dict[str, keras.Variable]:
    # Seeds and optimizer variables get numbers, because their names in Keras depend on the process.
    named = {
        f"weights/{name}": variable for name, variable in named_variables(model.layers).items()
    }
    named |= {f"seeds/{number:03}": seed for number, seed in enumerate(learner.seeds)}
    variables = learner.optimizer.variables
    return named | {f"optimizer/{number:04}/{v.name}": v for number, v in enumerate(variables)}


class Checkpoints:
    """The checkpoints in the folder of a run.

    Args:
        workdir: Folder of the run.
        keep: Number of newest checkpoints to keep.
        best_metric: Metric whose best checkpoint is kept too; None to keep the newest alone. Lower
            is better for names that end in "loss" or "error".
        is_writer: Whether this process saves. If so, it removes incomplete checkpoints of killed
            processes.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        keep: int = 2,
        best_metric: str | None = None,
        is_writer: bool = True,
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
        """Returns the steps of the complete checkpoints, in ascending order."""
        return sorted(
            int(path.name) for path in self.folder.iterdir() if re.fullmatch(r"\d{10}", path.name)
        )

    def path(self, step: int) -> Path:
        return self.folder / f"{step:010}"

    def save(
        self,
        step: int,
        state: State,
        metrics: Mapping[str, float] | None = None,
        window: Sequence[Sequence[float]] = (),
    ) -> Path:
        """Writes a checkpoint, then removes those that are no longer kept.

        If there is a checkpoint of this step already, only its missing metrics are added.

        Raises:
            ValueError: If the state or the metrics contain NaN or infinity. Nothing is written.
            OSError: If the disk is full or not writable. Older checkpoints are kept.
        """
        wrong = _find_not_finite(
            [*state.items(), *((name, np.array(value)) for name, value in (metrics or {}).items())]
        )
        if wrong:
            raise ValueError(
                f"The checkpoint of step {step} is not saved: NaN or infinity in "
                f"{', '.join(wrong[:8])}."
            )
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
                "window": [list(row) for row in window],
                "state_sha256": state_sha256(state),
                "file_sha256": _file_sha256(writing / "state.npz"),
            }
            _write_facts(writing / "state.json", facts)
            os.rename(writing, target)
            _sync(self.folder)
        except OSError:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        self._remove_old()
        return target

    def _add_metrics(self, path: Path, metrics: Mapping[str, float]) -> None:
        """Adds metrics to a checkpoint without any: a stopped run is evaluated when it resumes."""
        facts = _read_facts(path)
        if metrics and not facts["metrics"]:
            new = path / ".state.json"
            _write_facts(new, {**facts, "metrics": dict(metrics)})
            os.replace(new, path / "state.json")

    def latest(self) -> Checkpoint | None:
        """Returns the newest intact checkpoint, or None if there are no checkpoints.

        Newer damaged checkpoints are named in the log and in the result.

        Raises:
            ValueError: If there are checkpoints, and all of them are damaged.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                return replace(self.read(step), damaged=tuple(damaged))
            except (OSError, ValueError) as error:
                damaged.append(f"{self.path(step)}: {error}")
                logging.warning(
                    "The checkpoint is damaged; trying the previous one: %s: %s",
                    self.path(step),
                    error,
                )
        if damaged:
            raise ValueError(
                "No checkpoint of this run can be read:\n  "
                + "\n  ".join(damaged)
                + "\nRestore one from a backup, or start a new run in another folder."
            )
        return None

    def read(self, step: int) -> Checkpoint:
        """Returns the checkpoint of a step.

        Raises:
            OSError: If it cannot be read.
            ValueError: If its content differs from what was written, or is not finite.
        """
        path = self.path(step)
        facts = _read_facts(path)
        if _file_sha256(path / "state.npz") != facts["file_sha256"]:
            raise ValueError("state.npz was changed after it was written (its hash differs)")
        try:
            with np.load(path / "state.npz", allow_pickle=False) as archive:
                state = {name: archive[name] for name in archive.files}
        except (EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(f"state.npz is not an archive of arrays: {error}") from error
        if wrong := _find_not_finite(state.items()):
            raise ValueError(f"state.npz has NaN or infinity in {', '.join(wrong[:3])}")
        return Checkpoint(step=step, state=state, metrics=facts["metrics"], window=facts["window"])

    def set_aside(self, after_step: int) -> None:
        """Renames checkpoints newer than `after_step`, which the run will write again.

        Also removes checkpoints that are no longer kept: a process may have been killed after it
        wrote a checkpoint and before it removed an old one.
        """
        for step in self.steps():
            if step > after_step:
                aside = self.path(step).with_suffix(".damaged")
                shutil.rmtree(aside, ignore_errors=True)
                self.path(step).rename(aside)
        self._remove_old()

    def best(self) -> int | None:
        """Returns the step of the best checkpoint, or None if none has the metric."""
        values = {}
        for step in self.steps():
            try:
                metrics = _read_facts(self.path(step))["metrics"]
            except (OSError, ValueError) as error:
                logging.warning(
                    "The checkpoint is damaged and cannot be the best one: %s: %s",
                    self.path(step),
                    error,
                )
                continue
            if self.best_metric in metrics:
                values[step] = metrics[self.best_metric]
        if not values:
            return None
        smaller_is_better = str(self.best_metric).endswith(("loss", "error"))
        return min(
            values, key=lambda step: (values[step] if smaller_is_better else -values[step], step)
        )

    def _remove_old(self) -> None:
        steps = self.steps()
        for step in {*steps[: -self.keep]} - {self.best()}:
            # Rename first, so that a partly removed folder never looks like a checkpoint.
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


def _write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    whole = {**facts, "sha256": _sha256_of(facts)}
    _write(path, lambda file: file.write(json.dumps(whole, indent=1, allow_nan=False).encode()))


_FIELDS = {"step": int, "metrics": dict, "window": list, "state_sha256": str, "file_sha256": str}


def _read_facts(folder: Path) -> dict[str, Any]:
    """Reads `state.json` and checks its hash, its fields and its step."""
    facts = json.loads((folder / "state.json").read_bytes())
    if not isinstance(facts, dict) or facts.pop("sha256", None) != _sha256_of(facts):
        raise ValueError("state.json was changed after it was written (its hash differs)")
    if any(type(facts.get(name)) is not kind for name, kind in _FIELDS.items()):
        raise ValueError("state.json does not have the fields of a checkpoint")
    if facts["step"] != int(folder.name):
        raise ValueError(f"it was written for step {facts['step']}")
    return facts


def _sha256_of(facts: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in facts.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
