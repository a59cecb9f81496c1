"""Layers that are made inside a frozen one."""

import keras


def keep_frozen(layer: keras.layers.Layer) -> None:
    """Freezes what a frozen layer has made inside; called at the end of its build.

    Keras stores `trainable` with each layer. When a model is loaded or cloned, a layer is frozen
    first and then makes the layers inside, which Keras 3.15 leaves trainable: a frozen model would
    be trained, without a word.

    Example:
        >>> block = keras_vit.layers.MlpBlock(8, gelu="tanh", trainable=False)
        >>> block.build((None, 4, 6))  # calls it
        >>> block.dense_0.trainable
        False
    """
    if not layer.trainable:
        layer.trainable = True  # on TensorFlow, setting the value that is set already does nothing
        layer.trainable = False
