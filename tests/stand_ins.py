"""Small models under the published names, and files in place of downloads, for the pages that users
read.

Nothing else is replaced: rows, catalog, restoring and commands are those of the package, so calls,
shapes and files are tested, and no prediction of a published model is.
"""

import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

# Addresses of the Hugging Face Hub that pages name: model and classes.
ADDRESSES = {
    "hf://google/vit-base-patch16-224": ("ViT_B16", 1000),
    "hf://timm/vit_base_patch14_dinov2.lvd142m": ("DINOv2_B14", None),
}
SMALL = {"depth": 1, "mlp_dim": 32}
_IDENTITY: dict[str, int] = {}  # of the changed rows


def install(folder: Path, changes: Mapping[str, Any] = SMALL, *, in_table: bool = True) -> None:
    """Changes the rows of all models, or of `changes["only"]`, and writes random weights into
    `folder` instead of downloading. Without `in_table`, costs remain those of the published models.
    """
    import keras_vit
    from keras_vit import applications
    from keras_vit.variants import FAMILY_VARIANTS, RESNET_VARIANTS, VARIANTS, VIT_VARIANTS
    from keras_vit.weights import download

    changes = dict(changes)
    only = changes.pop("only", VARIANTS)
    for table in (VIT_VARIANTS, FAMILY_VARIANTS, RESNET_VARIANTS):
        for name, row in [(name, row) for name, row in table.items() if name in only]:
            row = _shrink(row, changes)
            if in_table:
                table[name] = VARIANTS[name] = row
            _IDENTITY[name] = zlib.crc32(repr(row).encode())
            door = applications.application(row)
            door.__doc__, door.__name__ = getattr(applications, name).__doc__, name
            setattr(applications, name, door)
            setattr(keras_vit, name, door)
    download.fetch = lambda source, *, progress=True: _write(folder, source)


def _shrink(row: Any, changes: Mapping[str, Any]) -> Any:
    if hasattr(row, "units"):
        return replace(row, units=(1,) * len(row.units))
    if row.stem is not None:
        changes = {**changes, "stem": replace(row.stem, units=(1,) * len(row.stem.units))}
    return replace(row, **changes)


def _write(folder: Path, source: Any) -> Path:
    """Returns a file with random weights of the model and the head of a row of the catalog."""
    import keras

    import keras_vit
    from keras_vit.weights import catalog

    if isinstance(source, str) and source in ADDRESSES:
        model, classes = ADDRESSES[source]
        size = 224
    else:
        row = catalog.by_file_name(source) if isinstance(source, str) else source
        if row is None:
            raise ConnectionError(f"No network in tests, and no stand-in for {source}.")
        model, classes, size = row.model, row.classes, row.image_size
    head = {"include_top": False} if classes is None else {"classes": classes}
    shape = (size, size, 3)
    path = folder / f"{model}-{classes}-{size}-{_IDENTITY.get(model, 0)}.weights.h5"
    if not path.exists():
        with keras.device("cpu"):
            made = getattr(keras_vit, model)(weights=None, input_shape=shape, **head)
        draws = np.random.default_rng(0)
        for variable in made.trainable_variables:
            value = keras.ops.convert_to_numpy(variable)
            if (
                value.ndim > 1
            ):  # initialized at random: whichever process writes, it writes the same
                value = draws.normal(0, np.prod(value.shape[:-1]) ** -0.5, value.shape)
            # The bias decides the class, so that rounding in exported files does not.
            scale = 3.0 if variable.path.endswith("predictions/bias") else 0.02
            variable.assign(value + scale * draws.normal(size=value.shape))
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            whole = Path(partial) / path.name
            made.save_weights(whole)
            os.replace(whole, path)
    return path
