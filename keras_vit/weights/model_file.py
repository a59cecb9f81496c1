"""A weights file of any kind to arrays under canonical names or ours, and the checks per model.

The declared arrays are checked before they are read: their names must belong to a known dialect,
weights must be floats, and their size must be that of a model. So no file can use much more memory
than the model that it is loaded into.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from keras_vit import cost
from keras_vit.variants import VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import (
    configs,
    dialects,
    files,
    hdf5,
    keras_h5,
    layouts,
    transformers_h5,
    variables,
)
from keras_vit.weights.refusal import join_first, make_error

# float64 is twice as large as float32; the rest allows for a head of many classes.
_LARGEST_RATIO = 2.25
_ALWAYS_BYTES = 400 * 10**6
_MAX_TABLE_BYTES = 2**27
_TABLE = re.compile(r"pos(ition)?_embed")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """The content of a weights file.

    Attributes:
        arrays: {name: array}, with canonical names, or our names for a Keras file.
        metadata: Metadata, see `files.py`.
        dialect: "google", "timm", "huggingface", "openclip" or "keras".
        claimed: All arrays that the file declares, under its names, as arrays that take no memory.
            It includes optimizer slots and text towers, which are not read.
    """

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]
    dialect: str
    claimed: dict[str, np.ndarray]

    def canonical(self) -> dict[str, np.ndarray]:
        """Returns the arrays under canonical names."""
        return (
            _convert_from_keras(self.arrays, self.metadata)
            if self.dialect == "keras"
            else self.arrays
        )

    def ours(self) -> dict[str, np.ndarray]:
        """Returns the arrays under our names."""
        return self.arrays if self.dialect == "keras" else variables.to_keras(self.arrays)


def parameters_of(variant: ViTVariant | ResNetVariant) -> int:
    """Returns the number of parameters of a model with 1000 classes on images of 16 x 16 patches.

    Example:
        >>> parameters_of(VIT_VARIANTS["ViT_Ti16"])
        5728936
    """
    side = 16 * variant.total_stride
    return cost.parameters(variant, image_size=(side, side))


def read(
    path: str | os.PathLike,
    variant: ViTVariant | ResNetVariant | None = None,
    parameters: int | None = None,
) -> ModelFile:
    """Reads the arrays of a file that belong to a model.

    Args:
        path: A file, or a Hugging Face directory.
        variant: Row of the model that the file is loaded into. It has the facts that the file does
            not contain, such as the head count. Default: a row with the shapes of the file.
        parameters: Number of parameters of that model, which limits the size of the file. Default:
            that of the row.

    Raises:
        ValueError: If the file is damaged, unsafe, of an unknown layout, too large for the model,
            or not finite.
    """
    if parameters is None and variant is not None:
        parameters = parameters_of(variant)
    if hdf5.is_hdf5(path) and not transformers_h5.is_transformers(path):
        seen = _Seen(dialect="keras")
        arrays, metadata = keras_h5.read(path, partial(_choose, path, parameters, seen))
    else:
        seen = _Seen()
        checkpoint = files.read(path, partial(_choose, path, parameters, seen))
        metadata = checkpoint.metadata
        arrays = dialects.to_canonical(
            checkpoint.arrays,
            metadata.get("num_heads"),
            metadata.get("grid"),
            dialect=seen.dialect,
            variant=variant,
        )
        configs.check_arrays(path, arrays)
    return ModelFile(arrays=arrays, metadata=metadata, dialect=seen.dialect, claimed=seen.claimed)


def find_num_heads(arrays: Mapping[str, np.ndarray]) -> int | None:
    """Returns the head count of our arrays by their width. Only files of older versions, which had
    the paper's models alone, do not contain it.
    """
    if "encoder_norm/gamma" not in arrays:
        return None
    width = arrays["encoder_norm/gamma"].size
    heads = {row.num_heads for row in VIT_VARIANTS.values() if row.width == width}
    if len(heads) != 1:
        raise ValueError(
            "The file does not contain its number of attention heads, and no model has the width "
            f"{width}."
        )
    return heads.pop()


@dataclass(slots=True)
class _Seen:
    """The dialect and the declared arrays of a file, known before its arrays are read."""

    dialect: Any = None
    claimed: dict[str, np.ndarray] = field(default_factory=dict)


def _choose(
    path: str | os.PathLike,
    parameters: int | None,
    seen: _Seen,
    found: dict[str, np.ndarray],
    metadata: dict[str, Any],
) -> Collection[str]:
    """Returns the names to read, after checks, and fills in `seen`."""
    seen.claimed |= found
    seen.dialect = seen.dialect or dialects.detect(found)
    names = list(found) if seen.dialect == "keras" else dialects.names_of_model(found, seen.dialect)
    belonging = {name: found[name] for name in names}
    integers = [f"{name}: {x.dtype}" for name, x in belonging.items() if x.dtype.kind != "f"]
    if integers:
        raise make_error(
            path, f"its weights are not floats ({join_first(integers)})", "Save them as float32."
        )
    tables = [
        f"{name}: {x.shape}"
        for name, x in belonging.items()
        if _TABLE.search(name) and _size_of(x) > _MAX_TABLE_BYTES
    ]
    if tables:
        raise make_error(
            path, f"its position tables are larger than any model's ({join_first(tables)})"
        )
    size = sum(map(_size_of, belonging.values()))
    if size <= _ALWAYS_BYTES:
        return names
    expected = 4 * (
        _count_parameters(belonging, metadata, seen.dialect) if parameters is None else parameters
    )
    if size > max(_LARGEST_RATIO * expected, _ALWAYS_BYTES):
        largest = max(belonging, key=lambda name: _size_of(belonging[name]))
        what = f"its arrays take {size / 1e6:,.0f} MB, and the model takes {expected / 1e6:,.0f} MB"
        raise make_error(
            path,
            f"{what}; the largest is {largest}: {belonging[largest].shape}",
            "Choose the model of the file.",
        )
    return names


def _size_of(x: np.ndarray) -> int:
    return x.size * x.dtype.itemsize


def _count_parameters(
    belonging: dict[str, np.ndarray], metadata: dict[str, Any], dialect: str
) -> int:
    """Returns the number of parameters of the model with the shapes of the arrays.

    Position tables are left out: they do not identify the model, and converting could copy them.
    """
    plain = {name: x for name, x in belonging.items() if not _TABLE.search(name)}
    if dialect == "keras":
        canonical = _convert_from_keras(plain, metadata)
    else:
        canonical = dialects.to_canonical(plain, metadata.get("num_heads"), None)
    return parameters_of(VARIANTS[layouts.identify(canonical)])


def _convert_from_keras(
    arrays: Mapping[str, np.ndarray], metadata: dict[str, Any]
) -> dict[str, np.ndarray]:
    return variables.from_keras(arrays, metadata.get("num_heads") or find_num_heads(arrays))
