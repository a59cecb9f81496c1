"""A lock that allows one process at a time in the folder of a run, or of features."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder against other processes, and against other runs in this process.

    It uses a lock of the operating system on the folder, which is released if the process is
    killed. Windows and some network disks have no such lock; then it logs a warning instead.

    Raises:
        ValueError: If another run holds the lock.

    Example:
        >>> with lock_folder(Path(".")):
        ...     pass
    """
    descriptor = None
    try:
        if fcntl is None:
            raise OSError("this system has no such lock")
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"Another run is using {folder}. Wait for it, stop it, or choose another folder: two "
            "runs would overwrite each other's files."
        ) from error
    except OSError as error:
        logging.warning(
            "%s cannot be locked (%s): make sure that no other run uses it.", folder, error
        )
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
