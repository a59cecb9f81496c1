"""Keras's `.weights.h5` files, read under our names.

Keras addresses layers by class and order, and stores their names as attributes; it numbers the
variables of a layer. Both are converted to names, so that such a file is restored like any other,
with the same checks and the same resizing of positions. Layers of this package store the constants
that a reader needs beside their variables (`layers/constants.py`).

Source: keras-team/keras, keras/src/saving/saving_lib.py (the layout of the file); the HDF5 file
    format, II.A.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from keras_vit.weights import entries, metadata
from keras_vit.weights.entries import Choose, Entry
from keras_vit.weights.refusal import join_first, make_error

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_CONSTANTS = "constants"
_MAX_CONSTANTS_BYTES = 2**16
_MAX_DEPTH = 8
_MAX_CHUNK_BYTES = 2**26
_ADVICE = "Write it again with `model.save_weights`, or load a whole `.keras` file with `keras.saving.load_model`."


def is_hdf5(path: str | os.PathLike) -> bool:
    """Returns whether a file is HDF5, by its first bytes."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as stream:
        return stream.read(8) == _SIGNATURE


def check_end(path: str | os.PathLike) -> None:
    """Raises ValueError for a truncated file, which is shorter than its header states."""
    with open(path, "rb") as stream:
        start = stream.read(64)
    places = {0: 40, 1: 44, 2: 28, 3: 28}
    if len(start) < 64 or start[8] not in places:
        raise _make_error(path, "the HDF5 file is truncated or damaged")
    (end,) = struct.unpack_from("<Q", start, places[start[8]])
    if end > os.path.getsize(path):
        raise _make_error(
            path, f"the HDF5 file is truncated, it has {os.path.getsize(path)} of {end} bytes"
        )


def read(
    path: str | os.PathLike, choose: Choose | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a file of `model.save_weights`. Returns {our name: array} and the metadata.

    Args:
        path: The file.
        choose: See `keras_vit.weights.entries.read`.

    Raises:
        ValueError: If the file is damaged, or not a weights file of a current Keras.
    """
    import h5py

    check_end(path)
    with _call_or_refuse(path, h5py.File, path, "r") as file:
        found, known = _call_or_refuse(path, _list_entries, path, file)
        known = metadata.check(path, known)
        return entries.read(path, found, known, choose), known


def _make_error(path: str | os.PathLike, what: str) -> ValueError:
    return make_error(path, what, _ADVICE, "Keras weights file")


def _call_or_refuse(path: str | os.PathLike, call: Callable, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # damaged files cause errors of many types in HDF5
        raise _make_error(path, join_first([" ".join(str(error).split())[:300]])) from error


def _list_entries(path: str | os.PathLike, file: Any) -> tuple[list[Entry], dict[str, Any]]:
    if "layers" not in file:
        raise ValueError(f"it has no group `layers`, only {sorted(file)[:5]}")
    known: dict[str, Any] = {}
    return list(_walk(path, _open_group(file, "layers"), "", known)), known


def _walk(
    path: str | os.PathLike, group: Any, prefix: str, known: dict[str, Any]
) -> Iterator[Entry]:
    if prefix.count("/") > _MAX_DEPTH:
        raise ValueError("its groups are nested too deeply")
    for key in group:
        if key == "vars":
            continue
        child = _open_group(group, key)
        if "vars" not in child:
            raise ValueError(f"its group {child.name} has no variables")
        variables = _open_group(child, "vars")
        name = variables.attrs.get("name")
        if not isinstance(name, str):
            raise ValueError("it has no layer names, like files of old Keras versions")
        layer = prefix + name
        _collect(known, variables)
        numbers = sorted((index for index in variables if index != _CONSTANTS), key=int)
        for index, leaf in zip(numbers, _name_variables(layer, len(numbers)), strict=True):
            dataset = _open_dataset(variables, index)
            load = partial(_call_or_refuse, path, _load, dataset)
            yield Entry(
                name=f"{layer}/{leaf}", shape=dataset.shape, dtype=_dtype_of(dataset), load=load
            )
        yield from _walk(path, child, f"{layer}/", known)


def _open_group(parent: Any, key: str) -> Any:
    import h5py

    child = _follow_link(parent, key)
    if not isinstance(child, h5py.Group):
        raise ValueError(f"{child.name} is not a group")
    return child


def _open_dataset(parent: Any, key: str) -> Any:
    """Opens a dataset, and checks that all its numbers are stored in this file."""
    import h5py

    child = _follow_link(parent, key)
    if not isinstance(child, h5py.Dataset) or child.shape is None:
        raise ValueError(f"{child.name} is not an array")
    if child.is_virtual or child.external:
        raise ValueError(f"{child.name} is stored in another file")
    if child.chunks is None and child.id.get_storage_size() != child.size * child.dtype.itemsize:
        raise ValueError(
            f"{child.name} has {child.id.get_storage_size()} bytes, too few for the shape "
            f"{child.shape}"
        )
    if (
        child.chunks is not None
        and np.prod(child.chunks, dtype=float) * child.dtype.itemsize > _MAX_CHUNK_BYTES
    ):
        raise ValueError(
            f"{child.name} is compressed in chunks of shape {child.chunks}, which take too much "
            "memory"
        )
    return child


def _follow_link(parent: Any, key: str) -> Any:
    import h5py

    if not isinstance(parent.get(key, getlink=True), h5py.HardLink):
        raise ValueError(f"{parent.name}/{key} is missing, or stored in another place")
    return parent[key]


def _dtype_of(dataset: Any) -> np.dtype:
    import h5py

    # h5py maps text, references and enums to NumPy types that look like numbers or objects.
    if (
        dataset.dtype.metadata
        or h5py.check_string_dtype(dataset.dtype)
        or h5py.check_enum_dtype(dataset.dtype)
    ):
        return np.dtype(object) if dataset.dtype != np.dtype(bool) else dataset.dtype
    return dataset.dtype


def _load(dataset: Any) -> np.ndarray:
    array = np.empty(dataset.shape, dataset.dtype)
    if array.size:
        dataset.read_direct(array)
    return array


def _collect(known: dict[str, Any], variables: Any) -> None:
    """Adds the constants that a layer stored, and checks that all layers agree."""
    if _CONSTANTS not in variables:
        return
    dataset = _open_dataset(variables, _CONSTANTS)
    if dataset.dtype != np.uint8 or not 9 < dataset.size < _MAX_CONSTANTS_BYTES:
        raise ValueError(f"{dataset.name} is not a text")
    checksum, text = _load(dataset).tobytes().split(b" ", 1)
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError(f"bad checksum of {dataset.name}")
    for key, value in metadata.parse(text).items():
        if known.setdefault(key, value) != value:
            raise ValueError(f"its layers disagree about {key}: {known[key]} and {value}")


def _name_variables(layer: str, count: int) -> tuple[str, ...]:
    """Returns the names of the variables of a layer, in the order in which `build` creates them."""
    own = layer.split("/")[-1]
    if own == "class_token":
        names: tuple[str, ...] = ("cls",)
    elif own.startswith("posembed"):
        names = (
            ("pos_embedding",)
            if count == 1
            else ("row_embedding", "column_embedding", "prefix_embedding")
        )
    elif own == "map_head":
        names = ("probe",)
    elif own in ("attention", "row", "column"):
        names = ("relative_embedding",)
    elif own.startswith("gn") or "norm" in own:
        names = ("gamma", "beta")
    else:
        names = ("kernel", "bias")
    if count > len(names):
        raise ValueError(f"its layer {layer} has {count} variables, expected at most {len(names)}")
    return names[:count]
