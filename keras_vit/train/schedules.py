"""Learning rate schedules: linear warm-up and one of five decays; BiT's rule for fine-tuning.

The optimizer requests the rate for update `step`, counted from 0. So the first update of a warm-up
has a rate of 0, and the last update of a run is `total_steps - 1`, as in the authors' code.

Source: vision_transformer@c6de1e5 utils.py ("linear", "cosine"); big_vision@0127fb6 utils.py and
    arXiv:2106.04560 ("rsqrt", cool-down); big_transfer@140de6e bit_hyperrule.py ("staircase").
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
from keras import ops

from keras_vit.suggestions import did_you_mean

Decay = Literal["constant", "linear", "cosine", "rsqrt", "staircase"]

_STAIR = 0.1
# The kind of schedule that has an option; None for all kinds.
_KIND_OF_OPTION = {
    "linear_end": "linear",
    "timescale": "rsqrt",
    "boundaries": "staircase",
    "cooldown_steps": None,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The product of a linear warm-up from 0, a decay and a linear cool-down to 0.

    `learning_rate_schedule` creates it and checks its arguments. The rate is computed in float32,
    which represents steps exactly up to 16.7 million.

    Example:
        >>> schedule = learning_rate_schedule("linear", base_rate=0.1, total_steps=100, warmup_steps=10)
        >>> WarmupSchedule.from_config(schedule.get_config()).get_config() == schedule.get_config()
        True
    """

    def __init__(
        self,
        kind: Decay,
        *,
        base_rate: float,
        total_steps: int,
        warmup_steps: int,
        linear_end: float,
        timescale: float,
        cooldown_steps: int,
        boundaries: Sequence[int],
    ):
        self.kind = kind
        self.base_rate = base_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.linear_end = linear_end
        self.timescale = timescale
        self.cooldown_steps = cooldown_steps
        self.boundaries = tuple(boundaries)

    def __call__(self, step: Any) -> Any:
        # Cast first: the backends of Keras disagree on the dtype of a division of integers.
        step = ops.cast(step, "float32")
        rate = _DECAYS[self.kind](self, step)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / float(self.warmup_steps))
        if self.cooldown_steps:
            rate = rate * ops.clip((self.total_steps - step) / float(self.cooldown_steps), 0.0, 1.0)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "base_rate": self.base_rate,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "linear_end": self.linear_end,
            "timescale": self.timescale,
            "cooldown_steps": self.cooldown_steps,
            "boundaries": list(self.boundaries),
        }


def learning_rate_schedule(
    kind: Decay,
    *,
    base_rate: float,
    total_steps: int,
    warmup_steps: int,
    linear_end: float = 1e-5,
    timescale: float = 10_000.0,
    cooldown_steps: int = 0,
    boundaries: Sequence[int] = (),
) -> WarmupSchedule:
    """Creates the learning rate schedule of a run, for `learning_rate=` of any Keras optimizer.

    Args:
        kind: "constant"; "linear" from `base_rate` to `linear_end`; "cosine" from `base_rate` to 0;
            "rsqrt", `base_rate` / sqrt(1 + (steps since the warm-up) / `timescale`); "staircase",
            divided by 10 after each boundary.
        base_rate: Rate at the end of the warm-up.
        total_steps: Updates in the run, including the warm-up.
        warmup_steps: Updates over which the rate rises from 0 to `base_rate`. 0 for no warm-up.
        linear_end: Final rate of "linear". The authors use 1e-5, not 0.
        timescale: For "rsqrt", in steps.
        cooldown_steps: Number of last updates over which the rate is also scaled linearly to 0.
            Intended for "rsqrt", which does not end at 0 by itself.
        boundaries: For "staircase", in steps.

    Returns:
        A function from a step to a float32 tensor. The step is an integer, a tensor, or an array of
        integers.

    Raises:
        ValueError: If an argument is invalid, or the numbers of steps contradict each other. The
            message lists all problems.

    Example:
        >>> rate = learning_rate_schedule("cosine", base_rate=0.03, total_steps=10_000, warmup_steps=500)
        >>> [round(float(rate(step)), 4) for step in (0, 250, 500, 5250, 10_000)]
        [0.0, 0.015, 0.03, 0.015, 0.0]
    """
    schedule = WarmupSchedule(
        kind,
        base_rate=float(base_rate),
        total_steps=int(total_steps),
        warmup_steps=int(warmup_steps),
        linear_end=float(linear_end),
        timescale=float(timescale),
        cooldown_steps=int(cooldown_steps),
        boundaries=[int(boundary) for boundary in boundaries],
    )
    if faults := _find_faults(schedule):
        raise ValueError(f"The learning rate schedule is invalid: {'; '.join(faults)}.")
    return schedule


def find_wrong_options(kind: str, options: Iterable[str]) -> list[str]:
    """Returns a message for each name that is no option of a schedule of this kind.

    Example:
        >>> find_wrong_options("cosine", ["linear_end"])  # doctest: +ELLIPSIS
        ['`linear_end` is an option of the schedule "linear" alone. Received: the schedule "cosine"...]
    """
    messages = []
    for name in options:
        if name not in _KIND_OF_OPTION:
            suggestion = did_you_mean(name, _KIND_OF_OPTION)
            known = suggestion or f" Options: {', '.join(_KIND_OF_OPTION)}."
            messages.append(f"A schedule has no option {name!r}.{known}")
        elif _KIND_OF_OPTION[name] not in (None, kind):
            messages.append(
                f'`{name}` is an option of the schedule "{_KIND_OF_OPTION[name]}" alone. Received: '
                f'the schedule "{kind}". Without options: `schedule_options={{}}`.'
            )
    return messages


def _find_faults(schedule: WarmupSchedule) -> list[str]:
    total, warmup, cooldown = schedule.total_steps, schedule.warmup_steps, schedule.cooldown_steps
    boundaries = schedule.boundaries
    inside = all(warmup <= boundary < total for boundary in boundaries)
    faults = [
        (
            schedule.kind not in _DECAYS,
            f"`kind` must be one of {tuple(_DECAYS)}, received {schedule.kind!r}",
        ),
        (
            not schedule.base_rate >= 0,
            f"`base_rate` must not be negative, received {schedule.base_rate}",
        ),
        (warmup < 0, f"`warmup_steps` must not be negative, received {warmup}"),
        (
            total <= warmup,
            f"`total_steps` must be more than `warmup_steps`, received {total} and {warmup}",
        ),
        (
            not 0 <= cooldown <= max(0, total - warmup),
            f"`cooldown_steps` must be from 0 to the {total - warmup} steps after the warm-up, "
            f"received {cooldown}",
        ),
        (
            not schedule.timescale > 0,
            f"`timescale` must be positive, received {schedule.timescale}",
        ),
        (
            not inside or list(boundaries) != sorted(set(boundaries)),
            f"`boundaries` must increase, from the end of the warm-up ({warmup}) to before the end "
            f"of the run ({total}), received {list(boundaries)}",
        ),
        (
            (schedule.kind == "staircase") != bool(boundaries),
            'kind "staircase" needs `boundaries`, and no other kind takes them, received '
            f"kind={schedule.kind!r}, boundaries={list(boundaries)}",
        ),
    ]
    return [message for is_wrong, message in faults if is_wrong]


def _constant(schedule: WarmupSchedule, step: Any) -> Any:
    return schedule.base_rate * ops.ones_like(step)


def _linear(schedule: WarmupSchedule, step: Any) -> Any:
    return schedule.linear_end + (schedule.base_rate - schedule.linear_end) * (
        1.0 - _compute_progress(schedule, step)
    )


def _cosine(schedule: WarmupSchedule, step: Any) -> Any:
    return schedule.base_rate * 0.5 * (1.0 + ops.cos(math.pi * _compute_progress(schedule, step)))


def _rsqrt(schedule: WarmupSchedule, step: Any) -> Any:
    since_warmup = ops.maximum(0.0, step - float(schedule.warmup_steps))
    return schedule.base_rate / ops.sqrt(1.0 + since_warmup / schedule.timescale)


def _staircase(schedule: WarmupSchedule, step: Any) -> Any:
    rate = _constant(schedule, step)
    for boundary in schedule.boundaries:
        # The update at the boundary still has the old rate, as in BiT's code. big_vision lowers the
        # rate one step earlier.
        rate = ops.where(step > float(boundary), rate * _STAIR, rate)
    return rate


def _compute_progress(schedule: WarmupSchedule, step: Any) -> Any:
    """Returns 0 during the warm-up, then rises linearly to 1 at the end of the run."""
    since_warmup = step - float(schedule.warmup_steps)
    return ops.clip(since_warmup / float(schedule.total_steps - schedule.warmup_steps), 0.0, 1.0)


_DECAYS: dict[Decay, Callable[[WarmupSchedule, Any], Any]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "rsqrt": _rsqrt,
    "staircase": _staircase,
}


@dataclass(frozen=True, kw_only=True)
class BitHyperRule:
    """The part of BiT's rule that depends on the size of the training set.

    `boundaries` are those of the schedule "staircase". The other settings do not depend on the
    size: SGD with momentum 0.9, base rate 0.003, batches of 512, no weight decay.
    """

    total_steps: int
    warmup_steps: int
    boundaries: tuple[int, ...]
    mixup_alpha: float


def bit_hyperrule(num_examples: int) -> BitHyperRule:
    """Returns BiT's fine-tuning schedule for a training set of a given size.

    Training sets with fewer than 20,000 examples are small, with fewer than 500,000 medium, others
    large. The paper fine-tunes its ResNets by this rule and by its own settings, and reports the
    better result.

    Raises:
        ValueError: If `num_examples` is less than 1.

    Example:
        >>> rule = bit_hyperrule(50_000)
        >>> rule.total_steps, rule.boundaries, rule.mixup_alpha
        (10000, (3000, 6000, 9000), 0.1)

    Source: arXiv:1912.11370, section 3.3; big_transfer@140de6e bit_hyperrule.py.
    """
    if num_examples < 1:
        raise ValueError(f"`num_examples` must be at least 1. Received: {num_examples}.")
    if num_examples < 20_000:
        return BitHyperRule(
            total_steps=500, warmup_steps=100, boundaries=(200, 300, 400), mixup_alpha=0.0
        )
    if num_examples < 500_000:
        return BitHyperRule(
            total_steps=10_000, warmup_steps=500, boundaries=(3_000, 6_000, 9_000), mixup_alpha=0.1
        )
    return BitHyperRule(
        total_steps=20_000, warmup_steps=500, boundaries=(6_000, 12_000, 18_000), mixup_alpha=0.1
    )
