"""The trials of a study and their order: the learning rates of all arms, then the seeds. Before
them, the starts that they fine-tune are trained.

What lives here: which trials are left, given the rows of the finished ones; their rows; the
repetition of a sample of them. What does not: the work of one trial (`ablations/runs.py`), the
processes (`command_line/trials.py`), and the flags (`ablations.py`).

The names of trials are `<start>/seed_<n>`, `<arm>/rate_<rate>` and `<arm>/seed_<n>`. Seed n of an
arm fine-tunes seed n of its start; a rate is tried from seed 0.
"""

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command_line.trials import Pool, Trial, read_json

from ablations.arms import (
    Config,
    StartConfig,
    Study,
    make_rate_config,
    make_seed_config,
    make_start_config,
)
from ablations.processor import explain_change
from ablations.rates import find_rate, find_tried, list_stuck, next_rates
from ablations.rows import COLUMNS, FEWSHOT, METRICS, TEST, Results, Row, key_of
from ablations.runs import NEW_POSITIONS, RESULT, check_run, remove_checkpoints
from keras_vit.train import Diverged
from keras_vit.weights.secrets import join_command
from keras_vit.writing import table, write_json

COMPARED = ("state_sha256", TEST, FEWSHOT)  # by `repeat`
AGAIN, SAMPLE = "again", "sample.json"  # folder of the repeated trials, and their keys in it


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The trials of a study.

    Attributes:
        study: The study.
        folder: Folder of the runs.
        results: Rows of the finished trials, and the plan.
        command: Arguments of `python` that start the study, without a folder.
        shown_command: The same, without paths of this machine.
    """

    study: Study
    folder: Path
    results: Results
    command: Sequence[str]
    shown_command: Sequence[str]

    def run_all(self, pool: Pool, seeds: int) -> None:
        """Runs the trials that have no row.

        Raises:
            ValueError: If the best rate of an arm is at the edge of a grid that was widened too
                often.
            Diverged: If a start diverged.
            Stopped, ChildProcessError: As `Pool.run`.
        """
        while rates := self.trials_of_rates():
            self.run(pool, rates)
        # all arms with one seed, then with the next, so that they can be compared before the end
        self.run(pool, self.trials_of_seeds(seeds))

    def trials_of_rates(self) -> list[Trial]:
        """Returns the trials to do next so that each arm gets its learning rate."""
        rows = self.results.rows()
        return [
            self.make_trial(name, "rate", rate)
            for name, arm in self.study.arms.items()
            if not arm.rate_of
            for rate in next_rates(arm.config.run.optimizer.learning_rate, find_tried(rows, name))
        ]

    def trials_of_seeds(self, seeds: int) -> list[Trial]:
        """Returns the trials of all arms and seeds, each with the winning learning rate of the arm.

        Raises:
            ValueError: Lists all arms whose grid was widened too often.
        """
        rows = self.results.rows()
        if stuck := list_stuck(self.study, rows):
            raise ValueError("\n".join(stuck))
        rates = {name: find_rate(self.study, rows, name) for name in self.study.arms}
        return [
            self.make_trial(name, "seed", rate, seed)
            for seed in range(seeds)
            for name, rate in rates.items()
        ]

    def make_trial(self, arm: str, kind: str, rate: float, seed: int = 0) -> Trial:
        """Returns a trial of an arm or of a start.

        Args:
            arm: Name of the arm or of the start.
            kind: "start", "rate" or "seed".
            rate: Its learning rate.
            seed: Its seed; 0 for a trial of the rates.
        """
        tries = {"arm": arm, "kind": kind, "learning_rate": rate, "seed": seed}
        name = f"{arm}/rate_{rate!r}" if kind == "rate" else f"{arm}/seed_{seed}"
        return Trial(
            name=name,
            folder=self.folder / name,
            command=(*self.command, f"--workdir={self.folder}", *_select(name, tries)),
            tries=tries,
            result=RESULT,
            metric=METRICS[kind],
        )

    def make_config(self, trial: Trial) -> Config | StartConfig:
        """Returns the config of a trial. The weights of an arm with a start are those of the start
        with the same seed, or the file that `renew_positions` makes of them.
        """
        name, kind, rate, seed = key_of(trial.tries)
        if kind == "start":
            return make_start_config(self.study.starts[name], seed)
        arm = self.study.arms[name]
        config = (
            make_rate_config(arm.config, rate)
            if kind == "rate"
            else make_seed_config(arm.config, rate, seed)
        )
        if not arm.start:
            return config
        new = trial.folder / NEW_POSITIONS
        weights = new if arm.new_positions else self.find_start_weights(name, seed)
        return replace(config, weights=str(weights))

    def find_start_weights(self, arm: str, seed: int) -> Path:
        """Returns the path of the weights of the start of an arm."""
        return self.folder / self.study.arms[arm].start / f"seed_{seed}" / "model.npz"

    def find_starts(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the trials of the starts that these trials of arms fine-tune, each once."""
        needed = dict.fromkeys(
            (self.study.arms[trial.tries["arm"]].start, trial.tries["seed"]) for trial in trials
        )
        return [
            self.make_trial(
                name, "start", self.study.starts[name].run.optimizer.learning_rate, seed
            )
            for name, seed in needed
            if name
        ]

    def run(self, pool: Pool, trials: Sequence[Trial]) -> None:
        """Runs those of the trials that have no row, and records each as soon as it ends.

        A trial whose process was killed after it had finished has no row yet: it gets one, and is
        not run again. Starts are trained if a trial needs them, or if their row was lost.
        """
        every_start = self.find_starts(trials)
        trials = [trial for trial in trials if self.results.find(trial.tries) is None]
        needed = {start.name for start in self.find_starts(trials)}
        starts = [
            start
            for start in every_start
            if start.name in needed or self.results.find(start.tries) is None
        ]
        if not trials and not starts:
            return
        try:
            self.train_starts(pool, starts)
        finally:
            for start in starts:
                self.record(start)
        self.check_starts(starts)
        try:
            pool.run(trials, self.folder)
        finally:
            for trial in trials:
                self.record(trial)

    def record(self, trial: Trial) -> None:
        """Adds the row of a trial, if it is finished or has diverged, unless there is one."""
        if not trial.is_over():
            return
        # of a run that was killed after it wrote its result and before it removed them
        remove_checkpoints(trial.folder)
        if self.results.find(trial.tries) is None:
            self.results.record(self.make_row(trial))

    def make_row(self, trial: Trial) -> Row:
        """Returns the row of a trial that is over.

        Raises:
            ValueError: If the run in its folder has another config, as it belongs to another state
                of the study, or `--only` was called with other settings.
        """
        try:
            check_run(self.make_config(trial), trial.folder)
        except ValueError as error:
            raise ValueError(
                f"{error} Or remove this one: then the study runs the trial again."
            ) from error
        measured, notes = trial.results(), trial.notes()
        shown = ["python", *self.shown_command, *_select(trial.name, trial.tries)]
        # the rest of the message names a checkpoint on this machine
        lost = None if measured else notes["diverged"].partition(". ")[0].rstrip(".") + "."
        return {
            **{name: measured.get(name) for name in COLUMNS},
            **trial.tries,
            "seconds": notes.get("seconds"),
            "cpu_seconds": notes.get("cpu_seconds"),
            "diverged": lost,
            "command": join_command(shown),
        }

    def repeat(self, pool: Pool, count: int) -> bool:
        """Runs a random sample of the tested trials again, in the folder `again`, and prints how
        they compare with their rows. If interrupted, the same call resumes the same sample; after a
        comparison in which all are the same, the next call removes its runs and draws another one.

        Args:
            pool: Runs the trials. Its results are not recorded.
            count: Number of trials; all if there are fewer.

        Returns:
            Whether all are the same.

        Raises:
            ValueError: If no trial is tested yet, or a sample of another size is unfinished or
                differed.
        """
        again = replace(self, folder=self.folder / AGAIN)
        sample = self.draw_sample(again.folder / SAMPLE, count)
        trials = [again.make_trial(*key) for key in sample]
        starts = again.find_starts(trials)
        again.train_starts(pool, starts)
        pool.run(trials, again.folder)
        lines, is_same, reasons = [], True, set()
        for trial in [*starts, *trials]:
            found, row = trial.results(), self.results.find(trial.tries) or dict.fromkeys(COLUMNS)
            equal = [found.get(name) == row[name] for name in COMPARED]
            is_same &= all(equal)
            if found and not all(equal):
                reasons.add(explain_change(row["processor"], found.get("processor")))
            lines.append([trial.name, *("same" if each else "DIFFERENT" for each in equal)])
        print(table(["trial", *(name.replace("_", " ") for name in COMPARED)], lines), flush=True)
        for reason in sorted(reasons - {""}):
            print(reason, flush=True)
        if is_same:
            (again.folder / SAMPLE).unlink()
        else:
            print(
                f"The runs are kept in {again.folder}. Remove it to draw another sample.",
                flush=True,
            )
        return is_same

    def draw_sample(self, path: Path, count: int) -> list[tuple[Any, ...]]:
        """Returns the keys of the trials that `repeat` runs again.

        Args:
            path: File of the sample. If it exists, its sample is unfinished, or differed, and is
                returned. Otherwise its folder is emptied, and a new sample is drawn and written.
            count: Number of trials.

        Raises:
            ValueError: As `repeat`.
        """
        keys = [key_of(row) for row in self.results.rows() if row[TEST] is not None]
        if not keys:
            raise ValueError(
                f"{self.results.table} has no tested trial yet. Run the study without `--again` first."
            )
        count = min(count, len(keys))
        there = read_json(path).get("trials")
        if there is None:
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            there = random.sample(keys, count)
            write_json(path, {"trials": there})
        if len(there) != count:
            raise ValueError(
                f"{path.parent} holds another repetition, of {len(there)} trials, which is unfinished "
                f"or differed: call --again={len(there)}, or remove this folder."
            )
        return [tuple(key) for key in there]

    def train_starts(self, pool: Pool, starts: Sequence[Trial]) -> None:
        """Trains the starts whose weights are not in the folder.

        Raises:
            Diverged: If one diverged. The message names all of them.
        """
        if starts:
            pool.run(starts, self.folder)
        lost = [start for start in starts if start.is_over() and not start.results()]
        if lost:
            raise Diverged(
                "\n".join(
                    f"{start.name} diverged, which arms of the study fine-tune. "
                    f"{start.notes()['diverged']}"
                    for start in lost
                )
            )

    def check_starts(self, starts: Sequence[Trial]) -> None:
        """Checks that the weights of the starts are those that the finished trials fine-tuned.

        Raises:
            ValueError: If one has other weights than its row states.
        """
        for start in starts:
            row, found = self.results.find(start.tries), start.results()
            ours = found.get("state_sha256")
            if row is not None and row["state_sha256"] != ours:
                parts = (
                    f"{start.folder} has other weights than those from which the finished trials "
                    f"started: state sha256 {ours} instead of {row['state_sha256']}.",
                    explain_change(row["processor"], found.get("processor")),
                    "Copy that folder from the machine of these trials, or start the study in "
                    "another `--results`.",
                )
                raise ValueError(" ".join(part for part in parts if part))


def _select(name: str, tries: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the flags that perform a single trial."""
    rate = [f"--rate={tries['learning_rate']!r}"] if tries["kind"] == "seed" else []
    return (f"--only={name}", *rate)
