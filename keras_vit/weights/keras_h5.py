"""Keras's `.weights.h5` files, read under our names.

Keras addresses layers by class and order, and stores their names as attributes; it numbers the
variables of a layer. Both are converted to names, so that such a file is restored like any other,
with the same checks and the same resizing of positions. Layers of this package store the constants
that a reader needs beside their variables (`layers/constants.py`).

Source: keras-team/keras, keras/src/saving/saving_lib.py (the layout of the file).
"""

import os
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from keras_vit.weights import entries, hdf5, metadata
from keras_vit.weights.entries import Choose, Entry
from keras_vit.weights.refusal import make_error

_CONSTANTS = "constants"
_MAX_CONSTANTS_BYTES = 2**16
_MAX_DEPTH = 8
_ADVICE = "Write it again with `model.save_weights`, or load a whole `.keras` file with `keras.saving.load_model`."


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
    hdf5.check_end(path)
    refuse = partial(_make_error, path)
    with hdf5.call_or_refuse(refuse, hdf5.open_file, path) as file:
        found, known = hdf5.call_or_refuse(refuse, _list_entries, path, file)
        known = metadata.check(path, known)
        return entries.read(path, found, known, choose), known


def _make_error(path: str | os.PathLike, what: str) -> ValueError:
    return make_error(path, what, _ADVICE, "Keras weights file")


def _list_entries(path: str | os.PathLike, file: Any) -> tuple[list[Entry], dict[str, Any]]:
    if "layers" not in file:
        raise ValueError(f"it has no group `layers`, only {sorted(file)[:5]}")
    known: dict[str, Any] = {}
    return list(_walk(path, hdf5.open_group(file, "layers"), "", known, set())), known


def _walk(
    path: str | os.PathLike, group: Any, prefix: str, known: dict[str, Any], seen: set[int]
) -> Iterator[Entry]:
    if prefix.count("/") > _MAX_DEPTH:
        raise ValueError("its groups are nested too deeply")
    for key in group:
        if key == "vars":
            continue
        child = hdf5.open_group(group, key)
        hdf5.check_first_visit(child, seen)
        if "vars" not in child:
            raise ValueError(f"its group {child.name} has no variables")
        variables = hdf5.open_group(child, "vars")
        name = variables.attrs.get("name")
        if not isinstance(name, str):
            raise ValueError("it has no layer names, like files of old Keras versions")
        layer = prefix + name
        _collect(known, variables)
        numbers = sorted((index for index in variables if index != _CONSTANTS), key=int)
        for index, leaf in zip(numbers, _name_variables(layer, len(numbers)), strict=True):
            dataset = hdf5.open_dataset(variables, index)
            yield Entry(
                name=f"{layer}/{leaf}",
                shape=dataset.shape,
                dtype=hdf5.dtype_of(dataset),
                load=partial(
                    hdf5.call_or_refuse, partial(_make_error, path), hdf5.read_array, dataset
                ),
            )
        yield from _walk(path, child, f"{layer}/", known, seen)


def _collect(known: dict[str, Any], variables: Any) -> None:
    """Adds the constants that a layer stored, and checks that all layers agree."""
    if _CONSTANTS not in variables:
        return
    dataset = hdf5.open_dataset(variables, _CONSTANTS)
    if dataset.dtype != np.uint8 or not 9 < dataset.size < _MAX_CONSTANTS_BYTES:
        raise ValueError(f"{dataset.name} is not a text")
    checksum, text = hdf5.read_array(dataset).tobytes().split(b" ", 1)
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError(f"bad checksum of {dataset.name}")
    for key, value in metadata.parse(text).items():
        if known.setdefault(key, value) != value:
            raise ValueError(f"its layers disagree about {key}: {known[key]} and {value}")


def _name_variables(layer: str, count: int) -> tuple[str, ...]:
    """Returns the names of the variables of a layer, in the order in which `build` creates them."""
    own = layer.split("/")[-1]
    if own in ("class_token", "distillation_token"):
        names: tuple[str, ...] = ("cls",)
    elif own == "registers":
        names = ("registers",)
    elif own in ("attention_scale", "mlp_scale"):
        names = ("gamma",)
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
