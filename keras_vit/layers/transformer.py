"""The transformer encoder block and its two halves.

Source: arXiv:2010.11929, section 3.1, equations 2-8 and appendix A.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.layers import constants, quantized
from keras_vit.layers.freezing import keep_frozen
from keras_vit.layers.mlp import MlpBlock, SwiGluBlock, as_rows, as_tokens, batch_and_length
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.readout import is_read_at_first_token
from keras_vit.layers.rotary import rotate
from keras_vit.layers.scale import LayerScale
from keras_vit.variants import AttentionBias, Gelu, Mlp


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadDotProductAttention(keras.layers.Layer):
    """Multi-head attention, optionally with relative positions.

    The four projections are Dense layers with kernels (D, A * K), so that Glorot initialization
    uses the fans of these matrices.

    Args:
        num_heads: Number of heads. Must divide the token size.
        dropout_rate: Dropout of the attention probabilities; 0 in all published configurations.
        relative_positions: Number of tokens N. If given, 2N - 1 relative embeddings are learned and
            used as keys for the content queries. All heads of the layer share them, and prefix
            tokens have the positions 0, 1, ... None for no relative positions.
        query_chunk: Number of queries per chunk, to save memory: probabilities of one chunk, (B, A,
            query_chunk, N), are in memory at a time, and are recomputed for the gradient. The
            result does not change. It cannot be combined with dropout of probabilities, relative
            positions, or an open number of queries. None for no chunks.
        bias: Which of query, key and value have biases: "all", "no_key" or "none".

    Call arguments:
        queries: (B, Q, D).
        values: (B, N, D). Default: the queries.
        rotation: (2, N, K) from `RotaryPositions`, for queries and keys of the same tokens. Default:
            no rotation.

    Output shape: (B, Q, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(MultiHeadDotProductAttention(3)(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 5-8; relative positions: D.4, arXiv:1803.02155 (Shaw et al.).
    """

    def __init__(
        self,
        num_heads: int,
        *,
        dropout_rate: float = 0.0,
        relative_positions: int | None = None,
        query_chunk: int | None = None,
        bias: AttentionBias = "all",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if query_chunk is not None and (query_chunk < 1 or dropout_rate or relative_positions):
            raise ValueError(
                "`query_chunk` must be at least 1, and cannot be combined with dropout of "
                "attention probabilities or with relative positions. Received: query_chunk="
                f"{query_chunk}, dropout_rate={dropout_rate}, relative_positions="
                f"{relative_positions}."
            )
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.relative_positions = relative_positions
        self.query_chunk = query_chunk
        self.bias: AttentionBias = bias
        self._dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(
        self,
        queries_shape: tuple,
        values_shape: tuple | None = None,
        rotation_shape: tuple | None = None,
    ) -> None:
        width = queries_shape[-1]
        if width % self.num_heads:
            raise ValueError(
                f"`num_heads` must divide the token size. Received: {self.num_heads} heads, size "
                f"{width}."
            )
        if self.query_chunk is not None and queries_shape[1] is None:
            raise ValueError(
                "`query_chunk` needs a known number of queries. Build the model for one image size."
            )
        without_bias = {"all": (), "no_key": ("key",), "none": ("query", "key", "value")}[self.bias]
        for name in ("query", "key", "value", "out"):
            dense = keras.layers.Dense(
                width,
                use_bias=name not in without_bias,
                kernel_initializer="glorot_uniform",
                name=name,
                dtype=self.dtype_policy,
            )
            dense = quantized.apply_plan(self, dense)
            dense.build((None, None, width))
            setattr(self, name, dense)
        self.head_dim = width // self.num_heads
        if self.relative_positions is not None:
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(2 * self.relative_positions - 1, self.head_dim),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        keep_frozen(self)

    def compute_output_shape(
        self,
        queries_shape: tuple,
        values_shape: tuple | None = None,
        rotation_shape: tuple | None = None,
    ) -> tuple:
        return tuple(queries_shape)

    def call(self, queries, values=None, rotation=None, training=None):
        values = queries if values is None else values
        query_rows, value_rows = _to_rows(queries, values)
        queries_BAQK, keys_BAKN = self._compute_queries_and_keys(
            query_rows, value_rows, queries, values, rotation
        )
        values_BANK = self._to_heads(self.value(value_rows), values)
        if self.query_chunk is None:
            heads_BAQK = self._attend(queries_BAQK, keys_BAKN, values_BANK, training)
        else:
            attend = keras.remat(self._attend) if training else self._attend
            starts = range(0, queries_BAQK.shape[2], self.query_chunk)
            chunks = [queries_BAQK[:, :, start : start + self.query_chunk] for start in starts]
            heads_BAQK = ops.concatenate(
                kernels.map_in_turn(attend, [(chunk, keys_BAKN, values_BANK) for chunk in chunks]),
                axis=2,
            )
        heads_BQAK = ops.transpose(heads_BAQK, (0, 2, 1, 3))
        return as_tokens(self.out(ops.reshape(heads_BQAK, (-1, queries.shape[-1]))), like=queries)

    def attention_scores(self, queries, values=None, rotation=None):
        """Returns softmax(q k^T / sqrt(K)), (B, A, Q, N), in the compute dtype."""
        values = queries if values is None else values
        return self._compute_scores(
            *self._compute_queries_and_keys(*_to_rows(queries, values), queries, values, rotation)
        )

    def attend_from_first_token(self, x):
        """Computes attention for the first token of x, (B, N, D) to (B, 1, D).

        Keys and values of the tokens are not computed. Instead, the query is multiplied by the
        kernel of the keys, and the weighted mean of the tokens by the kernel of the values. The
        bias of the keys is left out: it adds the same number to all logits, which does not change
        the softmax.
        """
        queries_BAK = ops.reshape(
            self.query(x[:, 0]) * (self.head_dim**-0.5), (-1, self.num_heads, self.head_dim)
        )
        keys_DAK, values_DAK = (
            ops.reshape(ops.cast(dense.kernel, x.dtype), (-1, self.num_heads, self.head_dim))
            for dense in (self.key, self.value)
        )
        logits_BAN = ops.einsum(
            "bad,bnd->ban", ops.einsum("bak,dak->bad", queries_BAK, keys_DAK), x
        )
        seen_BAD = ops.einsum("ban,bnd->bad", kernels.softmax(logits_BAN), x)
        heads = ops.reshape(ops.einsum("bad,dak->bak", seen_BAD, values_DAK), (-1, x.shape[-1]))
        if self.value.use_bias:
            heads = heads + ops.cast(self.value.bias, x.dtype)
        return self.out(heads)[:, None]

    def _compute_queries_and_keys(self, query_rows, value_rows, queries, values, rotation):
        """Returns scaled queries (B, A, Q, K) and transposed keys (B, A, K, N)."""
        queries_BAQK = self._to_heads(self.query(query_rows) * (self.head_dim**-0.5), queries)
        if rotation is None:
            return queries_BAQK, ops.transpose(
                self._split_heads(self.key(value_rows), values), (0, 2, 3, 1)
            )
        keys_BANK = rotate(self._to_heads(self.key(value_rows), values), rotation)
        return rotate(queries_BAQK, rotation), ops.transpose(keys_BANK, (0, 1, 3, 2))

    def _attend(self, queries_BAQK, keys_BAKN, values_BANK, training=None):
        scores_BAQN = self._dropout(
            self._compute_scores(queries_BAQK, keys_BAKN), training=training
        )
        return ops.matmul(scores_BAQN, values_BANK)

    def _compute_scores(self, queries_BAQK, keys_BAKN):
        logits = ops.matmul(queries_BAQK, keys_BAKN)
        if self.relative_positions is not None:
            logits = logits + self._compute_relative_logits(queries_BAQK, self.relative_positions)
        return kernels.softmax(logits)

    def _compute_relative_logits(self, queries_BAQK, length: int):
        if queries_BAQK.shape[2] != length:
            raise ValueError(
                f"The relative positions are for {length} tokens. Received: "
                f"{queries_BAQK.shape[2]} tokens."
            )
        table = ops.cast(self.relative_embedding, queries_BAQK.dtype)
        by_offset = ops.matmul(queries_BAQK, ops.transpose(table))  # (B, A, N, 2N - 1)
        # Row p needs the columns of the offsets p - q, q = 0 ... N - 1: column N - 1 + p - q. Flip
        # the offsets, then shift row p by N - 1 - p: pad one column, reshape, drop the first N - 1
        # numbers, reshape back.
        flipped = ops.flip(by_offset, axis=-1)
        padded = ops.pad(flipped, ((0, 0), (0, 0), (0, 0), (0, 1)))
        flat = ops.reshape(padded, (-1, self.num_heads, length * 2 * length))[:, :, length - 1 :]
        flat = flat[:, :, : length * (2 * length - 1)]
        return ops.reshape(flat, (-1, self.num_heads, length, 2 * length - 1))[:, :, :, :length]

    def _split_heads(self, rows, like):
        """Reshapes (B * N, D) to (B, N, A, K)."""
        return ops.reshape(rows, (*batch_and_length(like), self.num_heads, self.head_dim))

    def _to_heads(self, rows, like):
        return ops.transpose(self._split_heads(rows, like), (0, 2, 1, 3))

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        config = {
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "relative_positions": self.relative_positions,
            "query_chunk": self.query_chunk,
            "bias": self.bias,
        }
        return {**super().get_config(), **config}


def _to_rows(queries, values):
    """Reshapes queries and values to rows, once if they are equal: a gradient would store both."""
    query_rows = as_rows(queries)
    return query_rows, query_rows if values is queries else as_rows(values)


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """A pre-norm encoder block: attention, then an MLP, each with a residual connection.

    Args:
        num_heads: Attention heads. Must divide the token size.
        mlp_dim: Hidden size of the MLP.
        norm_epsilon: Added to the variance by both layer normalizations. No default: it must match
            the checkpoint (1e-6 for the published ones).
        gelu: "tanh", "exact" or "quick". No default: it must match the checkpoint.
        dropout_rate: Dropout after each dense layer except query, key and value.
        attention_dropout_rate: Dropout of the attention probabilities.
        drop_path_rate: Probability that a residual branch is dropped, per example (stochastic
            depth).
        relative_positions, query_chunk: See `MultiHeadDotProductAttention`.
        mlp: "gelu" for `MlpBlock`, "swiglu" for `SwiGluBlock`, which does not use `gelu`.
        layer_scale: Whether a learned vector multiplies each residual branch.
        attention_bias: `bias` of `MultiHeadDotProductAttention`.

    Call arguments:
        x: (B, N, D).
        rotation: (2, N, K) from `RotaryPositions`. Default: no rotation.

    Output shape: (B, N, D), same dtype as x.

    Example:
        >>> block = TransformerBlock(3, 768, norm_epsilon=1e-6, gelu="tanh")
        >>> keras.ops.shape(block(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 2-3; stochastic depth: arXiv:1603.09382; layer scale:
        arXiv:2103.17239.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        norm_epsilon: float,
        gelu: Gelu,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        relative_positions: int | None = None,
        query_chunk: int | None = None,
        mlp: Mlp = "gelu",
        layer_scale: bool = False,
        attention_bias: AttentionBias = "all",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.norm_epsilon = norm_epsilon
        self.gelu = gelu
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.drop_path_rate = drop_path_rate
        self.relative_positions = relative_positions
        self.query_chunk = query_chunk
        self.mlp_kind: Mlp = mlp
        self.layer_scale = layer_scale
        self.attention_bias: AttentionBias = attention_bias
        policy = self.dtype_policy
        norm = functools.partial(LayerNorm, norm_epsilon, dtype=policy)
        self.attention_norm = norm(name="attention_norm")
        self.attention = MultiHeadDotProductAttention(
            num_heads,
            dropout_rate=attention_dropout_rate,
            relative_positions=relative_positions,
            query_chunk=query_chunk,
            bias=attention_bias,
            name="attention",
            dtype=policy,
        )
        self.mlp_norm = norm(name="mlp_norm")
        make_mlp = SwiGluBlock if mlp == "swiglu" else functools.partial(MlpBlock, gelu=gelu)
        self.mlp = make_mlp(mlp_dim, dropout_rate=dropout_rate, name="mlp", dtype=policy)
        if layer_scale:
            self.attention_scale = LayerScale(name="attention_scale", dtype=policy)
            self.mlp_scale = LayerScale(name="mlp_scale", dtype=policy)
        self._attention_dropout = keras.layers.Dropout(dropout_rate, dtype=policy)
        drop_path = functools.partial(
            keras.layers.Dropout, drop_path_rate, noise_shape=(None, 1, 1), dtype=policy
        )
        self._attention_drop_path = drop_path()
        self._mlp_drop_path = drop_path()

    def build(self, input_shape: tuple) -> None:
        scales = (self.attention_scale, self.mlp_scale) if self.layer_scale else ()
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp, *scales):
            layer.build(input_shape)
        keep_frozen(self)

    def compute_output_shape(self, x_shape: tuple, rotation_shape: tuple | None = None) -> tuple:
        return tuple(x_shape)

    def call(self, x, rotation=None, training=None):
        # `own` are the tokens whose results are computed.
        only_first = rotation is None and self._needs_first_token_only(x, training)
        own = x[:, :1] if only_first else x
        # equation 2: MSA(LN(z)) + z
        own = own + self._drop_attention(self._attend(own, x, rotation, training), training)
        # equation 3: MLP(LN(z)) + z
        return own + self._drop_mlp(self._apply_mlp(own, training), training)

    def _attend(self, own, x, rotation, training):
        """Computes MSA(LN(x)) for the tokens `own`: all of x (B, N, D), or the first (B, 1, D)."""
        if rotation is None and kernels.has_fused_halves(self, training):
            return kernels.fused_attention(self, own, x)
        normal = self.attention_norm(x, training=training)
        if own is x:
            return self.attention(normal, rotation=rotation, training=training)
        if (
            training
            or self.attention.key.quantization_mode
            or self.attention.value.quantization_mode
        ):
            return self.attention(normal[:, :1], normal, training=training)
        return self.attention.attend_from_first_token(normal)

    def _apply_mlp(self, x, training):
        """Computes MLP(LN(x))."""
        if kernels.has_fused_halves(self, training):
            return kernels.fused_mlp(self, x)
        return self.mlp(self.mlp_norm(x, training=training), training=training)

    def _drop_attention(self, y, training):
        y = self._attention_dropout(y, training=training)
        if self.layer_scale:
            y = self.attention_scale(y)
        return self._attention_drop_path(y, training=training)

    def _drop_mlp(self, y, training):
        if self.layer_scale:
            y = self.mlp_scale(y)
        return self._mlp_drop_path(y, training=training)

    def _needs_first_token_only(self, x, training) -> bool:
        """Returns whether to compute only the first token.

        Not with dropout in training: the draws of a seed must not depend on which tokens are read.
        """
        is_random = training and (
            self.dropout_rate or self.attention_dropout_rate or self.drop_path_rate
        )
        return (
            is_read_at_first_token(self)
            and self.relative_positions is None
            and not is_random
            and kernels.first_token_suffices(x, training)
        )

    def attention_scores(self, x, rotation=None):
        """Returns the attention weights of this block for its input `x`, (B, A, N, N)."""
        return self.attention.attention_scores(self.attention_norm(x), rotation=rotation)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        constants.record_block(store, self.gelu, self.norm_epsilon, self.num_heads)

    def load_own_variables(self, store: Any) -> None:
        constants.check_block(store, self.name, self.gelu, self.norm_epsilon, self.num_heads)
        super().load_own_variables(constants.select_variables(store))

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        names = (
            "num_heads",
            "mlp_dim",
            "norm_epsilon",
            "gelu",
            "dropout_rate",
            "attention_dropout_rate",
            "drop_path_rate",
            "relative_positions",
            "query_chunk",
            "layer_scale",
            "attention_bias",
        )
        config = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **config, "mlp": self.mlp_kind}
