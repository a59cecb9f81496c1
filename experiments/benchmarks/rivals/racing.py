"""Alternating measurements of several rivals: load on the machine affects all of them equally."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rivals.cells import Cell
from rivals.memory import available_megabytes


@dataclass
class Result:
    """Measurements of a rival on a cell.

    Attributes:
        rates: Images per second of each measurement; empty if the rival is absent.
        limits: GFLOP/s of a matrix product in its framework, one for each measurement.
        peak_mb: Peak memory in MB.
        ready_s: Seconds from the start of its process to the end of its first step.
        absent: Why nothing was measured, or "".
    """

    rates: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    ready_s: float = 0.0
    absent: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Half of the interquartile range, relative to the median."""
        if len(self.rates) < 3:
            return 0.0
        low, _, high = statistics.quantiles(self.rates, n=4, method="inclusive")
        return (high - low) / 2 / self.median


class Worker:
    """A process that runs a module of this folder and answers in lines of JSON. Call `end`, or use
    it in a `with` statement.
    """

    def __init__(self, module: str, *arguments: str, **environment: str):
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        self._messages = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._messages.close()

    def answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._messages.seek(0)
            last = (self._messages.read().strip().splitlines() or ["no message"])[-1]
            return {"absent": f"its process ended with exit code {code}: {last[:200]}"}
        return json.loads(line)

    def ask(self, question: str) -> dict:
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` reports the end of the process
        return self.answer()


def race(
    cell: Cell, rivals: Sequence[str], *, repeats: int, seconds: float, **environment: str
) -> dict[str, Result]:
    """Measures all of `rivals` on a cell, each `repeats` times, every other time in the reverse
    order.

    If memory suffices for all processes they stay alive between their measurements; else each
    measurement starts a new one.

    Args:
        cell: The cell.
        rivals: Keys of `cells.NEEDS`.
        repeats: Number of measurements of each rival.
        seconds: Minimum time of a measurement, which takes at least one step.
        **environment: Environment variables of the processes.

    Returns:
        The measurements of each rival.
    """
    results = {rival: Result() for rival in rivals}
    alive: dict[str, Worker] = {}
    keeps = True
    try:
        for turn in range(repeats):
            for rival in list(rivals)[:: -1 if turn % 2 else 1]:
                result = results[rival]
                if result.absent:
                    continue
                if rival not in alive:
                    alive[rival] = Worker("rivals.worker", rival, cell.to_json(), **environment)
                    _take_first(alive[rival], result)
                if not result.absent:
                    _take_turn(alive[rival], result, seconds)
                waiting = sum(not other.rates and not other.absent for other in results.values())
                keeps = keeps and available_megabytes() > 1.2 * result.peak_mb * max(waiting, 1)
                if result.absent:
                    alive.pop(rival).end()
                while alive and not keeps:
                    alive.popitem()[1].end()
    finally:
        for worker in alive.values():
            worker.end()
    return results


def _take_first(worker: Worker, result: Result) -> None:
    first = worker.answer()
    result.absent = first.get("absent", "")
    if not result.absent:
        result.ready_s = max(result.ready_s, first["ready_s"])


def _take_turn(worker: Worker, result: Result, seconds: float) -> None:
    for question in (f"turn {seconds}", "limit"):
        found = worker.ask(question)
        result.absent = found.get("absent", "")
        if result.absent:
            return
        if question == "limit":
            result.limits.append(found["gflop_per_s"])
        else:
            # of the first measurement only: later ones would include the matrices of the limit
            result.peak_mb = result.peak_mb or found["peak_mb"]
            result.rates.append(found["images_per_s"])
