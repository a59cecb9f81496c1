"""The visible and the hidden patches of masked autoencoders.

`RandomMask` draws them, `KeepTokens` removes the hidden ones in front of the encoder, and
`RestoreTokens` inserts mask tokens in front of the decoder. The mask token of masked patch
prediction, which replaces tokens and removes none, is in `tokens.py`.

Source: arXiv:2111.06377, section 3; facebookresearch/mae@6a2ba40 models_mae.py.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomMask(keras.layers.Layer):
    """Selects the visible patches of each image: those with the smallest random numbers.

    The numbers are an input, so the caller decides what the mask depends on. Sorting them shuffles
    the patches. The first K of the shuffled patches are visible, with K = int(N * (1 - mask_share))
    as in the authors' code: 49 of 196.

    Args:
        mask_share: Share of hidden patches.

    Input shape:   (B, N) float, random numbers; N is fixed.
    Output shape:  visible (B, K) int32, the indices of the visible patches in shuffled order; ranks
        (B, N) int32, the place of each patch in shuffled order. A patch is visible if its rank is
        less than K.

    Raises:
        ValueError: If N is not fixed, or no patch would be visible or hidden.

    Example:
        >>> visible, ranks = RandomMask(0.75)(np.array([[0.9, 0.2, 0.4, 0.6]]))
        >>> keras.ops.convert_to_numpy(visible).tolist(), keras.ops.convert_to_numpy(ranks).tolist()
        ([[1]], [[3, 0, 1, 2]])
    """

    def __init__(self, mask_share: float = 0.75, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 < mask_share < 1:
            raise ValueError(f"`mask_share` must be between 0 and 1. Received: {mask_share}.")
        self.mask_share = mask_share
        self.autocast = False  # in half precision, many random numbers would be equal

    def compute_output_shape(self, noise_shape: tuple) -> tuple:
        batch, length = noise_shape
        return (batch, self._count_visible(length)), (batch, length)

    def compute_output_spec(self, noise):
        visible, ranks = self.compute_output_shape(noise.shape)
        return keras.KerasTensor(visible, "int32"), keras.KerasTensor(ranks, "int32")

    def call(self, noise):
        order = ops.argsort(noise, axis=-1)
        ranks = ops.cast(ops.argsort(order, axis=-1), "int32")
        return ops.cast(order[:, : self._count_visible(noise.shape[-1])], "int32"), ranks

    def _count_visible(self, length: int | None) -> int:
        count = 0 if length is None else int(length * (1 - self.mask_share))
        if length is None or not 0 < count < length:
            raise ValueError(
                "`RandomMask` needs a fixed number of patches, of which at least one is visible and "
                f"one hidden. Received: {length} patches, mask_share={self.mask_share}. Use larger "
                "images, or another `mask_share`."
            )
        return count

    def get_config(self) -> dict:
        return {**super().get_config(), "mask_share": self.mask_share}


@keras.saving.register_keras_serializable(package="keras_vit")
class KeepTokens(keras.layers.Layer):
    """Keeps the prefix tokens and the visible patch tokens, in the order of their indices.

    Args:
        num_prefix_tokens: Number of tokens T before the patches, such as the class token.

    Call arguments:
        tokens: (B, T + N, D).
        visible: (B, K) int32, indices of patches from 0 to N - 1, see `RandomMask`.

    Output shape: (B, T + K, D), same dtype as `tokens`.

    Example:
        >>> tokens, visible = np.array([[[9.0], [0.0], [1.0], [2.0]]]), np.array([[2, 0]])
        >>> keras.ops.convert_to_numpy(KeepTokens(1)(tokens, visible)).ravel().tolist()
        [9.0, 2.0, 0.0]
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def compute_output_shape(self, tokens_shape: tuple, visible_shape: tuple) -> tuple:
        batch, _, width = tokens_shape
        return batch, self.num_prefix_tokens + visible_shape[1], width

    def call(self, tokens, visible):
        prefix = tokens[:, : self.num_prefix_tokens]
        patches = _select(tokens[:, self.num_prefix_tokens :], visible)
        return ops.concatenate([prefix, patches], axis=1)

    def get_config(self) -> dict:
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}


@keras.saving.register_keras_serializable(package="keras_vit")
class RestoreTokens(keras.layers.Layer):
    """Puts the visible tokens back to their places, with a learned mask token at all others.

    Args:
        num_prefix_tokens: Number of tokens T before the patches, which are kept.

    Call arguments:
        tokens: (B, T + K, D), from `KeepTokens`.
        ranks: (B, N) int32, see `RandomMask`.

    Output shape: (B, T + N, D), same dtype as `tokens`.

    Example:
        >>> tokens, ranks = np.array([[[5.0], [7.0]]]), np.array([[1, 2, 0]])
        >>> keras.ops.convert_to_numpy(RestoreTokens()(tokens, ranks)).ravel()[[0, 2]].tolist()
        [7.0, 5.0]
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, tokens_shape: tuple, ranks_shape: tuple) -> None:
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        shape = (1, 1, tokens_shape[-1])
        self.mask = self.add_weight(name="mask", shape=shape, initializer=initializer)

    def compute_output_shape(self, tokens_shape: tuple, ranks_shape: tuple) -> tuple:
        batch, _, width = tokens_shape
        return batch, self.num_prefix_tokens + ranks_shape[1], width

    def call(self, tokens, ranks):
        prefix, visible = (
            tokens[:, : self.num_prefix_tokens],
            tokens[:, self.num_prefix_tokens :],
        )
        count = visible.shape[1]
        shown = _select(visible, ops.minimum(ranks, count - 1))
        mask = ops.cast(self.mask, tokens.dtype)
        patches = ops.where(ops.expand_dims(ranks < count, -1), shown, mask)
        return ops.concatenate([prefix, patches], axis=1)

    def get_config(self) -> dict:
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}


def _select(tokens, indices):
    """Returns the tokens (B, K, D) of (B, N, D) at the indices (B, K) of each image."""
    batch, length, width = ops.shape(tokens)
    first = ops.expand_dims(ops.arange(batch, dtype="int32") * length, 1)
    places = first + ops.cast(indices, "int32")
    return ops.take(ops.reshape(tokens, (-1, width)), places, axis=0)
