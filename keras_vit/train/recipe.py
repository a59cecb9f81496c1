"""From a config to a run: data, model, optimizer, devices, loop, report. What pre-training and fine-tuning share.

A config is a frozen dataclass that says everything. A run writes it beside its checkpoints, and refuses the folder of a
run with another config.
"""

import ast
import dataclasses
import difflib
import json
import os
import platform
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data import duplicates, sources, transforms
from keras_vit.data.pipeline import Share, evaluation_batches, padded_rows, training_batches
from keras_vit.data.randaugment import rand_augment
from keras_vit.data.reading import Transform, Unreadable
from keras_vit.data.sources import Source
from keras_vit.train.devices import Devices, DevicesConfig, connect
from keras_vit.train.learner import averaged, make_learner
from keras_vit.train.loop import LoopConfig, train
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer
from keras_vit.train.report import write_report
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights.save import save_checkpoint

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


def run(
    config: Any,
    settings: RunConfig,
    build: Callable[[int], keras.Model],
    image_size: int,
    workdir: str | os.PathLike,
    title: str,
) -> dict[str, float]:
    """Trains what `build` makes, and leaves weights, curve and report in `workdir`.

    Args:
        config: The whole config, for `config.json`.
        settings: The part that says how to train.
        build: Number of classes to a model that gives logits.
        image_size: Side of the square images, in pixels.
        workdir: Of the run. The same command on the same folder goes on where it stopped.
        title: Of the report.

    Returns:
        As `keras_vit.train.loop.train`.
    """
    workdir = Path(workdir)
    devices = connect(settings.devices)
    _claim(workdir, config, devices)
    keras.utils.set_random_seed(settings.seed)
    train_source, test_source = make_sources(settings.data, settings.seed)
    if settings.data.drop_duplicates and test_source is not None:
        train_source = _without_duplicates(train_source, test_source, workdir, devices)
    with devices.scope():
        model = build(len(train_source.class_names))
        optimizer = make_optimizer(
            settings.optimizer,
            model,
            settings.loop.total_steps,
            loss_scaling=settings.devices.precision == "mixed_float16",
        )
        learner = make_learner(
            model,
            optimizer,
            batch_rows=padded_rows(settings.batch_size, devices.num_replicas * settings.accumulation_steps),
            loss=settings.loss,
            label_smoothing=settings.label_smoothing,
            accumulation_steps=settings.accumulation_steps,
            remat=settings.remat,
            clip_norm=settings.optimizer.clip_norm,
            num_replicas=devices.num_replicas,
            num_workers=devices.num_workers,
            **({} if settings.devices.jit_compile is None else {"jit_compile": settings.devices.jit_compile}),
        )
        bad = Unreadable(train_source, strict=settings.data.strict)
        bad_test = None if test_source is None else Unreadable(test_source, strict=settings.data.strict)
        results = train(
            learner,
            model,
            lambda start, stamp: training_batches(
                train_source,
                training_transforms(settings.data, image_size),
                batch_size=settings.batch_size,
                seed=settings.seed,
                share=_share(settings.batch_size, settings.accumulation_steps, devices),
                start_step=start,
                total_steps=settings.loop.total_steps,
                mixup_alpha=settings.data.mixup_alpha,
                unreadable=bad,
                stamp=stamp,
            ),
            settings.loop,
            workdir,
            batch_size=settings.batch_size,
            devices=devices,
            validation=None
            if test_source is None
            else lambda: evaluation_batches(
                test_source,
                [*transforms.eval_crop(settings.data.eval_crop, image_size), transforms.to_uint8],
                batch_size=settings.eval_batch_size,
                share=_share(min(settings.eval_batch_size, test_source.num_examples), 1, devices),
                unreadable=bad_test,
            ),
        )
        if devices.is_chief:
            with averaged(learner):
                save_checkpoint(model, workdir / "model.npz")
    if devices.is_chief:
        facts = {**_facts(train_source, test_source, devices), **_figures(results), **_left_out(bad, bad_test)}
        write_report(workdir, title=title, facts={**facts, **flattened(config)}, command=_command())
        print(f"{workdir / 'report.md'}\n{workdir / 'model.npz'}")
    print(f"state sha256: {results['state_sha256']}", flush=True)
    return results


def make_sources(data: DataConfig, seed: int) -> tuple[Source, Source | None]:
    """Returns the training set, and the test set or None. Their classes are the same."""
    if data.kind == "image_folder":
        train_source = sources.image_folder(Path(data.name) / data.train)
        names = train_source.class_names
        return train_source, (
            sources.image_folder(Path(data.name) / data.test, class_names=names) if data.test else None
        )
    if data.kind == "tfds":
        return sources.tfds(data.name, data.train), sources.tfds(data.name, data.test) if data.test else None
    if data.kind == "digits":
        return sources.digits("train"), sources.digits("test") if data.test else None
    options = {"images_per_class": data.images_per_class, "image_size": data.image_size, "seed": seed}
    whole = sources.fractals(data.num_classes, **options)
    if not data.test:
        return whole, None
    # Instances that training never sees: the last tenth of each class, at most 10 of them.
    held_out = data.num_classes * max(1, min(10, data.images_per_class // 10))
    cut = whole.num_examples - held_out
    return whole.subset(np.arange(cut)), whole.subset(np.arange(cut, whole.num_examples))


def training_transforms(data: DataConfig, image_size: int) -> list[Transform]:
    """Returns crop, flip and RandAugment; batches travel as uint8 and are scaled on the device."""
    if data.crop == "inception":
        chosen = [transforms.inception_crop(image_size, area=(data.crop_area, 1.0))]
    else:
        chosen = [*transforms.train_crop(data.crop, image_size)]
    chosen += [transforms.flip_left_right] if data.flip else []
    chosen += [transforms.to_uint8]
    if data.rand_augment_ops:
        chosen.append(rand_augment(data.rand_augment_ops, data.rand_augment_magnitude))
    return chosen


def row_of(model: str, changes: Mapping[str, Any]) -> ViTVariant | ResNetVariant:
    """Returns a row of the table of models, with changes.

    Raises:
        ValueError: If there is no such model or field; names the nearest.
    """
    rows = {**VIT_VARIANTS, **RESNET_VARIANTS}
    if model not in rows:
        near = difflib.get_close_matches(model, rows, n=3) or list(rows)
        raise ValueError(f"There is no model {model!r}. Near it: {', '.join(near)}.")
    fields = [field.name for field in dataclasses.fields(rows[model])]
    unknown = [name for name in changes if name not in fields]
    if unknown:
        raise ValueError(f"A {type(rows[model]).__name__} has no {', '.join(unknown)}. It has: {', '.join(fields)}.")
    return replace(rows[model], **changes) if changes else rows[model]


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
        raise ValueError(f"There is no recipe {path}. Recipes are files such as experiments/configs/cifar10_scratch.py.")
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
    fields = [*known, *(f"{prefix}.{key}" for prefix in _mappings(config) for key in ())]
    holder, _, field = name.rpartition(".")
    if name not in known and holder not in _mappings(config):
        near = difflib.get_close_matches(name, fields, n=4, cutoff=0.5) or fields
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


def _claim(workdir: Path, config: Any, devices: Devices) -> None:
    """Writes the config into the folder, or checks that the one there is the same."""
    ours = {"recipe": type(config).__name__, **flattened(config)}
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if devices.is_chief:
                partial = workdir / f".config-{os.getpid()}.json"
                partial.write_text(json.dumps({"config": ours, "versions": _versions()}, indent=1), encoding="utf-8")
                partial.replace(path)
            return
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OSError(f"Cannot write to {workdir}: {error.strerror}. Choose another `--workdir`.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not the config of a run: {error}. Choose another `--workdir`.") from error
    # Where it runs may change from one part of a run to the next; what it computes may not.
    different = [
        name
        for name in sorted({*ours, *theirs["config"]})
        if ours.get(name) != theirs["config"].get(name) and ".devices." not in f".{name}"
    ]
    if different:
        lines = [f"  {name}: there {theirs['config'].get(name)}, here {ours.get(name)}" for name in different[:12]]
        raise ValueError(
            f"{workdir} holds a run with another config:\n" + "\n".join(lines) + "\nChoose another `--workdir`."
        )
    changed = {name: version for name, version in _versions().items() if theirs["versions"].get(name) != version}
    if changed:
        logging.warning("This run was begun with other versions, so its bits may differ: now %s.", changed)


def _share(batch_size: int, accumulation_steps: int, devices: Devices) -> Share:
    # On JAX the framework cuts a worker's rows for its devices.
    cuts = devices.local_replicas if keras.backend.backend() == "tensorflow" else 1
    return Share(
        rows=padded_rows(batch_size, devices.num_replicas * accumulation_steps),
        num_workers=devices.num_workers,
        worker_index=devices.worker_index,
        num_parts=cuts,
    )


def _without_duplicates(train_source: Source, test_source: Source, workdir: Path, devices: Devices) -> Source:
    report = duplicates.find_duplicates(train_source, test_source, progress=devices.is_chief)
    if devices.is_chief:
        (workdir / "duplicates.md").write_text(report.markdown(), encoding="utf-8")
    return duplicates.drop_duplicates(train_source, report) if report.pairs else train_source


def _facts(train_source: Source, test_source: Source | None, devices: Devices) -> dict[str, str]:
    facts = {"training set": f"{train_source.name}, {train_source.num_examples} examples"}
    if test_source is not None:
        facts["validation set"] = f"{test_source.name}, {test_source.num_examples} examples"
    facts["classes"] = str(len(train_source.class_names))
    return {**facts, "devices": devices.description, **_versions()}


def _versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
        "backend": keras.backend.backend(),
    }


def _figures(results: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in results.items()}


def _left_out(*collectors: Unreadable | None) -> dict[str, str]:
    places = [place for collector in collectors if collector is not None for place in collector.places]
    return {"unreadable images": f"{len(places)}: {', '.join(places[:20])}" if places else "none"}


def _command() -> str:
    return shlex.join(["python", *sys.argv])
