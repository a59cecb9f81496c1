"""Freezing of the layers that a frozen layer creates."""

import keras


def keep_frozen(layer: keras.layers.Layer) -> None:
    """Freezes the layers inside a frozen layer. Layers call it at the end of `build`.

    Keras stores `trainable` with each layer. When a model is loaded or cloned, a layer is frozen
    first and then creates its inner layers, which Keras 3.15 leaves trainable. Without this
    function, the inner layers of a frozen model would be trained silently.

    Example:
        >>> block = keras_vit.layers.MlpBlock(8, gelu="tanh", trainable=False)
        >>> block.build((None, 4, 6))  # calls `keep_frozen`
        >>> block.dense_0.trainable
        False
    """
    if not layer.trainable:
        layer.trainable = True  # on TensorFlow, assigning the same value again has no effect
        layer.trainable = False
