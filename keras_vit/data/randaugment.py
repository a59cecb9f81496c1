"""RandAugment: a few distortions drawn from sixteen, all at one magnitude.

The sixteen, their magnitudes and the grey that fills what they uncover are those of the code behind AugReg and the
better plain ViT baselines. On whole numbers of pixels and levels they agree with Pillow, level for level. It differs
from its source in this:

- Lengths (translation, cutout) are fixed there, for images of 224 pixels. Here they grow and shrink with the image, so
  that an image of 32 pixels is not pushed out of its own frame.
- Posterizing keeps one bit to eight, solarizing starts at 0 to 256. Magnitudes beyond 10 ask for more.

As there, a greater magnitude posterizes and solarizes less: at 10, Solarize leaves an image as it was.

An operation is a function `(image, draw) -> image`, image uint8 (H, W, 3), draw three floats in [0, 1): the first
decides on the sign, the others where to cut out. Only the operation drawn runs. `tf.where` and tables of 256 levels
are avoided where arithmetic does the same: on bytes, both take several times as long.

Source: arXiv:1909.13719; google-research/big_vision, pp/archive/autoaugment.py.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.transforms import Transform, decode

Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_GREY = 128
_REFERENCE_SIZE = 224  # pixels; the lengths below are meant for it
_LUMA = (19595.0, 38470.0, 7471.0)  # Pillow's weights of red, green and blue, in 1 / 65536: whole, so sums are exact


def rand_augment(num_ops: int = 2, magnitude: float = 10) -> Transform:
    """Distorts an image by `num_ops` operations, each drawn from all sixteen with equal chances.

    Belongs after the crop and `to_uint8`, before scaling.

    Args:
        num_ops: How many, one after the other.
        magnitude: 0 to 10, or beyond: AugReg goes to 20.

    Returns:
        A transform from a file or uint8 (H, W, 3) to uint8 (H, W, 3).

    Raises:
        ValueError: If an argument is negative, or the pixels are not uint8.

    Example:
        >>> rand_augment(2, 15)(tf.zeros((32, 32, 3), tf.uint8), tf.constant([0, 1])).shape
        TensorShape([32, 32, 3])
    """
    if num_ops < 0 or magnitude < 0:
        raise ValueError(f"`num_ops` and `magnitude` must not be negative. Received: {num_ops} and {magnitude}.")
    choices = list(operations(magnitude).values())

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        image = decode(image, seed)
        if image.dtype != tf.uint8:
            raise ValueError(f"RandAugment needs uint8. Received: {image.dtype.name}. Put `to_uint8` before it.")
        shape = image.shape
        draws = tf.random.stateless_uniform((num_ops, 4), seed)
        for number in range(num_ops):
            which = tf.cast(draws[number, 0] * len(choices), tf.int32)
            branches = [functools.partial(choice, image, draws[number, 1:]) for choice in choices]
            image = tf.ensure_shape(tf.switch_case(which, branches), shape)
        return image

    return transform


def operations(magnitude: float) -> dict[str, Operation]:
    """The sixteen operations at one magnitude, by name.

    Example:
        >>> operations(10)["Invert"](tf.constant([[[0, 100, 255]]], tf.uint8), tf.zeros(3)).numpy().tolist()
        [[[255, 155, 0]]]
    """
    level = magnitude / 10
    enhance = functools.partial(_enhance, factor=1.8 * level + 0.1)
    return {
        "AutoContrast": _auto_contrast,
        "Equalize": _equalize,
        "Invert": lambda image, draw: 255 - image,
        "Rotate": functools.partial(_warp, matrix_of=_rotation, amount=math.radians(30 * level)),
        "Posterize": functools.partial(_posterize, num_bits=min(max(int(4 * level), 1), 8)),
        "Solarize": functools.partial(_solarize, threshold=min(int(256 * level), 256)),
        "Color": functools.partial(enhance, degenerate_of=_luma),
        "Contrast": functools.partial(enhance, degenerate_of=_mean_luma),
        "Brightness": functools.partial(enhance, degenerate_of=lambda image: 0.0),
        "Sharpness": functools.partial(_sharpness, factor=1.8 * level + 0.1),
        "ShearX": functools.partial(_warp, matrix_of=_shear_x, amount=0.3 * level),
        "ShearY": functools.partial(_warp, matrix_of=_shear_y, amount=0.3 * level),
        "TranslateX": functools.partial(_warp, matrix_of=_translation_x, amount=100 * level / _REFERENCE_SIZE),
        "TranslateY": functools.partial(_warp, matrix_of=_translation_y, amount=100 * level / _REFERENCE_SIZE),
        "Cutout": functools.partial(_cutout, reach=40 * level / _REFERENCE_SIZE),
        "SolarizeAdd": functools.partial(_solarize_add, addition=int(110 * level)),
    }


def _posterize(image: tf.Tensor, draw: tf.Tensor, num_bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_and(image, tf.constant(256 - 2 ** (8 - num_bits), tf.uint8))


def _solarize(image: tf.Tensor, draw: tf.Tensor, threshold: int) -> tf.Tensor:
    """Inverts what is not below the threshold."""
    pixels = tf.cast(image, tf.float32)
    return tf.cast(tf.abs(pixels - 255.0 * tf.cast(pixels >= threshold, tf.float32)), tf.uint8)


def _solarize_add(image: tf.Tensor, draw: tf.Tensor, addition: int) -> tf.Tensor:
    """Brightens the darker half of the levels."""
    pixels = tf.cast(image, tf.float32)
    return tf.cast(tf.minimum(pixels + addition * tf.cast(pixels < 128, tf.float32), 255.0), tf.uint8)


def _enhance(
    image: tf.Tensor, draw: tf.Tensor, factor: float, degenerate_of: Callable[[tf.Tensor], tf.Tensor | float]
) -> tf.Tensor:
    """Goes from a degenerate image, at factor 0, past the original, at 1, as far again and farther."""
    pixels = tf.cast(image, tf.float32)
    return _blend(degenerate_of(pixels), pixels, factor)


def _blend(degenerate: tf.Tensor | float, pixels: tf.Tensor, factor: float) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(degenerate + factor * (pixels - degenerate), 0.0, 255.0), tf.uint8)


def _luma(pixels: tf.Tensor) -> tf.Tensor:
    """Three equal channels: to broadcast one takes longer."""
    weights = tf.repeat(tf.constant(_LUMA)[:, tf.newaxis], 3, axis=1)
    luma = tf.reshape(tf.reshape(pixels, (-1, 3)) @ weights, tf.shape(pixels))
    return tf.floor((luma + 32768.0) / 65536.0)


def _mean_luma(pixels: tf.Tensor) -> tf.Tensor:
    return tf.floor(tf.reduce_mean(_luma(pixels)) + 0.5)


def _sharpness(image: tf.Tensor, draw: tf.Tensor, factor: float) -> tf.Tensor:
    """Blends with a smoothed image, whose pixels weigh their neighbours 1 and themselves 5. The border stays."""
    pixels = tf.cast(image, tf.float32)
    inner = pixels[1:-1, 1:-1]
    rows = pixels[:-2] + pixels[1:-1] + pixels[2:]
    smooth = tf.floor((rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4.0 * inner) / 13.0 + 0.5)
    return _overwrite(image, (1, 1), (-1, -1), _blend(smooth, inner, factor))


def _auto_contrast(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Stretches each channel from its darkest and brightest level to 0 and 255."""
    return _map_levels(image, _stretching_table)


def _equalize(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Spreads each channel so that its levels are about equally frequent."""
    return _map_levels(image, _equalizing_table)


def _map_levels(image: tf.Tensor, table_of: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Replaces levels by a table (3, 256), given how often each occurs, (3, 256)."""
    places = tf.nn.bias_add(tf.cast(image, tf.int32), tf.constant((0, 256, 512)))
    counts = tf.raw_ops.DenseBincount(input=tf.reshape(places, [-1]), size=768, weights=tf.constant((), tf.int32))
    table = table_of(tf.reshape(counts, (3, 256)))
    return tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), places)


def _stretching_table(counts: tf.Tensor) -> tf.Tensor:
    levels = tf.range(256)
    lowest = tf.reduce_min(tf.where(counts > 0, levels, 255), axis=1, keepdims=True)
    span = tf.reduce_max(tf.where(counts > 0, levels, 0), axis=1, keepdims=True) - lowest
    stretched = tf.clip_by_value((levels - lowest) * 255 // tf.maximum(span, 1), 0, 255)
    return tf.where(span > 0, stretched, levels)


def _equalizing_table(counts: tf.Tensor) -> tf.Tensor:
    levels = tf.range(256)
    brightest = tf.reduce_max(tf.where(counts > 0, levels, 0), axis=1)
    num_brightest = tf.gather(counts, brightest, axis=1, batch_dims=1)[:, tf.newaxis]
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - num_brightest) // 255
    spread = (tf.cumsum(counts, axis=1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    return tf.where(step > 0, tf.minimum(spread, 255), levels)


def _cutout(image: tf.Tensor, draw: tf.Tensor, reach: float) -> tf.Tensor:
    """Greys a square, whose centre may lie anywhere, `reach` of the image's sides to each side of it."""
    sides = tf.shape(image)[:2]
    reaches = tf.cast(reach * tf.cast(sides, tf.float32), tf.int32)
    centre = tf.cast(draw[1:] * tf.cast(sides, tf.float32), tf.int32)
    begin, end = tf.maximum(centre - reaches, 0), tf.minimum(centre + reaches, sides)
    return _overwrite(image, begin, end, tf.fill(tf.concat([end - begin, (3,)], 0), tf.constant(_GREY, tf.uint8)))


def _overwrite(image: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorStridedSliceUpdate(input=image, begin=begin, end=end, strides=(1, 1), value=values)


def _warp(
    image: tf.Tensor, draw: tf.Tensor, matrix_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple], amount: float
) -> tf.Tensor:
    """Takes each pixel from the nearest place (a x + b y + c, d x + e y + f), to one side or the other by chance."""
    sides = tf.shape(image)[:2]
    height, width = tf.unstack(tf.cast(sides, tf.float32))
    amount = amount * (1.0 - 2.0 * tf.floor(2.0 * draw[0]))
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack([[*map(tf.convert_to_tensor, matrix_of(amount, height, width)), 0.0, 0.0]]),
        output_shape=sides,
        fill_value=float(_GREY),
        interpolation="NEAREST",
    )[0]


def _rotation(angle: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple:
    """About the middle of the image, so that corners turn into corners."""
    cos, sin = tf.cos(angle), tf.sin(angle)
    x, y = (width - 1) / 2, (height - 1) / 2
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _shear_x(slope: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple:
    return 1.0, slope, 0.0, 0.0, 1.0, 0.0


def _shear_y(slope: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple:
    return 1.0, 0.0, 0.0, slope, 1.0, 0.0


def _translation_x(part: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple:
    return 1.0, 0.0, part * width, 0.0, 1.0, 0.0


def _translation_y(part: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple:
    return 1.0, 0.0, 0.0, 0.0, 1.0, part * height
