"""What `weights=` may mean, and what it brings: a tag, a file or a URL becomes arrays under our names.

Joins the catalog, the download, the reader and the dialects; knows no framework.
"""

import dataclasses
import os
from typing import Any, Literal

import numpy as np

from keras_vit import grid
from keras_vit.weights import catalog, dialects, download, files, keras_h5, layouts, variables

_READABLE = (".npz", ".safetensors", ".h5")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where weights are, before anything is read.

    Attributes:
        model: Public name of the model that asked.
        weights: What the caller passed.
        row: The catalog's row, or None for an unknown file or URL.
        is_tag: Whether `weights` was looked up in the catalog by its tag.
    """

    model: str
    weights: str
    row: catalog.CatalogRow | None
    is_tag: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights that were read, and what is known of them.

    Attributes:
        arrays: {our name: array}.
        origin: What error messages call them.
        image_size: (height, width) of their training images where known.
        grid: (rows, columns) of their position table where known, or where it must be a square.
        gelu: "tanh" or "exact".
        norm_epsilon: Of layer normalization, where the file says.
        representation_size: Width of their tanh layer, or None.
        head_is_zero: Whether their final layer was never trained.
    """

    arrays: dict[str, np.ndarray]
    origin: str
    image_size: tuple[int, int] | None
    grid: tuple[int, int] | None
    gelu: Literal["tanh", "exact"]
    norm_epsilon: float | None
    representation_size: int | None
    head_is_zero: bool


def find(model: str, weights: str | os.PathLike) -> Source:
    """Tells what `weights` is, without reading or downloading it.

    Raises:
        ValueError: If it is neither a file, nor a URL, nor a tag of this model.
    """
    weights = os.fspath(weights)
    if os.path.exists(weights) or "://" in weights:
        row = catalog.by_file_name(weights)
        return Source(model=model, weights=weights, row=row if row and row.model == model else None, is_tag=False)
    try:
        return Source(model=model, weights=weights, row=catalog.lookup(model, weights), is_tag=True)
    except ValueError as error:
        no_file = weights.endswith(_READABLE) or os.sep in weights
        raise ValueError(
            "The `weights` argument should be either `None` (random initialization), `imagenet` (pre-training on "
            "ImageNet), a tag of the catalog, a URL, or the path to the weights file to be loaded.  Received: "
            f"weights={weights}" + (" (there is no such file)" if no_file else "") + f"\n{error}"
        ) from None


def load(source: Source) -> Pretrained:
    """Downloads where needed, reads and translates.

    Raises:
        ValueError: If the file is damaged, unsafe, of an unknown layout, or not finite.
        OSError: If it cannot be had.
    """
    path = source.weights
    if source.is_tag or "://" in path:
        path = download.fetch(source.row if source.row is not None else path)
    if keras_h5.is_hdf5(path):
        arrays = keras_h5.read(path)
        files.check_finite(path, arrays)
        return _describe(source, {}, arrays, "keras")
    checkpoint = files.read(path)
    known = checkpoint.metadata
    canonical = dialects.to_canonical(checkpoint.arrays, known.get("num_heads"), known.get("grid"))
    pretrained = _describe(source, known, variables.to_keras(canonical), dialects.detect(checkpoint.arrays))
    shape = _looks_like(canonical)
    if shape in (None, source.model):
        return pretrained
    return dataclasses.replace(pretrained, origin=f"{source.weights}, whose arrays are those of {shape},")


def _looks_like(canonical: dict[str, np.ndarray]) -> str | None:
    """The model of the table that an error message should name, if there is one."""
    try:
        return layouts.identify(canonical)
    except ValueError:
        return None


def _describe(source: Source, metadata: dict[str, Any], arrays: dict[str, np.ndarray], dialect: str) -> Pretrained:
    size = metadata.get("image_size")
    if size is None and source.row is not None:
        size = (source.row.image_size, source.row.image_size)
    kernel = arrays.get("predictions/kernel")
    tanh_bias = arrays.get("pre_logits/bias")
    gelu = metadata.get("gelu") or (source.row and source.row.gelu)
    return Pretrained(
        arrays=arrays,
        origin=source.weights,
        image_size=(size[0], size[1]) if size else None,
        grid=_table_grid(metadata, arrays),
        gelu=gelu or ("exact" if dialect in ("timm", "huggingface") else "tanh"),
        norm_epsilon=metadata.get("layer_norm_epsilon"),
        representation_size=None if tanh_bias is None else tanh_bias.shape[0],
        head_is_zero=kernel is not None and not kernel.any(),
    )


def _table_grid(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[int, int] | None:
    """The grid that the file records, or that of the square image that its table must be of."""
    if metadata.get("grid"):
        rows, columns = metadata["grid"]
        return rows, columns
    table = arrays.get("posembed_input/pos_embedding")
    if table is None or table.ndim != 3:
        return None
    try:
        return grid.square_grid(table.shape[1] - ("class_token/cls" in arrays))
    except ValueError:
        return None


def zero_head_message(source: Source) -> str:
    """What to say when `include_top=True` meets a head that was never trained."""
    alternative = source.row and catalog.alternative_with_head(source.row)
    return (
        f"The classification head of {source.weights} is all zeros (Google published its ImageNet-21k files so): "
        "every class would get the same score. Use `include_top=False`"
        + (f', or `weights="{alternative}"`, which has a trained head' if alternative else "")
        + f'. Tags of {source.model} are listed by `keras_vit.list_weights("{source.model}")`.'
    )
