"""Principal components of the filters of a model, and similarity of its position embeddings.

Both are computed from the weights, without images.

Source: arXiv:2010.11929, section 4.5 and Figures 7 and 10.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import keras
import numpy as np

from keras_vit.layers import AddPositionEmbs, PatchEmbedding, RotaryPositions, StdConv2D


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterComponents:
    """Principal components of the filters that read the image.

    Attributes:
        components: (K, P, P, C) float64, orthonormal, in descending order of variance.
        explained: (K,) float64, the explained share of the variance.
    """

    components: np.ndarray
    explained: np.ndarray


def filter_components(model: keras.Model, num_components: int = 28) -> FilterComponents:
    """Returns the principal components of the filters with which a model reads its images.

    For a ViT, the filters are the D columns of the patch embedding, each an image of P x P pixels.
    For a hybrid or a ResNet, they are those of the root convolution, after standardization. The
    mean over the filters is subtracted. The sign of a component is arbitrary; here the value with
    the largest magnitude is positive.

    Args:
        model: A model of this package, or one that contains such a model.
        num_components: Maximum number of components. D filters have at most D - 1, and no more than
            a filter has values. The paper shows 28.

    Returns:
        The components. If all filters are equal, each explains 0.

    Raises:
        ValueError: If the model has no such filters, contains several models with such filters, or
            they are not finite; or if `num_components` is below 1.

    Example:
        >>> found = filter_components(keras_vit.ViT_Ti16(weights=None), 4)
        >>> found.components.shape, found.explained.shape
        ((4, 16, 16, 3), (4,))

    Source: arXiv:2010.11929, section 4.5 and Figure 7, left. The centering and the sign are choices
        of this package.
    """
    if num_components < 1:
        raise ValueError(f"`num_components` must be at least 1. Received: {num_components}.")
    kernel = _read_filters(model)
    if not np.isfinite(kernel).all():
        raise ValueError(
            f"The filters of {model.name} are not finite. Its training has diverged, or its file "
            f"is damaged."
        )
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    count = min(num_components, max(len(filters) - 1, 1), filters.shape[1])
    axes = _find_principal_axes(filters, count)
    farthest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    variances = np.square(filters @ axes.T).sum(axis=0)
    return FilterComponents(
        components=(axes * np.where(farthest < 0, -1.0, 1.0)).reshape(count, *kernel.shape[:3]),
        explained=variances / (np.square(filters).sum() or 1.0),
    )


def _find_principal_axes(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns the first principal axes, (count, D), of the rows (N, D)."""
    # Decomposing the smaller Gram matrix is five times as fast as decomposing `rows`.
    if len(rows) > rows.shape[1]:
        return np.linalg.eigh(rows.T @ rows)[1].T[::-1][:count]
    mixtures = np.linalg.eigh(rows @ rows.T)[1][:, ::-1][:, :count]
    # QR returns axes of length 1 even if there is no variance.
    return np.linalg.qr(rows.T @ mixtures)[0].T


def _read_filters(model: keras.Model) -> np.ndarray:
    """Returns the filters, (P, P, C, D) float64."""
    layers = list(_walk_layers(model))
    # A hybrid has both; its root convolution reads the image.
    roots = [
        layer for layer in layers if isinstance(layer, StdConv2D) and layer.name == "conv_root"
    ]
    readers = roots or [layer for layer in layers if isinstance(layer, PatchEmbedding)]
    if not readers:
        raise ValueError(
            f"{model.name} has no patch embedding and no root convolution of this package. Pass a "
            "model of this package, or one that contains such a model."
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
    """Returns whether a model has absolute position embeddings, as `position_similarity` needs."""
    return bool(_find_position_layers(model))


def position_similarity(model: keras.Model, layer: str | int | None = None) -> np.ndarray:
    """Returns the cosine similarity of the position embeddings of all pairs of patches.

    The embeddings are those of the grid for which the table was created. Those of prefix tokens,
    such as the class token, are excluded. An embedding of zeros has similarity 0, also to itself.

    Args:
        model: A model of this package, or one that contains such a model.
        layer: If positions are added before every block: index of the block, from 0, or name of the
            layer. Default: the first.

    Returns:
        (R, C, R, C) float32 from -1 to 1: row and column of one patch, row and column of the other.

    Raises:
        ValueError: If the model adds no position embeddings, has no such layer, contains several
            models with positions, or the embeddings are not finite.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, position_embedding="sincos2d")
        >>> similarity = position_similarity(model)
        >>> similarity.shape, float(similarity[3, 5, 3, 5])
        ((14, 14, 14, 14), 1.0)

    Source: arXiv:2010.11929, section 4.5, Figure 7, centre, and Figure 10.
    """
    table = _compute_table(_select_layer(model, layer))
    if not np.isfinite(table).all():
        raise ValueError(
            f"The positions of {model.name} are not finite. Its training has diverged, or its file "
            f"is damaged."
        )
    # Divide by the largest value first, so that squares of very small or large numbers neither
    # underflow nor overflow.
    table /= np.maximum(np.abs(table).max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    directions = table / np.where(lengths > 0, lengths, 1.0)
    similarity = np.tensordot(directions, directions, axes=(-1, -1))
    return np.clip(similarity, -1.0, 1.0).astype(np.float32)


def _select_layer(model: keras.Model, layer: str | int | None) -> AddPositionEmbs:
    layers = _find_position_layers(model)
    if not layers:
        raise ValueError(_explain_absence(model))
    names = [each.name for each in layers]
    _refuse_several(model, [each for each in layers if each.name == names[0]], "add positions")
    place = names.index(layer) if layer in names else 0 if layer is None else layer
    if not isinstance(place, int) or not 0 <= place < len(layers):
        raise ValueError(
            f"{model.name} adds position embeddings in {len(layers)} "
            f"layer{'s' * (len(layers) > 1)}: {', '.join(names)}. `layer` must be one of these "
            f"names or a number from 0 to {len(layers) - 1}. Received: {layer!r}."
        )
    return layers[place]


def _compute_table(layer: AddPositionEmbs) -> np.ndarray:
    """Returns the position embeddings, (R, C, D) float64."""
    # Apply a float32 copy of the layer to zeros: the model may compute in another precision.
    exact = AddPositionEmbs.from_config({**layer.get_config(), "dtype": "float32"})
    built = layer.get_build_config()
    width = built.get("shapes_dict", {}).get("tokens_shape", built.get("input_shape"))[-1]
    rows, columns = layer.grid
    tokens = keras.ops.zeros((1, layer.num_prefix_tokens + rows * columns, width), "float32")
    exact.build(tokens.shape)
    exact.set_weights(layer.get_weights())
    added = keras.ops.convert_to_numpy(exact(tokens))[0, layer.num_prefix_tokens :]
    return added.reshape(rows, columns, width).astype(np.float64)


def _explain_absence(model: keras.Model) -> str:
    if any(getattr(layer, "relative_positions", None) for layer in _walk_layers(model)):
        return (
            f"{model.name} has relative positions: each block embeds offsets between patches, not "
            "positions. Use the mean attention distance (`summarize_attention`) instead."
        )
    if any(isinstance(layer, RotaryPositions) for layer in _walk_layers(model)):
        return (
            f"{model.name} has rotary positions: they rotate queries and keys, and no embedding is "
            "added. Use the mean attention distance (`summarize_attention`) instead."
        )
    return (
        f"{model.name} has no position embeddings. Pass a model with "
        'position_embedding="learned_1d", "learned_2d" or "sincos2d".'
    )


def _find_position_layers(model: keras.Model) -> list[AddPositionEmbs]:
    """Returns the layers in the order in which they are called."""
    return [layer for layer in _walk_layers(model) if isinstance(layer, AddPositionEmbs)]


def _walk_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
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
        raise ValueError(
            f"{model.name} contains {len(layers)} models that {does}. Pass one of these models."
        )
