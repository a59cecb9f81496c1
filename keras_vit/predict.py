"""What is in photographs: files and folders → class names with scores.

Photographs are prepared as for the published evaluations of fine-tuned models: the whole picture, resized straight to
the size of the model, bilinear without antialiasing.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import applications, imagenet
from keras_vit.weights import source

BATCH_SIZE = 16
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
_EXIF_ORIENTATION = 0x0112


class Guess(NamedTuple):
    """A class and how sure the model is of it; `wordnet_id` is empty where classes have no names."""

    score: float
    name: str
    wordnet_id: str


class Answer(NamedTuple):
    """What a model says of a photograph, best first, or why the photograph cannot be read."""

    photo: Path
    guesses: list[Guess]
    problem: str | None


def find_photos(places: Iterable[str | os.PathLike]) -> list[Path]:
    """Returns the files as they are given, and the photographs in folders (not in folders of folders), sorted.

    Raises:
        ValueError: If a folder holds none.

    Example:
        >>> find_photos(["holiday.jpg"])
        [PosixPath('holiday.jpg')]
    """
    photos, empty = [], []
    for place in map(Path, places):
        if not place.is_dir():
            photos.append(place)
            continue
        inside = sorted(path for path in place.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
        photos += inside
        empty += [] if inside else [str(place)]
    if empty:
        raise ValueError(f"No photographs ({', '.join(_SUFFIXES)}) in {', '.join(empty)}.")
    return photos


def build(model: str, weights: str | os.PathLike, image_size: tuple[int, int] | None = None) -> keras.Model:
    """Builds a classifier that returns logits, with the head and the pooling that the weights have.

    Args:
        model: Name of a model.
        weights: Tag, file or URL.
        image_size: (height, width) in pixels; default: that of the weights.

    Raises:
        ValueError: If the weights are unknown, damaged, without a trained head or of another model.
        OSError: If the weights cannot be had.
    """
    found = source.find(model, weights)
    if found.row is not None:
        options = {"classes": found.row.classes}
    else:
        arrays = source.load(found).arrays
        if "predictions/bias" not in arrays:
            raise ValueError(f"{weights} has no classification head, so it predicts nothing.")
        options = {"classes": arrays["predictions/bias"].size}
        if "encoder_norm/gamma" in arrays and "class_token/cls" not in arrays:
            options["classifier"] = "map" if "map_head/probe" in arrays else "gap"
    shape = None if image_size is None else (*image_size, 3)
    return getattr(applications, model)(weights=weights, input_shape=shape, classifier_activation=None, **options)


def predict(classifier: keras.Model, photos: Iterable[Path], top: int = 5) -> Iterator[Answer]:
    """Yields an answer for each photograph, in order.

    Args:
        classifier: Model that returns logits.
        photos: Files in any format, mode and size that Pillow reads.
        top: Number of guesses.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classifier_activation=None)
        >>> next(predict(model, [Path("no.jpg")])).problem
        "[Errno 2] No such file or directory: 'no.jpg'"
    """
    photos = list(photos)
    for start in range(0, len(photos), BATCH_SIZE):
        _show_progress(start, len(photos))
        batch = photos[start : start + BATCH_SIZE]
        images, problems = {}, {}
        for photo in batch:
            try:
                images[photo] = read_photo(photo, classifier.input_shape[1:3])
            except Exception as error:  # Pillow has a kind of error for every kind of damage
                problems[photo] = str(error) or type(error).__name__
        scores = _scores(classifier, np.stack(list(images.values()))) if images else []
        guesses = dict(zip(images, _named(scores, top), strict=True))
        _show_progress(0, 0)
        for photo in batch:
            yield Answer(photo, guesses.get(photo, []), problems.get(photo))


def read_photo(path: str | os.PathLike, image_size: tuple[int, int]) -> np.ndarray:
    """Reads a photograph the right way up, as (height, width, 3) float32 pixels in [-1, 1].

    Grey, palette and 16-bit pictures become RGB, transparent ones are laid on white.

    Args:
        path: File in a format that Pillow reads.
        image_size: (height, width) in pixels.
    """
    pixels = _rgb(path)
    data_format = "channels_last"
    resized = keras.ops.image.resize(
        pixels[None], image_size, interpolation="bilinear", antialias=False, data_format=data_format
    )
    return imagenet.preprocess_input(keras.ops.convert_to_numpy(resized), data_format)[0]


def _rgb(path: str | os.PathLike) -> np.ndarray:
    """(H, W, 3) float32 in [0, 255]."""
    image = keras.utils.load_img(path, color_mode="grayscale")
    if image.mode in ("I;16", "I"):
        # Pillow would clip the 16 bits of such a picture to 8.
        grey = np.asarray(image, np.float32)
        pixels = np.repeat(grey[..., None] * (255 / 65535), 3, axis=-1)
    else:
        image = keras.utils.load_img(path, color_mode="rgba")
        rgba = np.asarray(image, np.float32)
        opacity = rgba[..., 3:] / 255
        pixels = rgba[..., :3] * opacity + 255 * (1 - opacity)
    return _upright(pixels, image.getexif().get(_EXIF_ORIENTATION, 1))
