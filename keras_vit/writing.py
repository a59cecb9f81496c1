"""What is written for people: files that appear whole or not at all, and tables in Markdown."""

import csv
import errno
import itertools
import json
import math
import os
import socket
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to, of the same suffix; when that is done, it takes the
    place of `path`.

    What processes of this machine left in the folder when they were killed is removed.

    Raises:
        OSError: If the disk is full; says that an older file of this name is kept.

    Example:
        >>> with write_atomically(Path("classes.txt")) as partial:
        ...     _ = partial.write_text("cat")
        >>> Path("classes.txt").read_text(), partial.exists()
        ('cat', False)
    """
    remove_partial_files(path.parent)
    partial = path.with_name(f"{_MARK}{os.getpid()}.{next(_numbers)}-{path.name}")
    _at_work.add(partial.name)
    try:
        with explain_full_disk(path, "An older file of this name is kept"):
            yield partial
            with open(partial, "rb") as file:
                os.fsync(file.fileno())  # or a power cut leaves the name, and an empty file
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        _at_work.discard(partial.name)


@contextmanager
def explain_full_disk(path: Path, kept: str) -> Iterator[None]:
    """Adds to the error of a full disk what was being written and what is kept; other errors pass.

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


# Of this machine, as others may share the disk; short, as names are no longer than 255 bytes.
_MARK = f".partial-{zlib.crc32(socket.gethostname().encode()):08x}-"

_numbers = itertools.count()  # two threads may write the same file
_at_work: set[str] = set()  # what this process writes


def remove_partial_files(folder: Path) -> None:
    """Removes what processes that were killed on this machine left half written in a folder.

    Every write into a folder does so. Call it where a resumed run may write nothing more.
    """
    for left in folder.glob(f"{_MARK}*"):
        process = left.name.removeprefix(_MARK).partition("-")[0].partition(".")[0]
        if process.isdigit() and not _is_written(int(process), left.name):
            left.unlink(missing_ok=True)


def _is_written(process: int, name: str) -> bool:
    """In a container, each process may have the number that the killed one had."""
    return name in _at_work if process == os.getpid() else _is_alive(process)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Writes a text, whole or not at all; what UTF-8 lacks (bytes of a file name) is written as an
    escape.

    Example:
        >>> write_text(Path("note.md"), "name \\udce9")
        >>> Path("note.md").read_text()
        'name \\\\udce9'
    """
    with write_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table, whole or not at all; bytes of a file name that are no UTF-8 become escapes.

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
    """Writes JSON, whole or not at all.

    Raises:
        ValueError: If a number in it is NaN or infinite: JSON has none such, and a result that is
            no number is none.

    Example:
        >>> write_json(Path("results.json"), {"accuracy": 0.5})
        >>> json.loads(Path("results.json").read_text())
        {'accuracy': 0.5}
    """
    if wrong := _not_finite(content):
        raise ValueError(
            f"{path} is not written: {', '.join(wrong[:5])} is NaN or infinite. The model gives no "
            f"numbers."
        )
    write_text(path, json.dumps(content, indent=1) + "\n")


def _not_finite(content: Any, name: str = "") -> list[str]:
    """The places of numbers that JSON does not have."""
    if isinstance(content, float):
        return [] if math.isfinite(content) else [name]
    items = content.items() if isinstance(content, Mapping) else ()
    items = enumerate(content) if isinstance(content, (list, tuple)) else items
    return [
        found for key, value in items for found in _not_finite(value, f"{name}.{key}".lstrip("."))
    ]


def table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table in Markdown; what is in a cell cannot end it.

    Example:
        >>> print(table(["class", "images"], [["a|b", 3]]))
        | class | images |
        | --- | --- |
        | a\\|b | 3 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell(str(text)) for text in line)} |" for line in lines)


def cell(text: str) -> str:
    """Returns a text that ends neither a cell nor a line of Markdown.

    Example:
        >>> cell("one\\ntwo | three")
        'one two \\\\| three'
    """
    return " ".join(text.split()).replace("|", r"\|")


def to_one_line(text: str) -> str:
    """Returns a name as it can be printed and stored as a line: breaks, and bytes that are no
    UTF-8, as escapes.

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
    """Returns a sentence on what was left out: how many for each reason, the most frequent first,
    and the first names.

    Args:
        left_out: Pairs of a name, or a path, and the reason. Paths are shortened by the folder that
            all have in common.

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


_NAMED, _REASONS = 3, 12  # in a sentence
# control characters, surrogates, separators of lines and paragraphs
_BREAKS = ("Cc", "Cs", "Zl", "Zp")
