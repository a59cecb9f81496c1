"""A run from its config to its report, the same for all kinds of training."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.pipeline import padded_rows
from keras_vit.data.reading import explain_unreadable
from keras_vit.data.sources import Source
from keras_vit.devices import Devices, connect
from keras_vit.drawing import check_can_draw
from keras_vit.folder_lock import lock_folder
from keras_vit.suggestions import did_you_mean
from keras_vit.train.config import RunConfig
from keras_vit.train.inputs import Inputs, drop_duplicates, make_inputs, make_sources
from keras_vit.train.learner import Learner, make_learner, use_averaged_weights
from keras_vit.train.loop import train
from keras_vit.train.losses import Objective, classification
from keras_vit.train.optimizers import make_optimizer
from keras_vit.train.report import write_report
from keras_vit.train.workdir import check_folder, claim, describe_config, versions
from keras_vit.weights.save import save_checkpoint
from keras_vit.weights.secrets import join_command
from keras_vit.writing import write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Procedure:
    """The parts in which pre-training, fine-tuning, masked patches and autoencoders differ.

    Attributes:
        title: Title of the report.
        build: Function from the number of classes to a model that returns logits.
        image_size: Side of the square images, in pixels.
        noise_length: Number of random numbers that the model takes beside each image, as a second
            input. They are a function of the seed of the run, the epoch and the example.
        trunk: Function from the model to the part of it that `model.npz` contains. Default: all.
        objective: Function from labels and outputs of the model to losses and hits. Default:
            classification with the loss of the config.
        preview: Function of the model, validation images (8, H, W, 3) uint8, and the folder of the
            run, which draws a figure. It is called at each evaluation.
        conclude: Function of the model, the validation set and the folder, which may write further
            files and returns sections for the report, in Markdown. It is called once at the end,
            with the averaged weights.
        command: Command line that repeats the run. Default: the one of this process.
    """

    title: str
    build: Callable[[int], keras.Model]
    image_size: int
    noise_length: int = 0
    trunk: Callable[[keras.Model], keras.Model] = lambda model: model
    objective: Objective | None = None
    preview: Callable[[keras.Model, np.ndarray, Path], None] | None = None
    conclude: Callable[[keras.Model, Any, Path], Sequence[str]] | None = None
    command: str | None = None


def run(
    config: Any,
    workdir: str | os.PathLike,
    procedure: Procedure,
    data: tuple[Source, Source | None] | None = None,
) -> dict[str, float]:
    """Trains the model of a procedure, and writes weights, learning curve and report.

    It also raises the errors of `keras_vit.train.loop.train`.

    Args:
        config: The whole config, recorded in `config.json`. Its field `run` contains the settings.
        workdir: Folder of the run. The same command on the same folder resumes it.
        procedure: The model and its objective.
        data: Training set, and validation set or None. Default: the data of `config.run.data`.

    Returns:
        The metrics of the last evaluation, and "state_sha256".

    Raises:
        ValueError: If the data, the model or the folder do not match the config.
    """
    settings: RunConfig = config.run
    workdir = Path(workdir).expanduser()
    check_can_draw()
    devices = connect(settings.devices)
    check_folder(workdir, config)
    with ExitStack() as stack:
        _agree(devices, lambda: devices.is_chief and stack.enter_context(lock_folder(workdir)))
        keras.utils.set_random_seed(settings.seed)
        training, validation = make_sources(settings.data, settings.seed) if data is None else data
        if settings.data.drop_duplicates and validation is not None:
            training = drop_duplicates(training, validation, workdir, devices)
        with devices.scope():
            model = procedure.build(len(training.class_names))
            learner = _make_learner(model, settings, procedure.objective, devices)
        _check_best_metric(settings.loop.best_metric, learner)
        # Write the config after the model was built, so that an error does not occupy the folder.
        _agree(devices, lambda: claim(workdir, config, (training, validation), devices))
        # Outside of the scope: inside, TensorFlow 2.21 cannot convert the variables of several
        # workers to NumPy arrays.
        inputs = make_inputs(
            training,
            validation,
            settings,
            procedure.image_size,
            workdir,
            devices,
            noise_length=procedure.noise_length,
        )
        with explain_unreadable(inputs.unreadable, inputs.unreadable_validation):
            results = train(
                learner,
                model,
                inputs.training_batches,
                settings.loop,
                workdir,
                batch_size=settings.batch_size,
                devices=devices,
                evaluators=_make_evaluators(procedure, inputs, workdir),
                validation=None if validation is None else inputs.validation_batches,
            )
        sections: Sequence[str] = ()
        # All workers enter this context, because they assign distributed variables together.
        with use_averaged_weights(learner):
            if devices.is_chief:
                save_checkpoint(procedure.trunk(model), workdir / "model.npz")
                if procedure.conclude is not None:
                    sections = procedure.conclude(model, validation, workdir)
        if devices.is_chief:
            facts = {
                **_collect_facts(inputs),
                **_collect_versions(workdir),
                **_format_results(results),
                **_describe_unreadable(inputs),
            }
            facts |= {
                name: value for name, value in describe_config(config).items() if name != "recipe"
            }
            command = _make_command() if procedure.command is None else procedure.command
            write_report(
                workdir, title=procedure.title, facts=facts, command=command, sections=sections
            )
            write_json(workdir / "results.json", results)
            print(f"{workdir / 'report.md'}\n{workdir / 'model.npz'}")
        print(f"state sha256: {results['state_sha256']}", flush=True)
        return results


def _agree(devices: Devices, check: Callable[[], Any]) -> None:
    """Runs a check on every worker. If it fails on one worker, all raise an error.

    Otherwise the other workers would wait for the failed one.
    """
    refused = None
    try:
        check()
    except (ValueError, OSError) as error:
        refused = error
    answers = devices.gather(int(refused is not None))
    if refused is not None:
        raise refused
    if any(answers):
        raise ValueError(
            f"Worker {answers.index(1)} could not start the run. See the error of that worker."
        )


def _make_learner(
    model: keras.Model, settings: RunConfig, objective: Objective | None, devices: Devices
) -> Learner:
    optimizer = make_optimizer(
        settings.optimizer,
        model,
        settings.loop.total_steps,
        loss_scaling=settings.devices.precision == "mixed_float16",
    )
    jit_compile = settings.devices.jit_compile
    return make_learner(
        model,
        optimizer,
        batch_rows=padded_rows(
            settings.batch_size, devices.num_replicas * settings.accumulation_steps
        ),
        objective=objective
        or classification(settings.loss, label_smoothing=settings.label_smoothing),
        accumulation_steps=settings.accumulation_steps,
        remat=settings.remat,
        clip_norm=settings.optimizer.clip_norm,
        num_replicas=devices.num_replicas,
        num_workers=devices.num_workers,
        **({} if jit_compile is None else {"jit_compile": jit_compile}),
    )


def _check_best_metric(name: str, learner: Learner) -> None:
    valid = [f"validation/{count}" for count in learner.counts]
    if name not in valid:
        raise ValueError(
            f"No evaluation measures `best_metric` = {name!r}.{did_you_mean(name, valid)} Valid: "
            f"{', '.join(valid)}."
        )


def _make_evaluators(
    procedure: Procedure, inputs: Inputs, workdir: Path
) -> dict[str, Callable[[keras.Model], dict]]:
    preview = procedure.preview
    if preview is None or not inputs.devices.is_chief:
        return {}

    def draw(model: keras.Model) -> dict[str, float]:
        preview(model, inputs.preview(), workdir)
        return {}

    return {"preview": draw}


def _collect_facts(inputs: Inputs) -> dict[str, str]:
    training, validation = inputs.training, inputs.validation
    facts = {"training set": f"{training.name}, {training.num_examples} examples"}
    if validation is not None:
        facts["validation set"] = f"{validation.name}, {validation.num_examples} examples"
    facts["classes"] = str(len(training.class_names))
    return {**facts, "devices": inputs.devices.description}


def _collect_versions(workdir: Path) -> dict[str, str]:
    """Returns the versions with which the run was started, and those of this process if they differ."""
    ours = versions()
    theirs = json.loads((workdir / "config.json").read_text(encoding="utf-8"))["versions"]
    changed = [f"{name} {ours[name]}" for name in ours if ours[name] != theirs.get(name)]
    return {**theirs, **({"later versions": ", ".join(changed)} if changed else {})}


def _format_results(results: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in results.items()
    }


def _describe_unreadable(inputs: Inputs) -> dict[str, str]:
    places = inputs.unreadable_places()
    return {"unreadable images": f"{len(places)}: {', '.join(places[:20])}" if places else "none"}


def _make_command() -> str:
    return join_command(["python", *sys.argv])
