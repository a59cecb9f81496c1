"""The profile of the tests: its sums, and that it measures what a test does."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from profiler import COLUMNS, summarize

pytestmark = pytest.mark.once

TESTS = """
import subprocess, sys, time

def test_itself():
    deadline = time.process_time() + 0.5
    while time.process_time() < deadline:
        pass

def test_another_process():
    code = "import time; data = bytearray(300_000_000)\\nwhile time.process_time() < 0.8: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_rows_are_added_up_by_file_the_longest_first(tmp_path: Path):
    rows = [
        ("tests/a.py", "one", 1.0, 1.0, 0.5, 2, 0.0, 0.0, 100.0),
        ("tests/b.py", "two", 5.0, 2.0, 1.0, 0, 1.0, 3.0, 300.0),
        ("tests/a.py", "three", 2.0, 1.0, 0.5, 1, 0.0, 0.0, 200.0),
    ]
    (tmp_path / "jax").mkdir()
    with open(tmp_path / "jax" / "tests.csv", "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    assert summarize([tmp_path / "jax"]).splitlines()[2:] == [
        "| jax: b.py | 1 | 5 | 2 | 1 | 0 | 1 | 3 | 300 |",
        "| jax: a.py | 2 | 3 | 2 | 1 | 3 | 0 | 0 | 200 |",
    ]


@pytest.mark.slow
def test_time_and_memory_of_sub_processes_are_told_apart(tmp_path: Path):
    (tmp_path / "test_two.py").write_text(TESTS)
    folder = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--confcutdir={folder}",
        "-p",
        "conftest",
        "-q",
        f"--profile={tmp_path}",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "test_two.py")], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "tests.csv", newline="") as file:
        found = {
            row["test"]: {name: float(row[name]) for name in COLUMNS[2:]}
            for row in csv.DictReader(file)
        }
    alone, started = found["test_itself"], found["test_another_process"]
    assert alone["own_cpu"] >= 0.4 and alone["child_cpu"] == alone["processes"] == 0
    assert started["child_cpu"] >= 0.4 and started["processes"] == 1
    assert started["peak_mb"] - alone["peak_mb"] > 250
