"""Rotary positions: each query and key is rotated by an angle that depends on its patch.

Source: arXiv:2104.09864 (RoFormer); for images, arXiv:2508.10104 (DINOv3), section 3.2.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

# Longest wave, in units of the shortest one (DINOv3's `rope_theta`).
_TEMPERATURE = 100.0


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryPositions(keras.layers.Layer):
    """Computes the rotations of all tokens from the grid of patches.

    The coordinates of a patch are those of its center, from -1 to 1 along each axis, so a patch at
    the same place of a larger image is rotated by the same angle. Prefix tokens are not rotated.

    Args:
        head_dim: Size K of a query of one head, a multiple of 4.
        num_prefix_tokens: Number of tokens T before the patches.

    Input shape:   (B, rows, columns, ...), any tensor with the grid of patches.
    Output shape:  (2, T + rows * columns, K): cosines and sines of the angles.

    Example:
        >>> keras.ops.shape(RotaryPositions(64, 5)(keras.ops.zeros((2, 14, 14, 384))))
        (2, 201, 64)

    Source: dinov3@6876159 layers/rope_position_encoding.py.
    """

    def __init__(self, head_dim: int, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        if head_dim % 4:
            raise ValueError(
                "Rotary positions need a head size that is a multiple of 4. Received: "
                f"head_dim={head_dim}."
            )
        self.head_dim = head_dim
        self.num_prefix_tokens = num_prefix_tokens

    def compute_output_shape(self, patches_shape: tuple) -> tuple:
        rows, columns = patches_shape[1:3]
        if rows is None or columns is None:
            return 2, None, self.head_dim
        return 2, self.num_prefix_tokens + rows * columns, self.head_dim

    def call(self, patches):
        rows, columns = ops.shape(patches)[1:3]
        count = self.head_dim // 4
        waves = 2 * math.pi / np.power(_TEMPERATURE, np.arange(count) / count)
        down, across = _compute_angles(rows, waves), _compute_angles(columns, waves)
        angles = [
            ops.broadcast_to(by_axis, (rows, columns, count))
            for by_axis in (down[:, None], across[None])
        ]
        angles = ops.reshape(ops.concatenate(angles, axis=-1), (-1, 2 * count))
        angles = ops.pad(ops.tile(angles, (1, 2)), ((self.num_prefix_tokens, 0), (0, 0)))
        return ops.cast(ops.stack([ops.cos(angles), ops.sin(angles)]), self.compute_dtype)

    def get_config(self) -> dict:
        config = {"head_dim": self.head_dim, "num_prefix_tokens": self.num_prefix_tokens}
        return {**super().get_config(), **config}


def rotate(x: Any, rotation: Any) -> Any:
    """Rotates each pair (x[i], x[i + K / 2]) of queries or keys by the angle of its token.

    Args:
        x: (B, A, N, K).
        rotation: (2, N, K), the result of `RotaryPositions`.
    """
    first, second = ops.split(x, 2, axis=-1)
    turned = ops.concatenate([-second, first], axis=-1)
    rotation = ops.cast(rotation, x.dtype)
    return x * rotation[0] + turned * rotation[1]


def _compute_angles(length: Any, waves: np.ndarray) -> Any:
    """Returns the angles of the centers of `length` patches along one axis, (length, K / 4)."""
    centers: Any = (ops.arange(length, dtype="float32") + 0.5) / ops.cast(length, "float32")
    return ops.multiply(ops.expand_dims(2 * centers - 1, 1), waves.astype("float32"))
