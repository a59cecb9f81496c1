"""k-nearest-neighbor classification: do images of one class have similar features?

The features are scaled to length 1. Each of the k training examples with the largest cosine
similarity to a test example votes for its class, with the weight exp(similarity / temperature).
Nothing is trained, and the only choice is k.

Source: arXiv:2104.14294 (DINO), section 4.1; facebookresearch/dino, `eval_knn.py` (the weights, the
temperature of 0.07 and k of 10, 20, 100 and 200); facebookresearch/dinov2, `eval/knn.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_vit.evaluate.labelled import blocks, check_finite, listed, refuse, wrong_arrays

NEIGHBORS = (10, 20, 100, 200)
TEMPERATURE = 0.07
# Similarities are computed for so many test examples at once, so that the training features are
# read from the disk a few times only, and for as many training examples as fit beside them.
_TEST_ROWS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class KnnResult:
    """The result of `knn`.

    Attributes:
        neighbors: Numbers of neighbors that voted, K of them.
        accuracies: (K,) float64, from 0 to 1.
        answers: (K, M) int64, the predicted class of each test example.
    """

    neighbors: tuple[int, ...]
    accuracies: np.ndarray
    answers: np.ndarray

    def scores(self) -> dict[str, float]:
        """Returns the accuracies by name: "10nn", "20nn"."""
        return {
            f"{count}nn": float(value)
            for count, value in zip(self.neighbors, self.accuracies, strict=True)
        }


def knn(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    neighbors: Sequence[int] = NEIGHBORS,
    temperature: float = TEMPERATURE,
    report: Callable[[int, int], object] | None = None,
) -> KnnResult:
    """Measures the accuracy of weighted k-nearest-neighbor classification, in float64.

    Both feature arrays may be memory-mapped files that are larger than memory: they are read in
    blocks. Of equally similar training examples the earlier ones are the neighbors; of classes with
    equal votes the one with the smaller label is predicted.

    Args:
        train_features: (N, D) numbers. No row may be zero.
        train_labels: (N,) integers from 0.
        test_features: (M, D) numbers. No row may be zero.
        test_labels: (M,) integers from 0.
        neighbors: Values of k, each at most N.
        temperature: Above 0. Small values let the most similar examples decide.
        report: Called with the numbers of finished and of all test examples after each block.

    Raises:
        ValueError: If the arrays do not fit one another, a feature is NaN or infinite, a row is
            zero, or `neighbors` or `temperature` are out of range.

    Example:
        >>> features, labels = np.repeat(np.eye(3), 30, axis=0), np.repeat([0, 1, 2], 30)
        >>> knn(features, labels, features, labels, neighbors=(5, 20)).scores()
        {'5nn': 1.0, '20nn': 1.0}

    Source: arXiv:2104.14294 (DINO); facebookresearch/dino, `eval_knn.py`.
    """
    train, train_labels = np.asanyarray(train_features), np.asarray(train_labels)
    test, test_labels = np.asanyarray(test_features), np.asarray(test_labels)
    width = train.shape[-1] if train.ndim == 2 else None
    refuse(
        *wrong_arrays("train_", train, train_labels),
        *wrong_arrays("test_", test, test_labels, width=width),
    )
    refuse(
        *_find_wrong_choices(neighbors, temperature, len(train)),
        *(
            f"`{name}` must count from 0. Received: {labels.min()}."
            for name, labels in (("train_labels", train_labels), ("test_labels", test_labels))
            if labels.min() < 0
        ),
    )
    _check_rows("train_features", train)
    _check_rows("test_features", test)
    answers = np.empty((len(neighbors), len(test)), np.int64)
    for start in range(0, len(test), _TEST_ROWS):
        rows = slice(start, start + _TEST_ROWS)
        similarities, nearest = _find_nearest(_to_unit_length(test[rows]), train, max(neighbors))
        weights, classes = _weigh(similarities, temperature), train_labels[nearest]
        for place, count in enumerate(neighbors):
            answers[place, rows] = _vote(classes[:, :count], weights[:, :count])
        if report is not None:
            report(min(start + _TEST_ROWS, len(test)), len(test))
    return KnnResult(
        neighbors=tuple(map(int, neighbors)),
        accuracies=(answers == test_labels).mean(axis=1),
        answers=answers,
    )


def _find_nearest(
    queries: np.ndarray, train: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the largest similarities of each query, (B, count), in falling order, and the rows of
    the training examples.
    """
    best = np.full((len(queries), 0), -np.inf)
    places = np.empty((len(queries), 0), np.int64)
    for rows in blocks(np.arange(len(train)), max(len(queries), train.shape[1])):
        similarities = queries @ _to_unit_length(train[rows[0] : rows[-1] + 1]).T
        best = np.concatenate([best, similarities], axis=1)
        places = np.concatenate([places, np.broadcast_to(rows, similarities.shape)], axis=1)
        chosen = _find_largest(best, count)
        best = np.take_along_axis(best, chosen, axis=1)
        places = np.take_along_axis(places, chosen, axis=1)
    return best, places


def _find_largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the columns of the `count` largest values of each row, in falling order; of equal
    values the first.
    """
    if values.shape[1] <= count:
        return np.argsort(-values, axis=1, kind="stable")
    columns = np.argpartition(-values, count - 1, axis=1)[:, :count]
    columns.sort(axis=1)
    kept = np.take_along_axis(values, columns, axis=1)
    # A partition takes any of the values that equal the smallest one it keeps.
    is_tied = (values >= kept.min(axis=1, keepdims=True)).sum(axis=1) > count
    order = np.argsort(-kept, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    columns[is_tied] = np.argsort(-values[is_tied], axis=1, kind="stable")[:, :count]
    return columns


def _weigh(similarities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns exp(similarity / temperature), (B, k), divided by the largest of each row."""
    # Without the division, weights are infinite for temperatures below 1/709.
    with np.errstate(over="ignore"):  # a quotient of -inf is a weight of 0
        return np.exp((similarities - similarities[:, :1]) / temperature)


def _vote(classes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the class of each row, (B, k), with the largest sum of weights."""
    # Only the classes of the neighbors can win: there may be thousands of others.
    votes = np.zeros(classes.shape)
    for column in range(classes.shape[1]):
        votes[:, column] = (weights * (classes == classes[:, column : column + 1])).sum(axis=1)
    # Sums of the same weights are equal whatever their place: of equal votes the smaller label.
    is_largest = votes == votes.max(axis=1, keepdims=True)
    return np.where(is_largest, classes, np.iinfo(np.int64).max).min(axis=1)


def _to_unit_length(features: np.ndarray) -> np.ndarray:
    wide = np.asarray(features, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def _check_rows(name: str, features: np.ndarray) -> None:
    rows = np.arange(len(features))
    check_finite(name, features, rows)
    for block in blocks(rows, features.shape[1]):
        is_zero = ~np.any(features[block[0] : block[-1] + 1], axis=1)
        if is_zero.any():
            raise ValueError(
                f"Row {block[is_zero.argmax()]} of `{name}` is zero, so it has no cosine "
                f"similarity to others. Remove it, or check the model that computed it."
            )


def _find_wrong_choices(
    neighbors: Sequence[int], temperature: float, num_examples: int
) -> Iterator[str]:
    fits = [isinstance(k, int | np.integer) and 1 <= k <= num_examples for k in neighbors]
    if not fits or not all(fits) or len(set(neighbors)) < len(fits):
        yield (
            f"`neighbors` must be different integers from 1 to the number of training examples, "
            f"{num_examples:,}. Received: {listed(neighbors)}."
        )
    if not 0 < temperature < np.inf:
        yield f"`temperature` must be a finite number above 0. Received: {temperature}."
