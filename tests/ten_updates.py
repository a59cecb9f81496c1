"""Ten updates of a few variables by each optimizer of the table, beside the same optimizer of plain
Keras.

Run as a script by tests/train/test_optimizers.py, on any backend: prints a line of JSON,
{optimizer: largest relative difference}.

    python ten_updates.py NUM_DEVICES
"""

import contextlib
import json
import sys

import keras
import numpy as np

from keras_vit.train.learner import step
from keras_vit.train.optimizers import OPTIMIZERS, OptimizerConfig, ParameterGroups, make_optimizer

NUM_DEVICES = int(sys.argv[1]) if __name__ == "__main__" else 1
STEPS, RATE, DECAY = 10, 1e-2, 0.1
ON_JAX = keras.backend.backend() == "jax"
ADAM = {"epsilon": 1e-8}  # as in JAX's optimizers; Keras has 1e-7
# What Keras calls them. "momentum" is our own: the rate is outside of the velocity, which
# test_optimizers.py works out.
PLAIN = {
    "adam": lambda **options: keras.optimizers.AdamW(**ADAM, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(**ADAM, **options),
    "muon": lambda weight_decay, **options: keras.optimizers.Muon(
        weight_decay=weight_decay,
        adam_weight_decay=weight_decay,
        exclude_layers=["predictions"],
        **ADAM,
        **options,
    ),
    "adafactor": keras.optimizers.Adafactor,
    "lamb": keras.optimizers.Lamb,
    "lion": keras.optimizers.Lion,
    "nadam": keras.optimizers.Nadam,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
}


# What changes the path that an update takes.
OPTIONS = {
    "adam": {"amsgrad": True},
    "rmsprop": {"centered": True, "momentum": 0.9},
    "sgd": {"momentum": 0.9, "nesterov": True},
    "nadam": {"beta_1": 0.8},
    "muon": {"adam_lr_ratio": 0.5},
}


def small_model() -> keras.Model:
    """Variables of one, two and four dimensions."""
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(4, 3, name="embedding")(inputs)
    x = keras.layers.Dense(5, name="hidden")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(3, name="predictions")(x))
    draws = np.random.RandomState(0)
    for variable in model.trainable_variables:
        variable.assign(draws.normal(size=variable.shape))
    return model


def updated(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> list[np.ndarray]:
    """The variables after ten updates with gradients that are the same for all optimizers."""
    variables, draws = model.trainable_variables, np.random.RandomState(1)
    for _ in range(STEPS):
        gradients = [
            keras.ops.convert_to_tensor(draws.normal(size=v.shape).astype("float32"))
            for v in variables
        ]
        if not isinstance(optimizer, ParameterGroups):
            optimizer.apply(gradients, variables)
        elif ON_JAX:
            state = [v.value for v in variables], [v.value for v in optimizer.variables]
            new = step._update(optimizer, *state, gradients, True)
            for variable, value in zip(
                [*variables, *optimizer.variables], [*new[0], *new[1]], strict=True
            ):
                variable.assign(value)
        else:
            import tensorflow as tf

            def update(strategy, gradients):
                step._update(strategy, optimizer, gradients)

            def together(gradients):  # as in a step: by all replicas together
                tf.distribute.get_replica_context().merge_call(update, args=(gradients,))

            tf.distribute.get_strategy().run(together, args=(gradients,))
    return [keras.ops.convert_to_numpy(variable.value) for variable in variables]


def ours(name: str, options: dict) -> list[np.ndarray]:
    config = OptimizerConfig(
        name=name,
        learning_rate=RATE,
        weight_decay=DECAY,
        decay="all",
        schedule="linear",
        warmup_steps=2,
        options=options,
    )
    with scope():
        model = small_model()
        optimizer = make_optimizer(config, model, STEPS)
        return updated(optimizer, model)


def scope() -> contextlib.AbstractContextManager:
    """Of the devices: more than one on TensorFlow alone, where an update is told of replicas."""
    if NUM_DEVICES == 1:
        return contextlib.nullcontext()
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES
        )
    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(NUM_DEVICES)]
    ).scope()


def plain(name: str, options: dict) -> list[np.ndarray]:
    config = OptimizerConfig(learning_rate=RATE, schedule="linear", warmup_steps=2)
    (rule,) = make_optimizer(config, small_model(), STEPS).rules.values()
    model = small_model()
    optimizer = PLAIN[name](learning_rate=rule._learning_rate, weight_decay=DECAY, **options)
    optimizer.build(model.trainable_variables)
    return updated(optimizer, model)


def differences() -> dict[str, float]:
    """For each optimizer of the table but our own, the largest difference, relative to the largest
    weight.
    """
    cases = [(name, {}) for name in OPTIMIZERS if name != "momentum"] + list(OPTIONS.items())
    return {
        " ".join([name, *options]): max(
            float(np.abs(own - theirs).max() / np.abs(theirs).max())
            for own, theirs in zip(ours(name, options), plain(name, options), strict=True)
        )
        for name, options in cases
    }


if __name__ == "__main__":
    print(json.dumps(differences()))
