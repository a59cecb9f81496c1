"""The safetensors format: a file of tensors to entries and back.

Metadata is in `__metadata__` of the header, each value as JSON. The format has no checksum, so
files that are written here contain their own: of name, type, shape and bytes of each array, and of
all metadata.

Source: the safetensors specification.
"""

import json
import math
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights import configs
from keras_vit.weights import metadata as facts
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import join_first, make_error

# NumPy's names of the types in both formats → safetensors' names.
TYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (64, 32, 16)},
    **{f"int{bits}": f"I{bits}" for bits in (64, 32, 16, 8)},
    **{f"uint{bits}": f"U{bits}" for bits in (64, 32, 16, 8)},
    "bool": "BOOL",
}
_READ = {code: np.dtype(name).newbyteorder("<") for name, code in TYPES.items()} | {
    "BF16": np.dtype("V2")
}
_MAX_HEADER_BYTES = 2**23  # for about 50,000 arrays
_CHECKSUM, _WRITER = "crc32", "written_by"


def check_end(path: Path) -> None:
    """Raises ValueError for a truncated file.

    The library checks the header, and that the file ends with the last array.
    """
    import safetensors

    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise make_error(
            path, f"the safetensors file is damaged (its header claims {header_bytes} bytes)"
        )
    try:
        safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise make_error(
            path, f"the safetensors file is truncated or damaged ({join_first([str(error)[:200]])})"
        ) from error


def list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of a file, whose data are not yet read, and the metadata.

    The metadata include those of a `config.json` in the same directory. The reader of the library
    is not used: it needs ml_dtypes for bfloat16, and is not faster.

    Raises:
        ValueError: If the file is damaged, or contains unsupported types.
    """
    check_end(path)
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    strings = header.pop("__metadata__", None) or {}
    strange = [
        f"{name}: {entry['dtype']}" for name, entry in header.items() if entry["dtype"] not in _READ
    ]
    if strange:
        raise make_error(
            path,
            f"it contains unsupported types ({join_first(strange)})",
            "Save them as float32.",
        )
    checksums = _read_checksums(path, header, strings)
    found = []
    for name, entry in header.items():
        shape, dtype, start = (
            tuple(entry["shape"]),
            _READ[entry["dtype"]],
            8 + header_bytes + entry["data_offsets"][0],
        )
        load = partial(_load, path, name, start, shape, dtype, checksums.get(name))
        found.append(Entry(name=name, shape=shape, dtype=dtype, load=load))
    own = {
        key: _parse_json_or_text(value)
        for key, value in strings.items()
        if key not in ("format", _CHECKSUM, _WRITER)
    }
    return found, configs.read_beside(path) | facts.check(path, own)


def has_checksums(path: Path) -> bool:
    """Whether a file contains checksums of its arrays, as `write` adds them."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return _CHECKSUM in (header.get("__metadata__") or {})


def write(
    stream: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None
) -> None:
    """Writes a safetensors file. Equal inputs give equal bytes.

    The writer of the library is not used, because it orders `__metadata__` at random. Hugging
    Face's transformers require "format": "pt" in the metadata.
    """
    # Widest types first, so that every array starts at a multiple of its item size.
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    strings = {
        key: json.dumps(value, sort_keys=True) for key, value in sorted((metadata or {}).items())
    }
    strings = {"format": "pt", **strings, _WRITER: "keras_vit"}
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        array, span = arrays[name], [offset, offset + arrays[name].nbytes]
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": span,
        }
        offset = span[1]
    with ThreadPoolExecutor() as pool:
        checksums = dict(
            zip(
                order,
                pool.map(lambda name: zlib.crc32(_view_bytes(arrays[name])), order),
                strict=True,
            )
        )
    strings[_CHECKSUM] = json.dumps(
        {**checksums, "": _compute_header_checksum(header, strings, checksums)}
    )
    text = json.dumps({"__metadata__": strings, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        stream.write(_view_bytes(arrays[name]))


def _view_bytes(array: np.ndarray) -> memoryview:
    return (
        np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
    )


def _compute_header_checksum(
    header: dict[str, Any], strings: dict[str, str], checksums: dict[str, int]
) -> int:
    return zlib.crc32(json.dumps([header, strings, checksums], sort_keys=True).encode())


def _read_checksums(path: Path, header: dict[str, Any], strings: dict[str, str]) -> dict[str, int]:
    """Returns the checksums of the arrays, if the file has any, and checks that of the header."""
    if not {_CHECKSUM, _WRITER} & strings.keys():
        return {}
    others = {key: value for key, value in strings.items() if key != _CHECKSUM}
    checksums = _parse_json_or_text(strings.get(_CHECKSUM, ""))
    own = checksums.pop("", None) if isinstance(checksums, dict) else None
    if (
        own != _compute_header_checksum(header, others, checksums)
        or checksums.keys() != header.keys()
    ):
        raise make_error(path, "the safetensors file is damaged (wrong checksum of its header)")
    return checksums


def _load(
    path: Path, name: str, start: int, shape: tuple[int, ...], dtype: np.dtype, checksum: int | None
) -> np.ndarray:
    flat = np.empty(math.prod(shape), dtype)
    data = flat.view(np.uint8).data
    with open(path, "rb") as file:
        file.seek(start)
        if file.readinto(data) != flat.nbytes:
            raise make_error(path, "the safetensors file ends early")
    if checksum is not None and zlib.crc32(data) != checksum:
        raise make_error(
            path, f"the safetensors file is damaged (wrong checksum of {join_first([name])})"
        )
    return flat.reshape(shape)


def _parse_json_or_text(value: str) -> Any:
    try:
        return facts.parse(value)
    except ValueError:
        return value
