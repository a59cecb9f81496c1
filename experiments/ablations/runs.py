"""One run of an ablation: trains an arm with one seed, then measures its test and few-shot
accuracy.

A run leaves the files of `keras_vit.train` except the checkpoints, and `measured.json`.
"""

import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from command_line.trials import read_json

import keras_vit
from ablations.arms import Config
from keras_vit.data.sources import Source
from keras_vit.devices import Devices, connect
from keras_vit.evaluate import accuracy, extract, fewshot
from keras_vit.train import FinetuneConfig, PretrainConfig, pretrain, run_finetuning
from keras_vit.train.checkpoints import Checkpoints
from keras_vit.train.config import row_of
from keras_vit.train.inputs import make_sources
from keras_vit.train.logs import read_metrics
from keras_vit.weights.restore import restore
from keras_vit.writing import write_json

RESULT, METRIC = "measured.json", "test/accuracy"
PROCEDURES = {PretrainConfig: pretrain, FinetuneConfig: run_finetuning}
VALIDATION = "validation/accuracy"
FEW_CLASSES = 20  # with at most so many classes, 10 examples per class are drawn instead of 5
DRAWS = tuple(range(10))
PER_CLASS = 100  # approximate number of images per class that examples are drawn from


def train_and_measure(config: Config, folder: Path) -> None:
    """Performs a run. If interrupted, the same call resumes it.

    Raises:
        As `keras_vit.train.pretrain`.
    """
    if METRIC in read_json(folder / RESULT):
        remove_checkpoints(folder)
        return
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
    measured = {
        METRIC: accuracy(model, test, **how)["top1"] if data.held_out else results[VALIDATION],
        **measure_fewshot(model, whole, test, how),
        "step": step,
        "train_images": num_images,
        "parameters": model.count_params(),
        "images_per_second": statistics.median(
            value for _, value in read_metrics(folder)["train/images_per_second"]
        ),
    }
    write_json(folder / RESULT, measured)
    remove_checkpoints(folder)


def remove_checkpoints(folder: Path) -> None:
    """Removes the checkpoints of a measured run. They are two to three times as large as the
    weights, which are kept.
    """
    if METRIC in read_json(folder / RESULT):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def load_trained(
    config: Config, folder: Path, num_classes: int, devices: Devices
) -> tuple[keras.Model, int]:
    """Returns the model to measure and its step: the best checkpoint if a part of the training set
    is held out, else the last one.
    """
    best = Checkpoints(folder, best_metric=VALIDATION).best() if config.run.data.held_out else None
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


def measure_fewshot(
    model: keras.Model, train: Source, test: Source, how: dict[str, Any]
) -> dict[str, Any]:
    """Measures ridge regression on the features of few training images per class,
    drawn ten times.
    """
    num_classes = len(train.class_names)
    count = min(train.num_examples, PER_CLASS * num_classes)
    chosen = np.sort(np.random.default_rng(0).permutation(train.num_examples)[:count])
    parts = [extract(model, part, progress=False, **how) for part in (train.subset(chosen), test)]
    shots = 10 if num_classes <= FEW_CLASSES else 5
    arrays = [array for part in parts for array in (part.values, part.labels)]
    result = fewshot(*arrays, class_names=train.class_names, shots=(shots,), seeds=DRAWS)
    return {
        "fewshot/accuracy": float(result.mean[0, 0]),
        "fewshot/draws": result.accuracies[0, 0].tolist(),
        "shots": shots,
    }
