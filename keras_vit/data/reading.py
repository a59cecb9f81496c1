"""From indices to a batch of images, when some of the files cannot be read.

An unreadable image takes its place in the batch with weight 0: it is not learned from, it is
counted and named, and the others stay where they are. Batches in which all can be read cost nothing
extra.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.order import example_seed, place_seed
from keras_vit.data.sources import Source
from keras_vit.data.transforms import Transform, decode
from keras_vit.photos import why_not
from keras_vit.writing import to_one_line

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # images, labels, weights


# More than a few bad files is another fault: a disk that is gone, a folder of something else.
MOST_UNREADABLE = 0.2


class Unreadable:
    """The images of a source that could not be read; all of them, or more than a fifth (and than
    ten), is an error.

    Args:
        source: Whose they are.
        strict: Raise at the first one.
        record: A file that keeps their places, one in a line, over all parts and workers of a run,
            each with a tab and the reason behind it; None for none.

    Attributes:
        places: Where they are, in the order in which they were met; line breaks and bytes that are
            no UTF-8 as escapes.
        reasons: Place to why it cannot be read.
        fatal: With `strict`, what to say about the first one; tf.data wraps what is raised inside
            it.
    """

    def __init__(self, source: Source, *, strict: bool = False, record: Path | None = None):
        self.source = source
        self.strict = strict
        self.record = record
        self.reasons: dict[str, str] = {} if record is None else read_record(record)
        self.places: list[str] = list(self.reasons)
        self.fatal: str | None = None
        self._lock = threading.Lock()

    def recorded(self) -> list[str]:
        """Returns the places in the file; those of other workers too."""
        return [] if self.record is None else list(read_record(self.record))

    def add(self, indices: np.ndarray) -> np.int64:
        """Takes the indices of a batch that could not be read. Returns their number."""
        found = {
            to_one_line(place): place
            for place in (self.source.locate(int(index)) for index in indices)
        }
        with self._lock:
            if found and self.strict:
                name, place = next(iter(found.items()))
                self._fail(
                    f"{name} cannot be read: {_explain(place)}. Replace it, or turn `strict` off."
                )
            new = {
                name: _explain(place) for name, place in found.items() if name not in self.reasons
            }
            self.reasons |= new
            self.places += new
            if new and self.record is not None:
                with self.record.open("a", encoding="utf-8") as lines:
                    lines.writelines(f"{name}\t{reason}\n" for name, reason in new.items())
        count = self.source.num_examples
        if len(self.places) >= count or len(self.places) > max(MOST_UNREADABLE * count, 10):
            self._fail(
                f"{len(self.places)} of the {count} images of {self.source.name} could not be "
                f"read. "
                f"Is the disk still there? The last: {self.places[-1]}."
            )
        for name, reason in new.items():
            logging.warning("Left out: %s: %s (%d so far).", name, reason, len(self.places))
        return np.int64(len(indices))

    def _fail(self, message: str) -> NoReturn:
        self.fatal = message
        raise ValueError(message)


def read_record(record: Path) -> dict[str, str]:
    """Returns the places that such a file names, with the reasons; none if there is no file.

    Example:
        >>> _ = Path("unreadable.txt").write_text("cat.jpg\\tthe file is empty\\n")
        >>> read_record(Path("unreadable.txt"))
        {'cat.jpg': 'the file is empty'}
    """
    if not record.exists():
        return {}
    lines = record.read_text(encoding="utf-8", errors="replace").split("\n")
    pairs = (line.partition("\t") for line in lines if line)
    return {place: reason for place, _, reason in pairs}


def _explain(place: str) -> str:
    """The reason of the reader of photos, which all commands give; TensorFlow's decoders refuse
    more than it does.
    """
    reason = why_not(place) if os.path.isfile(place) else ""
    return to_one_line(reason) or "not an image, or cut short"


@contextmanager
def explain_unreadable(*collectors: Unreadable | None) -> Iterator[None]:
    """Turns what tf.data makes of an unreadable image into a plain ValueError that names it."""
    try:
        yield
    except Exception as error:
        fatal = [
            collector.fatal for collector in collectors if collector is not None and collector.fatal
        ]
        if not fatal:
            raise
        raise ValueError(fatal[0]) from error


def read_pixels(source: Source, index: int) -> np.ndarray:
    """Returns an image as it lies in the source, (H, W, 3) uint8.

    Example:
        >>> from keras_vit.data import sources
        >>> read_pixels(sources.digits("test"), 0).shape
        (8, 8, 3)
    """
    image, _ = source.read(tf.constant(index, tf.int64))
    return decode(image, tf.constant([0, 0])).numpy()


def read_batch(
    source: Source,
    transforms: Sequence[Transform],
    epochs: tf.Tensor,
    indices: tf.Tensor,
    *,
    seed: int,
    unreadable: Unreadable,
    parallelism: int = tf.data.AUTOTUNE,
) -> Batch:
    """Reads and transforms the examples of a batch.

    Args:
        source: Where they are.
        transforms: (image, seed) to image, applied in turn.
        epochs, indices: (n,) int64. The draws of a transform depend on both, on `seed`, and on its
            place.
        seed: Of the run.
        unreadable: Takes the indices of those that cannot be read.
        parallelism: Examples read at the same time.

    Returns:
        images (n, H, W, 3), labels (n,) int64, weights (n,) float32: 0 where the image could not be
        read.
    """
    size = indices.shape[0]

    # traced once, though three graphs call it
    @tf.function(input_signature=[tf.TensorSpec((), tf.int64)] * 2)
    def read_one(epoch: tf.Tensor, index: tf.Tensor) -> Batch:
        image, label = source.read(index)
        key = example_seed(seed, epoch, index)
        for place, transform in enumerate(transforms):
            image = transform(image, place_seed(key, place))
        return image, label, tf.constant(1.0)

    examples = tf.data.Dataset.from_tensor_slices((epochs, indices))
    shapes = read_one.get_concrete_function().structured_outputs
    blank = tuple(tf.zeros([side or 1 for side in spec.shape], spec.dtype) for spec in shapes)

    def read_together() -> Batch:
        batches = examples.map(read_one, num_parallel_calls=parallelism).batch(size)
        nothing = tf.data.Dataset.from_tensors(tuple(value[None][:0] for value in blank))
        return (
            batches.ignore_errors(log_warning=False)
            .concatenate(nothing)
            .take(1)
            .get_single_element()
        )

    def read_one_or_blank(epoch: tf.Tensor, index: tf.Tensor) -> Batch:
        example = (
            tf.data.Dataset.from_tensors((epoch, index))
            .map(read_one)
            .ignore_errors(log_warning=False)
        )
        return example.concatenate(tf.data.Dataset.from_tensors(blank)).take(1).get_single_element()

    def read_separately() -> Batch:
        batch = (
            examples.map(read_one_or_blank, num_parallel_calls=parallelism)
            .batch(size)
            .get_single_element()
        )
        bad = tf.boolean_mask(indices, tf.equal(batch[2], 0))
        with tf.control_dependencies([tf.numpy_function(unreadable.add, [bad], tf.int64)]):
            return tuple(tf.identity(value) for value in batch)

    first_try = read_together()
    batch = tf.cond(tf.equal(tf.shape(first_try[2])[0], size), lambda: first_try, read_separately)
    return tuple(
        tf.ensure_shape(value, (size, *spec.shape))
        for value, spec in zip(batch, shapes, strict=True)
    )
