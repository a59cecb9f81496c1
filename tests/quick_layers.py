"""Keras layers that are made quickly. The quick tests make tens of thousands of them; the long ones
use Keras as it is.
"""

from types import SimpleNamespace

import keras
import numpy as np
from keras.src.initializers import random_initializers

_set_tracked = keras.Layer.__setattr__


def skip_tracking_of_plain_values() -> None:
    """Keras asks of each attribute of a layer whether it is a variable, a layer, a metric or a
    container of such, and TensorFlow asks again. For numbers and strings the answer is known: 8 % of
    the time on TensorFlow.
    """
    keras.Layer.__setattr__ = _set  # type: ignore[method-assign]


def _set(layer: keras.Layer, name: str, value: object) -> None:
    if value is None or type(value) in (bool, int, float, str):
        object.__setattr__(layer, name, value)
    else:
        _set_tracked(layer, name, value)


def initialize_with_numpy() -> None:
    """Lets Keras's random initializers draw with NumPy, from the same distributions and their own
    seeds. On JAX, `keras.random` compiles a program for each shape, a quarter of the time there.
    `keras.random` stays as it is for everything else.
    """
    random_initializers.random = SimpleNamespace(  # type: ignore[attr-defined]
        **{
            **vars(random_initializers.random),
            "normal": _normal,
            "truncated_normal": _truncated_normal,
            "uniform": _uniform,
        }
    )


def _normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    return _tensor(_generator(seed).normal(mean, stddev, shape), dtype)


def _truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    generator = _generator(seed)
    values = generator.normal(size=shape)
    while (outside := np.abs(values) > 2).any():
        values = np.where(outside, generator.normal(size=shape), values)
    return _tensor(mean + stddev * values, dtype)


def _uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
    return _tensor(_generator(seed).uniform(minval, maxval, shape), dtype)


def _generator(seed: "int | keras.random.SeedGenerator") -> np.random.Generator:
    if isinstance(seed, keras.random.SeedGenerator):
        return np.random.default_rng(keras.ops.convert_to_numpy(seed.next()))
    return np.random.default_rng(seed)


def _tensor(values: np.ndarray, dtype: str | None):
    return keras.ops.convert_to_tensor(values.astype("float32"), dtype=dtype)
