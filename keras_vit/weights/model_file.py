"""A file of weights, of any kind, to arrays under canonical names or ours: the checks that need to
know models.

What a file claims to hold is looked at before anything is read: names must be somebody's, weights
must be floats, and their size must be that of a model, so that no file can ask for more memory than
the model that it is loaded into.
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
from keras_vit.weights import dialects, files, keras_h5, layouts, variables
from keras_vit.weights.refusal import join_first, make_error

# Twice the size is that of float64; the rest is for a head of many classes.
_LARGEST_RATIO = 2.25
_ALWAYS_BYTES = 400 * 10**6
_MAX_TABLE_BYTES = 2**27
_TABLE = re.compile(r"pos(ition)?_embed")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """What was read.

    Attributes:
        arrays: {name: array}: canonical names, or, of a Keras file, ours.
        metadata: See `files.py`.
        dialect: "google", "timm", "huggingface" or "keras".
        claimed: All that is in the file, under its own names, as arrays that take no memory; slots
            of an optimizer and a text tower are not read.
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


def read(path: str | os.PathLike, parameters: int | None = None) -> ModelFile:
    """Reads what belongs to a model.

    Args:
        path: A file, or a Hugging Face directory.
        parameters: Those of the model that the file is meant for; default: of the model whose
            shapes it has.

    Raises:
        ValueError: If the file is damaged, unsafe, of an unknown layout, too large for the model,
            or not finite.
    """
    if keras_h5.is_hdf5(path):
        seen = _Seen(dialect="keras")
        arrays, metadata = keras_h5.read(path, partial(_choose, path, parameters, seen))
    else:
        seen = _Seen()
        checkpoint = files.read(path, partial(_choose, path, parameters, seen))
        metadata = checkpoint.metadata
        arrays = dialects.to_canonical(
            checkpoint.arrays, metadata.get("num_heads"), metadata.get("grid"), dialect=seen.dialect
        )
    return ModelFile(arrays=arrays, metadata=metadata, dialect=seen.dialect, claimed=seen.claimed)


def find_num_heads(arrays: Mapping[str, np.ndarray]) -> int | None:
    """Returns the head count of our arrays by their width: all models of one width
    have the same.
    """
    if "encoder_norm/gamma" not in arrays:
        return None
    width = arrays["encoder_norm/gamma"].size
    heads = {row.num_heads for row in VIT_VARIANTS.values() if row.width == width}
    if len(heads) != 1:
        raise ValueError(
            f"The file does not tell its number of attention heads, and no model has the width "
            f"{width}."
        )
    return heads.pop()


@dataclass(slots=True)
class _Seen:
    """What is known of a file before its arrays are read: all that are in it, and whose names they
    have.
    """

    dialect: Any = None
    claimed: dict[str, np.ndarray] = field(default_factory=dict)


def _choose(
    path: str | os.PathLike,
    parameters: int | None,
    seen: _Seen,
    found: dict[str, np.ndarray],
    metadata: dict[str, Any],
) -> Collection[str]:
    """The names to read. Fills in `seen`."""
    seen.claimed |= found
    seen.dialect = seen.dialect or dialects.detect(found)
    names = layouts.names_of_model(found) if seen.dialect == "google" else list(found)
    belonging = {name: found[name] for name in names}
    integers = [f"{name}: {x.dtype}" for name, x in belonging.items() if x.dtype.kind != "f"]
    if integers:
        raise make_error(
            path, f"its weights are no floats ({join_first(integers)})", "Save them as float32."
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
            "Is it of another model?",
        )
    return names


def _size_of(x: np.ndarray) -> int:
    return x.size * x.dtype.itemsize


def _count_parameters(
    belonging: dict[str, np.ndarray], metadata: dict[str, Any], dialect: str
) -> int:
    """Those of the model whose shapes the arrays have. Tables tell nothing of it, and could be
    copied.
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
