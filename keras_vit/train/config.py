"""What a run is told: the parts of its config, reading one from a recipe, and changing a field from a command line.

A recipe is a Python file with a function `get_config(arg)` that returns a complete, frozen config. It is code, so that
one recipe can be made of another with `dataclasses.replace`; a field is changed by its dotted name.
"""

import ast
import dataclasses
import difflib
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_vit.train.devices import DevicesConfig
from keras_vit.train.loop import LoopConfig
from keras_vit.train.optimizers import OptimizerConfig

KINDS = ("image_folder", "tfds", "digits", "fractals")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What to learn from, and how its images are changed.

    Attributes:
        kind: "image_folder": `name` holds the folders `train` and `test`; "tfds": `name` is a data set of TensorFlow
            Datasets, `train` and `test` its splits; "digits": scikit-learn's; "fractals": drawn on the fly.
        name: A folder, or a data set.
        train, test: Folders or splits. An empty `test` is no validation.
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
                f"`data.name` is empty: name the {'folder' if self.kind == 'image_folder' else 'data set'}, for "
                "example --config.data.name=/data/cifar10."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """How to train, whatever the model.

    Attributes:
        data, optimizer, devices, loop: See there.
        batch_size: Examples of an update, over all devices.
        eval_batch_size: Examples of an evaluation step.
        accumulation_steps: Micro-batches of an update, one after the other: less memory, the same result.
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


def load_config(recipe: str, overrides: Sequence[str] = ()) -> Any:
    """Returns the config of a recipe, with changes.

    Args:
        recipe: "path/to/recipe.py" or "path/to/recipe.py:argument"; its `get_config(argument)` is called.
        overrides: "optimizer.learning_rate=0.003" and the like.

    Raises:
        ValueError: If there is no such recipe or field; names the nearest fields.
    """
    path, _, argument = recipe.partition(":")
    if not Path(path).is_file():
        raise ValueError(
            f"There is no recipe {path}. Recipes are files such as experiments/configs/cifar10_scratch.py."
        )
    get_config = runpy.run_path(path).get("get_config")
    if get_config is None:
        raise ValueError(f"{path} is no recipe: it has no function `get_config(arg)`.")
    config = get_config(argument)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"An override is written name=value. Received: {override!r}.")
        config = with_field(config, name, text)
    return config


def with_field(config: Any, name: str, text: str) -> Any:
    """Returns a config with one field changed.

    Args:
        config: A dataclass of dataclasses.
        name: "optimizer.learning_rate".
        text: The value as Python writes it; other text is a string.

    Example:
        >>> with_field(LoopConfig(total_steps=10), "log_every", "5").log_every
        5
    """
    known = flattened(config)
    if name not in known and name.rpartition(".")[0] not in _mappings(config):
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.5) or list(known)
        raise ValueError(f"The config has no field {name!r}. Near it: {', '.join(near[:8])}.")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    return _replaced(config, name.split("."), value, name)


def _replaced(config: Any, path: list[str], value: Any, name: str) -> Any:
    if isinstance(config, Mapping):
        return {**config, path[0]: value if len(path) == 1 else _replaced(config[path[0]], path[1:], value, name)}
    if len(path) > 1:
        return replace(config, **{path[0]: _replaced(getattr(config, path[0]), path[1:], value, name)})
    old = getattr(config, path[0])
    value = float(value) if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool) else value
    value = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value
    if old is not None and value is not None and type(value) is not type(old):
        raise ValueError(f"`{name}` is of type {type(old).__name__}. Received: {value!r}.")
    return replace(config, **{path[0]: value})


def _mappings(config: Any, prefix: str = "") -> list[str]:
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Mapping):
            found.append(prefix + field.name)
        elif dataclasses.is_dataclass(value):
            found += _mappings(value, f"{prefix}{field.name}.")
    return found


def flattened(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns {"optimizer.learning_rate": "0.001", ...} of a config."""
    flat: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flattened(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = repr(dict(value)) if isinstance(value, Mapping) else repr(value)
    return flat
