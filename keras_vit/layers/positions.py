"""Position embeddings that are added to tokens: learned 1-D, learned 2-D, fixed sine-cosine.

Relative positions are part of attention, in `transformer.py`.

Source: arXiv:2010.11929, sections 3.1, 3.2 and D.4.
"""

import math
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_vit.grid import interpolation_matrices
from keras_vit.layers import constants
from keras_vit.variants import Interpolation

PositionKind = Literal["learned_1d", "learned_2d", "sincos2d"]

# Initial standard deviation of learned tables, as in BERT and vision_transformer@c6de1e5
# models_vit.py.
_STDDEV = 0.02


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(keras.layers.Layer):
    """Adds a position embedding to each token.

    The table belongs to one grid. For another image size it is resampled in the graph, as when a
    checkpoint is restored at another size. Rows of prefix tokens are not resampled, and a call with
    the grid of the table adds it unchanged.

    Args:
        grid: (rows, columns) of patches of the table.
        num_prefix_tokens: Number of tokens before the patches, such as the class token.
        kind: "learned_1d": a vector per token (the paper's choice). "learned_2d": D/2 numbers for
            the row and D/2 for the column, and a separate vector for each prefix token. "sincos2d":
            fixed, zero for prefix tokens.
        interpolation: Rule of resampling: "bilinear", "bilinear_half_pixel", "bicubic",
            "bicubic_offset" or "bicubic_antialias". See `keras_vit.grid.interpolation_matrix`.

    Call arguments:
        tokens: (B, T + N, D).
        patches: (B, rows, columns, ...), any tensor with the grid of this call. It is needed only
            if the image size may differ from that of `grid`.

    Output shape: that of `tokens`, same dtype.

    Raises:
        ValueError: If the number of tokens is not T + rows * columns.

    Example:
        >>> keras.ops.shape(AddPositionEmbs((14, 14), 1)(keras.ops.zeros((2, 197, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 1 and D.4; sincos2d: arXiv:2104.02057 (MoCo v3).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_prefix_tokens: int = 0,
        *,
        kind: PositionKind = "learned_1d",
        interpolation: Interpolation = "bilinear",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if kind not in get_args(PositionKind):
            raise ValueError(f"`kind` must be one of {get_args(PositionKind)}. Received: {kind!r}.")
        self.grid: tuple[int, int] = (grid[0], grid[1])
        self.num_prefix_tokens = num_prefix_tokens
        self.kind = kind
        self.interpolation = interpolation

    def build(self, tokens_shape: tuple, patches_shape: tuple | None = None) -> None:
        width = tokens_shape[-1]
        divisor = {"learned_1d": 1, "learned_2d": 2, "sincos2d": 4}[self.kind]
        if width % divisor:
            raise ValueError(
                f"The token size must be a multiple of {divisor} for {self.kind}. Received: "
                f"{width}."
            )
        length = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        if patches_shape is None and tokens_shape[1] not in (None, length):
            raise ValueError(
                f"Expected {length} tokens: {self.num_prefix_tokens} prefix tokens and a grid of "
                f"{self.grid}. Received: {tokens_shape[1]}. Pass `patches` if the image size "
                "varies."
            )
        if self.kind == "learned_1d":
            self.pos_embedding = self._add_table("pos_embedding", length, width)
        elif self.kind == "learned_2d":
            self.row_embedding = self._add_table("row_embedding", self.grid[0], width // 2)
            self.column_embedding = self._add_table("column_embedding", self.grid[1], width // 2)
            if self.num_prefix_tokens:
                self.prefix_embedding = self._add_table(
                    "prefix_embedding", self.num_prefix_tokens, width
                )

    def _add_table(self, name: str, length: int, width: int):
        initializer = keras.initializers.RandomNormal(stddev=_STDDEV)
        return self.add_weight(name=name, shape=(1, length, width), initializer=initializer)

    def compute_output_shape(
        self, tokens_shape: tuple, patches_shape: tuple | None = None
    ) -> tuple:
        return tuple(tokens_shape)

    def call(self, tokens, patches=None):
        rows, columns = self.grid if patches is None else ops.shape(patches)[1:3]
        table = ops.cast(self._compute_positions(rows, columns, tokens.shape[-1]), tokens.dtype)
        return tokens + table

    def _compute_positions(self, rows: Any, columns: Any, width: int):
        """Returns the embeddings for the grid of this call, (1, T + rows * columns, D)."""
        if self.kind == "learned_1d":
            return self._resample_learned_1d(rows, columns, width)
        if self.kind == "learned_2d":
            by_row = self._resample(self.row_embedding, self.grid[0], rows)
            by_column = self._resample(self.column_embedding, self.grid[1], columns)
        else:
            by_row, by_column = (
                _compute_sincos(rows, width // 2),
                _compute_sincos(columns, width // 2),
            )
        patches = _combine_axes(by_row, by_column, rows, columns)
        if not self.num_prefix_tokens:
            return patches
        if self.kind == "learned_2d":
            prefix = ops.cast(self.prefix_embedding, patches.dtype)
        else:
            prefix = ops.zeros((1, self.num_prefix_tokens, width), dtype=patches.dtype)
        return ops.concatenate([prefix, patches], axis=1)

    def _resample_learned_1d(self, rows: Any, columns: Any, width: int):
        if _is_known(rows) and _is_known(columns) and (rows, columns) == self.grid:
            return self.pos_embedding
        prefix = self.pos_embedding[:, : self.num_prefix_tokens]
        patches = ops.cast(self.pos_embedding[0, self.num_prefix_tokens :], "float32")
        down, across = interpolation_matrices(
            self.grid, (rows, columns), self.interpolation, xp=ops
        )
        patches = ops.matmul(across, ops.reshape(patches, (*self.grid, width)))
        patches = ops.matmul(down, ops.reshape(patches, (self.grid[0], -1)))
        patches = ops.cast(ops.reshape(patches, (1, -1, width)), prefix.dtype)
        return ops.concatenate([prefix, patches], axis=1)

    def _resample(self, table, old: int, new: Any):
        if _is_known(new) and new == old:
            return table[0]
        # A half is a one-dimensional table: a grid of (length, 1), as in weights/restore.py.
        down, _ = interpolation_matrices((old, 1), (new, 1), self.interpolation, xp=ops)
        return ops.matmul(down, ops.cast(table[0], "float32"))

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        constants.record(store, {"grid": self.grid})

    def load_own_variables(self, store: Any) -> None:
        # Tables of different grids may have the same length, which is all that Keras compares.
        grid = constants.read(store).get("grid", self.grid)
        if self.kind == "learned_1d" and tuple(grid) != self.grid:
            raise ValueError(
                f"The stored position table is of {grid[0]} x {grid[1]} patches, that of the layer "
                f"{self.name} of {self.grid[0]} x {self.grid[1]}. Pass the file as `weights` to "
                "the model instead, which resamples the table."
            )
        super().load_own_variables(constants.select_variables(store))

    def get_config(self) -> dict:
        config = {
            "grid": self.grid,
            "num_prefix_tokens": self.num_prefix_tokens,
            "kind": self.kind,
            "interpolation": self.interpolation,
        }
        return {**super().get_config(), **config}


def _is_known(size: Any) -> bool:
    """Returns whether a size is static. Open sizes are scalar tensors in a graph."""
    return isinstance(size, int)


def _combine_axes(by_row, by_column, rows: Any, columns: Any):
    """Combines (R, D/2) and (C, D/2) to (1, R * C, D).

    The half of the column comes first, as in the published sine-cosine code.
    """
    half = by_row.shape[-1]
    by_column = ops.cast(by_column, by_row.dtype)
    across = ops.broadcast_to(by_column[None, :, :], (rows, columns, half))
    down = ops.broadcast_to(by_row[:, None, :], (rows, columns, half))
    return ops.reshape(ops.concatenate([across, down], axis=-1), (1, -1, 2 * half))


def _compute_sincos(length: Any, width: int):
    """Returns (length, width): sines, then cosines, with wave numbers from 1 to 1/10000."""
    count = width // 2
    exponents = np.arange(count, dtype="float64") / max(count - 1, 1)
    angles = ops.arange(length, dtype="float32")[:, None] * np.exp(
        -math.log(10_000.0) * exponents
    ).astype("float32")
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
