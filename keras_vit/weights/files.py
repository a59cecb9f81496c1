"""Files of arrays: path → {name: array} and back, for `.npz` and `.safetensors`.

What lives here: bytes to arrays, the numbers that travel with them, and every way in which a file can be bad. What does
not: names (`layouts.py`, `dialects.py`), fetching (`download.py`). Nothing is ever unpickled.

Metadata: a dict of JSON values. Google's files carry none; ours may hold "grid" (rows, columns) of the position table,
"gelu" ("tanh" or "exact"), "layer_norm_epsilon", "image_size" (height, width) and "num_heads". In an npz they lie as
JSON in the comment of the zip archive, which NumPy ignores; in safetensors in the header's `__metadata__`; files of
Hugging Face have a `config.json` beside them instead.
Sources: numpy.lib.format; PKWARE's APPNOTE 4.3.7 (local headers of a zip archive); the safetensors specification.
"""

import contextlib
import json
import math
import os
import struct
import threading
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_JUNK = "Download it again, or export it again."
# RuntimeError: an encrypted archive, or an unknown compression.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, UnicodeDecodeError, RuntimeError)
_MAX_COMMENT_BYTES = 65535
_PARSING = threading.Lock()  # of Python literals: in two threads at once it fails now and then on Python 3.11
_LOCAL_HEADER = struct.Struct("<4s22xHH")

# What a file is when it is not a checkpoint, by its first bytes, and what to do about it.
_STRANGERS = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "Keras weights are loaded with `model.load_weights(path)`."),
    (b"\x80", "a pickle (an old PyTorch checkpoint)", "Pickles are never read. Save it as safetensors."),
    (b"\x93NUMPY", "a single array (.npy)", "Save all arrays of the model with `numpy.savez`."),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Run `git lfs pull`."),
    (b"<", "a web page (an error or a login form?)", "Download it again and look at the URL."),
    (b"{", "JSON text", "Name the file that holds the weights."),
)

# NumPy's names of the types that both formats hold → safetensors' names.
_TYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (64, 32, 16)},
    **{f"int{bits}": f"I{bits}" for bits in (64, 32, 16, 8)},
    **{f"uint{bits}": f"U{bits}" for bits in (64, 32, 16, 8)},
    "bool": "BOOL",
}
_HUGGING_FACE_GELU = {"gelu": "exact", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
_PathLike = str | os.PathLike[str]
_Arrays = Mapping[str, np.ndarray]
_Metadata = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The content of a file, under the names that the file uses.

    Attributes:
        arrays: Name to array, in the file's order. Half-precision floats are widened to float32.
        metadata: The numbers that travel with the arrays; see the module docstring. May be empty.
    """

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def read(path: _PathLike) -> Checkpoint:
    """Read every array of a checkpoint, or refuse the file as a whole.

    The kind of file is told by its content. bfloat16, which NumPy stores as two raw bytes, and float16 become float32;
    other types, such as an optimizer's step counter, stay as they are.

    Args:
        path: An `.npz` or `.safetensors` file, or a Hugging Face directory that holds `model.safetensors`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is empty, truncated, damaged or of another kind, or if it holds pickled objects, types
            that are no numbers, or numbers that are not finite.
    """
    path = _file_of(Path(path))
    arrays, metadata = _read_npz(path) if kind(path) == "npz" else _read_safetensors(path)
    if not arrays:
        raise _bad(path, "it holds no arrays", _JUNK)
    arrays = {name: _widened(array) for name, array in arrays.items()}
    check_finite(path, arrays)
    return Checkpoint(arrays=arrays, metadata=metadata)


def check_finite(path: _PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse NaN and infinity. Sums first: one pass without a temporary; where a sum overflows, number by number."""
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    with np.errstate(all="ignore"):
        bad = [name for name, array in floats.items() if not (np.isfinite(array.sum()) or np.isfinite(array).all())]
    if bad:
        raise _bad(Path(path), f"it holds NaN or infinite values in {_names(bad)}", "Was its training run diverging?")


def kind(path: _PathLike) -> str:
    """Return "npz" or "safetensors", told by the content of a file, or say what the file is instead.

    It looks at the beginning and the end only: good enough to see that a download is complete.

    Raises:
        ValueError: If the file is neither, or if its end is missing.
    """
    with open(path := Path(path), "rb") as stream:
        head = stream.read(64)
    if not head:
        raise _bad(path, "it is empty (0 bytes)", _JUNK)
    if head.startswith(b"PK"):
        if not zipfile.is_zipfile(path):
            raise _bad(path, "it is an npz archive whose end is missing: truncated", _JUNK)
        return "npz"
    if head[8:9] == b"{":
        _check_safetensors(path)
        return "safetensors"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for start, what, advice in _STRANGERS:
        if text.startswith(start):
            raise _bad(path, f"it is {what}, neither .npz nor .safetensors", advice)
    raise _bad(path, f"it is neither .npz nor .safetensors; it begins with {head[:8]!r}", _JUNK)


def write_npz(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write an uncompressed npz that plain `numpy.load(path)` reads; the same input gives the same bytes.

    The file appears whole or not at all: an older file of that name stays until the new one is complete.

    Args:
        arrays: Name to array of numbers; the order is kept.
        metadata: JSON values to travel with the arrays.

    Raises:
        ValueError: If there are no arrays, if one does not hold numbers, or if the metadata does not fit.
        OSError: If the file cannot be written.
    """
    arrays = _numbers(path, arrays)
    comment = json.dumps(dict(metadata), sort_keys=True).encode() if metadata else b""
    if len(comment) > _MAX_COMMENT_BYTES:
        raise ValueError(f"Metadata of an npz must fit in {_MAX_COMMENT_BYTES} bytes. Received: {len(comment)} bytes.")
    with replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, array in arrays.items():
            # A fixed date and a fixed system: no byte may depend on when or where it is written.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def write_safetensors(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write a safetensors file; the same input gives the same bytes, and the file appears whole or not at all.

    The header is made here because the library's own writer orders `__metadata__` at random. "format": "pt" is added to
    it, without which Hugging Face's transformers refuse the file.

    Args and errors: as for `write_npz`.
    """
    arrays = _numbers(path, arrays)
    # Widest types first, so that every array starts at a multiple of its item size.
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    strings = {key: json.dumps(value, sort_keys=True) for key, value in sorted((metadata or {}).items())}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **strings}}
    offset = 0
    for name in order:
        array, span = arrays[name], [offset, offset + arrays[name].nbytes]
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": array.shape, "data_offsets": span}
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            array = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
            stream.write(array.reshape(-1).view(np.uint8).data)


def write_huggingface(directory: _PathLike, arrays: _Arrays, metadata: _Metadata, config: _Metadata) -> None:
    """Write `model.safetensors` and the `config.json` beside it, each whole or not at all; see `write_safetensors`."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", arrays, metadata)
    with replacing(directory / "config.json") as stream:
        stream.write(json.dumps(dict(config), indent=2).encode())


@contextlib.contextmanager
def replacing(path: _PathLike) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(part, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # some file systems report a full disk only now
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _bad(path: Path, what: str, advice: str) -> ValueError:
    return ValueError(f"Cannot read '{path}' as a checkpoint: {what}. {advice}")


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / "model.safetensors").exists():
        return path / "model.safetensors"
    advice = "Name a file, or a Hugging Face directory whose weights are not split over several files."
    raise _bad(path, "it is a directory without model.safetensors", advice)


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive, ThreadPoolExecutor() as pool:
            _refuse_strange_members(path, archive.namelist())
            # Copies and checksums leave the interpreter free, so that two cores halve the time.
            found = list(pool.map(lambda member: _read_member(archive, path, member), archive.infolist()))
            metadata = _json_or_text(archive.comment.decode(errors="replace"))
    except _ZIP_ERRORS as error:
        raise _bad(path, f"the npz archive is truncated or damaged ({error})", _JUNK) from error
    _refuse_types(path, {name: dtype for name, dtype, _ in found})
    arrays = {name: array for name, _, array in found if array is not None}
    return arrays, _with_tuples(metadata) if isinstance(metadata, dict) else {}


def _read_member(
    archive: zipfile.ZipFile, path: Path, member: zipfile.ZipInfo
) -> tuple[str, np.dtype, np.ndarray | None]:
    with open(path, "rb") as file:
        stream, start = _open_member(archive, file, member)
        shape, fortran, dtype = _read_header(stream, member)
        array = None
        # Told by the header: the data of an array of objects, a pickle, is not even looked at.
        if _is_number(dtype):
            flat = _read_data(stream, start, dtype, math.prod(shape), member)
            array = flat.reshape(shape, order="F" if fortran else "C")
    return member.filename.removesuffix(".npy"), dtype, array


def _refuse_strange_members(path: Path, names: list[str]) -> None:
    strange = [name for name in names if not name.endswith(".npy")]
    if any(name.endswith("data.pkl") for name in strange):
        raise _bad(path, "it is a PyTorch checkpoint", "Pickles are never read. Save it as safetensors.")
    if any(name.endswith(".weights.h5") for name in strange):
        raise _bad(path, "it is a Keras model (.keras)", "Load it with `keras.saving.load_model(path)`.")
    if strange:
        raise _bad(path, f"it is a zip archive with members that are no arrays ({_names(strange)})", _JUNK)


def _is_number(dtype: np.dtype) -> bool:
    """bfloat16 is no type of NumPy's: an npz holds it as two raw bytes."""
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None)


def _refuse_types(path: Path, types: dict[str, np.dtype]) -> None:
    pickled = [name for name, dtype in types.items() if dtype.hasobject]
    if pickled:
        advice = "Pickles are never read: they can run code. Save plain arrays with `numpy.savez(path, **arrays)`."
        raise _bad(path, f"it holds pickled objects ({_names(pickled)})", advice)
    strange = [f"{name}: {dtype}" for name, dtype in types.items() if not _is_number(dtype)]
    if strange:
        raise _bad(path, f"it holds types that are no numbers ({_names(strange)})", "Save them as float32.")


def _open_member(archive: zipfile.ZipFile, file: BufferedIOBase, member: zipfile.ZipInfo) -> tuple[BufferedIOBase, int]:
    """Return a stream at the member, and where that is: the file itself, past the local header, where it is stored."""
    if member.header_offset < 0:
        raise zipfile.BadZipFile(f"{member.filename}: it begins before the file")
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 0x1:
        return BytesIO(archive.read(member)), 0
    file.seek(member.header_offset)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{member.filename}: no local header")
    return file, file.seek(name_bytes + extra_bytes, os.SEEK_CUR)


def _read_header(stream: BufferedIOBase, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with _PARSING:
            shape, fortran, dtype = reader(stream)
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        return shape, fortran, dtype
    except Exception as error:  # NumPy's parser meets damage with errors of many kinds
        raise zipfile.BadZipFile(f"{member.filename}: {error}") from error


def _read_data(stream: BufferedIOBase, start: int, dtype: np.dtype, size: int, member: zipfile.ZipInfo) -> np.ndarray:
    header_bytes = stream.tell() - start
    # Before memory is taken for it: a damaged header can ask for any amount.
    if header_bytes + size * dtype.itemsize != member.file_size:
        raise zipfile.BadZipFile(f"{member.filename}: {size} numbers do not fit {member.file_size} bytes")
    flat = _fill(stream, dtype, size)
    stream.seek(start)
    if zlib.crc32(flat.view(np.uint8).data, zlib.crc32(stream.read(header_bytes))) != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    return flat


def _fill(stream: BufferedIOBase, dtype: np.dtype, size: int) -> np.ndarray:
    flat = np.empty(size, dtype)
    if stream.readinto(flat.view(np.uint8).data) != flat.nbytes:
        raise EOFError("the file ends early")
    return flat


def _with_tuples(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in metadata.items()}


def _check_safetensors(path: Path) -> None:
    """The library checks that the header is sound and that the arrays cover the file to its end."""
    import safetensors

    try:
        safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise _bad(path, f"the safetensors file is truncated or damaged ({error})", _JUNK) from error


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what was checked. The library's own reader needs ml_dtypes for bfloat16, and is no faster."""
    types = {code: np.dtype(name).newbyteorder("<") for name, code in _TYPES.items()} | {"BF16": np.dtype("V2")}
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        strings = header.pop("__metadata__", {})
        strange = [f"{name}: {entry['dtype']}" for name, entry in header.items() if entry["dtype"] not in types]
        if strange:
            raise _bad(path, f"it holds types that are not read ({_names(strange)})", "Save them as float32.")
        arrays = {}
        for name, entry in header.items():
            file.seek(8 + header_bytes + entry["data_offsets"][0])
            arrays[name] = _fill(file, types[entry["dtype"]], math.prod(entry["shape"])).reshape(entry["shape"])
    own = {key: _json_or_text(value) for key, value in strings.items() if key != "format"}
    return arrays, _read_config(path.with_name("config.json")) | _with_tuples(own)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _read_config(path: Path) -> dict[str, Any]:
    """Return what the `config.json` of a Hugging Face ViT says; nothing if there is none, or if it is not theirs."""
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _bad(path, f"it is not JSON ({error})", _JUNK) from error
    if "hidden_act" not in config:
        return {}
    if config["hidden_act"] not in _HUGGING_FACE_GELU:
        valid = ", ".join(_HUGGING_FACE_GELU)
        raise _bad(path, f"hidden_act is {config['hidden_act']!r}", f"Only these are implemented: {valid}.")
    known = {"layer_norm_epsilon": config.get("layer_norm_eps"), "num_heads": config.get("num_attention_heads")}
    size, patch = config.get("image_size"), config.get("patch_size")
    if size:
        known["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
        known["grid"] = tuple(side // patch for side in known["image_size"]) if patch else None
    known["gelu"] = _HUGGING_FACE_GELU[config["hidden_act"]]
    return {key: value for key, value in known.items() if value is not None}


def _widened(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        # bfloat16 is the upper half of a float32. `asarray`: a shifted 0-d array is a scalar.
        return np.asarray(array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _numbers(path: _PathLike, arrays: _Arrays) -> dict[str, np.ndarray]:
    if not arrays:
        raise ValueError(f"There are no arrays to write to '{os.fspath(path)}'.")
    found = {name: np.asarray(array) for name, array in arrays.items()}
    strange = [f"{name} ({array.dtype})" for name, array in found.items() if array.dtype.name not in _TYPES]
    if strange:
        raise ValueError(f"Only numbers can be written to '{os.fspath(path)}': {_names(strange)}. Cast to float32.")
    return found
