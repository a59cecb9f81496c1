"""Compares training on one device, on replicas and in micro-batches: differences of losses and
weights.

    python experiments/replica_equality.py [--models=bit,hybrid] [--optimizers=momentum:1e-2,adam:1e-3] [--steps=12,30]
    python experiments/replica_equality.py --optimizers=adam:1e-2 --smooth
    python experiments/replica_equality.py --optimizers=adam:1e-2 --steps=12 --eager

Small models of each kind are trained from random weights in float32 on noise images of 32 pixels,
in batches of 16, with gradients clipped at norm 1. Replicas are virtual CPU devices. The table
shows two relative differences: of the losses, relative to the largest loss, and of the weights
after the last step, relative to the largest value of each array, as the maximum over all arrays.
The last column compares two runs that add the same sums over eight rows, and so shows what
distribution changes beyond rounding.

`--smooth` replaces ReLU with softplus and the max pooling of the root with average pooling, as the
gradients of ReLU and of the maximum are discontinuous. With `--eager` TensorFlow fuses no
operations; in graphs it fuses different operations inside a loop over micro-batches than outside.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import command_line.native_logs

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from command_line.exit_codes import exit_on_error

from keras_vit.data import pipeline, sources
from keras_vit.devices import DevicesConfig, connect
from keras_vit.models import resnet, vision_transformer
from keras_vit.train.learner import make_learner
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant
from keras_vit.writing import table

BATCH_SIZE, IMAGE_SIZE, CLASSES = 16, 32, 10


def _shrink(row: ViTVariant | ResNetVariant) -> ViTVariant | ResNetVariant:
    if isinstance(row, ResNetVariant):
        return replace(row, units=(1, 1))
    stem = row.stem and replace(row.stem, units=(1, 1))
    return replace(
        row, patch_size=1 if stem else 8, width=32, depth=2, num_heads=2, mlp_dim=64, stem=stem
    )


MODELS: Mapping[str, ViTVariant | ResNetVariant] = {
    "vit": _shrink(VIT_VARIANTS["ViT_B16"]),
    "axial_vit": _shrink(VIT_VARIANTS["AxialViT_B16"]),
    "hybrid": _shrink(VIT_VARIANTS["R50_ViT_B16"]),
    "bit": _shrink(RESNET_VARIANTS["BiT_R50x1"]),
    "resnet": _shrink(RESNET_VARIANTS["ResNet50x1"]),
    "axial_resnet": _shrink(RESNET_VARIANTS["AxialResNet50"]),
}

_MODELS = flags.DEFINE_list("models", list(MODELS), f"Models, of {', '.join(MODELS)}.")
_OPTIMIZERS = flags.DEFINE_list(
    "optimizers",
    ["momentum:1e-2", "adam:1e-3", "adam:1e-2"],
    "NAME:RATE, a name of `OptimizerConfig` and a constant learning rate.",
)
_STEPS = flags.DEFINE_list("steps", ["12", "30"], "Numbers of steps after which to compare.")
_SMOOTH = flags.DEFINE_bool("smooth", False, "Replace ReLU with softplus, max with mean pooling.")
_EAGER = flags.DEFINE_bool("eager", False, "Run eagerly, so that no operations are fused.")

flags.register_validator(
    "models",
    lambda names: bool(names) and set(names) <= set(MODELS),
    f"must be of {', '.join(MODELS)}.",
)
flags.register_validator(
    "optimizers",
    lambda texts: bool(texts) and all(re.fullmatch(r"\w+:[\d.e-]+", text) for text in texts),
    "must be NAME:RATE, such as adam:1e-3.",
)
flags.register_validator(
    "steps",
    lambda texts: bool(texts) and all(text.isdecimal() and int(text) for text in texts),
    "must be whole numbers from 1.",
)


@dataclass(frozen=True)
class Way:
    """A way to divide the batch."""

    replicas: int = 1
    micro_batches: int = 1


WAYS = {
    "2 replicas": Way(replicas=2),
    "4 replicas": Way(replicas=4),
    "2 micro-batches": Way(micro_batches=2),
}


class Record(keras.callbacks.Callback):
    """Records the losses of all steps, and the weights after some steps."""

    def __init__(self, steps: list[int]):
        super().__init__()
        self.steps = steps
        self.losses: list[float] = []
        self.weights: dict[int, list[np.ndarray]] = {}

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if len(self.losses) in self.steps:
            self.weights[len(self.losses)] = [
                np.array(v.numpy()) for v in self.model.trainable_variables
            ]


@exit_on_error()
def main(_: list[str]) -> None:
    steps = sorted(map(int, _STEPS.value))
    optimizers = [_parse_optimizer(text) for text in _OPTIMIZERS.value]
    virtual = [tf.config.LogicalDeviceConfiguration()] * max(way.replicas for way in WAYS.values())
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], virtual)
    if _SMOOTH.value:
        _make_smooth()
    rows = []
    for name in _MODELS.value:
        for optimizer in optimizers:
            print(
                f"{name}, {optimizer.name} {optimizer.learning_rate:g}", file=sys.stderr, flush=True
            )
            rows += _compare(name, optimizer, steps)
    print(
        table(
            ["model", "optimizer", "rate", "steps", *WAYS, "2 replicas from 2 micro-batches"], rows
        )
    )


def _make_smooth() -> None:
    """Replaces the functions and layers of Keras that the models use."""
    keras.ops.relu = keras.ops.softplus
    keras.ops.max_pool = keras.ops.average_pool
    keras.layers.ReLU.call = lambda self, inputs: keras.ops.softplus(inputs)
    keras.layers.MaxPooling2D = keras.layers.AveragePooling2D


def _parse_optimizer(text: str) -> OptimizerConfig:
    name, _, rate = text.partition(":")
    return OptimizerConfig(name=name, learning_rate=float(rate), schedule="constant")


def _compare(name: str, optimizer: OptimizerConfig, steps: list[int]) -> list[list[str]]:
    """Returns the rows of the table for a model and an optimizer: one for each number of steps."""
    one = _train(name, optimizer, steps, Way())
    others = {way: _train(name, optimizer, steps, WAYS[way]) for way in WAYS}
    pairs = [(other, one) for other in others.values()] + [
        (others["2 replicas"], others["2 micro-batches"])
    ]
    first = [name, optimizer.name, f"{optimizer.learning_rate:g}"]
    return [
        [*first, str(count), *(_format_difference(*pair, count) for pair in pairs)]
        for count in steps
    ]


def _train(name: str, config: OptimizerConfig, steps: list[int], way: Way) -> Record:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    kind, names = (
        ("mirrored", tuple(f"CPU:{i}" for i in range(way.replicas)))
        if way.replicas > 1
        else ("one", ())
    )
    devices = connect(DevicesConfig(kind=kind, names=names))
    images = (
        np.random.RandomState(0).randint(0, 256, (100, IMAGE_SIZE, IMAGE_SIZE, 3)).astype("uint8")
    )
    source = sources.arrays(images, np.arange(len(images)) % CLASSES)
    share = pipeline.Share(rows=BATCH_SIZE, num_parts=devices.local_parts)
    with devices.scope():
        model = _build(MODELS[name])
        learner = make_learner(
            model,
            make_optimizer(config, model, steps[-1]),
            batch_rows=BATCH_SIZE,
            clip_norm=1.0,
            accumulation_steps=way.micro_batches,
            num_replicas=devices.num_replicas,
            run_eagerly=_EAGER.value,
        )
        batches = pipeline.training_batches(source, [], batch_size=BATCH_SIZE, seed=1, share=share)
        record = Record(steps)
        options = {
            "steps_per_epoch": steps[-1],
            "verbose": 0,
            "shuffle": False,
            "callbacks": [record],
        }
        learner.fit(devices.distribute(batches), **options)
    return record


def _build(row: ViTVariant | ResNetVariant) -> keras.Model:
    images = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3))
    if isinstance(row, ResNetVariant):
        # average pooling cannot ignore the padding
        return resnet(
            row, images, classes=CLASSES, pool_padding="zeros" if _SMOOTH.value else "ignored"
        )
    return vision_transformer(row, images, classes=CLASSES)


def _format_difference(found: Record, expected: Record, steps: int) -> str:
    losses = _compute_relative_error(
        np.array(found.losses[:steps]), np.array(expected.losses[:steps])
    )
    errors = [
        _compute_relative_error(a, b)
        for a, b in zip(found.weights[steps], expected.weights[steps], strict=True)
    ]
    weights = float(np.max(errors))  # NaN if one is, unlike `max`
    return f"{losses:.1e}, {weights:.1e}"


def _compute_relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12))


if __name__ == "__main__":
    app.run(main)
