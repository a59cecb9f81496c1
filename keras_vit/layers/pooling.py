"""Pooling of tokens to one vector per image.

Source: arXiv:2010.11929, sections 3.1 and D.3; attention pooling: arXiv:2106.04560, section 3.3.
"""

from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_vit.layers import constants, quantized
from keras_vit.layers.freezing import keep_frozen
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.transformer import MultiHeadDotProductAttention
from keras_vit.variants import Gelu

TokenPoolingMode = Literal["token", "distillation", "avg", "max", "token_avg"]
_CLASSIFIERS = {"token": "token", "avg": "gap", "token_avg": "token_gap"}  # by mode


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(keras.layers.Layer):
    """Returns the class token, or the mean or maximum of the patch tokens, or two of them.

    Args:
        mode: "token", the class token; "distillation", the second token; "avg" or "max", of the
            patches; "token_avg", class token and mean, concatenated.
        num_prefix_tokens: Number of tokens before the patches, which "avg" and "max" ignore.

    Input shape:   (B, T + N, D).
    Output shape:  (B, D), or (B, 2 D) for "token_avg", same dtype as the input.

    Example:
        >>> keras.ops.shape(TokenPooling("avg", 1)(keras.ops.zeros((2, 197, 192))))
        (2, 192)
    """

    def __init__(self, mode: TokenPoolingMode, num_prefix_tokens: int, **kwargs: Any):
        super().__init__(**kwargs)
        if mode not in get_args(TokenPoolingMode):
            raise ValueError(
                f"`mode` must be one of {get_args(TokenPoolingMode)}. Received: {mode!r}."
            )
        needed = {"token": 1, "token_avg": 1, "distillation": 2}.get(mode, 0)
        if num_prefix_tokens < needed:
            token = "distillation" if mode == "distillation" else "class"
            raise ValueError(
                f'`mode="{mode}"` needs a {token} token, but `num_prefix_tokens` is '
                f'{num_prefix_tokens}. Use "avg" or "max".'
            )
        self.mode = mode
        self.num_prefix_tokens = num_prefix_tokens

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape[0], input_shape[-1] * (2 if self.mode == "token_avg" else 1)

    def call(self, tokens):
        if self.mode == "token":
            return tokens[:, 0]
        if self.mode == "distillation":
            return tokens[:, 1]
        patches = tokens[:, self.num_prefix_tokens :]
        if self.mode == "max":
            return ops.max(patches, axis=1)
        mean = ops.mean(patches, axis=1)
        return mean if self.mode == "avg" else ops.concatenate([tokens[:, 0], mean], axis=-1)

    def describe_head(self) -> dict[str, str]:
        """Returns the entry of a checkpoint that tells what a head on this layer reads; empty for a
        mode that no classifier has. The arrays do not tell.
        """
        return {"classifier": _CLASSIFIERS[self.mode]} if self.mode in _CLASSIFIERS else {}

    def save_own_variables(self, store) -> None:
        if self.name == "pooled":  # the one that a model of this package has
            constants.record(store, self.describe_head())

    def load_own_variables(self, store) -> None:
        """Reads nothing: the layer has no variables, and `keras_h5.py` reads its constants."""

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "mode": self.mode,
            "num_prefix_tokens": self.num_prefix_tokens,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """Multi-head attention pooling (MAP): a learned probe attends to all tokens, then an MLP block.

    Args:
        num_heads: Attention heads.
        mlp_dim: Hidden size of the MLP.
        norm_epsilon: Added to the variance by layer normalization. No default: it must match the
            checkpoint.
        gelu: "tanh" or "exact". No default: it must match the checkpoint.

    Input shape:   (B, N, D).
    Output shape:  (B, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(AttentionPooling(3, 768, norm_epsilon=1e-6, gelu="tanh")(keras.ops.zeros((2, 196, 192))))
        (2, 192)

    Source: arXiv:2106.04560; big_vision@0127fb6 models/vit.py.
    """

    def __init__(
        self, num_heads: int, mlp_dim: int, *, norm_epsilon: float, gelu: Gelu, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.norm_epsilon = norm_epsilon
        self.gelu = gelu
        policy = self.dtype_policy
        self.attention = MultiHeadDotProductAttention(num_heads, name="attention", dtype=policy)
        self.mlp_norm = LayerNorm(norm_epsilon, name="mlp_norm", dtype=policy)
        self.mlp = MlpBlock(mlp_dim, gelu=gelu, name="mlp", dtype=policy)

    def build(self, input_shape: tuple) -> None:
        width = input_shape[-1]
        # For the shape (1, 1, D) the fans are 1 and D, as for xavier_uniform in the reference.
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, width), initializer="glorot_uniform"
        )
        self.attention.build((input_shape[0], 1, width), tuple(input_shape))
        self.mlp_norm.build((input_shape[0], 1, width))
        self.mlp.build((input_shape[0], 1, width))
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape[0], input_shape[-1]

    def call(self, tokens, training=None):
        probe = ops.cast(self.probe, tokens.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        x = self.attention(probe, tokens, training=training)
        return (x + self.mlp(self.mlp_norm(x, training=training), training=training))[:, 0]

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        names = ("num_heads", "mlp_dim", "norm_epsilon", "gelu")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
