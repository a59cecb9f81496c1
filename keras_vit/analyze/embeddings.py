"""What the embeddings of a model have learned: the filters of its patches, the neighbourhood of its
positions.

What lives here: principal components of the filters, similarities of the position embeddings. What
does not: their pictures (`plots.py`), and attention (`attention.py`). Both are read off the
    weights; no image is needed.

Source: arXiv:2010.11929, section 4.5 and Figures 7 and 10.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import keras
import numpy as np

from keras_vit.layers import AddPositionEmbs, PatchEmbedding, StdConv2D


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterComponents:
    """Principal components of the filters that read the image.

    Attributes:
        components: (K, P, P, C) float64, of length 1 and orthogonal to each other; the largest
            variance comes first.
        explained: (K,) float64: the share of each in the variance of all filters.
    """

    components: np.ndarray
    explained: np.ndarray


def filter_components(model: keras.Model, num_components: int = 28) -> FilterComponents:
    """Returns the principal components of the filters with which a model reads its images.

    Of a ViT, these filters are the D columns of the patch embedding, each a picture of P x P
    pixels. Of a hybrid or a ResNet they are those of the root convolution, standardized, as they
    meet the image. The mean over the filters is
    taken off first. The sign of a component is arbitrary: here its value farthest from 0 is above
        0.

    Args:
        model: Of this package, or one that contains such a model.
        num_components: How many, at most: D filters have no more than D - 1, nor more than a filter
            has values. The paper shows 28.

    Returns:
        The components; where all filters are the same, each explains 0.

    Raises:
        ValueError: If the model has no such filters, has those of several models, or they are not
            finite; or `num_components` is below 1.

    Example:
        >>> found = filter_components(keras_vit.ViT_Ti16(weights=None), 4)
        >>> found.components.shape, found.explained.shape
        ((4, 16, 16, 3), (4,))

    Source: arXiv:2010.11929, section 4.5 and Figure 7, left. The centering and the sign are choices
        of this package.
    """
    if num_components < 1:
        raise ValueError(f"`num_components` must be at least 1. Received: {num_components}.")
    kernel = _filters(model)
    if not np.isfinite(kernel).all():
        raise ValueError(
            f"The filters of {model.name} are not finite: its training has diverged, or its file "
            f"is broken."
        )
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    count = min(num_components, max(len(filters) - 1, 1), filters.shape[1])
    axes = _principal_axes(filters, count)
    farthest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    variances = np.square(filters @ axes.T).sum(axis=0)
    return FilterComponents(
        components=(axes * np.where(farthest < 0, -1.0, 1.0)).reshape(count, *kernel.shape[:3]),
        explained=variances / (np.square(filters).sum() or 1.0),
    )


def _principal_axes(rows: np.ndarray, count: int) -> np.ndarray:
    """(count, D) of (N, D), from the smaller of two Gram matrices: five times as fast as a
    decomposition of `rows`.
    """
    if len(rows) > rows.shape[1]:
        return np.linalg.eigh(rows.T @ rows)[1].T[::-1][:count]
    mixtures = np.linalg.eigh(rows @ rows.T)[1][:, ::-1][:, :count]
    return np.linalg.qr(rows.T @ mixtures)[0].T  # which gives axes of length 1 for no variance, too


def _filters(model: keras.Model) -> np.ndarray:
    """(P, P, C, D) float64."""
    layers = list(_layers(model))
    # A hybrid has both: what meets the image is the root.
    roots = [
        layer for layer in layers if isinstance(layer, StdConv2D) and layer.name == "conv_root"
    ]
    readers = roots or [layer for layer in layers if isinstance(layer, PatchEmbedding)]
    if not readers:
        raise ValueError(
            f"{model.name} has no patch embedding and no root convolution of this package. Pass a "
            f"model of this "
            "package, or one that contains such a model."
        )
    _refuse_several(model, readers, "read images")
    kernel = keras.ops.convert_to_numpy(readers[0].kernel).astype(np.float64)
    if not roots:
        return kernel
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    return centred / (
        np.sqrt(centred.var(axis=(0, 1, 2)) + roots[0].variance_epsilon) + roots[0].std_epsilon
    )


def has_positions(model: keras.Model) -> bool:
    """Returns whether `position_similarity` can be asked of a model: not where positions are
    relative, or none.
    """
    return bool(_position_layers(model))


def position_similarity(model: keras.Model, layer: str | int | None = None) -> np.ndarray:
    """Returns how similar the position embedding of each patch is to that of every other, as their
    cosine.

    The embeddings are those of the grid that the table is made for. Those of prefix tokens, such as
    the class token,
    are left out. An embedding that is all zeros has no direction: its similarity is 0, to itself
        too.

    Args:
        model: Of this package, or one that contains such a model.
        layer: Where positions are added before every block: which block, counted from 0, or the
            name of the layer.
            Default: the first.

    Returns:
        (R, C, R, C) float32 from -1 to 1: row and column of one patch, row and column of the other.

    Raises:
        ValueError: If the model adds no position embeddings (says what it has instead), has no such
            layer, has those of several models, or they are not finite.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, position_embedding="sincos2d")
        >>> similarity = position_similarity(model)
        >>> similarity.shape, float(similarity[3, 5, 3, 5])
        ((14, 14, 14, 14), 1.0)

    Source: arXiv:2010.11929, section 4.5, Figure 7, centre, and Figure 10.
    """
    table = _table(_chosen(model, layer))
    if not np.isfinite(table).all():
        raise ValueError(
            f"The positions of {model.name} are not finite: its training has diverged, or its file "
            f"is broken."
        )
    # By the largest value first: of very small or large numbers the squares would vanish, or not be
    # finite.
    table /= np.maximum(np.abs(table).max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    directions = table / np.where(lengths > 0, lengths, 1.0)
    similarity = np.tensordot(directions, directions, axes=(-1, -1))
    return np.clip(similarity, -1.0, 1.0).astype(np.float32)


def _chosen(model: keras.Model, layer: str | int | None) -> AddPositionEmbs:
    layers = _position_layers(model)
    if not layers:
        raise ValueError(_instead_of_positions(model))
    names = [each.name for each in layers]
    _refuse_several(model, [each for each in layers if each.name == names[0]], "add positions")
    place = names.index(layer) if layer in names else 0 if layer is None else layer
    if not isinstance(place, int) or not 0 <= place < len(layers):
        raise ValueError(
            f"{model.name} adds position embeddings in {len(layers)} "
            f"layer{'s' * (len(layers) > 1)}: "
            f"{', '.join(names)}. `layer` must be one of these names or a number from 0 to "
            f"{len(layers) - 1}. "
            f"Received: {layer!r}."
        )
    return layers[place]


def _table(layer: AddPositionEmbs) -> np.ndarray:
    """(R, C, D) float64: what the layer adds to tokens that are zero, whatever the precision of the
    model.
    """
    exact = AddPositionEmbs.from_config({**layer.get_config(), "dtype": "float32"})
    built = layer.get_build_config()
    width = built.get("shapes_dict", {}).get("tokens_shape", built.get("input_shape"))[-1]
    rows, columns = layer.grid
    tokens = keras.ops.zeros((1, layer.num_prefix_tokens + rows * columns, width), "float32")
    exact.build(tokens.shape)
    exact.set_weights(layer.get_weights())
    added = keras.ops.convert_to_numpy(exact(tokens))[0, layer.num_prefix_tokens :]
    return added.reshape(rows, columns, width).astype(np.float64)


def _instead_of_positions(model: keras.Model) -> str:
    if any(getattr(layer, "relative_positions", None) for layer in _layers(model)):
        return (
            f"{model.name} has relative positions: an embedding of each offset inside the "
            f"attention of each block, "
            "and none of each place. What it makes of them is seen in its attention distance "
            "(`summarize_attention`)."
        )
    return (
        f"{model.name} has no position embeddings. A ViT without them takes an image for a bag of "
        f"patches; a ResNet "
        'needs none. Pass a model with position_embedding="learned_1d", "learned_2d" or "sincos2d".'
    )


def _position_layers(model: keras.Model) -> list[AddPositionEmbs]:
    """In the order of the blocks before which they stand."""
    return [layer for layer in _layers(model) if isinstance(layer, AddPositionEmbs)]


def _layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model and of the models in it, each once."""
    seen: set[int] = set()
    waiting = [*model.layers]
    while waiting:
        layer = waiting.pop(0)
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            waiting = [*getattr(layer, "layers", ()), *waiting]


def _refuse_several(model: keras.Model, layers: list[keras.layers.Layer], does: str) -> None:
    if len(layers) > 1:
        raise ValueError(f"{len(layers)} models in {model.name} {does}. Pass one of these models.")
