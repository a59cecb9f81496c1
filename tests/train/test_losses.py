"""Against hand computations, Keras's own losses and float64."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.train.losses import (
    LOSSES,
    classification,
    default_head_bias,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)

BOTH = pytest.mark.parametrize("name", ["softmax", "sigmoid"])
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def numbers(tensor) -> np.ndarray:
    assert keras.backend.standardize_dtype(tensor.dtype) == "float32"
    return ops.convert_to_numpy(tensor)


def some_logits(batch: int = 4, classes: int = 7) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (batch, classes)).astype("float32")


def some_targets(batch: int = 4, classes: int = 7) -> np.ndarray:
    return np.random.default_rng(1).dirichlet(np.ones(classes), batch).astype("float32")


def gradient(loss, labels, logits: np.ndarray) -> np.ndarray:
    """Of the sum of the losses; the one thing that Keras has no common word for."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        variable = tf.Variable(logits)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(loss(labels, variable))
        return np.asarray(tape.gradient(total, variable))
    import jax

    return np.asarray(jax.grad(lambda x: loss(labels, x).sum())(logits))


def test_the_table_holds_both_losses():
    assert LOSSES == {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}


def test_softmax_of_a_hand_computed_example():
    # Odds of 1 : 2 : 5, so that the classes have probabilities of 1/8, 2/8 and 5/8.
    logits = np.log([[1.0, 2.0, 5.0]])
    expected = [math.log(8), math.log(4), math.log(8 / 5)]
    found = [numbers(softmax_cross_entropy(np.array([label]), logits))[0] for label in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sigmoid_of_a_hand_computed_example():
    # Odds of 1, 3 and 1/4, so that the classes have probabilities of 1/2, 3/4 and 1/5; the first
    # two are there.
    logits = np.log([[1.0, 3.0, 0.25]])
    expected = -math.log(1 / 2) - math.log(3 / 4) - math.log(4 / 5)
    found = numbers(sigmoid_cross_entropy(np.array([[1.0, 1.0, 0.0]]), logits))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


@BOTH
def test_integers_equal_their_one_hot_targets(name):
    labels = np.array([3, 0, 6, 6])
    given = [
        LOSSES[name](kind, some_logits(), label_smoothing=0.2)
        for kind in (labels, np.eye(7)[labels])
    ]
    np.testing.assert_array_equal(*map(numbers, given))
    np.testing.assert_array_equal(
        *(numbers(LOSSES[name](labels.astype(kind), some_logits())) for kind in ("uint8", "int64"))
    )


@BOTH
def test_a_batch_is_its_examples_one_by_one(name):
    whole = numbers(LOSSES[name](some_targets(), some_logits()))
    parts = [
        numbers(LOSSES[name](some_targets()[i : i + 1], some_logits()[i : i + 1])) for i in range(4)
    ]
    assert whole.shape == (4,)
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_softmax_smooths_as_keras_does(smoothing):
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction=None
    )
    np.testing.assert_allclose(
        numbers(softmax_cross_entropy(some_targets(), some_logits(), label_smoothing=smoothing)),
        numbers(reference(some_targets(), some_logits())),
        rtol=1e-5,
    )


def test_sigmoid_is_the_sum_of_what_keras_averages():
    reference = keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)
    np.testing.assert_allclose(
        numbers(sigmoid_cross_entropy(some_targets(), some_logits())),
        7 * numbers(reference(some_targets(), some_logits())),
        rtol=1e-5,
    )


def test_sigmoid_smooths_as_keras_does_where_the_definitions_meet():
    """Two classes: s / Y = s / 2."""
    reference = keras.losses.BinaryCrossentropy(
        from_logits=True, label_smoothing=0.3, reduction=None
    )
    targets, logits = some_targets(classes=2), some_logits(classes=2)
    np.testing.assert_allclose(
        numbers(sigmoid_cross_entropy(targets, logits, label_smoothing=0.3)),
        2 * numbers(reference(targets, logits)),
        rtol=1e-5,
    )


def test_sigmoid_spreads_the_share_over_all_classes():
    # s = 0.2 over four classes: the target 1 becomes 0.85, the target 0 becomes 0.05.
    smooth = numbers(sigmoid_cross_entropy(np.array([1]), some_logits(1, 4), label_smoothing=0.2))
    by_hand = numbers(
        sigmoid_cross_entropy(np.array([[0.05, 0.85, 0.05, 0.05]]), some_logits(1, 4))
    )
    np.testing.assert_allclose(smooth, by_hand, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_computation_is_in_float32(name, dtype):
    """Half precision would lose the sum: 2048 + 1 = 2048 in float16."""
    logits = ops.cast(np.round(some_logits(2, 5000)), dtype)  # integers, the same in every dtype
    labels = np.array([4999, 0])
    expected = numbers(LOSSES[name](labels, ops.convert_to_numpy(ops.cast(logits, "float32"))))
    np.testing.assert_allclose(numbers(LOSSES[name](labels, logits)), expected, rtol=1e-6)


def test_extreme_logits_have_a_finite_loss():
    logits = np.array([[1e4, -1e4, 0.0]], "float32")
    np.testing.assert_allclose(numbers(softmax_cross_entropy(np.array([0]), logits)), [0.0])
    np.testing.assert_allclose(numbers(softmax_cross_entropy(np.array([1]), logits)), [2e4])
    np.testing.assert_allclose(numbers(sigmoid_cross_entropy(np.array([0]), logits)), [math.log(2)])
    np.testing.assert_allclose(
        numbers(sigmoid_cross_entropy(np.array([1]), logits)), [2e4 + math.log(2)]
    )


def test_a_sure_and_right_answer_keeps_its_small_loss():
    # log(1 + exp(-30)), of which nothing would be left beside 30 in float32.
    found = numbers(sigmoid_cross_entropy(np.array([[1.0]]), np.array([[30.0]], "float32")))
    np.testing.assert_allclose(found, [9.357622968839787e-14], rtol=1e-5)


@BOTH
def test_the_gradient_is_probability_minus_target_at_every_size(name):
    """At 0 too, where a head begins and where a loss made of |x| and max(x, 0) has a kink."""
    logits = np.array(
        [[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [-1e4, -1e4, 1e4], [1.0, -2.0, 3.0]], "float32"
    )
    labels = np.array([1, 2, 0, 0])
    exponents = np.exp(np.minimum(logits.astype("float64") - logits.max(axis=1, keepdims=True), 0))
    softmax = exponents / exponents.sum(axis=1, keepdims=True)
    sigmoid = 1 / (1 + np.exp(-np.clip(logits.astype("float64"), -700, 700)))
    expected = {"softmax": softmax, "sigmoid": sigmoid}[name] - np.eye(3)[labels]
    np.testing.assert_allclose(gradient(LOSSES[name], labels, logits), expected, atol=1e-6)


@BOTH
def test_compiled_as_in_the_open(name):
    arguments = (np.array([3, 0, 6, 6], "int32"), some_logits())

    def loss(labels, logits):
        return LOSSES[name](labels, logits, label_smoothing=0.1)

    if ON_TENSORFLOW:
        import tensorflow as tf

        # The batch of unknown size is that of a tf.data pipeline.
        signature = [tf.TensorSpec([None], "int32"), tf.TensorSpec([None, 7], "float32")]
        compiled = tf.function(loss, input_signature=signature)
    else:
        import jax

        compiled = jax.jit(loss)
    np.testing.assert_allclose(numbers(compiled(*arguments)), numbers(loss(*arguments)), rtol=1e-6)


@BOTH
@pytest.mark.parametrize(
    "labels", [np.zeros((4, 1)), np.zeros(4), np.zeros((4, 1), "int32"), np.zeros((4, 7, 1))]
)
def test_labels_that_do_not_fit_are_refused(name, labels):
    with pytest.raises(
        ValueError, match=r"\(B,\) or targets of shape \(B, 7\).*logits of shape \(4, 7\)"
    ):
        LOSSES[name](labels, some_logits())


@BOTH
@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_a_smoothing_that_is_no_share_is_refused(name, smoothing):
    with pytest.raises(ValueError, match=f"between 0 and 1. Received: {smoothing}"):
        LOSSES[name](np.zeros(4, "int32"), some_logits(), label_smoothing=smoothing)


@BOTH
def test_a_hit_is_the_likeliest_class_of_soft_targets_too(name):
    logits = np.array([[2.0, -1.0, 0.0], [0.0, -1.0, 2.0], [0.0, 1.0, 2.0]], "float32")
    soft = np.array([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9], [0.2, 0.7, 0.1]], "float32")
    for labels in (soft, np.array([0, 2, 1])):
        _, hits = classification(name)(labels, logits)
        assert numbers(hits).tolist() == [1, 1, 0]


def test_the_bias_of_the_head_is_the_authors():
    assert round(default_head_bias("sigmoid", 21843)) == -10
    assert round(default_head_bias("sigmoid", 1000), 1) == -6.9
    assert default_head_bias("softmax", 21843) == 0.0


def test_a_head_with_the_bias_expects_about_one_class():
    bias = default_head_bias("sigmoid", 1000)
    loss = numbers(sigmoid_cross_entropy(np.array([5]), np.full((1, 1000), bias)))
    # One class that is there, at -ln(1/1001), and 999 that are not, at -ln(1000/1001): 6.909 +
    # 0.999.
    np.testing.assert_allclose(loss, [7.9072554], rtol=1e-5)


def test_a_bias_is_only_for_what_exists():
    with pytest.raises(ValueError, match=r"\('softmax', 'sigmoid'\). Received: 'hinge'"):
        default_head_bias("hinge", 10)
    with pytest.raises(ValueError, match="at least 1. Received: 0"):
        default_head_bias("sigmoid", 0)
