"""Numbered folders that appear whole or not at all, and are never overwritten.

TensorFlow Serving watches a folder for subfolders with integer names and loads the greatest as soon as it is there:
half a version would be served, or bring the server down. So a version is written beside its place, under a hidden name
that the server passes over, and renamed when it is whole; a rename is atomic, and fails where a folder stands already.
"""

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PARTIAL = ".partial-"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # what a rename says of a place that is taken


@dataclass(kw_only=True, slots=True)
class Version:
    """A version on its way.

    Attributes:
        folder: Where to write.
        path: Where it is, once the block has ended.
    """

    folder: Path
    path: Path = field(init=False)


@contextlib.contextmanager
def new_version(base: str | os.PathLike) -> Iterator[Version]:
    """Gives a folder to write into; when the block ends without an error, it becomes `base/<next integer>`.

    Several processes may write versions of one base at once: each gets a number of its own. What processes of this
    machine left behind when they were killed is removed.

    Args:
        base: Folder of the versions; made if need be.

    Raises:
        ValueError: If `base` is a version itself or a file.

    Example:
        >>> with new_version("saved_models/vit") as version:
        ...     _ = (version.folder / "weights").write_bytes(bytes(3))
        >>> version.path.as_posix(), versions("saved_models/vit")
        ('saved_models/vit/1', [1])
    """
    base = Path(base)
    _check(base)
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    version = Version(folder=Path(tempfile.mkdtemp(prefix=f"{_mark(os.getpid())}-", dir=base)))
    try:
        yield version
        version.folder.chmod(0o777 & ~_umask())  # `mkdtemp` lets nobody else in, and a server is somebody else
        version.path = _put_in_place(version.folder, base)
    finally:
        shutil.rmtree(version.folder, ignore_errors=True)


def versions(base: str | os.PathLike) -> list[int]:
    """Returns the versions that are there, ascending."""
    base = Path(base)
    found = base.iterdir() if base.is_dir() else []
    return sorted(int(path.name) for path in found if _is_number(path.name) and path.is_dir())


def latest(base: str | os.PathLike) -> Path:
    """Returns the folder of the greatest version.

    Raises:
        ValueError: If there is none.
    """
    found = versions(base)
    if not found:
        raise ValueError(f"There is no version (a folder with an integer name) in {Path(base)}.")
    return Path(base) / str(found[-1])


def _check(base: Path) -> None:
    if _is_number(base.name):
        raise ValueError(f"Name the folder of all versions, {base.parent}, not one of them ({base.name}).")
    if base.exists() and not base.is_dir():
        raise ValueError(f"{base} is a file. Name a folder.")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _put_in_place(folder: Path, base: Path) -> Path:
    """Others may be faster: then the next number is tried."""
    number = max(versions(base), default=0)
    while True:
        number += 1
        try:
            return folder.rename(base / str(number))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise


def _mark(process: int) -> str:
    return f"{_PARTIAL}{socket.gethostname()}-{process}"


def _sweep(base: Path) -> None:
    mine = f"{_PARTIAL}{socket.gethostname()}-"
    for path in base.glob(f"{_PARTIAL}*"):
        process = path.name.removeprefix(mine).split("-")[0]
        if path.name.startswith(mine) and _is_number(process) and not psutil.pid_exists(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
