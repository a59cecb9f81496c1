"""The files `tf_model.h5` of transformers 4 on TensorFlow: HDF5 to entries.

Such a file has a group for each layer of the model, and in it the weights under TensorFlow's names:
`vit/tf_vi_t_model/vit/encoder/layer_._0/output/dense/kernel:0`. A file of weights in several files
has no groups of layers: `vit/encoder/layer_._0/output/dense/kernel:0`. The names of the entries are
those of the second form. `tensorflow_names.py` translates them.

Source: transformers 4.49 `modeling_tf_utils.py` (`save_pretrained`); tf-keras 2.19
    `saving/legacy/hdf5_format.py` (`save_weights_to_hdf5_group`).
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights import configs, hdf5
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import make_error

_MAX_DEPTH = 24
# Long lists are spread over several attributes, with a number behind the name.
_OF_FILE, _OF_LAYER = ("layer_names", "layer_names0"), ("weight_names", "weight_names0")


def is_transformers(path: str | os.PathLike) -> bool:
    """Returns whether an HDF5 file is of this kind: it lists its layers, and Keras 3 does not."""
    if not hdf5.is_hdf5(path):
        return False
    try:
        with hdf5.open_file(path) as file:
            return _lists(file, _OF_FILE)
    except Exception:  # a damaged file, which is refused when it is read
        return False


def list_entries(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the entries of a file, whose data are not yet read, and the metadata.

    The metadata are those of a `config.json` in the same directory.

    Raises:
        ValueError: If the file is damaged, or contains something else.
    """
    hdf5.check_end(path)
    found = hdf5.call_or_refuse(partial(make_error, path), _list_file, path)
    return found, configs.read_beside(path)


def _list_file(path: Path) -> list[Entry]:
    with hdf5.open_file(path) as file:
        return [
            Entry(
                name=_name_of(place, file),
                shape=dataset.shape,
                dtype=hdf5.dtype_of(dataset),
                load=partial(hdf5.call_or_refuse, partial(make_error, path), _load, path, place),
            )
            for place, dataset in _walk(file, (), set())
        ]


def _walk(group: Any, above: tuple[str, ...], seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """Yields each dataset and the names that lead to it."""
    if len(above) > _MAX_DEPTH:
        raise ValueError("its groups are nested too deeply")
    for key in group:
        child = hdf5.follow_link(group, key)
        hdf5.check_first_visit(child, seen)
        if hdf5.is_group(child):
            yield from _walk(child, (*above, key), seen)
        else:
            yield (*above, key), hdf5.open_dataset(group, key)


def _name_of(place: tuple[str, ...], file: Any) -> str:
    """Returns the name of a weight, from the name of its layer on."""
    if not _lists(file[place[0]], _OF_LAYER):
        return "/".join(place)
    # The name of the model comes before, unless its layers were built by themselves.
    layer, *name = place
    return "/".join(name[1:] if name[1:2] == [layer] else name)


def _lists(item: Any, names: tuple[str, ...]) -> bool:
    return any(name in item.attrs for name in names)


def _load(path: Path, place: tuple[str, ...]) -> np.ndarray:
    with hdf5.open_file(path) as file:
        group = file
        for key in place[:-1]:
            group = hdf5.open_group(group, key)
        return hdf5.read_array(hdf5.open_dataset(group, place[-1]))
