"""The summary of a run of the client, and the CSV file of answers."""

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
    """Counts and times of a run, updated with each batch.

    Attributes:
        statuses: Number of photographs with each status.
        retries: Number of retries of all requests.
        latencies_s: Time of the successful attempt of each answered request, in seconds.
        waits_s: The same, with earlier attempts and waits.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    latencies_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def num_images(self) -> int:
        """Number of photographs with a status."""
        return self.statuses.total()

    @property
    def all_ok(self) -> bool:
        """Whether all of them were classified."""
        return self.statuses[OK] == self.num_images

    def lines(self, seconds: float, asked: int) -> list[str]:
        """Returns the table that is printed at the end.

        Images per second count only classified images, since refused ones take no time.

        Args:
            seconds: Time of the run.
            asked: Number of photographs in the folder.
        """
        bad = [(status, count) for status, count in sorted(self.statuses.items()) if status != OK]
        rows = [("images", asked), (OK, self.statuses[OK]), *bad]
        if self.num_images != asked:
            rows.append(("not sent", asked - self.num_images))
        rows += [("requests answered", len(self.latencies_s)), ("retries", self.retries)]
        table = [(name, f"{count:,}") for name, count in rows]
        table += [
            ("seconds", f"{seconds:.1f}"),
            ("images/s", f"{self.statuses[OK] / max(seconds, 1e-9):.1f}"),
        ]
        table += [
            (f"latency p{part}, ms", words) for part, words in _format_percentiles(self.latencies_s)
        ]
        if self.retries:
            table += [
                (f"with retries p{part}, ms", words)
                for part, words in _format_percentiles(self.waits_s)
            ]
        return [f"{name:<22} {value:>12}" for name, value in table]


class AnswerTable:
    """A CSV file with one row per photograph.

    Args:
        file: A file open for writing, with `newline=""`.
        root: Folder to which file names are relative.
        num_classes: Number of classes that the server returns for each photograph.
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
        """Writes a row. Without an answer, the columns of the classes are empty."""
        triples = zip(answer.labels, answer.scores, answer.class_ids, strict=True)
        values = (
            [value for triple in triples for value in triple]
            if answer.status == OK
            else self._nothing
        )
        # Bytes of a name that are not UTF-8 are escaped, so that they do not end the run.
        name = str(path.relative_to(self._root)).encode(errors="backslashreplace").decode()
        self._rows.writerow([name, answer.status, answer.reason, *values])


def _format_percentiles(seconds: Sequence[float]) -> list[tuple[int, str]]:
    if not seconds:
        return [(part, "-") for part in _PERCENTILES]
    found = np.percentile(1e3 * np.array(seconds), _PERCENTILES)
    return [(part, f"{value:.1f}") for part, value in zip(_PERCENTILES, found, strict=True)]
