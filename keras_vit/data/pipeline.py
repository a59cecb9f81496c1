"""Batches of a source: endless for training, each image once for evaluation.

A batch is (images, labels, weights), or ((images, noise), labels, weights) for models that take
random numbers as an input. All batches have the same number of rows; padding rows have weight 0. A
worker reads only its own rows, and N workers together read the rows that a single worker would
read.
"""

import atexit
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from keras_vit.data import order
from keras_vit.data.reading import Batch, Unreadable, read_batch
from keras_vit.data.sources import Source
from keras_vit.data.transforms import Transform, mixup, mixup_coefficient
from keras_vit.levels import to_pixels

_BATCHES_AT_ONCE = 2
_BATCHES_AHEAD = 2

# An iterator in a reference cycle, such as the traceback of an error, would be freed after Python
# has shut down. There it would wait forever for threads in a `tf.numpy_function` (TensorFlow 2.21).
atexit.register(gc.collect)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of each batch that this process reads.

    Attributes:
        rows: Rows of a whole batch over all workers, including padding.
        num_workers, worker_index: Number of processes of the run, and index of this one.
        num_parts: Number of equal batches into which the rows of this worker are split: one per
            replica on TensorFlow; 1 if the framework splits batches.
    """

    rows: int
    num_workers: int = 1
    worker_index: int = 0
    num_parts: int = 1

    def __post_init__(self) -> None:
        if self.rows % (self.num_workers * self.num_parts):
            raise ValueError(
                f"{self.rows} rows are not divisible into {self.num_workers} workers with "
                f"{self.num_parts} parts each. Use `padded_rows`."
            )

    @property
    def local_rows(self) -> int:
        return self.rows // self.num_workers


def padded_rows(batch_size: int, num_parts: int) -> int:
    """Returns the smallest multiple of `num_parts` that is not less than the batch size.

    Example:
        >>> padded_rows(10, 4)
        12
    """
    if batch_size < 1 or num_parts < 1:
        raise ValueError(
            "`batch_size` and `num_parts` must be at least 1. Received: "
            f"batch_size={batch_size}, num_parts={num_parts}."
        )
    return -(-batch_size // num_parts) * num_parts


def training_batches(
    source: Source,
    transforms: Sequence[Transform],
    *,
    batch_size: int,
    seed: int,
    share: Share | None = None,
    start_step: int = 0,
    total_steps: int | None = None,
    mixup_alpha: float = 0.0,
    noise_length: int = 0,
    unreadable: Unreadable | None = None,
    stamp: Callable[[], int] | None = None,
) -> tf.data.Dataset:
    """Returns the training batches of a run from a given step on.

    A batch depends on the seed and the step alone, not on the first step or the number of threads
    and workers.

    Args:
        source: The examples. A batch may span two epochs; no example is dropped.
        transforms: Functions from (image, seed) to image, applied in order.
        batch_size: Examples of a batch, over all workers.
        seed: Seed of the order and of all random transforms.
        share: Rows that this process reads. Default: all.
        start_step: Number of steps already done.
        total_steps: Last step, or None for endless batches.
        mixup_alpha: If above 0, each image is mixed with the previous one in the batch, and labels
            become (B, Y) float32.
        noise_length: Number of random numbers of each example, for a model that takes them as an
            input.
        unreadable: Collects unreadable images. Default: a new collector, which logs them.
        stamp: Function that is called whenever a batch is ready.

    Returns:
        Batches of (images (n, H, W, 3), labels (n,) int64 or (n, Y), weights (n,)), n =
        `share.local_rows` / num_parts. With a `noise_length`, the images are a pair of images and
        noise (n, noise_length) float32, from 0 to 1.

    Example:
        >>> from keras_vit.data import sources, transforms
        >>> batches = training_batches(sources.digits("train"), [transforms.resize(16)], batch_size=32, seed=0)
        >>> [tuple(part.shape) for part in next(iter(batches))]
        [(32, 16, 16, 3), (32,), (32,)]
    """
    share = Share(rows=batch_size) if share is None else share
    unreadable = Unreadable(source) if unreadable is None else unreadable
    first = share.worker_index * share.local_rows
    num_before = int(mixup_alpha > 0)  # the partner of the first row may belong to another worker
    rows = tf.range(first - num_before, first + share.local_rows, dtype=tf.int64)
    is_real = tf.cast(rows[num_before:] < batch_size, tf.float32)

    @tf.autograph.experimental.do_not_convert
    def make_batch(step: tf.Tensor) -> Batch:
        positions = step * batch_size + rows % batch_size
        epochs, indices = order.examples_at(positions, source.num_examples, seed=seed)
        images, labels, weights, *noise = read_batch(
            source,
            transforms,
            epochs,
            indices,
            seed=seed,
            unreadable=unreadable,
            noise_length=noise_length,
        )
        if num_before:
            labels = tf.one_hot(labels, len(source.class_names))
            # An image whose partner is unreadable is not mixed.
            coefficient = mixup_coefficient(mixup_alpha, order.batch_seed(seed, step))
            images, labels = _mix(images, labels, weights, coefficient)
            weights, noise = weights[1:], [numbers[1:] for numbers in noise]
        return _join(images, noise), labels, weights * is_real

    steps = tf.data.Dataset.range(start_step, tf.int64.max if total_steps is None else total_steps)
    return _make_dataset(steps, make_batch, share, stamp)


def evaluation_batches(
    source: Source,
    transforms: Sequence[Transform],
    *,
    batch_size: int,
    share: Share | None = None,
    noise_length: int = 0,
    unreadable: Unreadable | None = None,
    start: int = 0,
) -> tf.data.Dataset:
    """Returns batches with each example once, in order. The last batch is padded with weight 0.

    Args:
        source, transforms, batch_size, unreadable: As in `training_batches`.
        noise_length: As in `training_batches`. The noise depends on the example alone.
        share: Rows that this process reads. Default: all. `share.rows` may exceed `batch_size`, so
            that it is divisible by the number of replicas.
        start: Index of the first example.

    Returns:
        Batches like those of `training_batches`. All workers have the same number of batches.

    Example:
        >>> from keras_vit.data import sources, transforms
        >>> batches = evaluation_batches(sources.digits("test"), [transforms.resize(16)], batch_size=128)
        >>> sum(float(tf.reduce_sum(weights)) for _, _, weights in batches)
        360.0
    """
    share = Share(rows=batch_size) if share is None else share
    unreadable = Unreadable(source) if unreadable is None else unreadable
    first = share.worker_index * share.local_rows
    rows = tf.range(first, first + share.local_rows, dtype=tf.int64)

    @tf.autograph.experimental.do_not_convert
    def make_batch(step: tf.Tensor) -> Batch:
        positions = start + step * share.rows + rows
        is_real = positions < source.num_examples
        epochs, indices = order.examples_at(
            tf.where(is_real, positions, 0), source.num_examples, seed=0, shuffle=False
        )
        images, labels, weights, *noise = read_batch(
            source,
            transforms,
            epochs,
            indices,
            seed=0,
            unreadable=unreadable,
            noise_length=noise_length,
        )
        return _join(images, noise), labels, weights * tf.cast(is_real, tf.float32)

    return _make_dataset(
        tf.data.Dataset.range(-(-(source.num_examples - start) // share.rows)),
        make_batch,
        share,
        None,
    )


def _join(images: tf.Tensor, noise: Sequence[tf.Tensor]) -> tf.Tensor | tuple[tf.Tensor, ...]:
    return (images, *noise) if noise else images


def _mix(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, coefficient: tf.Tensor) -> tuple:
    is_uint8 = images.dtype == tf.uint8
    readable = tf.equal(weights[:-1], 1)
    partners = tf.where(readable[:, None, None, None], images[:-1], images[1:])
    partner_labels = tf.where(readable[:, None], labels[:-1], labels[1:])
    images, labels = mixup(images[1:], labels[1:], partners, partner_labels, coefficient)
    return (to_pixels(images) if is_uint8 else images), labels


def _make_dataset(
    steps: tf.data.Dataset, make_batch: Callable, share: Share, stamp: Callable[[], int] | None
) -> tf.data.Dataset:
    @tf.autograph.experimental.do_not_convert
    def call_stamp(*batch: tf.Tensor) -> Batch:
        with tf.control_dependencies([tf.numpy_function(stamp, [], tf.int64)]):
            return (*batch[:2], tf.identity(batch[2]))

    @tf.autograph.experimental.do_not_convert
    def cut(*batch: tf.Tensor) -> Batch:
        return tf.nest.map_structure(
            lambda x: tf.reshape(x, (share.num_parts, x.shape[0] // share.num_parts, *x.shape[1:])),
            batch,
        )

    batches = steps.map(make_batch, num_parallel_calls=_BATCHES_AT_ONCE, deterministic=True)
    batches = batches if stamp is None else batches.map(call_stamp)
    if share.num_parts > 1:
        num_steps = steps.cardinality()
        batches = batches.map(cut).unbatch()
        if num_steps >= 0:
            batches = batches.apply(
                tf.data.experimental.assert_cardinality(num_steps * share.num_parts)
            )
    options = tf.data.Options()
    # There is nothing to rewrite in so few steps, and looking for it takes a tenth of a second.
    options.experimental_optimization.apply_default_optimizations = False
    return batches.prefetch(_BATCHES_AHEAD * share.num_parts).with_options(options)
