"""Layer and group normalization. `keras_vit.kernels` computes them.

Source: arXiv:1607.06450 (Ba et al.), arXiv:1803.08494 (Wu & He).
"""

import numbers
from typing import Any

import keras

from keras_vit import kernels
from keras_vit.layers import quantized


def _check_epsilon(epsilon: float) -> float:
    # a damaged file `model.keras` may contain anything
    if not isinstance(epsilon, numbers.Real) or not 0 < epsilon <= 1:
        raise ValueError(
            f"`epsilon` must be a number above 0 and at most 1. Received: {epsilon!r}."
        )
    return float(epsilon)


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.Layer):
    """Layer normalization: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Statistics are computed in float32 or wider. gamma and beta are not cast to the compute dtype.
    On TensorFlow, this layer needs fewer passes over memory than Keras's, and stores only its input
    for the gradient.

    Args:
        epsilon: Added to the variance. No default: it must match the checkpoint (1e-6 for the
            published ones).

    Input shape:   (..., D).
    Output shape:  (..., D), in the compute dtype.

    Example:
        >>> keras.ops.convert_to_numpy(LayerNorm(1e-6)(keras.ops.array([[1.0, 3.0]]))).round(3).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = _check_epsilon(epsilon)

    def build(self, input_shape: tuple) -> None:
        width = input_shape[-1]
        self.gamma = self.add_weight(
            name="gamma", shape=(width,), initializer="ones", autocast=False
        )
        self.beta = self.add_weight(
            name="beta", shape=(width,), initializer="zeros", autocast=False
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def quantize(self, mode: str, **_: Any) -> None:
        """Marks the layer as reproducible. `model.quantize` calls it.

        The norm itself is not quantized, but the next layers round its outputs.
        """
        quantized.make_reproducible(self)

    def call(self, x, training=None):
        reproducible = quantized.is_reproducible(self)
        return kernels.layer_norm(
            x, self.gamma, self.beta, self.epsilon, training=training, reproducible=reproducible
        )

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNorm(keras.layers.Layer):
    """Standardizes groups of channels over all cells of a map, then scales and shifts each channel.

    Statistics are computed in float32 at least, and gamma and beta stay in their own dtype,
    whatever the policy. On a CPU, Keras's layer takes 1.1 to 3.5 times as long. In training on
    TensorFlow only the input is kept for the gradient.

    Args:
        groups: Number of groups; must divide the number of channels.
        epsilon: Added to the variance. No default: it must match the checkpoint.
        gamma_initializer: Of the scale; "zeros" where a residual unit should start as its shortcut.

    Input shape:   (B, H, W, C).
    Output shape:  (B, H, W, C), in the compute dtype.

    Example:
        >>> x = keras.ops.reshape(keras.ops.array([1.0, 3.0, 5.0, 5.0]), (1, 1, 1, 4))
        >>> keras.ops.convert_to_numpy(GroupNorm(2, epsilon=1e-6)(x)).round(3).ravel().tolist()
        [-1.0, 1.0, 0.0, 0.0]
    """

    def __init__(
        self, groups: int, *, epsilon: float, gamma_initializer: str = "ones", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = _check_epsilon(epsilon)
        self.gamma_initializer = gamma_initializer

    def build(self, input_shape: tuple) -> None:
        channels = input_shape[-1]
        if channels % self.groups:
            raise ValueError(
                f"`groups` must divide the channels. Received: {self.groups} groups, {channels} "
                f"channels."
            )
        self.gamma = self.add_weight(
            name="gamma", shape=(channels,), initializer=self.gamma_initializer, autocast=False
        )
        self.beta = self.add_weight(
            name="beta", shape=(channels,), initializer="zeros", autocast=False
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        return kernels.group_norm(
            x, self.gamma, self.beta, self.groups, self.epsilon, training=training
        )

    def get_config(self) -> dict:
        config = {
            "groups": self.groups,
            "epsilon": self.epsilon,
            "gamma_initializer": self.gamma_initializer,
        }
        return {**super().get_config(), **config}
