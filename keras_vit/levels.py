"""Conversion between levels (0 to 255, as in image files) and pixels in [-1, 1], which the models
take.
"""

from typing import Any

import numpy as np


def to_pixels(levels: Any) -> Any:
    """Returns levels / 127.5 - 1, the scaling of the published models.

    Args:
        levels: Floats from 0 to 255, any shape: an array of NumPy, TensorFlow or JAX, or a Keras
            tensor.

    Example:
        >>> to_pixels(np.array([0.0, 127.5, 255.0])).tolist()
        [-1.0, 0.0, 1.0]

    Source: arXiv:2010.11929, appendix B.1; vision_transformer@c6de1e5 input_pipeline.py.
    """
    return levels / 127.5 - 1.0


def to_levels(pixels: np.ndarray) -> np.ndarray:
    """Converts pixels in [-1, 1] to the nearest levels, as uint8.

    Example:
        >>> to_levels(np.array([-1.0, 0.0, 1.0])).tolist()
        [0, 128, 255]
    """
    return np.round((pixels + 1) * 127.5).clip(0, 255).astype(np.uint8)
