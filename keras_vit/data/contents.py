"""What tells data apart that have the same names: sizes and times of files."""

import hashlib
import os
from collections.abc import Iterable


def files_sha256(paths: Iterable[str | os.PathLike]) -> str:
    """Returns a hash of the sizes and the times of change of files, in this order.

    The files are not read, so that it is quick for millions. A file that is rewritten has another
    time; so has a copy, unless it was copied with its times (`cp -p`, `rsync -a`).

    Example:
        >>> before = files_sha256(["photo.jpg"])  # it is not there
        >>> open("photo.jpg", "wb").close()
        >>> files_sha256(["photo.jpg"]) == before
        False
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            facts = os.stat(path)
            digest.update(b"%d %d\n" % (facts.st_size, facts.st_mtime_ns))
        except FileNotFoundError:
            digest.update(b"absent\n")
    return digest.hexdigest()
