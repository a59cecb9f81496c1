"""One run of an ablation: trains an arm with one seed, then measures its test and few-shot
accuracy; trains it with one learning rate, and measures its accuracy on the held-out images; or
trains a start, and measures the few-shot accuracy of its features.

A run leaves the files of `keras_vit.train` except the checkpoints, and `measured.json`, whose keys
are columns of `trials.csv`.
"""

import ast
import functools
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from command_line.trials import read_json

import keras_vit
from ablations.arms import Config, StartConfig
from ablations.processor import name_processor
from ablations.rows import FEWSHOT, HELD_OUT, TEST
from keras_vit.data.sources import Source
from keras_vit.devices import Devices, connect
from keras_vit.evaluate import accuracy, extract, fewshot
from keras_vit.layers import AddPositionEmbs
from keras_vit.train import (
    FinetuneConfig,
    MAEConfig,
    MaskedPatchesConfig,
    PretrainConfig,
    RunConfig,
    pretrain,
    pretrain_mae,
    pretrain_masked_patches,
    run_finetuning,
)
from keras_vit.train.checkpoints import Checkpoints
from keras_vit.train.config import row_of
from keras_vit.train.finetune_recipe import settle
from keras_vit.train.inputs import make_sources
from keras_vit.train.logs import read_metrics
from keras_vit.train.new_head import build_on_trunk
from keras_vit.train.workdir import check_folder
from keras_vit.weights.restore import restore
from keras_vit.writing import write_json

RESULT, NEW_POSITIONS = "measured.json", "new_positions.npz"
PROCEDURES = {
    PretrainConfig: pretrain,
    FinetuneConfig: run_finetuning,
    MaskedPatchesConfig: pretrain_masked_patches,
    MAEConfig: pretrain_mae,
}
VALIDATION = "validation/accuracy"
FEW_CLASSES = 20  # with at most so many classes, 10 examples per class are drawn instead of 5
DRAWS = tuple(range(10))
PRETRAINED_SHOTS = 5  # for starts, as in Figure 4
PER_CLASS = 100  # approximate number of images per class that examples are drawn from


def _once(procedure: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Decorates a procedure that returns the entries of `measured.json`: the call writes them into
    the folder of the run, the last argument, and performs no finished run again. The first argument
    is the config, which must be that of the finished run.
    """

    @functools.wraps(procedure)
    def perform(*arguments: Any) -> None:
        config, folder = arguments[0], arguments[-1]
        if is_measured(folder):
            check_run(config, folder)
        else:
            write_json(folder / RESULT, procedure(*arguments))
        remove_checkpoints(folder)

    return perform


def check_run(config: Config | StartConfig, folder: Path) -> None:
    """Raises ValueError if the folder contains a run with another config.

    Folders may have moved, so the data and the weights of a start are compared by their content. If
    a start was trained again, with another result, a run that fine-tuned it has another config.
    """
    there = read_json(folder / "config.json").get("config", {})  # values as Python literals
    if isinstance(config, FinetuneConfig) and there:
        config, _ = settle(config)
        weights = ast.literal_eval(there.get("weights", "''"))
        if _hash_in(weights) == _hash_in(config.weights):
            config = replace(config, weights=weights)
    data, sources = config.run.data, ()
    name = ast.literal_eval(there.get("run.data.name", repr(data.name)))
    if data.kind == "image_folder" and name != data.name:
        sources = make_sources(data, config.run.seed)
        config = replace(config, run=replace(config.run, data=replace(data, name=name)))
    check_folder(folder, config, sources)


def _hash_in(weights: str) -> str:
    """Returns the hash in the recorded name of weights, "PATH, sha256 HASH", or a tag."""
    return weights.rpartition(", sha256 ")[2]


@_once
def train_and_validate(config: Config, folder: Path) -> dict[str, Any]:
    """Performs a run that measures a learning rate. If interrupted, the same call resumes it.

    Args:
        config: From `make_rate_config`.
        folder: Folder of the run.

    Raises:
        As `keras_vit.train.pretrain`.
    """
    results = PROCEDURES[type(config)](config, folder)
    devices = connect(config.run.devices)
    training, _ = make_sources(config.run.data, config.run.seed)
    model, step = load_trained(config, folder, len(training.class_names), devices)
    return {
        HELD_OUT: find_held_out_accuracy(folder),
        **describe(config, folder, model, step, results),
        "training_images": training.num_examples,
    }


@_once
def train_and_measure(config: Config, folder: Path) -> dict[str, Any]:
    """Performs a run that is tested. If interrupted, the same call resumes it.

    Args:
        config: From `make_seed_config`.
        folder: Folder of the run.

    Raises:
        As `keras_vit.train.pretrain`.
    """
    results = PROCEDURES[type(config)](config, folder)
    keras.utils.clear_session(free_memory=True)
    data, devices = config.run.data, connect(config.run.devices)
    whole, test = make_sources(replace(data, held_out=0.0, train_share=1.0), config.run.seed)
    num_images = make_sources(data, config.run.seed)[0].num_examples
    model, step = load_trained(config, folder, len(whole.class_names), devices)
    how = {
        "eval_crop": data.eval_crop,
        "batch_size": config.run.eval_batch_size,
        "devices": devices,
    }
    shots = choose_shots(len(whole.class_names))
    return {
        HELD_OUT: find_held_out_accuracy(folder) if data.held_out else None,
        TEST: accuracy(model, test, **how)["top1"] if data.held_out else results[VALIDATION],
        **measure_fewshot(model, whole, test, shots, how),
        **describe(config, folder, model, step, results),
        "training_images": num_images,
        "test_images": test.num_examples,
    }


@_once
def train_start(config: StartConfig, downstream: RunConfig, folder: Path) -> dict[str, Any]:
    """Performs a pre-training run. If interrupted, the same call resumes it.

    Args:
        config: From `make_start_config`.
        downstream: Settings of an arm with this start: its data, of which the whole training set
            and the test set are used to measure the features.
        folder: Folder of the run.

    Raises:
        As `keras_vit.train.pretrain`.
    """
    results = PROCEDURES[type(config)](config, folder)
    keras.utils.clear_session(free_memory=True)
    data, devices = downstream.data, connect(config.run.devices)
    whole, test = make_sources(replace(data, held_out=0.0, train_share=1.0), config.run.seed)
    row, num_classes = row_of(config.model, config.variant), len(whole.class_names)
    with devices.scope():
        model = build_on_trunk(
            row, folder / "model.npz", config.image_size, num_classes, **config.model_options
        )
    how = {
        "eval_crop": data.eval_crop,
        "batch_size": downstream.eval_batch_size,
        "devices": devices,
    }
    return {
        **measure_fewshot(model, whole, test, PRETRAINED_SHOTS, how),
        **describe(config, folder, model, config.run.loop.total_steps, results),
        "training_images": make_sources(config.run.data, config.run.seed)[0].num_examples,
        "test_images": test.num_examples,
    }


def renew_positions(config: FinetuneConfig, source: Path) -> None:
    """Writes the weights of a config, unless the file exists: other weights with a random position
    table. It is drawn with the seed of the run, as for a model without pre-training, at the image
    size of the config.

    Args:
        config: Its field `weights` is the path of the new file.
        source: The other weights.
    """
    path = Path(config.weights)
    if path.exists():
        return
    row, size = row_of(config.model, config.variant), config.image_size
    keras.utils.set_random_seed(config.run.seed)
    untrained, model = (
        build_on_trunk(row, weights, size, 1, **config.model_options) for weights in (None, source)
    )
    for layer, fresh in zip(model.layers, untrained.layers, strict=True):
        if isinstance(layer, AddPositionEmbs):
            layer.set_weights(fresh.get_weights())
    path.parent.mkdir(parents=True, exist_ok=True)
    keras_vit.save_checkpoint(model, path)


def describe(
    config: Config | StartConfig,
    folder: Path,
    model: keras.Model,
    step: int,
    results: dict[str, Any],
) -> dict[str, Any]:
    """Returns the entries of `measured.json` that all runs have."""
    return {
        "learning_rate": config.run.optimizer.learning_rate,
        "seed": config.run.seed,
        "steps": step,
        "parameters": model.count_params(),
        "images_per_second": statistics.median(
            value for _, value in read_metrics(folder)["train/images_per_second"]
        ),
        "processor": name_processor(connect(config.run.devices)),
        "state_sha256": results["state_sha256"],
    }


def find_held_out_accuracy(folder: Path) -> float:
    """Returns the accuracy on the held-out images: the best of a run that stops early, and
    otherwise that at the end, which is the only one.
    """
    return max(value for _, value in read_metrics(folder)[VALIDATION])


def is_measured(folder: Path) -> bool:
    """Whether the run in a folder is finished."""
    return not {HELD_OUT, TEST, FEWSHOT}.isdisjoint(read_json(folder / RESULT))


def remove_checkpoints(folder: Path) -> None:
    """Removes the checkpoints of a measured run. They are two to three times as large as the
    weights, which are kept.
    """
    if is_measured(folder):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def load_trained(
    config: Config, folder: Path, num_classes: int, devices: Devices
) -> tuple[keras.Model, int]:
    """Returns the model to measure and its step: the best checkpoint of a run that stops early, that
    is, one with evaluations on a held-out part of the training set, else the last one.
    """
    stops_early = config.run.data.held_out and config.run.loop.evaluate_every
    best = Checkpoints(folder, best_metric=VALIDATION).best() if stops_early else None
    row, shape = row_of(config.model, config.variant), (config.image_size, config.image_size, 3)
    weights = folder / "model.npz" if best is None else None
    with devices.scope():
        model = keras_vit.application(row)(
            weights=weights,
            classes=num_classes,
            classifier_activation=None,
            input_shape=shape,
            **config.model_options,
        )
    if best is None:
        return model, config.run.loop.total_steps
    checkpoints, prefix = Checkpoints(folder), "weights/"
    state = checkpoints.read(best).state
    weights = {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }
    restore(model.layers, weights, origin=str(checkpoints.path(best)))
    return model, best


def choose_shots(num_classes: int) -> int:
    """Returns the number of training images per class that the few-shot accuracy of an arm takes."""
    return 10 if num_classes <= FEW_CLASSES else 5


def measure_fewshot(
    model: keras.Model, train: Source, test: Source, shots: int, how: dict[str, Any]
) -> dict[str, Any]:
    """Measures ridge regression on the features of few training images per class,
    drawn ten times.

    Args:
        model: The model, whose features are the input of its head.
        train, test: Training and test set.
        shots: Number of training images per class.
        how: Further arguments of `extract`.
    """
    num_classes = len(train.class_names)
    count = min(train.num_examples, PER_CLASS * num_classes)
    chosen = np.sort(np.random.default_rng(0).permutation(train.num_examples)[:count])
    parts = [extract(model, part, progress=False, **how) for part in (train.subset(chosen), test)]
    arrays = [array for part in parts for array in (part.values, part.labels)]
    result = fewshot(*arrays, class_names=train.class_names, shots=(shots,), seeds=DRAWS)
    return {
        FEWSHOT: float(result.mean[0, 0]),
        "fewshot_draws": result.accuracies[0, 0].tolist(),
        "shots": shots,
    }
