"""The linear probe: the optimum found in other ways, what the choice may see, and what is
refused.
"""

import logging
import sys
import warnings

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special

pytest.importorskip("tensorflow")  # not for this module: its neighbours read data with it

from keras_vit.evaluate import labelled  # noqa: E402
from keras_vit.evaluate import probe as module  # noqa: E402
from keras_vit.evaluate.probe import REGULARIZATIONS, linear_probe, moments, split_by_class  # noqa: E402


def clouds(num_classes=3, per_class=20, width=4, spread=1.0, seed=0):
    """Features of different scales and offsets; training and test set."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(num_classes, width)) * spread
    scale, offset = np.exp(draw.normal(size=width)), 10 * draw.normal(size=width)
    labels = draw.permutation(np.repeat(np.arange(num_classes), per_class))
    test_labels = draw.integers(0, num_classes, 300)
    train, test = (
        (centres[these] + draw.normal(size=(len(these), width))) * scale + offset
        for these in (labels, test_labels)
    )
    return train, labels, test, test_labels


def digits():
    """scikit-learn's: 1437 to learn from, 360 to measure on."""
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:1437], order[1437:]
    return (
        images[train].astype(np.float32),
        labels[train],
        images[test].astype(np.float32),
        labels[test],
    )


def objective(kernel, bias, features, labels, regularization):
    """Of weights for features as they are, with the penalty on weights for scaled features."""
    logits = features @ kernel + bias
    losses = scipy.special.logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels]
    return losses.sum() + regularization / 2 * np.sum((kernel * features.std(axis=0)[:, None]) ** 2)


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("regularization", [0.3, 10.0, 1000.0])
def test_the_gradient_is_zero_at_the_optimum(num_classes, regularization):
    features, labels, *test = clouds(num_classes)
    result = linear_probe(features, labels, *test, regularizations=(regularization,))
    std = features.std(axis=0)
    errors = (
        scipy.special.softmax(features @ result.kernel + result.bias, axis=1)
        - np.eye(num_classes)[labels]
    )
    scaled = (features - features.mean(axis=0)) / std
    gradient = scaled.T @ errors + regularization * result.kernel * std[:, None]
    assert result.converged
    assert np.abs(scaled.T @ errors).max() > 0.1  # the two parts are not small by themselves
    np.testing.assert_allclose(gradient / len(labels), 0.0, atol=1e-5)
    np.testing.assert_allclose(errors.sum(axis=0) / len(labels), 0.0, atol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_general_minimizer_finds_the_same_weights(num_classes):
    features, labels, *test = clouds(num_classes, per_class=10, width=2)
    result = linear_probe(features, labels, *test, regularizations=(2.0,))

    def loss(weights):
        return objective(weights[:-1], weights[-1], features, labels, 2.0)

    start = np.zeros((3, num_classes))
    found = scipy.optimize.minimize(
        lambda flat: loss(flat.reshape(start.shape)), start.ravel(), method="BFGS"
    )
    weights = found.x.reshape(start.shape)
    assert found.fun == pytest.approx(loss(np.vstack([result.kernel, result.bias])), abs=1e-6)
    np.testing.assert_allclose(result.kernel, weights[:-1], atol=1e-3)
    np.testing.assert_allclose(
        result.bias - result.bias.mean(), weights[-1] - weights[-1].mean(), atol=1e-3
    )


def test_handwritten_digits():
    result = linear_probe(*digits(), regularizations=(1e-2, 1.0, 1e2, 1e4, 1e6))
    assert result.accuracy == pytest.approx(351 / 360, abs=2.5 / 360)
    assert result.regularization == 1.0 and not result.at_edge and result.converged
    assert result.scores() == {
        "probe": result.accuracy,
        "probe_regularization": result.regularization,
        "probe_dev": max(result.dev_accuracies.values()),
    }


def test_a_dense_layer_takes_the_weights():
    train, labels, test, test_labels = digits()
    result = linear_probe(train, labels, test, test_labels, regularizations=(10.0,))
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.layers[-1].set_weights([result.kernel, result.bias])
    logits = keras.ops.convert_to_numpy(model(test))
    np.testing.assert_allclose(logits, test @ result.kernel + result.bias, atol=1e-3)
    assert np.mean(logits.argmax(axis=1) == test_labels) == pytest.approx(result.accuracy, abs=1e-9)
    assert result.scores() == {"probe": result.accuracy, "probe_regularization": 10.0}


def test_classes_far_apart_are_told_apart():
    assert linear_probe(*clouds(4, spread=50.0), regularizations=(1.0, 10.0)).accuracy == 1.0


def test_labels_without_meaning_are_guessed():
    draw = np.random.default_rng(0)
    train, test = draw.normal(size=(1000, 5)), draw.normal(size=(4000, 5))
    labels, test_labels = draw.integers(0, 4, 1000), draw.integers(0, 4, 4000)
    found = linear_probe(train, labels, test, test_labels, regularizations=(1.0, 100.0)).accuracy
    assert abs(found - 1 / 4) < 4 * np.sqrt(1 / 4 * 3 / 4 / 4000)


def test_the_scale_of_the_features_does_not_matter():
    train, labels, test, test_labels = clouds()
    found = linear_probe(train, labels, test, test_labels, regularizations=(1.0, 100.0))
    factor, offset = np.array([1e-3, 1.0, 50.0, -7.0]), np.array([0.0, 5.0, -3.0, 1.0])
    scaled = linear_probe(
        train * factor + offset,
        labels,
        test * factor + offset,
        test_labels,
        regularizations=(1.0, 100.0),
    )
    assert scaled.scores() == found.scores()
    np.testing.assert_allclose(scaled.kernel * factor[:, None], found.kernel, rtol=1e-2, atol=1e-4)


# --- the choice
# ------------------------------------------------------------------------------------------------------


def rare():
    """Ninety examples at 0 and ten at 1. A strong penalty leaves only how frequent they are."""
    features, labels = np.repeat([0.0, 1.0], [90, 10])[:, None], np.repeat([0, 1], [90, 10])
    return features, labels, features, labels


def test_the_choice_by_hand():
    # Held out are nine and one. The strongest answers with the frequent class: right on nine of
    # ten.
    result = linear_probe(*rare(), regularizations=(0.01, 0.1, 1e6))
    assert result.dev_accuracies == {1e6: 0.9, 0.1: 1.0, 0.01: 1.0}
    # Of two that are equally accurate, the weaker one is surer, and right on all ten.
    assert result.regularization == 0.01
    assert (result.accuracy, result.at_edge) == (1.0, False)


def noise(seed=0):
    """Sixty examples of forty features, of which one says a little about the label."""
    draw = np.random.RandomState(seed)
    features = draw.normal(size=(60, 40))
    labels = (features[:, 0] + 2 * draw.normal(size=60) > 0).astype(int)
    return features, labels, features, labels


def test_of_equally_accurate_ones_the_lowest_cross_entropy_wins():
    train, labels, test, test_labels = noise(2)
    grid = (100.0, 1.0, 0.01)
    found = linear_probe(train, labels, test, test_labels, regularizations=grid)
    rest, dev = split_by_class(labels, 0.1, seed=0)
    losses = {}
    for regularization in grid:
        alone = linear_probe(
            train[rest], labels[rest], test, test_labels, regularizations=(regularization,)
        )
        logits = train[dev] @ alone.kernel + alone.bias
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses[regularization] = -np.log(probabilities[np.arange(len(dev)), labels[dev]]).mean()
    assert found.dev_accuracies[100.0] == found.dev_accuracies[1.0] > found.dev_accuracies[0.01]
    assert losses[100.0] < losses[1.0] and found.regularization == 100.0


def test_five_images_of_a_class_give_probabilities_that_tell_them_apart():
    """One held-out image of each class: strong penalties are as accurate as weak ones there."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 5)
    features = np.eye(3)[labels] + 0.1 * draw.normal(size=(15, 3))
    found = linear_probe(features, labels, features, labels)
    assert set(found.dev_accuracies.values()) == {1.0}
    logits = features @ found.kernel + found.bias
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert probabilities[np.arange(15), labels].min() > 0.9


@pytest.mark.parametrize(
    ("examples", "regularizations", "which"),
    [
        (noise(), (100.0, 1.0, 0.01), "100, is the strongest"),
        (rare(), (1e6, 1e5, 0.1), "0.1, is the weakest"),
    ],
)
def test_a_choice_at_the_edge_is_reported(examples, regularizations, which, caplog):
    with caplog.at_level(logging.WARNING, "absl"):
        assert linear_probe(*examples, regularizations=regularizations).at_edge
    assert which in caplog.text and "A better one may lie outside" in caplog.text


def test_the_test_set_has_no_part_in_the_choice():
    train, labels, test, test_labels = clouds(spread=0.5)
    found = linear_probe(train, labels, test, test_labels)
    garbage = linear_probe(train, labels, -100 * test, (test_labels + 1) % 3)
    assert list(found.dev_accuracies) == sorted(REGULARIZATIONS, reverse=True)
    assert garbage.accuracy != found.accuracy
    assert (garbage.regularization, garbage.dev_accuracies) == (
        found.regularization,
        found.dev_accuracies,
    )
    np.testing.assert_array_equal(garbage.kernel, found.kernel)


def test_what_is_held_out_is_not_learned_from():
    train, labels, test, test_labels = clouds()
    rest, dev = split_by_class(labels, 0.3, seed=0)
    train[dev[0]] *= 1e4  # if the scale knew of it, all others would be alike
    found = linear_probe(
        train, labels, test, test_labels, regularizations=(10.0, 1.0), dev_share=0.3
    )
    for regularization, accuracy in found.dev_accuracies.items():
        alone = linear_probe(
            train[rest], labels[rest], train[dev], labels[dev], regularizations=(regularization,)
        )
        assert accuracy == pytest.approx(alone.accuracy, abs=1e-12)
        assert accuracy > 0.6


def test_the_choice_is_that_of_its_seed():
    arrays = clouds(spread=0.5)
    first, again, other = (linear_probe(*arrays, seed=seed) for seed in (0, 0, 1))
    assert first.dev_accuracies == again.dev_accuracies != other.dev_accuracies
    np.testing.assert_array_equal(first.kernel, again.kernel)


def test_the_winner_is_fitted_to_all_of_the_training_set():
    chosen = linear_probe(*rare(), regularizations=(1e6, 3.0, 1e5))
    alone = linear_probe(*rare(), regularizations=(3.0,))
    assert chosen.regularization == 3.0
    np.testing.assert_array_equal(chosen.kernel, alone.kernel)
    assert alone.dev_accuracies == {} and not alone.at_edge


def test_where_the_search_begins_does_not_matter():
    """One after the other each begins at the solution before; alone it begins at zero."""
    train, labels, *test = digits()
    examples = module.checked(
        (train, labels, *test), regularizations=(1.0,), dev_share=0.1, class_names=None
    )
    rows, path = np.arange(len(labels)), (1000.0, 100.0, 10.0, 1.0)
    for regularization, found in zip(path, module._fit_all(examples, rows, path), strict=True):
        (alone,) = module._fit_all(examples, rows, (regularization,))
        assert np.abs(found.kernel - alone.kernel).max() < 1e-2 * np.abs(alone.kernel).max()
        ours, theirs = (one.measure(*test, np.arange(360)) for one in (found, alone))
        assert ours[0] == theirs[0] and ours[1] == pytest.approx(theirs[1], rel=1e-3)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, [10, 1, 1, 1]), (0.5, [50, 4, 2, 1]), (0.99, [99, 6, 2, 1])]
)
def test_every_class_is_held_out_by_its_share(share, expected):
    counts = [100, 7, 3, 2]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), counts))
    rest, dev = split_by_class(labels, share, seed=3)
    assert np.bincount(labels[dev]).tolist() == expected
    assert np.bincount(labels[rest]).tolist() == (np.array(counts) - expected).tolist()
    assert (
        sorted([*rest, *dev]) == list(range(112))
        and rest.tolist() == sorted(rest)
        and dev.tolist() == sorted(dev)
    )
    assert not np.array_equal(dev, split_by_class(labels, share, seed=4)[1])


# --- numbers
# ---------------------------------------------------------------------------------------------------------


def test_mean_and_deviation_do_not_depend_on_the_blocks(monkeypatch):
    features = np.random.default_rng(0).normal(1000.0, 0.1, size=(101, 3)).astype(np.float32)
    rows = np.arange(1, 101, 3)
    monkeypatch.setattr(labelled, "_BLOCK", 3 * 7)
    mean, std = moments(features, rows)
    np.testing.assert_allclose(mean, features[rows].mean(axis=0, dtype=np.float64), rtol=1e-14)
    np.testing.assert_allclose(std, features[rows].std(axis=0, dtype=np.float64), rtol=1e-9)


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_feature_that_does_not_vary_has_no_say(is_exact):
    """A feature that varies only by the rounding of float32 has none either. Here it does so with the
    class.
    """
    train, labels, test, test_labels = clouds()
    constant = np.full((len(train), 1), np.float32(0.1))
    if not is_exact:
        constant[labels == 0] = np.nextafter(np.float32(0.1), np.float32(1.0))
    found = linear_probe(train, labels, test, test_labels, regularizations=(1.0,))
    other = linear_probe(
        np.hstack([train, constant]),
        labels,
        np.hstack([test, 0 * test[:, :1]]),
        test_labels,
        regularizations=(1.0,),
    )
    assert other.accuracy == found.accuracy
    np.testing.assert_allclose(other.kernel[-1], 0.0, atol=1e-12 if is_exact else 1e-5)


def test_a_solution_short_of_the_optimum_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(module, "_MAX_ITERATIONS", 1)
    with caplog.at_level(logging.WARNING, "absl"):
        result = linear_probe(*clouds(), regularizations=(10.0, 1.0))
    assert not result.converged
    assert "The fits at regularization ['10', '1'] did not converge" in caplog.text
    assert f"at regularization {result.regularization:g}, did not converge" in caplog.text


def test_other_warnings_of_scikit_learn_are_passed_on(monkeypatch):
    linear_model = pytest.importorskip("sklearn.linear_model")
    fit = linear_model.LogisticRegression.fit

    def warn_and_fit(*arguments):
        warnings.warn("of another kind", FutureWarning, stacklevel=1)
        return fit(*arguments)

    monkeypatch.setattr(linear_model.LogisticRegression, "fit", warn_and_fit)
    with pytest.warns(FutureWarning, match="of another kind"):
        assert linear_probe(*clouds(), regularizations=(1.0,)).converged


# --- what is refused
# -------------------------------------------------------------------------------------------------


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match="pip install .*scikit-learn"):
        linear_probe(*clouds())


def changed(**parts):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    arrays = dict(zip(names, clouds(), strict=True))
    return [parts[name](values) if name in parts else values for name, values in arrays.items()]


def spoilt(row, value):
    def spoil(values):
        values = values.copy()
        values[row:, -1] = value
        return values

    return spoil


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"train_features": lambda values: values[:0]},
            "`train_features` must be numbers .* and not empty",
        ),
        (
            {"test_features": lambda values: values[:, :0]},
            "`test_features` must be numbers of shape .examples, 4.",
        ),
        (
            {"test_features": lambda values: values[:, :3]},
            r"of shape \(examples, 4\).* Received: .*\(300, 3\)",
        ),
        (
            {"train_features": lambda values: values[:, 0]},
            r"`train_features` .* Received: float64 of shape \(60,\)",
        ),
        ({"train_features": lambda values: values.astype(str)}, "`train_features` must be numbers"),
        (
            {"train_labels": lambda values: values[:-1]},
            r"`train_labels` must be integers of shape \(60,\)",
        ),
        (
            {"test_labels": lambda values: values[:, None]},
            r"`test_labels` must be integers of shape \(300,\)",
        ),
        (
            {"train_labels": lambda values: values / 1},
            "`train_labels` must be integers .* Received: float64",
        ),
        (
            {"train_labels": lambda values: values - 1},
            "`train_labels` must be classes .* Received: -1 to 1",
        ),
        (
            {"test_labels": lambda values: values + 1},
            "`test_labels` must be classes of the training set, 0 to 2",
        ),
        (
            {"train_labels": lambda values: 0 * values},
            "at least two classes. Received: 0",
        ),
        (
            {"train_labels": lambda values: 2 * values},
            r"2 of the 5 classes have too few .* 1 \(0\), 3 \(0\)",
        ),
        (
            {"train_labels": lambda values: 10**9 * values},
            "2,000,000,001 classes cannot be learned from 60 examples",
        ),
        (
            {"train_features": spoilt(17, np.nan)},
            "Row 17 of `train_features` has values that are NaN or infinite",
        ),
        (
            {"test_features": spoilt(299, -np.inf)},
            "Row 299 of `test_features` has values that are NaN or infinite",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(*changed(**parts))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularizations": ()}, "`regularizations` must be different finite numbers above 0"),
        (
            {"regularizations": (1.0, 0.0)},
            "`regularizations` must be different finite numbers above 0",
        ),
        (
            {"regularizations": (1.0, np.nan)},
            "`regularizations` must be different finite numbers above 0",
        ),
        (
            {"regularizations": (1.0, 1)},
            "`regularizations` must be different finite numbers above 0",
        ),
        ({"dev_share": 0.0}, "`dev_share` must be between 0 and 1. Received: 0.0"),
        ({"dev_share": 1.0}, "`dev_share` must be between 0 and 1. Received: 1.0"),
        (
            {"class_names": ("ant", "bee")},
            "`train_labels` must be classes of the training set, 0 to 1",
        ),
        (
            {"class_names": ("ant", "bee", "cow", "dog")},
            r"1 of the 4 classes have too few .*: dog \(0\)",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(*clouds(), **options)


def test_a_single_example_is_enough_where_there_is_no_choice():
    train, labels, *test = clouds()
    kept = np.append(np.flatnonzero(labels != 2), np.flatnonzero(labels == 2)[0])
    with pytest.raises(
        ValueError,
        match=r"too few training examples: cow \(1\). Each needs one for training and one",
    ):
        linear_probe(train[kept], labels[kept], *test, class_names=("ant", "bee", "cow"))
    assert linear_probe(train[kept], labels[kept], *test, regularizations=(1.0,)).converged


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ValueError, match="`dev_share`.*`train_labels`.*`test_labels`"):
        linear_probe(np.eye(3), np.ones(2), np.eye(3), np.ones(2), dev_share=2.0)
