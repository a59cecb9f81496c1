"""The error for a file that is not a checkpoint: the reason, and what to do."""

import os
from collections.abc import Sequence

AGAIN = "Download it again, or export it again."


def make_error(
    path: str | os.PathLike, what: str, advice: str = AGAIN, kind: str = "checkpoint"
) -> ValueError:
    """Returns the error for a file that cannot be read.

    Example:
        >>> make_error("model.npz", "it is empty (0 bytes)")
        ValueError("Cannot read 'model.npz' as a checkpoint: it is empty (0 bytes). Download it
        again, or export it ...
    """
    return ValueError(f"Cannot read '{os.fspath(path)}' as a {kind}: {what}. {advice}")


def join_first(names: Sequence[str]) -> str:
    """Joins the first five names for a message, with control characters escaped.

    Example:
        >>> join_first(["a", "b"])
        'a, b'
    """
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
