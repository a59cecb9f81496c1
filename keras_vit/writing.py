"""Atomic writing of files, Markdown tables, and text for terminals and reports."""

import csv
import errno
import itertools
import json
import math
import os
import socket
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path with the same suffix, and renames it to `path` after the block.

    Files that killed processes of this machine left in the folder are removed.

    Raises:
        OSError: If the disk is full, with a message that an older file of this name is kept; or if
            the folder does not exist.

    Example:
        >>> with write_atomically(Path("classes.txt")) as partial:
        ...     _ = partial.write_text("cat")
        >>> Path("classes.txt").read_text(), partial.exists()
        ('cat', False)
    """
    if not path.parent.is_dir():
        reason = "There is no such folder. Create it first"
        raise FileNotFoundError(errno.ENOENT, reason, str(path.parent))
    remove_partial_files(path.parent)
    partial = path.with_name(f"{_MARK}{os.getpid()}.{next(_numbers)}-{path.name}")
    _at_work.add(partial.name)
    try:
        with explain_full_disk(path, "An older file of this name is kept"):
            yield partial
            with open(partial, "rb") as file:
                # Without it, a power failure may leave an empty file of this name.
                os.fsync(file.fileno())
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        _at_work.discard(partial.name)


@contextmanager
def explain_full_disk(path: Path, kept: str) -> Iterator[None]:
    """Adds the path and a note on kept files to the error of a full disk; other errors pass.

    Example:
        >>> with explain_full_disk(Path("a.npz"), "Older files are kept"):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: make room. Older files are kept: 'a.npz'
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or "make room" in str(error):
            raise
        raise OSError(
            error.errno, f"{os.strerror(error.errno)}: make room. {kept}", str(path)
        ) from error


# Contains a hash of the host name, since other machines may share the disk. It is short, since names
# have at most 255 bytes.
_MARK = f".partial-{zlib.crc32(socket.gethostname().encode()):08x}-"

_numbers = itertools.count()  # two threads may write the same file
_at_work: set[str] = set()  # files that this process is writing


def remove_partial_files(folder: Path) -> None:
    """Removes the partial files of killed processes of this machine from a folder.

    `write_atomically` calls it for its folder. Call it where a resumed run may not write again.
    """
    for left in folder.glob(f"{_MARK}*"):
        process = left.name.removeprefix(_MARK).partition("-")[0].partition(".")[0]
        if process.isdigit() and not _is_written(int(process), left.name):
            left.unlink(missing_ok=True)


def _is_written(process: int, name: str) -> bool:
    """Returns whether a process is still writing a file."""
    # In a container, this process may have the number of the killed one.
    return name in _at_work if process == os.getpid() else _is_alive(process)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # on Windows, signal 0 would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Writes a text atomically, in UTF-8; other bytes of file names are escaped.

    Example:
        >>> write_text(Path("note.md"), "name \\udce9")
        >>> Path("note.md").read_text()
        'name \\\\udce9'
    """
    with write_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes an array as a `.npy` file, not atomically.

    On a full disk, `np.save` raises an OSError without the reason: "3072 requested and 992
    written". This function raises that of the system.

    Example:
        >>> write_array(Path("a.npy"), np.arange(3))
        >>> np.load("a.npy")
        array([0, 1, 2])
    """
    with open(path, "wb") as file:
        np.lib.format.write_array(_Sink(file.write), array, allow_pickle=False)


@dataclass
class _Sink:
    """What NumPy does not take for a file, so that it calls `write`, whose errors have a reason."""

    write: Callable[[bytes], int]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table as CSV atomically, in UTF-8; other bytes of file names are escaped.

    Example:
        >>> write_csv(Path("far.csv"), ["layer", "px"], [["block, first", 3]])
        >>> Path("far.csv").read_text().splitlines()
        ['layer,px', '"block, first",3']
    """
    with (
        write_atomically(path) as partial,
        open(partial, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically.

    Raises:
        ValueError: If a number is NaN or infinite, which JSON does not support.

    Example:
        >>> write_json(Path("results.json"), {"accuracy": 0.5})
        >>> json.loads(Path("results.json").read_text())
        {'accuracy': 0.5}
    """
    if wrong := _find_not_finite(content):
        raise ValueError(
            f"{path} was not written: {', '.join(wrong[:5])} is NaN or infinite. Check the weights "
            f"of the model."
        )
    write_text(path, json.dumps(content, indent=1) + "\n")


def _find_not_finite(content: Any, name: str = "") -> list[str]:
    """Returns the names of the numbers that are NaN or infinite."""
    if isinstance(content, float):
        return [] if math.isfinite(content) else [name]
    items = content.items() if isinstance(content, Mapping) else ()
    items = enumerate(content) if isinstance(content, (list, tuple)) else items
    return [
        found
        for key, value in items
        for found in _find_not_finite(value, f"{name}.{key}".lstrip("."))
    ]


def table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a Markdown table, with the content of cells escaped.

    Example:
        >>> print(table(["class", "images"], [["a|b", 3]]))
        | class | images |
        | --- | --- |
        | a\\|b | 3 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell(str(text)) for text in line)} |" for line in lines)


def cell(text: str) -> str:
    """Escapes a text for a cell of a Markdown table.

    Example:
        >>> cell("one\\ntwo | three")
        'one two \\\\| three'
    """
    return " ".join(text.split()).replace("|", r"\|")


def to_one_line(text: str) -> str:
    """Escapes line breaks, and bytes that are not UTF-8, so that a name fits on one line.

    Example:
        >>> print(to_one_line("a\\nb \\udce9\\u2028"))
        a\\nb \\udce9\\u2028
    """
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in _BREAKS
        else letter
        for letter in text
    )


def group_by_reason(left_out: Iterable[tuple[str | os.PathLike[str], str]]) -> str:
    """Summarizes left-out files: count and first names for each reason, most frequent first.

    Args:
        left_out: Pairs of a name or path and the reason. The common folder of all paths is omitted.

    Returns:
        One line, or "" if nothing was left out.

    Example:
        >>> group_by_reason([("a.txt", "no photo"), ("b\\n.txt", "no photo"), ("c.jpg", "cut short")])
        'Left out, 3: no photo (2: a.txt, b\\\\n.txt); cut short (1: c.jpg).'
    """
    pairs = [(os.fspath(name), reason) for name, reason in left_out]
    start = os.path.commonprefix([name for name, _ in pairs]).rfind(os.sep) + 1
    names: dict[str, list[str]] = {}
    for name, reason in pairs:
        names.setdefault(reason, []).append(name[start:])
    groups = sorted(names.items(), key=lambda group: (-len(group[1]), group[0]))
    if not groups:
        return ""
    words = [
        f"{reason} ({len(those):,}: "
        f"{', '.join(those[:_NAMED])}{', ...' if len(those) > _NAMED else ''})"
        for reason, those in groups[:_REASONS]
    ]
    rest = sum(len(those) for _, those in groups[_REASONS:])
    words += [f"other reasons ({rest:,})"] if rest else []
    return to_one_line(f"Left out, {sum(map(len, names.values())):,}: {'; '.join(words)}.")


_NAMED, _REASONS = 3, 12  # names per reason, and reasons, in a summary
# Control characters, surrogates, separators of lines and paragraphs.
_BREAKS = ("Cc", "Cs", "Zl", "Zp")
