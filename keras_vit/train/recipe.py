"""From a config to a run: data, model, optimizer, devices, loop, report. What pre-training and fine-tuning share.

A run writes its config beside its checkpoints, and refuses the folder of a run with another.
"""

import dataclasses
import hashlib
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.data import duplicates, sources, transforms
from keras_vit.data.pipeline import Share, evaluation_batches, padded_rows, training_batches
from keras_vit.data.randaugment import rand_augment
from keras_vit.data.reading import Unreadable, named
from keras_vit.data.sources import Source
from keras_vit.data.transforms import Transform
from keras_vit.devices import Devices, connect
from keras_vit.drawing import check_can_draw
from keras_vit.folder_lock import alone_in
from keras_vit.suggestions import did_you_mean
from keras_vit.train.config import DataConfig, RunConfig, flattened
from keras_vit.train.learner import averaged, make_learner
from keras_vit.train.loop import train
from keras_vit.train.losses import Objective, classification
from keras_vit.train.optimizers import make_optimizer
from keras_vit.train.report import write_report
from keras_vit.variants import VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights.download import without_secrets
from keras_vit.weights.save import save_checkpoint
from keras_vit.writing import whole, write_json, write_text


def run(
    config: Any,
    settings: RunConfig,
    build: Callable[[int], keras.Model],
    image_size: int,
    workdir: str | os.PathLike,
    title: str,
    *,
    objective: Objective | None = None,
    watch: Callable[[keras.Model, np.ndarray, Path], None] | None = None,
    data: tuple[Source, Source | None] | None = None,
    conclude: Callable[[keras.Model, Any, Path], Sequence[str]] | None = None,
    command: str | None = None,
) -> dict[str, float]:
    """Trains what `build` makes, and leaves weights, curve and report in `workdir`.

    Args:
        config: The whole config, for `config.json`.
        settings: The part that says how to train.
        build: Number of classes to a model that gives logits.
        image_size: Side of the square images, in pixels.
        workdir: Of the run. The same command on the same folder goes on where it stopped.
        title: Of the report.
        objective: Labels and the model's outputs to losses and hits; default: classification, as `settings` say.
        watch: Model, validation images (8, H, W, 3) uint8, and the folder of the run; called when it is evaluated, to
            draw something that people can look at.
        data: What to learn from, and what to validate on or None; default: what `settings.data` names.
        conclude: Model, validation set and folder; called at the end with the averaged weights, to leave more in the
            folder. Returns sections for the report, in Markdown.
        command: What the report says to type to do the same again; default: that of this process.

    Returns:
        As `keras_vit.train.loop.train`.
    """
    workdir = Path(workdir).expanduser()
    check_can_draw()
    devices = connect(settings.devices)
    check_folder(workdir, config)
    with ExitStack() as stack:
        _agreed(devices, lambda: devices.is_chief and stack.enter_context(alone_in(workdir)))
        keras.utils.set_random_seed(settings.seed)
        train_source, test_source = make_sources(settings.data, settings.seed) if data is None else data
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
                objective=objective or classification(settings.loss, label_smoothing=settings.label_smoothing),
                accumulation_steps=settings.accumulation_steps,
                remat=settings.remat,
                clip_norm=settings.optimizer.clip_norm,
                num_replicas=devices.num_replicas,
                num_workers=devices.num_workers,
                **({} if settings.devices.jit_compile is None else {"jit_compile": settings.devices.jit_compile}),
            )
        # Now that the model could be made: a mistake must not take the folder.
        _agreed(devices, lambda: _claim(workdir, config, (train_source, test_source), devices))
        # Outside of the scope: inside, TensorFlow 2.21 cannot make NumPy arrays of the variables of several workers.
        bad = _unreadable(train_source, settings.data, workdir / "unreadable_train.txt")
        bad_test = None
        if test_source is not None:
            bad_test = _unreadable(test_source, settings.data, workdir / "unreadable_test.txt")

        def watcher(model: keras.Model) -> dict[str, float]:
            watch(model, _some_images(test_source or train_source, settings.data, image_size), workdir)
            return {}

        with named(bad, bad_test):
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
                evaluators={} if watch is None or not devices.is_chief else {"watched": watcher},
                validation=None
                if test_source is None
                else lambda: evaluation_batches(
                    test_source,
                    evaluation_transforms(settings.data, image_size),
                    batch_size=settings.eval_batch_size,
                    share=_share(min(settings.eval_batch_size, test_source.num_examples), 1, devices),
                    unreadable=bad_test,
                ),
            )
        sections: Sequence[str] = ()
        with averaged(learner):  # by all workers: variables over several are assigned together
            if devices.is_chief:
                save_checkpoint(model, workdir / "model.npz")
                sections = () if conclude is None else conclude(model, test_source, workdir)
        if devices.is_chief:
            facts = {**_facts(train_source, test_source, devices), **_figures(results), **_left_out(bad, bad_test)}
            facts |= {name: value for name, value in _recorded(config).items() if name != "recipe"}
            write_report(
                workdir, title=title, facts=facts, command=_command() if command is None else command, sections=sections
            )
            write_json(workdir / "results.json", results)
            print(f"{workdir / 'report.md'}\n{workdir / 'model.npz'}")
        print(f"state sha256: {results['state_sha256']}", flush=True)
        return results


def _agreed(devices: Devices, check: Callable[[], Any]) -> None:
    """Runs a check on every worker; what one refuses, all refuse: the others would wait for it."""
    refused = None
    try:
        check()
    except (ValueError, OSError) as error:
        refused = error
    answers = devices.gather(int(refused is not None))
    if refused is not None:
        raise refused
    if any(answers):
        raise ValueError(f"Worker {answers.index(1)} refused to begin; its own message says why.")


def _unreadable(source: Source, data: DataConfig, record: Path) -> Unreadable:
    return Unreadable(source, strict=data.strict, record=record)


def make_sources(data: DataConfig, seed: int) -> tuple[Source, Source | None]:
    """Returns the training set, and what to validate on or None. Their classes are the same."""
    if data.kind == "given":
        raise ValueError("`kind='given'` is a record of data that were passed in Python: no recipe can name them.")
    if data.held_out:
        validation, train_source = _training_source(data, seed).split(data.held_out)
    else:
        train_source = _training_source(data, seed)
        validation = _test_source(data, seed, train_source.class_names) if data.test else None
    if data.train_share < 1:
        train_source, _ = train_source.split(data.train_share, seed=seed)
    return train_source, validation


def _training_source(data: DataConfig, seed: int) -> Source:
    if data.kind == "image_folder":
        return sources.image_folder(Path(data.name).expanduser() / data.train)
    if data.kind == "tfds":
        return sources.tfds(data.name, data.train)
    if data.kind == "digits":
        return sources.digits("train")
    whole = _fractals(data, seed)
    return whole.subset(np.arange(_first_unseen(data, whole))) if data.test else whole


def _test_source(data: DataConfig, seed: int, class_names: tuple[str, ...]) -> Source:
    if data.kind == "image_folder":
        folder = Path(data.name).expanduser() / data.test
        if not folder.is_dir():
            raise ValueError(
                f"There is no folder {folder} to validate with. Name another with "
                "--config.run.data.test=FOLDER, or go without: --config.run.data.test="
            )
        return sources.image_folder(folder, class_names=class_names)
    if data.kind == "tfds":
        return sources.tfds(data.name, data.test)
    if data.kind == "digits":
        return sources.digits("test")
    whole = _fractals(data, seed)
    return whole.subset(np.arange(_first_unseen(data, whole), whole.num_examples))


def _fractals(data: DataConfig, seed: int) -> Source:
    return sources.fractals(
        data.num_classes, images_per_class=data.images_per_class, image_size=data.image_size, seed=seed
    )


def _first_unseen(data: DataConfig, whole: Source) -> int:
    """Instances that training never sees: a tenth of what one of each class has, at most 10."""
    return whole.num_examples - data.num_classes * max(1, min(10, data.images_per_class // 10))


def training_transforms(data: DataConfig, image_size: int) -> list[Transform]:
    """Returns crop, flip and RandAugment; batches travel as uint8 and are scaled on the device."""
    chosen = transforms.train_crop(data.crop, image_size, smallest_area=data.crop_area)
    chosen += [transforms.flip_left_right] if data.flip else []
    chosen += [transforms.to_uint8]
    if data.rand_augment_ops:
        chosen.append(rand_augment(data.rand_augment_ops, data.rand_augment_magnitude))
    return chosen


def evaluation_transforms(data: DataConfig, image_size: int) -> list[Transform]:
    """Returns the transforms of validation. Levels are not rounded: `evaluate` and `predict` give the same scores."""
    return [*transforms.eval_crop(data.eval_crop, image_size), transforms.scale_to(-1, 1)]


def _some_images(source: Source, data: DataConfig, image_size: int, count: int = 8) -> np.ndarray:
    """(count, image_size, image_size, 3) uint8, from all over the source."""
    chosen = source.subset(np.linspace(0, source.num_examples - 1, count).round())
    steps = [*transforms.eval_crop(data.eval_crop, image_size), transforms.to_uint8]
    batches = evaluation_batches(chosen, steps, batch_size=count)
    return next(iter(batches))[0].numpy()


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
        raise ValueError(f"A {type(row).__name__} has no {', '.join(unknown)}. It has: {', '.join(fields)}.")
    return replace(row, **changes) if changes else row


def check_folder(workdir: Path, config: Any, data: Sequence[Source | None] = ()) -> bool:
    """Makes the folder of a run, and returns whether this very run was begun there already.

    Args:
        workdir: Of the run.
        config: The whole config.
        data: What is learned from and what is validated on; nothing to leave them unchecked.

    Raises:
        ValueError: If it holds a run with another config, or the data have changed since it was begun.
        OSError: If it cannot be written.
    """
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
        if not path.exists():
            return False
        theirs = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(theirs, dict) or not {"config", "versions"} <= theirs.keys():
            raise ValueError("it has other fields")
    except OSError as error:
        raise OSError(f"Cannot write to {workdir}: {error.strerror}. Choose another folder for the run.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not the config of a run: {error}. Choose another folder for the run.") from error
    ours = _recorded(config)
    there = {name: without_secrets(str(value)) for name, value in theirs["config"].items()}
    # Where it runs may change from one part of a run to the next; what it computes may not.
    where = ("devices.kind", "devices.names", "devices.jit_compile")
    different = [
        name for name in sorted({*ours, *there}) if ours.get(name) != there.get(name) and not name.endswith(where)
    ]
    if different:
        lines = [f"  {name}: there {theirs['config'].get(name)}, here {ours.get(name)}" for name in different[:12]]
        raise ValueError(
            f"{workdir} holds a run with another config:\n" + "\n".join(lines) + "\nChoose another folder for the run."
        )
    if data and theirs.get("data_sha256") != data_sha256(data):
        names = " and ".join(part.name for part in data if part is not None)
        raise ValueError(
            f"The data have changed since the run in {workdir} was begun: {names}. "
            "Images were added, removed or replaced, or copied without their times of change. Restore them, or choose "
            "another folder for the run."
        )
    return True


def data_sha256(data: Sequence[Source | None]) -> str:
    """Returns a hash of the examples of a run: of those that are learned from, and of those that are validated on."""
    parts = ["none" if part is None else part.sha256() for part in data]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _claim(workdir: Path, config: Any, data: Sequence[Source | None], devices: Devices) -> None:
    """Writes the config into the folder, once."""
    path, versions = workdir / "config.json", _versions()
    # The files of other workers may be copies, with times of their own.
    if check_folder(workdir, config, data if devices.is_chief else ()):
        theirs = json.loads(path.read_text(encoding="utf-8"))["versions"]
        changed = {name: version for name, version in versions.items() if theirs.get(name) != version}
        if changed:
            logging.warning("This run was begun with other versions, so its bits may differ: now %s.", changed)
    elif devices.is_chief:
        with whole(path) as partial:
            record = {"config": _recorded(config), "versions": versions, "data_sha256": data_sha256(data)}
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _recorded(config: Any) -> dict[str, str]:
    facts = {"recipe": type(config).__name__, **flattened(config)}
    return {name: without_secrets(value) for name, value in facts.items()}


def _share(batch_size: int, accumulation_steps: int, devices: Devices) -> Share:
    return Share(
        rows=padded_rows(batch_size, devices.num_replicas * accumulation_steps),
        num_workers=devices.num_workers,
        worker_index=devices.worker_index,
        num_parts=devices.local_parts,
    )


def _without_duplicates(train_source: Source, test_source: Source, workdir: Path, devices: Devices) -> Source:
    report = duplicates.find_duplicates(train_source, test_source, progress=devices.is_chief)
    if devices.is_chief:
        write_text(workdir / "duplicates.md", report.markdown())
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
        "TensorFlow": version("tensorflow"),
        "backend": keras.backend.backend(),
        **({"JAX": version("jax")} if keras.backend.backend() == "jax" else {}),
    }


def _figures(results: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in results.items()}


def _left_out(*collectors: Unreadable | None) -> dict[str, str]:
    places = [place for collector in collectors if collector is not None for place in collector.recorded()]
    return {"unreadable images": f"{len(places)}: {', '.join(places[:20])}" if places else "none"}


def _command() -> str:
    return without_secrets(shlex.join(["python", *sys.argv]))
