"""Few-shot linear evaluation: how well k examples of each class suffice to tell the classes apart.

What lives here: ridge regression from frozen features to targets of -1 and 1, in closed form and in
    float64. What does
not: where the features come from, and logistic regression (`probe.py`).

Draw k examples of each class, scale each feature to mean 0 and standard deviation 1 over them,
append a constant feature, solve, and answer with the class of the largest output.

Source: arXiv:2010.11929 section 4.1 ("regularised least-squares regression ... to {-1, 1}^K
    targets"). The paper gives
neither the ridge constant nor the scaling: both are those of `evaluators/fewshot_lsr.py` in
    google-research/big_vision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse

from keras_vit.evaluate.labelled import blocks, check_finite, listed, refuse, wrong_arrays

# big_vision, `evaluators/fewshot_lsr.py`: the constant feature, so large that its weight is almost
# free of the ridge.
BIAS = 100.0
# big_vision, `evaluators/fewshot_lsr.py`: added to each standard deviation.
STD_OFFSET = 1e-5
# big_vision, `configs/common_fewshot.py`: `l2_reg`, `shots`, `num_seeds`.
RIDGE = 2.0**10
SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
# Before that constant was fixed, all of these were tried and one was selected: `l2_regs` of
# google-research/scenic (`train_lib/transfer/fewshot_utils.py`) and of `common_fewshot.py` in
# google/uncertainty-baselines.
OLDER_SWEEP = tuple(2.0**exponent for exponent in range(-10, 20))


@dataclass(frozen=True, kw_only=True, eq=False)
class FewshotResult:
    """What `fewshot` measured.

    Attributes:
        shots: Examples of each class, S of them.
        ridges: Ridge constants, R of them.
        seeds: Of the draws, E of them.
        accuracies: (S, R, E) float64, from 0 to 1.
    """

    shots: tuple[int, ...]
    ridges: tuple[float, ...]
    seeds: tuple[int, ...]
    accuracies: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(S, R), over the seeds."""
        return self.accuracies.mean(axis=2)

    @property
    def std(self) -> np.ndarray:
        """(S, R), over the seeds, with E - 1 in the denominator. NaN for a single seed."""
        if len(self.seeds) == 1:
            return np.full(self.accuracies.shape[:2], np.nan)
        return self.accuracies.std(axis=2, ddof=1)

    def scores(self, ridges: Mapping[int, float] | None = None) -> dict[str, float]:
        """Returns mean and standard deviation by name: "5shot", "5shot_std". A single seed has no
        deviation.

        Args:
            ridges: The constant for each number of shots, as from `select_ridge`. Default: the only
                one.

        Raises:
            ValueError: If there are several constants and none is chosen, or one is chosen that was
                not tried.
        """
        only = self.ridges[0] if len(self.ridges) == 1 else None
        chosen = dict.fromkeys(self.shots, only) if ridges is None else ridges
        if any(chosen.get(shots) not in self.ridges for shots in self.shots):
            raise ValueError(
                f"`ridges` must name one of {listed(self.ridges)} for each of the shots "
                f"{listed(self.shots)}, "
                f"as `select_ridge` does. Received: {ridges}."
            )
        scores = {}
        for row, shots in enumerate(self.shots):
            column = self.ridges.index(chosen[shots])
            scores[f"{shots}shot"] = float(self.mean[row, column])
            if len(self.seeds) > 1:
                scores[f"{shots}shot_std"] = float(self.std[row, column])
        return scores


def fewshot(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    class_names: Sequence[str] | None = None,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    ridges: Sequence[float] = (RIDGE,),
) -> FewshotResult:
    """Measures the accuracy of ridge regression from k examples of each class.

    The features may be memory-mapped: of the training set only the drawn rows are read, the test
    set is read in blocks. Where a class has fewer than k examples, big_vision takes what there is;
    here that is an error.

    Args:
        train_features: (N, D) numbers.
        train_labels: (N,) integers from 0, at least max(shots) of each class.
        test_features: (M, D) numbers.
        test_labels: (M,) integers from 0.
        class_names: In the order of the labels. Default: the numbers, up to the largest label.
        shots: Numbers of examples of each class.
        seeds: One draw each; see `draw_shots`.
        ridges: Ridge constants. They share the draws, and for each draw one decomposition.

    Raises:
        ValueError: If the arrays do not fit one another, a value that is used is NaN or infinite, a
            class has too few examples, there is only one class, or shots, seeds or ridges repeat or
            make no sense.

    Example:
        >>> features, labels = np.repeat(np.eye(3), 30, axis=0), np.repeat([0, 1, 2], 30)
        >>> fewshot(features, labels, features, labels, shots=(1, 5)).scores()
        {'1shot': 1.0, '1shot_std': 0.0, '5shot': 1.0, '5shot_std': 0.0}

    Source: arXiv:2010.11929 section 4.1; google-research/big_vision, `evaluators/fewshot_lsr.py`.
    """
    train, train_labels = np.asarray(train_features), np.asarray(train_labels)
    test, test_labels = np.asarray(test_features), np.asarray(test_labels)
    refuse(
        *_wrong_choices(shots, seeds, ridges),
        *wrong_arrays("train_", train, train_labels),
        *wrong_arrays(
            "test_", test, test_labels, width=train.shape[-1] if train.ndim == 2 else None
        ),
    )
    train_labels, test_labels = train_labels.astype(np.int64), test_labels.astype(np.int64)
    names = (
        range(max(train_labels.max(), test_labels.max()) + 1)
        if class_names is None
        else class_names
    )
    if len(names) > len(train):
        raise ValueError(
            f"{len(names):,} classes cannot be learned from {len(train):,} examples. Labels count "
            f"from 0."
        )
    if len(names) < 2:
        raise ValueError(
            f"There must be at least two classes to tell apart. Received: {listed(names)}."
        )
    refuse(*_wrong_labels(len(names), train_labels=train_labels, test_labels=test_labels))
    draws = [draw_shots(train_labels, max(shots), seed=seed, class_names=names) for seed in seeds]
    check_finite("train_features", train, np.unique(draws))
    check_finite("test_features", test, np.arange(len(test)))
    accuracies = np.empty((len(shots), len(ridges), len(seeds)))
    for column, drawn in enumerate(draws):
        for row, count in enumerate(shots):
            # Sorted, to be read in the order of the file; and where all examples are drawn, all
            # draws are one.
            rows = np.sort(drawn[:, :count], axis=None)
            path = fit_ridge(train[rows], train_labels[rows], num_classes=len(names))
            accuracies[row, :, column] = (path.answers(test, ridges) == test_labels).mean(axis=1)
    choices = {
        "shots": tuple(map(int, shots)),
        "ridges": tuple(map(float, ridges)),
        "seeds": tuple(map(int, seeds)),
    }
    return FewshotResult(**choices, accuracies=accuracies)


def draw_shots(labels: np.ndarray, shots: int, *, seed: int, class_names: Sequence) -> np.ndarray:
    """Draws examples of each class: the first of a permutation of them, class after class, from one
    generator.

    So fewer shots are the first columns of more shots of the same seed. Of the same examples in the
    same order, big_vision draws the same.

    Args:
        labels: (N,) integers from 0.
        shots: Examples of each class.
        seed: Of NumPy's `default_rng`.
        class_names: Of all classes, in the order of the labels, Y of them: for messages.

    Returns:
        (Y, shots) int64, indices into `labels`.

    Raises:
        ValueError: If a class has fewer examples.

    Example:
        >>> np.sort(draw_shots(np.array([0, 1, 1, 0]), 2, seed=0, class_names=["cat", "dog"]))
        array([[0, 3],
               [1, 2]])
    """
    counts = np.bincount(labels, minlength=len(class_names))
    few = [
        f"{name} ({count})"
        for name, count in zip(class_names, counts, strict=True)
        if count < shots
    ]
    if few:
        least = counts.min()
        fewer = (
            f"Every class has {least}: ask for no more shots than that, or add" if least else "Add"
        )
        raise ValueError(
            f"{len(few)} of the {len(counts)} classes have fewer than {shots} training examples: "
            f"{listed(few)}. "
            f"{fewer} examples."
        )
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(indices)[:shots] for indices in members])


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgePath:
    """Ridge regression of the same examples for every ridge constant: they share one
    eigen-decomposition.

    The weights for the constant c are left (eigenvalues + c)^-1 right.

    Attributes:
        mean: (D,), subtracted from each feature.
        scale: (D,), by which each feature is divided.
        eigenvalues: (K,), at least 0.
        left: (D + 1, K).
        right: (K, Y).
    """

    mean: np.ndarray
    scale: np.ndarray
    eigenvalues: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def weights(self, ridge: float) -> np.ndarray:
        """Returns (D + 1, Y): of the D scaled features, and of the constant feature in the last
        row.

        Raises:
            ValueError: If `ridge` is not above 0.
        """
        refuse(*_wrong_choices(ridges=(ridge,)))
        return (self.left / (self.eigenvalues + ridge)) @ self.right

    def answers(self, features: np.ndarray, ridges: Sequence[float]) -> np.ndarray:
        """Returns the class with the largest output, for each constant and each of (M, D) features:
        (R, M) int64.

        Of equal outputs the first counts. The features are read in blocks, so they may be
        memory-mapped.
        """
        width, num_classes = len(self.mean), self.right.shape[1]
        answers = np.empty((len(ridges), len(features)), np.int64)
        for few in blocks(np.arange(len(ridges)), width * num_classes):
            weights = np.stack([self.weights(ridges[place]) for place in few], axis=1).reshape(
                width + 1, -1
            )
            for rows in blocks(np.arange(len(features)), width + weights.shape[1]):
                outputs = self._inputs(features[rows]) @ weights
                answers[np.ix_(few, rows)] = (
                    outputs.reshape(len(outputs), -1, num_classes).argmax(axis=2).T
                )
        return answers

    def _inputs(self, features: np.ndarray) -> np.ndarray:
        inputs = np.full((len(features), len(self.mean) + 1), BIAS)
        np.subtract(features, self.mean, out=inputs[:, :-1])
        inputs[:, :-1] /= self.scale
        return inputs


def fit_ridge(
    features: np.ndarray, labels: np.ndarray, *, num_classes: int, dual: bool | None = None
) -> RidgePath:
    """Solves ridge regression for every ridge constant at once.

    Let X be the scaled features with the constant, and T the targets: 1 for the class of the
    example, -1 for the others. Then the weights for the ridge constant c are (X' X + c)^-1 X' T,
    which equals X' (X X' + c)^-1 T.

    Args:
        features: (N, D) numbers, finite.
        labels: (N,) integers from 0.
        num_classes: How many there are, Y.
        dual: Whether the second form is used. Default: if N < D, so that the smaller matrix is
            decomposed.

    Raises:
        ValueError: If features and labels do not fit, or a label is out of range.

    Example:
        >>> path = fit_ridge(np.array([[0.0], [1.0], [2.0]]), np.array([0, 0, 1]), num_classes=2)
        >>> path.answers(np.array([[0.3], [1.9]]), ridges=[2.0**-10])
        array([[0, 1]])

    Source: google-research/big_vision, `evaluators/fewshot_lsr.py`, for the two forms and the
        decomposition.
    """
    refuse(*wrong_arrays("", features, labels))
    refuse(*_wrong_labels(num_classes, labels=labels))
    inputs, mean, scale = _standardized(features)
    if len(inputs) < inputs.shape[1] if dual is None else dual:
        eigenvalues, vectors = scipy.linalg.eigh(inputs @ inputs.T, driver="evd")
        left, right = inputs.T @ vectors, 2.0 * _class_sums(vectors, labels, num_classes)
    else:
        eigenvalues, left = scipy.linalg.eigh(inputs.T @ inputs, driver="evd")
        right = left.T @ (2.0 * _class_sums(inputs, labels, num_classes))
    # The features have mean 0, so the constant is orthogonal to them, and the -1 in T = 2 onehot -
    # 1 drops out above. The constant has an eigenvector of its own; kept apart, its huge eigenvalue
    # costs the others no digits. (With equally many examples of each class its weight is the same
    # for all classes and decides nothing.)
    target_sums = 2.0 * np.bincount(labels, minlength=num_classes) - len(labels)
    return RidgePath(
        mean=mean,
        scale=scale,
        eigenvalues=np.append(np.maximum(eigenvalues, 0.0), BIAS**2 * len(labels)),
        left=scipy.linalg.block_diag(left, 1.0),
        right=np.vstack([right, BIAS * target_sums]),
    )


def _standardized(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a scaled copy, mean and scale. By way of the first row, so that a constant feature
    becomes exactly 0.
    """
    inputs = features.astype(np.float64)
    first = inputs[0].copy()
    inputs -= first
    rest = inputs.mean(axis=0)
    inputs -= rest
    scale = np.sqrt(np.einsum("nd,nd->d", inputs, inputs) / len(inputs)) + STD_OFFSET
    inputs /= scale
    return inputs, first + rest, scale


def _class_sums(matrix: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The sum of the rows of each class: from (N, K) to (K, Y). That is matrix' onehot, which is
    never built.
    """
    members = scipy.sparse.csr_array(
        (np.ones(len(labels)), labels, np.arange(len(labels) + 1)), shape=(len(labels), num_classes)
    )
    return (members.T @ matrix).T


def select_ridge(results: Mapping[str, FewshotResult]) -> dict[int, float]:
    """Chooses one ridge constant for each number of shots, the same for all data sets: that of the
    best mean rank.

    On each data set the constants are ranked by their mean accuracy over the seeds; equal ones
    share the mean of their ranks. Of constants with the same mean rank the smallest is taken, as
    published. The choice sees the test sets: that it is one choice for all of them is what keeps it
        from fitting each.

    Args:
        results: By the name of the data set; all with the same shots and ridges.

    Raises:
        ValueError: If there is no result, or they differ in shots or ridges.

    Example:
        >>> accuracies = np.array([[[0.5], [0.7], [0.6]]])
        >>> result = FewshotResult(shots=(5,), ridges=(1.0, 2.0, 4.0), seeds=(0,), accuracies=accuracies)
        >>> select_ridge({"pets": result})
        {5: 2.0}

    Source: google-research/scenic, `train_lib/transfer/fewshot_utils.py`, where equal ones are
        ranked by their place.
    """
    if not results:
        raise ValueError("There is no result to choose a ridge constant by.")
    name, first = next(iter(results.items()))
    others = [
        other
        for other, one in results.items()
        if (one.shots, one.ridges) != (first.shots, first.ridges)
    ]
    if others:
        raise ValueError(
            "All results must have the same shots and ridges, in the same order. "
            f"Not those of {name}: {listed(others)}."
        )
    # Rounded: the same accuracies in another order of the seeds may differ in the last digit of
    # their mean.
    means = np.round([result.mean for result in results.values()], 12)
    below = (means[..., :, None] > means[..., None, :]).sum(axis=-1)
    equal = (means[..., :, None] == means[..., None, :]).sum(axis=-1)
    # twice the ranks, up to a constant: sums of integers compare exactly
    ranks = (2 * below + equal).sum(axis=0)
    ridges = np.where(ranks == ranks.max(axis=1, keepdims=True), first.ridges, np.inf).min(axis=1)
    return dict(zip(first.shots, ridges.tolist(), strict=True))


def _wrong_choices(
    shots: Sequence = SHOTS, seeds: Sequence = SEEDS, ridges: Sequence = (RIDGE,)
) -> Iterator[str]:
    def whole(value: int, least: int) -> bool:
        return isinstance(value, int | np.integer) and value >= least

    for name, values, expected, fits in (
        ("shots", shots, "integers, at least 1", [whole(value, 1) for value in shots]),
        ("seeds", seeds, "integers, at least 0", [whole(value, 0) for value in seeds]),
        ("ridges", ridges, "finite numbers above 0", [0 < value < np.inf for value in ridges]),
    ):
        if not fits or not all(fits) or len(set(values)) < len(fits):
            yield f"`{name}` must be different {expected}. Received: {list(values)}."


def _wrong_labels(num_classes: int, **parts: np.ndarray) -> Iterator[str]:
    for name, labels in parts.items():
        if labels.min() < 0 or labels.max() >= num_classes:
            yield f"`{name}` must be 0 to {num_classes - 1}. Received: {labels.min()} to {labels.max()}."
