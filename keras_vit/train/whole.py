"""Files that appear whole or not at all: written under another name first, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to, of the same suffix; when that is done, it takes the place of `path`.

    Example:
        >>> with whole(Path("classes.txt")) as partial:
        ...     _ = partial.write_text("cat")
        >>> Path("classes.txt").read_text(), partial.exists()
        ('cat', False)
    """
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
