"""Images as an analysis takes them: an array of all, or batches from wherever they come; checked
before use.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_vit.pixels import Pixels

# of images that were standardized, not scaled to [-1, 1]; 0 to 255 is far beyond
_LARGEST_PIXEL = 8.0


class Batch(NamedTuple):
    """Some images.

    Attributes:
        images: (B, H, W, C) uint8 or float32.
        kept: (B,) bool, False for rows that only fill up.
    """

    images: np.ndarray
    kept: np.ndarray


class Taken(NamedTuple):
    """Which images a model takes.

    Attributes:
        shape: (H, W, C); H and W are None where any size will do.
        pixels: Their range; None if it cannot be known: then floats are taken as they are, and no
            uint8.
    """

    shape: tuple[int | None, int | None, int]
    pixels: Pixels | None


def is_array(images: Any) -> bool:
    """Returns whether these are all images, and not an iterable of batches.

    Example:
        >>> images = np.zeros((5, 32, 32, 3))
        >>> is_array(images), is_array([images])
        (True, False)
    """
    return hasattr(images, "shape") and hasattr(images, "dtype")


def batches_of(
    images: Any, batch_size: Callable[[tuple[int, int]], int], taken: Taken
) -> Iterator[Batch]:
    """Yields images batch by batch, all of one size.

    Args:
        images: An array (B, H, W, C); or an iterable of such arrays or of tuples (images, labels,
            weights), of which an image with weight 0 only fills up. Batches come as they are.
        batch_size: (height, width) to the images of a batch that is cut from an array.
        taken: What the images must be.

    Raises:
        ValueError: If they are something else.

    Example:
        >>> taken = Taken((32, 32, 3), None)
        >>> [len(batch.images) for batch in batches_of(np.zeros((5, 32, 32, 3)), lambda size: 2, taken)]
        [2, 2, 1]
    """
    first = None
    for batch in _cut(images, batch_size, taken) if is_array(images) else _given(images):
        found = Batch(_checked(batch.images, taken), batch.kept)
        if not len(found.images):
            continue
        first = found.images.shape[1:] if first is None else first
        if found.images.shape[1:] != first:
            raise ValueError(
                f"All images must be of one size, or there is no mean in pixels. Received: "
                f"{first[:2]}, then "
                f"{found.images.shape[1:3]}. Resize them, or analyse each size by itself."
            )
        yield found


def check_shape(shape: tuple, taken: Taken) -> None:
    """Raises ValueError if images of this shape are none that are taken."""
    expected = tuple("any" if size is None else size for size in taken.shape)
    if len(shape) == 4 and all(
        want in ("any", size) for want, size in zip(expected, shape[1:], strict=True)
    ):
        return
    advice = {
        3: " Of one image, pass `image[None]`.",
        4: " Resize them, or build the model for their size.",
    }
    raise ValueError(
        f"The images must be of the shape (B, H, W, C), and each {expected}. Received: the shape "
        f"{tuple(shape)}." + advice.get(len(shape), "")
    )


def _cut(
    images: Any, batch_size: Callable[[tuple[int, int]], int], taken: Taken
) -> Iterator[Batch]:
    check_shape(images.shape, taken)
    rows = batch_size((images.shape[1], images.shape[2]))
    if rows < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: {rows}.")
    for start in range(0, len(images), rows):
        part = np.asarray(images[start : start + rows])
        yield Batch(part, np.ones(len(part), bool))


def _given(batches: Any) -> Iterator[Batch]:
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | dict):
        raise ValueError(
            "Images must be an array (B, H, W, C), or an iterable of such arrays or of tuples "
            "(images, labels, "
            f"weights). Received: {type(batches).__name__}."
        )
    for batch in batches:
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
                f"One weight for each image, please. Received: {kept.shape} for {len(images)} "
                f"images."
            )
        yield Batch(images, kept)


def _checked(images: np.ndarray, taken: Taken) -> np.ndarray:
    check_shape(images.shape, taken)
    if not len(images):
        return images
    if images.dtype == np.uint8:
        if taken.pixels is None:
            raise ValueError(
                "Which pixels the model takes cannot be known: declare it with "
                "`keras_vit.pixels.declare`, or pass "
                "floats as it takes them. Received: uint8."
            )
        return images
    if images.dtype.kind not in "fV":  # V: bfloat16
        raise ValueError(
            f"Images must be of type uint8, from 0 to 255, or float. Received: {images.dtype}."
        )
    images = images.astype(np.float32, copy=False)
    low, high = float(images.min()), float(images.max())
    if not np.isfinite([low, high]).all():
        raise ValueError(f"Images must be finite. Received: pixels from {low} to {high}.")
    if taken.pixels is None:
        return images
    if taken.pixels.are_levels and low < 0:
        raise ValueError(
            f"The model scales pixels itself: pass them from 0 to 255. Received: pixels down to "
            f"{low:g}."
        )
    if not taken.pixels.are_levels and max(-low, high) > _LARGEST_PIXEL:
        raise ValueError(
            f"Float images must be in [{taken.pixels.low:g}, {taken.pixels.high:g}]. Received: "
            f"pixels from {low:g} to "
            f"{high:g}. Pass those from 0 to 255 as uint8, or through `keras_vit.preprocess_input`."
        )
    return images
