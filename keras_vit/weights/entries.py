"""Arrays of a file before they are read: what each claims to be, and how to read it.

What lives here: the checks that need no data, the reading itself, and the checks of the data; the
same for all kinds of file. What does not: the kinds (`npz.py`, `tensors.py`, `keras_h5.py`).
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

# From what the arrays of a file claim to be, as arrays that take no memory, and its metadata: the
# names to read.
Choose = Callable[[dict[str, np.ndarray], dict[str, Any]], Collection[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One array of a file.

    Attributes:
        name: As in the file.
        shape: That of the array.
        dtype: That of the array; bfloat16, which NumPy does not have, is two raw bytes.
        load: Reads it, in this shape and type. It is called from several threads.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], np.ndarray]


def make_stand_ins(entries: Iterable[Entry]) -> dict[str, np.ndarray]:
    """Returns for each entry an array of its shape that takes no memory, in the type that reading
    gives.
    """
    return {
        entry.name: np.broadcast_to(
            np.zeros((), np.float32 if _is_half(entry.dtype) else entry.dtype), entry.shape
        )
        for entry in entries
    }


def check(path: str | os.PathLike, entries: Collection[Entry]) -> None:
    """Refuses arrays that are no numbers, names that come twice, and shapes that no
    array can have.
    """
    if not entries:
        raise make_error(path, "it holds no arrays")
    pickled = [entry.name for entry in entries if entry.dtype.hasobject]
    if pickled:
        advice = "Pickles are never read: they can run code. Save plain arrays with `numpy.savez(path, **arrays)`."
        raise make_error(path, f"it holds pickled objects ({join_first(pickled)})", advice)
    strange = [f"{entry.name}: {entry.dtype}" for entry in entries if not _is_number(entry.dtype)]
    if strange:
        raise make_error(
            path,
            f"it holds types that are no numbers ({join_first(strange)})",
            "Save them as float32.",
        )
    twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twice:
        raise make_error(path, f"it holds several arrays of one name ({join_first(twice)})")
    impossible = [
        f"{entry.name}: {len(entry.shape)} axes"
        for entry in entries
        if len(entry.shape) > 32 or math.prod(max(side, 1) for side in entry.shape) > 2**56
    ]
    if impossible:
        raise make_error(path, f"it holds arrays of impossible shape ({join_first(impossible)})")


def read(
    path: str | os.PathLike,
    entries: Collection[Entry],
    metadata: dict[str, Any],
    choose: Choose | None = None,
) -> dict[str, np.ndarray]:
    """Reads the chosen arrays, by default all. Half-precision floats become float32.

    Raises:
        ValueError: If there is nothing to read, if types are no numbers, if `choose` refuses what
            the file claims to hold, or if numbers are not finite.
    """
    check(path, entries)
    if choose is not None:
        chosen = set(choose(make_stand_ins(entries), metadata))
        entries = [entry for entry in entries if entry.name in chosen]
    # Copies and checksums leave the interpreter free, so that two cores halve the time.
    with ThreadPoolExecutor() as pool:
        arrays = dict(pool.map(lambda entry: (entry.name, _widen(entry.load())), entries))
    check_finite(path, arrays)
    return arrays


def check_finite(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses NaN, infinity, and float64 numbers beyond float32, in which models compute.

    Sums first: one pass without a temporary; where a sum overflows, number by number.
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
            f"it holds NaN or infinite values in {join_first(wrong)}",
            "Was its training run diverging?",
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
            f"it holds numbers beyond the range of float32 in {join_first(beyond)}",
            "Save them as float32.",
        )


def _is_half(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind in "fV"


def _is_number(dtype: np.dtype) -> bool:
    # Longer floats have no place in a checkpoint, and their bytes differ from machine to machine.
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
