"""Keras's own `.weights.h5` files, under our names.

Keras addresses layers by class and order and records their names beside; the variables of a layer it only
counts. Both are turned into names, so that such a file goes through the same strict restore, with the
same resizing of positions, as every other.

Source: keras-team/keras, keras/src/saving/saving_lib.py (the layout of the file).
"""

import os
from collections.abc import Iterator, Mapping

import numpy as np


def is_hdf5(path: str | os.PathLike) -> bool:
    """Tells by its first bytes whether a file is HDF5."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as stream:
        return stream.read(8) == b"\x89HDF\r\n\x1a\n"


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns {our name: array} of a `.weights.h5` file that `model.save_weights` wrote.

    Raises:
        ValueError: If the file is damaged, or is no weights file of a current Keras.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "layers" not in file:
                raise ValueError(f"it has no group `layers`, only {sorted(file)[:5]}")
            return dict(_walk(file["layers"], ""))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"Cannot read '{os.fspath(path)}' as a Keras weights file: {error}. Write it again with "
            "`model.save_weights`, or load a whole `.keras` file with `keras.saving.load_model`."
        ) from None


def _walk(group: Mapping, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    for child in group.values():
        if "vars" not in child:
            raise ValueError(f"its group {child.name} has no variables")
        variables = child["vars"]
        if "name" not in variables.attrs:
            raise ValueError("it records no layer names, as files of old Keras versions")
        layer = prefix + variables.attrs["name"]
        for index, leaf in zip(sorted(variables, key=int), _leaves(layer, len(variables)), strict=True):
            yield f"{layer}/{leaf}", variables[index][()]
        yield from _walk({name: item for name, item in child.items() if name != "vars"}, f"{layer}/")


def _leaves(layer: str, count: int) -> tuple[str, ...]:
    """The names of the variables of a layer, in the order in which its `build` makes them."""
    own = layer.split("/")[-1]
    if own == "class_token":
        names: tuple[str, ...] = ("cls",)
    elif own.startswith("posembed"):
        names = ("pos_embedding",) if count == 1 else ("row_embedding", "column_embedding", "prefix_embedding")
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
