"""HDF5 files that may be hostile: their end, their groups and arrays.

An array may be stored in another file, be a link to another place, or declare more numbers than
the file holds. All of these are refused. `keras_h5.py` and `transformers_h5.py` read what is left.

Source: the HDF5 file format, II.A (the superblock).
"""

import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.weights.refusal import join_first, make_error

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MAX_CHUNK_BYTES = 2**26


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
        raise make_error(path, "the HDF5 file is truncated or damaged")
    (end,) = struct.unpack_from("<Q", start, places[start[8]])
    if end > os.path.getsize(path):
        raise make_error(
            path, f"the HDF5 file is truncated, it has {os.path.getsize(path)} of {end} bytes"
        )


def open_file(path: str | os.PathLike) -> Any:
    """Opens a file for reading: an `h5py.File`. HDF5's errors are of many types."""
    import h5py

    return h5py.File(path, "r")


def call_or_refuse(refuse: Callable[[str], ValueError], call: Callable, *arguments: Any) -> Any:
    """Calls a function, and turns any error into one of `refuse`, with the message on one line."""
    try:
        return call(*arguments)
    except Exception as error:  # damaged files cause errors of many types in HDF5
        raise refuse(join_first([" ".join(str(error).split())[:300]])) from error


def is_group(item: Any) -> bool:
    """Returns whether an item of a file is a group."""
    import h5py

    return isinstance(item, h5py.Group)


def open_group(parent: Any, key: str) -> Any:
    """Opens a group of a group."""
    child = follow_link(parent, key)
    if not is_group(child):
        raise ValueError(f"{child.name} is not a group")
    return child


def open_dataset(parent: Any, key: str) -> Any:
    """Opens a dataset of a group, and checks that all its numbers are stored in this file."""
    import h5py

    child = follow_link(parent, key)
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


def follow_link(parent: Any, key: str) -> Any:
    """Opens a group or dataset of a group, unless it is a link to another place or file."""
    import h5py

    if not isinstance(parent.get(key, getlink=True), h5py.HardLink):
        raise ValueError(f"{parent.name}/{key} is missing, or stored in another place")
    return parent[key]


def check_first_visit(item: Any, seen: set[int]) -> None:
    """Raises ValueError for an item that was visited before, under another name.

    Groups that contain each other are infinitely many names, and a few groups with several names
    each are billions.

    Args:
        item: A group or a dataset.
        seen: Where visited items are in the file; extended by this one.
    """
    import h5py

    place = h5py.h5o.get_info(item.id).addr
    if place in seen:
        raise ValueError(f"{item.name} is also stored under another name")
    seen.add(place)


def dtype_of(dataset: Any) -> np.dtype:
    """Returns the type of a dataset: object for text, references and enums."""
    import h5py

    # h5py maps text, references and enums to NumPy types that look like numbers or objects.
    if (
        dataset.dtype.metadata
        or h5py.check_string_dtype(dataset.dtype)
        or h5py.check_enum_dtype(dataset.dtype)
    ):
        return np.dtype(object) if dataset.dtype != np.dtype(bool) else dataset.dtype
    return dataset.dtype


def read_array(dataset: Any) -> np.ndarray:
    """Reads a dataset."""
    array = np.empty(dataset.shape, dataset.dtype)
    if array.size:
        dataset.read_direct(array)
    return array
