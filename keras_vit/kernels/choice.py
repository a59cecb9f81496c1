"""Selects the implementation of norms, softmax, GELU and the halves of a block.

| backend, mode | implementation |
|---|---|
| JAX, PyTorch | `reference.py`, in `keras.ops`; compilers fuse it |
| TensorFlow, training | `tensorflow/training.py` and `tensorflow/halves.py`: less memory is kept for the gradient |
| TensorFlow, `predict` on a CPU | `tensorflow/inference.py`: oneDNN's operations, which pass memory less often |
| TensorFlow, otherwise | plain operations, the only ones that are saved and exported |

All implementations of a function agree up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_vit.kernels import reference
from keras_vit.variants import Gelu

if keras.backend.backend() == "tensorflow":
    from keras_vit.kernels.tensorflow import halves, inference
    from keras_vit.kernels.tensorflow import training as for_training


def _is_on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def gelu(x: Any, form: Gelu, *, training: bool | None = None, reproducible: bool = False) -> Any:
    """Computes x * P(X <= x) for a normally distributed X.

    Args:
        x: Tensor of any shape. The result has the same shape and dtype.
        form: "exact", with the error function; "tanh", an approximation with errors up to 5e-4; or
            "quick", x * sigmoid(1.702 x), with errors up to 0.02.
        training: Whether a gradient will be computed.
        reproducible: Whether the results must be equal in graphs and in eager mode, see
            `layers.quantized`.

    Example:
        >>> [round(float(y), 4) for y in gelu(keras.ops.array([-1.0, 0.0, 2.0]), "tanh")]
        [-0.1588, 0.0, 1.9546]

    Source: arXiv:1606.08415 (Hendrycks & Gimpel).
    """
    if form == "quick":
        return reference.quick_gelu(x)
    if training and _is_on_tensorflow() and for_training.compiles():
        return for_training.compiled_gelu(x, form)
    return (
        reference.reproducible_tanh_gelu(x)
        if reproducible and form == "tanh"
        else reference.gelu(x, form)
    )


def layer_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    epsilon: float,
    *,
    training: bool | None = None,
    reproducible: bool = False,
) -> Any:
    """Computes gamma * (x - mean) / sqrt(variance + epsilon) + beta over the last axis.

    Args:
        x: (..., D). The result has the same shape and dtype.
        gamma, beta: Keras variables, (D,), used in float32 or wider.
        epsilon: Added to the variance.
        training: Whether a gradient will be computed.
        reproducible: Whether the results must be equal in graphs and in eager mode, see
            `layers.quantized`.

    Example:
        >>> one, zero = keras.Variable([1.0, 1.0]), keras.Variable([0.0, 0.0])
        >>> keras.ops.convert_to_numpy(layer_norm(keras.ops.array([[1.0, 3.0]]), one, zero, 1e-6)).round(3).tolist()
        [[-1.0, 1.0]]
    """
    if not _is_on_tensorflow():
        return reference.layer_norm(x, gamma, beta, epsilon)
    if not training and not reproducible and inference.has_one_pass_norm(x):
        return inference.one_pass_norm(x, gamma.value, beta.value, epsilon)
    gamma, beta = (
        keras.ops.cast(weight, for_training.wide_dtype(x).name) for weight in (gamma, beta)
    )
    if training:
        return for_training.layer_norm(x, gamma, beta, epsilon)
    return inference.plain_norm(x, gamma, beta, epsilon, reproducible=reproducible)


def group_norm(
    x: Any, gamma: Any, beta: Any, groups: int, epsilon: float, *, training: bool | None = None
) -> Any:
    """Standardizes groups of channels over a map, then scales and shifts each channel.

    Args:
        x: (B, H, W, C).
        gamma, beta: (C,), used in float32 or wider.
        groups: Number of groups.
        epsilon: Added to the variance.
        training: Whether a gradient will be computed.

    Example:
        >>> x = keras.ops.reshape(keras.ops.array([1.0, 3.0, 5.0, 5.0]), (1, 1, 1, 4))
        >>> keras.ops.convert_to_numpy(group_norm(x, keras.ops.ones(4), keras.ops.zeros(4), 2, 1e-6)).ravel().round(3)
        array([-1.,  1.,  0.,  0.], dtype=float32)
    """
    squared_difference = (
        for_training.squared_difference if _is_on_tensorflow() else reference.squared_difference
    )
    values = keras.ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    gamma, beta = (keras.ops.cast(weight, values.dtype) for weight in (gamma, beta))
    mean, inverse = reference.group_statistics(values, groups, epsilon, squared_difference)
    if training and _is_on_tensorflow():
        return for_training.group_norm(
            x,
            gamma,
            beta,
            mean,
            inverse,
            reference.mean_of_cells,
            lambda means: reference.over_groups(means, groups),
        )
    scale = inverse * gamma
    return keras.ops.cast(values * scale + (beta - mean * scale), x.dtype)


def softmax(logits: Any) -> Any:
    """Computes the softmax over the last axis in float32, and returns it in the dtype of the
    logits.

    In 16 bits, small probabilities over hundreds of keys would be lost.
    """
    is_wide_inside = _is_on_tensorflow() and inference.has_narrow_softmax(logits)
    return keras.ops.cast(
        reference.softmax(logits if is_wide_inside else keras.ops.cast(logits, "float32")),
        logits.dtype,
    )


def map_in_turn(compute: Callable, parts: Iterable[Sequence[Any]]) -> list[Any]:
    """Returns [compute(*part) for each part], computed sequentially to save memory.

    XLA orders the parts itself. TensorFlow would compute them in parallel.
    """
    return (
        for_training.map_in_turn(compute, parts)
        if _is_on_tensorflow()
        else [compute(*part) for part in parts]
    )


def has_fused_halves(block: Any, training: bool | None) -> bool:
    """Returns whether `fused_attention` and `fused_mlp` support this `TransformerBlock`."""
    return bool(training) and _is_on_tensorflow() and halves.fits(block)


def fused_attention(block: Any, own: Any, x: Any) -> Any:
    """Computes MSA(LN(x)) for the tokens `own`: all of x, (B, N, D), or the first, (B, 1, D)."""
    return halves.attention(block, own, x)


def fused_mlp(block: Any, x: Any) -> Any:
    """Computes MLP(LN(x)), (B, N, D)."""
    return halves.mlp(block, x)


def first_token_suffices(x: Any, training: bool | None) -> bool:
    """Returns whether a block may compute only its first token if no other token is read.

    This is the case in TensorFlow graphs for training and `predict`. Elsewhere, also in saved and
    exported models, all tokens are computed.
    """
    return (
        _is_on_tensorflow()
        and for_training.is_in_graph(x)
        and (bool(training) or inference.predicts())
    )
