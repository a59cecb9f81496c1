"""Learned tokens that are put among the patch tokens.

Source: arXiv:2010.11929, section 3.1.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends one learned token to every sequence; it starts at zero.

    Input shape:   (B, N, D).
    Output shape:  (B, 1 + N, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(ClassToken()(keras.ops.zeros((2, 196, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 1; vision_transformer@c6de1e5 models_vit.py.
    """

    def build(self, input_shape: tuple) -> None:
        self.cls = self.add_weight(name="cls", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, length, width = input_shape
        return batch, None if length is None else length + 1, width

    def call(self, tokens):
        token = ops.cast(self.cls, tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return ops.concatenate([token, tokens], axis=1)
