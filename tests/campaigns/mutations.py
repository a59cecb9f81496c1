"""Faults put into the package one at a time: each must be noticed by the tests that run before a
commit.

    python tests/campaigns/mutations.py [--only=SUBSTRING] [--count=N] [--seed=S]

Each row of `mutation_table.py` replaces one piece of text in a copy of the package and runs the
named tests there, without the slow ones. A test that fails counts only if it passes on the copy as
it is. The exit code is 1 if a fault survived, 2 if the table does not fit the package any more: a
piece of text must occur exactly once.
"""

import argparse
import atexit
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("keras_vit", "experiments", "tests", "docs")
QUICK = "not slow and not network and not accelerator"
HUNG_SECONDS = 900  # a fault may keep a test from ending, which is noticed too
WARM = hasattr(os, "fork") and sys.platform == "linux"


class Copy:
    """A copy of the package in a temporary folder, into which faults are put and taken out
    again.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mutations_"))
        atexit.register(self._remove, os.getpid())
        (self.root / "tmp").mkdir()
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(ROOT / name, self.root / name, ignore=ignored)
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy(path, self.root)
        self._changes = 0

    def _remove(self, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(self.root, ignore_errors=True)

    def write(self, file: str, text: str) -> None:
        """Gives a file another text, and a time that no compiled form of it has."""
        self._changes += 1
        (self.root / file).write_text(text, encoding="utf-8")
        os.utime(self.root / file, (1e9 + self._changes,) * 2)

    def first_failure(self, tests: Sequence[str], backend: str = "tensorflow") -> str | None:
        """Runs tests, and returns the first that fails, or None."""
        log = self.root / "tmp" / "log.txt"
        arguments = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", QUICK, *tests]
        code = (self._forked if WARM and backend == "tensorflow" else self._started)(
            arguments, backend, log
        )
        output = log.read_text(encoding="utf-8", errors="replace")
        if code == 0:
            return None
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        if failed:
            return failed[0]
        if code is None:
            return f"(no end in {HUNG_SECONDS} s)"
        if code in (4, 5):  # of pytest: wrong arguments, no test
            raise SystemExit(f"These run no test: {', '.join(tests)}.\n{output[-2000:]}")
        return f"(the process ended with {code})"

    def _environment(self, backend: str) -> dict[str, str]:
        ours = {
            "KERAS_BACKEND": backend,
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(self.root / "tmp"),
        }
        environment = {**os.environ, **ours, "TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "agg"}
        environment.pop("KERAS_VIT_TESTS_WARM", None)
        return environment

    def _started(self, arguments: Sequence[str], backend: str, log: Path) -> int | None:
        command = [sys.executable, "-m", "pytest", *arguments]
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment(backend),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                return process.wait(HUNG_SECONDS)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end_session(process.pid)

    def _forked(self, arguments: Sequence[str], backend: str, log: Path) -> int | None:
        """The same in a fork of this process, which has imported TensorFlow: that takes longer than
        most tests.
        """
        _import_once()
        process = os.fork()
        if not process:
            _run_tests(arguments, self.root, self._environment(backend), log)
        deadline = time.monotonic() + HUNG_SECONDS
        try:
            while time.monotonic() < deadline:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)
                time.sleep(0.05)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        finally:
            _end_session(process)


def _import_once() -> None:
    """What no fault is put into, and what the tests do not want to set up before it is imported:
    Keras is not there.
    """
    if "tensorflow" not in sys.modules:
        os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "agg"}
        import matplotlib.backends.backend_agg  # noqa: F401
        import PIL.Image  # noqa: F401
        import pytest  # noqa: F401
        import scipy.linalg  # noqa: F401
        import sklearn.linear_model  # noqa: F401
        import tensorflow  # noqa: F401


def _run_tests(
    arguments: Sequence[str], root: Path, environment: dict[str, str], log: Path
) -> None:
    """Turns a fork into a process that runs tests, and ends it."""
    code = 3
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        os.chdir(root)
        ours = (ROOT, Path(__file__).resolve().parent)
        sys.path[:] = [str(root), *(path for path in sys.path if Path(path).resolve() not in ours)]
        sys.argv = ["pytest", *arguments]
        import pytest

        code = int(pytest.main(list(arguments)))
        threading._shutdown()
        atexit.unregister(Copy._remove)
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def _end_session(leader: int) -> None:
    """Ends what tests left behind, such as the server of warm processes."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def check_table(mutations: Sequence, root: Path = ROOT) -> None:
    """Stops unless every row fits the package."""
    wrong = []
    for row in mutations:
        path = root / row.file
        found = path.read_text(encoding="utf-8").count(row.old) if path.exists() else -1
        if found != 1:
            words = (
                "there is no such file"
                if found < 0
                else f"its text occurs {found} times, expected once"
            )
            wrong.append(f"{row.file}: {words}: {row.old!r}")
        wrong += [
            f"{row.file}: no test file {t}"
            for t in row.tests
            if not (root / t.partition("::")[0]).exists()
        ]
        if row.old == row.new:
            wrong.append(f"{row.file}: nothing changes: {row.old!r}")
    if wrong:
        print(
            "The table of mutations does not fit the package; mend its rows:",
            *wrong,
            sep="\n  ",
            file=sys.stderr,
        )
        raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="rows with this in their file, text or tests")
    parser.add_argument(
        "--count", type=int, default=0, help="how many rows, drawn with --seed; 0: all, in order"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from mutation_table import MUTATIONS

    check_table(MUTATIONS)
    chosen = [
        row
        for row in MUTATIONS
        if options.only in " ".join((row.file, row.old, row.new, *row.tests))
    ]
    if options.count:
        chosen = random.Random(options.seed).sample(chosen, min(options.count, len(chosen)))
    copy, sound, survived = Copy(), set(), 0
    for row in chosen:
        text = (copy.root / row.file).read_text(encoding="utf-8")
        copy.write(row.file, text.replace(row.old, row.new))
        failed = copy.first_failure(row.tests, row.backend)
        copy.write(row.file, text)
        if failed and not failed.startswith("(") and (failed, row.backend) not in sound:
            if broken := copy.first_failure([failed], row.backend):
                raise SystemExit(f"This test fails without any fault: {broken}. Mend it first.")
            sound.add((failed, row.backend))
        survived += failed is None
        change = f"{' '.join(row.old.split())} => {' '.join(row.new.split())}"
        print(
            f"caught {row.file}: {change} -> {failed}"
            if failed
            else f"SURVIVED {row.file}: {change}",
            flush=True,
        )
    print(f"tried {len(chosen)}, caught {len(chosen) - survived}, survived {survived}")
    raise SystemExit(int(survived > 0))


if __name__ == "__main__":
    main()
