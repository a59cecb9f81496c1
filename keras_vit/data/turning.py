"""Reads the EXIF orientation of JPEG and PNG files and turns pixels upright, in TensorFlow.

The rules are exactly those of `keras_vit.photos.exif`, so that an exported model on a server and
`predict` see the same image. The work is bounded for any file content. Each function is traced
once, not in each pipeline.
"""

import numpy as np
import tensorflow as tf

from keras_vit.photos.exif import (
    MAX_BLOCK,
    MAX_CHUNKS,
    MAX_HEAD,
    MAX_SEGMENTS,
    UPRIGHT,
    orientation,
)

_TAG, _SHORT = 0x0112, 3
_ENTRY = 6  # words: tag, type, two of the count, two of the value


def is_plain_jpeg(file: tf.Tensor) -> tf.Tensor:
    """Returns whether a file is a JPEG without EXIF, which is upright. It takes four operations.

    Example:
        >>> bool(is_plain_jpeg(tf.io.encode_jpeg(tf.zeros((2, 3, 3), tf.uint8))))
        True
    """
    return tf.io.is_jpeg(file) & ~contains(tf.strings.substr(file, 0, MAX_HEAD), "Exif\0\0")


def orientation_of_jpeg(file: tf.Tensor, *, runs_python: bool = False) -> tf.Tensor:
    """Returns the EXIF orientation of a JPEG, a scalar int32 from 1 (upright) to 8.

    Args:
        file: Scalar string.
        runs_python: Whether the graph may call Python, as in `tf.data`. Such a graph is built in a
            third of the time.

    Example:
        >>> int(orientation_of_jpeg(tf.io.encode_jpeg(tf.zeros((2, 3, 3), tf.uint8))))
        1
    """
    return (_read_by_python if runs_python else _read_from_segments)(
        tf.strings.substr(file, 0, MAX_HEAD + MAX_BLOCK)
    )


def orientation_of_png(file: tf.Tensor, *, runs_python: bool = False) -> tf.Tensor:
    """Returns the EXIF orientation of a PNG, a scalar int32 from 1 (upright) to 8.

    Args:
        file, runs_python: As in `orientation_of_jpeg`.

    Example:
        >>> int(orientation_of_png(tf.io.encode_png(tf.zeros((2, 3, 3), tf.uint8))))
        1
    """
    find = _read_by_python if runs_python else _read_from_chunks
    return tf.cond(contains(file, "eXIf"), lambda: find(file), lambda: tf.constant(UPRIGHT))


def contains(file: tf.Tensor, letters: str | bytes) -> tf.Tensor:
    """Returns whether a file contains letters. This is faster than finding their position.

    Example:
        >>> bool(contains(tf.constant(b"a cat"), "cat"))
        True
    """
    return tf.size(tf.raw_ops.StringSplitV2(input=[file], sep=letters, maxsplit=1).values) > 1


def _read_by_python(file: tf.Tensor) -> tf.Tensor:
    def read(content: bytes | np.ndarray) -> np.int32:  # in eager mode, an array of bytes
        return np.int32(orientation(content if isinstance(content, bytes) else content.item()))

    return tf.ensure_shape(tf.numpy_function(read, [file], tf.int32, stateful=False), ())


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def _read_from_segments(file: tf.Tensor) -> tf.Tensor:
    def is_going_on(
        place: tf.Tensor, first: tf.Tensor, second: tf.Tensor, length: tf.Tensor
    ) -> tf.Tensor:
        is_segment = (second == 0xFE) | ((second >= 0xE0) & (second <= 0xEF))
        is_exif = (second == 0xE1) & (_slice(file, place + 4, 6) == b"Exif\0\0")
        return (first == 0xFF) & ((second == 0xFF) | (is_segment & (length >= 2) & ~is_exif))

    def step(
        place: tf.Tensor, _: tf.Tensor, second: tf.Tensor, length: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        return read_segment(tf.where(second == 0xFF, place + 1, place + 2 + length))

    def read_segment(place: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, second, high, low = tf.unstack(_decode_bytes(_slice(file, place, 4), 4))
        return place, first, second, high * 256 + low

    place, first, second, length = tf.while_loop(
        is_going_on,
        step,
        read_segment(tf.constant(2)),
        maximum_iterations=MAX_SEGMENTS - 1,
        parallel_iterations=1,
    )
    is_exif = (first == 0xFF) & (second == 0xE1) & (_slice(file, place + 4, 6) == b"Exif\0\0")
    return _read_block(
        _slice(file, place + 10, tf.where(is_exif, tf.clip_by_value(length - 8, 0, MAX_BLOCK), 0))
    )


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def _read_from_chunks(file: tf.Tensor) -> tf.Tensor:
    size = tf.cast(tf.strings.length(file), tf.int64)

    def is_going_on(place: tf.Tensor, _: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        return (place < size) & (kind != b"eXIf") & (kind != b"IEND")

    def read_chunk(place: tf.Tensor) -> tuple[tf.Tensor, ...]:
        head = _slice(file, tf.cast(tf.minimum(place, size), tf.int32), 8)
        length = tf.reduce_sum(
            tf.cast(_decode_bytes(head, 4), tf.int64) * [1 << 24, 1 << 16, 1 << 8, 1]
        )
        return place, length, _slice(head, 4, 4)

    place, length, kind = tf.while_loop(
        is_going_on,
        lambda place, length, _: read_chunk(place + 12 + length),
        read_chunk(tf.constant(8, tf.int64)),
        maximum_iterations=MAX_CHUNKS - 1,
        parallel_iterations=1,
    )
    length = tf.cast(tf.where(kind == b"eXIf", tf.minimum(length, MAX_BLOCK), 0), tf.int32)
    return _read_block(_slice(file, tf.cast(tf.minimum(place, size), tf.int32) + 8, length))


def _slice(file: tf.Tensor, place: tf.Tensor | int, length: tf.Tensor | int) -> tf.Tensor:
    """Returns bytes of a file, fewer at its end."""
    return tf.strings.substr(file, tf.minimum(place, tf.strings.length(file)), length)


def _decode_bytes(text: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the first bytes as int32, with 0 after the end."""
    return tf.cast(tf.io.decode_raw(text, tf.uint8, fixed_length=count), tf.int32)


def _read_block(block: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in a block of EXIF: words of two bytes, in either byte order."""
    block = tf.strings.regex_replace(block, "^Exif\\x00\\x00", "", replace_global=False)
    is_little = tf.strings.substr(block, 0, 4) == b"II*\0"
    is_tiff = is_little | (tf.strings.substr(block, 0, 4) == b"MM\0*")
    num_words = tf.strings.length(block) // 2
    little, big = (
        tf.io.decode_raw(block, tf.uint16, little_endian=order, fixed_length=MAX_BLOCK)
        for order in (True, False)
    )
    words = tf.cast(tf.where(is_little, little, big), tf.int32)
    high, low = tf.where(is_little, words[3], words[2]), tf.where(is_little, words[2], words[3])
    start = low // 2
    is_here = is_tiff & (high == 0) & (low % 2 == 0) & (start < num_words)
    start = tf.where(is_here, start, 0)
    count = tf.where(is_here, tf.minimum(words[start], (num_words - start - 1) // _ENTRY), 0)
    entries = tf.reshape(words[start + 1 : start + 1 + _ENTRY * count], (-1, _ENTRY))
    found = tf.boolean_mask(entries, entries[:, 0] == _TAG)[:1]
    # If there is no entry, the maximum is the smallest int32, which is out of range.
    value = tf.reduce_max(tf.where(found[:, 1] == _SHORT, found[:, 4], 0))
    return tf.where((value >= 1) & (value <= 8), value, UPRIGHT)


@tf.function(
    input_signature=[tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([], tf.int32)],
    autograph=False,
)
def upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns pixels with an EXIF orientation upright.

    Args:
        pixels: (H, W, 3) uint8.
        orientation: Scalar int32, 1 to 8.

    Example:
        >>> pixels = tf.repeat(tf.constant([[[1], [2]], [[3], [4]]], tf.uint8), 3, axis=-1)
        >>> upright(pixels, tf.constant(6))[..., 0].numpy().tolist()
        [[3, 1], [4, 2]]
    """

    def turn() -> tf.Tensor:
        image = tf.cond(orientation >= 5, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels)
        mirrored = tf.cond(_is_mirrored(orientation), lambda: image[:, ::-1], lambda: image)
        return tf.cond(_is_upside_down(orientation), lambda: mirrored[::-1], lambda: mirrored)

    return tf.cond(orientation == UPRIGHT, lambda: pixels, turn)


def _is_mirrored(orientation: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(orientation == tf.constant((2, 3, 6, 7)))


def _is_upside_down(orientation: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(orientation == tf.constant((3, 4, 7, 8)))


def upright_shape(shape: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns the shape (height, width, channels) of an image after it is turned upright.

    Example:
        >>> upright_shape(tf.constant([2, 5, 3]), tf.constant(6)).numpy().tolist()
        [5, 2, 3]
    """
    return tf.where(orientation >= 5, tf.gather(shape, (1, 0, 2)), shape)


def stored_window(window: tf.Tensor, shape: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Converts a window of the upright image to the corresponding window of the stored image.

    Args:
        window: (4,): top, left, height, width.
        shape: Shape of the upright image.
        orientation: Scalar int32, 1 to 8.

    Example:
        >>> stored_window(tf.constant([0, 0, 1, 2]), tf.constant([5, 2, 3]), tf.constant(6)).numpy().tolist()
        [0, 0, 2, 1]
    """
    top, left, height, width = tf.unstack(window)
    top = tf.where(_is_upside_down(orientation), shape[0] - top - height, top)
    left = tf.where(_is_mirrored(orientation), shape[1] - left - width, left)
    return tf.where(
        orientation >= 5, tf.stack([left, top, width, height]), tf.stack([top, left, height, width])
    )
