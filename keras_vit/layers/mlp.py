"""The two kinds of MLP of the encoder block, and reshapes of tokens for their matrix products.

Source: arXiv:2010.11929, section 3.1, equation 3; SwiGLU: arXiv:2002.05202.
"""

import functools
from typing import Any, get_args

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.layers import quantized
from keras_vit.layers.freezing import keep_frozen
from keras_vit.variants import Gelu


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(keras.layers.Layer):
    """Two dense layers with a GELU between them.

    Args:
        mlp_dim: Hidden size.
        gelu: "tanh" (Google's checkpoints), "exact" (timm's and Hugging Face's) or "quick" (CLIP's).
            No default: it must match the checkpoint.
        dropout_rate: Dropout after the GELU and after the second layer.

    Input shape:   (B, N, D).
    Output shape:  (B, N, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(MlpBlock(768, gelu="tanh")(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 3; vision_transformer@c6de1e5 models_vit.py.
    """

    def __init__(self, mlp_dim: int, *, gelu: Gelu, dropout_rate: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        if gelu not in get_args(Gelu):
            raise ValueError(f"`gelu` must be one of {get_args(Gelu)}. Received: {gelu!r}.")
        self.mlp_dim = mlp_dim
        self.gelu: Gelu = gelu
        self.dropout_rate = dropout_rate
        self._hidden_dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self._output_dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        dense = functools.partial(
            keras.layers.Dense,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
        )
        self.dense_0 = quantized.apply_plan(self, dense(self.mlp_dim, name="dense_0"))
        self.dense_0.build(input_shape)
        self.dense_1 = quantized.apply_plan(self, dense(input_shape[-1], name="dense_1"))
        self.dense_1.build((*input_shape[:-1], self.mlp_dim))
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        is_rounded = self.dense_1.quantization_mode is not None
        hidden = self.dense_0(as_rows(x))
        hidden = kernels.gelu(hidden, self.gelu, training=training, reproducible=is_rounded)
        hidden = self._hidden_dropout(hidden, training=training)
        return self._output_dropout(as_tokens(self.dense_1(hidden), like=x), training=training)

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        config = {"mlp_dim": self.mlp_dim, "gelu": self.gelu, "dropout_rate": self.dropout_rate}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_vit")
class SwiGluBlock(keras.layers.Layer):
    """An MLP whose hidden layer is multiplied by a gate: dense_1(silu(gate(x)) * dense_0(x)).

    Args:
        mlp_dim: Hidden size.
        dropout_rate: Dropout of the hidden layer and of the output.

    Input shape:   (B, N, D).
    Output shape:  (B, N, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(SwiGluBlock(512)(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2002.05202 (Shazeer), eq. 6; dinov2@b8931f7 layers/swiglu_ffn.py.
    """

    def __init__(self, mlp_dim: int, *, dropout_rate: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self._hidden_dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self._output_dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        for name, units, shape in (
            ("gate", self.mlp_dim, input_shape),
            ("dense_0", self.mlp_dim, input_shape),
            ("dense_1", input_shape[-1], hidden_shape),
        ):
            dense = keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
            dense = quantized.apply_plan(self, dense)
            dense.build(shape)
            setattr(self, name, dense)
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        rows = as_rows(x)
        hidden = ops.silu(self.gate(rows)) * self.dense_0(rows)
        hidden = self._hidden_dropout(hidden, training=training)
        return self._output_dropout(as_tokens(self.dense_1(hidden), like=x), training=training)

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        config = {"mlp_dim": self.mlp_dim, "dropout_rate": self.dropout_rate}
        return {**super().get_config(), **config}


def as_rows(x):
    """Reshapes (B, N, D) to (B * N, D).

    TensorFlow fuses a product of two matrices with bias and GELU into one operation.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def as_tokens(rows, like):
    """Reshapes (B * N, F) to (B, N, F), with the B and N of `like`."""
    return ops.reshape(rows, (*batch_and_length(like), rows.shape[-1]))


def batch_and_length(x):
    """Returns batch size and length for a reshape, with -1 for the batch if the length is known."""
    length = x.shape[1]
    return (-1, length) if length is not None else tuple(ops.shape(x)[:2])
