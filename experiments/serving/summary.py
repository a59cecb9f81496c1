"""What a run of the client leaves: a line for each photograph without an answer, a table, a CSV
file.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from answers import OK, Answer

_PERCENTILES = (50, 95, 99)


@dataclass(kw_only=True, slots=True)
class Summary:
    """Counts and times of a run, as they come in.

    Attributes:
        statuses: How many photographs have which status.
        retries: Of all requests.
        latencies_s: Of each request that was answered, the seconds of the try that went well.
        waits_s: The same with all tries before it and the waits between.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    latencies_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def num_images(self) -> int:
        """Photographs of which the fate is known."""
        return self.statuses.total()

    @property
    def all_ok(self) -> bool:
        """Whether each of them was answered."""
        return self.statuses[OK] == self.num_images

    def lines(self, seconds: float, asked: int) -> list[str]:
        """Returns the table at the end. Images per second are those that were answered: to refuse
        one takes no time.

        Args:
            seconds: That the run took.
            asked: Photographs that there were.
        """
        bad = [(status, count) for status, count in sorted(self.statuses.items()) if status != OK]
        rows = [("images", asked), (OK, self.statuses[OK]), *bad]
        if self.num_images != asked:
            rows.append(("not asked about", asked - self.num_images))
        rows += [("requests answered", len(self.latencies_s)), ("retries", self.retries)]
        table = [(name, f"{count:,}") for name, count in rows]
        table += [
            ("seconds", f"{seconds:.1f}"),
            ("images/s", f"{self.statuses[OK] / max(seconds, 1e-9):.1f}"),
        ]
        table += [(f"latency p{part}, ms", words) for part, words in _percentiles(self.latencies_s)]
        if self.retries:
            table += [
                (f"with retries p{part}, ms", words) for part, words in _percentiles(self.waits_s)
            ]
        return [f"{name:<22} {value:>12}" for name, value in table]


class AnswerTable:
    """A CSV file that grows by a row for each photograph, in the order in which they come.

    Args:
        file: Open for writing, with `newline=""`.
        root: Folder that the names of files are relative to.
        num_classes: Classes that the server names for each.
    """

    def __init__(self, file: TextIO, *, root: Path, num_classes: int):
        self._rows, self._root = csv.writer(file), root
        self._nothing = [""] * 3 * num_classes
        names = [
            f"{name}_{place}"
            for place in range(1, num_classes + 1)
            for name in ("label", "score", "class_id")
        ]
        self._rows.writerow(["file", "status", "reason", *names])

    def add(self, path: Path, answer: Answer) -> None:
        """Writes a row; without an answer, the columns of the classes stay empty."""
        triples = zip(answer.labels, answer.scores, answer.class_ids, strict=True)
        values = (
            [value for triple in triples for value in triple]
            if answer.status == OK
            else self._nothing
        )
        # A name that is no UTF-8 is written as bytes in backslashes rather than ending the run.
        name = str(path.relative_to(self._root)).encode(errors="backslashreplace").decode()
        self._rows.writerow([name, answer.status, answer.reason, *values])


def _percentiles(seconds: Sequence[float]) -> list[tuple[int, str]]:
    if not seconds:
        return [(part, "-") for part in _PERCENTILES]
    found = np.percentile(1e3 * np.array(seconds), _PERCENTILES)
    return [(part, f"{value:.1f}") for part, value in zip(_PERCENTILES, found, strict=True)]
