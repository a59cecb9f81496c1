"""The work of `keras-vit export`: a model in each requested format.

output/1/, output/2/ ...           SavedModels; `output` is the base path for TensorFlow Serving
output/tflite/1/, output/onnx/1/   other formats, each with its own versions
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
from absl import logging

from keras_vit import predict
from keras_vit.data import folders
from keras_vit.data.sources import Source, image_folder, photos
from keras_vit.data.transforms import describe_crop
from keras_vit.evaluate import classifier, measure
from keras_vit.evaluate.labelled import listed
from keras_vit.export.examples import Examples, set_aside, take
from keras_vit.export.exchange import onnx, openvino
from keras_vit.export.metadata import read_facts
from keras_vit.export.report import text_table
from keras_vit.export.saved_model import saved_model
from keras_vit.export.tflite import FLAVOURS, NUM_CALIBRATION_IMAGES, tflite
from keras_vit.export.verdicts import Verdict
from keras_vit.imagenet import is_wordnet_id
from keras_vit.keras_file import is_file
from keras_vit.photos import is_ignored, is_photo
from keras_vit.pixels import describe_pixels
from keras_vit.weights.published_crop import find_crop
from keras_vit.weights.secrets import without_secrets
from keras_vit.writing import group_by_reason

FORMATS = ("saved_model", "tflite", "onnx", "openvino")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Requested formats and their options.

    Attributes:
        formats: Names in `FORMATS`.
        flavours: Kinds of TFLite files, see `keras_vit.export.tflite.FLAVOURS`.
        precision: Precision of the SavedModel: "float32" or "bfloat16".
        attention: Whether the SavedModel has a signature for attention weights.
        any_size: Whether the SavedModel takes images of any size and resizes them.
        fixed_batch: Whether TFLite files take batches of one image only.
        preprocessing: Whether TFLite files take pixels in [0, 255] and scale them.
        min_agreement: Smallest top-1 agreement with which a TFLite file is written.
        top: Number of classes that the SavedModel returns for an image.
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
        """Whether calibration images are needed."""
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
    """Exports a model in several formats, judges each file on images, and prints the results.

    If a format fails, the others are still exported.

    Args:
        model: Name of a model, or a file `model.keras`.
        output: Folder of the model; the SavedModel becomes its next integer version.
        wanted: Requested formats and their options.
        weights: Tag, file or URL. Class names are read from `classes.txt` in the folder of a file.
        images: Folder of photographs or of class folders, or "tfds:NAME:SPLIT". All files are
            judged on the same images. For an int8 file, up to 100 images, at most half, are used
            for calibration, and no format is judged on these. Default: generated pictures, which
            are weaker evidence.
        image_size: (height, width) in pixels; default: that of the weights.
        pixels: As in `keras_vit.evaluate.classifier.build`.
        num_images: Maximum number of images.
        say: Function that prints a line.

    Returns:
        A message for each format that failed; empty if all succeeded.

    Raises:
        ValueError: If the model, the weights or the images are invalid, or the output is inside the
            folder of the images.
        OSError: If the weights cannot be read or downloaded.
    """
    output = Path(output).expanduser()
    if images is not None and not os.fspath(images).startswith("tfds:"):
        folders.check_outside(output, images, "images")
    network = classifier.build(model, weights, image_size, pixels)
    size = image_size or tuple(network.input_shape[1:3])
    sentence = describe_pixels(network, size)
    if is_file(model):
        say(sentence)
    names = classifier.names_for(network, model if weights is None else weights)
    crop = _choose_crop(model, weights, size)
    examples = find_examples(images, network, names, num_images, size, crop)
    calibration, judged = set_aside(examples, NUM_CALIBRATION_IMAGES if wanted.int8 else 0)
    identity = _describe_origin(model, weights, images, num_images, size) | (
        {} if pixels is None else {"pixels": pixels}
    )
    say(
        f"Judged on {examples.name}: {len(judged.images)} images, the same for every format."
        + (_describe_calibration(calibration) if wanted.int8 else "")
    )
    if examples.left_out:
        say(group_by_reason(examples.left_out))
    if crop != "resize":
        say(f"Photos are cropped as in the published evaluation: {describe_crop(crop)}.")
    shared = {
        "class_names": names,
        "images": judged,
        "num_images": len(judged.images),
        "calibration": calibration,
        "eval_crop": crop,
        "identity": identity,
        "image_size": size,
    }
    if images is None:
        say(
            "For stronger evidence and a better int8 calibration, pass a folder of photographs "
            "with --images."
        )
    problems = []
    for name in wanted.formats:
        try:
            verdicts = _export(name, network, output, wanted, shared)
            say(f"\n{verdicts[0].version}\n{text_table(verdicts)}")
        except Exception as error:  # converters and runtimes raise their own types of errors
            problems.append(f"{name}: {_describe_error(error)}")
    return problems


def _describe_calibration(calibration: Examples | None) -> str:
    if calibration is None:
        return " None is left for the calibration of int8: pass more photos that differ."
    return f" {len(calibration.images)} others are calibration images for int8."


def _describe_error(error: Exception) -> str:
    if isinstance(error, ImportError | OSError | ValueError):
        return str(error)
    return "\n".join(f"{type(error).__name__}: {error}".strip().splitlines()[:_MOST_LINES])


_MOST_LINES = 10  # of the message of a library


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
    crop: str = "resize",
) -> Examples:
    """Returns images of a folder, with labels if its folders are the classes of the model.

    They are the classes if the names of the classes are known and match, if they are WordNet ids and
    the model has ImageNet's 1000 classes, or if there are as many folders as classes and no photos
    beside them. Otherwise all photos of the folder and its subfolders are used without labels, and
    a warning states the reason.

    Args:
        images: As in `deliver`.
        network: The model.
        names: Names of its classes, or empty.
        num_images: Maximum number of images.
        size: (height, width) in pixels.
        crop: Policy by which images are resized, as in `keras_vit.data.transforms.eval_crop`.

    Raises:
        ValueError: If there are no images, or too many of them cannot be read.
    """
    if images is None:
        return take(None, size, min(num_images, _MOST_GENERATED), crop=crop)
    text = os.fspath(images)
    labelled, why_not = _find_labelled(text, network.output_shape[-1], names)
    if why_not:
        logging.warning("The photos are used without labels. %s", why_not)
    source = _find_all_photos(text) if labelled is None else labelled
    found = take(source, size, num_images, crop=crop)
    return replace(found, labels=None) if why_not else found


def _find_labelled(text: str, num_classes: int, names: Sequence[str]) -> tuple[Source | None, str]:
    """Returns the images of class folders or of a data set, or None; and why the labels are not
    those of the model, "" if they are or if there are no class folders.
    """
    if text.startswith("tfds:"):
        source = measure.find_test_set(text, num_classes, names=names).source
        if names or len(source.class_names) == num_classes:
            return source, ""
        return source, (
            f"{text} has {len(source.class_names):,} classes, and the model has {num_classes:,}."
        )
    path = Path(text).expanduser()
    if not path.is_dir() or not any(map(_is_folder, path.iterdir())):
        return None, ""
    try:
        if not names and (why_not := _compare_folders(folders.to_measure_on(path), num_classes)):
            return None, why_not
        return measure.find_test_set(text, num_classes, names=names).source, ""
    except ValueError as error:  # the folders are not the classes of the model
        return None, str(error)


def _compare_folders(folder: Path, num_classes: int) -> str:
    """Returns why folders are not the classes of a model, whose names are not known, or ""."""
    inside = image_folder(folder).class_names
    if num_classes == _IMAGENET and all(map(is_wordnet_id, inside)):
        return ""
    is_mixed = any(is_photo(entry.name) and entry.is_file() for entry in folder.iterdir())
    if len(inside) == num_classes and not is_mixed:
        return ""
    beside = " and photos beside them" if is_mixed else ""
    return (
        f"{folder} has {len(inside):,} folders of photos{beside} ({listed(inside)}), and the model "
        f"has {num_classes:,} classes. If the folders are classes, write the names of all classes of "
        "the model to a file classes.txt beside its weights, in its order."
    )


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not is_ignored(entry.name)


def _find_all_photos(text: str) -> Source:
    found = predict.find_photos([text])
    return photos(found.photos, name=text, left_out=found.left_out)


_MOST_GENERATED = 32
_IMAGENET = 1000


def _choose_crop(
    model: str | os.PathLike, weights: str | os.PathLike | None, size: tuple[int, int]
) -> str:
    """Returns the crop of the published evaluation of these weights; "resize" for rectangles."""
    if weights is None or size[0] != size[1]:
        return "resize"
    return find_crop(str(model), weights) or "resize"


def _describe_origin(
    model: str | os.PathLike,
    weights: str | os.PathLike | None,
    images: str | os.PathLike | None,
    num_images: int,
    size: tuple[int, int],
) -> dict[str, Any]:
    """Returns the arguments needed to rebuild the model and to judge it again."""
    return {
        "model": _make_absolute(model),
        "weights": None if weights is None else _make_absolute(weights),
        "image_size": list(size),
        "judged_on": None if images is None else _make_absolute(images),
        "num_images": num_images,
    }


def _make_absolute(place: str | os.PathLike) -> str:
    """Returns the absolute path of a file; tags and URLs unchanged, without passwords."""
    if os.path.exists(Path(place).expanduser()):
        return str(Path(place).expanduser().resolve())
    return without_secrets(os.fspath(place))
