"""Restores arrays under our names into a model: all of them, or none with an error.

Position tables are resampled, and first kernels adapted to other numbers of channels. `source.py`
reads files and converts foreign names.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import grid
from keras_vit.layers.positions import AddPositionEmbs


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PositionResize:
    """How to resample a position table of another size.

    Attributes:
        checkpoint_grid: (rows, columns) of the stored table. None if it is not known, as for
            published files: then a square is assumed if the number of positions is a square number,
            else the grid of the model. If the number is a square number, and also that of the
            non-square grid of the model, an error is raised.
        interpolation: Rule of resampling, one of `keras_vit.grid.INTERPOLATIONS`. See
            `keras_vit.grid.interpolation_matrix`.
    """

    checkpoint_grid: tuple[int, int] | None = None
    interpolation: str = "bilinear"


def named_variables(layers: Iterable[keras.layers.Layer]) -> dict[str, keras.Variable]:
    """Returns {our name: variable} of layers, such as `encoderblock_3/attention/query/kernel`."""
    named = {}
    for layer in layers:
        for variable in layer.weights:
            named[variable.path[variable.path.index(f"{layer.name}/") :]] = variable
    return named


def state(layers: Iterable[keras.layers.Layer]) -> dict[str, np.ndarray]:
    """Returns {our name: array} of layers."""
    return {
        name: keras.ops.convert_to_numpy(variable.value)
        for name, variable in named_variables(layers).items()
    }


def restore(
    layers: Iterable[keras.layers.Layer],
    arrays: Mapping[str, np.ndarray],
    *,
    skip: Iterable[str] = (),
    positions: PositionResize | None = None,
    origin: object = "the checkpoint",
) -> None:
    """Assigns each array to the variable of its name. If any does not match, nothing is assigned.

    Args:
        layers: The layers of a built model.
        arrays: {our name: array}.
        skip: Regular expressions that match whole names, such as `("predictions/.*",
            "pre_logits/.*")`. These may be absent on either side, and are not assigned.
        positions: How to resample a position table of another size.
        origin: Name of the source of the arrays, for error messages.

    Raises:
        ValueError: If names are missing or unexpected, or shapes differ. The message lists all.
    """
    layers = list(layers)
    skipped = re.compile("|".join(f"(?:{pattern})" for pattern in skip) or r"(?!)")
    variables = {
        name: v for name, v in named_variables(layers).items() if not skipped.fullmatch(name)
    }
    arrays = {name: array for name, array in arrays.items() if not skipped.fullmatch(name)}
    arrays = _fit_positions(layers, arrays, positions or PositionResize())
    arrays = _fit_channels(variables, arrays)
    _check(variables, arrays, origin)
    for name, variable in variables.items():
        variable.assign(arrays[name])


# The kernel that reads the image is the first of these that a model has.
_MOST_PREFIX_TOKENS = 6  # class token, distillation token and four registers
_STEMS = ("conv_root/kernel", "embedding/kernel")


def channels_of(arrays: Mapping[str, Any]) -> int | None:
    """Returns the number of image channels of a model from its arrays or variables, or None.

    Example:
        >>> channels_of({"embedding/kernel": np.zeros((16, 16, 1, 192))})
        1
    """
    stem = next((arrays[name] for name in _STEMS if name in arrays), None)
    return None if stem is None or len(stem.shape) != 4 else int(stem.shape[2])


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Converts the kernel of a first layer from RGB images to another number of channels.

    One channel gets the sum of the kernels of red, green and blue. A gray image then gives the same
    result as an RGB image with three equal channels. For other numbers the three are repeated in turn, times
    3 / channels, which keeps the scale of the result. This is exact for patch embeddings and plain
    convolutions. A standardized convolution (hybrids, ResNets) rescales each filter afterwards, so
    for a gray image the results agree only approximately.

    Args:
        kernel: (h, w, 3, D).
        channels: Number of channels of the images.

    Example:
        >>> adapt_channels(np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1), 4).ravel().tolist()
        [0.75, 1.5, 2.25, 0.75]

    Source: timm, `adapt_input_conv` (models/_manipulate.py).
    """
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    turns = np.resize(np.arange(3), channels)
    return kernel[:, :, turns] * kernel.dtype.type(3 / channels)


def _fit_channels(
    variables: Mapping[str, keras.Variable], arrays: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Adapts the first kernel if it was trained on RGB; other channels have no known meaning."""
    mine, theirs = channels_of(variables), channels_of(arrays)
    if mine is None or theirs != 3 or mine == 3:
        return arrays
    name = next(name for name in _STEMS if name in arrays)
    logging.info("%s: converted from 3 to %d channels.", name, mine)
    return {**arrays, name: adapt_channels(arrays[name], mine)}


def _check(
    variables: Mapping[str, keras.Variable], arrays: Mapping[str, np.ndarray], origin: object
) -> None:
    missing = sorted(variables.keys() - arrays.keys())
    unexpected = sorted(arrays.keys() - variables.keys())
    shapes = {
        name: (tuple(v.shape), arrays[name].shape)
        for name, v in variables.items()
        if name in arrays
    }
    misshaped = [
        f"{name}: the model needs {mine}, the checkpoint has {theirs}"
        for name, (mine, theirs) in sorted(shapes.items())
        if mine != theirs
    ]
    if not (missing or unexpected or misshaped):
        return
    parts = [f"{origin} does not match the model; nothing was loaded."]
    for title, names in (
        ("missing from the checkpoint", missing),
        ("unexpected in the checkpoint", unexpected),
        ("of another shape", misshaped),
    ):
        if names:
            parts.append(f"{len(names)} {title}:\n  " + "\n  ".join(names))
    parts.extend(_make_hints(missing, unexpected, shapes))
    raise ValueError("\n".join(parts))


def _make_hints(
    missing: list[str], unexpected: list[str], shapes: Mapping[str, tuple]
) -> list[str]:
    """Returns advice for the most frequent mismatches."""
    hints = []
    mine, theirs = shapes.get("predictions/bias", (None, None))
    if mine != theirs and theirs:
        hints.append(
            f"The head of the checkpoint has {theirs[0]} classes: pass `classes={theirs[0]}` or "
            "`include_top=False`."
        )
    mine, theirs = shapes.get("predictions/kernel", (None, None))
    if mine and theirs and theirs[0] == 2 * mine[0]:
        hints.append(
            "The head of the checkpoint reads the class token and the mean of the patches: pass "
            '`classifier="token_gap"`.'
        )
    if "predictions/kernel" in missing:
        hints.append(
            "The checkpoint has no head that is one dense layer: pass `include_top=False` and add "
            "your own head."
        )
    if "pre_logits/kernel" in unexpected:
        hints.append("The checkpoint has a tanh layer: pass its width as `representation_size`.")
    other_tokens = "class_token/cls" in missing or "class_token/cls" in unexpected
    if other_tokens:
        hints.append('With a class token, pass `classifier="token"`; without one, "gap" or "map".')
    channels = [
        shape[2]
        for shape in next((shapes[name] for name in _STEMS if name in shapes), ())
        if len(shape) == 4
    ]
    if len(set(channels)) == 2:
        hints.append(
            f"The checkpoint is for images of {channels[1]} channels, and only checkpoints for 3 "
            f"channels can be converted: pass `input_shape=(height, width, {channels[1]})`."
        )
    halves = [
        any(re.search(r"/(row|column)/", name) for name in names) for names in (missing, unexpected)
    ]
    if any(halves) and not all(halves):
        hints.append(
            "Either the model or the checkpoint is axial, and the other is not: choose the model "
            "of the checkpoint."
        )
    if any(
        name.endswith("/relative_embedding") and mine != theirs
        for name, (mine, theirs) in shapes.items()
    ):
        hints.append(
            "Relative positions cannot be resampled: pass the `input_shape` of the training of the "
            "checkpoint."
        )
    if not other_tokens and any(
        "posembed" in name and mine != theirs and mine[-1:] == theirs[-1:]
        for name, (mine, theirs) in shapes.items()
    ):
        hints.append(
            "If the position table belongs to images that are not square, pass its "
            "`checkpoint_grid=(rows, columns)`."
        )
    return hints


def _fit_positions(
    layers: list[keras.layers.Layer], arrays: Mapping[str, np.ndarray], how: PositionResize
) -> dict[str, np.ndarray]:
    """Resamples the tables of another grid. Tables that cannot be resampled are kept, and the
    following check reports them.
    """
    fitted = dict(arrays)
    for layer in layers:
        if not isinstance(layer, AddPositionEmbs):
            continue
        table = f"{layer.name}/pos_embedding"
        rows, columns = f"{layer.name}/row_embedding", f"{layer.name}/column_embedding"
        if layer.kind == "learned_1d" and table in arrays:
            fitted[table] = _fit_table(table, arrays[table], layer, how)
        elif layer.kind == "learned_2d" and rows in arrays and columns in arrays:
            stored = (arrays[rows].shape[1], arrays[columns].shape[1])
            if how.checkpoint_grid is not None and tuple(how.checkpoint_grid) != stored:
                raise ValueError(
                    f"The position tables of {layer.name} are {_format_grid(stored)}, not "
                    f"{_format_grid(how.checkpoint_grid)}. Correct `checkpoint_grid`."
                )
            # Each half is a one-dimensional table: a grid of (length, 1).
            for name, length in ((rows, layer.grid[0]), (columns, layer.grid[1])):
                old = (arrays[name].shape[1], 1)
                fitted[name] = grid.resize_positions(
                    arrays[name], old, (length, 1), how.interpolation
                )
    return fitted


def _fit_table(
    name: str, array: np.ndarray, layer: AddPositionEmbs, how: PositionResize
) -> np.ndarray:
    expected = tuple(layer.pos_embedding.shape)
    if array.ndim != 3 or array.shape[-1] != expected[-1]:
        return array
    num_patches = array.shape[1] - layer.num_prefix_tokens
    if how.checkpoint_grid is None:
        old_grid = _find_stored_grid(name, num_patches, layer.grid)
    else:
        old_grid = how.checkpoint_grid
        if num_patches != old_grid[0] * old_grid[1]:
            if 0 <= array.shape[1] - old_grid[0] * old_grid[1] <= _MOST_PREFIX_TOKENS:
                return array  # of another number of class tokens, which the check reports
            raise ValueError(
                f"{name} has {num_patches} rows for patches, and is not {_format_grid(old_grid)}. "
                "Pass the `checkpoint_grid` of its training."
            )
    if old_grid is None:
        return array
    if tuple(old_grid) != layer.grid:
        logging.info(
            "%s: resized from %s to %s patches (%s).", name, old_grid, layer.grid, how.interpolation
        )
    return grid.resize_positions(array, old_grid, layer.grid, how.interpolation)


def _find_stored_grid(
    name: str, num_positions: int, model_grid: tuple[int, int]
) -> tuple[int, int] | None:
    fits = num_positions == model_grid[0] * model_grid[1]
    try:
        square = grid.square_grid(num_positions)
    except ValueError:
        return model_grid if fits else None
    if fits and square != model_grid:
        raise ValueError(
            f"{name} may be {_format_grid(square)} or, like the model, {_format_grid(model_grid)}, "
            f"and the file does not contain its grid. Pass `checkpoint_grid={square}` or "
            f"`checkpoint_grid={model_grid}`."
        )
    return square


def _format_grid(a_grid: tuple[int, int]) -> str:
    return f"of {a_grid[0]} x {a_grid[1]} patches"
