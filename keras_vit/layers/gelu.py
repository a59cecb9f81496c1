"""GELU in its two forms.

In training on TensorFlow and a processor it is compiled, one pass over memory forward and one backward, and keeps its
input alone for the gradient: see `tensorflow_training.py`. Elsewhere compilers do this by themselves.

Source: arXiv:1606.08415 (Hendrycks & Gimpel).
"""

import math
from typing import Any, Literal

import keras

if keras.backend.backend() == "tensorflow":
    from keras_vit.layers import tensorflow_training

Gelu = Literal["tanh", "exact"]
_SCALE = math.sqrt(2 / math.pi)


def gelu(x: Any, form: Gelu, *, training: bool | None = None, reproducible: bool = False) -> Any:
    """Returns x * P(X <= x), X normally distributed; any shape, same dtype as the input.

    Args:
        x: Numbers.
        form: "exact", by the error function, or "tanh", its approximation, up to 5e-4 off.
        training: Whether a gradient will be asked for.
        reproducible: Whether the same bits are needed in a graph and without: see `quantized.make_reproducible`.

    Example:
        >>> [round(float(y), 4) for y in gelu(keras.ops.array([-1.0, 0.0, 2.0]), "tanh")]
        [-0.1588, 0.0, 1.9546]
    """
    if training and keras.backend.backend() == "tensorflow" and tensorflow_training.compiles():
        return tensorflow_training.compiled_gelu(x, form)
    if reproducible and form == "tanh":  # no power, no product of three: TensorFlow's graphs rewrite these
        inner = x * (_SCALE + 0.044715 * _SCALE * keras.ops.square(x))
        return x * (0.5 + 0.5 * keras.ops.tanh(inner))
    # TensorFlow 2.21 makes one operation of product, bias and GELU only if "gelu" sorts behind the name of the product.
    with keras.name_scope("gelu"):
        return keras.activations.gelu(x, approximate=form == "tanh")
