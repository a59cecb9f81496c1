"""Checked batches of images, from an array or from an iterable of batches."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_vit.pixels import Pixels

# Allows images that were standardized instead of scaled to [-1, 1], but not 0 to 255.
_LARGEST_PIXEL = 8.0
_LEAST_OF_UNIT = -0.25  # allows the overshoot of resizing, but not images in [-1, 1]


class Batch(NamedTuple):
    """A batch of images.

    Attributes:
        images: (B, H, W, C) uint8 or float32.
        kept: (B,) bool, False for padding.
    """

    images: np.ndarray
    kept: np.ndarray


class Taken(NamedTuple):
    """The images that a model takes.

    Attributes:
        shape: (H, W, C); H and W are None if the model takes any size.
        pixels: Range of the pixels. If None, the range is unknown: floats are not checked, and
            uint8 is refused.
    """

    shape: tuple[int | None, int | None, int]
    pixels: Pixels | None


def is_array(images: Any) -> bool:
    """Returns whether `images` is an array of all images, not an iterable of batches.

    Example:
        >>> images = np.zeros((5, 32, 32, 3))
        >>> is_array(images), is_array([images])
        (True, False)
    """
    return hasattr(images, "shape") and hasattr(images, "dtype")


def batches_of(
    images: Any, batch_size: Callable[[tuple[int, int]], int], taken: Taken
) -> Iterator[Batch]:
    """Yields batches of images, all of one size.

    Args:
        images: An array (B, H, W, C); or an iterable of such arrays or of tuples (images, labels,
            weights), where images with weight 0 are padding. Batches of an iterable are not split.
        batch_size: Function from (height, width) to the batch size for an array.
        taken: The images that the model takes.

    Raises:
        ValueError: If the images are of another kind.

    Example:
        >>> taken = Taken((32, 32, 3), None)
        >>> [len(batch.images) for batch in batches_of(np.zeros((5, 32, 32, 3)), lambda size: 2, taken)]
        [2, 2, 1]
    """
    first = None
    for batch in _split(images, batch_size, taken) if is_array(images) else _unpack(images):
        found = Batch(_check_images(batch.images, taken), batch.kept)
        if not len(found.images):
            continue
        first = found.images.shape[1:] if first is None else first
        if found.images.shape[1:] != first:
            raise ValueError(
                f"All images must be of one size, since distances are averaged in pixels. "
                f"Received: {first[:2]}, then {found.images.shape[1:3]}. Resize them, or analyze "
                f"each size separately."
            )
        yield found


def check_shape(shape: tuple, taken: Taken) -> None:
    """Raises a ValueError if the model does not take images of this shape."""
    expected = tuple("any" if size is None else size for size in taken.shape)
    if len(shape) == 4 and all(
        want in ("any", size) for want, size in zip(expected, shape[1:], strict=True)
    ):
        return
    advice = {
        3: " For one image, pass `image[None]`; for a data set of single images, `dataset.batch(16)`.",
        4: " Resize them, or build the model for their size.",
    }
    raise ValueError(
        f"The images must have the shape (B, H, W, C), with (H, W, C) = {expected}. Received: the "
        f"shape {tuple(shape)}." + advice.get(len(shape), "")
    )


def _split(
    images: Any, batch_size: Callable[[tuple[int, int]], int], taken: Taken
) -> Iterator[Batch]:
    check_shape(images.shape, taken)
    rows = batch_size((images.shape[1], images.shape[2]))
    if rows < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: {rows}.")
    for start in range(0, len(images), rows):
        part = np.asarray(images[start : start + rows])
        yield Batch(part, np.ones(len(part), bool))


def _unpack(batches: Any) -> Iterator[Batch]:
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | dict):
        raise ValueError(
            "Images must be an array (B, H, W, C), or an iterable of such arrays or of tuples "
            f"(images, labels, weights). Received: {type(batches).__name__}."
        )
    for batch in batches:
        _check_batch(batch)
        labels_and_weights: tuple = ()
        if isinstance(batch, tuple | list) and 0 < len(batch) <= 3 and np.ndim(batch[0]) == 4:
            batch, *labels_and_weights = batch
        images = np.asarray(batch)
        weights = labels_and_weights[1] if len(labels_and_weights) == 2 else None
        kept = (
            np.ones(len(images) if images.ndim else 0, bool)
            if weights is None
            else np.asarray(weights) > 0
        )
        if images.ndim and kept.shape != (len(images),):
            raise ValueError(
                f"There must be one weight for each image. Received: weights {kept.shape} for "
                f"{len(images)} images."
            )
        yield Batch(images, kept)


def _check_batch(batch: Any) -> None:
    """Raises a ValueError for the elements of data sets that have another structure."""
    if isinstance(batch, dict):
        image, label = (
            next((key for key in batch if name in str(key).lower()), name)
            for name in ("image", "label")
        )
        raise ValueError(
            "Batches must be arrays (B, H, W, C) or tuples (images, labels, weights). Received: a "
            f"dict with the keys {[*batch]}. Convert it, such as with "
            f"`dataset.map(lambda batch: (batch[{image!r}], batch[{label!r}]))`."
        )
    if not isinstance(batch, tuple | list):
        return
    if 0 < len(batch) <= 3 and np.ndim(batch[0]) == 4:  # labels may have any structure
        return
    shapes = [tuple(np.shape(part)) for part in batch]
    if len(set(shapes)) <= 1:
        return
    advice = " Batch the data set: `dataset.batch(16)`." if len(shapes[0]) == 3 else ""
    raise ValueError(
        "Batches must be arrays (B, H, W, C) or tuples (images, labels, weights). Received: a "
        f"{type(batch).__name__} of the shapes {', '.join(map(str, shapes))}.{advice}"
    )


def _check_images(images: np.ndarray, taken: Taken) -> np.ndarray:
    check_shape(images.shape, taken)
    if not len(images):
        return images
    if images.dtype == np.uint8:
        if taken.pixels is None:
            raise ValueError(
                "The range of pixels that the model takes is unknown: declare it with "
                "`keras_vit.pixels.declare`, or pass floats in that range. Received: uint8."
            )
        return images
    if images.dtype.kind not in "fV":  # V: bfloat16
        raise ValueError(
            f"Images must be uint8 from 0 to 255, or floats. Received: {images.dtype}."
        )
    images = images.astype(np.float32, copy=False)
    low, high = float(images.min()), float(images.max())
    if not np.isfinite([low, high]).all():
        raise ValueError(f"Pixels must be finite. Received: pixels from {low} to {high}.")
    if taken.pixels is None:
        return images
    if taken.pixels.are_levels and low < 0:
        raise ValueError(
            f"The model scales pixels itself: pass them from 0 to 255. Received: pixels down to "
            f"{low:g}."
        )
    if taken.pixels.are_levels and 0 < high <= 1 and (images != np.round(images)).any():
        raise ValueError(
            f"The model scales pixels itself: pass them from 0 to 255. Received: pixels from "
            f"{low:g} to {high:g}, which seem to be scaled already: pass `255 * images`."
        )
    if taken.pixels.low == 0 and not taken.pixels.are_levels and low < _LEAST_OF_UNIT:
        raise ValueError(
            f"Float images must be in [0, {taken.pixels.high:g}]. Received: pixels from {low:g} to "
            f"{high:g}. For images in [-1, 1], pass `(images + 1) / 2`."
        )
    if not taken.pixels.are_levels and max(-low, high) > _LARGEST_PIXEL:
        raise ValueError(
            f"Float images must be in [{taken.pixels.low:g}, {taken.pixels.high:g}]. Received: "
            f"pixels from {low:g} to {high:g}. Pass pixels from 0 to 255 as uint8, or through "
            f"`keras_vit.preprocess_input`."
        )
    return images
