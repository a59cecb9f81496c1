"""Patch-grid arithmetic on plain integers and arrays: sizes, token counts, interpolation, the
sine-cosine positions of masked autoencoders.

A grid is always a pair (rows, columns). It is passed along from where it is known, and not derived
from a number of tokens. The exception is `square_grid`: published files store no grid, and all of
them were trained on square images.

Source: arXiv:2010.11929, section 3.2; vision_transformer@c6de1e5 checkpoint.py, models_resnet.py;
dinov2@b8931f7 vision_transformer.py (the offset); timm 1.0.31 layers/pos_embed.py; transformers
5.24.0 modeling_dinov2.py.
"""

import math
from typing import Any, get_args

import numpy as np

from keras_vit.variants import Interpolation

INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)


def patch_grid(
    image_size: tuple[int, int], patch_size: int, num_halvings: int = 0
) -> tuple[int, int]:
    """Returns the (rows, columns) of patches of an image.

    Args:
        image_size: (height, width) in pixels.
        patch_size: Side of a square patch, counted on the feature map after the halvings.
        num_halvings: Strided steps of a convolutional stem before the patches; each one
            halves the map and rounds up, as "SAME" padding does.

    Raises:
        ValueError: If the image size is not a multiple of the patch size. The message names valid
            sizes.

    Example:
        >>> patch_grid((224, 384), 16)
        (14, 24)
        >>> patch_grid((225, 225), 1, num_halvings=4)
        (15, 15)
    """
    cells = tuple(math.ceil(size / 2**num_halvings) for size in image_size)
    if any(count % patch_size or count < patch_size for count in cells):
        stride = patch_size * 2**num_halvings
        raise ValueError(
            f"The image size must be a multiple of {stride} pixels along each axis. Received: "
            f"image_size={tuple(image_size)}, patch_size={patch_size}"
            + (f" on a feature map of {cells}" if num_halvings else "")
            + f". Use {_suggest_sizes(image_size, stride)}, or resize the images."
        )
    return cells[0] // patch_size, cells[1] // patch_size


def padded(size: Any, patch_size: int, num_halvings: int = 0) -> Any:
    """Returns the padded size of an image along one axis: the smallest size that the patches tile.

    Args:
        size: In pixels: an integer, or a scalar tensor inside a graph.
        patch_size, num_halvings: As in `patch_grid`.

    Example:
        >>> padded(225, 16), padded(224, 16), padded(225, 2, num_halvings=4)
        (240, 224, 241)
    """
    stride = 2**num_halvings
    cells = (size + stride - 1) // stride
    missing = (patch_size - cells % patch_size) % patch_size
    return size + missing * stride


def _suggest_sizes(image_size: tuple[int, int], stride: int) -> str:
    smaller = tuple(max(size // stride, 1) * stride for size in image_size)
    larger = tuple(max(math.ceil(size / stride), 1) * stride for size in image_size)
    return f"{smaller}" if smaller == larger else f"{smaller} or {larger}"


def square_grid(num_positions: int) -> tuple[int, int]:
    """Returns the grid of a published position table, which was trained on square images.

    Raises:
        ValueError: If the number of positions (without prefix tokens) is not a square number.

    Example:
        >>> square_grid(196)
        (14, 14)
    """
    side = math.isqrt(num_positions)
    if side * side != num_positions:
        raise ValueError(
            f"A position table of {num_positions} rows is not that of a square image, and the file "
            "does not store its grid. Pass `checkpoint_grid=(rows, columns)`."
        )
    return side, side


def join_patches(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Joins patches (B, N, P, P, C) to images (B, H, W, C).

    Example:
        >>> join_patches(np.arange(4).reshape(1, 4, 1, 1, 1), (2, 2))[0, :, :, 0].tolist()
        [[0, 1], [2, 3]]
    """
    (count, _, side, _, channels), (rows, columns) = patches.shape, grid
    patches = patches.reshape(count, rows, columns, side, side, channels)
    joined = patches.transpose(0, 1, 3, 2, 4, 5)
    return joined.reshape(count, rows * side, columns * side, channels)


def interpolation_matrix(old: int, new: Any, method: str = "bilinear", xp: Any = np) -> Any:
    """Returns the (new, old) matrix that resamples `old` values along one axis to `new` values.

    Args:
        old: Number of old values.
        new: Number of new values: an integer, or a scalar tensor when `xp` is `keras.ops`.
        method: "bilinear": corners are aligned, as in `scipy.ndimage.zoom(order=1)`. The others are
            those of PyTorch's `interpolate(align_corners=False)`: "bilinear_half_pixel"; "bicubic"
            (a = -0.75); "bicubic_offset" is "bicubic" at the scale (new + 0.1) / old;
            "bicubic_antialias" (a = -0.5) has a wider kernel if `new` is smaller than `old`.
            docs/checkpoints.md lists which package uses which.
        xp: The array namespace: `numpy`, or `keras.ops` inside a graph.

    Raises:
        ValueError: If the method is unknown.

    Example:
        >>> interpolation_matrix(2, 3)
        array([[1. , 0. ],
               [0.5, 0.5],
               [0. , 1. ]])
    """
    if method not in INTERPOLATIONS:
        raise ValueError(f"`interpolation` must be one of {INTERPOLATIONS}. Received: {method!r}.")
    dtype = "float64" if xp is np else "float32"
    target = xp.arange(new, dtype=dtype)[:, None]
    source = np.arange(old, dtype=dtype)[None, :]
    last = target[-1:]  # new - 1, also when `new` is a tensor
    if method == "bilinear":
        centre = target * ((old - 1) / xp.maximum(last, 1.0))
        return xp.maximum(1.0 - xp.abs(centre - source), 0.0)
    ratio = old / (last + (1.1 if method == "bicubic_offset" else 1.0))
    centre = (target + 0.5) * ratio - 0.5
    if method == "bilinear_half_pixel":
        centre = xp.clip(centre, 0.0, old - 1.0)
        return xp.maximum(1.0 - xp.abs(centre - source), 0.0)
    if method == "bicubic_antialias":
        spread = xp.maximum(ratio, 1.0)
        weights = _evaluate_cubic(xp.abs((centre - source) / spread), -0.5, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)
    weights = 0.0  # of the four cells around each centre
    for tap in (-1.0, 0.0, 1.0, 2.0):
        cell = xp.floor(centre) + tap
        weight = _evaluate_cubic(xp.abs(centre - cell), -0.75, xp)
        # Taps beyond the border read the border: their weights add up there.
        weights += xp.where(xp.equal(xp.clip(cell, 0.0, old - 1.0), source), weight, 0.0)
    return weights


def interpolation_matrices(
    old_grid: tuple[int, int], new_grid: tuple[Any, Any], method: str = "bilinear", xp: Any = np
) -> tuple[Any, Any]:
    """Returns the matrices that resample a table along its rows and along its columns.

    A table that keeps its grid is not changed. "bicubic_offset" changes an axis of equal length if
    the other axis changes, as DINO does.

    Args:
        old_grid: (rows, columns) of the table.
        new_grid: (rows, columns) of the result: integers, or scalar tensors.
        method, xp: As in `interpolation_matrix`.

    Returns:
        (new rows, old rows) and (new columns, old columns).

    Example:
        >>> down, across = interpolation_matrices((14, 14), (24, 16))
        >>> down.shape, across.shape
        ((24, 14), (16, 14))
    """
    axes = tuple(zip(old_grid, new_grid, strict=True))
    down, across = (interpolation_matrix(old, new, method, xp) for old, new in axes)
    if method == "bicubic_offset":
        kept = xp.logical_and(*(xp.equal(old, new) for old, new in axes))
        # "bicubic" is the identity then. Its shape is right in both cases, which a graph needs.
        same_down, same_across = interpolation_matrices(old_grid, new_grid, "bicubic", xp)
        down, across = xp.where(kept, same_down, down), xp.where(kept, same_across, across)
    return down, across


def _evaluate_cubic(distance: Any, a: float, xp: Any) -> Any:
    """Evaluates Keys's cubic kernel (1981). PyTorch uses a = -0.75, and -0.5 if it antialiases."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return xp.where(distance < 1.0, near, xp.where(distance < 2.0, far, 0.0))


def resize_positions(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str = "bilinear",
) -> np.ndarray:
    """Resamples a position table to another grid; the rows of prefix tokens are copied.

    Args:
        table: (1, T + rows * columns, D), prefix tokens first, the grid in raster order.
        old_grid: (rows, columns) of `table`. The number of prefix rows T follows from it.
        new_grid: (rows, columns) of the result.
        method: See `interpolation_matrix`.

    Returns:
        (1, T + new rows * new columns, D) in the dtype of `table`; `table` itself if the grids are
        equal.

    Raises:
        ValueError: If `table` has fewer rows than `old_grid` has cells.

    Source: arXiv:2010.11929, section 3.2; vision_transformer@c6de1e5 `interpolate_posembed`.
    """
    num_prefix_tokens = table.shape[1] - old_grid[0] * old_grid[1]
    if num_prefix_tokens < 0:
        raise ValueError(
            f"A position table of shape {table.shape} cannot hold a grid of {old_grid}."
        )
    if tuple(old_grid) == tuple(new_grid):
        return table
    prefix, patches = table[0, :num_prefix_tokens], table[0, num_prefix_tokens:].astype("float64")
    down, across = interpolation_matrices(old_grid, new_grid, method)
    resized = np.einsum(
        "ri,cj,ijd->rcd", down, across, patches.reshape(*old_grid, -1), optimize=True
    )
    return np.concatenate([prefix, resized.reshape(-1, table.shape[-1]).astype(table.dtype)])[None]


def sincos_positions(grid: tuple[int, int], width: int) -> np.ndarray:
    """Returns the fixed sine-cosine position table of masked autoencoders, (1, N, D) float32.

    The first half of a row is for the column of the patch, the second for its row. Each half
    consists of D/4 sines, then D/4 cosines, of wave numbers from 1 down to almost 1/10000. The
    table of `AddPositionEmbs(kind="sincos2d")` is that of MoCo v3, whose last wave number is
    exactly 1/10000.

    Args:
        grid: (rows, columns) of patches.
        width: Size of a token. Must be a multiple of 4.

    Raises:
        ValueError: If the width is not a multiple of 4.

    Example:
        >>> sincos_positions((1, 2), 4).astype("float64").round(3).tolist()
        [[[0.0, 1.0, 0.0, 1.0], [0.841, 0.54, 0.0, 1.0]]]

    Source: facebookresearch/mae@a9f5c70 util/pos_embed.py.
    """
    if width % 4:
        raise ValueError(
            f"The token size must be a multiple of 4 for sine-cosine positions. Received: {width}."
        )
    count = width // 4
    wave_numbers = 10_000.0 ** (-np.arange(count) / count)
    rows, columns = np.indices(grid).reshape(2, -1, 1) * wave_numbers
    halves = [function(angles) for angles in (columns, rows) for function in (np.sin, np.cos)]
    return np.concatenate(halves, axis=1)[None].astype("float32")
