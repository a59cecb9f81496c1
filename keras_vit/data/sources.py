"""Where examples come from: arrays, image folders, TensorFlow Datasets, scikit-learn's digits, fractals.

A source says what its examples are and how to read one. It neither shuffles, nor decodes, nor batches: the order is
the business of `order.py`, images of `transforms.py`, batches of `pipeline.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples that are found by their index, 0 to `num_examples` - 1.

    Attributes:
        name: For messages and reports.
        class_names: Their order is that of the labels.
        num_examples: How many there are.
        read: index, a scalar int64 tensor, to (image, label): the image a scalar string (an encoded
            file) or uint8 (H, W, 3), the label a scalar int64. Runs inside tf.data, in parallel.
        locate: index to what a person would look for: a path, or "name[index]".
    """

    name: str
    class_names: tuple[str, ...]
    num_examples: int
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    locate: Callable[[int], str]

    def examples(self) -> tf.data.Dataset:
        """Returns (index, image, label) of every example once, in the order of the index."""
        return tf.data.Dataset.range(self.num_examples).map(lambda index: (index, *self.read(index)))
