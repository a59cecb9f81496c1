"""k-nearest-neighbor evaluation against a plain loop in float64."""

import importlib

import numpy as np
import pytest

from keras_vit.evaluate.knn import knn

pytestmark = pytest.mark.once
knn_module = importlib.import_module("keras_vit.evaluate.knn")  # the function has its name


def clusters(count: int, *, num_classes: int = 5, width: int = 24, seed: int = 0):
    """Features of overlapping classes, float32, and their labels."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, num_classes, count)
    centers = np.random.default_rng(99).normal(size=(num_classes, width))
    return (centers[labels] + draws.normal(0, 2.0, (count, width))).astype(np.float32), labels


def brute_force(train, train_labels, test, k: int, temperature: float) -> np.ndarray:
    answers = []
    for query in test.astype(np.float64):
        similarities = [
            row @ query / np.sqrt((row @ row) * (query @ query)) for row in train.astype(np.float64)
        ]
        nearest = sorted(range(len(train)), key=lambda place: (-similarities[place], place))[:k]
        votes: dict[int, float] = {}
        for place in nearest:
            label = int(train_labels[place])
            votes[label] = votes.get(label, 0.0) + np.exp(similarities[place] / temperature)
        answers.append(min(votes, key=lambda label: (-votes[label], label)))
    return np.array(answers)


@pytest.mark.parametrize("test_rows", [7, 4096])
@pytest.mark.parametrize("block", [24 * 9, 2**21])
def test_it_equals_a_plain_loop_for_any_size_of_blocks(monkeypatch, test_rows, block):
    from keras_vit.evaluate import labelled

    monkeypatch.setattr(knn_module, "_TEST_ROWS", test_rows)
    monkeypatch.setattr(labelled, "_BLOCK", block)
    train, train_labels = clusters(150)
    test, test_labels = clusters(40, seed=1)
    found = knn(train, train_labels, test, test_labels, neighbors=(1, 10, 150), temperature=0.07)
    for row, k in enumerate((1, 10, 150)):
        expected = brute_force(train, train_labels, test, k, 0.07)
        np.testing.assert_array_equal(found.answers[row], expected)
        assert found.scores()[f"{k}nn"] == (expected == test_labels).mean()
    assert 0.2 < found.scores()["10nn"] < 1


def test_the_length_of_features_does_not_matter():
    train, train_labels = clusters(80)
    test, test_labels = clusters(20, seed=1)
    found = knn(train, train_labels, test, test_labels, neighbors=(5,))
    stretched = knn(
        train * np.linspace(0.1, 9, 80)[:, None],
        train_labels,
        7 * test,
        test_labels,
        neighbors=(5,),
    )
    np.testing.assert_array_equal(found.answers, stretched.answers)
    large = np.float32(1e30)  # its square is beyond float32
    stretched = knn(large * train, train_labels, large * test, test_labels, neighbors=(5,))
    np.testing.assert_array_equal(found.answers, stretched.answers)


def test_of_equally_similar_examples_the_earlier_ones_are_neighbors():
    train = np.array([[1.0, 0], [0, 1], [0, 1], [0, 1], [0, 1]])
    labels = np.array([2, 3, 1, 1, 1])
    test = np.array([[0.0, 1]])
    found = knn(train, labels, test, np.array([3]), neighbors=(1, 2, 3), temperature=1.0)
    # One vote for 3; one each for 3 and 1, of which the smaller label wins; two votes for 1.
    assert found.answers[:, 0].tolist() == [3, 1, 1]


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0, 50.0])
def test_votes_of_usual_temperatures_are_sums_of_plain_exponentials(temperature):
    train, train_labels = clusters(150)
    test, test_labels = clusters(40, seed=1)
    counts = (2, 20, 150)
    found = knn(train, train_labels, test, test_labels, neighbors=counts, temperature=temperature)
    for row, k in enumerate(counts):
        expected = brute_force(train, train_labels, test, k, temperature)
        np.testing.assert_array_equal(found.answers[row], expected)


@pytest.mark.parametrize("temperature", [1 / 1000, 1e-5, 1e-310])
def test_votes_of_small_temperatures_stay_finite(temperature):
    """exp(1 / 0.001) is infinite in float64, so the votes are compared by their logarithms."""
    train, train_labels = clusters(150)
    test, test_labels = clusters(40, seed=1)
    counts = (1, 20, 150)
    found = knn(train, train_labels, test, test_labels, neighbors=counts, temperature=temperature)
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in map(np.float64, (train, test))]
    similarities = units[1] @ units[0].T
    nearest = np.argsort(-similarities, axis=1, kind="stable")
    if temperature < 1e-300:  # the logarithms are infinite too, and the nearest one decides
        assert (found.answers == train_labels[nearest[:, 0]]).all()
        return
    for row, k in enumerate(counts):
        logs = np.full((40, 5), -np.inf)
        for query, places in enumerate(nearest[:, :k]):
            for place in places:
                label = train_labels[place]
                vote = similarities[query, place] / temperature
                logs[query, label] = np.logaddexp(logs[query, label], vote)
        np.testing.assert_array_equal(found.answers[row], logs.argmax(axis=1))


@pytest.mark.parametrize("levels", [3, 30, 300])
def test_the_largest_come_in_falling_order_and_of_equals_the_first(levels):
    values = np.random.default_rng(levels).integers(0, levels, (50, 60)).astype(float)
    for count in (1, 7, 59, 60):
        expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(knn_module._find_largest(values, count), expected)


def test_the_temperature_decides_between_one_close_and_two_far_examples():
    train = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    labels, test = np.array([0, 1, 1]), np.array([[1.0, 0.1]])
    assert knn(train, labels, test, np.array([0]), neighbors=(3,), temperature=0.07).answers == 0
    assert knn(train, labels, test, np.array([0]), neighbors=(3,), temperature=10.0).answers == 1


def test_files_are_read_in_blocks_and_progress_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(knn_module, "_TEST_ROWS", 16)
    train, train_labels = clusters(60)
    test, test_labels = clusters(40, seed=1)
    np.save(tmp_path / "train.npy", train)
    mapped, calls = np.load(tmp_path / "train.npy", mmap_mode="r"), []
    found = knn(
        mapped,
        train_labels,
        test,
        test_labels,
        neighbors=(5,),
        report=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(16, 40), (32, 40), (40, 40)]
    np.testing.assert_array_equal(
        found.answers, knn(train, train_labels, test, test_labels, neighbors=(5,)).answers
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"neighbors": (10, 61)},
            "from 1 to the number of training examples, 60. Received: 10, 61",
        ),
        ({"neighbors": ()}, "Received: none"),
        ({"neighbors": (5, 5)}, "different integers"),
        ({"neighbors": (2.5,)}, "different integers"),
        ({"temperature": 0.0}, "finite number above 0"),
        ({"test_features": np.ones((40, 3))}, "width|24"),
        ({"train_labels": -np.ones(60, int)}, "count from 0. Received: -1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    train, train_labels = clusters(60)
    test, test_labels = clusters(40, seed=1)
    arrays = {
        "train_features": train,
        "train_labels": train_labels,
        "test_features": test,
        "test_labels": test_labels,
        "neighbors": (5,),
    }
    with pytest.raises(ValueError, match=message):
        knn(**(arrays | changes))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("value", "message"), [(0.0, "is zero"), (np.nan, "NaN or infinite")])
def test_rows_without_a_direction_are_named(value, message, part):
    train, train_labels = clusters(60)
    test, test_labels = clusters(40, seed=1)
    {"train": train, "test": test}[part][17] = value
    with pytest.raises(ValueError, match=f"Row 17 of `{part}_features` .*{message}"):
        knn(train, train_labels, test, test_labels, neighbors=(5,))


@pytest.mark.slow
def test_ten_thousand_rows_equal_one_product_in_float64():
    train, train_labels = clusters(10_000, num_classes=10, width=192)
    test, test_labels = clusters(1_000, num_classes=10, width=192, seed=1)
    found = knn(train, train_labels, test, test_labels)
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in map(np.float64, (train, test))]
    similarities = units[1] @ units[0].T
    order = np.argsort(-similarities, axis=1, kind="stable")
    for row, k in enumerate((10, 20, 100, 200)):
        votes = np.zeros((1_000, 10))
        for label in range(10):
            is_label = train_labels[order[:, :k]] == label
            weights = np.exp(np.take_along_axis(similarities, order[:, :k], axis=1) / 0.07)
            votes[:, label] = (weights * is_label).sum(axis=1)
        np.testing.assert_array_equal(found.answers[row], votes.argmax(axis=1))
