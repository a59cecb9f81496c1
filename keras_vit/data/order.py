"""The order of training examples, and random seeds, as functions of (seed, epoch, example).

A run is an endless sequence of positions. Position p is in epoch p // N, and each epoch is a
permutation of the N examples, computed separately for each position. So a run can start at any step
without reading earlier ones, and its batches do not depend on the number of threads or workers.
"""

import tensorflow as tf

# Rounds of the block cipher behind the permutation. TensorFlow's default of 4 mixes badly: of 1000
# examples, one in seven keeps its position in the next epoch, and neighbours stay together. With 8
# or more, neither happens.
_ROUNDS = 16

# Different uses of a seed must draw different numbers.
_ORDER, _EXAMPLE, _BATCH, _NOISE = 0, 1, 2, 3


def examples_at(
    positions: tf.Tensor, num_examples: int, *, seed: int, shuffle: bool = True
) -> tuple:
    """Returns the epochs and the example indices of positions.

    Args:
        positions: (n,) int64, from 0.
        num_examples: N, the number of examples in an epoch.
        seed: Seed of the permutations.
        shuffle: If False, examples are in the order of the index.

    Returns:
        Two tensors (n,) int64: the epochs, and the indices of the examples, 0 to N - 1.

    Example:
        >>> epochs, indices = examples_at(tf.range(6, dtype=tf.int64), 3, seed=0)
        >>> epochs.numpy().tolist(), sorted(indices.numpy()[:3].tolist())
        ([0, 0, 0, 1, 1, 1], [0, 1, 2])
    """
    epochs, indices = positions // num_examples, positions % num_examples
    if not shuffle:
        return epochs, indices
    # `tf.random.experimental.index_shuffle` does not accept a seed per index, because it
    # concatenates along the wrong axis (TensorFlow 2.21). The raw operation does.
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


def example_noise(seed: int, epoch: tf.Tensor, index: tf.Tensor, length: int) -> tf.Tensor:
    """Returns random numbers from 0 to 1 of an example in an epoch, (length,) float32."""
    key = tf.random.experimental.stateless_fold_in(tf.constant([seed, _NOISE], tf.int32), epoch)
    key = tf.random.experimental.stateless_fold_in(key, index)
    return tf.random.stateless_uniform((length,), key)


def place_seed(seed: tf.Tensor, place: int) -> tf.Tensor:
    """Returns the (2,) int32 seed of a transform, from the seed of an example and its list index."""
    return tf.random.experimental.stateless_fold_in(seed, tf.constant(place, tf.int32))


def batch_seed(seed: int, step: tf.Tensor) -> tf.Tensor:
    """Returns the (2,) int32 seed of the draws that a batch shares."""
    return tf.random.experimental.stateless_fold_in(tf.constant([seed, _BATCH], tf.int32), step)
