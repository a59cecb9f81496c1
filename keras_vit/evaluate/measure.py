"""The work of `keras-vit evaluate`: metrics of a classifier on a test set, published results of the
same model, and a report on its errors.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from keras_vit import paper
from keras_vit.data import folders, sources
from keras_vit.data.reading import Unreadable, read_record
from keras_vit.data.sources import Source
from keras_vit.devices import DevicesConfig, connect
from keras_vit.drawing import check_can_draw
from keras_vit.evaluate import classifier, plots
from keras_vit.evaluate.accuracy import Answers, answer
from keras_vit.evaluate.class_order import relabel, relabel_sets
from keras_vit.evaluate.crop import choose_crop
from keras_vit.evaluate.imagenet_sets import (
    by_wordnet_id,
    imagenet_real,
    imagenet_real_tfds,
    imagenet_v2,
    objectnet,
)
from keras_vit.evaluate.label_sets import LabelSets, label_set_accuracy
from keras_vit.evaluate.scorecard import class_table, headline, write_answers, write_pictures
from keras_vit.graph import precisions_of
from keras_vit.imagenet import is_wordnet_id
from keras_vit.keras_file import is_file
from keras_vit.pixels import describe_pixels, pixels_of
from keras_vit.weights.secrets import join_command, without_secrets
from keras_vit.writing import group_by_reason, table, to_one_line, write_json, write_text

_PUBLISHED_OF = {  # TensorFlow Datasets' names to those of `paper.py`
    "imagenet2012": "imagenet",
    "imagenet2012_real": "imagenet_real",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "oxford_iiit_pet": "pets",
    "oxford_flowers102": "flowers102",
}
_NUM_IMAGES = {
    "imagenet": 50_000,
    "cifar10": 10_000,
    "cifar100": 10_000,
    "pets": 3669,
    "flowers102": 6149,
}
_IMAGENET_ORDER = "ImageNet's 1000 classes in ImageNet's order"
_WORDS = {
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "mean_per_class": "mean per-class accuracy",
    "loss": "loss, nats",
    "calibration_error": "expected calibration error",
    "images": "images",
    "excluded": "excluded, without a correct class",
    "unreadable": "unreadable",
}


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """A test set.

    Attributes:
        images: Images with one correct class each, or with sets of correct classes.
        published: Its name in `keras_vit.paper`, or "" if there are no published results.
        assumed: The assumed order of the classes, as text; "" if classes were matched by name.
    """

    __test__ = False  # pytest would collect the class by its name

    images: Source | LabelSets
    published: str = ""
    assumed: str = ""

    @property
    def source(self) -> Source:
        return self.images.source if isinstance(self.images, LabelSets) else self.images


def measure(
    model: str | os.PathLike,
    data: str | os.PathLike,
    *,
    weights: str | os.PathLike | None = None,
    output: str | os.PathLike | None = None,
    real: str | os.PathLike | None = None,
    is_objectnet: bool = False,
    image_size: tuple[int, int] | None = None,
    pixels: str | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: DevicesConfig | None = None,
    strict: bool = False,
) -> dict[str, float]:
    """Evaluates a classifier on a test set, prints the metrics and returns them.

    Args:
        model: Name of a model, or a file `model.keras`.
        data: Folder with one folder of images per class; a folder that contains such a folder named
            `test` (or val, validation, valid); or "tfds:NAME:SPLIT".
        weights: Tag, file or URL. Class names are read from `classes.txt` in the folder of a file.
        output: Folder for `report.md` with tables and figures, `answers.csv` and `results.json`.
            None writes no files.
        real: `real.json` of ImageNet ReaL; `data` is then the folder of the validation images.
        is_objectnet: Whether `data` is ObjectNet's folder.
        pixels: As in `keras_vit.evaluate.classifier.build`.
        image_size, batch_size, strict: As in `keras_vit.evaluate.accuracy.accuracy`.
        eval_crop: As there, or "published": the crop with which the weights were evaluated by those
            who published them, see `keras_vit.evaluate.crop`.
        devices: Devices and precision. Default: whatever is available, in float32.

    Returns:
        As `keras_vit.evaluate.accuracy.accuracy`, or
        `keras_vit.evaluate.label_sets.label_set_accuracy`.

    Raises:
        ValueError: If the model, the weights or the data are invalid, or the output is inside the
            folder of the data.
    """
    if output is not None:
        check_can_draw()
        # Images of ReaL and ObjectNet are found by their names, so no report is taken for one.
        if not (real or is_objectnet or os.fspath(data).startswith("tfds:")):
            folders.check_outside(output, data, "data")
    eval_crop = choose_crop(eval_crop, model, weights)
    devices = devices or DevicesConfig()
    if is_file(model) and devices.precision != "float32":
        raise ValueError(
            f"{model} computes in the precision with which it was saved: omit `precision`."
        )
    place = connect(devices)
    if output is not None and place.is_chief:
        # Remove the record of an earlier evaluation.
        (Path(output).expanduser() / "unreadable.txt").unlink(missing_ok=True)
    with place.scope():
        network = classifier.build(model, weights, image_size, pixels)
    names = classifier.names_for(network, model if weights is None else weights)
    test = find_test_set(
        data, network.output_shape[-1], names=names, real=real, is_objectnet=is_objectnet
    )
    size = image_size or network.input_shape[1:3]
    taken = pixels_of(network)
    if place.is_chief and is_file(model):
        print(describe_pixels(network, size), flush=True)
    options = {
        "image_size": image_size,
        "eval_crop": eval_crop,
        "batch_size": batch_size,
        "devices": place,
    }
    record = None if output is None else _make_folder(output) / "unreadable.txt"
    if isinstance(test.images, LabelSets):
        unreadable = Unreadable(test.images.counted, strict=strict, record=record)
        answers, prefix = None, "objectnet" if is_objectnet else "real"
        numbers = label_set_accuracy(
            network, test.images, unreadable=unreadable, prefix=prefix, **options
        )
    else:
        unreadable = Unreadable(test.images, strict=strict, record=record)
        answers = answer(network, test.images, unreadable=unreadable, **options)
        numbers = answers.numbers()
    reasons = unreadable.reasons | ({} if record is None else read_record(record))
    if place.is_chief:
        precision = " and ".join(sorted(precisions_of(network)))
        report = _Report(
            name=f"{Path(model).name}{'' if weights is None else f', {without_secrets(str(weights))}'}",
            test=test,
            numbers=numbers,
            published=published_rows(Path(model).stem, test.published, size[0]),
            conditions=f"{size[0]} x {size[1]} pixels {taken}, {eval_crop}, {precision}, {place.description}",
            reasons=reasons,
            assumption=_describe_assumption(model if is_file(model) else weights, names, test),
        )
        print(report.text(), flush=True)
        if output is not None:
            report.write(_make_folder(output), answers)
    return numbers


def find_test_set(
    data: str | os.PathLike,
    num_classes: int,
    *,
    names: Sequence[str] = (),
    real: str | os.PathLike | None = None,
    is_objectnet: bool = False,
) -> TestSet:
    """Opens a test set with the classes of a model.

    If the names of the model's classes are known, those of the test set are matched by name, see
    `keras_vit.evaluate.class_order`. Otherwise the classes are in the order of the test set. Folders
    are sorted by name, except that folders named by WordNet ids or numbers are ImageNet's classes
    for a model with 1000 classes. `assumed` of the result states the order.

    Args:
        data, real, is_objectnet: As in `measure`.
        num_classes: Number of classes of the model.
        names: Names of the classes of the model, or empty.

    Raises:
        ValueError: If there are no images, or their classes are not those of the model.
    """
    text = os.fspath(data)
    if sum((text.startswith("tfds:"), real is not None, is_objectnet)) > 1:
        raise ValueError(
            "Choose one test set: a data set of TensorFlow Datasets, `real` or ObjectNet."
        )
    if text.startswith("tfds:"):
        name, split = _parse_tfds(text)
        if name.startswith("imagenet2012_real"):
            return _make_label_sets(imagenet_real_tfds(split), "imagenet_real", names)
        source, dataset = sources.tfds(name, split), _PUBLISHED_OF.get(name.partition(":")[0], "")
        if names:
            return _match_published(relabel(source, names), dataset)
        return _match_published(source, dataset, f"those of {source.name}, in its order")
    if real is not None:
        return _make_label_sets(imagenet_real(data, real), "imagenet_real", names)
    if is_objectnet:
        return _make_label_sets(objectnet(data), "objectnet", names)
    folder = folders.to_measure_on(data)
    source = sources.image_folder(folder)
    known = [key for key in _PUBLISHED_OF.values() if key in folder.parts]
    classes, dataset = source.class_names, known[-1] if known else ""
    is_imagenet = num_classes == 1000 and all(is_wordnet_id(name) for name in classes)
    if is_imagenet:
        if len(classes) < num_classes:
            logging.warning(
                "%s has %d of ImageNet's 1,000 classes. Predictions may be any of the 1,000.",
                text,
                len(classes),
            )
        dataset = "imagenet"
    if names:  # first, since an own model may have 1000 classes in another order
        return _match_published(relabel(source, names), dataset)
    if is_imagenet:
        return _match_published(by_wordnet_id(source), dataset, _IMAGENET_ORDER)
    if num_classes == 1000 and all(name.isdecimal() for name in classes):
        return TestSet(images=imagenet_v2(folder), assumed=_IMAGENET_ORDER)
    return _match_published(source, dataset, "the folders in alphabetical order")


def _make_label_sets(sets: LabelSets, dataset: str, names: Sequence[str]) -> TestSet:
    return TestSet(
        images=relabel_sets(sets, names) if names else sets,
        published=dataset if sets.is_complete else "",
        assumed="" if names else _IMAGENET_ORDER,
    )


def _match_published(source: Source, dataset: str, assumed: str = "") -> TestSet:
    """Adds the name for published results if the number of images is that of the whole test set."""
    is_whole = source.num_examples == _NUM_IMAGES.get(dataset)
    return TestSet(images=source, published=dataset if is_whole else "", assumed=assumed)


def _describe_assumption(own: str | os.PathLike | None, names: Sequence[str], test: TestSet) -> str:
    """Returns a sentence on the order of the classes of an own file without names, or ""."""
    if names or own is None or not Path(own).expanduser().is_file():
        return ""
    return (
        f"There is no classes.txt beside {Path(own).name}: the classes of the model were taken to "
        f"be {test.assumed}."
    )


def published_rows(model: str, dataset: str, image_size: int) -> list[paper.Published]:
    """Returns the published results of a model on a data set, nearest resolution first."""
    return paper.published(model=model, dataset=dataset, image_size=image_size) if dataset else []


@dataclass(frozen=True, kw_only=True)
class _Report:
    """Text and report of an evaluation.

    Attributes:
        reasons: Maps unreadable images to the reasons.
        assumption: A sentence on the order of the classes, or "".
    """

    name: str
    test: TestSet
    numbers: dict[str, float]
    published: list[paper.Published]
    conditions: str
    reasons: dict[str, str]
    assumption: str

    def rows(self) -> list[tuple[str, str]]:
        return [
            (_WORDS[key], _format_value(key, value))
            for key, value in _shorten_names(self.numbers).items()
        ] + [
            (
                f"published, {row.metric}"
                + (f", pre-trained on {row.pretrained_on}" if row.pretrained_on else ""),
                f"{row.accuracy:.2f} % "
                f"({row.table}{f', {row.image_size} px' if row.image_size else ''})",
            )
            for row in self.published
        ]

    def text(self) -> str:
        rows = self.rows()
        width = max(len(left) for left, _ in rows)
        lines = [self.name, f"{self.test.source.name}: {self.conditions}"]
        lines += [*filter(None, [self.assumption]), ""]
        lines += [f"  {left:<{width}}  {right}" for left, right in rows]
        return "\n".join([*lines, *filter(None, [group_by_reason(self.left_out())])])

    def left_out(self) -> list[tuple[str, str]]:
        """Lists the files of the test set that were skipped, with reasons."""
        return [(str(path), reason) for path, reason in self.test.source.left_out] + list(
            self.reasons.items()
        )

    def write(self, folder: Path, answers: Answers | None) -> None:
        write_json(folder / "results.json", self.numbers)
        page = [f"# {self.name} on {self.test.source.name}", f"```sh\n{_format_command()}\n```"]
        page += [headline(answers)] if answers else []
        page += [self.conditions, *filter(None, [self.assumption]), table(["", ""], self.rows())]
        if answers:
            pictures = write_pictures(answers, folder)
            plots.draw_calibration(folder / "calibration.png", *answers.calibration())
            write_answers(answers, folder / "answers.csv")
            page += ["## Classes", class_table(answers)]
            page += ["![Confusion matrix](confusion.png)"] * ("confusion.png" in pictures)
            page += [
                "## Most confident errors",
                "![Errors](errors.png)" if "errors.png" in pictures else "None.",
            ]
            page += ["## Calibration", "![Calibration](calibration.png)"]
            page += ["[answers.csv](answers.csv) contains the predictions for all images."]
        if self.left_out():
            lines = [f"- `{to_one_line(name)}`: {reason}" for name, reason in self.left_out()]
            page += ["## Skipped files", "\n".join(lines)]
        write_text(folder / "report.md", "\n\n".join(page) + "\n")
        print(folder / "report.md", flush=True)


def _shorten_names(numbers: dict[str, float]) -> dict[str, float]:
    """Removes the prefixes of label sets, and counts that are zero."""
    short = {key.rpartition("/")[2]: value for key, value in numbers.items()}
    return {
        key: value for key, value in short.items() if value or key not in ("unreadable", "excluded")
    }


def _format_value(key: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if key == "loss" else f"{100 * value:.2f} %"


def _parse_tfds(text: str) -> tuple[str, str]:
    """Splits "tfds:NAME:SPLIT" into name, with an optional version, and split."""
    # Colons may also separate the version, or be in the brackets of the split.
    match = re.fullmatch(r"tfds:([^:]+(?::[\d.*]+)?):([^:\[]+(?:\[.*)?)", text)
    if match is None:
        raise ValueError(
            f"Data sets of TensorFlow Datasets must have the form tfds:NAME:SPLIT. Received: {text!r}."
        )
    return match[1], match[2]


def _make_folder(folder: str | os.PathLike) -> Path:
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path


def _format_command() -> str:
    """Returns the command line of this process: `python -m keras_vit`, or a script."""
    script = sys.argv[0]
    is_script = script.endswith(".py") and Path(script).name != "__main__.py"
    return join_command(
        ["python", *([script] if is_script else ["-m", "keras_vit"]), *sys.argv[1:]]
    )
