"""Decodes PNG files with TensorFlow. Transparent pixels are blended with white.

`keras_vit.photos` does the same. TensorFlow itself drops transparency, which reveals the stored
colours of transparent pixels, often black.
"""

import tensorflow as tf

_BIT_DEPTH_AT = 24  # in the header, which is the first chunk


def decode_png(file: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of a PNG, (H, W, 3) uint8.

    Raises:
        tf.errors.InvalidArgumentError: If the file is damaged.

    Example:
        >>> clear = tf.constant([[[0, 0, 0, 0], [0, 0, 0, 51], [9, 8, 7, 255]]], tf.uint8)
        >>> decode_png(tf.io.encode_png(clear))[0].numpy().tolist()
        [[255, 255, 255], [204, 204, 204], [9, 8, 7]]
    """
    pixels = tf.io.decode_png(file, channels=4)
    opacity = pixels[..., 3:]
    is_opaque = tf.reduce_all(opacity == _find_opaque_level(file))
    return tf.cond(
        is_opaque, lambda: pixels[..., :3], lambda: _blend_with_white(pixels[..., :3], opacity)
    )


def _find_opaque_level(file: tf.Tensor) -> tf.Tensor:
    """Returns the opacity that TensorFlow assigns to a file without transparency.

    It is the largest number of the bit depth, such as 15 for 4 bits.
    """
    header = tf.io.decode_raw(tf.strings.substr(file, 0, _BIT_DEPTH_AT + 1), tf.uint8)
    depth = tf.cast(tf.minimum(header[_BIT_DEPTH_AT], tf.constant(8, tf.uint8)), tf.int32)
    return tf.cast(tf.bitwise.left_shift(1, depth) - 1, tf.uint8)


def _blend_with_white(pixels: tf.Tensor, opacity: tf.Tensor) -> tf.Tensor:
    """Computes 255 - (255 - pixels) * opacity / 255, rounded, in uint16."""
    product = tf.cast(255 - pixels, tf.uint16) * tf.cast(opacity, tf.uint16) + tf.constant(
        128, tf.uint16
    )
    eight = tf.constant(8, tf.uint16)
    # Blinn's division by 255
    shade = tf.bitwise.right_shift(product + tf.bitwise.right_shift(product, eight), eight)
    return 255 - tf.cast(shade, tf.uint8)
