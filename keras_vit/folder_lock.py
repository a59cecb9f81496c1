"""One process at a time in the folder of a run, or of features: two would overwrite each other's
files.
"""

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
    """Keeps other processes, and other runs of this one, out of a folder while it lasts.

    The lock is the operating system's and on the folder itself: a killed process leaves none. Where
    there is no such lock (Windows, some network disks), a warning says so.

    Raises:
        ValueError: If another run is in it.

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
            f"Another run is going on in {folder}. Wait for it, stop it, or choose another folder: "
            f"two would overwrite "
            "each other's files."
        ) from error
    except OSError as error:
        logging.warning("%s cannot be locked (%s): see that no other run uses it.", folder, error)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
