"""The npz format: a zip archive of `.npy` files to entries and back. Nothing is ever unpickled.

Metadata is JSON in the comment of the archive, which NumPy ignores. The comment is at the very end
of the file and
zip has no checksum of it, so each member carries one in a comment of its own: a comment that was
cut off or damaged is noticed. Files from before this, and foreign comments, have no such mark.

Sources: numpy.lib.format; PKWARE's APPNOTE 4.3.7 (local headers), 4.3.12 (the directory) and 4.3.16
    (the end).
"""

import json
import math
import re
import threading
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights import metadata as facts
from keras_vit.weights import zip_archive
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import bad, some

_MAX_HEADER_BYTES = 2**14  # NumPy parses no header of more than 10,000
# of Python literals: in two threads at once it fails now and then on Python 3.11
_PARSING = threading.Lock()
_MARK = re.compile(rb"metadata crc32 ([0-9a-f]{8})")


def entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the arrays of an archive, unread, and the metadata.

    Raises:
        ValueError: If the archive is damaged, or of something else.
    """
    try:
        members, comment = zip_archive.members(path)
        _refuse_strange_members(path, [member.filename for member in members])
        with open(path, "rb") as file:
            found = [_entry(path, file, member) for member in members]
        return found, _metadata(path, comment, [member.comment for member in members])
    except zip_archive.ERRORS as error:
        raise _damaged(path, error) from error


def write(
    stream: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None
) -> None:
    """Writes an uncompressed npz that plain `numpy.load` reads; the same input gives the same
    bytes.

    Raises:
        ValueError: If the metadata does not fit.
    """
    comment = json.dumps(dict(metadata), sort_keys=True).encode() if metadata else b""
    if len(comment) > zip_archive.MAX_COMMENT_BYTES:
        raise ValueError(
            f"Metadata of an npz must fit in {zip_archive.MAX_COMMENT_BYTES} bytes. Received: {len(comment)} "
            f"bytes."
        )
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, array in arrays.items():
            # A fixed date and a fixed system: no byte may depend on when or where it is written.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            member.comment = b"metadata crc32 %08x" % zlib.crc32(comment) if comment else b""
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def _damaged(path: Path, error: Exception) -> ValueError:
    return bad(path, f"the npz archive is truncated or damaged ({some([str(error)])})")


def _metadata(path: Path, comment: bytes, marks: list[bytes]) -> dict[str, Any]:
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
    if any(name.endswith(".weights.h5") for name in strange):
        raise bad(
            path, "it is a Keras model (.keras)", "Load it with `keras.saving.load_model(path)`."
        )
    if strange:
        raise bad(path, f"it is a zip archive with members that are no arrays ({some(strange)})")


def _entry(path: Path, file: BinaryIO, member: zipfile.ZipInfo) -> Entry:
    head = bytearray(min(_MAX_HEADER_BYTES, member.file_size))
    zip_archive.content(file, member)(head)
    shape, fortran, dtype, header_bytes = _parse(bytes(head), member)
    size = math.prod(shape)
    # Told by the header: the data of an array of objects, a pickle, is not even looked at.
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
    except Exception as error:  # NumPy's parser meets damage with errors of many kinds
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
            fill = zip_archive.content(file, member)
            header, flat = bytearray(header_bytes), np.empty(math.prod(shape), dtype)
            data = flat.view(np.uint8).data
            fill(header)
            fill(data)
        if zlib.crc32(data, zlib.crc32(header)) != member.CRC:
            raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    except zip_archive.ERRORS as error:
        raise _damaged(path, error) from error
    return flat.reshape(shape, order="F" if fortran else "C")
