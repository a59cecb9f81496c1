"""Which pixels a model takes: levels from 0 to 255, which it scales itself, or numbers in [-1, 1]."""

from typing import Any

import keras
import numpy as np

# What keeps the range of the pixels; the range is decided behind it.
_KEEPING = (
    *(keras.layers.InputLayer, keras.layers.Identity, keras.layers.Dropout, keras.layers.GaussianNoise),
    *(keras.layers.Resizing, keras.layers.CenterCrop, keras.layers.Cropping2D, keras.layers.ZeroPadding2D),
    *(keras.layers.RandomCrop, keras.layers.RandomFlip, keras.layers.RandomRotation, keras.layers.RandomTranslation),
    *(keras.layers.RandomZoom, keras.layers.RandomBrightness, keras.layers.RandomContrast, keras.layers.Permute),
)
_OF_LEVELS = 4.0  # means, deviations and divisors greater than this are of pixels from 0 to 255
_ADVICE = (
    "Begin it with `keras.layers.Rescaling(1 / 255)` or another layer that takes pixels from 0 to 255, or have it take "
    "pixels in [-1, 1]."
)


def scales_pixels(model: keras.Model) -> bool:
    """Returns whether a functional model takes pixels from 0 to 255; else it takes them in [-1, 1], as ours do.

    It does if it begins with arithmetic (`include_preprocessing`), or with a `Rescaling` or `Normalization` that is
    made for such pixels, also within a model within it, and behind layers that resize, crop or augment.

    Raises:
        ValueError: If it begins with a layer that is made for pixels in [0, 1], or of which this cannot be known.

    Example:
        >>> scales_pixels(keras_vit.ViT_Ti16(weights=None))
        False
        >>> scales_pixels(keras_vit.ViT_Ti16(weights=None, include_preprocessing=True))
        True
    """
    return bool(_decided(model))


def _decided(model: Any) -> bool | None:
    """None if nothing in the model decides."""
    for step in getattr(model, "operations", None) or model.layers:  # a Sequential has none
        if isinstance(step, keras.Model):
            inner = _decided(step)
            if inner is not None:
                return inner
        elif isinstance(step, keras.layers.Rescaling):
            divisor = 1 / max(float(np.abs(step.scale).max()), 1e-12)
            if divisor > _OF_LEVELS:
                return True
            if np.allclose(step.scale, step.offset):  # brings -1 to 0, and 1 to a level or to 1
                return False
            if divisor != 1 or np.any(step.offset):
                raise ValueError(
                    f"{model.name} begins with Rescaling(scale={step.scale}, offset={step.offset}), which is not made "
                    f"for pixels from 0 to 255, so which it takes cannot be known. {_ADVICE}"
                )
        elif isinstance(step, keras.layers.Normalization):
            if step.mean is None:
                raise ValueError(f"The layer {step.name} of {model.name} has never seen data: call its `adapt`.")
            means, variances = (np.ravel(keras.ops.convert_to_numpy(value)) for value in (step.mean, step.variance))
            if step.invert or max(np.abs(means).max(), np.sqrt(variances.max())) <= _OF_LEVELS:
                raise ValueError(
                    f"{model.name} begins with a Normalization of means {means.tolist()}, which is not made for pixels "
                    f"from 0 to 255, so which it takes cannot be known. {_ADVICE}"
                )
            return True
        elif isinstance(step, keras.layers.Lambda):
            raise ValueError(
                f"{model.name} begins with a Lambda ({step.name}), so which pixels it takes cannot be known. {_ADVICE}"
            )
        elif not isinstance(step, keras.layers.Layer):
            return True
        elif not isinstance(step, _KEEPING):
            return False
    return None
