"""TensorFlow's names of transformers 4 → the names and shapes of its PyTorch files.

transformers 4 wrote TensorFlow's names into `tf_model.h5`, and into safetensors files of the format
"tf". In TensorFlow dense kernels are (in, out) and convolutions HWIO, in PyTorch (out, in) and
OIHW. Arrays become views, so no bit changes.

Source: transformers 4.49 `modeling_tf_pytorch_utils.py` (which names it gives); checked by
    `tests/golden/transformers_h5`.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from keras_vit.weights.entries import Entry

_END = ":0"
_LEAVES = {"kernel": "weight", "gamma": "weight", "embeddings": "weight", "beta": "bias"}
# Layers that only TensorFlow has around the model.
_WRAPPERS = ("clip.",)
# The axes of a kernel in PyTorch's order, by their number.
_AXES = {2: (1, 0), 4: (3, 2, 0, 1)}


def to_pytorch(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries with PyTorch's names and shapes. Other names than TensorFlow's are kept."""
    return [_translate(entry) if _is_tensorflow(entry.name) else entry for entry in entries]


def translate_name(name: str) -> str:
    """Returns PyTorch's name of a weight of TensorFlow. Other names are returned unchanged.

    Example:
        >>> translate_name("vit/encoder/layer_._0/output/dense/kernel:0")
        'vit.encoder.layer.0.output.dense.weight'
    """
    if not _is_tensorflow(name):
        return name
    *modules, leaf = name.removesuffix(_END).replace("_._", ".").split("/")
    found = ".".join([*modules, _LEAVES.get(leaf, leaf)])
    for wrapper in _WRAPPERS:
        found = found.removeprefix(wrapper)
    return found


def drop_model(name: str) -> str:
    """Returns a name of an index of weights without the model, which its files do not name.

    Example:
        >>> drop_model("tf_vi_t_model/vit/embeddings/cls_token:0")
        'vit/embeddings/cls_token:0'
    """
    return name.partition("/")[2] or name if _is_tensorflow(name) else name


def _is_tensorflow(name: str) -> bool:
    return name.endswith(_END)


def _translate(entry: Entry) -> Entry:
    name, rank = translate_name(entry.name), len(entry.shape)
    if not entry.name.endswith(f"/kernel{_END}") or rank not in _AXES:
        return dataclasses.replace(entry, name=name)
    axes = _AXES[rank]

    def load() -> np.ndarray:
        return entry.load().transpose(axes)

    shape = tuple(entry.shape[axis] for axis in axes)
    return dataclasses.replace(entry, name=name, shape=shape, load=load)
