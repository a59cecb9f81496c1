"""Layer and group normalization, with fewer passes over memory than Keras takes.

Source: arXiv:1607.06450 (Ba et al.), arXiv:1803.08494 (Wu & He).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers import quantized
from keras_vit.layers.first_token import pass_on

if keras.backend.backend() == "tensorflow":
    from keras_vit.layers import tensorflow_inference, tensorflow_training


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.Layer):
    """Standardizes each token, then scales and shifts it: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Statistics are computed in float32 at least, and gamma and beta stay in their own dtype, whatever the policy. On
    TensorFlow memory is passed less often than by Keras's layer, and only the input is kept for the gradient.

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

    def quantize(self, mode: str, **_: Any) -> None:
        """Called by `model.quantize`: nothing here is rounded, but the layers behind round what they are given."""
        quantized.make_reproducible(self)

    def call(self, x, training=None):
        normal = self._normalize(x, training)
        pass_on(x, normal, lambda first: self._normalize(first, training), training)
        return normal

    def _normalize(self, x, training):
        if keras.backend.backend() != "tensorflow":
            return ops.layer_normalization(x, self.gamma, self.beta, -1, self.epsilon)
        is_reproducible = quantized.is_reproducible(self)
        if not training and not is_reproducible and tensorflow_inference.has_one_pass_norm(x):
            return tensorflow_inference.one_pass_norm(x, self.gamma.value, self.beta.value, self.epsilon)
        wide = tensorflow_training.wide_dtype(x).name
        gamma, beta = (ops.cast(weight, wide) for weight in (self.gamma, self.beta))
        if training:
            return tensorflow_training.layer_norm(x, gamma, beta, self.epsilon)
        mean, inverse, normal = tensorflow_training.standardized(x, self.epsilon)
        if is_reproducible:  # of two products in a row TensorFlow's graphs choose the order: so the first is a quotient
            normal = (ops.cast(x, wide) - mean) / ops.reciprocal(inverse)
        return ops.cast(normal * gamma + beta, x.dtype)

    def get_build_config(self) -> dict | None:
        return quantized.build_config(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.take(self, config))

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNorm(keras.layers.Layer):
    """Standardizes groups of channels over all cells of a map, then scales and shifts each channel.

    Statistics are computed in float32 at least, and gamma and beta stay in their own dtype, whatever the policy. They
    are taken of each channel first, then of the group, so that memory is read in its order: Keras's layer takes 1.1 to
    3.5 times as long on a processor. In training on TensorFlow only the input is kept for the gradient.

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

    def __init__(self, groups: int, *, epsilon: float, gamma_initializer: str = "ones", **kwargs: Any):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon
        self.gamma_initializer = gamma_initializer

    def build(self, input_shape: tuple) -> None:
        channels = input_shape[-1]
        if channels % self.groups:
            raise ValueError(f"`groups` must divide the channels. Received: {self.groups} groups, {channels} channels.")
        self.gamma = self.add_weight(
            name="gamma", shape=(channels,), initializer=self.gamma_initializer, autocast=False
        )
        self.beta = self.add_weight(name="beta", shape=(channels,), initializer="zeros", autocast=False)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        values = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        gamma, beta = (ops.cast(weight, values.dtype) for weight in (self.gamma, self.beta))
        means = _mean_of_cells(values)  # of each channel
        mean = self._over_groups(means)
        inside = _mean_of_cells(_squared_difference(values, means))
        inverse = ops.rsqrt(self._over_groups(inside + ops.square(means - mean)) + self.epsilon)
        if training and keras.backend.backend() == "tensorflow":
            return tensorflow_training.group_norm(x, gamma, beta, mean, inverse, _mean_of_cells, self._over_groups)
        scale = inverse * gamma
        return ops.cast(values * scale + (beta - mean * scale), x.dtype)

    def _over_groups(self, values):
        """(B, 1, 1, C) to the same: each channel gets the mean of its group."""
        channels = values.shape[-1]
        size = channels // self.groups
        means = ops.mean(ops.reshape(values, (-1, self.groups, size)), -1, keepdims=True)
        return ops.reshape(ops.tile(means, (1, 1, size)), (-1, 1, 1, channels))

    def get_config(self) -> dict:
        config = {"groups": self.groups, "epsilon": self.epsilon, "gamma_initializer": self.gamma_initializer}
        return {**super().get_config(), **config}


def _mean_of_cells(values):
    """(B, H, W, C) to (B, 1, 1, C), row by row: TensorFlow adds float32 one by one, and many cells cost digits."""
    return ops.mean(ops.mean(values, 2, keepdims=True), 1, keepdims=True)


def _squared_difference(x, y):
    """(x - y) ** 2, where there is an operation for it without their difference in memory."""
    if keras.backend.backend() == "tensorflow":
        return tensorflow_training.squared_difference(x, y)
    return ops.square(x - y)
