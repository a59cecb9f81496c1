"""Learning rates over a run: linear warm-up, then one of five decays, and BiT's rule for
fine-tuning.

The optimizer asks for the rate of update `step`, counted from 0, so the first update of a warm-up
has a rate of 0 and the last update of a run is `total_steps - 1`. That is how the authors' code
counts too.

Source: vision_transformer@c6de1e5 utils.py ("linear", "cosine"); big_vision@0127fb6 utils.py and
    arXiv:2106.04560 ("rsqrt", cool-down); big_transfer@140de6e bit_hyperrule.py ("staircase").
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
from keras import ops

Decay = Literal["constant", "linear", "cosine", "rsqrt", "staircase"]

_STAIR = 0.1


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, times a decay, times a linear cool-down to 0. Made by
    `learning_rate_schedule`.

    Computed in float32, which counts exactly up to 16.7 million steps.

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
        # Cast first: steps are integers, and Keras has no common idea of what integers divided are.
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
    """Makes the schedule of a run, for `learning_rate=` of any Keras optimizer.

    Args:
        kind: "constant"; "linear" from `base_rate` to `linear_end`; "cosine" from `base_rate` to 0;
            "rsqrt", over the square root of 1 + (steps since the warm-up) / `timescale`;
            "staircase", a tenth after each boundary.
        base_rate: The rate when warm-up ends and decay begins.
        total_steps: Updates in the run, those of the warm-up included.
        warmup_steps: Updates over which the rate rises from 0 to `base_rate`. 0 for none.
        linear_end: Rate at the end of "linear". The authors' 1e-5, not 0.
        timescale: For "rsqrt", in steps.
        cooldown_steps: Last updates, over which the rate also falls linearly to 0. For "rsqrt",
            which at any time can go on or be cooled down.
        boundaries: For "staircase", in steps.

    Returns:
        A function of the step: an integer, an array of them (to plot it), or a tensor; its result
            is a float32 tensor.

    Raises:
        ValueError: If the steps do not fit into each other; all that is wrong is named.

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
        raise ValueError(f"This is no learning rate schedule: {'; '.join(faults)}.")
    return schedule


def _find_faults(schedule: WarmupSchedule) -> list[str]:
    total, warmup, cooldown = schedule.total_steps, schedule.warmup_steps, schedule.cooldown_steps
    boundaries = schedule.boundaries
    inside = all(warmup <= boundary < total for boundary in boundaries)
    faults = {
        f"`kind` must be one of {tuple(_DECAYS)}, and is {schedule.kind!r}": schedule.kind
        not in _DECAYS,
        f"`base_rate` must not be negative, and is {schedule.base_rate}": not schedule.base_rate
        >= 0,
        f"`warmup_steps` must not be negative, and is {warmup}": warmup < 0,
        f"`total_steps` must be more than `warmup_steps`, and they are {total} and {warmup}": total
        <= warmup,
        f"`cooldown_steps` must fit after the warm-up into the {total - warmup} other steps, and is {cooldown}": (
            not 0 <= cooldown <= max(0, total - warmup)
        ),
        f"`timescale` must be positive, and is {schedule.timescale}": not schedule.timescale > 0,
        f"`boundaries` must rise, between warm-up ({warmup}) and end ({total}), and are {list(boundaries)}": (
            not inside or list(boundaries) != sorted(set(boundaries))
        ),
        f'`boundaries` are for "staircase", which needs them: kind={schedule.kind!r}, boundaries={list(boundaries)}': (
            (schedule.kind == "staircase") != bool(boundaries)
        ),
    }
    return [fault for fault, found in faults.items() if found]


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
        # The step of the boundary still has the old rate, as in BiT's code. big_vision is one step
        # earlier.
        rate = ops.where(step > float(boundary), rate * _STAIR, rate)
    return rate


def _compute_progress(schedule: WarmupSchedule, step: Any) -> Any:
    """0 until the end of the warm-up, then rising to 1 at the end of the run."""
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
    """What BiT's rule decides from the size of the training set; `boundaries` are those of
    "staircase".

    The rest of the rule is the same for all: SGD with momentum 0.9, base rate 0.003, batches of
    512, no weight decay.
    """

    total_steps: int
    warmup_steps: int
    boundaries: tuple[int, ...]
    mixup_alpha: float


def bit_hyperrule(num_examples: int) -> BitHyperRule:
    """Looks up how long BiT fine-tunes on so many images: a small, a medium or a large set.

    The paper runs this rule for its ResNets beside its own fine-tuning, and reports the better of
    the two.

    Raises:
        ValueError: If there is no example.

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
