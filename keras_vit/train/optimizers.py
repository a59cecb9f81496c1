"""Optimizers: parameter groups, decay masks, layer-wise rates, weight averages, loss scaling.

The training step, not the optimizer, sums gradients over replicas and clips the sum, as in the
paper. Keras would clip the gradient of each replica before the sum.

Source: arXiv:2010.11929, tables 3 and 4; decoupled decay arXiv:1711.05101; layer-wise rates
    arXiv:2106.08254 (BEiT); Muon arXiv:2502.16982.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
from keras import ops

from keras_vit.train.schedules import find_wrong_options, learning_rate_schedule
from keras_vit.weights.restore import named_variables

_CLIP = "set `clip_norm`, which clips the gradient of the whole batch"
_AVERAGE = "set `average_momentum`, and the run evaluates with the average"
# Arguments of Keras's optimizers that a run refuses, because its training step replaces them. On
# TensorFlow they would have no effect.
REPLACED_OPTIONS = {
    "learning_rate": "set `learning_rate` and `schedule`",
    "weight_decay": "set `weight_decay` and `decay`",
    "adam_weight_decay": "set `weight_decay` and `decay`, which apply to all variables",
    "decay": "set `schedule`; Keras ignores it",
    "clipnorm": _CLIP,
    "clipvalue": _CLIP,
    "global_clipnorm": _CLIP,
    "use_ema": _AVERAGE,
    "ema_momentum": _AVERAGE,
    "ema_overwrite_frequency": _AVERAGE,
    "loss_scale_factor": "set `precision` of the devices to mixed_float16, which scales the loss automatically",
    "gradient_accumulation_steps": "set `accumulation_steps` of the run",
    "name": "the run names its parameter groups",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """The configuration of an optimizer.

    Attributes:
        name: "adam", "adamw", "momentum", "muon", "adafactor", "lamb", "lion", "nadam", "rmsprop" or
            "sgd".
        learning_rate: Peak learning rate of the schedule.
        schedule: "constant", "linear", "cosine", "rsqrt" or "staircase".
        warmup_steps: Steps of linear warm-up from 0.
        schedule_options: Further arguments of
            `keras_vit.train.schedules.learning_rate_schedule`: `linear_end`, `timescale`,
            `cooldown_steps`, `boundaries`.
        weight_decay: Decoupled weight decay, multiplied by the current learning rate; 0.03 to 0.3
            in table 3.
        decay: Which variables decay. "kernels": kernels alone, as in the authors' later code;
            "all": also biases, norms and positions, as in their first code.
        clip_norm: Largest global norm of the gradient of the whole batch; None for no limit.
        average_momentum: Momentum of a Polyak average of the weights, which is used for evaluation;
            None for no average.
        layer_decay: Factor on the learning rate from each block to the block below; None for equal
            rates.
        frozen: Regular expressions. Variables whose names contain a match are not trained. Names
            are those of checkpoints: "embedding/kernel", "encoderblock_3/attention/query/kernel",
            "head/bias".
        options: Further arguments of the optimizer, such as `beta_2` or `momentum`. Those that
            fields of the config replace are refused; the error names the field.
    """

    name: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 0
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    decay: Literal["kernels", "all"] = "kernels"
    clip_norm: float | None = 1.0
    average_momentum: float | None = None
    layer_decay: float | None = None
    frozen: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [
            (
                self.name not in OPTIMIZERS,
                f"`name` must be one of {', '.join(OPTIMIZERS)}. Received: {self.name!r}.",
            ),
            (
                self.decay not in ("kernels", "all"),
                f'`decay` must be "kernels" or "all". Received: {self.decay!r}.',
            ),
            (
                self.learning_rate < 0,
                f"`learning_rate` must not be negative. Received: {self.learning_rate}.",
            ),
            (
                self.weight_decay < 0,
                f"`weight_decay` must not be negative. Received: {self.weight_decay}.",
            ),
            (
                self.clip_norm is not None and self.clip_norm <= 0,
                f"`clip_norm` must be above 0, or None to disable it. Received: {self.clip_norm}.",
            ),
            (
                self.average_momentum is not None and not 0 <= self.average_momentum < 1,
                f"`average_momentum` must be in [0, 1), or None for none. Received: "
                f"{self.average_momentum}.",
            ),
            (
                self.layer_decay is not None and not 0 < self.layer_decay <= 1,
                f"`layer_decay` must be in (0, 1], or None for none. Received: {self.layer_decay}.",
            ),
        ]
        found = [message for is_wrong, message in problems if is_wrong]
        found += [
            f"`options` must not contain {name!r}: {instead}."
            for name, instead in REPLACED_OPTIONS.items()
            if name in self.options
        ]
        found += find_wrong_options(self.schedule, self.schedule_options)
        if found:
            raise ValueError("\n".join(found))


@keras.saving.register_keras_serializable(package="keras_vit")
class Momentum(keras.optimizers.Optimizer):
    """Stochastic gradient descent with momentum, as in the paper's code.

        velocity = momentum * velocity + gradient
        weight   = weight - rate * velocity

    `keras.optimizers.SGD` multiplies the gradient by the rate before it updates the velocity. The
    results differ while the learning rate changes.

    Args:
        learning_rate: A number or a schedule.
        momentum: 0.9 in the paper.
        **kwargs: Arguments of `keras.optimizers.Optimizer`. `weight_decay` is decoupled and
            multiplied by the rate.

    Example:
        >>> Momentum(0.03).momentum
        0.9

    Source: arXiv:2010.11929, table 4; `optax.sgd`, which the reference uses.
    """

    def __init__(
        self,
        learning_rate: Any = 0.03,
        momentum: float = 0.9,
        name: str = "momentum",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables: list) -> None:
        if self.built:
            return
        super().build(variables)
        self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        velocity = self._velocities[self._get_variable_index(variable)]
        # Compute from the variable, not from a value read earlier: each replica updates its copy.
        moved = ops.add(ops.multiply(ops.cast(velocity, gradient.dtype), self.momentum), gradient)
        self.assign(velocity, moved)
        self.assign_sub(variable, ops.multiply(ops.cast(learning_rate, gradient.dtype), moved))

    def get_config(self) -> dict:
        return {**super().get_config(), "momentum": self.momentum}


class Averages(keras.optimizers.Optimizer):
    """A running (Polyak) average of weights, as an optimizer whose "gradients" are the weights.

    So the average is updated like any optimizer variable: each replica updates its own copy, and
    nothing is communicated.

    Args:
        momentum: Share of the old average that each step keeps; 0.9999 in the paper's table 2. The
            first step copies the weights.
    """

    def __init__(self, momentum: float, name: str = "averages"):
        super().__init__(learning_rate=1.0, name=name)
        self.momentum = momentum

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = ops.multiply(
            ops.cast(ops.not_equal(self.iterations, 0), variable.dtype), self.momentum
        )
        self.assign(
            variable,
            ops.add(ops.multiply(kept, variable), ops.multiply(ops.subtract(1.0, kept), gradient)),
        )


class ParameterGroups(keras.optimizers.Optimizer):
    """Several Keras optimizers, one for each group of variables, behind one interface.

    `apply` expects gradients that are already summed over replicas, clipped and finite.

    Args:
        group_of: Function from a variable to the name of its group.
        rules: Optimizer of each group, by name. They do not clip: the training step does.
        average_momentum: Momentum of `Averages`; None for no averages.
        without_gradient: Function that returns whether the exact gradient of a variable is 0, so
            that the computed one is rounding noise.
        initial_loss_scale: Initial factor on the loss, for float16. The factor is lowered when
            gradients overflow and raised when they do not. None for other precisions.
    """

    def __init__(
        self,
        group_of: Callable[[keras.Variable], str],
        rules: Mapping[str, keras.optimizers.Optimizer],
        *,
        average_momentum: float | None = None,
        without_gradient: Callable[[keras.Variable], bool] = lambda variable: False,
        initial_loss_scale: float | None = None,
        name: str = "parameter_groups",
    ):
        # The groups have their own rates: see `learning_rates`.
        super().__init__(learning_rate=0.0, name=name)
        self.group_of = group_of
        self.rules = dict(rules)
        self.average_momentum = average_momentum
        self.without_gradient = without_gradient
        self.initial_loss_scale = initial_loss_scale
        self.loss_scale: keras.Variable | None = None
        self.averages: list[keras.Variable] = []
        self._averager = None if average_momentum is None else Averages(average_momentum)

    def build(self, variables: list) -> None:
        if self.built:
            return
        super().build(variables)
        names = [self.group_of(variable) for variable in variables]
        self._noise = [self.without_gradient(variable) for variable in variables]
        self._members = {
            name: [i for i, other in enumerate(names) if other == name]
            for name in sorted(set(names))
        }
        for name, indices in self._members.items():
            self.rules[name].build([variables[i] for i in indices])
        if self._averager is not None:
            self.averages = [self.add_variable_from_reference(v, name="average") for v in variables]
            for average, variable in zip(self.averages, variables, strict=True):
                # Without the copy, JAX would share the buffer and donate it twice.
                average.assign(ops.copy(variable))
            self._averager.build(self.averages)
        if self.initial_loss_scale is not None:
            self.loss_scale = self.add_variable(
                (), initializer="zeros", dtype="float32", name="loss_scale"
            )
            self.finite_steps = self.add_variable(
                (), initializer="zeros", dtype="int32", name="finite_steps"
            )
            self.loss_scale.assign(self.initial_loss_scale)

    @property
    def variables(self) -> list:
        parts = [self.rules[name] for name in getattr(self, "_members", ())]
        parts += [] if self._averager is None or not self._averager.built else [self._averager]
        return [*super().variables, *(variable for part in parts for variable in part.variables)]

    def zero_noise(self, gradients: Sequence) -> list:
        """Returns the gradients, with zeros where the exact gradient is 0."""
        return [
            ops.zeros_like(g) if noise else g
            for g, noise in zip(gradients, self._noise, strict=True)
        ]

    def parts(self, gradients: Sequence) -> Iterator[tuple[keras.optimizers.Optimizer, list, list]]:
        """Yields (optimizer, its variables, its gradients) for each group, then for the averages.

        The averages come last, because they read the updated weights.
        """
        if len(gradients) != len(self._trainable_variables):
            raise ValueError(
                f"This optimizer was built for {len(self._trainable_variables)} variables. "
                f"Received {len(gradients)} gradients. Freeze variables before you create the "
                "optimizer."
            )
        for name, indices in self._members.items():
            yield (
                self.rules[name],
                [self._trainable_variables[i] for i in indices],
                [gradients[i] for i in indices],
            )
        if self._averager is not None:
            yield (
                self._averager,
                self.averages,
                [variable.value for variable in self._trainable_variables],
            )

    def apply(self, grads: Sequence, trainable_variables: Sequence | None = None) -> None:
        for rule, variables, gradients in self.parts(grads):
            rule.apply(gradients, variables)
        self.iterations.assign_add(1)

    def move_loss_scale(self, finite: Any) -> None:
        """Halves the loss scale after an overflow; doubles it after 2000 steps without one."""
        # JAX 0.10 takes no variables of Keras in `where`.
        old = ops.convert_to_tensor(self.loss_scale)
        steps = ops.where(finite, ops.add(self.finite_steps, 1), 0)
        grown = ops.greater_equal(steps, 2000)
        scale = ops.where(finite, ops.where(grown, old * 2.0, old), old / 2.0)
        self.loss_scale.assign(ops.maximum(scale, 1.0))
        self.finite_steps.assign(ops.where(grown, 0, steps))

    def finalize_variable_values(self, var_list: list) -> None:
        """Does nothing. Keras would replace the weights by their averages at the end of `fit`."""

    def learning_rates(self, step: int) -> dict[str, float]:
        """Returns the learning rate of each group at a step."""
        rates = {
            name: self.rules[name]._learning_rate for name in getattr(self, "_members", self.rules)
        }
        return {name: float(rate(step) if callable(rate) else rate) for name, rate in rates.items()}

    def get_config(self) -> dict:
        # The groups depend on the model, so the optimizer alone has no config. None is needed:
        # checkpoints store its variables, and users save the model, not the learner.
        raise NotImplementedError(
            "`ParameterGroups` has no config: create it with `make_optimizer` from an "
            "`OptimizerConfig`."
        )


def _make_adam(**options: Any) -> keras.optimizers.Optimizer:
    """Creates Adam with the epsilon of the authors' JAX code, 1e-8. Keras's default is 1e-7."""
    return keras.optimizers.Adam(**{"epsilon": 1e-8, **options})


def _make_muon(**options: Any) -> keras.optimizers.Optimizer:
    """Creates Muon for the matrices of the blocks, and Adam for embedding, head, norms and biases.

    Keras scales the updates of Muon so that the learning rates of Adam apply.
    """
    # Set explicitly: Keras's defaults are 0.1 for matrices and 0.004 for other variables.
    decay = options.pop("weight_decay", None)
    defaults = {"epsilon": 1e-8, "exclude_layers": ["predictions"], "adam_weight_decay": decay}
    return keras.optimizers.Muon(weight_decay=decay, **{**defaults, **options})


# "adam" and "adamw" are the same: decay is always decoupled, and its amount is in the config.
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": _make_adam,
    "adamw": _make_adam,
    "momentum": Momentum,
    "muon": _make_muon,
    "adafactor": keras.optimizers.Adafactor,
    "lamb": keras.optimizers.Lamb,
    "lion": keras.optimizers.Lion,
    "nadam": keras.optimizers.Nadam,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
}


def make_optimizer(
    config: OptimizerConfig, model: keras.Model, total_steps: int, *, loss_scaling: bool = False
) -> ParameterGroups:
    """Creates and builds the optimizer of a run, with one group per learning rate and decay.

    The variables of `model` that `config.frozen` matches become non-trainable.

    Args:
        config: The settings.
        model: A built model.
        total_steps: Length of the schedule, in updates.
        loss_scaling: Whether to scale the loss, for gradients in float16.

    Raises:
        ValueError: If a pattern of `frozen` matches no variable, or all variables are frozen.

    Example:
        >>> import keras_vit
        >>> model = keras_vit.ViT_Ti16(weights=None, classes=10)
        >>> optimizer = make_optimizer(OptimizerConfig(weight_decay=0.1), model, total_steps=100)
        >>> sorted(optimizer.rules)
        ['rate_1_decay', 'rate_1_no_decay']
    """
    named = named_variables(model.layers)
    _freeze(named, config.frozen)
    name_of = {id(variable): name for name, variable in named.items()}
    multipliers = _compute_multipliers(
        list(dict.fromkeys(name.split("/")[0] for name in named)), config.layer_decay
    )

    def group_of(variable: keras.Variable) -> str:
        name = name_of[id(variable)]
        decays = config.weight_decay > 0 and (config.decay == "all" or name.endswith("/kernel"))
        return f"rate_{multipliers[name.split('/')[0]]:.6g}_{'decay' if decays else 'no_decay'}"

    rules = {}
    for variable in model.trainable_variables:
        group = group_of(variable)
        if group not in rules:
            multiplier = multipliers[name_of[id(variable)].split("/")[0]]
            rules[group] = _make_rule(config, group, multiplier, total_steps)
    optimizer = ParameterGroups(
        group_of,
        rules,
        average_momentum=config.average_momentum,
        # Softmax does not depend on a bias of the keys. Adam would amplify the rounding noise of
        # this gradient to full steps, and devices round differently.
        without_gradient=lambda variable: name_of[id(variable)].endswith("/key/bias"),
        initial_loss_scale=2.0**15 if loss_scaling else None,
    )
    optimizer.build(model.trainable_variables)
    return optimizer


def _make_rule(
    config: OptimizerConfig, group: str, multiplier: float, total_steps: int
) -> keras.optimizers.Optimizer:
    options = dict(config.schedule_options)
    if config.schedule == "linear":
        options["linear_end"] = options.get("linear_end", 1e-5) * multiplier
    rate = learning_rate_schedule(
        config.schedule,
        base_rate=config.learning_rate * multiplier,
        total_steps=total_steps,
        warmup_steps=config.warmup_steps,
        **options,
    )
    decay = (
        config.weight_decay
        if group.endswith("_decay") and not group.endswith("_no_decay")
        else None
    )
    return OPTIMIZERS[config.name](
        learning_rate=rate, weight_decay=decay, name=group, **config.options
    )


def _freeze(named: Mapping[str, keras.Variable], patterns: Iterable[str]) -> None:
    unmatched = [
        pattern for pattern in patterns if not any(re.search(pattern, name) for name in named)
    ]
    if unmatched:
        raise ValueError(
            f"`frozen` matches no variable: {', '.join(map(repr, unmatched))}. Names look like "
            f"these: "
            f"{', '.join(list(named)[:4])}, ..."
        )
    for name, variable in named.items():
        if any(re.search(pattern, name) for pattern in patterns):
            variable.trainable = False
    if not any(variable.trainable for variable in named.values()):
        raise ValueError(
            "No variable is left to train: `frozen` matches all of them. Received: "
            f"{list(patterns)}."
        )


def _compute_multipliers(layers: list[str], layer_decay: float | None) -> dict[str, float]:
    """Returns the factor on the learning rate of each layer.

    Layers after the last block have a factor of 1. Each block below multiplies it by `layer_decay`.
    """
    is_block = [
        re.fullmatch(r"encoderblock_\d+|block\d+_unit\d+", layer) is not None for layer in layers
    ]
    num_blocks = sum(is_block)
    depths = [sum(is_block[: index + 1]) for index in range(len(layers))]
    depths = [
        d + (d == num_blocks and not block) for d, block in zip(depths, is_block, strict=True)
    ]
    return {
        layer: (layer_decay or 1.0) ** (max(depths) - d)
        for layer, d in zip(layers, depths, strict=True)
    }
