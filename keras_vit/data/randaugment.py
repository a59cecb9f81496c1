"""RandAugment: random operations, drawn from sixteen, at a common magnitude.

The operations, their magnitudes and the grey fill value are those of the code of AugReg and of
"Better plain ViT baselines". For integer pixels and levels the results equal Pillow's. Differences
from the source:

- In the source, lengths (translation, cutout) are constants for images of 224 pixels. Here they
  scale with the image, so that an image of 32 pixels is not moved out of its frame.
- Posterize is limited to 1 to 8 bits, and the threshold of Solarize to 0 to 256. Magnitudes above
  10 would exceed these limits.

As in the source, a greater magnitude posterizes and solarizes less: at 10, Solarize does not change
the image.

An operation is a function `(image, draw) -> image`. `image` is uint8 (H, W, 3). `draw` is three
floats in [0, 1): the first selects a sign, the others the position of Cutout. Only the drawn
operation runs. `tf.where` and tables of 256 levels are avoided where arithmetic computes the same:
on bytes they take several times as long.

Source: arXiv:1909.13719; google-research/big_vision, pp/archive/autoaugment.py.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_vit.data.transforms import Transform, decode

Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_GREY = 128
_REFERENCE_SIZE = 224  # pixels: image size for the lengths below
# Largest size of an image, in numbers, for which lookup tables are made. Larger tables would use
# too much memory.
_MOST_LOOKED_UP = 3 * 2**20
# Pillow's weights of red, green and blue, in units of 1 / 65536: their sums are exact.
_LUMA = np.array([[19595], [38470], [7471]], np.float32)
# A 3 by 3 kernel for each channel, in units of 1 / 13.
_SMOOTH = np.tile(
    np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)[..., None, None], (1, 1, 3, 1)
)


def rand_augment(num_ops: int = 2, magnitude: float = 10) -> Transform:
    """Returns a transform that applies `num_ops` operations, drawn uniformly from the sixteen.

    Use it after the crop and `to_uint8`, and before scaling.

    Args:
        num_ops: Number of operations.
        magnitude: 0 to 10, or more: AugReg uses up to 20.

    Returns:
        A transform from a file or uint8 (H, W, 3) to uint8 (H, W, 3).

    Raises:
        ValueError: If an argument is negative, or the pixels are not uint8.

    Example:
        >>> rand_augment(2, 15)(tf.zeros((32, 32, 3), tf.uint8), tf.constant([0, 1])).shape
        TensorShape([32, 32, 3])
    """
    if num_ops < 0 or magnitude < 0:
        raise ValueError(
            f"`num_ops` and `magnitude` must not be negative. Received: {num_ops} and {magnitude}."
        )
    choices = list(operations(magnitude).values())

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        image = decode(image, seed)
        if image.dtype != tf.uint8:
            raise ValueError(
                f"RandAugment needs uint8. Received: {image.dtype.name}. Put `to_uint8` before it."
            )
        shape = image.shape
        draws = tf.random.stateless_uniform((num_ops, 4), seed)
        for number in range(num_ops):
            which = tf.cast(draws[number, 0] * len(choices), tf.int32)
            branches = [functools.partial(choice, image, draws[number, 1:]) for choice in choices]
            image = tf.ensure_shape(tf.switch_case(which, branches), shape)
        return image

    return transform


def operations(magnitude: float) -> dict[str, Operation]:
    """Returns the sixteen operations at a magnitude, by name.

    Example:
        >>> operations(10)["Invert"](tf.constant([[[0, 100, 255]]], tf.uint8), tf.zeros(3)).numpy().tolist()
        [[[255, 155, 0]]]
    """
    level = magnitude / 10
    factor = 0.1 + 1.8 * level
    angle, slope = math.radians(30 * level), 0.3 * level
    return {
        "AutoContrast": _auto_contrast,
        "Equalize": _equalize,
        "Invert": lambda image, draw: 255 - image,
        "Rotate": _make_two_way(_make_rotation, angle),
        "Posterize": functools.partial(_posterize, num_bits=min(max(int(4 * level), 1), 8)),
        "Solarize": functools.partial(_solarize, threshold=min(int(256 * level), 256)),
        "Color": functools.partial(_color, factor=factor),
        "Contrast": functools.partial(_contrast, factor=factor),
        "Brightness": functools.partial(_brightness, factor=factor),
        "Sharpness": functools.partial(_sharpness, factor=factor),
        "ShearX": _make_two_way(lambda slope: _make_transform([[1, slope], [0, 1]]), slope),
        "ShearY": _make_two_way(lambda slope: _make_transform([[1, 0], [slope, 1]]), slope),
        "TranslateX": functools.partial(_translate, axis=1, reach=100 * level / _REFERENCE_SIZE),
        "TranslateY": functools.partial(_translate, axis=0, reach=100 * level / _REFERENCE_SIZE),
        "Cutout": functools.partial(_cutout, reach=40 * level / _REFERENCE_SIZE),
        "SolarizeAdd": functools.partial(_solarize_add, addition=int(110 * level)),
    }


def _posterize(image: tf.Tensor, draw: tf.Tensor, num_bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_and(image, tf.constant(256 - 2 ** (8 - num_bits), tf.uint8))


def _solarize(image: tf.Tensor, draw: tf.Tensor, threshold: int) -> tf.Tensor:
    """Inverts the levels at or above the threshold."""
    pixels = tf.cast(image, tf.float32)
    return tf.cast(tf.abs(pixels - 255.0 * tf.cast(pixels >= threshold, tf.float32)), tf.uint8)


def _solarize_add(image: tf.Tensor, draw: tf.Tensor, addition: int) -> tf.Tensor:
    """Adds a constant to the levels below 128."""
    pixels = tf.cast(image, tf.float32)
    return tf.cast(
        tf.minimum(pixels + addition * tf.cast(pixels < 128, tf.float32), 255.0), tf.uint8
    )


def _brightness(image: tf.Tensor, draw: tf.Tensor, factor: float) -> tf.Tensor:
    return _blend(0.0, tf.cast(image, tf.float32), factor)


def _color(image: tf.Tensor, draw: tf.Tensor, factor: float) -> tf.Tensor:
    pixels = tf.cast(image, tf.float32)
    return _blend(_compute_luma(pixels), pixels, factor)


def _contrast(image: tf.Tensor, draw: tf.Tensor, factor: float) -> tf.Tensor:
    pixels = tf.cast(image, tf.float32)
    return _blend(tf.floor(tf.reduce_mean(_compute_luma(pixels)) + 0.5), pixels, factor)


def _compute_luma(pixels: tf.Tensor) -> tf.Tensor:
    """Returns the luma in three equal channels, which is faster than broadcasting one channel."""
    luma = tf.reshape(tf.reshape(pixels, (-1, 3)) @ np.tile(_LUMA, (1, 3)), tf.shape(pixels))
    return tf.floor((luma + 32768.0) / 65536.0)


def _blend(degenerate: tf.Tensor | float, pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Interpolates from a degenerate image, at factor 0, to the original, at 1, and beyond."""
    return tf.cast(
        tf.clip_by_value(degenerate + factor * (pixels - degenerate), 0.0, 255.0), tf.uint8
    )


def _sharpness(image: tf.Tensor, draw: tf.Tensor, factor: float) -> tf.Tensor:
    """Blends with a smoothed image. The kernel is 5 at the centre and 1 around it.

    Pixels at the border are not changed.
    """
    pixels = tf.cast(image, tf.float32)
    sums = tf.nn.depthwise_conv2d(pixels[tf.newaxis], _SMOOTH, (1, 1, 1, 1), "SAME")[0]
    sharp = _blend(tf.floor(sums / 13.0 + 0.5), pixels, factor)
    # An image of one row has a first row, but no inner and no last row.
    sharp = tf.concat([image[:, :1], sharp[:, 1:-1], image[:, 1:][:, -1:]], axis=1)
    return tf.concat([image[:1], sharp[1:-1], image[1:][-1:]], axis=0)


def _auto_contrast(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Stretches each channel so that its smallest and largest levels become 0 and 255.

    A channel with a single level is not changed.
    """
    rows = _to_rows(tf.cast(image, tf.float32))
    lowest, highest = (
        reduce(tf.reshape(reduce(rows, axis=0), (-1, 3)), axis=0)
        for reduce in (tf.reduce_min, tf.reduce_max)
    )
    span = highest - lowest
    start, factor = tf.where(span > 0, lowest, 0.0), tf.where(span > 0, 255.0, 1.0)
    start, factor, span = (
        tf.tile(x, tf.shape(image)[1:2]) for x in (start, factor, tf.maximum(span, 1.0))
    )
    # Integers below 2^16 divided by integers below 2^8: rounding never crosses an integer.
    return tf.reshape(tf.cast(tf.floor((rows - start) * factor / span), tf.uint8), tf.shape(image))


def _equalize(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Equalizes the histogram of each channel."""
    places = _compute_places(image)
    counts = tf.raw_ops.DenseBincount(
        input=tf.reshape(places, [-1]), size=768, weights=tf.constant((), tf.int32)
    )
    counts = tf.reshape(counts, (3, 256))
    levels = tf.range(256)
    brightest = tf.reduce_max(tf.where(counts > 0, levels, 0), axis=1)
    num_brightest = tf.gather(counts, brightest, axis=1, batch_dims=1)[:, tf.newaxis]
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - num_brightest) // 255
    spread = (tf.cumsum(counts, axis=1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    return _look_up(places, tf.where(step > 0, tf.minimum(spread, 255), levels))


def _compute_places(image: tf.Tensor) -> tf.Tensor:
    """Returns the positions of the levels in a table of 3 x 256 entries, one part per channel."""
    starts = tf.tile(tf.constant((0, 256, 512)), tf.shape(image)[1:2])
    return tf.reshape(_to_rows(tf.cast(image, tf.int32)) + starts, tf.shape(image))


def _to_rows(image: tf.Tensor) -> tf.Tensor:
    """Reshapes (H, W, 3) to (H, 3 W): operations on channels take a third of the time on rows."""
    return tf.reshape(image, (tf.shape(image)[0], -1))


def _look_up(places: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), places)


def _cutout(image: tf.Tensor, draw: tf.Tensor, reach: float) -> tf.Tensor:
    """Fills a rectangle around a random point with grey.

    It extends by `reach` of the sides of the image in each direction.
    """
    sides = tf.shape(image)[:2]
    reaches = tf.cast(reach * tf.cast(sides, tf.float32), tf.int32)
    centre = tf.cast(draw[1:] * tf.cast(sides, tf.float32), tf.int32)
    begin, end = tf.maximum(centre - reaches, 0), tf.minimum(centre + reaches, sides)
    grey = tf.fill(tf.concat([end - begin, (3,)], axis=0), tf.constant(_GREY, tf.uint8))
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=image, begin=begin, end=end, strides=(1, 1), value=grey
    )


def _translate(image: tf.Tensor, draw: tf.Tensor, axis: int, reach: float) -> tf.Tensor:
    """Moves the image by `reach` of its side, in whole pixels, in a random direction."""
    shape, along = tf.shape(image), np.eye(3, dtype=np.int32)[axis]
    sign = 1.0 - 2.0 * tf.floor(2.0 * draw[0])
    distance = tf.cast(
        tf.round(sign * min(reach, 1.0) * tf.cast(shape[axis], tf.float32)), tf.int32
    )
    before, after = tf.maximum(-distance, 0), tf.maximum(distance, 0)
    remains = tf.slice(image, after * along, shape - (before + after) * along)
    grey = [
        tf.fill(shape * (1 - along) + side * along, tf.constant(_GREY, tf.uint8))
        for side in (before, after)
    ]
    return tf.concat([grey[0], remains, grey[1]], axis)


def _make_two_way(transform_of: Callable[[float], np.ndarray], amount: float) -> Operation:
    """Returns an operation that applies a transform with the amount or its negative at random."""
    return functools.partial(
        _warp, transforms=np.stack([transform_of(amount), transform_of(-amount)])
    )


def _warp(image: tf.Tensor, draw: tf.Tensor, transforms: np.ndarray) -> tf.Tensor:
    which = tf.cast(2.0 * draw[0], tf.int32)
    if (image.shape.num_elements() or math.inf) > _MOST_LOOKED_UP:
        return _project(
            image, tf.gather(tf.constant(transforms, tf.float32), which), fill_value=_GREY
        )
    # For a static size the source of each pixel is a constant table, which takes a third of the
    # time.
    pixels = tf.concat(
        [tf.reshape(image, (-1, 3)), tf.fill((1, 3), tf.constant(_GREY, tf.uint8))], axis=0
    )
    sources = tf.gather(tf.constant(_find_sources(*image.shape[:2], transforms)), which)
    return tf.reshape(tf.gather(pixels, sources), image.shape)


def _find_sources(height: int, width: int, transforms: np.ndarray) -> np.ndarray:
    """Returns the number of the source pixel for each transform and each pixel of its result.

    `height * width` means that there is none.
    """
    with tf.init_scope():
        numbers = tf.reshape(tf.range(float(height * width)), (height, width, 1))
        moved = [
            _project(numbers, tf.constant(one, tf.float32), fill_value=height * width)
            for one in transforms
        ]
        return np.stack(moved).reshape(len(transforms), -1).astype(np.int32)


def _project(image: tf.Tensor, transform: tf.Tensor, fill_value: int) -> tf.Tensor:
    """Applies a transform (8, 3) of `_make_transform` to an image."""
    sides = tf.shape(image)[:2]
    height, width = tf.unstack(tf.cast(sides, tf.float32))
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.linalg.matvec(transform, tf.stack([width, height, 1.0]))[tf.newaxis],
        output_shape=sides,
        fill_value=float(fill_value),
        interpolation="NEAREST",
    )[0]


def _make_rotation(angle: float) -> np.ndarray:
    cos, sin = math.cos(angle), math.sin(angle)
    return _make_transform([[cos, -sin], [sin, cos]], is_centred=True)


def _make_transform(matrix: ArrayLike, is_centred: bool = False) -> np.ndarray:
    """Returns a transform: the source of pixel (x, y) is (a x + b y + c, d x + e y + f).

    Args:
        matrix: ((a, b), (d, e)).
        is_centred: Whether the centre of the image is fixed. If not, its first pixel is.

    Returns:
        (8, 3): a to f and two zeros, each as coefficients of width, height and 1.
    """
    matrix = np.asarray(matrix, float)
    pivot = (np.eye(2) - matrix) / 2 * is_centred
    transform = np.zeros((8, 3))
    transform[[0, 1, 3, 4], 2] = matrix.ravel()
    transform[[2, 5], :2] = pivot
    transform[[2, 5], 2] = -pivot.sum(axis=1)
    return transform
