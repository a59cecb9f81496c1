"""Where the time and the memory of the tests go: `pytest --profile=FOLDER`, on any number of
workers.

Each test is a row of `tests.csv`: seconds on the clock, processor seconds of this process and of
those that it started, how many it started, seconds of tracing (TensorFlow) and of compiling (JAX),
and the highest memory of the process with all of its children while the test ran.
`python tests/profiler.py FOLDER...` adds the rows up, by file.
"""

import csv
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import warm

COLUMNS = (
    "file",
    "test",
    "seconds",
    "own_cpu",
    "child_cpu",
    "processes",
    "tracing",
    "compiling",
    "peak_mb",
)
SAMPLE_SECONDS = 0.1
MEGABYTE = 1024 * 1024


class Profiler:
    """Measures in the process that runs tests; writes in the one that collects their reports."""

    def __init__(self, folder: Path, is_worker: bool):
        # of pytest-xdist: its figures reach the controller with the reports
        self._is_worker = is_worker
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(
            os.devnull if is_worker else folder / "tests.csv", "w", newline="", encoding="utf-8"
        )
        self._table = csv.DictWriter(self._file, COLUMNS)
        self._table.writeheader()
        self._stopwatches = {"tracing": _time_tracing(), "compiling": _time_compiling()}
        self._memory = _MemorySampler()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._start = self._clocks()
        self._memory.restart()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        if call.when == "teardown":
            now = self._clocks()
            figures = {name: now[name] - self._start[name] for name in now} | self._memory.figures()
            item.user_properties.append(
                ("profile", {name: round(value, 3) for name, value in figures.items()})
            )
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and not self._is_worker:
            file, _, test = report.nodeid.partition("::")
            self._table.writerow(
                {"file": file, "test": test, **dict(report.user_properties).get("profile", {})}
            )
            self._file.flush()

    def pytest_sessionfinish(self) -> None:
        self._memory.stop()
        self._file.close()

    def _clocks(self) -> dict[str, float]:
        times = os.times()
        clocks = {
            "seconds": time.perf_counter(),
            "own_cpu": times.user + times.system,
            "child_cpu": times.children_user + times.children_system + warm.cpu_seconds,
        }
        return clocks | {name: read() for name, read in self._stopwatches.items()}


class _MemorySampler:
    """The memory of this process and of everything below it, looked at ten times a second."""

    def __init__(self) -> None:
        self._peak, self._seen = 0, set()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def restart(self) -> None:
        self._peak, self._seen = 0, set()
        self._sample()

    def figures(self) -> dict[str, float]:
        self._sample()
        return {"processes": len(self._seen), "peak_mb": self._peak / MEGABYTE}

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        here = psutil.Process()
        children = here.children(recursive=True)
        self._seen.update(child.pid for child in children)
        self._peak = max(self._peak, sum(_resident(process) for process in (here, *children)))


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has ended
        return 0


def _time_tracing() -> Callable[[], float]:
    if "tensorflow" not in sys.modules or sys.modules["tensorflow"] is None:
        return lambda: 0.0
    from tensorflow.python.framework import func_graph

    trace, total, depth = func_graph.func_graph_from_py_func, 0.0, 0

    def timed(*arguments, **options):
        nonlocal total, depth
        start, depth = time.perf_counter(), depth + 1
        try:
            return trace(*arguments, **options)
        finally:
            depth -= 1
            if not depth:  # a function traced inside another is part of it
                total += time.perf_counter() - start

    func_graph.func_graph_from_py_func = timed
    return lambda: total


def _time_compiling() -> Callable[[], float]:
    if os.environ.get("KERAS_BACKEND") != "jax":
        return lambda: 0.0
    from jax import monitoring

    total = 0.0

    def add(event: str, seconds: float, **_: object) -> None:
        nonlocal total
        if event.startswith("/jax/core/compile/"):
            total += seconds

    monitoring.register_event_duration_secs_listener(add)
    return lambda: total


def summarize(folders: list[Path]) -> str:
    """A Markdown table with a row for each file, the most expensive first, and their sum."""
    files: dict[str, list[dict[str, float]]] = defaultdict(list)
    for folder in folders:
        with open(folder / "tests.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                figures = {name: float(row[name] or 0) for name in COLUMNS[2:]}
                files[f"{folder.name}: {row['file'].removeprefix('tests/')}"].append(figures)
    sums = ("seconds", "own_cpu", "child_cpu", "processes", "tracing", "compiling")
    totals = {
        name: [
            *(sum(row[column] for row in rows) for column in sums),
            max(row["peak_mb"] for row in rows),
        ]
        for name, rows in files.items()
    }
    lines = [
        "| file | tests | seconds | own CPU | CPU of sub-processes | sub-processes | tracing | "
        "compiling | peak MB |"
    ]
    lines.append("|---|" + "---|" * 8)
    for name, figures in sorted(totals.items(), key=lambda entry: -entry[1][0]):
        lines.append(
            "| "
            + " | ".join([name, str(len(files[name])), *(f"{figure:.0f}" for figure in figures)])
            + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(summarize([Path(name) for name in sys.argv[1:]]))
