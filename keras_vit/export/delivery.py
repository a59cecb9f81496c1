"""A model in every format that was asked for: the command `export`.

output/1/, output/2/ ...            SavedModels, as TensorFlow Serving reads them: `output` is its
model's base path output/tflite/1/, output/onnx/1/    other formats, in versions of their own
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import predict
from keras_vit.evaluate import classifier, measure
from keras_vit.export.examples import Examples, set_aside, take
from keras_vit.export.exchange import onnx, openvino
from keras_vit.export.metadata import read_facts
from keras_vit.export.report import text_table
from keras_vit.export.saved_model import saved_model
from keras_vit.export.tflite import FLAVOURS, NUM_CALIBRATION_IMAGES, tflite
from keras_vit.export.verdicts import Verdict
from keras_vit.keras_file import is_file
from keras_vit.photos import is_ignored
from keras_vit.pixels import describe_pixels
from keras_vit.weights import source
from keras_vit.weights.download import without_secrets
from keras_vit.writing import group_by_reason

FORMATS = ("saved_model", "tflite", "onnx", "openvino")
# the catalog's words, and the pipeline's
_CROPS = {"resize": "resize", "resize_small_crop": "resize_shorter"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to deliver.

    Attributes:
        formats: Of `FORMATS`.
        flavours: Of TFLite, see `keras_vit.export.tflite.FLAVOURS`.
        precision: Of the SavedModel: "float32" or "bfloat16".
        attention: Whether the SavedModel can be asked for its attention.
        any_size: Whether the SavedModel takes images of any size and resizes them itself.
        fixed_batch: Whether TFLite files take one image at a time.
        preprocessing: Whether TFLite files take pixels in [0, 255] and scale them themselves.
        min_agreement: A TFLite file that agrees with the model on fewer images is not written.
        top: How many classes the SavedModel names for an image.
    """

    formats: Sequence[str] = ("saved_model",)
    flavours: Sequence[str] = FLAVOURS
    precision: str = "float32"
    attention: bool = False
    any_size: bool = False
    fixed_batch: bool = False
    preprocessing: bool = False
    min_agreement: float = 0.95
    top: int = 5

    @property
    def int8(self) -> bool:
        """Whether images are needed by which an int8 file sets its ranges."""
        return "tflite" in self.formats and "int8" in self.flavours

    def __post_init__(self):
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise ValueError(
                f"Formats are {', '.join(FORMATS)}. Received: {', '.join(unknown) or 'none'}."
            )


def deliver(
    model: str | os.PathLike,
    output: str | os.PathLike,
    wanted: Wanted = Wanted(),
    *,
    weights: str | os.PathLike | None = None,
    images: str | os.PathLike | None = None,
    image_size: tuple[int, int] | None = None,
    pixels: str | None = None,
    num_images: int = 100,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Exports a model in several formats, judges each file on images, and says what came out.

    A format that fails does not keep the others from being delivered.

    Args:
        model: Name of a model, or a file `model.keras`.
        output: Folder of the model; the SavedModel becomes its next integer version.
        wanted: What to deliver.
        weights: Tag, file or URL; the names of the classes are read from `classes.txt` beside a
            file.
        images: Folder of photographs, or of one folder for each class, or "tfds:NAME:SPLIT". All
            files are judged on the same ones. If an int8 file is wanted, up to 100 of them, at most
            half, are set aside for its ranges, and
            no format is judged on these. Default: generated pictures, which say less.
        image_size: (height, width) in pixels; default: that of the weights.
        pixels: As in `keras_vit.evaluate.classifier.build`.
        num_images: How many of them at most.
        say: Takes lines for people.

    Returns:
        What could not be delivered, and why; empty if all went well.

    Raises:
        ValueError: If the model, the weights or the images are not what they should be.
        OSError: If the weights cannot be had.
    """
    network = classifier.build(model, weights, image_size, pixels)
    size = image_size or tuple(network.input_shape[1:3])
    sentence = describe_pixels(network, size)
    if is_file(model):
        say(sentence)
    names = classifier.class_names(model if weights is None else weights)
    examples = find_examples(images, network, names, num_images, size)
    calibration, judged = set_aside(examples, NUM_CALIBRATION_IMAGES if wanted.int8 else 0)
    identity = _identity(model, weights, images, num_images, size) | (
        {} if pixels is None else {"pixels": pixels}
    )
    say(
        f"Judged on {examples.name}: {len(judged.images)} images, the same for every format."
        + (
            f" {len(calibration.images)} others are set aside for the ranges of int8."
            if wanted.int8
            else ""
        )
    )
    shared = {
        "class_names": names,
        "images": judged,
        "num_images": len(judged.images),
        "calibration": calibration if wanted.int8 else None,
        "eval_crop": _crop(model, weights, size),
        "identity": identity,
        "image_size": size,
    }
    if images is None:
        say(
            "Name a folder of photographs with --images to have it judged, and int8 set, on what "
            "it will see."
        )
    output, problems = Path(output), []
    for name in wanted.formats:
        try:
            verdicts = _export(name, network, output, wanted, shared)
            say(f"\n{verdicts[0].version}\n{text_table(verdicts)}")
        except Exception as error:  # converters and runtimes have kinds of their own
            problems.append(f"{name}: {_reason(error)}")
    return problems


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError | OSError | ValueError):
        return str(error)
    return "\n".join(f"{type(error).__name__}: {error}".strip().splitlines()[:_MOST_LINES])


_MOST_LINES = 10  # of what a library says


def _export(
    name: str, network: keras.Model, output: Path, wanted: Wanted, shared: dict[str, Any]
) -> list[Verdict]:
    if name == "tflite":
        options = {
            key: getattr(wanted, key)
            for key in ("flavours", "fixed_batch", "preprocessing", "min_agreement")
        }
        return tflite(network, output / name, **options, **shared)
    if name in ("onnx", "openvino"):
        return [{"onnx": onnx, "openvino": openvino}[name](network, output / name, **shared)]
    options = {key: getattr(wanted, key) for key in ("precision", "attention", "any_size", "top")}
    folder = saved_model(network, output, **options, **shared)
    found = read_facts(folder)["parity"] | {"name": f"SavedModel {folder.name}"}
    return [Verdict(**found, version=folder)]


def find_examples(
    images: str | os.PathLike | None,
    network: keras.Model,
    names: Sequence[str],
    num_images: int,
    size: tuple[int, int],
) -> Examples:
    """Returns images of a folder, with labels where its folders are the classes of the model.

    Args:
        images: As in `deliver`.
        network: The model.
        names: Of its classes, or nothing.
        num_images: How many at most.
        size: (height, width) in pixels.

    Raises:
        ValueError: If there is no image that can be read.
    """
    if images is None:
        return take(None, size, min(num_images, _MOST_GENERATED))
    text = os.fspath(images)
    if text.startswith("tfds:"):
        return take(
            measure.find_test_set(text, network.output_shape[-1], names=names).source,
            size,
            num_images,
        )
    files, left_out = predict.find_photos([text])
    if left_out:
        logging.warning("%s", group_by_reason(left_out))
    if any(
        entry.is_dir() and not is_ignored(entry.name) for entry in Path(text).expanduser().glob("*")
    ):
        try:
            return take(
                measure.find_test_set(text, network.output_shape[-1], names=names).source,
                size,
                num_images,
            )
        except ValueError as error:  # folders that are no classes of the model
            logging.warning("The photos are taken without labels. %s", error)
    chosen = [
        files[i] for i in np.unique(np.linspace(0, len(files) - 1, num_images).round().astype(int))
    ]
    read = [_read(file, size) for file in chosen]
    kept = [image for image in read if image is not None]
    if not kept:
        raise ValueError(f"None of {len(chosen)} photographs in {text} can be read.")
    return Examples(images=np.stack(kept).astype(np.float32), labels=None, name=text)


_MOST_GENERATED = 32


def _read(file: Path, size: tuple[int, int]) -> np.ndarray | None:
    try:
        return predict.read_photo(file, size)
    except Exception as error:  # Pillow has a kind of error for every kind of damage
        logging.warning("%s cannot be read and is left out: %s", file, error)
        return None


def _crop(
    model: str | os.PathLike, weights: str | os.PathLike | None, size: tuple[int, int]
) -> str:
    """How the published evaluation of these weights cut its images; for a rectangle they are
    resized.
    """
    row = None if weights is None else source.find(str(model), weights).row
    return "resize" if row is None or size[0] != size[1] else _CROPS[row.transform]


def _identity(
    model: str | os.PathLike,
    weights: str | os.PathLike | None,
    images: str | os.PathLike | None,
    num_images: int,
    size: tuple[int, int],
) -> dict[str, Any]:
    """All that is needed to build the model again, and to tell whether it is the same."""
    return {
        "model": _whole(model),
        "weights": None if weights is None else _whole(weights),
        "image_size": list(size),
        "judged_on": None if images is None else _whole(images),
        "num_images": num_images,
    }


def _whole(place: str | os.PathLike) -> str:
    """An absolute path; tags and URLs unchanged, without passwords."""
    if os.path.exists(Path(place).expanduser()):
        return str(Path(place).expanduser().resolve())
    return without_secrets(os.fspath(place))
