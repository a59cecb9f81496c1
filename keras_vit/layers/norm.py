"""Layer normalization: on TensorFlow with fewer passes over memory than Keras takes, elsewhere Keras's function.

Source: arXiv:1607.06450 (Ba et al.).
"""

from typing import Any

import keras
from keras import ops

if keras.backend.backend() == "tensorflow":
    from keras_vit.layers import tensorflow_training


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.Layer):
    """Standardizes each token, then scales and shifts it: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Statistics are computed in float32 at least, and gamma and beta stay in their own dtype, whatever the policy.

    Args:
        epsilon: Added to the variance. No default: it must match the checkpoint (1e-6 for the published ones).

    Input shape:   (..., D).
    Output shape:  (..., D), in the compute dtype.

    Example:
        >>> keras.ops.convert_to_numpy(LayerNorm(1e-6)(keras.ops.array([[1.0, 3.0]]))).round(3).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple) -> None:
        width = input_shape[-1]
        self.gamma = self.add_weight(name="gamma", shape=(width,), initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=(width,), initializer="zeros", autocast=False)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        if keras.backend.backend() != "tensorflow":
            return ops.layer_normalization(x, self.gamma, self.beta, -1, self.epsilon)
        wide = "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"
        gamma, beta = (ops.cast(weight, wide) for weight in (self.gamma, self.beta))
        if training:
            return tensorflow_training.layer_norm(x, gamma, beta, self.epsilon)
        _, _, normal = tensorflow_training.standardized(x, self.epsilon)
        return ops.cast(normal * gamma + beta, x.dtype)

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}
