"""An endless labelled data set: images of random iterated function systems, drawn on demand.

A category is a system of two to eight affine maps. An image shows the invariant set of the maps,
computed by the chaos game. This module searches for systems, draws images inside tf.data, and draws
a contact sheet.

Source: FractalDB, arXiv:2101.08515 (categories, weighted instances, filling rate). The maps are
    drawn by their singular values, as in arXiv:2110.03091, so that all are contractive and three of
    four systems are usable. Unlike in FractalDB, an instance varies all parameters at once, and its
    colours are random and independent of the category.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

LARGEST_NUM_MAPS = 8
# An instance multiplies each parameter by 1 +- 0.1, which may raise the norm of a map by 0.1 *
# sqrt(2). With 0.85 it stays below 1.
LARGEST_STRETCH = 0.85
WEIGHT_SPREAD = 0.1
LARGEST_TURN = np.pi / 8
# The longer side of the figure, as a share of the image.
SMALLEST_SCALE, LARGEST_SCALE = 0.7, 0.98
# Share of the cells of a grid over the bounding square of the figure. Sparser figures are a few
# dots or a thin line.
SMALLEST_FILL = 0.2

# Each chain starts at a fixed point, so all its points belong to the figure. The first steps only
# approach the stationary distribution.
_SETTLING_STEPS = 8
_KEPT_STEPS = 16
_FILL_GRID = 32
_CANDIDATES_AT_ONCE = 128
_POINTS_PER_PIXEL = 2
_NUM_SLOTS = 1024
_NUM_TONES = 256
# Random numbers for weights, rotation, mirroring, scale, position and colours.
_NUM_LOOKS = 21


@dataclass(frozen=True, kw_only=True)
class Systems:
    """The iterated function systems of C categories, with at most M maps each.

    Attributes:
        maps: (C, M, 2, 3) float32. A map sends (x, y) to `map[:, :2] @ (x, y) + map[:, 2]`.
        probabilities: (C, M) float32. Rows sum to 1; unused maps have probability 0.
    """

    maps: np.ndarray
    probabilities: np.ndarray


def find_systems(num_classes: int, seed: int) -> Systems:
    """Draws random systems, and keeps those whose image is not too sparse.

    Category k depends only on `seed` and k, so a larger `num_classes` only adds categories.

    Args:
        num_classes: Number of categories.
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
    # The number of points of a map is proportional to its area. The constant keeps tiny maps
    # visible.
    probabilities = np.where(
        np.arange(LARGEST_NUM_MAPS) < num_maps[:, None], stretches.prod(-1) + 0.02, 0
    )
    probabilities /= probabilities.sum(-1, keepdims=True)
    return Systems(
        maps=np.concatenate([linear, offsets], axis=-1).astype(np.float32),
        probabilities=probabilities.astype(np.float32),
    )


def _draw_stretches(generator: np.random.Generator, num_maps: np.ndarray) -> np.ndarray:
    """Returns singular values (C, M, 2), larger first.

    They are smaller for systems with many maps, whose copies would otherwise overlap.
    """
    size = generator.uniform(0.5, 1.5, (len(num_maps), LARGEST_NUM_MAPS, 1))
    narrowness = generator.uniform(0.3, 1, size.shape)
    size = np.minimum(size * 1.1 / np.sqrt(num_maps)[:, None, None], LARGEST_STRETCH)
    return np.concatenate([size, size * narrowness], axis=-1)


def _make_rotations(angles: np.ndarray) -> np.ndarray:
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([cosines, -sines], -1), np.stack([sines, cosines], -1)], -2)


def _run_chaos_game(systems: Systems, generator: np.random.Generator) -> np.ndarray:
    """Returns points (C, 2, points) of many systems, as `_compute_points` does for one."""
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
    """Returns the share of the cells of a grid over the bounding square with points, (C,)."""
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
    """Draws the image with number `index`, of category `index % C`.

    The weights of the system, rotation, mirroring, size, position, colours and points depend only
    on (`seed`, `index`). `index` has no upper limit.

    Args:
        systems: From `find_systems`.
        index: Scalar integer.
        seed: Seed of the instances. The categories are those of `systems`.
        image_size: Side of the image in pixels, 8 or more.

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
    # One call for all draws, with the same algorithm on all devices.
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
    """Converts draws from [0, 1) to map numbers by a table, which is faster than searching."""
    middles = (np.arange(_NUM_SLOTS, dtype=np.float32) + 0.5) / _NUM_SLOTS
    slots = tf.searchsorted(tf.cumsum(probabilities), middles, side="right")
    return tf.gather(slots, tf.cast(draws * _NUM_SLOTS, tf.int32))


def _find_fixed_point(map_: tf.Tensor) -> tf.Tensor:
    return tf.linalg.solve(tf.eye(2) - map_[:, :2], map_[:, 2:])


def _compute_points(maps: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Applies chosen maps (steps, chains, 2, 3). Returns points (2, kept steps * chains)."""
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
    """Scales the longer side to `scale` of the unit square, and moves the figure by `place`.

    `place` is relative to the remaining space, from 0 to 1.
    """
    low = tf.reduce_min(points, axis=1)
    extents = tf.reduce_max(points, axis=1) - low
    zoom = scale / tf.reduce_max(extents)
    start = place * (1 - zoom * extents)
    return zoom * (points - low[:, None]) + start[:, None]


def _count_points(points: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the number of points of the unit square in each pixel, (H, W) int32."""
    columns_and_rows = tf.clip_by_value(tf.cast(points * image_size, tf.int32), 0, image_size - 1)
    pixels = columns_and_rows[1] * image_size + columns_and_rows[0]
    counts = tf.math.unsorted_segment_sum(tf.ones_like(pixels), pixels, image_size**2)
    return tf.reshape(counts, [image_size, image_size])


def _paint(counts: tf.Tensor, colors: tf.Tensor) -> tf.Tensor:
    """Colours pixels by density with a gradient of two colours, on a darker background."""
    counts = tf.minimum(counts, _NUM_TONES - 1)
    background = 0.35 * colors[:1]
    # Shift both colours so that their largest channel is 1, for contrast with the background.
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
    """Returns an image, uint8 (H, W, 3), with a row of instances for each of the first categories.

    Raises:
        ValueError: If there are fewer than `num_categories` systems, or a number is less than 1.

    Example:
        >>> contact_sheet(find_systems(4, seed=0), seed=0, image_size=16, num_categories=4, num_instances=2).shape
        (64, 32, 3)
    """
    num_classes = len(systems.maps)
    if not 1 <= num_categories <= num_classes or num_instances < 1:
        raise ValueError(
            f"Expected num_categories from 1 to {num_classes}, the number of systems, and "
            f"num_instances >= 1. Received: num_categories={num_categories}, "
            f"num_instances={num_instances}."
        )
    indices = np.arange(num_categories)[:, None] + num_classes * np.arange(num_instances)

    @tf.autograph.experimental.do_not_convert
    def draw(index: tf.Tensor) -> tf.Tensor:
        return render(systems, index, seed=seed, image_size=image_size)[0]

    pictures = tf.data.Dataset.from_tensor_slices(indices.ravel()).map(draw)
    grid = np.stack(list(pictures.as_numpy_iterator())).reshape(
        *indices.shape, image_size, image_size, 3
    )
    return grid.swapaxes(1, 2).reshape(num_categories * image_size, num_instances * image_size, 3)


def write_contact_sheet(
    path: str | os.PathLike, systems: Systems, *, seed: int, **layout: int
) -> None:
    """Writes the image of `contact_sheet` as a PNG file.

    Args:
        path: The file, in an existing folder.
        systems: From `find_systems`.
        seed: Seed of the instances.
        **layout: Further arguments of `contact_sheet`.

    Raises:
        ValueError: If the file cannot be written.

    Example:
        >>> write_contact_sheet("fractals.png", find_systems(8, seed=0), seed=0, image_size=16)
    """
    png = tf.io.encode_png(contact_sheet(systems, seed=seed, **layout)).numpy()
    try:
        Path(path).expanduser().write_bytes(png)
    except OSError as error:
        raise ValueError(
            f"Cannot write '{path}': {error.strerror}. Expected a file in a writable folder."
        ) from error
