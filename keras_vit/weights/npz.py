"""The npz format: a zip archive of `.npy` files to entries and back. Nothing is ever unpickled.

Metadata is JSON in the comment of the archive, which NumPy ignores. The comment is at the end of
the file, and zip has no checksum of it. Therefore the comment of each member contains a checksum of
it, so that a truncated or damaged comment is detected. Older files and files of other programs have
no such checksum.

Sources: numpy.lib.format; PKWARE's APPNOTE 4.3.7 (local headers), 4.3.12 (the directory) and 4.3.16
(the end).
"""

import json
import math
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from io import SEEK_CUR, BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights import metadata as facts
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import join_first, make_error

# RuntimeError: an encrypted archive. NotImplementedError, a subclass: an unknown compression.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    UnicodeDecodeError,
    RuntimeError,
    OverflowError,
)
_MAX_COMMENT_BYTES = 65535
_MAX_DIRECTORY_BYTES = 2**23  # for about 50,000 arrays
_MAX_HEADER_BYTES = 2**14  # NumPy refuses headers of more than 10,000 bytes
_CHUNK_BYTES = 2**20
# Parsing Python literals in two threads at once sometimes fails on Python 3.11.
_PARSING = threading.Lock()
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_END = struct.Struct("<4s6xH8xH")
_MANY = 0xFFFF  # this count of members means that the true count is in another record
_MARK = re.compile(rb"metadata crc32 ([0-9a-f]{8})")


def check_end(path: Path) -> tuple[int, bytes]:
    """Returns the number of members of an archive and its comment.

    Raises:
        ValueError: If the end of the archive is missing.
    """
    with open(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - _MAX_COMMENT_BYTES - _END.size, 0))
        tail = stream.read()
    place = len(tail)
    while (place := tail.rfind(b"PK\x05\x06", 0, place)) >= 0:
        if len(tail) < place + _END.size:
            continue
        _, count, comment_bytes = _END.unpack_from(tail, place)
        if place + _END.size + comment_bytes == len(tail):
            return count, tail[place + _END.size :]
    raise make_error(path, "it is an npz archive whose end is missing: truncated")


def list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of an archive, whose data are not yet read, and the metadata.

    Raises:
        ValueError: If the archive is damaged, or contains something else.
    """
    count, comment = check_end(path)
    try:
        members = _read_directory(path, count, comment)
        _refuse_strange_members(path, [member.filename for member in members])
        with open(path, "rb") as file:
            found = [_make_entry(path, file, member) for member in members]
        return found, _parse_metadata(path, comment, [member.comment for member in members])
    except _ZIP_ERRORS as error:
        raise _make_damage_error(path, error) from error


def write(
    stream: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None
) -> None:
    """Writes an uncompressed npz that `numpy.load` reads. Equal inputs give equal bytes.

    Raises:
        ValueError: If the metadata is too large.
    """
    comment = json.dumps(dict(metadata), sort_keys=True).encode() if metadata else b""
    if len(comment) > _MAX_COMMENT_BYTES:
        raise ValueError(
            f"Metadata of an npz must fit in {_MAX_COMMENT_BYTES} bytes. Received: {len(comment)} "
            f"bytes."
        )
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, array in arrays.items():
            # Fixed date and system: the bytes must not depend on the time or the machine.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            member.comment = b"metadata crc32 %08x" % zlib.crc32(comment) if comment else b""
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def _make_damage_error(path: Path, error: Exception) -> ValueError:
    return make_error(path, f"the npz archive is truncated or damaged ({join_first([str(error)])})")


def _read_directory(path: Path, count: int, comment: bytes) -> list[zipfile.ZipInfo]:
    try:
        with _LimitedReader(FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            members, read = archive.infolist(), archive.comment
    except ValueError as error:  # an offset before the file
        raise zipfile.BadZipFile(str(error)) from error
    if read != comment:
        raise zipfile.BadZipFile("it has two ends")
    if count not in (_MANY, len(members)):
        raise zipfile.BadZipFile(f"its directory lists {len(members)} of {count} members")
    return members


class _LimitedReader(BufferedReader):
    """A file that limits the size of the directory that `zipfile` reads into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes")
        return super().read(size)


def _parse_metadata(path: Path, comment: bytes, marks: list[bytes]) -> dict[str, Any]:
    promised = {int(match[1], 16) for mark in marks if (match := _MARK.fullmatch(mark))}
    if promised - {zlib.crc32(comment)}:
        raise zipfile.BadZipFile("its metadata is missing or changed")
    try:
        found = facts.parse(comment)
    except ValueError:
        return {}
    return facts.check(path, found) if isinstance(found, dict) else {}


def _refuse_strange_members(path: Path, names: list[str]) -> None:
    strange = [name for name in names if not name.endswith(".npy")]
    if any(name.endswith("data.pkl") for name in strange):
        raise make_error(
            path, "it is a PyTorch checkpoint", "Pickles are never read. Save it as safetensors."
        )
    if any(name.endswith(".weights.h5") for name in strange):
        raise make_error(
            path, "it is a Keras model (.keras)", "Load it with `keras.saving.load_model(path)`."
        )
    if strange:
        raise make_error(
            path, f"it is a zip archive with members that are not arrays ({join_first(strange)})"
        )


def _make_entry(path: Path, file: BinaryIO, member: zipfile.ZipInfo) -> Entry:
    head = bytearray(min(_MAX_HEADER_BYTES, member.file_size))
    _open_content(file, member)(head)
    shape, fortran, dtype, header_bytes = _parse(bytes(head), member)
    size = math.prod(shape)
    # Checked from the header: the data of an object array, a pickle, is never read.
    if not dtype.hasobject and header_bytes + size * dtype.itemsize != member.file_size:
        raise zipfile.BadZipFile(
            f"{member.filename}: {size} numbers do not fit {member.file_size} bytes"
        )
    load = partial(_load, path, member, header_bytes, shape, fortran, dtype)
    return Entry(name=member.filename.removesuffix(".npy"), shape=shape, dtype=dtype, load=load)


def _parse(head: bytes, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    stream = BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        with _PARSING:
            shape, fortran, dtype = reader(stream)
        if any(type(side) is not int or side < 0 for side in shape):
            raise ValueError(f"shape {shape}")
        return shape, bool(fortran), dtype, stream.tell()
    except Exception as error:  # damaged headers cause errors of many types in NumPy's parser
        raise zipfile.BadZipFile(f"{member.filename}: {str(error)[:200]}") from error


def _load(
    path: Path,
    member: zipfile.ZipInfo,
    header_bytes: int,
    shape: tuple[int, ...],
    fortran: bool,
    dtype: np.dtype,
) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            fill = _open_content(file, member)
            header, flat = bytearray(header_bytes), np.empty(math.prod(shape), dtype)
            data = flat.view(np.uint8).data
            fill(header)
            fill(data)
        if zlib.crc32(data, zlib.crc32(header)) != member.CRC:
            raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    except _ZIP_ERRORS as error:
        raise _make_damage_error(path, error) from error
    return flat.reshape(shape, order="F" if fortran else "C")


def _open_content(file: BinaryIO, member: zipfile.ZipInfo) -> Callable[[Any], None]:
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
