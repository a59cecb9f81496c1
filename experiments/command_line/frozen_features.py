"""Flags and features for few-shot and linear evaluation; features are computed once and stored.

`--data` takes data sets, separated by commas. Each is a folder with `train/<class>` and
`test/<class>` (or `val/<class>`); a folder of classes, of which a fifth is held out as test set; or
tfds:NAME:TRAIN:TEST, such as tfds:cifar100:train:test. `--model` takes a model name, with
`--weights` (a tag, a file, a URL, or `none` for random weights, the same in every run), or a file
model.keras.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from absl import flags

from keras_vit import list_weights
from keras_vit.data import folders, sources
from keras_vit.data.reading import read_record
from keras_vit.data.sources import Source
from keras_vit.data.transforms import describe_crop
from keras_vit.devices import DevicesConfig, connect
from keras_vit.evaluate import Features, extract
from keras_vit.evaluate.classifier import representation
from keras_vit.evaluate.crop import choose_crop
from keras_vit.evaluate.labelled import count_repeated
from keras_vit.keras_file import is_file
from keras_vit.pixels import RANGES, describe_pixels
from keras_vit.weights.secrets import without_secrets
from keras_vit.writing import group_by_reason, table

_DATA = flags.DEFINE_list(
    "data", None, "Folders or tfds:NAME:TRAIN:TEST, separated by commas.", required=True
)
_MODEL = flags.DEFINE_string(
    "model", "ViT_B16", "A name of `keras_vit.list_models()`, or a file model.keras."
)
_WEIGHTS = flags.DEFINE_string("weights", None, "Tag, file or URL; `none`: random weights.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for features and results.", required=True)
_LAYER = flags.DEFINE_string(
    "layer", "pre_logits", "Features: pre_logits, class_token, patch_mean, or a layer's name."
)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", None, "Side in pixels. Default: that of the weights.", lower_bound=1
)
_PIXELS = flags.DEFINE_enum(
    "pixels", None, [*RANGES], "Pixel range of the model. Default: derived from its layers."
)
_CROP = flags.DEFINE_string(
    "crop",
    "resize_crop",
    "How images become square: resize, resize_crop, resize_shorter, central:SHARE or published.",
)
_BATCH = flags.DEFINE_integer("batch_size", None, "Images per step.", lower_bound=1)
_PER_CLASS = flags.DEFINE_integer(
    "per_class", 0, "Maximum number of training images per class; 0: all.", lower_bound=0
)
_DEVICES = flags.DEFINE_enum(
    "devices", "auto", ["auto", "one", "mirrored", "tpu"], "Devices to compute on."
)
_PRECISION = flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "mixed_bfloat16", "mixed_float16"],
    "Dtype policy. A file model.keras has its own.",
)

HELD_OUT = 0.2  # share of each class that becomes the test set, if a folder has none


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """The features of a data set, and what reports state about its images.

    Attributes:
        name: Short name.
        train, test: Features of the readable images.
        num_unreadable: Number of training and test images that cannot be read.
        left_out: Summary of the files that were left out, with reasons, or "".
        num_repeated: Number of test images with exactly the features of a training image.
        conditions: Image size, crop and precision.
    """

    name: str
    train: Features
    test: Features
    num_unreadable: int
    left_out: str
    num_repeated: int
    conditions: str


def workdir() -> Path:
    """Returns the folder of the results."""
    return Path(_WORKDIR.value).expanduser()


def title() -> str:
    """Returns a title for reports: model, weights and layer."""
    weights = "" if _WEIGHTS.value is None else f" from {without_secrets(_WEIGHTS.value)}"
    return f"{_MODEL.value}{weights}, {_LAYER.value}"


def describe(seen: Sequence[Frozen]) -> list[str]:
    """Returns the paragraphs of a report on the images of the data sets, and how they were read."""
    rows = [
        [
            one.name,
            f"{len(one.train.labels):,}",
            f"{len(one.test.labels):,}",
            f"{one.num_unreadable:,}",
            f"{one.num_repeated:,}",
        ]
        for one in seen
    ]
    header = [
        "data",
        "training images",
        "test images",
        "unreadable",
        "test images also in training",
    ]
    page = [f"Images: {seen[0].conditions}.", table(header, rows)]
    if any(one.num_repeated for one in seen):
        page += [
            "Test images that are also in training have features exactly equal to those of a training "
            "image: probably the same image."
        ]
    return page + [f"{one.name}: {one.left_out}" for one in seen if one.left_out]


def frozen() -> Iterator[Frozen]:
    """Yields the features of each data set. Features that `--workdir` already holds are not
    computed again. Prints which files were left out.

    Raises:
        ValueError: If a flag is wrong; before anything is computed.
    """
    if not _DATA.value:
        raise ValueError("`--data` is empty: name at least one data set.")
    if not is_file(_MODEL.value):
        list_weights(_MODEL.value)  # raises an error if the model is unknown
    elif _PRECISION.value != "float32":
        raise ValueError(
            f"{_MODEL.value} computes in the precision with which it was saved: omit `--precision`."
        )
    pairs = {_get_short_name(words): _make_sources(words) for words in _DATA.value}
    if len(pairs) < len(_DATA.value):
        names = ", ".join(map(_get_short_name, _DATA.value))
        raise ValueError(
            f"The data sets of `--data` must have different short names. Received: {names}."
        )
    devices = connect(DevicesConfig(kind=_DEVICES.value, precision=_PRECISION.value))
    size = None if _IMAGE_SIZE.value is None else (_IMAGE_SIZE.value,) * 2
    crop = choose_crop(_CROP.value, _MODEL.value, _WEIGHTS.value)
    keras.utils.set_random_seed(0)  # so that a rerun has the same random weights
    with devices.scope():
        model = representation(_MODEL.value, _WEIGHTS.value, size, _PIXELS.value)
    height, width = size or model.input_shape[1:3]
    if devices.is_chief:
        print(describe_pixels(model, (height, width)), flush=True)
    precision = " and ".join(sorted({step.compute_dtype for step in model.layers}))
    crop_in_words = f"`--crop={crop}` ({describe_crop(crop)})"
    for name, pair in pairs.items():
        train, test = (
            extract(
                model,
                source,
                layer=_LAYER.value,
                output=workdir() / "features" / name / part,
                image_size=size,
                eval_crop=crop,
                batch_size=_BATCH.value,
                devices=devices,
            )
            for part, source in zip(("train", "test"), pair, strict=True)
        )
        left_out = group_by_reason(_list_left_out(name, pair))
        if left_out and devices.is_chief:
            print(f"{name}: {left_out}", flush=True)
        yield Frozen(
            name=name,
            train=train,
            test=test,
            num_unreadable=sum(source.num_examples for source in pair)
            - len(train.labels)
            - len(test.labels),
            left_out=left_out,
            num_repeated=count_repeated(train.values, test.values),
            conditions=f"{height} x {width} pixels, {crop_in_words}, {precision}",
        )


def _list_left_out(name: str, pair: tuple[Source, Source]) -> list[tuple[str, str]]:
    """Lists the files of a data set that are no examples, and its unreadable images."""
    files = [(str(path), reason) for source in pair for path, reason in source.left_out]
    records = (
        workdir() / "features" / name / part / "unreadable.txt" for part in ("train", "test")
    )
    unreadable = [line for record in records for line in read_record(record).items()]
    # Both parts of a folder without a test set list the files of the whole folder.
    return [*dict.fromkeys([*files, *unreadable])]


def _make_sources(words: str) -> tuple[Source, Source]:
    """Returns training and test set."""
    if words.startswith("tfds:"):
        name, train, test = _split_tfds_words(words)
        if _PER_CLASS.value:
            raise ValueError(
                f"`--per_class` works for folders only. Received: {words}. Name a part of the "
                f"split instead, such as train[:10%]."
            )
        return sources.tfds(name, train), sources.tfds(name, test)
    train, test = folders.training_and_test(words)
    if test is None:
        test, train = train.split_by_class(HELD_OUT)
    return (_draw_per_class(train, _PER_CLASS.value) if _PER_CLASS.value else train), test


def _draw_per_class(source: Source, most: int) -> Source:
    """Returns at most `most` images of each class, drawn with seed 0."""
    order = np.random.default_rng(0).permutation(source.num_examples)
    by_class = [
        order[source.labels[order] == label][:most] for label in range(len(source.class_names))
    ]
    return source.subset(np.sort(np.concatenate(by_class)))


def _get_short_name(words: str) -> str:
    if words.startswith("tfds:"):
        return _split_tfds_words(words)[0].replace("/", "_").replace(":", "_")
    return Path(words).expanduser().resolve().name


def _split_tfds_words(words: str) -> tuple[str, str, str]:
    """Returns name, training split and test split."""
    part = r"([^:\[]+(?:\[[^\]]*\])?)"
    match = re.fullmatch(rf"tfds:([^:]+(?::[\d.*]+)?):{part}:{part}", words)
    if match is None:
        raise ValueError(
            f"A data set of TensorFlow Datasets must have the form tfds:NAME:TRAIN:TEST. Received: "
            f"{words!r}."
        )
    return match[1], match[2], match[3]
