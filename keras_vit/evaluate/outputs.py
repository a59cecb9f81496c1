"""What a model gives for the images of a source: each image once, for any size of the batch and any
number of devices.

All evaluations stand on this: what is counted is counted here.
"""

import numbers
from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.data.pipeline import Share, evaluation_batches, padded_rows
from keras_vit.data.reading import Unreadable, explain_unreadable
from keras_vit.data.sources import Source
from keras_vit.data.transforms import eval_crop as eval_crops
from keras_vit.data.transforms import scale_to
from keras_vit.devices import Devices
from keras_vit.pixels import pixels_of

_SECONDS_BEFORE_BAR = 2  # what takes less needs no bar
_PIXELS, _MOST_IMAGES = 64 * 224 * 224, 256  # of a step, if nothing else is said


class Outputs(NamedTuple):
    """Of some of the images of a source, in the order of their index.

    Attributes:
        indices: (n,) int64, of the images in the source.
        labels: (n,) int64, their classes.
        values: (n, ...) float32, what the model gives.
    """

    indices: np.ndarray
    labels: np.ndarray
    values: np.ndarray


def outputs(
    model: keras.Model,
    source: Source,
    *,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    unreadable: Unreadable | None = None,
    start: int = 0,
    progress: bool = True,
) -> Iterator[Outputs]:
    """Yields what a model gives for the images of a source, batch by batch; images that cannot be
    read are left out.

    Over several devices the model must have been made in their scope, and every worker must call
    this; every worker gets all the outputs.

    Args:
        model: Takes images (B, H, W, 3) and has one output. Pixels are given in the range of
            `keras_vit.pixels.pixels_of`.
        source: The images.
        image_size: Side in pixels, or (height, width); default: that of the model.
        eval_crop: "resize" (the whole image, as in the paper) or "resize_shorter" (the middle).
        batch_size: Images of a step, over all devices; default: 64 of 224 x 224 pixels, as many
            more of smaller ones.
        devices: From `keras_vit.devices.connect`; default: the one that Keras uses.
        unreadable: Collects the images that cannot be read; default: a collector of its own, which
            logs.
        start: Index of the first image.
        progress: Show a bar on a terminal if it takes more than a moment.

    Raises:
        ValueError: If the model is none that takes such pixels, or an image cannot be read and
            `unreadable` is strict.

    Example:
        >>> from keras_vit.data import sources
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> sum(len(part.indices) for part in outputs(model, sources.digits("test"), batch_size=128))
        360
    """
    devices = Devices(kind="one", num_replicas=1) if devices is None else devices
    unreadable = Unreadable(source) if unreadable is None else unreadable
    size = _check(model, image_size)
    batch_size = _default_batch(size) if batch_size is None else batch_size
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: {batch_size}.")
    share = Share(
        rows=padded_rows(min(batch_size, source.num_examples), devices.num_replicas),
        num_workers=devices.num_workers,
        worker_index=devices.worker_index,
        num_parts=devices.local_parts,
    )
    crops, pixels = eval_crops(eval_crop, size), pixels_of(model)
    batches = evaluation_batches(
        source,
        # Resized levels are not rounded: `predict` and exported models give the same scores.
        [*crops, scale_to(pixels.low, pixels.high)],
        batch_size=share.rows,
        share=share,
        unreadable=unreadable,
        start=start,
    )
    bar = _bar(source.num_examples, start, shown=progress and devices.is_chief)
    forward, first = devices.forward(model), start
    with explain_unreadable(unreadable), bar:
        for batch in devices.distribute(batches):
            values, labels, weights = forward(batch)
            kept = np.flatnonzero(weights > 0)
            bar.update(min(share.rows, source.num_examples - first))
            yield Outputs(first + kept, labels[kept], values[kept])
            first += share.rows


def _check(model: keras.Model, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Returns the size of the images."""
    shape = _input_shape(model)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            f"The model must have one input and one output. Received: {len(model.inputs)} and "
            f"{len(model.outputs)}."
        )
    height, width, _ = shape
    if image_size is None:
        if height is None or width is None:
            raise ValueError("The model takes images of any size: pass `image_size`, in pixels.")
        return height, width
    size = (int(image_size),) * 2 if isinstance(image_size, numbers.Integral) else tuple(image_size)
    if min(size) < 1 or size != (height or size[0], width or size[1]):
        raise ValueError(
            f"The model takes images of {height} x {width} pixels. Received: "
            f"image_size={image_size}."
        )
    return size


def _input_shape(model: keras.Model) -> tuple:
    """(height, width, 3) of a functional model."""
    inputs = getattr(model, "inputs", None)
    if not inputs or not getattr(model, "operations", None):
        raise ValueError(
            "The model must be a functional one: built from `keras.Input`. A Sequential model `m` "
            "becomes one with "
            "`keras.Model(m.inputs[0], m.outputs[0])`, one of a class with `x = "
            "keras.Input((height, width, 3))` and "
            "`keras.Model(x, m(x))`."
        )
    shape = inputs[0].shape[1:]
    if len(shape) != 3 or shape[2] != 3:
        raise ValueError(
            f"The model must take images (B, H, W, 3). Received: inputs of shape {inputs[0].shape}."
        )
    return tuple(shape)


def _default_batch(size: tuple[int, int]) -> int:
    return max(1, min(_MOST_IMAGES, _PIXELS // (size[0] * size[1])))


def _bar(total: int, start: int, *, shown: bool):
    from tqdm import tqdm

    hidden = None if shown else True  # None: shown on a terminal alone
    return tqdm(
        total=total,
        initial=start,
        unit="image",
        disable=hidden,
        delay=_SECONDS_BEFORE_BAR,
        leave=False,
    )
