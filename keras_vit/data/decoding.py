"""Decodes photos to upright pixels: JPEG and PNG with TensorFlow, others with `keras_vit.photos`.

JPEG and PNG are decoded in parallel and without Python, also in exported graphs. The other formats
are rare. All commands use this decoder, so they read the same pixels.

A JPEG without an end marker is cut short. libjpeg would print lines of its own about it, and would
decode a part above the cut. Where Python runs, Pillow decides, as in `predict`.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data import turning
from keras_vit.data.png import decode_png
from keras_vit.photos.pixels import read_pixels

# With libjpeg's slow transform, pixels equal those of Pillow, and so of `predict` and PyTorch.
# TensorFlow's default, INTEGER_FAST, differs by 1.2 levels on average, and is not faster on
# processors with SIMD.
_DCT_METHOD = "INTEGER_ACCURATE"
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n"
_JPEG_ENDS = b"\xff\xd9"
# Of a branch that rarely runs: inlined operations cost time even if they do not run.
_NOT_INLINED = {"_noinline": True}


def decode_file(file: tf.Tensor) -> tf.Tensor:
    """Decodes a photo of any format in `keras_vit.photos.FORMATS` to upright pixels.

    Formats other than JPEG and PNG are decoded in Python, which works in `tf.data` but not in an
    exported graph.

    Args:
        file: An encoded file, a scalar string.

    Returns:
        (H, W, 3) uint8.

    Raises:
        tf.errors.InvalidArgumentError: If the file is damaged, or not a photo.

    Example:
        >>> decode_file(tf.io.encode_png(tf.zeros((2, 5, 3), tf.uint8))).shape
        TensorShape([2, 5, 3])
    """
    return tf.cond(
        turning.is_plain_jpeg(file) & _ends_as_jpeg(file),
        lambda: _decode_jpeg(file),
        lambda: _decode_others(file),
    )


def decode_jpeg_or_png(file: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG or a PNG to upright pixels, (H, W, 3) uint8, without Python.

    Raises:
        tf.errors.InvalidArgumentError: If the file is damaged, or neither.

    Example:
        >>> decode_jpeg_or_png(tf.io.encode_jpeg(tf.zeros((2, 5, 3), tf.uint8))).shape
        TensorShape([2, 5, 3])
    """

    def decode_others() -> tf.Tensor:
        return tf.cond(
            tf.io.is_jpeg(file),
            lambda: _decode_turned(file, False),
            lambda: _decode_png(file, False),
        )

    return tf.cond(turning.is_plain_jpeg(file), lambda: _decode_jpeg(file), decode_others)


def decode_window(file: tf.Tensor, window_of: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Decodes a part of a photo, (h, w, 3) uint8.

    The result equals decoding the whole photo and cropping, but only this part of a JPEG is
    decoded, unless bytes follow its end marker.

    Args:
        file: An encoded file, a scalar string.
        window_of: Function from the shape of the upright photo to (top, left, height, width) of the
            part.

    Example:
        >>> file = tf.io.encode_jpeg(tf.zeros((20, 50, 3), tf.uint8))
        >>> decode_window(file, lambda shape: tf.constant([5, 8, 10, 30])).shape
        TensorShape([10, 30, 3])
    """

    def decode_plain() -> tf.Tensor:
        shape = tf.image.extract_jpeg_shape(file)
        return _decode_part(file, window_of(shape), shape)

    def decode_jpeg() -> tf.Tensor:
        orientation, stored = (
            turning.orientation_of_jpeg(file, runs_python=True),
            tf.image.extract_jpeg_shape(file),
        )
        shape = turning.upright_shape(stored, orientation)
        window = turning.stored_window(window_of(shape), shape, orientation)
        return turning.upright(_decode_part(file, window, stored), orientation)

    def decode_others() -> tf.Tensor:
        pixels = _decode_others(file)
        return crop(pixels, window_of(tf.shape(pixels)))

    ends_as_jpeg = _ends_as_jpeg(file)

    def decode_all_but_plain() -> tf.Tensor:
        return tf.cond(tf.io.is_jpeg(file) & ends_as_jpeg, decode_jpeg, decode_others)

    part = tf.cond(
        turning.is_plain_jpeg(file) & ends_as_jpeg,
        decode_plain,
        _prevent_inlining(decode_all_but_plain),
    )
    return tf.ensure_shape(part, (None, None, 3))


def crop(pixels: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Returns the window (top, left, height, width) of an image (H, W, 3).

    Example:
        >>> crop(tf.zeros((4, 5, 3)), tf.constant([1, 1, 2, 3])).shape
        TensorShape([2, 3, 3])
    """
    top, left, height, width = tf.unstack(window)
    return pixels[top : top + height, left : left + width]


def _prevent_inlining(branch: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    if tf.executing_eagerly():  # a new function would be traced for each file
        return branch
    return tf.function(branch, autograph=False, experimental_attributes=_NOT_INLINED)


def _decode_jpeg(file: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG without applying its orientation."""
    return tf.ensure_shape(
        tf.io.decode_jpeg(file, channels=3, dct_method=_DCT_METHOD), (None, None, 3)
    )


def _decode_turned(file: tf.Tensor, runs_python: bool) -> tf.Tensor:
    return turning.upright(
        _decode_jpeg(file), turning.orientation_of_jpeg(file, runs_python=runs_python)
    )


def _decode_png(file: tf.Tensor, runs_python: bool) -> tf.Tensor:
    return turning.upright(
        decode_png(file), turning.orientation_of_png(file, runs_python=runs_python)
    )


def _decode_others(file: tf.Tensor) -> tf.Tensor:
    """Decodes a file that is not a JPEG without EXIF. May run Python."""
    return (_decode_any if tf.executing_eagerly() else _decode_any_in_graph)(file)


def _decode_any(file: tf.Tensor) -> tf.Tensor:
    def decode_others() -> tf.Tensor:
        is_png = tf.strings.substr(file, 0, len(_PNG_BEGINS)) == _PNG_BEGINS
        return tf.cond(is_png, lambda: _decode_png(file, True), lambda: _decode_by_pillow(file))

    # Some cameras write a video or notes after the end marker.
    is_whole = tf.io.is_jpeg(file) & turning.contains(file, _JPEG_ENDS)
    return tf.cond(is_whole, lambda: _decode_turned(file, True), decode_others)


# Traced once for all pipelines of a process.
_decode_any_in_graph = tf.function(
    _decode_any,
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes=_NOT_INLINED,
)


def _ends_as_jpeg(file: tf.Tensor) -> tf.Tensor:
    place = tf.maximum(tf.strings.length(file) - len(_JPEG_ENDS), 0)
    return tf.strings.substr(file, place, len(_JPEG_ENDS)) == _JPEG_ENDS


def _decode_part(jpeg: tf.Tensor, window: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Decodes a window of a JPEG without applying its orientation.

    If colours are subsampled horizontally, libjpeg interpolates each column with its neighbours,
    which are missing at the edges of a window. Therefore one more column is decoded on each side.
    """
    top, left, height, width = tf.unstack(window)
    before = tf.minimum(left, 1)
    after = tf.minimum(shape[1] - left - width, 1)
    wider = tf.stack([top, left - before, height, before + width + after])
    part = tf.image.decode_and_crop_jpeg(jpeg, wider, channels=3, dct_method=_DCT_METHOD)
    return part[:, before : before + width]


def _decode_by_pillow(file: tf.Tensor) -> tf.Tensor:
    if tf.executing_eagerly():
        try:
            return tf.constant(_read_pixels(file.numpy()))
        except ValueError as error:  # raise the same type as in a graph
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    # An exception inside of `tf.numpy_function` would be logged with its traceback, once for each
    # unreadable file.
    pixels, reason = tf.numpy_function(_try_to_read, [file], (tf.uint8, tf.string), stateful=False)
    is_read = tf.equal(reason, "")
    with tf.control_dependencies([tf.debugging.Assert(is_read, [reason])]):
        return tf.ensure_shape(pixels, (None, None, 3))


def _try_to_read(file: bytes) -> tuple[np.ndarray, bytes]:
    """Returns the pixels and "", or no pixels and the reason why the file cannot be read."""
    try:
        return _read_pixels(file), b""
    except ValueError as error:
        return np.zeros((0, 0, 3), np.uint8), str(error).encode()


def _read_pixels(file: bytes) -> np.ndarray:
    try:
        return read_pixels(file)
    except ImportError as error:  # TensorFlow would convert it to another type
        raise ValueError(str(error)) from error
