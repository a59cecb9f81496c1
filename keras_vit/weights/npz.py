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
from keras_vit.weights.refusal import join_first, make_error

_MAX_HEADER_BYTES = 2**14  # NumPy refuses headers of more than 10,000 bytes
# Parsing Python literals in two threads at once sometimes fails on Python 3.11.
_PARSING = threading.Lock()
_MARK = re.compile(rb"metadata crc32 ([0-9a-f]{8})")


def list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of an archive, whose data are not yet read, and the metadata.

    Raises:
        ValueError: If the archive is damaged, or contains something else.
    """
    try:
        members, comment = zip_archive.list_members(path)
        _refuse_strange_members(path, [member.filename for member in members])
        with open(path, "rb") as file:
            found = [_make_entry(path, file, member) for member in members]
        return found, _parse_metadata(path, comment, [member.comment for member in members])
    except zip_archive.ERRORS as error:
        raise _make_damage_error(path, error) from error


def write(
    stream: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None
) -> None:
    """Writes an uncompressed npz that `numpy.load` reads. Equal inputs give equal bytes.

    Raises:
        ValueError: If the metadata is too large.
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
            # Fixed date and system: the bytes must not depend on the time or the machine.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            member.comment = b"metadata crc32 %08x" % zlib.crc32(comment) if comment else b""
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def _make_damage_error(path: Path, error: Exception) -> ValueError:
    return make_error(path, f"the npz archive is truncated or damaged ({join_first([str(error)])})")


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
    zip_archive.open_content(file, member)(head)
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
            fill = zip_archive.open_content(file, member)
            header, flat = bytearray(header_bytes), np.empty(math.prod(shape), dtype)
            data = flat.view(np.uint8).data
            fill(header)
            fill(data)
        if zlib.crc32(data, zlib.crc32(header)) != member.CRC:
            raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    except zip_archive.ERRORS as error:
        raise _make_damage_error(path, error) from error
    return flat.reshape(shape, order="F" if fortran else "C")
