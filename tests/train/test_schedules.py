"""Trajectories written out by hand, and the same numbers from Python's `math` along another way."""

import math

import keras
import numpy as np
import pytest

from keras_vit.train.schedules import WarmupSchedule, bit_hyperrule, learning_rate_schedule

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
STEPS = {"base_rate": 0.8, "total_steps": 20, "warmup_steps": 4}
KINDS = {
    "constant": {},
    "linear": {},
    "cosine": {},
    "rsqrt": {"timescale": 3.0, "cooldown_steps": 5},
    "staircase": {"boundaries": (8, 12)},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def schedule_of(kind: str) -> WarmupSchedule:
    return learning_rate_schedule(kind, **STEPS, **KINDS[kind])


def rates(schedule: WarmupSchedule, steps) -> np.ndarray:
    found = schedule(np.asarray(steps))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    return keras.ops.convert_to_numpy(found)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Steps 0, 1, 2, 3, 4 of the warm-up; 8 and 12 are a quarter and a half of the way down; 20
        # is the end.
        ("constant", [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8]),
        ("linear", [0, 0.2, 0.4, 0.6, 0.8, 0.6000025, 0.400005, 1e-5]),
        ("cosine", [0, 0.2, 0.4, 0.6, 0.8, 0.4 + 0.2 * math.sqrt(2), 0.4, 0]),
        ("rsqrt", [0, 0.2, 0.4, 0.6, 0.8, 0.8 / math.sqrt(7 / 3), 0.8 / math.sqrt(11 / 3), 0]),
        ("staircase", [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.08, 0.008]),
    ],
)
def test_a_trajectory_by_hand(kind, expected):
    found = rates(schedule_of(kind), [0, 1, 2, 3, 4, 8, 12, 20])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("linear", lambda left: 1e-5 * (1 - left) + 3e-3 * left),
        ("cosine", lambda left: 3e-3 * math.sin(math.pi / 2 * left) ** 2),
    ],
)
def test_a_long_run_keeps_its_precision(kind, rate):
    """The last step of 517,900, the seven epochs of JFT-300M, differs from the one before it."""
    schedule = learning_rate_schedule(
        kind, base_rate=3e-3, total_steps=517_900, warmup_steps=10_000
    )
    steps = [10_000, 10_001, 263_950, 517_898, 517_899]
    expected = [rate((517_900 - step) / 507_900) for step in steps]
    np.testing.assert_allclose(rates(schedule, steps), expected, rtol=1e-5, atol=1e-9)


@EVERY_KIND
def test_the_paths_into_it_give_one_number(kind):
    """Python integers, arrays of either size, and a compiled function of an int64 step as an
    optimizer has it.
    """
    schedule, steps = schedule_of(kind), range(21)
    whole = rates(schedule, steps)
    if ON_TENSORFLOW:
        import tensorflow as tf

        compiled = tf.function(schedule, input_signature=[tf.TensorSpec([], "int64")])
        variable = tf.Variable(0, dtype="int64")
        in_graph = [float(compiled(variable.assign(step))) for step in steps]
    else:
        import jax

        in_graph = [float(jax.jit(schedule)(step)) for step in steps]
    one_by_one = [float(schedule(step)) for step in steps]
    np.testing.assert_allclose(one_by_one, whole, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(in_graph, whole, rtol=1e-6, atol=1e-9)


@EVERY_KIND
def test_beyond_the_end_the_rate_stays_where_it_was_or_falls(kind):
    last, later = rates(schedule_of(kind), [20, 10_000])
    assert 0 <= later <= last


@EVERY_KIND
def test_without_warmup_the_first_rate_is_the_base_rate(kind):
    options = {**STEPS, **KINDS[kind], "warmup_steps": 0}
    np.testing.assert_allclose(rates(learning_rate_schedule(kind, **options), 0), 0.8, rtol=1e-6)


def test_cooldown_is_the_same_decay_until_it_begins():
    without = learning_rate_schedule("rsqrt", **STEPS, timescale=3.0)
    steps = np.arange(21)
    shares = np.array([1.0] * 16 + [0.8, 0.6, 0.4, 0.2, 0.0])
    np.testing.assert_allclose(
        rates(schedule_of("rsqrt"), steps), rates(without, steps) * shares, rtol=1e-6
    )


def test_a_warmup_longer_than_the_timescale_is_a_line():
    schedule = learning_rate_schedule(
        "rsqrt", base_rate=0.8, total_steps=40, warmup_steps=20, timescale=3.0
    )
    np.testing.assert_allclose(rates(schedule, [0, 5, 10, 20]), [0, 0.2, 0.4, 0.8], atol=1e-6)


def test_the_timescale_is_that_of_the_authors_unless_it_is_given():
    schedule = learning_rate_schedule("rsqrt", base_rate=0.8, total_steps=40_000, warmup_steps=0)
    np.testing.assert_allclose(rates(schedule, 30_000), 0.8 / math.sqrt(1 + 3), rtol=1e-6)


def test_a_step_on_the_boundary_still_has_the_old_rate():
    np.testing.assert_allclose(
        rates(schedule_of("staircase"), [8, 9, 12, 13]), [0.8, 0.08, 0.08, 0.008], rtol=1e-6
    )


def test_an_optimizer_asks_for_step_zero_first():
    """Plain gradient descent on gradients of 1 adds the rates up: 0 + 0.2 + 0.4 after three
    updates.
    """
    optimizer = keras.optimizers.SGD(schedule_of("cosine"))
    weight = keras.Variable(0.0)
    for _ in range(3):
        optimizer.apply([keras.ops.convert_to_tensor(1.0)], [weight])
    np.testing.assert_allclose(float(weight), -0.6, rtol=1e-6)
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.6, rtol=1e-6)


@EVERY_KIND
def test_a_saved_optimizer_keeps_its_schedule(kind):
    optimizer = keras.optimizers.SGD(schedule_of(kind))
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    schedule = restored._learning_rate
    assert isinstance(schedule, WarmupSchedule)
    assert schedule.get_config() == schedule_of(kind).get_config()
    np.testing.assert_array_equal(rates(schedule, range(21)), rates(schedule_of(kind), range(21)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": 4}, "more than `warmup_steps`, received 4 and 4"),
        ({"total_steps": 0, "warmup_steps": 0}, "received 0 and 0"),
        ({"warmup_steps": -1}, "must not be negative, received -1"),
        ({"base_rate": -0.1}, "must not be negative, received -0.1"),
        ({"base_rate": float("nan")}, "must not be negative, received nan"),
        ({"timescale": 0}, "must be positive, received 0.0"),
        ({"cooldown_steps": 17}, "from 0 to the 16 steps after the warm-up, received 17"),
        ({"cooldown_steps": -1}, "received -1"),
        (
            {"boundaries": (8,)},
            "no other kind takes them, received kind='cosine', boundaries=.8.",
        ),
        ({"kind": "staircase"}, r"needs `boundaries`.*kind='staircase', boundaries=\[\]"),
        ({"kind": "staircase", "boundaries": (12, 8)}, r"must increase.*\[12, 8\]"),
        ({"kind": "staircase", "boundaries": (8, 8)}, r"must increase.*\[8, 8\]"),
        (
            {"kind": "staircase", "boundaries": (2,)},
            r"warm-up \(4\) to before the end of the run \(20\), received \[2\]",
        ),
        ({"kind": "staircase", "boundaries": (20,)}, r"received \[20\]"),
        ({"kind": "step"}, r"'linear', 'cosine', 'rsqrt', 'staircase'\), received 'step'"),
        ({"warmup_steps": 30, "base_rate": -1}, "`base_rate`.*`total_steps`"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        learning_rate_schedule(**{"kind": "cosine", **STEPS, **changes})


@pytest.mark.parametrize(
    ("num_examples", "total", "warmup", "boundaries", "alpha"),
    [
        (1, 500, 100, (200, 300, 400), 0.0),
        (19_999, 500, 100, (200, 300, 400), 0.0),
        (20_000, 10_000, 500, (3000, 6000, 9000), 0.1),
        (499_999, 10_000, 500, (3000, 6000, 9000), 0.1),
        (500_000, 20_000, 500, (6000, 12_000, 18_000), 0.1),
        (1_281_167, 20_000, 500, (6000, 12_000, 18_000), 0.1),
    ],
)
def test_the_hyperrule_knows_three_sizes(num_examples, total, warmup, boundaries, alpha):
    rule = bit_hyperrule(num_examples)
    found = (rule.total_steps, rule.warmup_steps, rule.boundaries, rule.mixup_alpha)
    assert found == (total, warmup, boundaries, alpha)


def test_the_hyperrule_fits_into_a_staircase():
    rule = bit_hyperrule(3312)  # 90 % of the training images of Oxford-IIIT Pets
    schedule = learning_rate_schedule(
        "staircase",
        base_rate=0.003,
        total_steps=rule.total_steps,
        warmup_steps=rule.warmup_steps,
        boundaries=rule.boundaries,
    )
    found = rates(schedule, [0, 50, 99, 100, 200, 201, 300, 301, 400, 401, 499])
    expected = [0, 0.0015, 0.00297, 3e-3, 3e-3, 3e-4, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_hyperrule_needs_an_example():
    with pytest.raises(ValueError, match="at least 1. Received: 0"):
        bit_hyperrule(0)
