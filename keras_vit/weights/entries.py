"""The arrays of a file before they are read: declared shapes and types, checks, and reading.

This code is shared by all kinds of file; `npz.py`, `tensors.py` and `keras_h5.py` are specific.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit.weights.refusal import join_first, make_error

# From the declared arrays of a file, as arrays that take no memory, and its metadata, to the names
# to read.
Choose = Callable[[dict[str, np.ndarray], dict[str, Any]], Collection[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An array of a file.

    Attributes:
        name: Name in the file.
        shape: Shape of the array.
        dtype: Type of the array. bfloat16, which NumPy does not have, is two raw bytes.
        load: Function that reads the array. It is called from several threads.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], np.ndarray]


def make_stand_ins(entries: Iterable[Entry]) -> dict[str, np.ndarray]:
    """Returns an array for each entry that has its shape and type after reading, without memory."""
    return {
        entry.name: np.broadcast_to(
            np.zeros((), np.float32 if _is_half(entry.dtype) else entry.dtype), entry.shape
        )
        for entry in entries
    }


def check(path: str | os.PathLike, entries: Collection[Entry]) -> None:
    """Raises ValueError for arrays without numbers, duplicate names, and impossible shapes."""
    if not entries:
        raise make_error(path, "it contains no arrays")
    pickled = [entry.name for entry in entries if entry.dtype.hasobject]
    if pickled:
        advice = (
            "Pickles are never read, because they can run code. Save plain arrays with "
            "`numpy.savez(path, **arrays)`."
        )
        raise make_error(path, f"it contains pickled objects ({join_first(pickled)})", advice)
    strange = [f"{entry.name}: {entry.dtype}" for entry in entries if not _is_number(entry.dtype)]
    if strange:
        raise make_error(
            path,
            f"it contains types that are not numbers ({join_first(strange)})",
            "Save them as float32.",
        )
    twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twice:
        raise make_error(path, f"it contains several arrays of one name ({join_first(twice)})")
    impossible = [
        f"{entry.name}: {len(entry.shape)} axes"
        for entry in entries
        if len(entry.shape) > 32 or math.prod(max(side, 1) for side in entry.shape) > 2**56
    ]
    if impossible:
        raise make_error(path, f"it contains arrays of impossible shape ({join_first(impossible)})")


def read(
    path: str | os.PathLike,
    entries: Collection[Entry],
    metadata: dict[str, Any],
    choose: Choose | None = None,
) -> dict[str, np.ndarray]:
    """Reads the chosen arrays, by default all. Half-precision floats become float32.

    Raises:
        ValueError: If there are no arrays, if types are not numbers, if `choose` rejects the
            declared arrays, or if values are not finite.
    """
    check(path, entries)
    if choose is not None:
        chosen = set(choose(make_stand_ins(entries), metadata))
        entries = [entry for entry in entries if entry.name in chosen]
    # Copies and checksums release the interpreter lock, so two cores halve the time.
    with ThreadPoolExecutor() as pool:
        arrays = dict(pool.map(lambda entry: (entry.name, _widen(entry.load())), entries))
    check_finite(path, arrays)
    return arrays


def check_finite(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError for NaN, infinity, and float64 values beyond the range of float32.

    A sum is one pass without a temporary array. If it is not finite, each value is checked.
    """
    floats = {
        name: array for name, array in arrays.items() if array.dtype.kind == "f" and array.size
    }
    with np.errstate(all="ignore"):
        wrong = [
            name
            for name, array in floats.items()
            if not (np.isfinite(array.sum()) or np.isfinite(array).all())
        ]
    if wrong:
        raise make_error(
            path,
            f"it contains NaN or infinite values in {join_first(wrong)}",
            "Its training may have diverged. Use an earlier checkpoint.",
        )
    largest = float(np.finfo(np.float32).max)
    beyond = [
        name
        for name, array in floats.items()
        if array.dtype.itemsize > 4 and max(array.max(), -array.min()) > largest
    ]
    if beyond:
        raise make_error(
            path,
            f"it contains numbers beyond the range of float32 in {join_first(beyond)}",
            "Save them as float32.",
        )


def _is_half(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind in "fV"


def _is_number(dtype: np.dtype) -> bool:
    # Floats of more than 8 bytes differ between machines, so they are not accepted.
    is_bfloat16 = (
        dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None
    )
    return is_bfloat16 or (dtype.kind in "biuf" and dtype.itemsize <= 8)


def _widen(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        # bfloat16 is the upper half of a float32. `asarray`: a shifted 0-d array is a scalar.
        wide = np.asarray(array.view(np.uint16)).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array
