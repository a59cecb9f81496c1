"""Which example stands where: every draw is a function of (seed, epoch, example), so no order has
to be remembered.

A run is one endless row of positions: position p is in epoch p // N, and an epoch is a permutation
of the N examples, computed for each position by itself. A run starts at any step at once, and its
batches do not depend on the number of threads or workers, nor on what was read before.
"""

import tensorflow as tf

# Of the block cipher behind the permutation. TensorFlow's default of 4 mixes badly: of 1000
# examples, one in seven keeps its place from one epoch to the next, and neighbours stay together.
# From 8 on nothing of that is left.
_ROUNDS = 16

# Different uses of one seed must not draw alike.
_ORDER, _EXAMPLE, _BATCH = 0, 1, 2


def examples_at(
    positions: tf.Tensor, num_examples: int, *, seed: int, shuffle: bool = True
) -> tuple:
    """Returns (epochs, indices) of positions.

    Args:
        positions: (n,) int64, from 0.
        num_examples: N, the examples of an epoch.
        seed: Other seeds give other permutations.
        shuffle: False: in the order of the index.

    Returns:
        Two (n,) int64: the epoch, and the index of the example, 0 to N - 1.

    Example:
        >>> epochs, indices = examples_at(tf.range(6, dtype=tf.int64), 3, seed=0)
        >>> epochs.numpy().tolist(), sorted(indices.numpy()[:3].tolist())
        ([0, 0, 0, 1, 1, 1], [0, 1, 2])
    """
    epochs, indices = positions // num_examples, positions % num_examples
    if not shuffle:
        return epochs, indices
    # `tf.random.experimental.index_shuffle` cannot take a seed for each index: it joins what it
    # adds along the wrong axis (TensorFlow 2.21). The operation itself can.
    seeds = tf.stack(
        [tf.fill(tf.shape(epochs), tf.cast(seed, tf.int64)), epochs, tf.zeros_like(epochs)], axis=1
    )
    last = tf.constant(num_examples - 1, tf.int64)
    return epochs, tf.raw_ops.RandomIndexShuffle(
        index=indices, seed=seeds, max_index=last, rounds=_ROUNDS
    )


def example_seed(seed: int, epoch: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns the (2,) int32 seed of an example in an epoch."""
    key = tf.random.experimental.stateless_fold_in(tf.constant([seed, _EXAMPLE], tf.int32), epoch)
    return tf.random.experimental.stateless_fold_in(key, index)


def place_seed(seed: tf.Tensor, place: int) -> tf.Tensor:
    """Returns the (2,) int32 seed of the transform at a place of the list, for an example."""
    return tf.random.experimental.stateless_fold_in(seed, tf.constant(place, tf.int32))


def batch_seed(seed: int, step: tf.Tensor) -> tf.Tensor:
    """Returns the (2,) int32 seed of what is drawn once for a batch."""
    return tf.random.experimental.stateless_fold_in(tf.constant([seed, _BATCH], tf.int32), step)
