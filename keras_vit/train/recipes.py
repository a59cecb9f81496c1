"""Recipes: a config from a Python file, with overrides from a command line, or in a smoke form.

A recipe is a Python file with a function `get_config(arg)` that returns a complete, frozen config.
It is code, so a recipe can be derived from another with `dataclasses.replace`. An override names a
field by its dotted path.
"""

import ast
import dataclasses
import runpy
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_vit.keras_file import is_file
from keras_vit.suggestions import did_you_mean
from keras_vit.train.config import DataConfig, flatten_config
from keras_vit.variants import VARIANTS, ResNetVariant

_NAMES = {types.NoneType: "None", Mapping: "dict"}  # of types, in messages
_WORDS = {"true": True, "false": False, "none": None}  # not literals in this case


def load_config(recipe: str, overrides: Sequence[str] = ()) -> Any:
    """Returns the config of a recipe, with overrides.

    Args:
        recipe: "path/to/recipe.py" or "path/to/recipe.py:argument". Its `get_config(argument)` is
            called.
        overrides: Fields to change, such as "optimizer.learning_rate=0.003".

    Raises:
        ValueError: If there is no such recipe or field (the message suggests the closest fields),
            or the model is a file `model.keras` and an override sets what that file contains.
    """
    path, _, argument = recipe.partition(":")
    if not Path(path).is_file():
        raise ValueError(
            f"There is no recipe {path}. Recipes are files such as "
            f"experiments/configs/cifar10_scratch.py."
        )
    get_config = runpy.run_path(path).get("get_config")
    if get_config is None:
        raise ValueError(f"{path} is not a recipe: it has no function `get_config(arg)`.")
    config = get_config(argument)
    changes = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"An override must be written name=value. Received: {override!r}.")
        changes[name] = text
    config = with_fields(config, changes)
    if is_file(getattr(config, "model", "")):
        brought = [
            name
            for name in changes
            if name.partition(".")[0] in ("weights", "variant", "model_options")
        ]
        if brought:
            raise ValueError(
                f"{config.model} contains its own weights, row and options. Leave out "
                f"{', '.join(brought)}."
            )
    return config


def recipe_words(arg: str, valid: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Parses the argument of a recipe: words in any order, separated by commas.

    At most one word of each kind is allowed.

    Args:
        arg: The argument of `get_config`.
        valid: Valid words of each kind.

    Returns:
        The given word of each kind, or "".

    Raises:
        ValueError: If a word is not valid, or two words are of the same kind. The message lists the
            valid words.

    Example:
        >>> recipe_words("smoke,ViT_B16", {"model": ("ViT_B16", "ViT_L16"), "epochs": ("90ep",), "size": ("smoke",)})
        {'model': 'ViT_B16', 'epochs': '', 'size': 'smoke'}
    """
    words = [word.strip() for word in arg.split(",") if word.strip()]
    found = {kind: [word for word in words if word in choices] for kind, choices in valid.items()}
    if sum(map(len, found.values())) < len(words) or any(
        len(chosen) > 1 for chosen in found.values()
    ):
        lines = "\n".join(f"  {kind}: {', '.join(choices)}" for kind, choices in valid.items())
        raise ValueError(
            "This recipe takes words separated by commas, at most one from each line below, or "
            f"nothing after the colon. Received: {arg!r}.\n{lines}"
        )
    return {kind: "".join(chosen) for kind, chosen in found.items()}


def smoke_form(config: Any) -> Any:
    """Returns a config reduced to seconds: ten steps of a tiny model on data without a download.

    It keeps the optimizer, schedule, crops, augmentation and loss of the recipe. The data are
    scikit-learn's digits, or a few fractals if the recipe uses fractals. A config with `weights`
    starts, at a higher resolution, from the weights that the smoke form of a model of the same
    family wrote to /tmp/smoke.

    Args:
        config: A config with the fields `run`, `model`, `variant`, `model_options` and
            `image_size`.

    Example:
        >>> from keras_vit.train import LoopConfig, PretrainConfig, RunConfig
        >>> run = RunConfig(data=DataConfig(name="/data/pets"), loop=LoopConfig(total_steps=500))
        >>> small = smoke_form(PretrainConfig(model="ViT_L16", run=run))
        >>> small.image_size, small.variant["width"], small.run.data.kind
        (16, 32, 'digits')
    """
    run, optimizer = config.run, config.run.optimizer
    tiny, stride = _shrink_row(config.model)
    options = dict(optimizer.schedule_options)
    if "boundaries" in options:
        options["boundaries"] = tuple(range(3, 9))[: len(options["boundaries"])]
    small = {
        "run": replace(
            run,
            data=_shrink_data(run.data),
            batch_size=32,
            optimizer=replace(
                optimizer,
                warmup_steps=min(2, optimizer.warmup_steps),
                schedule_options=options,
                average_momentum=None if optimizer.average_momentum is None else 0.9,
            ),
            loop=replace(
                run.loop, total_steps=10, log_every=2, evaluate_every=5, checkpoint_every=4
            ),
        ),
        "variant": {"name": "Smoke", **config.variant, **tiny},
        "model_options": {
            name: 32 if name == "representation_size" and value else value
            for name, value in config.model_options.items()
        },
        "image_size": 4 * stride,
    }
    if "weights" in {field.name for field in dataclasses.fields(config)}:
        small |= {"weights": "/tmp/smoke/model.npz", "image_size": 6 * stride}
    return replace(config, **small)


def _shrink_data(data: DataConfig) -> DataConfig:
    whole = replace(
        data, train="train", test="test", held_out=0.0, train_share=1.0, drop_duplicates=False
    )
    if data.kind == "fractals":
        return replace(whole, num_classes=8, images_per_class=20)
    return replace(whole, kind="digits", name="", flip=False)


def _shrink_row(model: str) -> tuple[dict[str, Any], int]:
    """Returns the fields that make a row tiny, and the side in pixels of a token or cell then."""
    row = VARIANTS[model]
    if isinstance(row, ResNetVariant):
        return {"units": (1, 1)}, 8
    fields: dict[str, Any] = {
        "patch_size": 4,
        "width": 32,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 64,
    }
    if row.stem is None:
        return fields, 4
    stem = replace(row.stem, units=(1, 1)[: len(row.stem.units)])
    return {**fields, "patch_size": 1, "stem": stem}, stem.total_stride


def with_fields(config: Any, changes: Mapping[str, str]) -> Any:
    """Returns a config with some fields changed.

    All changes are applied at once, so the checks of a config see the combined result.

    Args:
        config: A dataclass of dataclasses.
        changes: New values by dotted name, such as {"optimizer.learning_rate": "0.003"}. Values are
            Python literals; any other text is a string.

    Example:
        >>> from keras_vit.train import LoopConfig
        >>> with_fields(LoopConfig(total_steps=10), {"log_every": "5"}).log_every
        5
    """
    known, mappings = flatten_config(config), _find_mappings(config)
    for name in changes:
        if name not in known and name.rpartition(".")[0] not in mappings:
            suggestion = did_you_mean(name, known, 4) or f" Fields: {', '.join(known)}."
            raise ValueError(f"The config has no field {name!r}.{suggestion}")
    values = {tuple(name.split(".")): _parse_value(text) for name, text in changes.items()}
    return _replace_fields(config, values, "")


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _replace_fields(config: Any, values: Mapping[tuple[str, ...], Any], prefix: str) -> Any:
    is_mapping = isinstance(config, Mapping)
    new = {}
    for head in dict.fromkeys(path[0] for path in values):
        old = config.get(head) if is_mapping else getattr(config, head)
        if (head,) in values:
            old = values[head,] if is_mapping else _convert(config, head, prefix, values[head,])
        below = {
            path[1:]: value for path, value in values.items() if path[0] == head and len(path) > 1
        }
        new[head] = _replace_fields(old, below, f"{prefix}{head}.") if below else old
    return {**config, **new} if is_mapping else replace(config, **new)


def _convert(config: Any, field: str, prefix: str, value: Any) -> Any:
    """Returns a value as the declared type of a field: also an int for a float, a list for a tuple.

    Raises:
        ValueError: If it is of another type.
    """
    declared = typing.get_type_hints(type(config))[field]
    members = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    kinds = [typing.get_origin(member) or member for member in members]
    if Any in kinds:
        return value
    # the words of a Literal are strings, and the config checks them
    kinds = [str if kind is typing.Literal else kind for kind in kinds]
    if float in kinds and type(value) is int:
        value = float(value)
    if tuple in kinds and isinstance(value, list):
        value = tuple(value)
    # True is an int for isinstance, but not here
    if not any(
        type(value) is kind or (kind is Mapping and isinstance(value, kind)) for kind in kinds
    ):
        names = [_NAMES.get(kind, kind.__name__) for kind in kinds]
        is_meant = str(value) in _WORDS and type(_WORDS[str(value)]) in kinds
        asked = f" Write {_WORDS[value]}." if is_meant else ""
        raise ValueError(
            f"`{prefix}{field}` must be of type {' or '.join(names)}. Received: {value!r}.{asked}"
        )
    return value


def _find_mappings(config: Any, prefix: str = "") -> list[str]:
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Mapping):
            found.append(prefix + field.name)
        elif dataclasses.is_dataclass(value):
            found += _find_mappings(value, f"{prefix}{field.name}.")
    return found
