"""Numbered folders that appear whole or not at all, and are never overwritten.

TensorFlow Serving watches a folder for subfolders with integer names and loads the greatest as soon
as it is there: half a version would be served, or bring the server down. So a version is written
beside its place, under a hidden name that the server passes over, and renamed when it is whole; a
rename is atomic, and fails where a folder stands already.
"""

import contextlib
import errno
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PARTIAL = ".partial-"
_alive: set[str] = set()  # folders in which this process is at work
# a thread that sweeps must not meet a folder that another has made and not yet noted
_new_folder = threading.Lock()
_FULL = (errno.ENOSPC, errno.EDQUOT)
# what a rename says of a place that is taken
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


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
    """Gives a folder to write into; when the block ends without an error, it becomes
    `base/<next integer>`.

    Several processes may write versions of one base at once: each gets a number of its own. What
    processes of this machine left behind when they were killed is removed.

    Args:
        base: Folder of the versions; made if need be.

    Raises:
        ValueError: If `base` is a version itself or a file.
        OSError: If the disk is full, whatever says so.

    Example:
        >>> with new_version("saved_models/vit") as version:
        ...     _ = (version.folder / "weights").write_bytes(bytes(3))
        >>> version.path.as_posix(), versions("saved_models/vit")
        ('saved_models/vit/1', [1])
    """
    base = Path(base)
    _check(base)
    with _disk_full_in_words(base):
        base.mkdir(parents=True, exist_ok=True)
        with _folder_of_this_process(base, _PARTIAL) as folder:
            version = Version(folder=folder)
            yield version
            # `mkdtemp` lets nobody else in, and a server is somebody else
            version.folder.chmod(0o777 & ~_umask())
            version.path = _put_in_place(version.folder, base)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Gives a folder for what is needed for a moment; what killed processes left of the same prefix
    is removed.

    Example:
        >>> with temporary_folder("keras_vit_example_") as folder:
        ...     _ = (folder / "images").write_bytes(bytes(3))
        >>> folder.exists()
        False
    """
    with _folder_of_this_process(Path(tempfile.gettempdir()), prefix) as folder:
        yield folder


@contextlib.contextmanager
def _folder_of_this_process(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder whose name says whose it is, so that others know when it is of no use any more."""
    with _new_folder:
        _sweep(parent, prefix)
        folder = Path(
            tempfile.mkdtemp(prefix=f"{prefix}{socket.gethostname()}-{os.getpid()}-", dir=parent)
        )
        _alive.add(folder.name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _alive.discard(folder.name)


@contextlib.contextmanager
def _disk_full_in_words(base: Path) -> Iterator[None]:
    """Whatever a library raises when the disk is full, callers get one kind of error that says what
    was kept.
    """
    try:
        yield
    except Exception as error:
        if not _says_disk_full(error):
            raise
        kept = ", ".join(map(str, versions(base))) or "none"
        words = (
            f"The disk is full: make room. Of the new version nothing is kept; versions that were "
            f"there stay: {kept}"
        )
        raise OSError(errno.ENOSPC, words, str(base)) from error


def _says_disk_full(error: BaseException | None) -> bool:
    """TensorFlow, the runtimes and the process that runs a file have kinds of their own, but pass
    on the words.
    """
    while error is not None:
        if getattr(error, "errno", None) in _FULL or any(
            os.strerror(code) in str(error) for code in _FULL
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


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
        raise ValueError(
            f"Name the folder of all versions, {base.parent}, not one of them ({base.name})."
        )
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


def _sweep(parent: Path, prefix: str) -> None:
    """Removes what processes of this machine left when they were killed; other machines may share
    the disk.
    """
    mine = f"{prefix}{socket.gethostname()}-"
    for path in parent.glob(f"{prefix}*"):
        process = path.name.removeprefix(mine).split("-")[0]
        if (
            path.name.startswith(mine)
            and _is_number(process)
            and not _is_at_work(int(process), path.name)
        ):
            shutil.rmtree(path, ignore_errors=True)


def _is_at_work(process: int, name: str) -> bool:
    """In a container, each exporter may have the number that the killed one had."""
    return name in _alive if process == os.getpid() else psutil.pid_exists(process)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
