"""Separate models that recompute the attention weights of a model, and reduce them.

They compute the weights from the inputs of its blocks (`attention_sites.py`), with shared
variables. The model itself contains no code for analysis: models that are never analyzed pay no
cost, and analyzed models are not modified.
"""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analyze.attention_sites import Sites
from keras_vit.layers import AttentionPooling
from keras_vit.pixels import Pixels


class AttentionReader(keras.layers.Layer):
    """Computes the attention weights of each layer, and those of attention pooling.

    Args:
        sites: The attention layers of the model.

    Input shape:   (B, H, W, C), in the range of the model, or uint8.
    Output shape:  a list of L arrays (B, A, N, N); and the weights of attention pooling, averaged
        over the heads, (B, N), or None. All are float32.
    """

    def __init__(self, sites: Sites):
        super().__init__(dtype="float32")
        self.blocks = [block for block, *_ in sites.calls]
        given = [tokens for _, tokens, _ in sites.calls]
        self.pooling = None
        if sites.attention_pooling is not None:
            self.pooling, pooled = sites.attention_pooling
            given.append(pooled)
        # All blocks have the same rotation, and only rotary positions have any.
        rotation = sites.calls[0][2]
        self.is_rotary = rotation is not None
        if rotation is not None:
            given.append(rotation)
        self.pixels = sites.pixels
        self.before = list(sites.before)
        # Ends before the last block, whose output is not needed.
        self.tokens = keras.Model(sites.images, given)
        self.built = True

    def call(self, images):
        if keras.backend.standardize_dtype(images.dtype) == "uint8" and self.pixels is not None:
            images = self.pixels.from_levels(ops.cast(images, "float32"))
        for model in self.before:
            images = model(images, training=False)
        given = keras.tree.flatten(self.tokens(images, training=False))
        rotation = {"rotation": given.pop()} if self.is_rotary else {}
        scores = [
            block.attention_scores(tokens, **rotation)
            for block, tokens in zip(self.blocks, given, strict=False)
        ]
        # An axial block returns two arrays.
        scores = [ops.cast(weights, "float32") for weights in keras.tree.flatten(scores)]
        return scores, None if self.pooling is None else _compute_pooling_weights(
            self.pooling, given[-1]
        )


def _compute_pooling_weights(pooling: AttentionPooling, tokens):
    probe = ops.broadcast_to(
        ops.cast(pooling.probe, tokens.dtype), (ops.shape(tokens)[0], 1, tokens.shape[-1])
    )
    scores_BA1N = pooling.attention.attention_scores(probe, tokens)
    return ops.mean(ops.cast(scores_BA1N, "float32"), axis=1)[:, 0]


class AttentionMaps(keras.Model):
    """The attention weights of all layers.

    Input shape:   (B, H, W, C).
    Output shape:  (B, L, A, N, N) float32.
    """

    def __init__(self, sites: Sites):
        super().__init__(dtype="float32")
        self.reader = AttentionReader(sites)
        self.built = True

    def call(self, images):
        scores, _ = self.reader(images)
        return ops.stack(scores, axis=1)


class HeadMaps(keras.Model):
    """The attention of each head to the patches, from what the classifier reads.

    It reduces the (N, N) weights of a head in the graph, so they do not leave it.

    Args:
        sites: The attention layers of the model.
        shares: (N,), the share of each token in the input of the classifier.
        num_prefix_tokens: Number of tokens before the patches.

    Input shape:   (B, H, W, C).
    Output shape:  (B, L, A, R * C) float32.
    """

    def __init__(self, sites: Sites, shares: np.ndarray, num_prefix_tokens: int):
        super().__init__(dtype="float32")
        self.reader = AttentionReader(sites)
        self.shares = shares
        self.num_prefix_tokens = num_prefix_tokens
        self.built = True

    def call(self, images):
        scores, pooled = self.reader(images)
        read = _compute_read(self.shares, self.num_prefix_tokens, pooled, ops.shape(images)[0])
        maps = [ops.einsum("bn,banm->bam", read, weights) for weights in scores]
        return ops.stack(maps, axis=1)[..., self.num_prefix_tokens :]


class AttentionSums(keras.Model):
    """The mean attention distance of each head, and the attention rollout.

    Args:
        sites: The attention layers of the model.
        distances: (R * C, R * C), distances between patches.
        shares: (N,), the share of each token in the input of the classifier.

    Input shape:   (B, H, W, C).
    Output shape:  mean distances (B, L, A); rollout from the input of the classifier to the patches,
        (B, R * C). Both are float32.
    """

    def __init__(self, sites: Sites, distances: np.ndarray, shares: np.ndarray):
        super().__init__(dtype="float32")
        self.reader = AttentionReader(sites)
        self.shares = shares
        self.length, num_patches = len(shares), len(distances)
        self.num_prefix_tokens = num_prefix_tokens = self.length - num_patches
        padded = np.pad(distances / num_patches, ((num_prefix_tokens, 0), (num_prefix_tokens, 0)))
        # A weight, since a constant would be compiled into the program.
        self.distances = self.add_weight(
            shape=(padded.size, 1), initializer="zeros", trainable=False, name="distances"
        )
        self.distances.assign(padded.reshape(-1, 1))
        self.built = True

    def call(self, images):
        scores, pooled = self.reader(images)
        flow = _compute_read(self.shares, self.num_prefix_tokens, pooled, ops.shape(images)[0])
        # Compute only the needed row of the product, by products of vector and matrix.
        for weights in reversed(scores):
            flow = _propagate_back(flow, ops.mean(weights, axis=1))
        return ops.stack([self._compute_distance(weights) for weights in scores], axis=1), flow[
            :, self.num_prefix_tokens :
        ]

    def _compute_distance(self, scores):
        """Returns (B, A): sum over the keys, mean over the queries; prefix tokens have distance 0."""
        flat = ops.reshape(scores, (-1, self.length * self.length))
        return ops.reshape(ops.matmul(flat, self.distances), (-1, scores.shape[1]))


def _compute_read(shares: np.ndarray, num_prefix_tokens: int, pooled: Any, batch_size: Any):
    """Returns the share of each token in the input of the classifier, (B, N), for each image.

    `pooled` are the weights of attention pooling, (B, N), or None. They distribute the share of the
    patches.
    """
    if pooled is None:
        return ops.broadcast_to(shares[None], (batch_size, len(shares)))
    of_prefix = shares * (np.arange(len(shares)) < num_prefix_tokens)
    return ops.add(of_prefix, float(shares[num_prefix_tokens:].sum()) * pooled)


def _propagate_back(flow, mixing):
    """Returns the shares of tokens (B, N) before a layer, from those after it and its attention
    (B, N, N).
    """
    flow = flow / (1.0 + ops.sum(mixing, axis=-1))
    return flow + ops.squeeze(ops.matmul(ops.expand_dims(flow, 1), mixing), axis=1)


def computed(compiled: keras.Model, images: np.ndarray, rows: int) -> Any:
    """Returns the outputs for a batch, which is padded to `rows` while it is computed."""
    # Another number of rows would compile the model again.
    filled = np.concatenate([images, np.repeat(images[-1:], rows - len(images), axis=0)])
    return keras.tree.map_structure(
        lambda part: part[: len(images)], compiled.predict_on_batch(filled)
    )


# Tracing takes seconds, and callers analyze many photographs with the same model, one at a time.
_KEPT: weakref.WeakKeyDictionary[keras.Model, dict[type, tuple[Any, keras.Model]]] = (
    weakref.WeakKeyDictionary()
)


def compiled_once(
    model: keras.Model,
    kind: type,
    image_size: tuple[int, int],
    pixels: Pixels | None,
    make: Callable[[], keras.Model],
) -> keras.Model:
    """Returns the result of `make`, cached for this model while its variables, its dtypes, the image
    size and the range of pixels are the same.
    """
    now = (
        image_size,
        pixels,
        tuple(map(id, model.variables)),
        # With nested models, and the layers inside the blocks.
        tuple(layer.dtype_policy.name for layer in model._flatten_layers()),
    )
    kept = _KEPT.setdefault(model, {})
    if kind not in kept or kept[kind][0] != now:
        kept[kind] = now, make()
    return kept[kind][1]
