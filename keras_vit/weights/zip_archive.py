"""Zip archives that may be hostile: their directory, and the content of one member.

What lives here: checks of the archive, and reading without more memory than the member claims. What
does not: what the members mean (`npz.py`, `torch_archive.py`).

Source: PKWARE's APPNOTE 4.3.7 (local headers), 4.3.12 (the directory) and 4.3.16 (the end).
"""

import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from io import SEEK_CUR, BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO

from keras_vit.weights.refusal import make_error

# RuntimeError: an encrypted archive. NotImplementedError, a subclass: an unknown compression.
ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    UnicodeDecodeError,
    RuntimeError,
    OverflowError,
)
MAX_COMMENT_BYTES = 65535
_MAX_DIRECTORY_BYTES = 2**23  # for about 50,000 arrays
_CHUNK_BYTES = 2**20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_END = struct.Struct("<4s6xH8xH")
_MANY = 0xFFFF  # this count of members means that the true count is in another record


def check_end(path: Path) -> tuple[int, bytes]:
    """Returns the number of members of an archive and its comment.

    Raises:
        ValueError: If the end of the archive is missing.
    """
    with open(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - MAX_COMMENT_BYTES - _END.size, 0))
        tail = stream.read()
    place = len(tail)
    while (place := tail.rfind(b"PK\x05\x06", 0, place)) >= 0:
        if len(tail) < place + _END.size:
            continue
        _, count, comment_bytes = _END.unpack_from(tail, place)
        if place + _END.size + comment_bytes == len(tail):
            return count, tail[place + _END.size :]
    raise make_error(path, "it is a zip archive whose end is missing: truncated")


def list_members(path: Path) -> tuple[list[zipfile.ZipInfo], bytes]:
    """Returns the members of an archive, in their order, and its comment.

    Raises:
        ValueError: If the end of the archive is missing.
        zipfile.BadZipFile: If the directory is damaged.
    """
    count, comment = check_end(path)
    try:
        with _LimitedReader(FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            members, read = archive.infolist(), archive.comment
    except ValueError as error:  # an offset before the file
        raise zipfile.BadZipFile(str(error)) from error
    if read != comment:
        raise zipfile.BadZipFile("it has two ends")
    if count not in (_MANY, len(members)):
        raise zipfile.BadZipFile(f"its directory lists {len(members)} of {count} members")
    return members, comment


class _LimitedReader(BufferedReader):
    """A file that limits the size of the directory that `zipfile` reads into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes")
        return super().read(size)


def open_content(file: BinaryIO, member: zipfile.ZipInfo) -> Callable[[Any], None]:
    """Returns a function that fills a buffer with the next bytes of a member.

    The function raises EOFError if the file ends early.
    """
    if member.header_offset < 0:
        raise zipfile.BadZipFile(f"{member.filename}: it begins before the file")
    file.seek(member.header_offset)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{member.filename}: no local header")
    if file.read(name_bytes) != member.orig_filename.encode(
        "utf-8" if member.flag_bits & 0x800 else "cp437"
    ):
        raise zipfile.BadZipFile(f"{member.filename}: it has another name in the directory")
    file.seek(extra_bytes, SEEK_CUR)
    if member.flag_bits & 0x1:
        raise zipfile.BadZipFile(f"{member.filename}: it is encrypted")
    if member.compress_type == zipfile.ZIP_STORED:
        return partial(_fill, file)
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise zipfile.BadZipFile(f"{member.filename}: unknown compression {member.compress_type}")
    return partial(_inflate, file, zlib.decompressobj(-zlib.MAX_WBITS))


def _fill(file: Any, buffer: Any) -> None:
    if file.readinto(buffer) != len(buffer):
        raise EOFError("the file ends early")


def _inflate(file: BinaryIO, inflater: Any, buffer: Any) -> None:
    """Decompresses in chunks: content may be a thousand times larger than its compressed form."""
    place = 0
    while place < len(buffer):
        compressed = inflater.unconsumed_tail or file.read(_CHUNK_BYTES)
        piece = inflater.decompress(compressed, min(_CHUNK_BYTES, len(buffer) - place))
        if not compressed and not piece:
            raise EOFError("the file ends early")
        buffer[place : place + len(piece)] = piece
        place += len(piece)
