"""The parts that all configs share: data, optimizer, devices, loop; and rows of the model table."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_vit.applications import application
from keras_vit.devices import DevicesConfig
from keras_vit.suggestions import did_you_mean
from keras_vit.train.loop import LoopConfig
from keras_vit.train.optimizers import OptimizerConfig
from keras_vit.variants import VARIANTS, ResNetVariant, ViTVariant

# Arguments of a model that a recipe sets itself.
_SET_BY_RECIPES = (
    "include_top",
    "weights",
    "input_tensor",
    "input_shape",
    "pooling",
    "classes",
    "classifier_activation",
    "include_preprocessing",
)
KINDS = ("image_folder", "tfds", "digits", "fractals", "given")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The data of a run, and the transforms of its images.

    Attributes:
        kind: "image_folder": the folder `name` contains the folders `train` and `test`; "tfds":
            `name` is a data set of TensorFlow Datasets, with the splits `train` and `test`;
            "digits": scikit-learn's digits; "fractals": fractals drawn on demand; "given": the
            sources that are passed to `keras_vit.train.run.run`.
        name: A folder, or a data set.
        train, test: Folders or splits. If `test` is empty, there is no validation.
        held_out: Share of the training set that is used for validation instead of training. The
            test set is then not opened. The examples do not depend on the seed of the run.
        train_share: Share of the remaining training set that is used for training, drawn with the
            seed of the run.
        num_classes, images_per_class, image_size: Size of the set, and of its images, for fractals.
        crop: Crop of training: "inception", "resize_crop" or "resize".
        crop_area: Smallest share of the image area in an Inception crop; 0.05 as published.
        eval_crop: Crop of evaluation: "resize" or "resize_shorter".
        flip: Whether to flip images horizontally at random.
        rand_augment_ops, rand_augment_magnitude: RandAugment; 0 operations disable it.
        mixup_alpha: Parameter of mixup; 0 disables it.
        drop_duplicates: Whether to leave out training images that are also in the test set.
        strict: Whether an unreadable image ends the run. If not, it is left out.
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
                "--config.run.data.name=/data/cifar10."
            )
        if not (0 <= self.held_out < 1 and 0 < self.train_share <= 1):
            raise ValueError(
                "`held_out` must be in [0, 1), and `train_share` in (0, 1]. "
                f"Received: held_out={self.held_out}, train_share={self.train_share}."
            )
        if self.mixup_alpha < 0 or self.rand_augment_ops < 0 or not 0 < self.crop_area <= 1:
            raise ValueError(
                "`mixup_alpha` and `rand_augment_ops` must not be negative, and `crop_area` must be in "
                f"(0, 1]. Received: {self.mixup_alpha}, {self.rand_augment_ops}, {self.crop_area}."
            )
        if self.crop != "inception" and self.crop_area != 0.05:
            raise ValueError(
                '`crop_area` applies to crop="inception" alone. Received: '
                f"crop_area={self.crop_area}, crop={self.crop!r}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """The settings of a run that do not depend on the model.

    Attributes:
        data, optimizer, devices, loop: Configs of these parts.
        batch_size: Examples per update, over all devices.
        eval_batch_size: Examples per evaluation step.
        accumulation_steps: Number of micro-batches per update: less memory, the same result.
        remat: Whether to recompute the blocks for the gradient: less memory, the same result.
        loss: "softmax" or "sigmoid".
        label_smoothing: Share of each target that is spread over all classes.
        seed: Seed of weights, order, augmentation and dropout.
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
            raise ValueError(
                f"{', '.join(names)} must be at least 1. Received: {', '.join(wrong)}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be in [0, 1). Received: {self.label_smoothing}."
            )


def flatten_config(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns the fields of a config by dotted name: {"optimizer.learning_rate": "0.001", ...}."""
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
    """Returns a row of the table of models, with some fields changed.

    Raises:
        ValueError: If there is no such model or field. The message suggests valid names.
    """
    if model not in VARIANTS:
        suggestion = did_you_mean(model, VARIANTS) or f" Models: {', '.join(VARIANTS)}."
        raise ValueError(f"There is no model {model!r}.{suggestion}")
    row = VARIANTS[model]
    fields = [field.name for field in dataclasses.fields(row)]
    unknown = [name for name in changes if name not in fields]
    if unknown:
        raise ValueError(
            f"A {type(row).__name__} has no field {', '.join(unknown)}. Fields: "
            f"{', '.join(fields)}."
        )
    return replace(row, **changes) if changes else row


def check_model_options(
    row: ViTVariant | ResNetVariant, options: Mapping[str, Any], *, set_too: Sequence[str] = ()
) -> None:
    """Raises ValueError if a recipe cannot pass on these arguments to a model of this row.

    Args:
        row: A row of the table of models.
        options: `model_options` of a config.
        set_too: Further arguments that the recipe sets itself.
    """
    arguments = inspect.signature(application(row)).parameters
    valid = [name for name in arguments if name not in (*_SET_BY_RECIPES, *set_too)]
    if unknown := [name for name in options if name not in valid]:
        raise ValueError(
            f"`model_options` does not accept {', '.join(unknown)}."
            f"{did_you_mean(unknown[0], valid)} Valid: {', '.join(valid)}."
        )
