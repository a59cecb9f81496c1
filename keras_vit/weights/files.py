"""Files of arrays: path → {name: array}, and back for `.npz` and `.safetensors`.

`npz.py`, `tensors.py`, `torch_archive.py` and `transformers_h5.py` implement the formats. Nothing
is ever unpickled.

Metadata is a dict of JSON values. Google's files have none. Ours may contain "grid" (rows, columns)
of the position table, "gelu" ("tanh", "exact" or "quick"), "layer_norm_epsilon", "image_size"
(height, width), "num_heads", "pixel_mean" and "pixel_std" (red, green, blue; pixels from 0 to 1).
An npz stores it as JSON in the comment of the zip archive, which NumPy ignores; safetensors in
`__metadata__` of the header; Hugging Face in a separate `config.json`.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights import (
    entries,
    hdf5,
    npz,
    shards,
    tensorflow_names,
    tensors,
    torch_archive,
    transformers_h5,
    zip_archive,
)
from keras_vit.weights import metadata as facts
from keras_vit.weights.entries import Choose, Entry
from keras_vit.weights.refusal import AGAIN, join_first, make_error
from keras_vit.writing import write_atomically

# Other kinds of file: first bytes, name, and what to do.
_STRANGERS = (
    (
        b"\x80",
        "a pickle (an old PyTorch checkpoint)",
        "Pickles are never read. Save it as safetensors.",
    ),
    (b"\x93NUMPY", "a single array (.npy)", "Save all arrays of the model with `numpy.savez`."),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Run `git lfs pull`."),
    (b"<", "a web page (an error or a login form?)", "Download it again and look at the URL."),
    (b"{", "JSON text", "Name the file that contains the weights."),
)

_READERS = {
    "npz": npz,
    "safetensors": tensors,
    "torch": torch_archive,
    "transformers_h5": transformers_h5,
}
INDEX_SUFFIX = ".index.json"
# The files of a Hugging Face directory, in the order of preference.
IN_DIRECTORY = (
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
    "tf_model.h5",
    f"tf_model.h5{INDEX_SUFFIX}",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)

_PathLike = str | os.PathLike[str]
_Arrays = Mapping[str, np.ndarray]
_Metadata = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The content of a file, under the names of the file.

    Attributes:
        arrays: Arrays by name, in the order of the file. Half-precision floats become float32.
        metadata: Metadata, see the module docstring. May be empty.
    """

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def read(path: _PathLike, choose: Choose | None = None) -> Checkpoint:
    """Read and check the arrays of a checkpoint.

    The kind of file is detected from its content. bfloat16, which NumPy stores as two raw bytes,
    and float16 become float32. Other types, such as the step counter of an optimizer, are kept.

    Args:
        path: An `.npz` or `.safetensors` file, a PyTorch file (`.pth`, `.bin`), a `tf_model.h5` of
            transformers 4, the index of weights in several files
            (`model.safetensors.index.json`), or a Hugging Face directory.
        choose: Function that selects the names to read, or raises ValueError. Its arguments are
            arrays of the declared shapes and types, without memory, and the metadata. Default: all
            arrays.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is empty, truncated, damaged or of another kind, or if it contains
            pickled objects, types that are not numbers, values that are not finite, or invalid
            metadata.
    """
    path = find_file(path)
    is_index = path.name.endswith(INDEX_SUFFIX)
    unread, metadata = shards.list_entries(path, _list_entries) if is_index else _list_entries(path)
    return Checkpoint(arrays=entries.read(path, unread, metadata, choose), metadata=metadata)


def find_file(path: _PathLike) -> Path:
    """Return the file or index to read in a Hugging Face directory. Other paths are unchanged.

    Raises:
        ValueError: If it is a directory without weights.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    for name in IN_DIRECTORY:
        if (path / name).exists():
            return path / name
    advice = f"Name a file, or a Hugging Face directory with one of {', '.join(IN_DIRECTORY)}."
    raise make_error(path, "it is a directory without weights", advice)


def detect_kind(path: _PathLike) -> str:
    """Return the kind of a file, detected from its content.

    It is "npz", "safetensors", "torch", "transformers_h5" (transformers 4 on TensorFlow) or "h5"
    (Keras). Only the beginning and the end are read, which is enough to see that a download is
    complete.

    Raises:
        ValueError: If the file is of another kind, or if its end is missing.
    """
    with open(path := Path(path), "rb") as stream:
        head = stream.read(64)
    if not head:
        raise make_error(path, "it is empty (0 bytes)")
    if head.startswith(b"PK"):
        zip_archive.check_end(path)
        return "torch" if torch_archive.is_torch(path) else "npz"
    if head[8:9] == b"{":
        tensors.check_end(path)
        return "safetensors"
    if hdf5.is_hdf5(path):
        hdf5.check_end(path)
        return "transformers_h5" if transformers_h5.is_transformers(path) else "h5"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for start, what, advice in _STRANGERS:
        if text.startswith(start):
            raise make_error(path, f"it is {what}, not a file of weights", advice)
    raise make_error(path, f"it is not a file of weights; it begins with {head[:8]!r}", AGAIN)


def has_checksums(path: _PathLike) -> bool:
    """Whether the file contains checksums of its arrays, so that reading it finds any changed weight.

    Archives (`.npz`, PyTorch) do. Safetensors files do if this package wrote them; HDF5 files do not.

    Example:
        >>> write_npz("kernel.npz", {"kernel": np.zeros(3)})
        >>> has_checksums("kernel.npz")
        True
    """
    path = find_file(path)
    if path.name.endswith(INDEX_SUFFIX):
        parts = {path.with_name(name) for name in shards.read_index(path).values()}
        return all(has_checksums(part) for part in parts)
    kind = detect_kind(path)
    return tensors.has_checksums(path) if kind == "safetensors" else kind in ("npz", "torch")


def write_npz(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write an uncompressed npz that `numpy.load(path)` reads. Equal inputs give equal bytes.

    The file is written atomically: an older file of that name stays until the new one is complete.

    Args:
        path: The file to write.
        arrays: Arrays of numbers by name. The order is kept.
        metadata: JSON values.

    Raises:
        ValueError: If there are no arrays, if one does not contain numbers, or if the metadata are
            invalid or too large.
        OSError: If the file cannot be written.
    """
    arrays, metadata = _check_numbers(path, arrays), facts.check(path, metadata or {})
    with replacing(path) as stream:
        npz.write(stream, arrays, metadata)


def write_safetensors(path: _PathLike, arrays: _Arrays, metadata: _Metadata | None = None) -> None:
    """Write a safetensors file atomically. Equal inputs give equal bytes.

    Arguments and errors are those of `write_npz`.
    """
    arrays, metadata = _check_numbers(path, arrays), facts.check(path, metadata or {})
    with replacing(path) as stream:
        tensors.write(stream, arrays, metadata)


def write_huggingface(
    directory: _PathLike,
    arrays: _Arrays,
    metadata: _Metadata,
    config: _Metadata,
    preprocessor: _Metadata,
) -> None:
    """Write `model.safetensors`, `config.json` and `preprocessor_config.json` into a directory, each
    atomically.

    See `write_safetensors`.
    """
    directory = Path(directory).expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", arrays, metadata)
    contents = {"config.json": config, "preprocessor_config.json": preprocessor}
    for name, content in contents.items():
        with replacing(directory / name) as stream:
            stream.write(json.dumps(dict(content), indent=2).encode())


@contextlib.contextmanager
def replacing(path: _PathLike) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end of the block, unless it raises."""
    with write_atomically(Path(path).expanduser()) as partial, open(partial, "xb") as stream:
        yield stream


def _list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of a file, whose data are not yet read, and the metadata."""
    kind = detect_kind(path)
    if kind not in _READERS:
        raise make_error(
            path,
            "it is an HDF5 file of Keras, whose arrays have no names",
            "Keras weights are loaded with `model.load_weights(path)`.",
        )
    found, metadata = _READERS[kind].list_entries(path)
    return tensorflow_names.to_pytorch(found), metadata


def _check_numbers(path: _PathLike, arrays: _Arrays) -> dict[str, np.ndarray]:
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
            f"Only numbers can be written to '{os.fspath(path)}': {join_first(strange)}. Cast to float32."
        )
    return found
