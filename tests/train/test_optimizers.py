"""Optimizers against trajectories that were worked out by hand, and who decays, moves and
freezes.
"""

import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
import warm

tf = pytest.importorskip("tensorflow")

import ten_updates  # noqa: E402

from keras_vit.models import resnet, vision_transformer  # noqa: E402
from keras_vit.train import tensorflow_step  # noqa: E402
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.losses import softmax_cross_entropy  # noqa: E402
from keras_vit.train.optimizers import (  # noqa: E402
    OPTIMIZERS,
    REPLACED_OPTIONS,
    Momentum,
    OptimizerConfig,
    ParameterGroups,
    make_optimizer,
)
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS  # noqa: E402
from keras_vit.weights.restore import named_variables  # noqa: E402

pytestmark = pytest.mark.tensorflow


class OneWeight(keras.layers.Layer):
    """A model of one weight, called as the names of checkpoints are."""

    def build(self, _):
        self.kernel = self.add_weight(name="kernel", shape=(1,), initializer="ones")
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="ones")

    def call(self, x):
        return x * self.kernel + self.bias


def model_of_one_weight() -> keras.Model:
    inputs = keras.Input((1,))
    return keras.Model(inputs, OneWeight(name="head")(inputs))


def trajectory(
    config: OptimizerConfig,
    gradients: list[float],
    total_steps: int = 4,
    apply: Callable | None = None,
) -> tuple[list, list, list]:
    """(kernel, bias, average of the kernel) after each gradient, applied by
    `apply(optimizer, gradients)`.
    """
    model = model_of_one_weight()
    optimizer = make_optimizer(config, model, total_steps)
    kernel, bias = model.trainable_variables
    rows = []
    for gradient in gradients:
        (apply or ParameterGroups.apply)(optimizer, [np.array([gradient], "float32")] * 2)
        average = optimizer.averages[0].numpy()[0] if optimizer.averages else math.nan
        rows.append((kernel.numpy()[0], bias.numpy()[0], average))
    return tuple(map(list, zip(*rows, strict=True)))


def test_momentum_scales_the_finished_velocity():
    # Linear from 0.1 to 0 in 4 steps: rates 0.1, 0.075. v: 1, 0.9 * 1 + 2 = 2.9. w: 1 - 0.1, 0.9 -
    # 0.075 * 2.9.
    config = OptimizerConfig(
        name="momentum",
        learning_rate=0.1,
        schedule="linear",
        schedule_options={"linear_end": 0.0},
        clip_norm=None,
    )
    kernel, _, _ = trajectory(config, [1.0, 2.0])
    np.testing.assert_allclose(kernel, [0.9, 0.9 - 0.075 * 2.9], rtol=1e-6)


def test_keras_puts_the_rate_inside_the_velocity():
    # The same by Keras: v = 0.9 * (0.1 * 1) + 0.075 * 2 = 0.24, and not 0.075 * 2.9 = 0.2175.
    config = OptimizerConfig(
        name="sgd",
        learning_rate=0.1,
        schedule="linear",
        schedule_options={"linear_end": 0.0},
        options={"momentum": 0.9},
    )
    np.testing.assert_allclose(trajectory(config, [1.0, 2.0])[0], [0.9, 0.9 - 0.24], rtol=1e-6)


def test_decay_is_decoupled_and_multiplied_by_the_rate():
    config = OptimizerConfig(
        name="momentum",
        learning_rate=0.1,
        schedule="constant",
        weight_decay=0.5,
        options={"momentum": 0.0},
    )
    kernel, bias, _ = trajectory(config, [2.0, 2.0])
    first = 1 - 0.1 * 0.5 * 1 - 0.1 * 2
    np.testing.assert_allclose(kernel, [first, first - 0.1 * 0.5 * first - 0.2], rtol=1e-6)
    np.testing.assert_allclose(bias, [0.8, 0.6], rtol=1e-6)  # only kernels decay
    _, bias, _ = trajectory(
        OptimizerConfig(
            name="momentum",
            learning_rate=0.1,
            schedule="constant",
            weight_decay=0.5,
            decay="all",
            options={"momentum": 0.0},
        ),
        [2.0],
    )
    np.testing.assert_allclose(bias, [first], rtol=1e-6)


def _as_the_training_step(optimizer: ParameterGroups, gradients: list) -> None:
    import tensorflow as tf

    tensorflow_step._update(
        tf.distribute.get_strategy(), optimizer, [tf.constant(gradient) for gradient in gradients]
    )


@pytest.mark.parametrize("apply", [ParameterGroups.apply, _as_the_training_step])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_by_hand(name, apply):
    config = OptimizerConfig(name=name, learning_rate=0.1, schedule="constant", weight_decay=0.01)
    kernel, _, _ = trajectory(config, [1.0, -3.0], apply=apply)
    w, m, v, expected = 1.0, 0.0, 0.0, []
    for step, gradient in enumerate([1.0, -3.0], start=1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w -= 0.1 * 0.01 * w
        w -= 0.1 * (m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.999**step)) + 1e-8)
        expected.append(w)
    np.testing.assert_allclose(kernel, expected, rtol=1e-5)


@pytest.mark.parametrize(("name", "epsilon"), [("adam", 1e-8), ("adamw", 1e-8), ("muon", 1e-8)])
def test_epsilon_is_that_of_jax(name: str, epsilon: float):
    for options in ({}, {"epsilon": 1e-3}):
        optimizer = make_optimizer(
            OptimizerConfig(name=name, options=options), model_of_one_weight(), 4
        )
        assert {rule.epsilon for rule in optimizer.rules.values()} == {
            options.get("epsilon", epsilon)
        }


def test_the_average_begins_with_the_first_step_and_leaves_the_weights_alone():
    config = OptimizerConfig(
        name="momentum",
        learning_rate=0.1,
        schedule="constant",
        average_momentum=0.8,
        options={"momentum": 0.0},
    )
    kernel, _, average = trajectory(config, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(kernel, [0.9, 0.8, 0.7], rtol=1e-6)
    second = 0.8 * 0.9 + 0.2 * 0.8
    np.testing.assert_allclose(average, [0.9, second, 0.8 * second + 0.2 * 0.7], rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_table_takes_a_step_downhill(name):
    kernel, _, _ = trajectory(
        OptimizerConfig(name=name, learning_rate=0.01, schedule="constant"), [1.0, 1.0]
    )
    assert kernel[1] < kernel[0] < 1.0 + 1e-6


def test_the_clipped_norm_is_that_of_the_whole_batch(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.RandomState(index).normal(size=variable.shape) * 0.3)
    before = [np.array(variable) for variable in model.trainable_variables]
    config = OptimizerConfig(
        name="momentum", learning_rate=1.0, schedule="constant", options={"momentum": 0.0}
    )
    learner = make_learner(model, make_optimizer(config, model, 1), batch_rows=4, clip_norm=0.25)
    images = np.random.RandomState(0).normal(size=(4, 16, 16, 3)).astype("float32")
    logs = learner.train_on_batch(images, np.arange(4), np.ones(4, "float32"), return_dict=True)
    moved = [b - np.array(a) for a, b in zip(model.trainable_variables, before, strict=True)]
    assert math.sqrt(sum((delta**2).sum() for delta in moved)) == pytest.approx(0.25, rel=1e-4)
    assert logs["gradient_norm"] > 0.25


def test_what_softmax_cannot_see_does_not_move(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    learner = make_learner(
        model, make_optimizer(OptimizerConfig(learning_rate=0.1), model, 9), batch_rows=4
    )
    images = np.random.RandomState(0).normal(size=(4, 16, 16, 3)).astype("float32")
    for _ in range(3):
        learner.train_on_batch(images, np.arange(4), np.ones(4, "float32"))
    named = named_variables(model.layers)
    assert not np.array(named["encoderblock_0/attention/key/bias"]).any()
    assert np.array(named["encoderblock_0/attention/query/bias"]).any()


def in_halves(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> tuple[list, list]:
    """The gradient of a batch at once, and the sum of those of its halves, one operation after the
    other.
    """

    def gradients(rows: slice) -> list:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                softmax_cross_entropy(labels[rows], model(images[rows], training=True))
            )
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    middle, end = len(images) // 2, len(images)
    first, second = gradients(slice(0, middle)), gradients(slice(middle, end))
    return gradients(slice(0, end)), [a + b for a, b in zip(first, second, strict=True)]


RELATIVE = {"position_embedding": "relative", "pooling": "map"}
IN_EVERY_BLOCK = {
    "position_embedding": "learned_2d",
    "position_placement": "every_layer",
    "representation_size": 8,
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("R50_ViT_B16", RELATIVE),
        pytest.param("AxialResNet50", {}, marks=pytest.mark.slow),
        pytest.param("BiT_R50x1", {}, marks=pytest.mark.slow),
        pytest.param("ResNet50x1", {}, marks=pytest.mark.slow),
        pytest.param("ViT_B16", IN_EVERY_BLOCK, marks=pytest.mark.slow),
        pytest.param("AxialViT_B16", {"pooling": "avg"}, marks=pytest.mark.slow),
    ],
)
def test_no_gradient_that_reaches_the_optimizer_is_rounding_noise(
    tiny_vit, tiny_resnet, name: str, options: dict
):
    """Adam would amplify noise to full steps. Noise changes by its own size if a sum is taken in
    another order.
    """
    images = keras.Input((32, 32, 3))
    if name in RESNET_VARIANTS:
        model = resnet(tiny_resnet(RESNET_VARIANTS[name]), images, classes=10)
    else:
        row = VIT_VARIANTS[name]
        stem = row.stem and tiny_resnet(row.stem)
        row = replace(tiny_vit, patch_size=1 if stem else 8, stem=stem, axial=row.axial)
        model = vision_transformer(row, images, classes=10, **options)
    draws = np.random.RandomState(0)
    for variable in model.trainable_variables:
        variable.assign(draws.normal(size=variable.shape) * 0.2 + variable.path.endswith("gamma"))
    pixels = draws.normal(size=(8, 32, 32, 3)).astype("float32")
    pairs = in_halves(model, pixels, np.arange(8))
    optimizer = make_optimizer(OptimizerConfig(), model, 1)

    variables = named_variables(model.layers).items()
    named = [name for name, variable in variables if variable.trainable]

    def noisy(whole: list, halves: list) -> set[str]:
        # A ReLU whose input is rounded to the other side of 0 changes a gradient by about a
        # hundredth.
        errors = [
            np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)
            for a, b in zip(whole, halves, strict=True)
        ]
        return {name for name, error in zip(named, errors, strict=True) if error > 0.1}

    # What is 0 but for rounding is noise, also where both sums happen to be rounded the same way.
    sizes = {name: np.abs(gradient).max() for name, gradient in zip(named, pairs[0], strict=True)}
    keys = {name for name in named if name.endswith("/key/bias")}
    assert {name for name, size in sizes.items() if size < 1e-4} == keys
    assert noisy(*pairs) <= keys
    assert not noisy(*map(optimizer.zero_noise, pairs))


def test_the_loss_scale_halves_with_each_overflow_and_doubles_after_2000_steps_without():
    optimizer = make_optimizer(OptimizerConfig(), model_of_one_weight(), 4, loss_scaling=True)

    def after(
        finite: bool, finite_steps: int | None = None, scale: float | None = None
    ) -> tuple[float, int]:
        if finite_steps is not None:
            optimizer.finite_steps.assign(finite_steps)
        if scale is not None:
            optimizer.loss_scale.assign(scale)
        optimizer.move_loss_scale(keras.ops.convert_to_tensor(finite))
        return float(optimizer.loss_scale.numpy()), int(optimizer.finite_steps.numpy())

    assert float(optimizer.loss_scale.numpy()) == 32768  # 2**15
    assert after(True) == (32768, 1)
    assert after(False) == (16384, 0)
    assert after(True, 1998) == (16384, 1999)
    assert after(True) == (32768, 0)  # the 2000th
    assert after(False, scale=1.5) == (1.0, 0)
    assert after(False) == (1.0, 0)  # never below 1


def test_a_step_that_overflows_moves_nothing_but_the_loss_scale():
    model = model_of_one_weight()
    optimizer = make_optimizer(
        OptimizerConfig(average_momentum=0.5, weight_decay=0.1), model, 4, loss_scaling=True
    )
    learner = make_learner(
        model, optimizer, batch_rows=2, objective=lambda labels, outputs: (outputs[:, 0], labels)
    )
    before = [np.array(v) for v in (*model.trainable_variables, *optimizer.averages)]
    batch = [np.zeros(2, "float32"), np.ones(2, "float32")]
    logs = learner.train_on_batch(np.full((2, 1), np.inf, "float32"), *batch, return_dict=True)
    assert logs["finite"] == 0 and float(optimizer.loss_scale.numpy()) == 16384
    for variable, value in zip(
        (*model.trainable_variables, *optimizer.averages), before, strict=True
    ):
        assert (np.array(variable) == value).all()
    assert (
        learner.train_on_batch(np.ones((2, 1), "float32"), *batch, return_dict=True)["finite"] == 1
    )
    assert (
        int(optimizer.finite_steps.numpy()) == 1
        and (np.array(model.trainable_variables[0]) != before[0]).all()
    )


def test_defaults_are_those_of_the_paper():
    config = OptimizerConfig()
    assert (config.name, config.learning_rate, config.schedule, config.clip_norm) == (
        "adam",
        1e-3,
        "cosine",
        1.0,
    )
    assert (config.decay, config.weight_decay, config.average_momentum) == ("kernels", 0.0, None)


def test_only_kernels_decay_not_what_has_kernel_in_its_name(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    groups = rates_of(model, weight_decay=0.1)
    decays = {name for name, group in groups.items() if not group.endswith("no_decay")}
    assert (
        decays == {name for name in groups if name.rpartition("/")[2] == "kernel"}
        and len(decays) > 5
    )
    groups = rates_of(model, weight_decay=0.1, decay="all")
    assert all(group == "rate_1_decay" for group in groups.values())
    assert set(rates_of(model).values()) == {"rate_1_no_decay"}


def test_the_end_of_a_linear_schedule_scales_with_the_layer(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    config = OptimizerConfig(learning_rate=1e-3, schedule="linear", layer_decay=0.5)
    ends = make_optimizer(config, model, 100).learning_rates(100)
    assert ends == pytest.approx(
        {f"rate_{rate:g}_no_decay": 1e-5 * rate for rate in (1, 0.5, 0.25, 0.125)}
    )


def rates_of(model: keras.Model, **options) -> dict[str, str]:
    optimizer = make_optimizer(OptimizerConfig(**options), model, 10)
    return {
        name: optimizer.group_of(variable)
        for name, variable in named_variables(model.layers).items()
    }


def test_layers_learn_slower_the_deeper_they_lie(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    groups = rates_of(model, layer_decay=0.5, weight_decay=0.1)
    assert groups["predictions/kernel"] == "rate_1_decay"
    assert groups["encoder_norm/gamma"] == "rate_1_no_decay"
    assert groups["encoderblock_1/mlp/dense_0/kernel"] == "rate_0.5_decay"
    assert groups["encoderblock_0/mlp/dense_0/bias"] == "rate_0.25_no_decay"
    assert groups["embedding/kernel"] == "rate_0.125_decay"
    assert groups["posembed_input/pos_embedding"] == "rate_0.125_no_decay"


def test_every_rate_of_a_linear_schedule_falls(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    config = OptimizerConfig(learning_rate=1e-3, schedule="linear", layer_decay=0.05)
    optimizer = make_optimizer(config, model, 100)
    first, last = optimizer.learning_rates(0), optimizer.learning_rates(99)
    assert len(first) == 4 and all(last[name] < 0.05 * first[name] for name in first)


def test_layers_of_a_resnet_learn_slower_too(tiny_resnet):
    model = resnet(
        tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]),
        keras.Input((32, 32, 3)),
        pooling="avg",
        classes=3,
    )
    groups = rates_of(model, layer_decay=0.5)
    assert groups["conv_root/kernel"].startswith("rate_0.125_")
    assert groups["predictions/kernel"].startswith("rate_1_")


def test_an_axial_block_is_one_layer_of_the_decay_and_can_be_frozen_by_halves(tiny_vit):
    model = vision_transformer(replace(tiny_vit, axial=True), keras.Input((32, 32, 3)), classes=3)
    groups = rates_of(model, layer_decay=0.5)
    plain = rates_of(
        vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=3), layer_decay=0.5
    )
    for half in ("row", "column"):
        for name in ("attention/query/kernel", "mlp/dense_1/bias", "mlp_norm/gamma"):
            assert groups[f"encoderblock_0/{half}/{name}"] == plain[f"encoderblock_0/{name}"]
    make_optimizer(OptimizerConfig(frozen=("encoderblock_1/row/",)), model, 10)
    frozen = {
        name for name, variable in named_variables(model.layers).items() if not variable.trainable
    }
    assert len(frozen) == 16 and all(name.startswith("encoderblock_1/row/") for name in frozen)


def test_frozen_names_do_not_move(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    make_optimizer(OptimizerConfig(frozen=("^embedding/", "encoderblock_0")), model, 10)
    moving = [
        name for name, variable in named_variables(model.layers).items() if variable.trainable
    ]
    assert not [name for name in moving if name.startswith(("embedding/", "encoderblock_0/"))]
    assert "encoderblock_1/attention/query/kernel" in moving


def test_freezing_nothing_or_everything_is_an_error(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
    with pytest.raises(
        ValueError, match="matches no variable: 'haed'.*Names look like these: embedding/kernel"
    ):
        make_optimizer(OptimizerConfig(frozen=("haed",)), model, 10)
    with pytest.raises(ValueError, match="No variable is left to train"):
        make_optimizer(OptimizerConfig(frozen=(".",)), model, 10)


def test_all_faults_of_a_config_come_at_once():
    with pytest.raises(
        ValueError,
        match="(?s)`name` must be one of adam.*`clip_norm` must be above 0.*`layer_decay`",
    ):
        OptimizerConfig(name="adan", clip_norm=0, layer_decay=2)


KERAS_ARGUMENTS = {
    "learning_rate": 0.1,
    "weight_decay": 0.1,
    "adam_weight_decay": 0.1,
    "decay": 0.1,
    "clipnorm": 1e-6,
    "clipvalue": 1e-6,
    "global_clipnorm": 1e-6,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 2,
    "loss_scale_factor": 8.0,
    "gradient_accumulation_steps": 2,
    "name": "mine",
}


@pytest.mark.parametrize("name", KERAS_ARGUMENTS)
def test_an_option_that_the_training_step_would_ignore_is_refused(name):
    with pytest.raises(
        ValueError, match=f"`options` must not contain '{name}': (set `|the run names)"
    ):
        OptimizerConfig(options={name: KERAS_ARGUMENTS[name]})


def test_every_argument_of_a_base_optimizer_is_passed_on_or_refused():
    # What Keras adds to all optimizers is applied outside of `update_step`, where the training step
    # would miss it.
    arguments = set(inspect.signature(keras.optimizers.Optimizer.__init__).parameters) - {
        "self",
        "kwargs",
        "args",
    }
    base = next(
        cls for cls in keras.optimizers.Optimizer.__mro__ if cls.__name__ == "BaseOptimizer"
    )
    arguments |= set(inspect.signature(base.__init__).parameters) - {"self", "kwargs"}
    assert "gradient_accumulation_steps" in arguments and arguments <= set(REPLACED_OPTIONS)


def test_ten_updates_by_each_optimizer_are_those_of_plain_keras():
    found = ten_updates.differences()
    assert {name.split()[0] for name in found} == set(OPTIMIZERS) - {"momentum"}
    assert all(difference < 1e-6 for difference in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "num_devices"), [("tensorflow", "2"), ("jax", "1")])
def test_ten_updates_elsewhere_are_those_of_plain_keras(backend, num_devices):
    command = [sys.executable, ten_updates.__file__, num_devices]
    done = warm.run(
        command, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > len(OPTIMIZERS) and all(
        difference < 1e-6 for difference in found.values()
    ), found


def test_momentum_survives_saving():
    config = Momentum(0.03, momentum=0.8, weight_decay=0.1).get_config()
    assert Momentum.from_config(config).momentum == 0.8


def test_muon_moves_matrices_by_rotations_and_the_rest_by_adam():
    hidden, head = keras.layers.Dense(4, name="dense_0"), keras.layers.Dense(4, name="predictions")
    for layer in (hidden, head):
        layer.build((None, 6))
    variables = [hidden.kernel, hidden.bias, head.kernel]
    draws = np.random.RandomState(0)
    gradients = [draws.normal(size=variable.shape).astype("float32") for variable in variables]
    before = [np.array(variable) for variable in variables]
    optimizer = OPTIMIZERS["muon"](learning_rate=0.1)
    optimizer.build(variables)
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    kernel, *others = (old - np.array(new) for old, new in zip(before, variables, strict=True))
    # The nearest matrix with orthogonal columns, as large as one of Adam's steps: 0.2 for a root
    # mean square.
    left, _, right = np.linalg.svd(gradients[0], full_matrices=False)
    turned = left.T @ kernel @ right.T / (0.1 * 0.2 * math.sqrt(6))
    assert ((np.diag(turned) > 0.65) & (np.diag(turned) < 1.25)).all()
    assert np.abs(turned - np.diag(np.diag(turned))).max() < 1e-5
    for step, gradient in zip(others, gradients[1:], strict=True):
        np.testing.assert_allclose(step, 0.1 * np.sign(gradient), rtol=1e-4)
