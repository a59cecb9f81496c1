"""Normalization of pixels: by a mean and a standard deviation of each color, or of each patch."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers import constants


@keras.saving.register_keras_serializable(package="keras_vit")
class PixelNormalization(keras.layers.Layer):
    """Converts pixels from [-1, 1] to (p - mean) / std, where p is the pixel from 0 to 1.

    So all models take the same pixels, whatever their checkpoints were trained on.

    Args:
        mean: Mean of red, green and blue, on the scale from 0 to 1.
        std: Standard deviation of red, green and blue, on the same scale.

    Input shape:   (B, H, W, C). For a number of channels other than 3, mean and deviation are
        repeated in turn, like the kernel of the patches; for one channel they are averaged.
    Output shape:  (B, H, W, C), same dtype as the input.

    Example:
        >>> layer = PixelNormalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        >>> pixels = keras.ops.convert_to_numpy(layer(keras.ops.zeros((1, 1, 1, 3))))
        >>> pixels.astype("float64").round(3).ravel().tolist()
        [0.066, 0.196, 0.418]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], **kwargs: Any):
        super().__init__(**kwargs)
        self.mean = tuple(mean)
        self.std = tuple(std)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, images):
        mean, std = (_fit(values, images.shape[-1]) for values in (self.mean, self.std))
        # (p - mean) / std for p = x / 2 + 1 / 2
        scale, shift = 0.5 / std, (0.5 - mean) / std
        return images * scale.astype("float32") + shift.astype("float32")

    def save_own_variables(self, store) -> None:
        constants.record(store, {"pixel_mean": self.mean, "pixel_std": self.std})

    def load_own_variables(self, store) -> None:
        """Reads nothing: the layer has no variables, and `keras_h5.py` reads its constants."""

    def get_config(self) -> dict:
        return {**super().get_config(), "mean": self.mean, "std": self.std}


def _fit(values: Sequence[float], channels: int) -> np.ndarray:
    colors = np.asarray(values, "float64")
    return np.full(1, colors.mean()) if channels == 1 else np.resize(colors, channels)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchNormalization(keras.layers.Layer):
    """Normalizes the pixels of each patch by their mean and their unbiased variance.

    Masked autoencoders learn better representations from such targets. One mean and one variance
    cover all colors of a patch.

    Args:
        epsilon: Added to the variance. No default: it is 1e-6 in the authors' code.

    Input shape:   (B, N, P * P * C), patches from `PatchExtract`.
    Output shape:  (B, N, P * P * C), same dtype as the input.

    Example:
        >>> layer = PatchNormalization(1e-6)
        >>> keras.ops.convert_to_numpy(layer(np.array([[[1.0, 2.0, 3.0]]]))).round(3).tolist()
        [[[-1.0, 0.0, 1.0]]]

    Source: arXiv:2111.06377, section 3; facebookresearch/mae@6a2ba40 models_mae.py, `forward_loss`.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, patches):
        mean, deviation = self.compute_statistics(patches)
        return (patches - mean) / deviation

    def compute_statistics(self, patches):
        """Returns the mean of each patch and the square root of its variance, both (B, N, 1)."""
        mean = ops.mean(patches, axis=-1, keepdims=True)
        squares = ops.sum(ops.square(patches - mean), axis=-1, keepdims=True)
        return mean, ops.sqrt(squares / (patches.shape[-1] - 1) + self.epsilon)

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}
