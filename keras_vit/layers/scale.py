"""Layer scale: a learned factor for each channel of a residual branch.

Source: arXiv:2103.17239 (CaiT), section 2.1.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiplies each channel by a learned factor, initially 1e-5.

    Input shape:   (..., D).
    Output shape:  (..., D), same dtype as the input.

    Example:
        >>> keras.ops.shape(LayerScale()(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2103.17239; the initial value is that of dinov2@b8931f7.
    """

    def build(self, input_shape: tuple) -> None:
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(1e-5),
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x: Any) -> Any:
        return x * ops.cast(self.gamma, x.dtype)
