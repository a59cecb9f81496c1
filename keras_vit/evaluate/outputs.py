"""Outputs of a model for the images of a source, each image once, on any number of devices.

All evaluations use this module.
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

_SECONDS_BEFORE_BAR = 2  # shorter evaluations show no progress bar
_PIXELS, _MOST_IMAGES = 64 * 224 * 224, 256  # limits of the default batch


class Outputs(NamedTuple):
    """Outputs for a batch of images, in the order of their indices.

    Attributes:
        indices: (n,) int64, indices of the images in the source.
        labels: (n,) int64, their classes.
        values: (n, ...) float32, outputs of the model.
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
    """Yields the outputs of a model for the images of a source, batch by batch.

    Unreadable images are skipped. On several devices, the model must have been created in their
    scope, and every worker must call this function; every worker receives all outputs.

    Args:
        model: Functional model with one input (B, H, W, 3) and one output. Pixels are scaled to the
            range of `keras_vit.pixels.pixels_of`.
        source: The images.
        image_size: Side in pixels, or (height, width); default: that of the model.
        eval_crop: "resize" (the whole image, as in the paper) or "resize_shorter" (a central crop).
        batch_size: Images per step, over all devices. Default: 64 of 224 x 224 pixels, or more if
            they are smaller.
        devices: From `keras_vit.devices.connect`. Default: the device that Keras uses.
        unreadable: Collects unreadable images. Default: they are logged.
        start: Index of the first image.
        progress: Shows a progress bar on a terminal if the evaluation takes more than 2 s.

    Raises:
        ValueError: If the model has other inputs or outputs, or an image cannot be read and
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
    batch_size = _choose_batch_size(size) if batch_size is None else batch_size
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
    bar = _make_bar(source.num_examples, start, shown=progress and devices.is_chief)
    forward, first = devices.forward(model), start
    with explain_unreadable(unreadable), bar:
        for batch in devices.distribute(batches):
            values, labels, weights = forward(batch)
            kept = np.flatnonzero(weights > 0)
            bar.update(min(share.rows, source.num_examples - first))
            yield Outputs(first + kept, labels[kept], values[kept])
            first += share.rows


def _check(model: keras.Model, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Checks model and image size, and returns the (height, width) of the images."""
    shape = _find_input_shape(model)
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


def _find_input_shape(model: keras.Model) -> tuple:
    """Returns the (height, width, 3) of a functional model."""
    inputs = getattr(model, "inputs", None)
    if not inputs or not getattr(model, "operations", None):
        raise ValueError(
            "The model must be functional, built from `keras.Input`. Convert a Sequential model "
            "`m` with `keras.Model(m.inputs[0], m.outputs[0])`, and a model of another class with "
            "`x = keras.Input((height, width, 3))` and `keras.Model(x, m(x))`."
        )
    shape = inputs[0].shape[1:]
    if len(shape) != 3 or shape[2] != 3:
        raise ValueError(
            f"The model must take images (B, H, W, 3). Received: inputs of shape {inputs[0].shape}."
        )
    return tuple(shape)


def _choose_batch_size(size: tuple[int, int]) -> int:
    return max(1, min(_MOST_IMAGES, _PIXELS // (size[0] * size[1])))


def _make_bar(total: int, start: int, *, shown: bool):
    from tqdm import tqdm

    hidden = None if shown else True  # None: shown only on a terminal
    return tqdm(
        total=total,
        initial=start,
        unit="image",
        disable=hidden,
        delay=_SECONDS_BEFORE_BAR,
        leave=False,
    )
