"""Decoding of untrusted JPEG and PNG bytes to pixels, inside a graph.

A file that cannot be read does not affect the other images of its batch. Headers are checked before
decoding, since a file of 60 kB can expand to gigabytes, or keep a decoder busy for minutes. Only
JPEG and PNG are read: TensorFlow has no operations for WebP, TIFF and HEIC, and those for GIF and
BMP return other pixels than the commands of this package. Decoding, EXIF orientation and cropping
are those of evaluation (`keras_vit.data`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from keras_vit.data.decoding import decode_jpeg_or_png
from keras_vit.data.transforms import eval_crop as eval_crops
from keras_vit.data.transforms import largest_side

STATUSES = ("ok", "empty", "unsupported", "too_large", "damaged")
_OK, _EMPTY, _UNSUPPORTED, _TOO_LARGE, _DAMAGED = range(len(STATUSES))

# 8192 x 8192: the largest cameras have 61 million pixels. Decoding takes 3 bytes per pixel, and 11
# for a progressive JPEG.
MAX_PIXELS = 2**26
# Each scan of a progressive JPEG updates all pixels, and an empty scan has 12 bytes. Encoders write
# about 10 scans; even a file with as many useful scans as possible has fewer than 100.
_MAX_SCANS = 100
# A compressed text of 8 kB (chunks zTXt and iTXt) expands to 8 MB, which takes 0.2 s. Photographs
# have a few of them.
_MAX_TEXTS = 16
# Images decoded at the same time. With `MAX_PIXELS`, this bounds the memory of a request.
_PARALLEL = 2

# The signature, and the start of the first chunk: a header of 13 bytes.
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
_JPEG_BEGINS = b"\xff\xd8\xff"
_COMPRESSED_TEXT = b"TXt"


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """Limits of decoding: number of pixels, and ratio of the longer to the shorter side."""

    pixels: int
    aspect_ratio: int


def read_images(
    files: tf.Tensor,
    image_size: tuple[int, int],
    *,
    eval_crop: str = "resize",
    max_pixels: int = MAX_PIXELS,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes and resizes files, with TensorFlow operations only.

    Args:
        files: (B,) string, B may be 0.
        image_size: (height, width) in pixels.
        eval_crop: Policy of `keras_vit.data.transforms.eval_crop`.
        max_pixels: Files with more pixels are not decoded. Decoding in a graph takes up to 26 bytes
            per pixel.

    Returns:
        Pixels (B, height, width, 3) float32 from 0 to 255, which are 0 for unreadable files; and
        (B,) string, each one of `STATUSES`.

    Raises:
        ValueError: If the policy is unknown, does not support this size, or `max_pixels` is not
            positive.

    Example:
        >>> files = [tf.io.encode_png(tf.zeros((5, 7, 3), tf.uint8)), b"", b"%PDF-1.7", b"\\xff\\xd8\\xff\\xe0"]
        >>> pixels, status = read_images(tf.stack(files), (32, 48))
        >>> pixels.shape, status.numpy().tolist()
        (TensorShape([4, 32, 48, 3]), [b'ok', b'empty', b'unsupported', b'damaged'])
    """
    if max_pixels < 1:
        raise ValueError(f"`max_pixels` must be positive. Received: {max_pixels}.")
    transforms = eval_crops(eval_crop, image_size)
    blank = tf.zeros((*image_size, 3))
    limits = _set_limits(image_size, eval_crop, max_pixels)

    def decode(file: tf.Tensor) -> tf.Tensor:
        image = decode_jpeg_or_png(file)
        for transform in transforms:
            image = transform(image, tf.constant([0, 0]))
        return tf.ensure_shape(image, blank.shape)

    @tf.autograph.experimental.do_not_convert
    def read(row: tf.Tensor, file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        code = _classify(file, limits)
        return row, code, tf.cond(code == _OK, lambda: decode(file), lambda: blank)

    num_files = tf.size(files, tf.int64)
    rows, codes, images = _skip_failures(files, read, blank)
    # Files without a row failed, so they are damaged.
    codes = tf.tensor_scatter_nd_update(tf.fill([num_files], _DAMAGED), rows, codes)
    pixels = tf.scatter_nd(
        rows, images, tf.concat([[num_files], tf.shape(blank, tf.int64)], axis=0)
    )
    return tf.ensure_shape(pixels, (files.shape[0], *blank.shape)), tf.gather(
        tf.constant(STATUSES), codes
    )


def _set_limits(image_size: tuple[int, int], eval_crop: str, max_pixels: int) -> _Limits:
    """Returns the limits for a policy."""
    # Enlarging the shorter side of an image of 1 x 65500 pixels would make billions of pixels, of
    # 12 bytes each.
    if eval_crop in ("resize", "resize_crop"):
        return _Limits(pixels=max_pixels, aspect_ratio=max_pixels)
    side = largest_side(eval_crop, max(image_size))
    return _Limits(pixels=max_pixels, aspect_ratio=max(1, MAX_PIXELS // (4 * side * side)))


def _skip_failures(
    files: tf.Tensor, read: Callable, blank: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads files, and returns rows (n, 1), codes (n,) and images (n, height, width, 3) of those
    for which `read` did not fail.
    """
    # In a graph, only `tf.data` can skip elements that fail. The batch of all must not be empty, so
    # a first element is added, and removed afterwards.
    first = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), tf.constant(_OK), blank))
    rest = (
        tf.data.Dataset.from_tensor_slices(files)
        .enumerate()
        .map(read, num_parallel_calls=_PARALLEL)
        .ignore_errors()
    )
    batch = first.concatenate(rest).batch(tf.size(files, tf.int64) + 1)
    rows, codes, images = (part[1:] for part in batch.get_single_element())
    return rows[:, tf.newaxis], codes, images


def _classify(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    """Returns the status of a file from its header; fails if the header cannot be read."""
    length = tf.strings.length(file)
    return tf.case(
        [
            (length == 0, lambda: tf.constant(_EMPTY)),
            (_starts_with(file, _JPEG_BEGINS), lambda: _classify_jpeg(file, limits)),
            (_starts_with(file, _PNG_BEGINS[:8]), lambda: _classify_png(file, limits)),
        ],
        default=lambda: tf.constant(_UNSUPPORTED),
    )


def _starts_with(file: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(file, 0, len(magic)) == magic


def _classify_jpeg(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    height, width, _ = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(file), tf.int64))
    is_long = _count_scans(file) > _MAX_SCANS
    return _classify_size(height, width, is_long, limits)


def _classify_png(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    header = tf.io.decode_raw(tf.strings.substr(file, 0, len(_PNG_BEGINS) + 8), tf.uint8)
    begins = _starts_with(file, _PNG_BEGINS) & (tf.size(header) == len(_PNG_BEGINS) + 8)
    header = tf.pad(header, [[0, len(_PNG_BEGINS) + 8 - tf.size(header)]])
    sides = tf.cast(tf.reshape(header[len(_PNG_BEGINS) :], (2, 4)), tf.int64)
    width, height = tf.unstack(tf.reduce_sum(sides * [1 << 24, 1 << 16, 1 << 8, 1], axis=1))
    is_long = _count(file, _COMPRESSED_TEXT) > _MAX_TEXTS
    return tf.where(begins, _classify_size(height, width, is_long, limits), _DAMAGED)


def _count_scans(file: tf.Tensor) -> tf.Tensor:
    """Counts the scans of a JPEG by their headers."""
    # A scan starts with FF DA, the length of its header in two bytes, and its number of components,
    # which must fit the length. FF DA alone occurs by chance a hundred times in 6 MB, such as the
    # video in a "motion photo"; all five bytes do not.
    numbers = tf.io.decode_raw(file, tf.uint8)
    places = tf.where((numbers[:-4] == 0xFF) & (numbers[1:-3] == 0xDA))[:, 0]
    high, low, components = (
        tf.cast(tf.gather(numbers, places + shift), tf.int32) for shift in (2, 3, 4)
    )
    is_scan = (high == 0) & (low == 6 + 2 * components) & (1 <= components) & (components <= 4)
    return tf.math.count_nonzero(is_scan)


def _count(file: tf.Tensor, pattern: bytes) -> tf.Tensor:
    """Counts the occurrences of a pattern, including the few that are there by chance."""
    numbers = tf.io.decode_raw(file, tf.uint8)
    num_places = tf.maximum(tf.size(numbers) - len(pattern) + 1, 0)
    hits = [numbers[shift : shift + num_places] == byte for shift, byte in enumerate(pattern)]
    return tf.math.count_nonzero(functools.reduce(tf.logical_and, hits))


def _classify_size(
    height: tf.Tensor, width: tf.Tensor, is_long: tf.Tensor, limits: _Limits
) -> tf.Tensor:
    shorter, longer = tf.minimum(height, width), tf.maximum(height, width)
    # Compare quotients: the product of two sides below 2**32 may not fit into int64.
    too_large = longer > limits.pixels // tf.maximum(shorter, 1)
    too_large |= is_long | (longer > limits.aspect_ratio * shorter)
    return tf.where(shorter < 1, _DAMAGED, tf.where(too_large, _TOO_LARGE, _OK))
