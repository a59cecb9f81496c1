"""The images on which exports are judged, and the calibration images for int8."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from keras_vit.data.pipeline import evaluation_batches
from keras_vit.data.reading import Unreadable, explain_unreadable
from keras_vit.data.sources import Source, fractals
from keras_vit.data.transforms import eval_crop, scale_to
from keras_vit.levels import to_levels, to_pixels
from keras_vit.writing import to_one_line

_BATCH = 16
# Standard deviation over images of each pixel value from 0 to 255, averaged over positions.
# Photographs of one data set have 50 to 70, digits 60, generated pictures 35.
_LEAST_SPREAD = 2.0


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Images of the size of a model, with labels if known.

    Attributes:
        images: (n, H, W, 3) float32 in [-1, 1].
        labels: (n,) int64, or None if unknown.
        name: Description of their origin, for reports.
        left_out: Files of the folder that were skipped, each with the reason.
    """

    images: np.ndarray
    labels: np.ndarray | None
    name: str
    left_out: tuple[tuple[str, str], ...] = ()

    def __post_init__(self):
        if self.images.ndim != 4 or self.images.shape[-1] != 3 or not len(self.images):
            raise ValueError(
                f"Images must have the shape (n, H, W, 3), n > 0. Received: {self.images.shape}."
            )
        if self.images.dtype != np.float32 or np.abs(self.images).max() > 1.001:
            raise ValueError("Pixels must be float32 in [-1, 1], or uint8.")

    def pixels(self) -> np.ndarray:
        """Returns the images as (n, H, W, 3) uint8, rounded."""
        return to_levels(self.images)

    def those(self, chosen: np.ndarray) -> "Examples":
        """Returns the images selected by an array of indices or booleans."""
        labels = None if self.labels is None else self.labels[chosen]
        return replace(self, images=self.images[chosen], labels=labels)

    def fingerprints(self) -> list[str]:
        """Returns a hash for each image; images with equal rounded levels have equal hashes."""
        return [hashlib.sha256(image.tobytes()).hexdigest()[:16] for image in self.pixels()]

    def fingerprint(self) -> str:
        """Returns one hash for all images in their order."""
        return hashlib.sha256("".join(self.fingerprints()).encode()).hexdigest()

    def are_alike(self) -> bool:
        """Returns whether the images differ so little that they are weak evidence about others."""
        return float(self.pixels().std(axis=0, dtype=np.float32).mean()) < _LEAST_SPREAD


def take(
    images: Examples | Source | np.ndarray | None,
    image_size: tuple[int, int],
    count: int,
    *,
    crop: str = "resize",
) -> Examples:
    """Returns up to `count` images of the size of a model.

    Images are taken at equal distances over the whole source, since the images of a folder are
    sorted by class. Generated pictures are fractals, which have edges, colours and textures.

    Args:
        images: A source, an array (n, H, W, 3) of uint8 or of floats in [-1, 1], examples, or None
            for generated pictures. Arrays and examples must have the right size.
        image_size: (height, width) in pixels.
        count: Maximum number of images.
        crop: Policy by which images of a source are resized and cropped, as in
            `keras_vit.data.transforms.eval_crop`.

    Raises:
        ValueError: If an array has another size or range, a source is empty, or too many of its
            images cannot be read.

    Example:
        >>> examples = take(None, (32, 48), 5)
        >>> examples.images.shape, examples.name
        ((5, 32, 48, 3), '5 generated pictures')
    """
    if images is None:
        side = max(image_size)
        drawn = take(
            fractals(count, images_per_class=1, image_size=side), image_size, count, crop=crop
        )
        return Examples(images=drawn.images, labels=None, name=f"{count} generated pictures")
    if isinstance(images, Source):
        return _from_source(
            images.subset(_space_evenly(images.num_examples, count)), image_size, crop
        )
    given = images if isinstance(images, Examples) else _from_array(np.asarray(images))
    if given.images.shape[1:3] != tuple(image_size):
        raise ValueError(
            f"The images must have the size of the model, {image_size[0]} x {image_size[1]} "
            f"pixels. Received: {given.images.shape[1]} x {given.images.shape[2]}."
        )
    return given.those(_space_evenly(len(given.images), count))


def set_aside(examples: Examples, count: int) -> tuple[Examples | None, Examples]:
    """Splits images into calibration images for int8, and images on which every file is judged.

    Copies of an image count once; copies of a calibration image are not judged. The first part is
    None if it would be empty: for a count of 0, and for copies of a single image.

    Args:
        examples: All images.
        count: Maximum number of calibration images. They are spread over all images, and are at
            most half of them.

    Example:
        >>> calibration, judged = set_aside(take(None, (32, 32), 5), 2)
        >>> len(calibration.images), len(judged.images)
        (2, 3)
    """
    words = np.array(examples.fingerprints())
    different = np.sort(np.unique(words, return_index=True)[1])
    count = min(count, len(different) // 2)
    if not count:
        return None, examples
    chosen = different[np.arange(count) * len(different) // count]
    return examples.those(chosen), examples.those(~np.isin(words, words[chosen]))


def _space_evenly(num_images: int, count: int) -> np.ndarray:
    return np.unique(np.linspace(0, num_images - 1, count).round().astype(np.int64))


def _from_array(images: np.ndarray) -> Examples:
    is_uint8 = images.dtype == np.uint8
    floats = images.astype(np.float32)
    scaled = to_pixels(floats) if is_uint8 else floats
    return Examples(images=scaled, labels=None, name="the given images")


def _from_source(source: Source, image_size: tuple[int, int], crop: str) -> Examples:
    unreadable = Unreadable(source)
    batches = evaluation_batches(
        source,
        [*eval_crop(crop, image_size), scale_to(-1, 1)],
        batch_size=_BATCH,
        unreadable=unreadable,
    )
    with explain_unreadable(unreadable):
        parts = [tuple(part.numpy() for part in batch) for batch in batches]
    images, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Unreadable images have weight 0, like the padding of the last batch.
    read = weights > 0
    known = labels[read].astype(np.int64)
    return Examples(
        images=images[read].astype(np.float32),
        labels=None if (known < 0).any() else known,  # a label below 0 is unknown
        name=source.name,
        left_out=(
            *((to_one_line(str(path)), reason) for path, reason in source.left_out),
            *unreadable.reasons.items(),
        ),
    )
