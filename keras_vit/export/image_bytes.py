"""JPEG and PNG bytes to pixels inside a graph, image by image: one that cannot be read costs only
itself.

What comes from strangers is looked at before it is decoded: a file of 60 kB can unfold into
    gigabytes, or keep a
decoder busy for minutes. JPEG and PNG alone are read: TensorFlow has no operation for WebP, TIFF
and HEIC, and its own for GIF and BMP give other pixels than the reader of all commands. Decoding,
turning upright by EXIF and cropping are those of evaluation (`keras_vit.data`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from keras_vit.data.decoding import decode_jpeg_or_png
from keras_vit.data.transforms import eval_crop as eval_crops

STATUSES = ("ok", "empty", "unsupported", "too_large", "damaged")
_OK, _EMPTY, _UNSUPPORTED, _TOO_LARGE, _DAMAGED = range(len(STATUSES))

# 8192 x 8192: the largest cameras give 61 million pixels. Decoding takes 3 bytes for each, of a
# progressive JPEG 11.
MAX_PIXELS = 2**26
# Each scan of a progressive JPEG goes over all pixels, and an empty one takes 12 bytes of the file.
# Encoders write about 10; what splits everything that can be split stays below 100.
_MAX_SCANS = 100
# A compressed text (chunks zTXt and iTXt) of 8 kB unfolds into 8 MB, in a fifth of a second.
# Photographs have a few.
_MAX_TEXTS = 16
# images decoded at once: with `MAX_PIXELS` the bound of the memory that a request takes
_PARALLEL = 2

# the signature, and a header of 13 bytes as the first chunk
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
_JPEG_BEGINS = b"\xff\xd8\xff"
_COMPRESSED_TEXT = b"TXt"


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What is decoded at most: pixels, and how many times longer than wide an image may be."""

    pixels: int
    aspect_ratio: int


def read_images(
    files: tf.Tensor,
    image_size: tuple[int, int],
    *,
    eval_crop: str = "resize",
    max_pixels: int = MAX_PIXELS,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes and resizes files; works inside a graph and runs no Python there.

    Args:
        files: (B,) string, B may be 0.
        image_size: (height, width) in pixels.
        eval_crop: Policy of `keras_vit.data.transforms.eval_crop`.
        max_pixels: A file with more is not decoded. A graph that decodes takes up to 26 bytes for
            each.

    Returns:
        Pixels (B, height, width, 3) float32 from 0 to 255, or 0 where there is nothing; (B,)
        string, one of `STATUSES`.

    Raises:
        ValueError: If there is no such policy, it cannot give this size, or `max_pixels` is not
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
    limits = _limits(image_size, eval_crop, max_pixels)

    def decode(file: tf.Tensor) -> tf.Tensor:
        image = decode_jpeg_or_png(file)
        for transform in transforms:
            image = transform(image, tf.constant([0, 0]))
        return tf.ensure_shape(image, blank.shape)

    def read(row: tf.Tensor, file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        code = _code(file, limits)
        return row, code, tf.cond(code == _OK, lambda: decode(file), lambda: blank)

    num_files = tf.size(files, tf.int64)
    rows, codes, images = _survivors(files, read, blank)
    # What did not survive is in no row: it is damaged.
    codes = tf.tensor_scatter_nd_update(tf.fill([num_files], _DAMAGED), rows, codes)
    pixels = tf.scatter_nd(
        rows, images, tf.concat([[num_files], tf.shape(blank, tf.int64)], axis=0)
    )
    return tf.ensure_shape(pixels, (files.shape[0], *blank.shape)), tf.gather(
        tf.constant(STATUSES), codes
    )


def _limits(image_size: tuple[int, int], eval_crop: str, max_pixels: int) -> _Limits:
    """Enlarging the shorter side of a thread of 1 x 65500 pixels would give billions, of 12
    bytes.
    """
    if eval_crop != "resize_shorter":
        return _Limits(pixels=max_pixels, aspect_ratio=max_pixels)
    side = round(max(image_size) * 256 / 224)
    return _Limits(pixels=max_pixels, aspect_ratio=max(1, MAX_PIXELS // (4 * side * side)))


def _survivors(
    files: tf.Tensor, read: Callable, blank: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Rows (n, 1), codes (n,) and images (n, height, width, 3) of the files at which `read` did not
    fail.

    `tf.data` can do without elements that fail; nothing else in a graph can. Its batch of all must
    have one element: hence a first one that is taken off again.
    """
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


def _code(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    """What can be said of a file before it is decoded; fails where its header cannot be read."""
    length = tf.strings.length(file)
    return tf.case(
        [
            (length == 0, lambda: tf.constant(_EMPTY)),
            (_begins(file, _JPEG_BEGINS), lambda: _jpeg_code(file, limits)),
            (_begins(file, _PNG_BEGINS[:8]), lambda: _png_code(file, limits)),
        ],
        default=lambda: tf.constant(_UNSUPPORTED),
    )


def _begins(file: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(file, 0, len(magic)) == magic


def _jpeg_code(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    height, width, _ = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(file), tf.int64))
    is_long = _num_scans(file) > _MAX_SCANS
    return _size_code(height, width, is_long, limits)


def _png_code(file: tf.Tensor, limits: _Limits) -> tf.Tensor:
    header = tf.io.decode_raw(tf.strings.substr(file, 0, len(_PNG_BEGINS) + 8), tf.uint8)
    begins = _begins(file, _PNG_BEGINS) & (tf.size(header) == len(_PNG_BEGINS) + 8)
    header = tf.pad(header, [[0, len(_PNG_BEGINS) + 8 - tf.size(header)]])
    sides = tf.cast(tf.reshape(header[len(_PNG_BEGINS) :], (2, 4)), tf.int64)
    width, height = tf.unstack(tf.reduce_sum(sides * [1 << 24, 1 << 16, 1 << 8, 1], axis=1))
    is_long = _count(file, _COMPRESSED_TEXT) > _MAX_TEXTS
    return tf.where(begins, _size_code(height, width, is_long, limits), _DAMAGED)


def _num_scans(file: tf.Tensor) -> tf.Tensor:
    """How many scans begin: FF DA, the length of the header in two bytes, of how many components
    the scan is.

    The length must fit the components. FF DA alone is there by chance a hundred times in 6 MB, such
    as the video behind a "motion photo"; all five bytes never are.
    """
    numbers = tf.io.decode_raw(file, tf.uint8)
    places = tf.where((numbers[:-4] == 0xFF) & (numbers[1:-3] == 0xDA))[:, 0]
    high, low, components = (
        tf.cast(tf.gather(numbers, places + shift), tf.int32) for shift in (2, 3, 4)
    )
    is_scan = (high == 0) & (low == 6 + 2 * components) & (1 <= components) & (components <= 4)
    return tf.math.count_nonzero(is_scan)


def _count(file: tf.Tensor, pattern: bytes) -> tf.Tensor:
    """How often a pattern occurs. It may be there by chance, but not often."""
    numbers = tf.io.decode_raw(file, tf.uint8)
    num_places = tf.maximum(tf.size(numbers) - len(pattern) + 1, 0)
    hits = [numbers[shift : shift + num_places] == byte for shift, byte in enumerate(pattern)]
    return tf.math.count_nonzero(functools.reduce(tf.logical_and, hits))


def _size_code(
    height: tf.Tensor, width: tf.Tensor, is_long: tf.Tensor, limits: _Limits
) -> tf.Tensor:
    shorter, longer = tf.minimum(height, width), tf.maximum(height, width)
    # The product of two sides below 2**32 may not fit into int64: so the quotient is compared.
    too_large = longer > limits.pixels // tf.maximum(shorter, 1)
    too_large |= is_long | (longer > limits.aspect_ratio * shorter)
    return tf.where(shorter < 1, _DAMAGED, tf.where(too_large, _TOO_LARGE, _OK))
