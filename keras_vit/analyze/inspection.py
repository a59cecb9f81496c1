"""What a model looks at in photographs: the command `analyze`.

Builds the model, reads the photographs as `predict` does, asks the model about each, and hands all
of it to `keras_vit.analyze.report`, which computes, draws and writes.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import imagenet, predict
from keras_vit.analyze.attention import (
    AttentionSummary,
    grid_of_model,
    has_attention,
    summarize_attention,
)
from keras_vit.analyze.report import FILES, write_report
from keras_vit.analyze.subject import Absent, Photo, Shown, Subject
from keras_vit.drawing import check_can_draw
from keras_vit.evaluate import classifier
from keras_vit.evaluate.accuracy import log_probabilities
from keras_vit.evaluate.heads import gives_classes, head_of, last_activation
from keras_vit.keras_file import is_file
from keras_vit.photos import Found, LeftOut, read_pixels
from keras_vit.pixels import Pixels, declare, describe_pixels, pixels_of
from keras_vit.train.logs import read_metrics
from keras_vit.variants import VARIANTS
from keras_vit.weights import source
from keras_vit.weights.download import without_secrets
from keras_vit.writing import to_one_line

_IMAGENET_21K = 21843
_LONGER_SIDE = 640  # pixels of a photo that is drawn
# of a step; there is a number for each pair of patches, in each head
_MOST_PHOTOS, _MOST_PAIRS = 16, 6_000_000


class Inspection(NamedTuple):
    """What came of it.

    Attributes:
        report: Path of `report.html`.
        photos: Every photo, with the answer or the problem.
        left_out: What else lies in the folder, with reasons.
        taken: Which pixels the model of a file takes, in a sentence.
    """

    report: Path
    photos: Sequence[Photo]
    left_out: Sequence[LeftOut] = ()
    taken: str = ""


def inspect(
    model: str | os.PathLike,
    images: str | os.PathLike,
    output: str | os.PathLike,
    *,
    weights: str | os.PathLike | None = None,
    image_size: tuple[int, int] | None = None,
    pixels: str | None = None,
    num_shown: int = 8,
    batch_size: int | None = None,
    progress: Callable[[int | None, int], None] = lambda done, total: None,
) -> Inspection:
    """Writes what a model looks at: `report.html` with all pictures, and every number as CSV.

    All photos are analysed, and `num_shown` of them, from all over the folder, are drawn. Those
    that cannot be read are named in the report and left out.

    Args:
        model: Name of a model, or a file `model.keras`.
        images: Folder of photographs; those in folders below it too.
        output: Folder for the report; an earlier report there is replaced.
        weights: Tag, file or URL; "none" for random ones. Of a file, the names of the classes are
            read from `classes.txt` beside it, and the curves of its training from `metrics.csv`.
        image_size: (height, width) in pixels; default: that of the weights.
        pixels: As in `keras_vit.evaluate.classifier.build`.
        num_shown: How many photos are drawn.
        batch_size: Photos of a step; default: 16, fewer where there are many patches.
        progress: Called with the number of photos that are done and of all, and with None at the
            end.

    Raises:
        ImportError: If matplotlib is absent; the message says what to install.
        OSError: If the weights cannot be had, or the report cannot be written.
        ValueError: If the model, the weights or the folder are not what they should be, or no photo
            can be read.
    """
    check_can_draw()
    if num_shown < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(f"At least one photo is needed. Received: {num_shown=}, {batch_size=}.")
    files, left_out = find_photos(images, output)
    network = _build(model, weights, image_size)
    if pixels is not None:
        declare(network, pixels)
    size = _size_of(network, image_size)
    chosen = _choose(files, size, num_shown)
    reading = _Reading(
        network=network,
        files=files,
        folder=Path(images).expanduser(),
        size=size,
        taken=pixels_of(network),
        names=classifier.class_names(model if weights is None else weights)
        if _has_classes(network)
        else None,
        progress=progress,
    )
    attention, absent = _attend(network, size, reading, batch_size)
    subject = Subject(
        title=_in_words(model) + ("" if weights is None else f", {_in_words(weights)}"),
        model=network,
        variant=str(model) if str(model) in VARIANTS else "",
        attention=attention,
        photos=reading.photos,
        shown=[
            Shown(photo=reading.photos[files.index(file)], seen=seen, picture=_in_own_aspect(file))
            for file, seen in chosen.items()
        ],
        curves=_curves(model if weights is None else weights),
        facts={"model": str(model)} | ({} if weights is None else {"weights": _whole(weights)}),
        left_out=[
            (to_one_line(os.path.relpath(left.path, reading.folder)), left.reason)
            for left in left_out
        ],
        absent=absent + ([Absent("Answers", _WITHOUT_ANSWERS)] if reading.names is None else []),
    )
    taken = describe_pixels(network, size) if is_file(model) else ""
    return Inspection(write_report(subject, output), reading.photos, left_out, taken)


_WITHOUT_ANSWERS = "The model ends before the classes, or was never trained to tell them apart."


def find_photos(images: str | os.PathLike, output: str | os.PathLike) -> Found:
    """Returns the photos in a folder and in the folders below it, as `predict` finds them, without
    earlier reports.

    Args:
        images: The folder.
        output: Where reports go: its pictures are no photographs.

    Raises:
        ValueError: If there is no such folder, or no photo in it.

    Example:
        >>> find_photos("holiday", "report")
        Traceback (most recent call last):
        ValueError: There is no folder holiday. Expected a folder of photographs.
    """
    folder, report = Path(images).expanduser(), Path(output).expanduser().resolve()
    if not folder.exists():
        raise ValueError(f"There is no folder {images}. Expected a folder of photographs.")
    if not folder.is_dir():
        raise ValueError(f"{images} is a file. Expected a folder of photographs, of one or more.")
    found = predict.find_photos([folder])
    drawn = [
        path for path in found.photos if path.name in FILES and path.parent.resolve() == report
    ]
    photos = [path for path in found.photos if path not in drawn]
    if not photos:
        raise ValueError(f"No photos in {images} but the pictures of an earlier report.")
    return Found(
        photos, found.left_out + [LeftOut(path, "a picture of an earlier report") for path in drawn]
    )


def _build(
    model: str | os.PathLike, weights: str | os.PathLike | None, image_size: tuple[int, int] | None
) -> keras.Model:
    """With the head, if the weights have one that was trained; else all before it."""
    if is_file(model):
        return classifier.build(model, weights, image_size)
    if weights is None or str(model) not in VARIANTS:
        return classifier.build(model, weights, image_size)  # which says what is wrong
    if str(weights).lower() == "none":
        return classifier.representation(model, "none", image_size)
    found = source.load(source.find(str(model), weights))
    has_head = "predictions/bias" in found.arrays and not found.head_is_zero
    try:
        return (classifier.build if has_head else classifier.representation)(
            model, weights, image_size
        )
    except ValueError as error:
        whole = Path(weights).with_name("model.keras")
        if not os.path.isfile(weights) or not whole.is_file():
            raise
        raise ValueError(
            f"{error}\nBeside it lies a model that brings its own shape: --model={whole}"
        ) from error


def _size_of(network: keras.Model, image_size: tuple[int, int] | None) -> tuple[int, int]:
    shapes = [tuple(tensor.shape) for tensor in network.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][-1] != 3:
        raise ValueError(
            f"The model must take color images, (B, H, W, 3), and nothing else. It takes {shapes}."
        )
    built = shapes[0][1:3]
    if image_size is not None and any(
        side not in (None, asked) for side, asked in zip(built, image_size, strict=True)
    ):
        raise ValueError(
            f"The model was saved for {built[0]} x {built[1]} pixels: leave out the image size."
        )
    if None in built and image_size is None:
        raise ValueError("The model takes images of any size: say which with the image size.")
    return image_size or built


def _has_classes(network: keras.Model) -> bool:
    """Whether it tells classes apart: a head that is all zeros, or an activation of another kind,
    does not.
    """
    if not gives_classes(network) or last_activation(network) not in ("linear", "softmax"):
        return False
    head = head_of(network)
    return head is None or bool(np.any(keras.ops.convert_to_numpy(head.kernel)))


def _choose(files: Sequence[Path], size: tuple[int, int], count: int) -> dict[Path, np.ndarray]:
    """Photos from all over the folder that can be read, in its order; another stands in for one
    that cannot.
    """
    spread = np.linspace(0, len(files) - 1, min(count, len(files))).round().astype(int).tolist()
    chosen, problem = {}, ""
    for number in [*spread, *(number for number in range(len(files)) if number not in spread)]:
        pixels, problem_here = _read(files[number], size)
        problem = problem or problem_here
        if pixels is not None:
            chosen[files[number]] = pixels
        if len(chosen) == count:
            break
    if not chosen:
        raise ValueError(
            f"None of the {len(files)} photographs can be read, such as {files[0]}: {problem}"
        )
    return dict(sorted(chosen.items()))


def _attend(
    network: keras.Model, size: tuple[int, int], reading: "_Reading", batch_size: int | None
) -> tuple[AttentionSummary | None, list[Absent]]:
    """Reads all photos; their attention, or why there is none."""
    absent, grid = [], (0, 0)
    if not has_attention(network):
        absent = [Absent("Attention", "The model has no Transformer blocks.")]
    else:
        try:
            grid = grid_of_model(network, size)
        except ValueError as error:
            absent = [Absent("Attention", str(error))]
    default = int(np.clip(_MOST_PAIRS // max(1, grid[0] * grid[1]) ** 2, 1, _MOST_PHOTOS))
    batches = reading.batches(batch_size or default)
    if not absent:
        return summarize_attention(network, batches), []
    for _ in batches:
        pass
    return None, absent


@dataclass(kw_only=True, eq=False)
class _Reading:
    """Photos on their way to the model, and what it says of each."""

    network: keras.Model
    files: Sequence[Path]
    folder: Path
    size: tuple[int, int]
    taken: Pixels
    names: Sequence[str] | None
    progress: Callable[[int | None, int], None]
    photos: list[Photo] = field(default_factory=list)

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """Yields (B, H, W, 3) float32 as the model takes them, B the count but for the last, of
        what can be read.
        """
        read: list[tuple[int, np.ndarray]] = []
        for number, file in enumerate(self.files):
            if number % count == 0:
                self.progress(number, len(self.files))
            pixels, problem = _read(file, self.size)
            self.photos.append(Photo(str(file.relative_to(self.folder)), problem=problem))
            read += [] if pixels is None else [(number, pixels)]
            if len(read) == count or (read and number == len(self.files) - 1):
                images = self.taken.from_centred(np.stack([pixels for _, pixels in read]))
                for (which, _), (answer, probability) in zip(read, self._ask(images), strict=True):
                    self.photos[which] = self.photos[which]._replace(
                        answer=answer, probability=probability
                    )
                yield images
                read = []
        self.progress(None, len(self.files))

    def _ask(self, images: np.ndarray) -> list[tuple[str, float]]:
        if self.names is None:
            return [("", float("nan"))] * len(images)
        given = self.network.predict_on_batch(images)
        if given.shape[1] == _IMAGENET_21K:  # trained with a sigmoid for each class
            scores = 1 / (1 + np.exp(-given.astype(np.float64)))
        else:
            scores = np.exp(log_probabilities(self.network, given))
        best = scores.argmax(axis=1)
        if len(self.names) == scores.shape[1]:
            names = [self.names[number] for number in best]
        elif scores.shape[1] in (1000, _IMAGENET_21K):
            names = [name for [(_, name, _)] in imagenet.decode_predictions(scores, 1)]
        else:
            names = [f"class {number}" for number in best]
        return list(zip(names, scores.max(axis=1).tolist(), strict=True))


def _read(file: Path, size: tuple[int, int]) -> tuple[np.ndarray | None, str]:
    """A photo, or what is wrong with it."""
    try:
        return predict.read_photo(file, size), ""
    except (ValueError, ImportError, OSError, MemoryError) as error:
        return None, str(error) or type(error).__name__


def _in_own_aspect(file: Path) -> np.ndarray:
    """(h, w, 3) in [-1, 1], the right way up, small enough to be drawn."""
    pixels = imagenet.preprocess_input(read_pixels(file).astype(np.float32), "channels_last")
    height, width = pixels.shape[:2]
    scale = min(1.0, _LONGER_SIDE / max(height, width))
    smaller = max(1, round(scale * height)), max(1, round(scale * width))
    resized = keras.ops.image.resize(
        pixels[None], smaller, antialias=True, data_format="channels_last"
    )
    return np.clip(keras.ops.convert_to_numpy(resized)[0], -1.0, 1.0)


def _curves(weights: str | os.PathLike) -> Mapping[str, Sequence[tuple[int, float]]]:
    """What a training of this package has logged beside the weights; another's file of that name is
    not read.
    """
    if (
        not os.path.isfile(weights)
        or not (folder := Path(weights).parent).joinpath("metrics.csv").is_file()
    ):
        return {}
    try:
        return read_metrics(folder)
    except ValueError:
        return {}


def _whole(weights: str | os.PathLike) -> str:
    return "random" if str(weights).lower() == "none" else str(weights)


def _in_words(place: str | os.PathLike) -> str:
    """A name or a tag as it is; of a file, the folder too, for many are called model.keras."""
    if str(place).lower() == "none":
        return "random weights"
    return (
        "/".join(Path(place).absolute().parts[-2:])
        if os.path.isfile(place)
        else without_secrets(str(place))
    )
