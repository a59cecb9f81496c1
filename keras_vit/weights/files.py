"""Files of arrays: path → {name: array} and back, for `.npz` and `.safetensors`.

What lives here: telling the kinds apart, reading and writing whole files. What does not: the
formats themselves (`npz.py`, `tensors.py`, `keras_h5.py`), names (`layouts.py`, `dialects.py`),
fetching (`download.py`). Nothing is ever unpickled.

Metadata: a dict of JSON values. Google's files carry none; ours may hold "grid" (rows, columns) of
the position table, "gelu" ("tanh" or "exact"), "layer_norm_epsilon", "image_size" (height, width)
and "num_heads". In an npz they lie as JSON in the comment of the zip archive, which NumPy ignores;
in safetensors in the header's `__metadata__`; files of Hugging Face have a `config.json` beside
them instead.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights import entries, keras_h5, npz, shards, tensors, torch_archive, zip_archive
from keras_vit.weights import metadata as facts
from keras_vit.weights.entries import Choose, Entry
from keras_vit.weights.refusal import AGAIN, bad, some
from keras_vit.writing import write_atomically

# What a file is when it is not a checkpoint, by its first bytes, and what to do about it.
_STRANGERS = (
    (
        b"\x80",
        "a pickle (an old PyTorch checkpoint)",
        "Pickles are never read. Save it as safetensors.",
    ),
    (b"\x93NUMPY", "a single array (.npy)", "Save all arrays of the model with `numpy.savez`."),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Run `git lfs pull`."),
    (b"<", "a web page (an error or a login form?)", "Download it again and look at the URL."),
    (b"{", "JSON text", "Name the file that holds the weights."),
)

_READERS = {"npz": npz, "safetensors": tensors, "torch": torch_archive}
INDEX_SUFFIX = ".index.json"
# What a Hugging Face directory may hold; of several the first is read.
IN_DIRECTORY = (
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
)

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


def read(path: _PathLike, choose: Choose | None = None) -> Checkpoint:
    """Read the arrays of a checkpoint, or refuse the file as a whole.

    The kind of file is told by its content. bfloat16, which NumPy stores as two raw bytes, and
    float16 become float32; other types, such as an optimizer's step counter, stay as they are.

    Args:
        path: An `.npz` or `.safetensors` file, a PyTorch file (`.pth`, `.bin`), the index of a
            file that is split (`model.safetensors.index.json`), or a Hugging Face directory.
        choose: Says which arrays to read, by name, from arrays of their shapes and types that take
            no memory; or raises ValueError; it gets the metadata too. Default: all.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is empty, truncated, damaged or of another kind, or if it holds
            pickled objects, types that are no numbers, numbers that are not finite, or metadata
            that are not valid.
    """
    path = _file_of(Path(path))
    if keras_h5.is_hdf5(path):
        raise bad(
            path,
            "it is an HDF5 file, neither .npz nor .safetensors",
            "Keras weights are loaded with `model.load_weights(path)`.",
        )
    is_index = path.name.endswith(INDEX_SUFFIX)
    unread, metadata = shards.entries(path, _unread) if is_index else _unread(path)
    return Checkpoint(arrays=entries.read(path, unread, metadata, choose), metadata=metadata)


def kind(path: _PathLike) -> str:
    """Return "npz", "safetensors", "torch" or "h5", told by the content of a file, or say what the file is
    instead.

    It looks at the beginning and the end only: good enough to see that a download is complete.

    Raises:
        ValueError: If the file is none of them, or if its end is missing.
    """
    with open(path := Path(path), "rb") as stream:
        head = stream.read(64)
    if not head:
        raise bad(path, "it is empty (0 bytes)")
    if head.startswith(b"PK"):
        zip_archive.check_end(path)
        return "torch" if torch_archive.is_torch(path) else "npz"
    if head[8:9] == b"{":
        tensors.check_end(path)
        return "safetensors"
    if keras_h5.is_hdf5(path):
        keras_h5.check_end(path)
        return "h5"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for start, what, advice in _STRANGERS:
        if text.startswith(start):
            raise bad(path, f"it is {what}, and no file of weights", advice)
    raise bad(path, f"it is no file of weights; it begins with {head[:8]!r}", AGAIN)


def write_npz(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write an uncompressed npz that plain `numpy.load(path)` reads; the same input gives the same
    bytes.

    The file appears whole or not at all: an older file of that name stays until the new one is
        complete.

    Args:
        arrays: Name to array of numbers; the order is kept.
        metadata: JSON values to travel with the arrays.

    Raises:
        ValueError: If there are no arrays, if one does not hold numbers, or if the metadata is not
            valid or does not fit.
        OSError: If the file cannot be written.
    """
    arrays, metadata = _numbers(path, arrays), facts.check(path, metadata or {})
    with replacing(path) as stream:
        npz.write(stream, arrays, metadata)


def write_safetensors(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write a safetensors file; the same input gives the same bytes, and the file appears whole or
    not at all.

    Args and errors: as for `write_npz`.
    """
    arrays, metadata = _numbers(path, arrays), facts.check(path, metadata or {})
    with replacing(path) as stream:
        tensors.write(stream, arrays, metadata)


def write_huggingface(
    directory: _PathLike, arrays: _Arrays, metadata: _Metadata, config: _Metadata
) -> None:
    """Write `model.safetensors` and the `config.json` beside it, each whole or not at all; see
    `write_safetensors`.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", arrays, metadata)
    with replacing(directory / "config.json") as stream:
        stream.write(json.dumps(dict(config), indent=2).encode())


@contextlib.contextmanager
def replacing(path: _PathLike) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends well, and vanishes
    when it does not.
    """
    with write_atomically(Path(path)) as partial, open(partial, "xb") as stream:
        yield stream


def _file_of(path: Path) -> Path:
    """Returns the file or the index to read of a Hugging Face directory; any other path as it is."""
    if not path.is_dir():
        return path
    for name in IN_DIRECTORY:
        if (path / name).exists():
            return path / name
    advice = f"Name a file, or a Hugging Face directory with one of {', '.join(IN_DIRECTORY)}."
    raise bad(path, "it is a directory without weights", advice)


def _unread(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the arrays of a file, unread, and its metadata."""
    return _READERS[kind(path)].entries(path)


def _numbers(path: _PathLike, arrays: _Arrays) -> dict[str, np.ndarray]:
    if not arrays:
        raise ValueError(f"There are no arrays to write to '{os.fspath(path)}'.")
    found = {name: np.asarray(array) for name, array in arrays.items()}
    strange = [
        f"{name} ({array.dtype})"
        for name, array in found.items()
        if array.dtype.name not in tensors.TYPES
    ]
    if strange:
        raise ValueError(
            f"Only numbers can be written to '{os.fspath(path)}': {some(strange)}. Cast to float32."
        )
    return found
