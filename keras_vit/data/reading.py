"""Reads a batch of images by indices, also if some files are unreadable.

An unreadable image keeps its row in the batch with weight 0, and is counted and logged. The other
rows do not change. Batches without unreadable images have no extra cost.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.order import example_noise, example_seed, place_seed
from keras_vit.data.sources import Source
from keras_vit.data.transforms import Transform, decode
from keras_vit.photos import why_not
from keras_vit.writing import to_one_line, write_text

Batch = tuple[tf.Tensor, ...]  # images, labels, weights, and noise where it is requested


# A larger share of unreadable images indicates another problem, such as a missing disk.
MOST_UNREADABLE = 0.2


class Unreadable:
    """Collects the images of a source that cannot be read.

    It raises an error if all images are unreadable, or more than a fifth of them and more than ten.

    Args:
        source: The source of the images.
        strict: Whether to raise an error for the first unreadable image.
        record: A file that lists the images over all parts and workers of a run: one per line, with
            a tab and the reason after the name. None for no file. Images that it lists count too,
            unless they can be read by now.

    Attributes:
        places: Names of the images in the order of reading. Line breaks and bytes that are not
            UTF-8 are escaped.
        reasons: Reason for each name.
        fatal: Message of the raised error, because tf.data wraps errors that are raised inside it.
    """

    def __init__(self, source: Source, *, strict: bool = False, record: Path | None = None):
        self.source = source
        self.strict = strict
        self.record = record
        self.reasons: dict[str, str] = {} if record is None else _read_unrepaired(record)
        self.places: list[str] = list(self.reasons)
        self.fatal: str | None = None
        self._lock = threading.Lock()

    def recorded(self) -> list[str]:
        """Returns the names in the file, including those of other workers."""
        return [] if self.record is None else list(read_record(self.record))

    def add(self, indices: np.ndarray) -> np.int64:
        """Adds the unreadable indices of a batch. Returns their number."""
        found = {
            to_one_line(place): place
            for place in (self.source.locate(int(index)) for index in indices)
        }
        with self._lock:
            if found and self.strict:
                name, place = next(iter(found.items()))
                self._fail(
                    f"{name} cannot be read: {_explain(place)}. Replace it, or disable `strict`."
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
            reason, times = Counter(self.reasons.values()).most_common(1)[0]
            self._fail(
                f"{len(self.places)} of the {count} images of {self.source.name} could not be "
                f"read. The most frequent reason, {times}: {reason}. Repair or remove them, and check "
                f"that the disk is mounted. The last: {self.places[-1]}."
            )
        for name, reason in new.items():
            logging.warning("Left out: %s: %s (%d so far).", name, reason, len(self.places))
        return np.int64(len(indices))

    def _fail(self, message: str) -> NoReturn:
        self.fatal = message
        raise ValueError(message)


def read_record(record: Path) -> dict[str, str]:
    """Reads the file of an `Unreadable`: {name: reason}. Empty if there is no file.

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


def forget_from(record: Path, source: Source, start: int) -> None:
    """Removes the images of a source from an index on from the file of an `Unreadable`.

    Call it before images are read again from there: they may have been repaired. Without images
    before the index, the file is removed.

    Example:
        >>> from keras_vit.data import sources
        >>> grey, record = sources.arrays(np.zeros((9, 2, 2), "uint8"), np.zeros(9, int)), Path("bad.txt")
        >>> _ = record.write_text("arrays[2]\\tempty\\narrays[7]\\tempty\\n")
        >>> forget_from(record, grey, start=5)
        >>> read_record(record)
        {'arrays[2]': 'empty'}
    """
    recorded = read_record(record)
    before = {to_one_line(source.locate(index)) for index in range(start)} if recorded else set()
    _write_record(record, {name: reason for name, reason in recorded.items() if name in before})


def forget_repaired(record: Path) -> None:
    """Removes the images that can be read by now from the file of an `Unreadable`.

    Example:
        >>> record = Path("unreadable.txt")
        >>> _ = record.write_text("gone.jpg\\tInput/output error\\n")
        >>> forget_repaired(record)
        >>> read_record(record)
        {'gone.jpg': 'Input/output error'}
    """
    recorded, kept = read_record(record), _read_unrepaired(record)
    if kept != recorded:
        _write_record(record, kept)


def _read_unrepaired(record: Path) -> dict[str, str]:
    """Reads the file of an `Unreadable` without the images that can be read by now."""
    return {
        place: reason
        for place, reason in read_record(record).items()
        if not os.path.isfile(place) or why_not(place)
    }


def _write_record(record: Path, reasons: Mapping[str, str]) -> None:
    if reasons:
        write_text(record, "".join(f"{name}\t{reason}\n" for name, reason in reasons.items()))
    else:
        record.unlink(missing_ok=True)


def _explain(place: str) -> str:
    """Returns the reason that the reader of photos gives, as in all commands.

    TensorFlow's decoders also refuse files that this reader accepts.
    """
    reason = why_not(place) if os.path.isfile(place) else ""
    return to_one_line(reason) or "not an image, or truncated"


@contextmanager
def explain_unreadable(*collectors: Unreadable | None) -> Iterator[None]:
    """Replaces tf.data's error for an unreadable image by a ValueError that names the image."""
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
    """Returns an image of a source without transforms, (H, W, 3) uint8.

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
    noise_length: int = 0,
    parallelism: int = tf.data.AUTOTUNE,
) -> Batch:
    """Reads and transforms the examples of a batch.

    Args:
        source: The source of the examples.
        transforms: Functions from (image, seed) to image, applied in order.
        epochs, indices: (n,) int64. The random numbers of a transform depend on both, on `seed` and
            on its position in `transforms`.
        seed: Seed of the run.
        unreadable: Collects the unreadable images.
        noise_length: Number of random numbers of each example; they depend on what the transforms
            depend on.
        parallelism: Number of examples that are read in parallel.

    Returns:
        images (n, H, W, 3), labels (n,) int64, weights (n,) float32: 0 for unreadable images; with
        a `noise_length` also noise (n, noise_length) float32, from 0 to 1.
    """
    size = indices.shape[0]

    # A tf.function, so that it is traced once for three graphs.
    @tf.function(input_signature=[tf.TensorSpec((), tf.int64)] * 2, autograph=False)
    def read_one(epoch: tf.Tensor, index: tf.Tensor) -> Batch:
        image, label = source.read(index)
        key = example_seed(seed, epoch, index)
        for place, transform in enumerate(transforms):
            image = transform(image, place_seed(key, place))
        example = image, label, tf.constant(1.0)
        if not noise_length:
            return example
        return *example, example_noise(seed, epoch, index, noise_length)

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

    @tf.autograph.experimental.do_not_convert
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
