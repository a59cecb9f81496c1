"""What is written for people: files that appear whole or not at all, and tables in Markdown."""

import glob
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
def whole(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to, of the same suffix; when that is done, it takes the place of `path`.

    What processes of this machine left of the same file when they were killed is removed.

    Example:
        >>> with whole(Path("classes.txt")) as partial:
        ...     _ = partial.write_text("cat")
        >>> Path("classes.txt").read_text(), partial.exists()
        ('cat', False)
    """
    _sweep(path)
    partial = path.with_name(f"{_MARK}{os.getpid()}-{path.name}")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())  # or a power cut leaves the name, and an empty file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


# Of this machine, as others may share the disk; short, as names are no longer than 255 bytes.
_MARK = f".partial-{zlib.crc32(socket.gethostname().encode()):08x}-"


def _sweep(path: Path) -> None:
    for left in path.parent.glob(f"{_MARK}*-{glob.escape(path.name)}"):
        process = left.name.removeprefix(_MARK).removesuffix(f"-{path.name}")
        if process.isdigit() and not _is_alive(int(process)):
            left.unlink(missing_ok=True)


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
    """Writes a text, whole or not at all; what UTF-8 lacks (bytes of a file name) is written as an escape.

    Example:
        >>> write_text(Path("note.md"), "name \\udce9")
        >>> Path("note.md").read_text()
        'name \\\\udce9'
    """
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, whole or not at all.

    Raises:
        ValueError: If a number in it is NaN or infinite: JSON has none such, and a result that is no number is none.

    Example:
        >>> write_json(Path("results.json"), {"accuracy": 0.5})
        >>> json.loads(Path("results.json").read_text())
        {'accuracy': 0.5}
    """
    if wrong := _not_finite(content):
        raise ValueError(
            f"{path} is not written: {', '.join(wrong[:5])} is NaN or infinite. The model gives no numbers."
        )
    write_text(path, json.dumps(content, indent=1) + "\n")


def _not_finite(content: Any, name: str = "") -> list[str]:
    """The places of numbers that JSON does not have."""
    if isinstance(content, float):
        return [] if math.isfinite(content) else [name]
    items = content.items() if isinstance(content, Mapping) else ()
    items = enumerate(content) if isinstance(content, (list, tuple)) else items
    return [found for key, value in items for found in _not_finite(value, f"{name}.{key}".lstrip("."))]


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


def one_line(text: str) -> str:
    """Returns a name as it can be printed and stored as a line: breaks, and bytes that are no UTF-8, as escapes.

    Example:
        >>> print(one_line("a\\nb \\udce9\\u2028"))
        a\\nb \\udce9\\u2028
    """
    return "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _BREAKS else letter
        for letter in text
    )


_BREAKS = ("Cc", "Cs", "Zl", "Zp")  # control characters, surrogates, separators of lines and paragraphs
