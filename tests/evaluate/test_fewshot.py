"""Few-shot evaluation: the published figures, other ways to solve the same equations, and what must
not matter.
"""

import json
import statistics
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")  # not for this module: its neighbours read data with it

from keras_vit.evaluate import labelled  # noqa: E402
from keras_vit.evaluate.fewshot import (  # noqa: E402
    OLDER_SWEEP,
    FewshotResult,
    draw_shots,
    fewshot,
    fit_ridge,
    select_ridge,
)

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "golden" / "fewshot_reference.json").read_text()
)["cases"]
RIDGES = (2.0**-10, 1.0, 2.0**10, 2.0**19)
SHAPES = [(5, 3), (20, 50), (49, 50), (50, 50), (51, 50), (200, 50), (8, 120)]  # (examples, width)


def reference_data(seed, n_per, k, d, ntest, spread, **_):
    """As the note in the file says, draw by draw."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(k, d)) * spread
    train_labels = np.repeat(np.arange(k), n_per)
    train = centres[train_labels] + draw.normal(size=(len(train_labels), d))
    test_labels = draw.integers(0, k, ntest)
    test = centres[test_labels] + draw.normal(size=(ntest, d))
    scale = np.exp(draw.normal(size=d) * 1.5)
    return (
        (train * scale).astype(np.float32),
        train_labels,
        (test * scale).astype(np.float32),
        test_labels,
    )


def clouds(num_classes=4, per_class=30, width=12, num_test=300, spread=1.0, seed=0):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(num_classes, width)) * spread
    labels = draw.permutation(np.repeat(np.arange(num_classes), per_class))
    test_labels = draw.integers(0, num_classes, num_test)
    train, test = (
        centres[these] + draw.normal(size=(len(these), width)) for these in (labels, test_labels)
    )
    return train.astype(np.float32), labels, test.astype(np.float32), test_labels


def uneven(num_examples, width, num_classes=4):
    """Features of very different scales and offsets, and labels that are not balanced."""
    draw = np.random.default_rng(num_examples + width)
    features = draw.normal(size=(num_examples, width)) * np.exp(2 * draw.normal(size=width))
    return features + 30 * draw.normal(size=width), draw.integers(0, num_classes, num_examples)


def equations(features, labels, num_classes=4):
    """Scaled features with the constant 100, and targets of -1 and 1."""
    scaled = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-5)
    targets = np.where(labels[:, None] == np.arange(num_classes), 1.0, -1.0)
    return np.column_stack([scaled, np.full(len(labels), 100.0)]), targets


def least_squares(inputs, targets, ridge):
    """Ridge regression as an ordinary one, with sqrt(ridge) times the identity below the
    examples.
    """
    width = inputs.shape[1]
    rows = np.vstack([inputs, np.sqrt(ridge) * np.eye(width)])
    return np.linalg.lstsq(
        rows, np.vstack([targets, np.zeros((width, targets.shape[1]))]), rcond=None
    )[0]


def assert_equal_weights(found, expected, tolerance=1e-8):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    # the constant's, far smaller
    np.testing.assert_allclose(found[-1], expected[-1], rtol=tolerance, atol=1e-15)


@pytest.mark.parametrize("case", REFERENCE, ids=["5 per class", "25 per class"])
def test_the_published_evaluator_is_reproduced(case):
    train, labels, test, test_labels = reference_data(**case)
    exponents = [int(exponent) for exponent in case["accuracy"]]
    ridges = [2.0**exponent for exponent in exponents]
    result = fewshot(train, labels, test, test_labels, shots=(case["n_per"],), ridges=ridges)
    right = np.rint(result.accuracies[0, :, 0] * case["ntest"]).astype(int)
    published = np.rint(np.array(list(case["accuracy"].values())) * case["ntest"]).astype(int)
    np.testing.assert_allclose(
        result.accuracies[0], np.repeat(right[:, None] / case["ntest"], 3, axis=1), atol=1e-15
    )
    assert exponents == [-10, 0, 5, 10, 15, 19]
    assert right[3:].tolist() == published[3:].tolist()
    np.testing.assert_allclose(result.mean[0, 3:], list(case["accuracy"].values())[3:], atol=1e-7)
    # The smaller constants leave small eigenvalues to the rounding of the published float32: a few
    # images of 2000.
    assert np.abs(right - published).max() <= 4
    # In float64 there is nothing left to chance: every answer is that of least squares.
    inputs, targets = equations(train.astype(np.float64), labels, case["k"])
    scaled = (test - train.mean(axis=0, dtype=np.float64)) / (
        train.std(axis=0, dtype=np.float64) + 1e-5
    )
    scaled = np.column_stack([scaled, np.full(len(test), 100.0)])
    answers = fit_ridge(train, labels, num_classes=case["k"]).answers(test, ridges)
    for ridge, found, count in zip(ridges, answers, right, strict=True):
        expected = (scaled @ least_squares(inputs, targets, ridge)).argmax(axis=1)
        assert (found == expected).all() and (expected == test_labels).sum() == count


@pytest.mark.parametrize("case", REFERENCE, ids=["5 per class", "25 per class"])
def test_what_float64_changes_is_the_rounding_of_the_published_float32(case):
    """The same equations as the published evaluator computes them, in single precision and compiled
    by XLA.

    All twelve figures were equal to the image where this was written. On another processor XLA
    rounds otherwise: up to 5 of the 2000 images were classified otherwise there, about as many as
        in float64.
    """
    jax = pytest.importorskip("jax")
    train, labels, test, test_labels = reference_data(**case)
    ridges = np.array([2.0 ** int(exponent) for exponent in case["accuracy"]], np.float32)

    @jax.jit
    def answers(train, targets, test):
        mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-5
        one = ((0, 0), (0, 1))
        train, test = (
            jax.numpy.pad((x - mean) / deviation, one, constant_values=100.0) for x in (train, test)
        )
        is_dual = train.shape[0] < train.shape[1]
        values, vectors = jax.numpy.linalg.eigh(train @ train.T if is_dual else train.T @ train)
        left = train.T @ vectors if is_dual else vectors
        right = vectors.T @ (targets if is_dual else train.T @ targets)
        return jax.lax.map(
            lambda ridge: (test @ ((left * (1 / (values + ridge))) @ right)).argmax(axis=1), ridges
        )

    targets = 2 * np.eye(case["k"], dtype=np.float32)[labels] - 1
    found = (np.asarray(answers(train, targets, test)) == test_labels).sum(axis=1)
    published = np.rint(np.array(list(case["accuracy"].values())) * case["ntest"]).astype(int)
    assert np.abs(found - published).max() <= 10


@pytest.mark.parametrize("shape", SHAPES)
def test_primal_equals_dual(shape):
    features, labels = uneven(*shape)
    others = uneven(*shape)[0] + np.random.default_rng(0).normal(size=shape)
    primal, dual = (fit_ridge(features, labels, num_classes=4, dual=form) for form in (False, True))
    for ridge in OLDER_SWEEP:
        assert_equal_weights(primal.weights(ridge), dual.weights(ridge))
    assert (primal.answers(others, OLDER_SWEEP) == dual.answers(others, OLDER_SWEEP)).all()


@pytest.mark.parametrize(("num_examples", "size"), [(7, 7), (8, 8), (20, 8)])
def test_the_smaller_matrix_is_decomposed(num_examples, size):
    features, labels = uneven(num_examples, 8)
    assert len(fit_ridge(features, labels, num_classes=4).eigenvalues) == size + 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", RIDGES)
def test_weights_are_those_of_least_squares(shape, ridge):
    features, labels = uneven(*shape)
    found = fit_ridge(features, labels, num_classes=4).weights(ridge)
    assert_equal_weights(found, least_squares(*equations(features, labels), ridge))


@pytest.mark.parametrize("shape", [(20, 50), (50, 50), (200, 50)])
@pytest.mark.parametrize("ridge", RIDGES)
def test_weights_are_those_of_scikit_learn(shape, ridge):
    linear = pytest.importorskip("sklearn.linear_model")
    features, labels = uneven(*shape)
    theirs = linear.Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(
        *equations(features, labels)
    )
    assert_equal_weights(fit_ridge(features, labels, num_classes=4).weights(ridge), theirs.coef_.T)


def test_two_examples_by_hand():
    """Features -1 and 1, so the scaled ones are -s and s with s = 1 / (1 + 1e-5); T = [[1, -1],
    [-1, 1]].
    """
    path = fit_ridge(np.array([[-1.0], [1.0]]), np.array([0, 1]), num_classes=2)
    scaled = 1 / (1 + 1e-5)
    weight = -2 * scaled / (2 * scaled**2 + 3.0)
    np.testing.assert_allclose(
        path.weights(3.0), [[weight, -weight], [0.0, 0.0]], rtol=1e-12, atol=1e-15
    )
    # a tie: the first
    assert path.answers(np.array([[-0.1], [0.2], [0.0]]), [3.0]).tolist() == [[0, 1, 0]]


def test_an_offset_of_the_features_changes_nothing():
    train, labels, test, test_labels = (array.astype(np.float64) for array in clouds())
    labels, test_labels = labels.astype(int), test_labels.astype(int)
    offset = 1000 * np.random.default_rng(1).normal(size=train.shape[1])
    before, after = (fit_ridge(train + add, labels, num_classes=4) for add in (0, offset))
    for ridge in RIDGES:
        np.testing.assert_allclose(after.weights(ridge), before.weights(ridge), atol=1e-10)
    assert (after.answers(test + offset, RIDGES) == before.answers(test, RIDGES)).all()
    # Unbalanced classes, where the constant feature matters.
    features, labels = uneven(60, 10)
    before, after = (fit_ridge(features + add, labels, num_classes=4) for add in (0, 500.0))
    np.testing.assert_allclose(after.weights(1.0), before.weights(1.0), atol=1e-10)


def test_the_scale_of_the_features_changes_next_to_nothing():
    train, labels, test, _ = clouds()
    before, after = (fit_ridge(train * factor, labels, num_classes=4) for factor in (1, 64))
    assert (after.answers(test * 64, RIDGES) == before.answers(test, RIDGES)).mean() > 0.999
    np.testing.assert_allclose(after.weights(1.0), before.weights(1.0), atol=1e-4)
    # by the 1e-5 that is added to the deviation
    assert np.abs(after.weights(1.0) - before.weights(1.0)).max() > 1e-9


def test_the_order_of_the_training_examples_changes_nothing_when_all_are_used():
    train, labels, test, test_labels = clouds(per_class=10, spread=0.5)
    order = np.random.default_rng(1).permutation(len(train))
    before = fewshot(train, labels, test, test_labels, shots=(10,), ridges=RIDGES)
    after = fewshot(train[order], labels[order], test, test_labels, shots=(10,), ridges=RIDGES)
    assert (before.accuracies == after.accuracies).all()
    assert (before.accuracies == before.accuracies[..., :1]).all()  # so the seeds say the same too
    assert 0.5 < before.mean[0, 2] < 1.0


def test_the_order_of_the_test_examples_and_the_block_size_change_nothing(monkeypatch):
    train, labels, test, test_labels = clouds(spread=0.5)
    before = fewshot(train, labels, test, test_labels, ridges=RIDGES)
    monkeypatch.setattr(labelled, "_BLOCK", 150)  # 3 ridge constants and 6 rows at once
    after = fewshot(train, labels, test[::-1], test_labels[::-1], ridges=RIDGES)
    assert (before.accuracies == after.accuracies).all()


def test_classes_that_lie_apart_are_told_apart():
    train, labels, test, test_labels = clouds(spread=30.0)
    assert (fewshot(train, labels, test, test_labels, ridges=RIDGES[:3]).accuracies == 1.0).all()


def test_labels_without_meaning_give_chance():
    train, labels, test, _ = clouds(num_classes=4, num_test=2000, per_class=40)
    test_labels = np.random.default_rng(5).integers(0, 4, 2000)
    accuracies = fewshot(train, labels, test, test_labels).accuracies
    assert np.abs(accuracies - 0.25).max() < 4 * (0.25 * 0.75 / 2000) ** 0.5


def test_draws_are_a_permutation_of_each_class_by_one_generator():
    labels = np.random.default_rng(3).integers(0, 5, 200)
    names = ["a", "b", "c", "d", "e"]
    generator = np.random.default_rng(7)
    by_hand = [generator.permutation(np.flatnonzero(labels == number))[:9] for number in range(5)]
    drawn = draw_shots(labels, 9, seed=7, class_names=names)
    assert (drawn == by_hand).all()
    assert (labels[drawn] == np.arange(5)[:, None]).all() and len(set(drawn.flat)) == 45
    assert (draw_shots(labels, 9, seed=7, class_names=names) == drawn).all()
    assert (draw_shots(labels, 4, seed=7, class_names=names) == drawn[:, :4]).all()
    assert (draw_shots(labels, 9, seed=8, class_names=names) != drawn).any()


def test_a_class_of_exactly_k_examples_is_taken_whole():
    labels = np.repeat([0, 1], [3, 9])
    assert sorted(draw_shots(labels, 3, seed=0, class_names="ab")[0]) == [0, 1, 2]


def test_each_shot_count_and_seed_is_the_regression_of_its_draw():
    train, labels, test, test_labels = clouds(spread=0.5)
    result = fewshot(
        train, labels, test, test_labels, shots=(10, 2), seeds=(4, 9), ridges=(1.0, 64.0)
    )
    assert (result.shots, result.seeds, result.ridges) == ((10, 2), (4, 9), (1.0, 64.0))
    for row, shots in enumerate((10, 2)):
        for column, seed in enumerate((4, 9)):
            rows = draw_shots(labels, shots, seed=seed, class_names="abcd").ravel()
            path = fit_ridge(train[rows], labels[rows], num_classes=4)
            expected = (path.answers(test, (1.0, 64.0)) == test_labels).sum(axis=1) / 300
            np.testing.assert_allclose(result.accuracies[row, :, column], expected, rtol=1e-15)
    assert len(set(result.accuracies.flat)) == 8


def test_the_defaults_are_those_of_big_vision():
    result = fewshot(*clouds())
    assert (result.shots, result.ridges, result.seeds) == ((1, 5, 10, 25), (1024.0,), (0, 1, 2))
    assert OLDER_SWEEP[0] == 2**-10 and OLDER_SWEEP[-1] == 2**19 and len(OLDER_SWEEP) == 30


@pytest.mark.parametrize("per_class", [3, 40])  # fewer examples than features, and more
def test_a_feature_that_is_constant_in_training_has_no_say(per_class):
    train, labels, test, test_labels = clouds(per_class=per_class, width=20, spread=0.5)
    dead = np.random.default_rng(2).normal(size=(len(test), 2)).astype(np.float32) * 1e6
    still = np.full((len(train), 2), 1e6, np.float32) / 3
    wide, wide_test = np.hstack([still, train]), np.hstack([still[:1] + dead, test])
    path, without = (fit_ridge(features, labels, num_classes=4) for features in (wide, train))
    for ridge in RIDGES:
        np.testing.assert_allclose(path.weights(ridge)[:2], 0.0, atol=1e-12)
    assert (path.answers(wide_test, RIDGES) == without.answers(test, RIDGES)).all()


def test_features_that_repeat_leave_no_negative_eigenvalue():
    train, labels, _, _ = clouds(width=5)
    path = fit_ridge(np.hstack([train] * 4), labels, num_classes=4)
    assert path.eigenvalues.min() >= 0.0
    assert np.abs(path.weights(2.0**-10)).max() < 10


def test_mean_and_deviation_are_those_of_the_statistics_module():
    result = fewshot(*clouds(spread=0.5), seeds=(0, 1, 2, 3, 4), ridges=(1.0, 1024.0))
    assert result.mean.shape == result.std.shape == (4, 2)
    for row in range(4):
        for column in range(2):
            accuracies = result.accuracies[row, column].tolist()
            assert result.mean[row, column] == pytest.approx(statistics.mean(accuracies), rel=1e-12)
            assert result.std[row, column] == pytest.approx(statistics.stdev(accuracies), rel=1e-12)
    assert (result.std[:2] > 0).all()


def test_draws_of_the_same_images_have_no_deviation():
    """Five images of each class: five shots are all of them, whatever the seed."""
    train, labels, test, test_labels = clouds(spread=0.5)
    few = np.sort(draw_shots(labels, 5, seed=0, class_names=range(4)), axis=None)
    result = fewshot(train[few], labels[few], test, test_labels, shots=(1, 5), seeds=(0, 1, 2))
    assert result.draws_differ == (True, False)
    assert set(result.scores()) == {"1shot", "1shot_std", "5shot"}
    assert result.std[0, 0] > 0 and np.isnan(result.std[1, 0])
    assert len(set(result.accuracies[1, 0])) == 1


def test_scores_have_names():
    accuracies = np.array(
        [[[0.25, 0.5, 0.75], [0.5, 0.5, 0.5]], [[0.5, 0.5, 0.5], [0.5, 0.75, 1.0]]]
    )
    choices = {"shots": (1, 5), "ridges": (1.0, 2.0), "seeds": (0, 1, 2)}
    result = FewshotResult(**choices, accuracies=accuracies, draws_differ=(True, True))
    assert result.scores({1: 1.0, 5: 2.0}) == {
        "1shot": 0.5,
        "1shot_std": 0.25,
        "5shot": 0.75,
        "5shot_std": 0.25,
    }
    single = FewshotResult(
        shots=(1, 5),
        ridges=(1.0,),
        seeds=(0,),
        accuracies=accuracies[:, :1, :1],
        draws_differ=(False, False),
    )
    assert single.scores() == {"1shot": 0.25, "5shot": 0.5} and np.isnan(single.std).all()
    with pytest.raises(
        ValueError, match="must map each of the shots 1, 5 to one of 1, 2, as `select_ridge` does"
    ):
        result.scores()
    with pytest.raises(ValueError, match="Received: {1: 1.0}"):
        result.scores({1: 1.0})
    with pytest.raises(ValueError, match="Received: {1: 1.0, 5: 3.0}"):
        result.scores({1: 1.0, 5: 3.0})


def result_of(*rows, ridges=(1.0, 2.0, 4.0, 8.0), shots=None):
    """Mean accuracies: one row for each number of shots, one column for each ridge constant."""
    accuracies = np.array(rows)[..., None] + np.array([-0.05, 0.0, 0.05])
    return FewshotResult(
        shots=shots or tuple(range(1, 1 + len(rows))),
        ridges=ridges,
        seeds=(0, 1, 2),
        accuracies=accuracies,
        draws_differ=(True,) * len(rows),
    )


def test_the_ridge_constant_has_the_best_mean_rank():
    # 1 shot. Ranks, the worst is 1: pets 1, 3.5, 3.5, 2; cars 3.5, 1, 2, 3.5. Means 2.25, 2.25,
    # 2.75, 2.75: so 4. 2 shots: pets 1, 2, 3, 4; cars 4, 3, 1, 2. Means 2.5, 2.5, 2, 3: so 8.
    pets = result_of([0.5, 0.7, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4])
    cars = result_of([0.9, 0.8, 0.85, 0.9], [0.9, 0.8, 0.1, 0.2])
    assert select_ridge({"pets": pets, "cars": cars}) == {1: 4.0, 2: 8.0}


def test_equal_constants_share_the_mean_of_their_ranks():
    def chosen(pets, cars):
        return select_ridge(
            {"pets": result_of(pets, ridges=(1, 2, 4)), "cars": result_of(cars, ridges=(1, 2, 4))}
        )[1]

    # 1, 2.5, 2.5 and 3, 1, 2: means 2, 1.75, 2.25. If both were second, 1 and 4 would be equal, and
    # 1 chosen.
    assert chosen([0.2, 0.3, 0.3], [0.3, 0.1, 0.2]) == 4
    # 3, 1, 2 and 1.5, 1.5, 3: means 2.25, 1.25, 2.5. If both of the latter were second, the same.
    assert chosen([0.3, 0.1, 0.2], [0.2, 0.2, 0.3]) == 4
    # 1, 2.5, 2.5 and 3, 2, 1: means 2, 2.25, 1.75. Ranked by place, 2 and 3 for the equal ones, all
    # would be 2.
    assert chosen([0.2, 0.3, 0.3], [0.3, 0.2, 0.1]) == 2


def test_a_large_gain_on_one_data_set_counts_as_one_rank():
    # Ranks 1, 2, 3 twice and 3, 2, 1 once: means 5/3, 2, 7/3. By mean accuracy the first constant
    # would win.
    small = result_of([0.1, 0.2, 0.3], ridges=(1.0, 2.0, 4.0))
    large = result_of([0.99, 0.5, 0.1], ridges=(1.0, 2.0, 4.0))
    assert select_ridge({"dtd": small, "pets": small, "cars": large}) == {1: 4.0}


def test_of_equal_constants_the_smallest_is_chosen_in_whatever_order_they_were_tried():
    assert select_ridge({"a": result_of([0.5, 0.6, 0.6], ridges=(4.0, 2.0, 1.0))}) == {1: 1.0}
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last digit.
    accuracies = np.array([[[0.3, 0.2, 0.1], [0.1, 0.2, 0.3]]])
    assert accuracies[0, 0].sum() != accuracies[0, 1].sum()
    choices = {"shots": (1,), "ridges": (1.0, 2.0), "seeds": (0, 1, 2)}
    shaken = FewshotResult(**choices, accuracies=accuracies, draws_differ=(True,))
    assert select_ridge({"a": shaken}) == {1: 1.0}


def test_selection_agrees_with_scipys_ranks():
    stats = pytest.importorskip("scipy.stats")
    means = np.random.default_rng(0).integers(0, 6, (5, 3, 30)) / 10
    results = {
        str(number): result_of(*rows, ridges=OLDER_SWEEP) for number, rows in enumerate(means)
    }
    ranks = stats.rankdata(means, axis=2).mean(axis=0)
    expected = {shots: OLDER_SWEEP[ranks[shots - 1].argmax()] for shots in (1, 2, 3)}
    assert select_ridge(results) == expected
    assert set(results["0"].scores(expected)) == {
        f"{shots}shot{end}" for shots in (1, 2, 3) for end in ("", "_std")
    }


def test_results_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="is empty. Pass the result"):
        select_ridge({})
    one = result_of([0.5, 0.6], ridges=(1.0, 2.0))
    others = {
        "b": result_of([0.5, 0.6], ridges=(1.0, 4.0)),
        "c": result_of([0.5, 0.6], ridges=(1.0, 2.0), shots=(5,)),
    }
    with pytest.raises(
        ValueError, match="must have the same shots and ridges.* Different from a: b, c"
    ):
        select_ridge({"a": one, **others, "d": one})


FEATURES, LABELS, TEST, TEST_LABELS = clouds(num_classes=3, per_class=30, width=4, num_test=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_features": FEATURES[0]},
            r"`train_features` must be numbers of shape \(examples, width\).*\(4,\)",
        ),
        (
            {"train_features": FEATURES[:0]},
            r"`train_features` must be .* and not empty. .*\(0, 4\)",
        ),
        (
            {"test_features": TEST[:, :0]},
            r"`test_features` must be numbers of shape \(examples, 4\).*\(6, 0\)",
        ),
        (
            {"test_features": TEST[:, :3]},
            r"`test_features` must be numbers of shape \(examples, 4\).*\(6, 3\)",
        ),
        ({"test_features": TEST.astype(complex)}, "`test_features` must be numbers.* complex128"),
        ({"test_features": TEST.astype(str)}, "`test_features` must be numbers"),
        (
            {"train_labels": LABELS[1:]},
            r"`train_labels` must be integers of shape \(90,\).*\(89,\)",
        ),
        (
            {"test_labels": TEST_LABELS[:, None]},
            r"`test_labels` must be integers of shape \(6,\).*\(6, 1\)",
        ),
        (
            {"test_labels": TEST_LABELS.astype(float)},
            "`test_labels` must be integers.* Received: float64",
        ),
        ({"train_labels": LABELS == 1}, "`train_labels` must be integers.* Received: bool"),
        ({"train_labels": LABELS - 1}, "`train_labels` must be 0 to 2. Received: -1 to 1."),
        (
            {"class_names": ["cat", "dog"]},
            "`train_labels` must be 0 to 1. Received: 0 to 2. `test_labels` must be",
        ),
        (
            {"train_labels": LABELS * 0, "test_labels": TEST_LABELS * 0},
            "at least two classes. Received: 0.",
        ),
        ({"class_names": []}, "at least two classes. Received: none."),
        ({"class_names": ["cat"]}, "at least two classes. Received: cat."),
        (
            {"shots": (5, 31)},
            r"3 of the 3 classes have fewer than 31 training examples: 0 \(30\), 1 \(30\), 2 \(30\)",
        ),
        (
            {"class_names": ["cat", "dog", "bat", "eel"]},
            r"1 of the 4 classes .* than 25 .*: eel \(0\). Add examples",
        ),
        (
            {"test_labels": TEST_LABELS + 1},
            r"1 of the 4 classes have fewer than 25 training examples: 3 \(0\)",
        ),
        ({"shots": ()}, r"`shots` must be different integers, at least 1. Received: \[\]"),
        ({"shots": (0, 1)}, r"`shots` must be different integers, at least 1. Received: \[0, 1\]"),
        ({"shots": (1, 5, 1)}, r"`shots` must be different integers.*\[1, 5, 1\]"),
        ({"shots": (2.5,)}, r"`shots` must be different integers.*\[2.5\]"),
        ({"seeds": ()}, "`seeds` must be different integers, at least 0"),
        ({"seeds": (0, -1)}, "`seeds` must be different integers, at least 0"),
        ({"seeds": (3, 3)}, "`seeds` must be different integers, at least 0"),
        ({"ridges": ()}, "`ridges` must be different finite numbers above 0"),
        ({"ridges": (1.0, 0.0)}, "`ridges` must be different finite numbers above 0"),
        ({"ridges": (-1.0,)}, "`ridges` must be different finite numbers above 0"),
        ({"ridges": (float("nan"),)}, "`ridges` must be different finite numbers above 0"),
        ({"ridges": (float("inf"),)}, "`ridges` must be different finite numbers above 0"),
        ({"ridges": (2.0, 2.0)}, "`ridges` must be different finite numbers above 0"),
        (
            {"shots": (0,), "ridges": (0,), "test_labels": TEST_LABELS[1:]},
            "(?s)`shots` must.*`ridges` must.*`test_labels`",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    arguments = {
        "train_features": FEATURES,
        "train_labels": LABELS,
        "test_features": TEST,
        "test_labels": TEST_LABELS,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        fewshot(**arguments)


def test_long_lists_are_cut():
    labels = np.arange(25)
    with pytest.raises(
        ValueError, match=r"25 of the 25 classes .* 9 \(1\) and 15 more. Every class has at least 1"
    ):
        draw_shots(labels, 2, seed=0, class_names=range(25))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(value, monkeypatch):
    monkeypatch.setattr(labelled, "_BLOCK", 40)  # ten rows at once
    train, test = FEATURES.copy(), np.repeat(TEST, 5, axis=0)
    test[[17, 25], 2] = value
    with pytest.raises(
        ValueError, match="Row 17 of `test_features` has values that are NaN or infinite"
    ):
        fewshot(train, LABELS, test, np.repeat(TEST_LABELS, 5))
    rows = np.sort(draw_shots(LABELS, 25, seed=0, class_names="abc"), axis=None)
    train[rows[[40, 50]], 0] = value
    with pytest.raises(ValueError, match=f"Row {rows[40]} of `train_features`"):
        fewshot(train, LABELS, TEST, TEST_LABELS, seeds=(0,))


def test_a_regression_of_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError,
        match=r"`labels` must be integers of shape \(90,\), one for each row of `features`",
    ):
        fit_ridge(FEATURES, LABELS[1:], num_classes=3)
    with pytest.raises(ValueError, match="`labels` must be 0 to 1. Received: 0 to 2"):
        fit_ridge(FEATURES, LABELS, num_classes=2)
    with pytest.raises(ValueError, match="`ridges` must be different finite numbers above 0"):
        fit_ridge(FEATURES, LABELS, num_classes=3).weights(0.0)


def test_training_rows_that_are_not_drawn_are_not_looked_at():
    before = fewshot(FEATURES, LABELS, TEST, TEST_LABELS, shots=(1, 5))
    drawn = [draw_shots(LABELS, 5, seed=seed, class_names="abc") for seed in (0, 1, 2)]
    others = np.setdiff1d(np.arange(len(LABELS)), drawn)
    features = FEATURES.copy()
    features[others] = np.nan
    assert (
        len(others)
        and (
            fewshot(features, LABELS, TEST, TEST_LABELS, shots=(1, 5)).accuracies
            == before.accuracies
        ).all()
    )


@pytest.mark.parametrize("kind", ["float16", "float64", "int16", "uint8"])
def test_any_kind_of_number_will_do_and_nothing_is_modified(kind):
    draw = np.random.default_rng(0)
    train, test = (draw.integers(0, 200, (size, 6)) for size in (120, 40))
    labels, test_labels = np.repeat(np.arange(4), 30), draw.integers(0, 4, 40)
    expected = fewshot(
        train.astype(np.float32), labels, test.astype(np.float32), test_labels
    ).accuracies
    arrays = [
        train.astype(kind),
        labels.astype(np.uint64),
        test.astype(kind),
        test_labels.astype(np.uint8),
    ]
    for array in arrays:
        array.setflags(write=False)
    assert (fewshot(*arrays).accuracies == expected).all()
    rows = [train.tolist(), labels.tolist(), test.tolist(), test_labels.tolist()]
    assert (fewshot(*rows).accuracies == expected).all()


def test_memory_mapped_features_give_the_same_bits(tmp_path):
    train, labels, test, test_labels = clouds(spread=0.5)
    np.save(tmp_path / "train.npy", train)
    np.save(tmp_path / "test.npy", test)
    mapped, mapped_test = (
        np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("train", "test")
    )
    assert isinstance(mapped, np.memmap)
    expected = fewshot(train, labels, test, test_labels, ridges=RIDGES).accuracies
    found = fewshot(mapped, labels, mapped_test, test_labels, ridges=RIDGES).accuracies
    assert found.tobytes() == expected.tobytes()


def test_a_large_test_set_is_never_copied(tmp_path):
    train, labels, _, _ = clouds(width=1024, num_test=1)
    # 123 MB of zeros
    test = np.lib.format.open_memmap(tmp_path / "test.npy", "w+", np.float32, (30_000, 1024))
    tracemalloc.start()
    try:
        fewshot(train, labels, test, np.zeros(len(test), int), shots=(25,), seeds=(0,))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < test.nbytes / 2
