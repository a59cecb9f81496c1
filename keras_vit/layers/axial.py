"""Axial attention: along the rows of a grid, then along its columns.

`AxialTransformerBlock` is a block of Axial-ViT. It contains two `TransformerBlock`s, `row` and
`column`, so two attentions and two MLPs. There is no class token, because a token outside the grid
belongs to no row: the classifier reads the mean.

`AxialUnit` is a residual unit of AxialResNet. Two attentions, `row` and `column`, directly follow
each other and replace the 3 x 3 convolution. Each is a `MultiHeadDotProductAttention` of eight
heads with biases, an output projection and a table of 2 L - 1 relative embeddings, where L is the
length of that axis before the stride. Other convolutions, norms and activations are those of
`StemUnit`. A stride is a 2 x 2 average after the attention.

The paper describes both in one paragraph. The absence of a class token, the number of heads, the
position of the stride and the norms are choices of this package; stride and heads are as in
Axial-DeepLab.

Source: arXiv:2010.11929, D.6; arXiv:1912.12180 (axial attention); arXiv:2003.07853 (Axial-DeepLab).
"""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers import quantized
from keras_vit.layers.freezing import keep_frozen
from keras_vit.layers.resnet import make_unit_factories, unit_config, unit_output_shape
from keras_vit.layers.transformer import MultiHeadDotProductAttention, TransformerBlock
from keras_vit.variants import AXIAL_HEADS, Gelu


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialTransformerBlock(keras.layers.Layer):
    """Attention and MLP along each row of a grid of tokens, then along each column.

    Args:
        num_heads: Attention heads of each half. Must divide the token size.
        mlp_dim: Hidden size of both MLPs.
        grid: (R, C), rows and columns of the tokens.
        norm_epsilon: Added to the variance by all layer normalizations. No default: it must match
            the checkpoint.
        gelu: "tanh" or "exact". No default: it must match the checkpoint.
        dropout_rate: Dropout after each dense layer except query, key and value.
        attention_dropout_rate: Dropout of the attention probabilities.
        drop_path_rate: Probability that a half is dropped, attention and MLP together, per example
            (stochastic depth).
        relative_positions: Whether each half learns relative embeddings along its axis: 2 C - 1 in
            the row half, 2 R - 1 in the column half. See `MultiHeadDotProductAttention`.

    Input shape:   (B, R * C, D), the grid in raster order, no other tokens.
    Output shape:  (B, R * C, D), same dtype as the input.

    Raises:
        ValueError: If the number of tokens is not R * C.

    Example:
        >>> block = AxialTransformerBlock(3, 768, grid=(14, 7), norm_epsilon=1e-6, gelu="tanh")
        >>> keras.ops.shape(block(keras.ops.zeros((2, 98, 192))))
        (2, 98, 192)

    Source: arXiv:2010.11929, D.6.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        grid: tuple[int, int],
        norm_epsilon: float,
        gelu: Gelu,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        relative_positions: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.grid: tuple[int, int] = _check_grid(grid)
        self.norm_epsilon = norm_epsilon
        self.gelu = gelu
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.drop_path_rate = drop_path_rate
        self.relative_positions = relative_positions
        rows, columns = self.grid
        self.row, self.column = (
            TransformerBlock(
                num_heads,
                mlp_dim,
                norm_epsilon=norm_epsilon,
                gelu=gelu,
                dropout_rate=dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
                relative_positions=length if relative_positions else None,
                name=name,
                dtype=self.dtype_policy,
            )
            for name, length in (("row", columns), ("column", rows))
        )
        # Not in the halves, where each row would be dropped separately.
        self._row_drop_path, self._column_drop_path = (
            keras.layers.Dropout(drop_path_rate, noise_shape=(None, 1, 1), dtype=self.dtype_policy)
            for _ in range(2)
        )

    def build(self, input_shape: tuple) -> None:
        if input_shape[1] != math.prod(self.grid):
            raise ValueError(
                f"Expected {math.prod(self.grid)} tokens of a grid of {self.grid}, without prefix "
                f"tokens. Received: {input_shape[1]}. Build the block for the grid of the images, "
                "and omit the class token."
            )
        rows, columns = self.grid
        self.row.build((None, columns, input_shape[-1]))
        self.column.build((None, rows, input_shape[-1]))
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return tuple(input_shape)

    def call(self, x, training=None):
        x = self._add_residual(self._row_drop_path, x, self._attend_rows(x, training), training)
        return self._add_residual(
            self._column_drop_path, x, self._attend_columns(x, training), training
        )

    def _attend_rows(self, x, training=None):
        return self._from_rows(self.row(self._to_rows(x), training=training))

    def _attend_columns(self, x, training=None):
        return self._from_columns(self.column(self._to_columns(x), training=training))

    def _add_residual(self, drop_path, x, y, training):
        """Returns `y`, except in training with stochastic depth."""
        return x + drop_path(y - x, training=training) if training and self.drop_path_rate else y

    def attention_scores(self, x):
        """Returns the attention weights of both halves for the input `x`, (B, A, N, N) each.

        Those of the row half are 0 between tokens of different rows, and those of the column half
        between tokens of different columns. In each half, weights times values is the output of the
        attention before the projection.
        """
        rows, columns = self.grid
        by_row = self.row.attention_scores(self._to_rows(x))  # (B * R, A, C, C)
        # (B * C, A, R, R)
        by_column = self.column.attention_scores(self._to_columns(self._attend_rows(x)))
        by_row = ops.reshape(by_row, (-1, rows, self.num_heads, columns, columns))
        by_column = ops.reshape(by_column, (-1, columns, self.num_heads, rows, rows))
        shape = (-1, self.num_heads, rows * columns, rows * columns)
        return (
            ops.reshape(
                ops.einsum("biajl,ik->baijkl", by_row, ops.eye(rows, dtype=by_row.dtype)), shape
            ),
            ops.reshape(
                ops.einsum("bjaik,jl->baijkl", by_column, ops.eye(columns, dtype=by_column.dtype)),
                shape,
            ),
        )

    def _to_rows(self, x):  # (B, R * C, D) to (B * R, C, D)
        return ops.reshape(x, (-1, self.grid[1], x.shape[-1]))

    def _from_rows(self, x):
        return ops.reshape(x, (-1, math.prod(self.grid), x.shape[-1]))

    def _to_columns(self, x):  # (B, R * C, D) to (B * C, R, D)
        rows, columns = self.grid
        x = ops.transpose(ops.reshape(x, (-1, rows, columns, x.shape[-1])), (0, 2, 1, 3))
        return ops.reshape(x, (-1, rows, x.shape[-1]))

    def _from_columns(self, x):
        rows, columns = self.grid
        x = ops.transpose(ops.reshape(x, (-1, columns, rows, x.shape[-1])), (0, 2, 1, 3))
        return ops.reshape(x, (-1, rows * columns, x.shape[-1]))

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        names = (
            "num_heads",
            "mlp_dim",
            "grid",
            "norm_epsilon",
            "gelu",
            "dropout_rate",
            "attention_dropout_rate",
            "drop_path_rate",
            "relative_positions",
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check_grid(grid: tuple[int, int]) -> tuple[int, int]:
    if (
        not isinstance(grid, (tuple, list))
        or len(grid) != 2
        or not all(isinstance(n, int) and n > 0 for n in grid)
    ):
        raise ValueError(
            f"`grid` must be two positive integers, rows and columns. Received: {grid}."
        )
    return grid[0], grid[1]


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialUnit(keras.layers.Layer):
    """A post-activation bottleneck with axial attention instead of the 3x3 convolution.

    It consists of a 1x1 convolution, attention along rows and columns with relative positions, a
    2x2 average if the stride is 2 ("same" padding, which is not averaged), and a 1x1 convolution.
    Group normalizations are at the same places as in `StemUnit`. The scale of the last one is
    initialized to 0, so that the unit initially equals its shortcut. The shortcut is projected and
    normalized if its shape differs. The relative tables cover the whole map, so its size must be
    fixed.

    Args:
        filters: Channels of the bottleneck; the output has four times as many.
        strides: 1, or 2 for the average.
        norm_epsilon, std_epsilon, variance_epsilon: No defaults: they must match the checkpoint.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, ceil(H / strides), ceil(W / strides), 4 * filters), same dtype as the input.

    Raises:
        ValueError: If height or width of the map is open, or `strides` is neither 1 nor 2.

    Example:
        >>> unit = AxialUnit(64, strides=2, norm_epsilon=1e-6, std_epsilon=1e-5, variance_epsilon=0.0)
        >>> keras.ops.shape(unit(keras.ops.zeros((2, 14, 14, 64))))
        (2, 7, 7, 256)

    Source: arXiv:2010.11929, D.6; arXiv:2003.07853, section 3.
    """

    def __init__(
        self,
        filters: int,
        *,
        strides: int,
        norm_epsilon: float,
        std_epsilon: float,
        variance_epsilon: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if strides not in (1, 2):
            raise ValueError(f"`strides` must be 1 or 2. Received: {strides}.")
        if filters % AXIAL_HEADS:
            raise ValueError(
                f"`filters` must be a multiple of the {AXIAL_HEADS} heads. Received: {filters}."
            )
        self.filters = filters
        self.strides = strides
        self.norm_epsilon = norm_epsilon
        self.std_epsilon = std_epsilon
        self.variance_epsilon = variance_epsilon

    def build(self, input_shape: tuple) -> None:
        batch, height, width, channels = input_shape
        if height is None or width is None:
            raise ValueError(
                "The relative positions of axial attention need a fixed image size. Received: a "
                f"map of {height} x {width} cells. Pass `input_shape` with integers."
            )
        make_conv, make_norm = make_unit_factories(self, "same")
        narrow, wide = (batch, None, None, self.filters), (batch, None, None, 4 * self.filters)
        self.conv1, self.gn1 = make_conv("conv1", self.filters, 1, 1), make_norm("gn1")
        self.row, self.column = (
            self._make_attention("row", width),
            self._make_attention("column", height),
        )
        self.gn2 = make_norm("gn2")
        self.conv3, self.gn3 = (
            make_conv("conv3", wide[-1], 1, 1),
            make_norm("gn3", gamma_initializer="zeros"),
        )
        self.conv_proj = self.gn_proj = None
        if channels != wide[-1] or self.strides != 1:
            self.conv_proj, self.gn_proj = (
                make_conv("conv_proj", wide[-1], 1, self.strides),
                make_norm("gn_proj"),
            )
            self.conv_proj.build(input_shape)
            self.gn_proj.build(wide)
        self.conv1.build(input_shape)
        self.conv3.build(narrow)
        for layer, shape in ((self.gn1, narrow), (self.gn2, narrow), (self.gn3, wide)):
            layer.build(shape)
        keep_frozen(self)

    def _make_attention(self, name: str, length: int) -> MultiHeadDotProductAttention:
        attention = MultiHeadDotProductAttention(
            AXIAL_HEADS, relative_positions=length, name=name, dtype=self.dtype_policy
        )
        quantized.pass_plan(self, name, attention)
        attention.build((None, length, self.filters))
        return attention

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return unit_output_shape(input_shape, self.filters, self.strides)

    def call(self, x):
        shortcut = (
            x if self.conv_proj is None or self.gn_proj is None else self.gn_proj(self.conv_proj(x))
        )
        y = ops.relu(self.gn1(self.conv1(x)))
        y = self._attend(self.column, self._attend(self.row, y, axis=2), axis=1)
        if self.strides == 2:
            y = ops.average_pool(y, 2, strides=2, padding="same", data_format="channels_last")
        y = ops.relu(self.gn2(y))
        return ops.relu(shortcut + self.gn3(self.conv3(y)))

    def _attend(self, attention: MultiHeadDotProductAttention, x, axis: int):
        """Applies attention along one axis of a map (B, H, W, C)."""
        order = (0, 1, 2, 3) if axis == 2 else (0, 2, 1, 3)
        x = ops.transpose(x, order)
        lines = ops.reshape(x, (-1, *x.shape[2:]))
        return ops.transpose(ops.reshape(attention(lines), (-1, *x.shape[1:])), order)

    def get_build_config(self) -> dict | None:
        return quantized.add_modes(self, super().get_build_config())

    def build_from_config(self, config: dict) -> None:
        super().build_from_config(quantized.store_plan(self, config))

    def get_config(self) -> dict:
        return {**super().get_config(), **unit_config(self)}
