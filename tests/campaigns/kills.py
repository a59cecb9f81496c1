"""Commands that are killed at each of their file operations: the same command again comes to the
same end.

    python tests/campaigns/kills.py --seed=0 --count=1000
    python tests/campaigns/kills.py --commands=pretrain,sweep --count=20

Each command runs twice without a kill; files that are the same both times are what its result is
compared by, of the others the names. It is then killed just before its first operation, before the
second, and so on (`traced.py` says what an operation is), and once more in the midst of each file
that it writes, as soon as any file is longer than some number of bytes. `--count` of all these
moments are drawn. A kill holds if

1. nothing that has its own name is half written: JSON, arrays, pictures, weights and exports are
  whole;
2. the same command again ends with exit code 0, and with the files of a run that was not killed, no
  more and no fewer, of the same contents; times and speeds are left out;
3. temporary files and folders are gone.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import served
import small_commands
import traced
from tqdm import tqdm

COMMANDS = [*small_commands.COMMANDS]
TIMED = (
    "sweep.md",
    "ablation.md",
    "trials.csv",
    "report.md",
    "report.csv",
    "log.txt",
)  # with seconds, which may be the same by chance


@dataclass(frozen=True)
class Moment:
    """When a command is killed: before an operation, or as soon as a file is longer than `bytes`
    after it.
    """

    command: str
    number: int
    operation: str
    bytes: int | None = None

    def __str__(self) -> str:
        place = "before" if self.bytes is None else f"{self.bytes} bytes after"
        return f"{self.command}, {place} {self.number}, {self.operation}"


@dataclass(frozen=True)
class Expected:
    """What an uninterrupted run leaves: its operations, its files, and which of them are the same
    each time.
    """

    operations: list[str]
    files: Mapping[str, str]
    same: frozenset[str]

    def differences(self, root: Path) -> list[str]:
        """Returns in what a folder differs from it."""
        found = traced.contents(root)
        lines = [f"left: {name}" for name in sorted(found.keys() - self.files.keys())]
        lines += [f"missing: {name}" for name in sorted(self.files.keys() - found.keys())]
        return lines + [
            f"another {name}"
            for name in sorted(self.same & found.keys())
            if found[name] != self.files[name]
        ]


def expected(base: Path, command: str) -> Expected:
    """Runs a command twice."""
    runs = []
    for _ in range(2):
        root = traced.empty(base / "root")
        done = traced.started(base, command).wait()
        if done.code or traced.problems(root):
            raise RuntimeError(
                f"{command} fails without a kill: {done.output} {traced.problems(root)}"
            )
        runs.append((done.operations(), traced.contents(root)))
    (operations, files), (_, again) = runs
    same = {name for name in files if files[name] == again.get(name) and not name.endswith(TIMED)}
    return Expected(operations, files, frozenset(same))


def moments(rng: np.random.Generator, command: str, operations: list[str]) -> Iterator[Moment]:
    for number, operation in enumerate(operations):
        yield Moment(command, number, operation)
        if operation.startswith("open "):
            yield Moment(command, number, operation, int(2 ** rng.uniform(0, 12)))


def fall(base: Path, moment: Moment, goal: Expected) -> list[str]:
    """Kills a command and runs it again; returns what is wrong."""
    root = traced.empty(base / "root")
    plan = {"kill": moment.number} | ({} if moment.bytes is None else {"bytes": moment.bytes})
    killed = traced.started(base, moment.command, **plan).wait()
    if killed.code is None or (killed.code > 0 and moment.bytes is None):
        return [f"it ended with {killed.code}: {killed.output}"]
    found = traced.problems(root)
    again = traced.started(base, moment.command).wait()
    if again.code:
        return [*found, f"again: exit code {again.code}: {again.output.strip()[-600:]}"]
    return [*found, *traced.problems(root), *goal.differences(root)]


@contextmanager
def prepared() -> Iterator[Path]:
    """A folder with the inputs of all commands, and a server for the one that downloads."""
    with tempfile.TemporaryDirectory(prefix="kills_") as folder:
        base = Path(folder)
        traced.prepare(base)
        with served.folder(base / "inputs") as address:
            (base / "inputs" / "url.txt").write_text(f"{address}/model.npz")
            yield base


def parsed(description: str | None, count: int) -> argparse.Namespace:
    """Reads the flags that all campaigns against commands share; `count` is the default of
    `--count`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    return parser.parse_args()


def main() -> int:
    """Returns the exit code."""
    options = parsed(__doc__, count=1000)
    rng, fell, every = np.random.default_rng(options.seed), 0, []
    with prepared() as base:
        goals = {command: expected(base, command) for command in options.commands.split(",")}
        for command, goal in goals.items():
            every += moments(rng, command, goal.operations)
            print(
                f"{command}: {len(goal.operations)} operations; by name alone: {_by_name(goal)}",
                flush=True,
            )
        chosen = np.sort(rng.permutation(len(every))[: options.count])
        for moment in tqdm([every[place] for place in chosen], disable=None):
            if wrong := fall(base, moment, goals[moment.command]):
                fell += 1
                print(f"FELL {moment}: {'; '.join(wrong)}", flush=True)
    counted = Counter(every[place].command for place in chosen)
    print(
        ", ".join(f"{command} {number}" for command, number in counted.items()),
        f"of {len(every)} moments",
    )
    print(f"tried {len(chosen)}, held {len(chosen) - fell}, fell {fell}")
    return int(fell > 0)


def _by_name(goal: Expected) -> str:
    return ", ".join(sorted(goal.files.keys() - goal.same)) or "none"


if __name__ == "__main__":
    sys.exit(main())
