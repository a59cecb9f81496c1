"""The work of `keras-vit predict`: classes and scores of photographs in files and folders.

Photographs are preprocessed as in the published evaluations of fine-tuned models: the whole picture
is resized to the size of the model, bilinearly and without antialiasing.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit import imagenet
from keras_vit.evaluate.accuracy import log_probabilities
from keras_vit.evaluate.heads import gives_classes, why_no_classes
from keras_vit.photos import SUFFIXES, Found, LeftOut, read_pixels, walk
from keras_vit.pixels import Pixels, pixels_of
from keras_vit.writing import group_by_reason, to_one_line

BATCH_SIZE = 16
_IMAGENET_21K = 21843


class Guess(NamedTuple):
    """A class with its score; `wordnet_id` is "" for classes that are not ImageNet's."""

    score: float
    name: str
    wordnet_id: str


class Answer(NamedTuple):
    """The guesses for a photograph, best first, or the reason why it cannot be read."""

    photo: Path
    guesses: list[Guess]
    problem: str | None


def find_photos(places: Iterable[str | os.PathLike]) -> Found:
    """Returns the given files, whatever their names, and the photos in folders and subfolders.

    Returns:
        The photos, and the files of the folders that are left out, with reasons.

    Raises:
        ValueError: If none of the places exists, or they contain no photos. The message lists the
            files that were left out.

    Example:
        >>> find_photos(["holiday.jpg"])
        Traceback (most recent call last):
        ValueError: There is no such file or folder: holiday.jpg.
    """
    places, photos, left_out, empty = [Path(place).expanduser() for place in places], [], [], []
    if not any(place.exists() for place in places):
        raise ValueError(f"There is no such file or folder: {', '.join(map(str, places))}.")
    for place in places:
        found = walk(place) if place.is_dir() else Found([place], [])
        photos += found.photos
        left_out += found.left_out
        empty += [] if found.photos else [LeftOut(place, "a folder without photos")]
    if not photos:
        where = ", ".join(map(str, places))
        raise ValueError(
            f"No photos ({', '.join(SUFFIXES)}) in {where} or its subfolders. "
            f"{group_by_reason(left_out)}"
        )
    return Found(photos, left_out + empty)


def predict(
    classifier: keras.Model,
    photos: Sequence[Path],
    top: int = 5,
    progress: Callable[[int], None] = lambda done: None,
    names: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
) -> Iterator[Answer]:
    """Yields an answer for each photograph, in order.

    Args:
        classifier: Model that returns logits, a softmax or sigmoids. Pixels are scaled to the range
            of `keras_vit.pixels.pixels_of`.
        photos: Files of any format in `keras_vit.photos.FORMATS`.
        top: Number of guesses.
        progress: Called before each batch with the number of finished photographs.
        names: Names of the classes. If their number differs from the model's, ImageNet's names or
            numbers are used.
        image_size: (height, width) in pixels. Required if the model takes any size.

    Raises:
        ValueError: If the model is not a classifier, or its range of pixels is unknown.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classifier_activation=None)
        >>> next(predict(model, [Path("no.jpg")])).problem
        "[Errno 2] No such file or directory: ...no.jpg'"
    """
    size, pixels = image_size or tuple(classifier.input_shape[1:3]), pixels_of(classifier)
    if None in size:
        raise ValueError(
            "The model takes images of any size: pass `image_size`, (height, width) in pixels."
        )
    if not gives_classes(classifier, len(names)):
        raise ValueError(why_no_classes(classifier))
    for start in range(0, len(photos), BATCH_SIZE):
        progress(start)
        batch = photos[start : start + BATCH_SIZE]
        read = [_try_to_read(photo, size) for photo in batch]
        images = [image for image, _ in read if image is not None]
        guesses = iter(
            _rank_classes(_compute_scores(classifier, np.stack(images), pixels), top, names)
            if images
            else []
        )
        for photo, (image, problem) in zip(batch, read, strict=True):
            yield Answer(photo, [] if image is None else next(guesses), problem)


FORMATS = ("text", "csv", "json")
_HEADER = ("file", "rank", "class", "score", "problem")


def written(answers: Iterable[Answer], kind: str) -> Iterator[str]:
    """Formats answers as text that ends with a line break.

    Args:
        answers: Answers of `predict`.
        kind: "text": each photograph followed by its guesses, without unreadable ones; "csv": a
            header, and a row for each guess or problem; "json": one object per photograph and line.

    Example:
        >>> answer = Answer(Path("cat.jpg"), [Guess(0.5, "tabby", "")], None)
        >>> print(*written([answer], "csv"), sep="", end="")
        file,rank,class,score,problem
        cat.jpg,1,tabby,0.5,
    """
    if kind == "csv":
        yield _format_row(_HEADER)
    for answer in answers:
        yield {"text": _format_text, "csv": _format_rows, "json": _format_object}[kind](answer)


def tell(
    answers: Iterable[Answer],
    kind: str,
    progress: Callable[[int | None], None] = lambda done: None,
    left_out: Sequence[LeftOut] = (),
) -> int:
    """Prints answers, and on stderr unreadable photos and left-out files.

    Args:
        answers, kind: As in `written`.
        progress: Called with None before a line is printed.
        left_out: Files that were left out, with reasons.

    Returns:
        The number of unreadable photos.
    """
    total, unreadable = 0, []

    def told() -> Iterator[Answer]:
        nonlocal total
        for answer in answers:
            progress(None)
            total += 1
            if answer.problem is not None:
                unreadable.append(LeftOut(answer.photo, answer.problem))
                said = (
                    f"cannot read {to_one_line(str(answer.photo))}: {to_one_line(answer.problem)}"
                )
                print(said, file=sys.stderr)
            yield answer

    for text in written(told(), kind):
        print(text, end="")
    if total > 1 and (unreadable or left_out):
        print(f"{total - len(unreadable):,} of {total:,} photos were read", file=sys.stderr)
    if left_out or (total > 1 and unreadable):
        print(group_by_reason([*left_out, *unreadable]), file=sys.stderr)
    return len(unreadable)


def _format_text(answer: Answer) -> str:
    if answer.problem is not None:
        return ""
    width = max(len(guess.name) for guess in answer.guesses)
    lines = [
        f"  {guess.score:6.4f}  {guess.name:<{width}}  {guess.wordnet_id}".rstrip()
        for guess in answer.guesses
    ]
    return "\n".join([to_one_line(str(answer.photo)), *lines, ""])


def _format_rows(answer: Answer) -> str:
    """Formats an answer as rows of CSV in UTF-8; other bytes of file names are escaped."""
    if answer.problem is not None:
        return _format_row([answer.photo, "", "", "", to_one_line(answer.problem)])
    guesses = enumerate(answer.guesses, start=1)
    return "".join(
        _format_row([answer.photo, rank, guess.name, guess.score, ""]) for rank, guess in guesses
    )


def _format_row(cells: Sequence[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _format_object(answer: Answer) -> str:
    """Formats an answer as a line of JSON in ASCII, from which `os.fsencode` restores file names."""
    guesses = [
        {"class": guess.name, "score": guess.score, "wordnet_id": guess.wordnet_id}
        for guess in answer.guesses
    ]
    problem = None if answer.problem is None else to_one_line(answer.problem)
    return json.dumps({"file": str(answer.photo), "guesses": guesses, "problem": problem}) + "\n"


def _try_to_read(
    photo: Path, image_size: tuple[int, int]
) -> tuple[np.ndarray, None] | tuple[None, str]:
    """Reads a photograph, and returns it or the problem."""
    try:
        return read_levels(photo, image_size), None
    except (ValueError, ImportError, OSError, MemoryError) as error:
        return None, str(error) or type(error).__name__


def read_photo(path: str | os.PathLike, image_size: tuple[int, int]) -> np.ndarray:
    """Reads a photo as (height, width, 3) float32 pixels in [-1, 1]. See `read_levels`."""
    return imagenet.preprocess_input(read_levels(path, image_size), "channels_last")


def read_levels(path: str | os.PathLike, image_size: tuple[int, int]) -> np.ndarray:
    """Reads a photo and resizes it to (height, width, 3) float32 levels, 0 to 255, not rounded.

    Args:
        path: File of any format in `keras_vit.photos.FORMATS`.
        image_size: (height, width) in pixels.

    Raises:
        ValueError: If the file is not a photo, or damaged. The message has one line.
        ImportError: If it is HEIC and `pillow-heif` is absent.
        OSError: If the file cannot be read from the disk.
    """
    levels = read_pixels(path).astype(np.float32)
    resized = keras.ops.image.resize(
        levels[None],
        image_size,
        interpolation="bilinear",
        antialias=False,
        data_format="channels_last",
    )
    return np.array(keras.ops.convert_to_numpy(resized))[0]


def _compute_scores(classifier: keras.Model, levels: np.ndarray, pixels: Pixels) -> np.ndarray:
    """Returns the scores of all classes, (B, Y)."""
    values = classifier.predict_on_batch(pixels.from_levels(levels))
    return np.exp(log_probabilities(classifier, values))


def _rank_classes(scores: np.ndarray, top: int, names: Sequence[str] = ()) -> list[list[Guess]]:
    if len(names) != scores.shape[1] and scores.shape[1] in (1000, _IMAGENET_21K):
        decoded = imagenet.decode_predictions(scores, top)
        return [
            [Guess(float(score), name, wordnet_id) for wordnet_id, name, score in row]
            for row in decoded
        ]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    known = (
        list(names)
        if len(names) == scores.shape[1]
        else [f"class {i}" for i in range(scores.shape[1])]
    )
    return [
        [Guess(float(row[i]), known[i], "") for i in order]
        for row, order in zip(scores, best, strict=True)
    ]
