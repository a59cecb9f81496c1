"""What few-shot and linear evaluation start from: the features of training and test sets, computed
once and kept.

`--data` takes data sets, separated by commas, each a folder with `train/<class>` and `test/<class>`
(or val), a folder of classes, of which a fifth is held out, or tfds:NAME:TRAIN:TEST, such as
tfds:cifar100:train:test. `--model` is a name with `--weights` (a tag, a file, a URL, or `none` for
random ones), or a file model.keras.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import flags

from keras_vit import list_weights
from keras_vit.data import folders, sources
from keras_vit.data.sources import Source
from keras_vit.devices import DevicesConfig, connect
from keras_vit.evaluate import Features, extract
from keras_vit.evaluate.classifier import representation
from keras_vit.keras_file import is_file
from keras_vit.pixels import RANGES, describe_pixels

_DATA = flags.DEFINE_list(
    "data", None, "Folders, or tfds:NAME:TRAIN:TEST; separated by commas.", required=True
)
_MODEL = flags.DEFINE_string(
    "model", "ViT_B16", "A name of `keras_vit.list_models()`, or a file model.keras."
)
_WEIGHTS = flags.DEFINE_string("weights", None, "Tag, file or URL; `none` are random ones.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for features and results.", required=True)
_LAYER = flags.DEFINE_string(
    "layer", "pre_logits", "pre_logits, class_token, patch_mean, or the name of a layer."
)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", None, "Side in pixels. Default: that of the weights.", lower_bound=1
)
_PIXELS = flags.DEFINE_enum(
    "pixels", None, [*RANGES], "Pixels that the model was trained on. Default: as its layers say."
)
_CROP = flags.DEFINE_enum(
    "crop", "resize_crop", ["resize", "resize_crop", "resize_shorter"], "From file to square."
)
_BATCH = flags.DEFINE_integer("batch_size", None, "Images of a step.", lower_bound=1)
_PER_CLASS = flags.DEFINE_integer(
    "per_class", 0, "Training images of each class at most; 0: all.", lower_bound=0
)
_DEVICES = flags.DEFINE_enum(
    "devices", "auto", ["auto", "one", "mirrored", "tpu"], "Where to compute."
)
_PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "In which."
)

HELD_OUT = 0.2  # of a folder without a test set


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """The features of a data set."""

    name: str
    train: Features
    test: Features


def workdir() -> Path:
    """Returns the folder of the results."""
    return Path(_WORKDIR.value).expanduser()


def title() -> str:
    """Returns what is evaluated, in words."""
    weights = "" if _WEIGHTS.value is None else f" from {_WEIGHTS.value}"
    return f"{_MODEL.value}{weights}, {_LAYER.value}"


def frozen() -> Iterator[Frozen]:
    """Yields the features of each data set; those that are in the folder already are not computed
    again.
    """
    if not _DATA.value:
        raise ValueError("`--data` names no data set.")
    if not is_file(_MODEL.value):
        list_weights(_MODEL.value)  # tells of a model that there is not
    # a mistake is told before anything is computed
    pairs = {_short(words): _pair(words) for words in _DATA.value}
    if len(pairs) < len(_DATA.value):
        raise ValueError(
            f"Two data sets would be called the same: {', '.join(map(_short, _DATA.value))}."
        )
    devices = connect(DevicesConfig(kind=_DEVICES.value, precision=_PRECISION.value))
    size = None if _IMAGE_SIZE.value is None else (_IMAGE_SIZE.value,) * 2
    with devices.scope():
        model = representation(_MODEL.value, _WEIGHTS.value, size, _PIXELS.value)
    if devices.is_chief:
        print(describe_pixels(model, size or model.input_shape[1:3]), flush=True)
    for name, pair in pairs.items():
        train, test = (
            extract(
                model,
                source,
                layer=_LAYER.value,
                output=workdir() / "features" / name / part,
                image_size=size,
                eval_crop=_CROP.value,
                batch_size=_BATCH.value,
                devices=devices,
            )
            for part, source in zip(("train", "test"), pair, strict=True)
        )
        yield Frozen(name=name, train=train, test=test)


def _pair(words: str) -> tuple[Source, Source]:
    if words.startswith("tfds:"):
        name, train, test = _tfds_words(words)
        if _PER_CLASS.value:
            raise ValueError(
                f"`--per_class` is for folders; of {words} take a part of the split, such as "
                f"train[:10%]."
            )
        return sources.tfds(name, train), sources.tfds(name, test)
    train, test = folders.training_and_test(words)
    if test is None:
        test, train = train.split_by_class(HELD_OUT)
    return (_thinned(train, _PER_CLASS.value) if _PER_CLASS.value else train), test


def _thinned(source: Source, most: int) -> Source:
    """At most so many images of each class, drawn with seed 0."""
    order = np.random.default_rng(0).permutation(source.num_examples)
    by_class = [
        order[source.labels[order] == label][:most] for label in range(len(source.class_names))
    ]
    return source.subset(np.sort(np.concatenate(by_class)))


def _short(words: str) -> str:
    if words.startswith("tfds:"):
        return _tfds_words(words)[0].replace("/", "_").replace(":", "_")
    return Path(words).expanduser().resolve().name


def _tfds_words(words: str) -> tuple[str, str, str]:
    part = r"([^:\[]+(?:\[[^\]]*\])?)"
    match = re.fullmatch(rf"tfds:([^:]+(?::[\d.*]+)?):{part}:{part}", words)
    if match is None:
        raise ValueError(
            f"A data set of TensorFlow Datasets is written tfds:NAME:TRAIN:TEST. Received: "
            f"{words!r}."
        )
    return match[1], match[2], match[3]
