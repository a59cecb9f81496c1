"""GELU in its two forms.

In training on TensorFlow and a processor it is compiled, one pass over memory forward and one backward, and keeps its
input alone for the gradient: see `tensorflow_training.py`. Elsewhere compilers do this by themselves.

Source: arXiv:1606.08415 (Hendrycks & Gimpel).
"""

from typing import Any, Literal

import keras

if keras.backend.backend() == "tensorflow":
    from keras_vit.layers import tensorflow_training

Gelu = Literal["tanh", "exact"]


def gelu(x: Any, form: Gelu, *, training: bool | None = None) -> Any:
    """Returns x * P(X <= x), X normally distributed; any shape, same dtype as the input.

    Args:
        x: Numbers.
        form: "exact", by the error function, or "tanh", its approximation, up to 5e-4 off.
        training: Whether a gradient will be asked for.

    Example:
        >>> [round(float(y), 4) for y in gelu(keras.ops.array([-1.0, 0.0, 2.0]), "tanh")]
        [-0.1588, 0.0, 1.9546]
    """
    if training and keras.backend.backend() == "tensorflow" and tensorflow_training.compiles():
        return tensorflow_training.compiled_gelu(x, form)
    # TensorFlow 2.21 makes one operation of product, bias and GELU only if "gelu" sorts behind the name of the product.
    with keras.name_scope("gelu"):
        return keras.activations.gelu(x, approximate=form == "tanh")
