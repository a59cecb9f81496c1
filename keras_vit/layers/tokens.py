"""Learned tokens: the class token, registers, and the mask token of masked patch prediction.

Source: arXiv:2010.11929, section 3.1 and appendix B.1.2; registers: arXiv:2309.16588.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends a learned token to each sequence. It is initialized to zeros.

    A distilled DeiT has a second one, the distillation token.

    Input shape:   (B, N, D).
    Output shape:  (B, 1 + N, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(ClassToken()(keras.ops.zeros((2, 196, 192))))
        (2, 197, 192)

    Source: arXiv:2010.11929 eq. 1; vision_transformer@c6de1e5 models_vit.py.
    """

    count = 1  # tokens, as in `Registers`

    def build(self, input_shape: tuple) -> None:
        self.cls = self.add_weight(name="cls", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, length, width = input_shape
        return batch, None if length is None else length + 1, width

    def call(self, tokens):
        token = ops.cast(self.cls, tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return ops.concatenate([token, tokens], axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class Registers(keras.layers.Layer):
    """Inserts learned tokens before the patches, after other prefix tokens.

    Args:
        count: Number of registers R.
        place: Number of prefix tokens T that stay before the registers.

    Input shape:   (B, T + N, D).
    Output shape:  (B, T + R + N, D), same dtype as the input.

    Example:
        >>> keras.ops.shape(Registers(4, place=1)(keras.ops.zeros((2, 197, 192))))
        (2, 201, 192)

    Source: arXiv:2309.16588 (Darcet et al.), section 2.2.
    """

    def __init__(self, count: int, *, place: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.count = count
        self.place = place

    def build(self, input_shape: tuple) -> None:
        self.registers = self.add_weight(
            name="registers",
            shape=(1, self.count, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, length, width = input_shape
        return batch, None if length is None else length + self.count, width

    def call(self, tokens):
        shape = (ops.shape(tokens)[0], self.count, tokens.shape[-1])
        registers = ops.broadcast_to(ops.cast(self.registers, tokens.dtype), shape)
        parts = [tokens[:, : self.place], registers, tokens[:, self.place :]]
        return ops.concatenate(parts, axis=1)

    def get_config(self) -> dict:
        return {**super().get_config(), "count": self.count, "place": self.place}


def count_prefix_tokens(model: keras.Model) -> int:
    """Returns the number of tokens that a model puts before the patches: class token, distillation
    token and registers.

    `keras_vit.options.num_prefix_tokens` computes it for a row of the table of models.

    Example:
        >>> model = keras.Sequential([keras.Input((196, 192)), ClassToken(), Registers(4, place=1)])
        >>> count_prefix_tokens(model)
        5
    """
    return sum(layer.count for layer in model.layers if isinstance(layer, ClassToken | Registers))


# Kinds of tokens that `MaskTokens` returns.
UNTOUCHED, MASKED, SWAPPED, KEPT = range(4)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskTokens(keras.layers.Layer):
    """Corrupts part of the patch tokens of each image, for masked patch prediction.

    Most corrupted tokens are replaced by a learned mask token, some by another token of the same
    image, and the rest are kept, so that the model cannot know which tokens are correct. Outside of
    training, all images are corrupted at the same fixed places, so that an evaluation does not
    depend on its batches.

    Args:
        rate: Share of corrupted tokens: exactly round(rate * N) of N tokens in each image.
        mask_share: Share of the corrupted tokens that are replaced by the mask token.
        swap_share: Share of the corrupted tokens that are replaced by another token. The remaining
            corrupted tokens are kept.
        seed: Seed of the draws.

    Input shape:   (B, N, D), N fixed and at least 2.
    Output shape:  tokens (B, N, D), same dtype as the input; kinds (B, N) int32: `UNTOUCHED`,
        `MASKED`, `SWAPPED` or `KEPT`.

    Example:
        >>> tokens, kinds = MaskTokens(0.5, seed=0)(keras.ops.ones((2, 196, 192)), training=True)
        >>> keras.ops.convert_to_numpy(kinds > UNTOUCHED).sum(axis=1).tolist()
        [98, 98]

    Source: arXiv:2010.11929, B.1.2: 50 %, of which 80 %, 10 % and 10 %. The paper does not say
        which other token is used; we use one of the same image.
    """

    def __init__(
        self,
        rate: float = 0.5,
        *,
        mask_share: float = 0.8,
        swap_share: float = 0.1,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not (
            0 < rate <= 1
            and mask_share >= 0
            and swap_share >= 0
            and mask_share + swap_share <= 1 + 1e-9
        ):
            raise ValueError(
                "`rate` must be in (0, 1], and `mask_share` and `swap_share` shares that add up to "
                f"1 at most. Received: rate={rate}, mask_share={mask_share}, "
                f"swap_share={swap_share}."
            )
        self.rate = rate
        self.mask_share = mask_share
        self.swap_share = swap_share
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: tuple) -> None:
        _, length, width = input_shape
        if length is None or length < 2:
            raise ValueError(
                "`MaskTokens` needs a fixed number of tokens, at least 2. Received: input_shape="
                f"{tuple(input_shape)}."
            )
        if not round(self.rate * length):
            raise ValueError(
                f"`MaskTokens` would corrupt none of the {length} tokens. Use a `rate` of at least "
                f"{1 / length:.2g}. Received: rate={self.rate}."
            )
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.mask = self.add_weight(name="mask", shape=(1, 1, width), initializer=initializer)

    def plan(self, batch: Any, length: int, training: bool) -> tuple[Any, Any]:
        """Draws (kinds, places), both (batch, N) int32.

        `kinds` is the kind of each token, `places` the index of the token that may replace it.
        """
        seeds = [self.seed_generator] * 3 if training else [1, 2, 3]
        order = keras.random.uniform((batch, length), dtype="float32", seed=seeds[0])
        corrupted = ops.argsort(ops.argsort(order, axis=-1), axis=-1) < round(self.rate * length)
        share = keras.random.uniform((batch, length), dtype="float32", seed=seeds[1])
        kinds = ops.where(share < self.mask_share + self.swap_share, SWAPPED, KEPT)
        kinds = ops.where(share < self.mask_share, MASKED, kinds)
        # Steps from 1 to N - 1, so that a token is never replaced by itself.
        step = keras.random.randint((batch, length), 1, length, dtype="int32", seed=seeds[2])
        places = (ops.arange(length, dtype="int32") + step) % length
        return ops.cast(ops.where(corrupted, kinds, UNTOUCHED), "int32"), places

    def call(self, tokens, training=None):
        batch, length, width = ops.shape(tokens)
        kinds, places = self.plan(batch if training else 1, length, bool(training))
        kinds, places = (ops.broadcast_to(value, (batch, length)) for value in (kinds, places))
        first = ops.expand_dims(ops.arange(batch, dtype="int32") * length, 1)
        others = ops.take(ops.reshape(tokens, (-1, width)), first + places, axis=0)
        kind = ops.expand_dims(kinds, -1)
        corrupted = ops.where(kind == SWAPPED, others, tokens)
        return ops.where(kind == MASKED, ops.cast(self.mask, tokens.dtype), corrupted), kinds

    def get_config(self) -> dict:
        config = {
            "rate": self.rate,
            "mask_share": self.mask_share,
            "swap_share": self.swap_share,
            "seed": self.seed,
        }
        return {**super().get_config(), **config}
