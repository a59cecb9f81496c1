"""The parts of a config that every procedure has: data, optimizer, devices, loop; and the row of a
model.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keras_vit.devices import DevicesConfig
from keras_vit.suggestions import did_you_mean
from keras_vit.train.loop import LoopConfig
from keras_vit.train.optimizers import OptimizerConfig
from keras_vit.variants import VARIANTS, ResNetVariant, ViTVariant

KINDS = ("image_folder", "tfds", "digits", "fractals", "given")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What to learn from, and how its images are changed.

    Attributes:
        kind: "image_folder": `name` holds the folders `train` and `test`; "tfds": `name` is a data
            set of TensorFlow Datasets, `train` and `test` its splits; "digits": scikit-learn's;
            "fractals": drawn on the fly; "given": what the caller of `keras_vit.train.run.run`
            passes.
        name: A folder, or a data set.
        train, test: Folders or splits. An empty `test` is no validation.
        held_out: Share of the training set that is left out and validated on; the test set is not
            opened then. The same examples whatever the seed of the run.
        train_share: Share of the training set that is learned from, after `held_out`; drawn with
            the seed of the run.
        num_classes, images_per_class, image_size: Of fractals.
        crop: Crop policy of training: "inception", "resize_crop" or "resize".
        crop_area: Smallest part of the image that an Inception crop may take; 0.05 as published.
        eval_crop: Of evaluation: "resize" or "resize_shorter".
        flip: Random flips from left to right.
        rand_augment_ops, rand_augment_magnitude: RandAugment; 0 operations is none.
        mixup_alpha: 0 is none.
        drop_duplicates: Leave out training images that are in the test set too.
        strict: An image that cannot be read ends the run, instead of being left out.
    """

    kind: str = "image_folder"
    name: str = ""
    train: str = "train"
    test: str = "test"
    held_out: float = 0.0
    train_share: float = 1.0
    num_classes: int = 1000
    images_per_class: int = 1000
    image_size: int = 64
    crop: str = "inception"
    crop_area: float = 0.05
    eval_crop: str = "resize"
    flip: bool = True
    rand_augment_ops: int = 0
    rand_augment_magnitude: float = 10.0
    mixup_alpha: float = 0.0
    drop_duplicates: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}. Received: {self.kind!r}.")
        if self.kind in ("image_folder", "tfds") and not self.name:
            raise ValueError(
                "`data.name` is empty: name the "
                f"{'folder' if self.kind == 'image_folder' else 'data set'}, for example "
                "--config.data.name=/data/cifar10."
            )
        if not (0 <= self.held_out < 1 and 0 < self.train_share <= 1):
            raise ValueError(
                "`held_out` must be in [0, 1), and `train_share` in (0, 1]. "
                f"Received: held_out={self.held_out}, train_share={self.train_share}."
            )
        if self.crop != "inception" and self.crop_area != 0.05:
            raise ValueError(
                f"`crop_area` is of Inception crops. Received: {self.crop_area}, "
                f"crop={self.crop!r}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """How to train, whatever the model.

    Attributes:
        data, optimizer, devices, loop: See there.
        batch_size: Examples of an update, over all devices.
        eval_batch_size: Examples of an evaluation step.
        accumulation_steps: Micro-batches of an update, one after the other: less memory, the same
            result.
        remat: Compute the insides of blocks twice: less memory, the same result.
        loss: "softmax" or "sigmoid".
        label_smoothing: See `keras_vit.train.losses`.
        seed: Of weights, order, augmentation and dropout.
    """

    data: DataConfig
    loop: LoopConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    devices: DevicesConfig = DevicesConfig()
    batch_size: int = 512
    eval_batch_size: int = 512
    accumulation_steps: int = 1
    remat: bool = False
    loss: str = "softmax"
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        names = ("batch_size", "eval_batch_size", "accumulation_steps")
        wrong = [f"`{name}` = {getattr(self, name)}" for name in names if getattr(self, name) < 1]
        if wrong:
            raise ValueError(f"These must be at least 1. Received: {', '.join(wrong)}.")


def flatten_config(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns {"optimizer.learning_rate": "0.001", ...} of a config."""
    flat: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten_config(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = (
                repr(dict(value)) if isinstance(value, Mapping) else repr(value)
            )
    return flat


def row_of(model: str, changes: Mapping[str, Any]) -> ViTVariant | ResNetVariant:
    """Returns a row of the table of models, with changes.

    Raises:
        ValueError: If there is no such model or field; names the nearest.
    """
    if model not in VARIANTS:
        suggestion = did_you_mean(model, VARIANTS) or f" There are: {', '.join(VARIANTS)}."
        raise ValueError(f"There is no model {model!r}.{suggestion}")
    row = VARIANTS[model]
    fields = [field.name for field in dataclasses.fields(row)]
    unknown = [name for name in changes if name not in fields]
    if unknown:
        raise ValueError(
            f"A {type(row).__name__} has no {', '.join(unknown)}. It has: {', '.join(fields)}."
        )
    return replace(row, **changes) if changes else row
