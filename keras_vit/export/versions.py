"""Numbered version folders, published atomically and never overwritten.

TensorFlow Serving loads the subfolder with the highest integer name as soon as it appears, so an
incomplete version would be served or crash the server. A version is therefore written under a
hidden name, which the server ignores, and renamed when it is complete. A rename is atomic, and fails
if the target exists.
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
_alive: set[str] = set()  # folders that this process is using
# Keeps a thread from removing a folder that another thread has created but not yet registered.
_new_folder = threading.Lock()
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of a rename whose target exists.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@dataclass(kw_only=True, slots=True)
class Version:
    """A version that is being written.

    Attributes:
        folder: Folder to write to.
        path: Final path; set when the block has ended.
    """

    folder: Path
    path: Path = field(init=False)


@contextlib.contextmanager
def new_version(base: str | os.PathLike) -> Iterator[Version]:
    """Creates a folder to write to, and publishes it as `base/<next integer>` after the block.

    If the block raises an error, nothing is published. Several processes may write versions of one
    base at the same time; each gets another number. Folders left by killed processes of this
    machine are removed.

    Args:
        base: Folder of the versions; created if missing.

    Raises:
        ValueError: If `base` is itself a version, or a file.
        OSError: If the disk is full, whatever error a library raises for it.

    Example:
        >>> with new_version("saved_models/vit") as version:
        ...     _ = (version.folder / "weights").write_bytes(bytes(3))
        >>> version.path.as_posix(), versions("saved_models/vit")
        ('saved_models/vit/1', [1])
    """
    base = Path(base).expanduser()
    _check(base)
    with _explain_full_disk(base):
        base.mkdir(parents=True, exist_ok=True)
        with _create_own_folder(base, _PARTIAL) as folder:
            version = Version(folder=folder)
            yield version
            # `mkdtemp` gives access to this user only, and a server may run as another.
            version.folder.chmod(0o777 & ~_read_umask())
            version.path = _publish(version.folder, base)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Creates a temporary folder, and removes those that killed processes left with this prefix.

    Example:
        >>> with temporary_folder("keras_vit_example_") as folder:
        ...     _ = (folder / "images").write_bytes(bytes(3))
        >>> folder.exists()
        False
    """
    with _create_own_folder(Path(tempfile.gettempdir()), prefix) as folder:
        yield folder


@contextlib.contextmanager
def _create_own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Creates a folder whose name contains its process, so that others can tell when it is stale."""
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
def _explain_full_disk(base: Path) -> Iterator[None]:
    """Replaces any error about a full disk by an OSError that lists the versions that are kept."""
    try:
        yield
    except Exception as error:
        if not _is_disk_full(error) and not (
            _FAILED_STREAM in str(error) and shutil.disk_usage(base.parent).free < _LITTLE_BYTES
        ):
            raise
        kept = ", ".join(map(str, versions(base))) or "none"
        words = (
            f"{_describe_full_disk(error, base)} The new version was not written. Existing "
            f"versions are kept: {kept}"
        )
        raise OSError(errno.ENOSPC, words, str(base)) from error


def _describe_full_disk(error: BaseException, base: Path) -> str:
    """Returns which disk is full, that of the version or of temporary files, and what to do."""
    place = tempfile.gettempdir()
    texts = " ".join(map(str, _list_causes(error)))
    if _PARTIAL in texts or _find_device(base) == _find_device(Path(place)):
        return "The disk is full: make room."
    advice = "make room, or set TMPDIR to a folder on another disk."
    if place in texts:
        return f"The disk of temporary files, {place}, is full: {advice}"
    return f"The disk, or that of temporary files, {place}, is full: {advice}"


def _find_device(path: Path) -> int:
    """Returns the number of the disk of a folder, which may not exist yet."""
    return next(folder for folder in (path, *path.parents) if folder.exists()).stat().st_dev


# The whole message of OpenVINO when a write fails, for any reason.
_FAILED_STREAM, _LITTLE_BYTES = "iostream error", 2**20


def _is_disk_full(error: BaseException | None) -> bool:
    """Returns whether an error, or one that caused it, is about a full disk."""
    # TensorFlow, the runtimes and the process that runs a file raise other types of errors, which
    # contain the message of the system.
    return any(
        getattr(each, "errno", None) in _FULL
        or any(os.strerror(code) in str(each) for code in _FULL)
        for each in _list_causes(error)
    )


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, the one that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def versions(base: str | os.PathLike) -> list[int]:
    """Returns the existing versions, in ascending order."""
    return sorted(_find_versions(base))


def latest(base: str | os.PathLike) -> Path:
    """Returns the folder of the highest version.

    Raises:
        ValueError: If there is no version.
    """
    found = _find_versions(base)
    if not found:
        raise ValueError(f"{Path(base)} contains no version: no folder with an integer name.")
    return found[max(found)]


def _find_versions(base: str | os.PathLike) -> dict[int, Path]:
    """Returns the folders of the existing versions. TensorFlow Serving reads 001 as 1."""
    base = Path(base).expanduser()
    found = sorted(base.iterdir()) if base.is_dir() else []
    return {int(path.name): path for path in found if _is_number(path.name) and path.is_dir()}


def _check(base: Path) -> None:
    if _is_number(base.name):
        raise ValueError(
            f"Pass the folder of all versions, {base.parent}, not one version ({base.name})."
        )
    if base.exists() and not base.is_dir():
        raise ValueError(f"{base} is a file. Pass a folder.")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _publish(folder: Path, base: Path) -> Path:
    """Renames a folder to the next free number."""
    # If another process publishes this number first, the next is tried.
    number = max(versions(base), default=0)
    while True:
        number += 1
        try:
            return folder.rename(base / str(number))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise


def _sweep(parent: Path, prefix: str) -> None:
    """Removes the folders that killed processes of this machine left."""
    # Other machines may share the disk, and their processes cannot be seen from here.
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
    """Returns whether the process that created a folder is still using it."""
    # In a container, this process may have the number of the killed one.
    return name in _alive if process == os.getpid() else psutil.pid_exists(process)


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
