"""The results of a study, as two files that can be committed: `trials.csv` and `study.json`.

What lives here: a row for each finished trial, and the plan of the study. Both are independent of
the machine: they contain no path, and floats are written in full. A trial that has a row is not run
again, on whatever machine. What does not: the folders of the runs (`command_line/trials.py`), and
the report that is made from these files (`ablations/report.py`).

Rows are sorted: the starts, then the rates, then the seeds, each in the order of the plan. So the
bytes of the file do not depend on the order in which trials end.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from command_line.trials import find_plan_differences, read_json

from keras_vit.writing import write_csv, write_json

Row = Mapping[str, Any]  # values by column; None if a value is not known
HELD_OUT, TEST, FEWSHOT = "held_out_accuracy", "test_accuracy", "fewshot_accuracy"

COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "arm": str,
    "kind": str,
    "learning_rate": float,
    "seed": int,
    HELD_OUT: float,
    TEST: float,
    FEWSHOT: float,  # mean of the draws
    "fewshot_draws": json.loads,
    "shots": int,
    "training_images": int,
    "test_images": int,
    "steps": int,
    "parameters": int,
    "images_per_second": float,
    "seconds": float,
    "cpu_seconds": float,  # of all cores
    "processor": str,
    "state_sha256": str,
    "diverged": str,
    "command": str,
}
KEY = ("arm", "kind", "learning_rate", "seed")
METRICS = {"start": FEWSHOT, "rate": HELD_OUT, "seed": TEST}  # of a finished trial, by kind
KINDS = tuple(METRICS)
FREE = ("seeds",)  # entries of the plan that may change: more seeds can be added later


class Results:
    """The folder of `trials.csv` and `study.json`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.table, self.plan_file = folder / "trials.csv", folder / "study.json"

    def rows(self) -> list[Row]:
        """Returns the rows of the finished trials.

        Raises:
            ValueError: If the table has other columns, two rows for a trial, or a row without an
                accuracy between 0 and 1 of a run that did not diverge.
        """
        if not self.table.exists():
            return []
        with open(self.table, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            lines = [*reader]
            if reader.fieldnames != [*COLUMNS] or any(
                None in (*line, *line.values()) for line in lines
            ):
                raise ValueError(
                    f"{self.table} must have the columns {', '.join(COLUMNS)}. Found: "
                    f"{', '.join(reader.fieldnames or ())}. Restore the file."
                )
        try:
            rows = [_parse(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"{self.table}: {error} Restore the file.") from error
        keys = [key_of(row) for row in rows]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"{self.table} has two rows for {twice[0]}. Remove one of them.")
        return rows

    def find(self, trial: Mapping[str, Any]) -> Row | None:
        """Returns the row of a trial, or None if it is not finished.

        Args:
            trial: Its values of `KEY`.
        """
        return next((row for row in self.rows() if key_of(row) == key_of(trial)), None)

    def record(self, row: Row) -> None:
        """Adds the row of a finished trial, unless the table has one."""
        rows = self.rows()
        if key_of(row) in map(key_of, rows):
            return
        plan = self.plan()
        names = [*(plan.get("starts") or ()), *plan["arms"]]
        rows = sorted(
            [*rows, row],
            key=lambda row: (
                KINDS.index(row["kind"]),
                names.index(row["arm"]),
                row["seed"],
                row["learning_rate"],
            ),
        )
        lines = [[_format(row.get(name)) for name in COLUMNS] for row in rows]
        write_csv(self.table, [*COLUMNS], lines)

    def plan(self) -> dict[str, Any]:
        """Returns the plan of the study; empty if there is none."""
        return read_json(self.plan_file)

    def check_plan(self, plan: Mapping[str, Any], *, free: Sequence[str] = FREE) -> None:
        """Checks that the folder can be used for this plan.

        Raises:
            ValueError: If it holds rows of another plan, whose differing fields the message lists,
                or of more seeds.
        """
        rows = self.rows()
        if not rows:
            return
        if lines := find_plan_differences(self.plan(), plan, free=free):
            raise ValueError(
                "\n".join(
                    [
                        f"{self.folder} holds the results of another ablation:",
                        *lines,
                        "Choose another `--results`.",
                    ]
                )
            )
        if (count := 1 + max(row["seed"] for row in rows)) > plan["seeds"]:
            raise ValueError(
                f"{self.folder} has runs of {count} seeds, and a smaller number would leave some of "
                f"them out: pass --seeds={count}. Received: {plan['seeds']}."
            )

    def claim(self, plan: Mapping[str, Any]) -> None:
        """Writes the plan into the folder.

        Raises: As `check_plan`.
        """
        self.check_plan(plan)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.plan_file, json.loads(json.dumps(plan, default=repr)))


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what identifies a trial."""
    return tuple(row[name] for name in KEY)


def _parse(line: Mapping[str, str]) -> Row:
    """Returns the values of a line.

    Raises:
        ValueError: If one cannot be read, or the accuracies cannot be those of a trial.
    """
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, parse in COLUMNS.items():
        try:
            row[name] = parse(line[name]) if line[name] != "" else None
        except ValueError as error:
            raise ValueError(f"{line[name]!r} is no {name} ({line['command']}).") from error
    if row["kind"] not in METRICS:
        raise ValueError(f"{row['kind']!r} is no kind: one of {', '.join(METRICS)}.")
    if None in key_of(row):
        raise ValueError(f"the row of {line['command']!r} needs {', '.join(KEY)}.")
    for name in METRICS.values():
        # not a number is not between them either
        if row[name] is not None and not 0 <= row[name] <= 1:
            raise ValueError(f"{name} must be between 0 and 1: {row[name]} ({line['command']}).")
    if row[METRICS[row["kind"]]] is None and not row["diverged"]:
        raise ValueError(
            f"the row of {line['command']!r} has neither {METRICS[row['kind']]} nor `diverged`."
        )
    return row


def _format(value: Any) -> Any:
    return "" if value is None else json.dumps(value) if isinstance(value, list) else value
