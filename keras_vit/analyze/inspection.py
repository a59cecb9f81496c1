"""The work of `keras-vit analyze`: construction of a model, reading and classes of photographs.

`keras_vit.analyze.report` computes, draws and writes the report. Photographs are read as by
`predict`.
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
from keras_vit.evaluate.heads import gives_classes, head_of, outputs_of, why_no_classes
from keras_vit.keras_file import is_file
from keras_vit.photos import Found, LeftOut, read_pixels
from keras_vit.pixels import Pixels, declare, describe_pixels, pixels_of
from keras_vit.train.logs import read_metrics
from keras_vit.variants import VARIANTS
from keras_vit.weights import source
from keras_vit.weights.secrets import without_secrets
from keras_vit.writing import to_one_line

_IMAGENET_21K = 21843
# Files that show that a folder contains a report. A report that failed has no page.
_OF_REPORTS = ("report.html", *(name for name in FILES if name.endswith(".csv")))
_LONGER_SIDE = 640  # of a drawn photo, in pixels
# Per step. The attention of each head has one number for each pair of patches.
_MOST_PHOTOS, _MOST_PAIRS = 16, 6_000_000


class Inspection(NamedTuple):
    """Result of an analysis.

    Attributes:
        report: Path of `report.html`.
        photos: Every photo, with its answer or problem.
        left_out: Skipped files of the folder, with reasons.
        taken: Sentence on the range of pixels that a model from a file takes, or "".
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
    """Writes a report on a model: `report.html` with all figures, and tables of numbers as CSV.

    All photos are analyzed, and `num_shown` of them, spread over the folder, are drawn. Unreadable
    photos are listed in the report.

    Args:
        model: Name of a model, or a file `model.keras`.
        images: Folder of photographs, including its subfolders, or a single photo.
        output: Folder of the report; an earlier report in it is replaced.
        weights: Tag, file or URL; "none" for random weights. In the folder of a file, class names
            are read from `classes.txt` and learning curves from `metrics.csv`.
        image_size: (height, width) in pixels; default: that of the weights.
        pixels: As in `keras_vit.evaluate.classifier.build`.
        num_shown: Number of photos that are drawn.
        batch_size: Photos per step. Default: 16, or fewer if there are many patches.
        progress: Called with the number of finished photos and the total, and with None at the end.

    Raises:
        ImportError: If matplotlib is absent; the message names the package to install.
        OSError: If the weights cannot be read or downloaded, or the report cannot be written.
        ValueError: If the model, the weights or the folder are invalid, or no photo can be read.
    """
    check_can_draw()
    if num_shown < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(
            f"`num_shown` and `batch_size` must be at least 1. Received: {num_shown=}, "
            f"{batch_size=}."
        )
    weights = None if weights is None else os.path.expanduser(weights)
    files, left_out = find_photos(images, output)
    network = _build(model, weights, image_size)
    if pixels is not None:
        declare(network, pixels)
    size = _choose_size(network, image_size)
    chosen = _choose(files, size, num_shown)
    names = classifier.names_for(network, model if weights is None else weights)
    without_answers = _why_no_answers(network, len(names))
    reading = _Reading(
        network=network,
        files=files,
        folder=_folder_of(images),
        size=size,
        taken=pixels_of(network),
        names=None if without_answers else names,
        progress=progress,
    )
    attention, absent = _attend(network, size, reading, batch_size)
    subject = Subject(
        title=_make_title(model) + ("" if weights is None else f", {_make_title(weights)}"),
        model=network,
        variant=str(model) if str(model) in VARIANTS else "",
        attention=attention,
        photos=reading.photos,
        shown=[
            Shown(
                photo=reading.photos[files.index(file)], seen=seen, picture=_read_for_drawing(file)
            )
            for file, seen in chosen.items()
        ],
        curves=_read_curves(model if weights is None else weights),
        facts={"model": str(model)}
        | ({} if weights is None else {"weights": _name_weights(weights)}),
        left_out=[
            (to_one_line(os.path.relpath(left.path, reading.folder)), left.reason)
            for left in left_out
        ],
        absent=absent + ([Absent("Predictions", without_answers)] if without_answers else []),
    )
    taken = describe_pixels(network, size) if is_file(model) else ""
    return Inspection(write_report(subject, output), reading.photos, left_out, taken)


def find_photos(images: str | os.PathLike, output: str | os.PathLike) -> Found:
    """Finds the photos in a folder and its subfolders, as `predict` does, without figures of reports.

    Args:
        images: The folder, or a single photo.
        output: Folder of the report. Its figures, and those of reports in other folders, are not
            photographs.

    Raises:
        ValueError: If there is no such folder or photo, or the folder contains no photos.

    Example:
        >>> find_photos("holiday", "report")
        Traceback (most recent call last):
        ValueError: There is no folder or photo holiday. Expected a folder of photographs.
    """
    folder, report = Path(images).expanduser(), Path(output).expanduser().resolve()
    if not folder.exists():
        raise ValueError(f"There is no folder or photo {images}. Expected a folder of photographs.")
    found = predict.find_photos([folder])
    drawn = [path for path in found.photos if _is_drawn(path, report)]
    photos = [path for path in found.photos if path not in drawn]
    if not photos:
        raise ValueError(f"{images} contains no photos except the figures of an earlier report.")
    return Found(
        photos, found.left_out + [LeftOut(path, "a figure of an earlier report") for path in drawn]
    )


def _is_drawn(path: Path, report: Path) -> bool:
    """Returns whether a photo is a figure of the report in the folder `report`, or of another one,
    whose page or tables are in the same folder.
    """
    folder = path.parent
    return path.name in FILES and (
        folder.resolve() == report or any((folder / name).exists() for name in _OF_REPORTS)
    )


def _folder_of(images: str | os.PathLike) -> Path:
    path = Path(images).expanduser()
    return path if path.is_dir() else path.parent


def _build(
    model: str | os.PathLike, weights: str | os.PathLike | None, image_size: tuple[int, int] | None
) -> keras.Model:
    """Builds the model, without its head if the weights have no trained head."""
    if is_file(model):
        return classifier.build(model, weights, image_size)
    if weights is None or str(model) not in VARIANTS:
        return classifier.build(model, weights, image_size)  # raises an error that explains
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
            f"{error}\nThe same folder contains a complete model: --model={whole}"
        ) from error


def _choose_size(network: keras.Model, image_size: tuple[int, int] | None) -> tuple[int, int]:
    shapes = [tuple(tensor.shape) for tensor in network.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][-1] != 3:
        raise ValueError(
            f"The model must have one input, color images (B, H, W, 3). Received: inputs {shapes}."
        )
    built = shapes[0][1:3]
    if image_size is not None and any(
        side not in (None, asked) for side, asked in zip(built, image_size, strict=True)
    ):
        raise ValueError(
            f"The model was saved for {built[0]} x {built[1]} pixels: omit the image size."
        )
    if None in built and image_size is None:
        raise ValueError("The model takes images of any size: pass an image size.")
    return image_size or built


def _why_no_answers(network: keras.Model, num_names: int) -> str:
    """Returns "" if a model has a trained classification head, else the reason for no predictions."""
    if tuple(network.outputs[0].shape[1:]) == (1,):
        return why_no_classes(network)
    head = head_of(network)
    if not gives_classes(network, num_names) or (
        head is not None and not np.any(keras.ops.convert_to_numpy(head.kernel))
    ):
        return "The model has no classification head, or the head was not trained."
    try:
        outputs_of(network)
    except ValueError as error:
        return str(error)
    return ""


def _choose(files: Sequence[Path], size: tuple[int, int], count: int) -> dict[Path, np.ndarray]:
    """Reads `count` photos, spread over the folder; unreadable ones are replaced by others."""
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
    """Reads all photos, and returns their attention, or the reasons why there is none."""
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
        summary = summarize_attention(network, batches)
        if not np.isfinite(summary.distance_px).all():
            raise ValueError(
                f"The attention of {network.name} is NaN or infinite on these photos. Check its "
                "weights."
            )
        return summary, []
    for _ in batches:
        pass
    return None, absent


@dataclass(kw_only=True, eq=False)
class _Reading:
    """Reading and classification of all photos, batch by batch."""

    network: keras.Model
    files: Sequence[Path]
    folder: Path
    size: tuple[int, int]
    taken: Pixels
    names: Sequence[str] | None
    progress: Callable[[int | None, int], None]
    photos: list[Photo] = field(default_factory=list)

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """Yields readable photos as (B, H, W, 3) float32 in the range of the model.

        B is `count`, except in the last batch.
        """
        read: list[tuple[int, np.ndarray]] = []
        for number, file in enumerate(self.files):
            if number % count == 0:
                self.progress(number, len(self.files))
            pixels, problem = _read(file, self.size)
            self.photos.append(Photo(str(file.relative_to(self.folder)), problem=problem))
            read += [] if pixels is None else [(number, pixels)]
            if len(read) == count or (read and number == len(self.files) - 1):
                images = self.taken.from_levels(np.stack([pixels for _, pixels in read]))
                for (which, _), (answer, probability) in zip(
                    read, self._classify(images), strict=True
                ):
                    self.photos[which] = self.photos[which]._replace(
                        answer=answer, probability=probability
                    )
                yield images
                read = []
        self.progress(None, len(self.files))

    def _classify(self, images: np.ndarray) -> list[tuple[str, float]]:
        if self.names is None:
            return [("", float("nan"))] * len(images)
        given = self.network.predict_on_batch(images)
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
    """Reads a photo, and returns it or the problem."""
    try:
        levels = predict.read_levels(file, size)
    except (ValueError, ImportError, OSError, MemoryError) as error:
        return None, str(error) or type(error).__name__
    # Fractions in a black photo would be refused as pixels that are already scaled to [0, 1].
    return (np.round(levels) if levels.max() <= 1 else levels), ""


def _read_for_drawing(file: Path) -> np.ndarray:
    """Reads a photo as (h, w, 3) in [-1, 1], upright, in its aspect ratio, small enough to draw."""
    pixels = imagenet.preprocess_input(read_pixels(file).astype(np.float32), "channels_last")
    height, width = pixels.shape[:2]
    scale = min(1.0, _LONGER_SIDE / max(height, width))
    smaller = max(1, round(scale * height)), max(1, round(scale * width))
    resized = keras.ops.image.resize(
        pixels[None], smaller, antialias=True, data_format="channels_last"
    )
    return np.clip(keras.ops.convert_to_numpy(resized)[0], -1.0, 1.0)


def _read_curves(weights: str | os.PathLike) -> Mapping[str, Sequence[tuple[int, float]]]:
    """Reads the metrics in the folder of the weights; ignores files of other programs."""
    if (
        not os.path.isfile(weights)
        or not (folder := Path(weights).parent).joinpath("metrics.csv").is_file()
    ):
        return {}
    try:
        return read_metrics(folder)
    except ValueError:
        return {}


def _name_weights(weights: str | os.PathLike) -> str:
    return "random" if str(weights).lower() == "none" else without_secrets(str(weights))


def _make_title(place: str | os.PathLike) -> str:
    """Returns a name or tag unchanged; for a file, also its folder, as many are named model.keras."""
    if str(place).lower() == "none":
        return "random weights"
    return (
        "/".join(Path(place).absolute().parts[-2:])
        if os.path.isfile(place)
        else without_secrets(str(place))
    )
