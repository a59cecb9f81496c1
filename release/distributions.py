"""Builds the wheel and the source distribution of a commit, reproducible byte for byte.

    python release/distributions.py --output=dist
    python release/distributions.py --output=dist --source=some/folder

Equal files give equal bytes, whatever the folder, the date, the umask and the permissions of the
checkout: the files are copied with fixed permissions and dates, the members of the archives are
sorted, and no owner is recorded. The wheel is built from the source distribution, so a file that
the source distribution forgets is missing in both.

The date of all members is SOURCE_DATE_EPOCH, or else that of the commit. Equal bytes also need the
same versions of Python, zlib and setuptools (`release/requirements.txt`).

Source: reproducible-builds.org/specs/source-date-epoch.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_SETUPTOOLS = 77  # pyproject.toml
EARLIEST = 315532800  # 1980-01-01: zip has no earlier dates


def build(source: Path, output: Path) -> list[Path]:
    """Builds both files of the tracked files of `source`, and returns their paths.

    Raises:
        ValueError: If `source` is not a git checkout, has changes that are not committed, or
            setuptools is too old.
    """
    check_backend()
    check_committed(source)
    date = find_date(source)
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, fixed_environment(date):
        tree, made = Path(folder) / "tree", Path(folder) / "made"
        copy_tracked(source, tree, date)
        sdist = call_backend(tree, made, "build_sdist")
        normalize_sdist(sdist, date)
        unpacked = Path(folder) / "unpacked"
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (root,) = unpacked.iterdir()
        wheel = call_backend(root, made, "build_wheel")
        check_wheel(wheel, date)
        return [Path(shutil.copy(path, output)) for path in (sdist, wheel)]


def check_backend() -> None:
    try:
        import setuptools
    except ImportError as error:
        raise ValueError(_advise("no setuptools")) from error
    if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
        raise ValueError(_advise(f"setuptools {setuptools.__version__}"))


def _advise(found: str) -> str:
    return (
        f"This Python has {found}. A build needs setuptools >= {OLDEST_SETUPTOOLS}: run "
        f"`{sys.executable} -m pip install -r release/requirements.txt`."
    )


def check_committed(source: Path) -> None:
    changed = run_git(source, "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise ValueError(f"Commit or undo these changes first:\n{changed}")


def find_date(source: Path) -> int:
    """Returns SOURCE_DATE_EPOCH, or else the date of the commit, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None and not given.isdigit():
        raise ValueError(f"SOURCE_DATE_EPOCH={given} is not a number of seconds since 1970.")
    date = int(given or run_git(source, "log", "-1", "--format=%ct"))
    if date < EARLIEST:
        raise ValueError(f"The date {date} is before 1980, which zip cannot store.")
    return date


def run_git(source: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", source, *words], capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"{source} must be a git checkout: {found.stderr.strip()}")
    return found.stdout.strip()


def copy_tracked(source: Path, tree: Path, date: int) -> None:
    """Copies the tracked files: leftovers of other builds are not packaged."""
    for name in run_git(source, "ls-files", "-z").split("\0"):
        if not name:
            continue
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target)
        target.chmod(0o644)
        os.utime(target, (date, date))


@contextlib.contextmanager
def fixed_environment(date: int) -> Iterator[None]:
    before, mask = os.environ.get("SOURCE_DATE_EPOCH"), os.umask(0o022)
    os.environ["SOURCE_DATE_EPOCH"] = str(date)
    try:
        yield
    finally:
        os.umask(mask)
        os.environ.pop("SOURCE_DATE_EPOCH")
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


def call_backend(tree: Path, made: Path, hook: str) -> Path:
    """Calls a hook of setuptools in a separate process. Returns the path of the built file."""
    made.mkdir(exist_ok=True)
    # Standard output is that of the backend's log, so the name goes into a file.
    code = (
        "import sys; from setuptools import build_meta; _, made, answer = sys.argv; "
        f"name = build_meta.{hook}(made); open(answer, 'w').write(name)"
    )
    name = made / f"{hook}.txt"
    command = [sys.executable, "-c", code, str(made), str(name)]
    # Names are hashed with a random seed, unless it is set.
    settings = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=tree, env=settings, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"setuptools failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return made / name.read_text()


def normalize_sdist(path: Path, date: int) -> None:
    """Rewrites a .tar.gz: sorted members, one date, fixed permissions, no owner."""
    with tarfile.open(path) as archive:
        members = {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.isfile()
        }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(members[name]), date, 0o644
            archive.addfile(member, io.BytesIO(members[name]))
    # `filename=""`: gzip would store the name of the file.
    with path.open("wb") as stream, gzip.GzipFile("", "wb", 9, stream, mtime=date) as file:
        file.write(content.getvalue())


def check_wheel(path: Path, date: int) -> None:
    """Raises ValueError for a wheel whose members are of another date than the build."""
    with zipfile.ZipFile(path) as archive:
        dates = {member.date_time for member in archive.infolist()}
    if len(dates) != 1:
        raise ValueError(f"setuptools ignored the date {date}; it wrote {sorted(dates)[:3]}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--source", type=Path, default=ROOT, help="a git checkout")
    options = parser.parse_args()
    try:
        files = build(options.source, options.output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for path in files:
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path, sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
