"""A ViT in Flax, modelled on vit_jax: `nn.MultiHeadDotProductAttention`, `nn.gelu`, `jax.jit`."""

import functools
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rivals.cells import PATCH_SIZE, Absent, Cell, Shape

NUM_CLASSES = 1000


class Block(nn.Module):
    """An encoder block, (B, N, C) to (B, N, C)."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.LayerNorm(dtype=self.dtype)(tokens)
        tokens += nn.MultiHeadDotProductAttention(
            self.shape.num_heads, dtype=self.dtype, deterministic=True
        )(x, x)
        x = nn.Dense(self.shape.mlp_dim, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(tokens))
        return tokens + nn.Dense(self.shape.width, dtype=self.dtype)(nn.gelu(x))


class ViT(nn.Module):
    """Images, (B, H, W, 3), to logits, (B, NUM_CLASSES)."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        patch = (PATCH_SIZE, PATCH_SIZE)
        x = nn.Conv(self.shape.width, patch, patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, self.shape.width)
        token = self.param("cls", nn.initializers.zeros, (1, 1, self.shape.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x += self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:])).astype(
            x.dtype
        )
        for _ in range(self.shape.depth):
            x = Block(self.shape, self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
        return nn.Dense(NUM_CLASSES, dtype=self.dtype)(x).astype(jnp.float32)


def make_step(rival: str, cell: Cell) -> Callable[[], object]:
    """Returns a function that computes one batch and waits until it is finished.

    Raises:
        Absent: For hybrids, and for cells that save memory.
    """
    if cell.shape.is_hybrid or cell.saving:
        raise Absent("this implementation has no hybrids and no options to save memory")
    dtype = jnp.dtype(cell.precision)
    model = ViT(cell.shape, dtype)
    draws = np.random.default_rng(0)
    images = jnp.asarray(
        draws.uniform(-1, 1, (cell.batch_size, cell.image_size, cell.image_size, 3)), jnp.float32
    )
    weights = jax.jit(model.init)(jax.random.key(0), images[:1])
    if not cell.trains:
        weights = jax.tree.map(lambda weight: weight.astype(dtype), weights)
        forward = jax.jit(model.apply)
        return lambda: jax.block_until_ready(forward(weights, images))
    labels = jnp.asarray(draws.integers(0, NUM_CLASSES, cell.batch_size))
    optimizer = (
        optax.adamw(1e-3, weight_decay=0.1) if cell.task == "adamw" else optax.sgd(1e-3, 0.9)
    )
    state = [weights, optimizer.init(weights)]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(weights: Any, slots: Any) -> tuple:
        def loss(weights: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(
                model.apply(weights, images), labels
            ).mean()

        changes, slots = optimizer.update(jax.grad(loss)(weights), slots, weights)
        return optax.apply_updates(weights, changes), slots

    def train() -> None:
        state[:] = jax.block_until_ready(update(*state))

    return train


def time_product(precision: str, size: int) -> float:
    """Returns the seconds that a product of two square matrices takes."""
    matrix = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(precision))
    product = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
