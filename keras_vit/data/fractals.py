"""Labelled pictures without a camera: random iterated function systems, one to a category, drawn on
demand.

A category is a system of two to eight affine maps; a picture of it is the set that the maps leave
in place, found by the chaos game. Here are the search for systems, the drawing inside tf.data, and
a sheet to look at. How often a picture is seen, and in which order, is decided elsewhere.

Source: FractalDB, arXiv:2101.08515 (categories, weighted instances, filling rate); the maps are
    drawn by their singular values, after arXiv:2110.03091, so that all are contractive and three
    systems in four are usable. Other than in FractalDB an instance varies all parameters at once,
    and colours are random: they say nothing about the category.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

LARGEST_NUM_MAPS = 8
# An instance multiplies every parameter by 1 +- 0.1, which may lengthen a map by 0.1 * sqrt(2):
# 0.85 stays below 1.
LARGEST_STRETCH = 0.85
WEIGHT_SPREAD = 0.1
LARGEST_TURN = np.pi / 8
# The longer side of the figure, as a share of the image.
SMALLEST_SCALE, LARGEST_SCALE = 0.7, 0.98
# Of the cells of a grid over the figure's bounding square: less is a few dots or a thread.
SMALLEST_FILL = 0.2

# Each chain starts at a fixed point, so it never leaves the figure: it settles in distribution
# alone.
_SETTLING_STEPS = 8
_KEPT_STEPS = 16
_FILL_GRID = 32
_CANDIDATES_AT_ONCE = 128
_POINTS_PER_PIXEL = 2
_NUM_SLOTS = 1024
_NUM_TONES = 256
# draws that are not for the chaos game: weights, turn, mirror, scale, place, colours
_NUM_LOOKS = 21


@dataclass(frozen=True, kw_only=True)
class Systems:
    """The iterated function systems of C categories, with room for M maps each.

    Attributes:
        maps: (C, M, 2, 3) float32. A map takes (x, y) to `map[:, :2] @ (x, y) + map[:, 2]`.
        probabilities: (C, M) float32, rows sum to 1. 0 where a system has fewer maps than M.
    """

    maps: np.ndarray
    probabilities: np.ndarray


def find_systems(num_classes: int, seed: int) -> Systems:
    """Draws random systems, and keeps those whose picture is not too empty.

    Category k depends on `seed` and k alone: more classes are the same ones and then others.

    Args:
        num_classes: How many categories.
        seed: 0 or greater.

    Raises:
        ValueError: If `num_classes` is less than 1 or `seed` is negative.

    Example:
        >>> find_systems(10, seed=0).maps.shape
        (10, 8, 2, 3)

    Source: arXiv:2101.08515 section 3.2, with the singular values of arXiv:2110.03091 section 3.
    """
    if num_classes < 1 or seed < 0:
        raise ValueError(
            f"Expected num_classes >= 1 and seed >= 0. Received: num_classes={num_classes}, "
            f"seed={seed}."
        )
    found: list[Systems] = []
    while sum(len(systems.maps) for systems in found) < num_classes:
        generator = np.random.default_rng([seed, len(found)])
        candidates = _draw_candidates(generator)
        usable = _compute_fill(_run_chaos_game(candidates, generator)) >= SMALLEST_FILL
        found.append(
            Systems(maps=candidates.maps[usable], probabilities=candidates.probabilities[usable])
        )
    return Systems(
        maps=np.concatenate([systems.maps for systems in found])[:num_classes],
        probabilities=np.concatenate([systems.probabilities for systems in found])[:num_classes],
    )


def _draw_candidates(generator: np.random.Generator) -> Systems:
    shape = (_CANDIDATES_AT_ONCE, LARGEST_NUM_MAPS)
    num_maps = generator.integers(2, LARGEST_NUM_MAPS, size=shape[:1], endpoint=True)
    stretches = _draw_stretches(generator, num_maps)
    signs = generator.choice([-1.0, 1.0], size=(*shape, 1, 2))
    linear = (
        _make_rotations(generator.uniform(-np.pi, np.pi, shape)) * stretches[:, :, None] * signs
    )
    linear = linear @ _make_rotations(generator.uniform(-np.pi, np.pi, shape))
    offsets = generator.uniform(-1, 1, (*shape, 2, 1))
    # The more a map covers, the more points it gets; those that cover next to nothing are still
    # seen.
    probabilities = np.where(
        np.arange(LARGEST_NUM_MAPS) < num_maps[:, None], stretches.prod(-1) + 0.02, 0
    )
    probabilities /= probabilities.sum(-1, keepdims=True)
    return Systems(
        maps=np.concatenate([linear, offsets], axis=-1).astype(np.float32),
        probabilities=probabilities.astype(np.float32),
    )


def _draw_stretches(generator: np.random.Generator, num_maps: np.ndarray) -> np.ndarray:
    """Returns (C, M, 2), larger first: many maps must be small ones, or their copies cover each
    other.
    """
    size = generator.uniform(0.5, 1.5, (len(num_maps), LARGEST_NUM_MAPS, 1))
    narrowness = generator.uniform(0.3, 1, size.shape)
    size = np.minimum(size * 1.1 / np.sqrt(num_maps)[:, None, None], LARGEST_STRETCH)
    return np.concatenate([size, size * narrowness], axis=-1)


def _make_rotations(angles: np.ndarray) -> np.ndarray:
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([cosines, -sines], -1), np.stack([sines, cosines], -1)], -2)


def _run_chaos_game(systems: Systems, generator: np.random.Generator) -> np.ndarray:
    """Returns (C, 2, points): a plain witness of `_compute_points`, for many systems at once."""
    rows = np.arange(len(systems.maps))[:, None]
    cumulative = systems.probabilities.cumsum(-1)
    first = systems.maps[:, 0]
    points = np.linalg.solve(np.eye(2) - first[..., :2], first[..., 2:])
    kept = []
    for _ in range(_SETTLING_STEPS + _KEPT_STEPS):
        draws = generator.uniform(0, cumulative[:, -1:], (len(rows), 256))
        chosen = systems.maps[rows, (draws[..., None] >= cumulative[:, None]).sum(-1)]
        x, y = points[:, 0, :, None], points[:, 1, :, None]
        points = (chosen[..., 0] * x + chosen[..., 1] * y + chosen[..., 2]).swapaxes(1, 2)
        kept.append(points)
    return np.concatenate(kept[_SETTLING_STEPS:], axis=-1)


def _compute_fill(points: np.ndarray) -> np.ndarray:
    """Returns (C,): which share of the cells of a grid over the bounding square
    the points reach.
    """
    low = points.min(-1, keepdims=True)
    extent = (points.max(-1, keepdims=True) - low).max(1, keepdims=True)
    cells = np.minimum((points - low) / extent * _FILL_GRID, _FILL_GRID - 1).astype(np.int64)
    numbers = (
        cells[:, 0] * _FILL_GRID + cells[:, 1] + np.arange(len(points))[:, None] * _FILL_GRID**2
    )
    counts = np.bincount(numbers.ravel(), minlength=len(points) * _FILL_GRID**2)
    return (counts.reshape(len(points), -1) > 0).mean(-1)


def render(
    systems: Systems, index: tf.Tensor, *, seed: int, image_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws picture number `index`, of category `index % C`.

    The weights of the system, turn, mirror image, size, place, colours and points follow from
    (`seed`, `index`), whatever is drawn before or beside it. There is no last picture.

    Args:
        systems: From `find_systems`.
        index: Scalar integer.
        seed: Of the instances; the categories come with `systems`.
        image_size: Side of the picture in pixels, 8 or more.

    Returns:
        image, uint8 (image_size, image_size, 3), and label, int64 ().

    Raises:
        ValueError: If `image_size` is less than 8.

    Example:
        >>> image, label = render(find_systems(10, seed=0), 123, seed=1, image_size=32)
        >>> tuple(image.shape), int(label)
        ((32, 32, 3), 3)
    """
    if image_size < 8:
        raise ValueError(f"Expected image_size >= 8. Received: image_size={image_size}.")
    index = tf.cast(index, tf.int64)
    label = tf.math.floormod(index, len(systems.maps))
    num_chains = image_size**2 // _KEPT_STEPS * _POINTS_PER_PIXEL
    num_draws = _NUM_LOOKS + (_SETTLING_STEPS + _KEPT_STEPS) * num_chains
    # One call for all draws, and by the same algorithm on every device.
    draws = tf.random.stateless_uniform(
        [num_draws], tf.stack([tf.cast(seed, tf.int64), index]), alg="philox"
    )
    weights, turn, mirror, scale, place, colors = tf.split(draws[:_NUM_LOOKS], [6, 1, 2, 1, 2, 9])
    maps = tf.gather(systems.maps, label) * tf.reshape(
        1 + WEIGHT_SPREAD * (2 * weights - 1), [2, 3]
    )
    choice = _choose_maps(
        tf.gather(systems.probabilities, label), tf.reshape(draws[_NUM_LOOKS:], [-1, num_chains])
    )
    points = _compute_points(tf.gather(maps, choice), start=_find_fixed_point(maps[0]))
    points = _turn(points, LARGEST_TURN * (2 * turn - 1), mirror)
    scale = SMALLEST_SCALE + (LARGEST_SCALE - SMALLEST_SCALE) * scale
    return _paint(
        _count_points(_place(points, scale, place), image_size), tf.reshape(colors, [3, 3])
    ), label


def _choose_maps(probabilities: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Draws from [0, 1) to numbers of maps: a table of equal slots is faster than a search for each
    draw.
    """
    middles = (np.arange(_NUM_SLOTS, dtype=np.float32) + 0.5) / _NUM_SLOTS
    slots = tf.searchsorted(tf.cumsum(probabilities), middles, side="right")
    return tf.gather(slots, tf.cast(draws * _NUM_SLOTS, tf.int32))


def _find_fixed_point(map_: tf.Tensor) -> tf.Tensor:
    return tf.linalg.solve(tf.eye(2) - map_[:, :2], map_[:, 2:])


def _compute_points(maps: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Chosen maps (steps, chains, 2, 3) to points (2, kept steps * chains)."""
    x_and_y = start
    kept = []
    for by_x, by_y, offset in [
        tf.unstack(step) for step in tf.unstack(tf.transpose(maps, [0, 3, 2, 1]))
    ]:
        x_and_y = by_x * x_and_y[0] + by_y * x_and_y[1] + offset
        kept.append(x_and_y)
    return tf.concat(kept[_SETTLING_STEPS:], axis=1)


def _turn(points: tf.Tensor, angle: tf.Tensor, mirror: tf.Tensor) -> tf.Tensor:
    rotation = tf.stack([tf.cos(angle), -tf.sin(angle), tf.sin(angle), tf.cos(angle)])
    signs = tf.where(mirror < 0.5, -1.0, 1.0)
    return signs[:, None] * tf.matmul(tf.reshape(rotation, [2, 2]), points)


def _place(points: tf.Tensor, scale: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """The longer side becomes `scale` of the unit square; `place` says where in the room that is
    left.
    """
    low = tf.reduce_min(points, axis=1)
    extents = tf.reduce_max(points, axis=1) - low
    zoom = scale / tf.reduce_max(extents)
    start = place * (1 - zoom * extents)
    return zoom * (points - low[:, None]) + start[:, None]


def _count_points(points: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns (H, W) int32: how many points of the unit square fell on each pixel."""
    columns_and_rows = tf.clip_by_value(tf.cast(points * image_size, tf.int32), 0, image_size - 1)
    pixels = columns_and_rows[1] * image_size + columns_and_rows[0]
    counts = tf.math.unsorted_segment_sum(tf.ones_like(pixels), pixels, image_size**2)
    return tf.reshape(counts, [image_size, image_size])


def _paint(counts: tf.Tensor, colors: tf.Tensor) -> tf.Tensor:
    """A gradient between two colours by density, on a background that is darker than both."""
    counts = tf.minimum(counts, _NUM_TONES - 1)
    background = 0.35 * colors[:1]
    # The brightest of red, green and blue is 1: every figure stands out.
    sparse, dense = tf.split(colors[1:] + 1 - tf.reduce_max(colors[1:], axis=1, keepdims=True), 2)
    tones = np.arange(_NUM_TONES, dtype=np.float32)[:, None]
    tone = np.log1p(tones) / tf.math.log1p(tf.cast(tf.reduce_max(counts), tf.float32))
    cover = tones / (tones + 0.5)
    palette = background + cover * (sparse + tf.minimum(tone, 1.0) * (dense - sparse) - background)
    return tf.gather(tf.cast(255 * palette + 0.5, tf.uint8), counts)


def contact_sheet(
    systems: Systems,
    *,
    seed: int,
    image_size: int = 64,
    num_categories: int = 8,
    num_instances: int = 8,
) -> np.ndarray:
    """Returns one picture, uint8 (H, W, 3), to look at: a row for each of the first categories.

    Raises:
        ValueError: If there are fewer categories than rows, or none of either is asked for.

    Example:
        >>> contact_sheet(find_systems(4, seed=0), seed=0, image_size=16, num_categories=4, num_instances=2).shape
        (64, 32, 3)
    """
    num_classes = len(systems.maps)
    if not 1 <= num_categories <= num_classes or num_instances < 1:
        raise ValueError(
            f"Expected num_categories from 1 to {num_classes}, the number of systems, and "
            f"num_instances >= 1. "
            f"Received: num_categories={num_categories}, num_instances={num_instances}."
        )
    indices = np.arange(num_categories)[:, None] + num_classes * np.arange(num_instances)
    pictures = tf.data.Dataset.from_tensor_slices(indices.ravel()).map(
        lambda index: render(systems, index, seed=seed, image_size=image_size)[0]
    )
    grid = np.stack(list(pictures.as_numpy_iterator())).reshape(
        *indices.shape, image_size, image_size, 3
    )
    return grid.swapaxes(1, 2).reshape(num_categories * image_size, num_instances * image_size, 3)


def write_contact_sheet(
    path: str | os.PathLike, systems: Systems, *, seed: int, **layout: int
) -> None:
    """Writes `contact_sheet` as a PNG.

    Args:
        path: The file, in a folder that exists.
        systems: From `find_systems`.
        seed: Of the instances.
        **layout: As of `contact_sheet`.

    Raises:
        ValueError: If the file cannot be written.

    Example:
        >>> write_contact_sheet("fractals.png", find_systems(8, seed=0), seed=0, image_size=16)
    """
    png = tf.io.encode_png(contact_sheet(systems, seed=seed, **layout)).numpy()
    try:
        Path(path).write_bytes(png)
    except OSError as error:
        raise ValueError(
            f"Cannot write '{path}': {error.strerror}. Expected a file in a writable folder."
        ) from error
