"""PyTorch's `.pth` and `.bin` files: a zip archive of raw numbers and one pickle to entries.

The pickle says which tensors there are: their names, types, shapes, and places in the storages.
Python's unpickler would call whatever the pickle names. The interpreter here builds dictionaries,
lists, tuples, numbers and text, and knows two calls by name: an ordered dictionary, and a tensor
over a storage. Both become plain data. No other name is looked up, so nothing in a file can run.

Source: pytorch/pytorch, torch/serialization.py and torch/_utils.py (the archive, the persistent
identifiers of storages, `_rebuild_tensor_v2`); Python's pickletools (the operations).
"""

import math
import pickletools
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import SEEK_CUR
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights import configs, state_dicts, zip_archive
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import join_first, make_error

# Names of torch's storages → NumPy's types. bfloat16 is two raw bytes, as everywhere here.
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "V2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_TENSOR = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_DICTIONARY = ("collections", "OrderedDict")
_KNOWN = {_TENSOR, _PARAMETER, _DICTIONARY} | {("torch", name) for name in _STORAGES}
_MAX_PICKLE_BYTES = 2**24  # of 50,000 tensors
_MAX_DEPTH = 8
_CHUNK_BYTES = 2**20
_ADVICE = (
    "Load it in PyTorch, and save the weights alone with "
    "`safetensors.torch.save_file(model.state_dict(), path)`."
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in the pickle: a function or a class that is known, and never looked up."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """Numbers in a member of the archive."""

    dtype: np.dtype
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage; offset and strides count numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Numbers of the storage from the first to the last one of the tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum(
            (side - 1) * stride for side, stride in zip(self.shape, self.strides, strict=True)
        )


_MARK = object()


def list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the tensors of a file, unread, and the metadata of a `config.json` beside it.

    Raises:
        ValueError: If the archive is damaged, or holds anything but tensors in dictionaries.
    """
    try:
        members = _index_by_name(zip_archive.list_members(path)[0])
        prefix = _find_prefix(path, members)
        pickle = members[f"{prefix}data.pkl"]
        if pickle.file_size > _MAX_PICKLE_BYTES:
            raise zipfile.BadZipFile(f"data.pkl claims {pickle.file_size} bytes")
        tensors = _find_state_dict(path, _interpret(path, _read(path, pickle)))
        found = [
            _make_entry(path, members, f"{prefix}data/", name, tensor)
            for name, tensor in tensors.items()
        ]
        _check_shared(path, members, f"{prefix}data/", tensors.values())
    except zip_archive.ERRORS as error:
        raise _make_damage_error(path, error) from error
    return found, configs.read_beside(path)


def _make_damage_error(path: Path, error: Exception) -> ValueError:
    return make_error(
        path, f"the PyTorch file is truncated or damaged ({join_first([str(error)[:200]])})"
    )


def _make_refusal(path: Path, what: str) -> ValueError:
    return make_error(path, f"its pickle holds {what}, which is never executed", _ADVICE)


def is_torch(path: Path) -> bool:
    """Returns whether a zip archive holds a pickle of PyTorch's."""
    try:
        return any(
            member.filename.endswith("/data.pkl") for member in zip_archive.list_members(path)[0]
        )
    except zip_archive.ERRORS:
        return False


def _index_by_name(members: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    named = {member.filename: member for member in members}
    if len(named) < len(members):
        raise zipfile.BadZipFile("it holds several members of one name")
    return named


def _find_prefix(path: Path, members: Mapping[str, zipfile.ZipInfo]) -> str:
    """Returns the folder of the archive that holds `data.pkl`: the name that the file had."""
    found = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(found) != 1:
        raise zipfile.BadZipFile(f"it has {len(found)} members `data.pkl`")
    if any(name.startswith(f"{found[0]}code/") for name in members):
        raise make_error(path, "it is a TorchScript program, not a file of weights", _ADVICE)
    order = members.get(f"{found[0]}byteorder")
    if order is not None and order.file_size < 16 and _read(path, order) == b"big":
        raise make_error(path, "its numbers are big-endian", _ADVICE)
    return found[0]


def _read(path: Path, member: zipfile.ZipInfo) -> bytes:
    content = bytearray(member.file_size)
    with open(path, "rb") as file:
        zip_archive.open_content(file, member)(content)
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    return bytes(content)


# ── the pickle ──


def _interpret(path: Path, pickle: bytes) -> Any:
    """Returns the data that a pickle describes. Loops over its operations; calls nothing."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        argument: Any  # of the operation: a number, a text, or None
        for operation, argument, _ in pickletools.genops(pickle):
            name = operation.name
            if name in ("PROTO", "FRAME"):
                continue
            if name == "STOP":
                (result,) = stack
                return result
            if name in _CONSTANTS:
                stack.append(_CONSTANTS[name]() if callable(_CONSTANTS[name]) else _CONSTANTS[name])
            elif name in _LITERALS:
                stack.append(argument)
            elif name == "MARK":
                stack.append(_MARK)
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[argument])
            elif name == "GLOBAL":
                stack.append(_check_name(path, *argument.split(" ", 1)))
            elif name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_check_name(path, module, attribute))
            elif name in _TUPLES:
                count = _TUPLES[name]
                stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]
            elif name == "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            elif name in ("SETITEM", "SETITEMS"):
                _set_items(path, stack, name)
            elif name in ("APPEND", "APPENDS"):
                values = [stack.pop()] if name == "APPEND" else _pop_to_mark(stack)
                if not isinstance(stack[-1], list):
                    raise _make_refusal(path, f"{name} on something that is no list")
                stack[-1].extend(values)
            elif name == "BINPERSID":
                stack.append(_make_storage(path, stack.pop()))
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_reduce(path, function, arguments))
            elif name == "BUILD":  # the version numbers of a state dict's modules
                stack.pop()
                if not isinstance(stack[-1], dict):
                    raise _make_refusal(path, "a state for something other than a dictionary")
            else:
                raise _make_refusal(path, f"the operation {name}")
    except (IndexError, KeyError, TypeError) as error:
        raise zipfile.BadZipFile(f"data.pkl: {type(error).__name__} {error}") from error
    except ValueError as error:
        if str(error).startswith("Cannot read"):
            raise
        raise zipfile.BadZipFile(f"data.pkl: {error}") from error
    raise zipfile.BadZipFile("data.pkl has no end")


_CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINBYTES", "SHORT_BINBYTES"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise IndexError("no mark")
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _set_items(path: Path, stack: list[Any], name: str) -> None:
    if name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        pairs = [(key, value)]
    else:
        values = _pop_to_mark(stack)
        pairs = list(zip(values[::2], values[1::2], strict=True))
    if not isinstance(stack[-1], dict):
        raise _make_refusal(path, f"{name} on something that is no dictionary")
    for key, value in pairs:
        if not isinstance(key, str | int):
            raise _make_refusal(path, f"a dictionary whose keys are {type(key).__name__}")
        if key in stack[-1]:
            raise zipfile.BadZipFile(f"data.pkl holds {key!r} twice")
        stack[-1][key] = value


def _check_name(path: Path, module: Any, name: Any) -> _Name:
    if (module, name) not in _KNOWN:
        raise _make_refusal(path, f"`{join_first([f'{module}.{name}'[:100]])}`")
    return _Name(module, name)


def _make_storage(path: Path, identifier: Any) -> _Storage:
    kind, storage_type, key, _, size = identifier
    if (
        kind != "storage"
        or not isinstance(storage_type, _Name)
        or storage_type.name not in _STORAGES
    ):
        raise _make_refusal(path, "a persistent identifier that is no storage")
    if not isinstance(key, str) or not _is_count(size):
        raise zipfile.BadZipFile(f"data.pkl: a storage of {size!r} numbers")
    return _Storage(np.dtype(_STORAGES[storage_type.name]), key, size)


def _reduce(path: Path, function: Any, arguments: Any) -> Any:
    called = (function.module, function.name) if isinstance(function, _Name) else None
    if called == _DICTIONARY and arguments == ():
        return {}
    if called == _PARAMETER:
        return arguments[0]
    if called != _TENSOR:
        raise _make_refusal(path, f"a call of {called or type(function).__name__}")
    storage, offset, shape, strides = arguments[:4]
    counts = (offset, *shape, *strides)
    if (
        not isinstance(storage, _Storage)
        or len(shape) != len(strides)
        or not all(map(_is_count, counts))
    ):
        raise zipfile.BadZipFile("data.pkl: a tensor that is none")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**56


# ── the tensors ──


def _find_state_dict(path: Path, content: Any) -> dict[str, _Tensor]:
    """Returns the tensors of the model by name: those of the content, or of a part of it."""
    if not isinstance(content, dict):
        raise make_error(path, f"it holds a {type(content).__name__}, not a state dict", _ADVICE)
    part = state_dicts.find_weights(path, content, _Tensor)
    if part is content and not any(isinstance(value, _Tensor) for value in content.values()):
        keys = join_first([str(key) for key in content]) or "nothing"
        raise make_error(path, f"it holds no state dict, only {keys}", _ADVICE)
    found = list(_walk(path, part, (), set()))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise zipfile.BadZipFile("data.pkl holds several tensors of one name")
    return dict(found)


def _walk(
    path: Path, part: Mapping[Any, Any], keys: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, _Tensor]]:
    """Yields the tensors by name. Other values, such as a step count, are no weights."""
    # A dictionary may contain itself, or be used so often that a walk takes years.
    if id(part) in seen or len(keys) > _MAX_DEPTH:
        raise make_error(path, "its dictionaries are nested too deeply, or share parts", _ADVICE)
    seen.add(id(part))
    for key, value in part.items():
        if isinstance(value, _Tensor):
            yield ".".join((*keys, str(key))), value
        elif isinstance(value, dict):
            yield from _walk(path, value, (*keys, str(key)), seen)


def _make_entry(
    path: Path, members: Mapping[str, zipfile.ZipInfo], folder: str, name: str, tensor: _Tensor
) -> Entry:
    member = members.get(folder + tensor.storage.key)
    if member is None:
        raise zipfile.BadZipFile(f"{name}: its storage {tensor.storage.key!r} is missing")
    if member.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile(f"{member.filename}: it is compressed")
    dtype, count = tensor.storage.dtype, tensor.storage.size
    if member.file_size != count * dtype.itemsize:
        raise zipfile.BadZipFile(
            f"{member.filename}: {count} numbers do not fit {member.file_size} bytes"
        )
    size = math.prod(tensor.shape)
    if size and tensor.offset + tensor.span > count or size > tensor.span:
        raise zipfile.BadZipFile(f"{name}: {tensor.shape} is larger than its storage")
    load = partial(_load, path, member, tensor)
    return Entry(name=name, shape=tensor.shape, dtype=dtype, load=load)


def _check_shared(
    path: Path, members: Mapping[str, zipfile.ZipInfo], folder: str, tensors: Iterable[_Tensor]
) -> None:
    """Compares the checksums of storages of which each tensor reads only a part."""
    for key in sorted({x.storage.key for x in tensors if x.span != x.storage.size}):
        member, checksum = members[folder + key], 0
        with open(path, "rb") as file:
            fill = zip_archive.open_content(file, member)
            for start in range(0, member.file_size, _CHUNK_BYTES):
                chunk = bytearray(min(_CHUNK_BYTES, member.file_size - start))
                fill(chunk)
                checksum = zlib.crc32(chunk, checksum)
        if checksum != member.CRC:
            raise zipfile.BadZipFile(f"{member.filename}: bad checksum")


def _load(path: Path, member: zipfile.ZipInfo, tensor: _Tensor) -> np.ndarray:
    numbers = np.empty(tensor.span, tensor.storage.dtype)
    data = numbers.view(np.uint8).data
    try:
        with open(path, "rb") as file:
            fill = zip_archive.open_content(file, member)
            file.seek(tensor.offset * numbers.itemsize, SEEK_CUR)
            fill(data)
        if tensor.span == tensor.storage.size and zlib.crc32(data) != member.CRC:
            raise zipfile.BadZipFile(f"{member.filename}: bad checksum")
    except zip_archive.ERRORS as error:
        raise _make_damage_error(path, error) from error
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)
    return np.array(view, order="C")
