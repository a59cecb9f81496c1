"""What `weights=` may mean, and what it brings: a tag, a file or a URL becomes arrays under our
names.

Joins the catalog, the download, the reader and the dialects; knows no framework.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from absl import logging

from keras_vit import grid
from keras_vit.variants import VARIANTS
from keras_vit.weights import catalog, download, layouts, model_file

_LARGEST_ZOOM = 64
_READABLE = (".npz", ".safetensors", ".h5")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WeightsSource:
    """Where weights are, before anything is read.

    Attributes:
        model: Public name of the model that asked.
        weights: What the caller passed.
        row: The catalog's row, or None for an unknown file or URL.
        is_tag: Whether `weights` was looked up in the catalog by its tag.
        parameters: Those of the model that asked, which bound what is read; None if not known.
    """

    model: str
    weights: str
    row: catalog.CatalogRow | None
    is_tag: bool
    parameters: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where weights come from. As text it also names the model whose arrays they are, if that is
    another one.

    Arrays are identified when the text is needed, which is for an error.
    """

    name: str
    model: str
    canonical: Mapping[str, np.ndarray] | None

    def __str__(self) -> str:
        try:
            found = self.model if self.canonical is None else layouts.identify(self.canonical)
        except ValueError:
            found = self.model
        return (
            self.name if found == self.model else f"{self.name}, whose arrays are those of {found},"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights that were read, and what is known of them.

    Attributes:
        arrays: {our name: array}.
        origin: What error messages call them, as text.
        image_size: (height, width) of their training images where known.
        grid: (rows, columns) of their position table where known, or where it must be a square.
        grid_is_known: Whether the file, or the catalog, says so.
        num_heads: Attention heads of their encoder where known.
        gelu: "tanh" or "exact".
        norm_epsilon: Of layer normalization, where the file says.
        representation_size: Width of their tanh layer, or None.
        head_is_zero: Whether their final layer was never trained.
    """

    arrays: dict[str, np.ndarray]
    origin: Origin
    image_size: tuple[int, int] | None
    grid: tuple[int, int] | None
    grid_is_known: bool
    num_heads: int | None
    gelu: Literal["tanh", "exact"]
    norm_epsilon: float | None
    representation_size: int | None
    head_is_zero: bool


def find(model: str, weights: str | os.PathLike, parameters: int | None = None) -> WeightsSource:
    """Tells what `weights` is, without reading or downloading it.

    Args:
        model: Public name of the model that asks.
        weights: Tag, file or URL.
        parameters: Those of the model, which bound what is read; default: of the model's row of the
            table.

    Raises:
        ValueError: If it is neither a file, nor a URL, nor a tag of this model.
    """
    weights = os.fspath(weights)
    if parameters is None and model in VARIANTS:
        parameters = model_file.parameters_of(VARIANTS[model])
    facts = {"model": model, "weights": weights, "parameters": parameters}
    if os.path.exists(weights) or "://" in weights:
        row = catalog.by_file_name(weights)
        return WeightsSource(row=row if row and row.model == model else None, is_tag=False, **facts)
    try:
        return WeightsSource(row=catalog.lookup(model, weights), is_tag=True, **facts)
    except ValueError as error:
        no_file = weights.endswith(_READABLE) or os.sep in weights
        raise ValueError(
            "The `weights` argument should be either `None` (random initialization), `imagenet` "
            "(pre-training on ImageNet), a tag of the catalog, a URL, or the path to the weights "
            "file to be loaded.  Received: "
            f"weights={weights}" + (" (there is no such file)" if no_file else "") + f"\n{error}"
        ) from None


def load(source: WeightsSource) -> Pretrained:
    """Downloads where needed, reads and translates.

    Raises:
        ValueError: If the file is damaged, unsafe, of an unknown layout, or not finite.
        OSError: If it cannot be had.
    """
    path = source.weights
    if source.is_tag or "://" in path:
        path = download.fetch(source.row if source.row is not None else path)
    return _describe(source, model_file.read(path, source.parameters))


def origin_of(source: WeightsSource) -> str:
    """Returns what messages call the weights: a URL without its password."""
    return download.without_secrets(source.weights)


def _describe(source: WeightsSource, found: model_file.ModelFile) -> Pretrained:
    metadata, arrays = found.metadata, found.ours()
    if found.dialect == "keras" and "gelu" not in metadata and "encoder_norm/gamma" in arrays:
        logging.warning(
            "%s does not record its form of GELU, its epsilons and its grid, as files of older "
            "versions: taken are the published ones, and a square. Save it again.",
            origin_of(source),
        )
    size = metadata.get("image_size")
    if size is None and source.row is not None:
        size = (source.row.image_size, source.row.image_size)
    kernel = arrays.get("predictions/kernel")
    tanh_bias = arrays.get("pre_logits/bias")
    gelu = metadata.get("gelu") or (source.row and source.row.gelu)
    return Pretrained(
        arrays=arrays,
        origin=Origin(
            name=origin_of(source),
            model=source.model,
            canonical=None if found.dialect == "keras" else _keep_shapes(found.arrays),
        ),
        image_size=(size[0], size[1]) if size else None,
        grid=_find_grid(metadata, arrays),
        grid_is_known="grid" in metadata or source.row is not None,
        num_heads=_find_num_heads(found),
        gelu=gelu or ("exact" if found.dialect in ("timm", "huggingface") else "tanh"),
        norm_epsilon=metadata.get("layer_norm_epsilon"),
        representation_size=None if tanh_bias is None else tanh_bias.shape[0],
        head_is_zero=kernel is not None and not kernel.any(),
    )


def _keep_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same names and shapes, which take no memory."""
    return {name: np.broadcast_to(np.float32(0), x.shape) for name, x in arrays.items()}


def _find_num_heads(found: model_file.ModelFile) -> int | None:
    """Of the encoder. Where a file has an axis for them, it is what counts."""
    for name, array in found.arrays.items():
        if (
            found.dialect != "keras"
            and name.startswith("Transformer/")
            and name.endswith("/query/kernel")
        ):
            return array.shape[1] if array.ndim == 3 else None
    return found.metadata.get("num_heads")


def _find_grid(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[int, int] | None:
    """The grid that the file records, or that of the square image that its table must be of."""
    if "grid" in metadata:
        return metadata["grid"]
    table = arrays.get("posembed_input/pos_embedding")
    if table is None or table.ndim != 3:
        return None
    try:
        return grid.square_grid(table.shape[1] - ("class_token/cls" in arrays))
    except ValueError:
        return None


def check_heads(pretrained: Pretrained, model: str, num_heads: int) -> None:
    """Refuses weights whose arrays fit the model, and were trained with another number of attention
    heads.
    """
    if pretrained.num_heads not in (None, num_heads):
        raise ValueError(
            f"{pretrained.origin} was trained with {pretrained.num_heads} attention heads, and "
            f"{model} has {num_heads}: the same arrays would compute something else. Take the "
            "model that it was made for."
        )


def check_grid(
    pretrained: Pretrained, grid_of: Callable[[tuple[int, int]], tuple[int, int]]
) -> None:
    """Refuses a file which says that it is of a grid and of images that do not belong together.

    Args:
        pretrained: What was read.
        grid_of: The (rows, columns) of the model's patches for an image size.
    """
    if not pretrained.grid_is_known or pretrained.grid is None or pretrained.image_size is None:
        return
    try:
        expected = grid_of(pretrained.image_size)
    # images that the patches do not tile: of no use here, but of none to judge by
    except ValueError:
        return
    stored, needed = math.prod(pretrained.grid), math.prod(expected)
    # A table may be of another size than the images, but not of another order; nor is it much
    # smaller.
    if pretrained.grid != expected and (stored == needed or stored * _LARGEST_ZOOM < needed):
        raise ValueError(
            f"{pretrained.origin} says that its images of {pretrained.image_size} pixels, which "
            f"have {expected} patches, are of a grid of {pretrained.grid}. Correct its metadata, "
            "or export it again."
        )


def zero_head_message(source: WeightsSource) -> str:
    """What to say when `include_top=True` meets a head that was never trained."""
    alternative = source.row and catalog.alternative_with_head(source.row)
    return (
        f"The classification head of {origin_of(source)} is all zeros (Google published its "
        f"ImageNet-21k files so): "
        "every class would get the same score. Use `include_top=False`"
        + (f', or `weights="{alternative}"`, which has a trained head' if alternative else "")
        + f'. Tags of {source.model} are listed by `keras_vit.list_weights("{source.model}")`.'
    )
