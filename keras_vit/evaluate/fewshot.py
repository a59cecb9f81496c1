"""Few-shot linear evaluation: ridge regression on k examples of each class, in closed form.

Draw k examples of each class, scale each frozen feature to mean 0 and standard deviation 1 over
them, append a constant feature, solve for targets of -1 and 1 in float64, and predict the class
with the largest output.

Source: arXiv:2010.11929 section 4.1 ("regularised least-squares regression ... to {-1, 1}^K
targets"). The paper states neither the ridge constant nor the scaling; both are those of
`evaluators/fewshot_lsr.py` in google-research/big_vision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse

from keras_vit.evaluate.labelled import blocks, check_finite, listed, refuse, wrong_arrays

# big_vision, `evaluators/fewshot_lsr.py`: the constant feature. It is large, so that the ridge
# hardly affects its weight.
BIAS = 100.0
# big_vision, `evaluators/fewshot_lsr.py`: added to each standard deviation.
STD_OFFSET = 1e-5
# big_vision, `configs/common_fewshot.py`: `l2_reg`, `shots`, `num_seeds`.
RIDGE = 2.0**10
SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
# Older code selects one of these constants: `l2_regs` in google-research/scenic
# (`train_lib/transfer/fewshot_utils.py`) and in `common_fewshot.py` of google/uncertainty-baselines.
OLDER_SWEEP = tuple(2.0**exponent for exponent in range(-10, 20))


@dataclass(frozen=True, kw_only=True, eq=False)
class FewshotResult:
    """The result of `fewshot`.

    Attributes:
        shots: S numbers of examples of each class.
        ridges: R ridge constants.
        seeds: E seeds of the draws.
        accuracies: (S, R, E) float64, from 0 to 1.
        draws_differ: Whether the seeds drew different images, for each number of shots. They do not
            if no class has more images than shots, or with a single seed.
    """

    shots: tuple[int, ...]
    ridges: tuple[float, ...]
    seeds: tuple[int, ...]
    accuracies: np.ndarray
    draws_differ: tuple[bool, ...]

    @property
    def mean(self) -> np.ndarray:
        """Mean accuracy over the seeds, (S, R)."""
        return self.accuracies.mean(axis=2)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation over the seeds (E - 1 in the denominator), (S, R); NaN where all draws
        are the same images.
        """
        std = np.full(self.accuracies.shape[:2], np.nan)
        differ = np.array(self.draws_differ)
        if differ.any():
            std[differ] = self.accuracies[differ].std(axis=2, ddof=1)
        return std

    def scores(self, ridges: Mapping[int, float] | None = None) -> dict[str, float]:
        """Returns mean and standard deviation by name: "5shot", "5shot_std". There is no deviation
        where all draws are the same images.

        Args:
            ridges: The ridge constant for each number of shots, as from `select_ridge`. Default:
                the only one.

        Raises:
            ValueError: If there are several constants and `ridges` is missing, or it contains one
                that was not measured.
        """
        only = self.ridges[0] if len(self.ridges) == 1 else None
        chosen = dict.fromkeys(self.shots, only) if ridges is None else ridges
        if any(chosen.get(shots) not in self.ridges for shots in self.shots):
            raise ValueError(
                f"`ridges` must map each of the shots {listed(self.shots)} to one of "
                f"{listed(self.ridges)}, as `select_ridge` does. Received: {ridges}."
            )
        scores = {}
        for row, shots in enumerate(self.shots):
            column = self.ridges.index(chosen[shots])
            scores[f"{shots}shot"] = float(self.mean[row, column])
            if self.draws_differ[row]:
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
    """Measures the accuracy of ridge regression on k examples of each class.

    The features may be memory-mapped: only the drawn rows of the training set are read, and the
    test set is read in blocks. If a class has fewer than k examples, this function raises an error,
    while big_vision uses all of them.

    Args:
        train_features: (N, D) numbers.
        train_labels: (N,) integers from 0, at least max(shots) of each class.
        test_features: (M, D) numbers.
        test_labels: (M,) integers from 0.
        class_names: Names in the order of the labels. Default: numbers, up to the largest label.
        shots: Numbers of examples of each class.
        seeds: Seeds, one for each draw; see `draw_shots`.
        ridges: Ridge constants. They share the draws, and one decomposition for each draw.

    Raises:
        ValueError: If the arrays do not fit one another, a used value is NaN or infinite, a class
            has too few examples, there is only one class, or shots, seeds or ridges are repeated or
            out of range.

    Example:
        >>> features, labels = np.repeat(np.eye(3), 30, axis=0), np.repeat([0, 1, 2], 30)
        >>> fewshot(features, labels, features, labels, shots=(1, 5)).scores()
        {'1shot': 1.0, '1shot_std': 0.0, '5shot': 1.0, '5shot_std': 0.0}

    Source: arXiv:2010.11929 section 4.1; google-research/big_vision, `evaluators/fewshot_lsr.py`.
    """
    train, train_labels = np.asarray(train_features), np.asarray(train_labels)
    test, test_labels = np.asarray(test_features), np.asarray(test_labels)
    refuse(
        *_find_wrong_choices(shots, seeds, ridges),
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
            f"{len(names):,} classes cannot be learned from {len(train):,} examples. Labels must "
            f"be 0, 1, 2, ..."
        )
    if len(names) < 2:
        raise ValueError(f"There must be at least two classes. Received: {listed(names)}.")
    refuse(*_find_wrong_labels(len(names), train_labels=train_labels, test_labels=test_labels))
    draws = [draw_shots(train_labels, max(shots), seed=seed, class_names=names) for seed in seeds]
    check_finite("train_features", train, np.unique(draws))
    check_finite("test_features", test, np.arange(len(test)))
    accuracies = np.empty((len(shots), len(ridges), len(seeds)))
    # Sorted, so that rows are read in the order of the file, and draws of all examples are equal.
    rows_of = [[np.sort(drawn[:, :count], axis=None) for count in shots] for drawn in draws]
    for column, drawn in enumerate(rows_of):
        for row, rows in enumerate(drawn):
            path = fit_ridge(train[rows], train_labels[rows], num_classes=len(names))
            accuracies[row, :, column] = (path.answers(test, ridges) == test_labels).mean(axis=1)
    choices = {
        "shots": tuple(map(int, shots)),
        "ridges": tuple(map(float, ridges)),
        "seeds": tuple(map(int, seeds)),
        "draws_differ": tuple(
            len(np.unique(drawn, axis=0)) > 1 for drawn in zip(*rows_of, strict=True)
        ),
    }
    return FewshotResult(**choices, accuracies=accuracies)


def draw_shots(labels: np.ndarray, shots: int, *, seed: int, class_names: Sequence) -> np.ndarray:
    """Draws examples of each class: the first of a random permutation.

    One generator draws for all classes in order. With the same seed, fewer shots are the first
    columns of more shots. For the same examples in the same order, big_vision draws the same.

    Args:
        labels: (N,) integers from 0.
        shots: Number of examples of each class.
        seed: Seed of NumPy's `default_rng`.
        class_names: Names of the Y classes in the order of the labels, for messages.

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
            f"Every class has at least {least}: use at most {least} shots, or add"
            if least
            else "Add"
        )
        raise ValueError(
            f"{len(few)} of the {len(counts)} classes have fewer than {shots} training examples: "
            f"{listed(few)}. {fewer} examples."
        )
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(indices)[:shots] for indices in members])


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgePath:
    """Ridge regression for all ridge constants, which share one eigendecomposition.

    The weights for the constant c are left (eigenvalues + c)^-1 right.

    Attributes:
        mean: (D,), subtracted from each feature.
        scale: (D,), divisor of each feature.
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
        """Returns the weights (D + 1, Y) of the scaled features; the last row is of the constant.

        Raises:
            ValueError: If `ridge` is not above 0.
        """
        refuse(*_find_wrong_choices(ridges=(ridge,)))
        return (self.left / (self.eigenvalues + ridge)) @ self.right

    def answers(self, features: np.ndarray, ridges: Sequence[float]) -> np.ndarray:
        """Returns the predicted classes, (R, M) int64, for R constants and features (M, D).

        If several outputs are largest, the first class is predicted. The features are read in
        blocks, so they may be memory-mapped.
        """
        width, num_classes = len(self.mean), self.right.shape[1]
        answers = np.empty((len(ridges), len(features)), np.int64)
        for few in blocks(np.arange(len(ridges)), width * num_classes):
            weights = np.stack([self.weights(ridges[place]) for place in few], axis=1).reshape(
                width + 1, -1
            )
            for rows in blocks(np.arange(len(features)), width + weights.shape[1]):
                outputs = self._scale_inputs(features[rows]) @ weights
                answers[np.ix_(few, rows)] = (
                    outputs.reshape(len(outputs), -1, num_classes).argmax(axis=2).T
                )
        return answers

    def _scale_inputs(self, features: np.ndarray) -> np.ndarray:
        inputs = np.full((len(features), len(self.mean) + 1), BIAS)
        np.subtract(features, self.mean, out=inputs[:, :-1])
        inputs[:, :-1] /= self.scale
        return inputs


def fit_ridge(
    features: np.ndarray, labels: np.ndarray, *, num_classes: int, dual: bool | None = None
) -> RidgePath:
    """Solves ridge regression for all ridge constants.

    Let X be the scaled features with the constant, and T the targets: 1 for the class of the
    example, -1 for the others. The weights for the ridge constant c are (X' X + c)^-1 X' T, which
    equals X' (X X' + c)^-1 T.

    Args:
        features: (N, D) numbers, finite.
        labels: (N,) integers from 0.
        num_classes: Y, number of classes.
        dual: Whether the second form is used. Default: the form with the smaller matrix, which is
            the second if N < D.

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
    refuse(*_find_wrong_labels(num_classes, labels=labels))
    inputs, mean, scale = _standardize(features)
    if len(inputs) < inputs.shape[1] if dual is None else dual:
        eigenvalues, vectors = scipy.linalg.eigh(inputs @ inputs.T, driver="evd")
        left, right = inputs.T @ vectors, 2.0 * _sum_by_class(vectors, labels, num_classes)
    else:
        eigenvalues, left = scipy.linalg.eigh(inputs.T @ inputs, driver="evd")
        right = left.T @ (2.0 * _sum_by_class(inputs, labels, num_classes))
    # The features have mean 0, so the constant is orthogonal to them, and the -1 in T = 2 onehot -
    # 1 cancels above. The constant is a separate eigenvector. It is treated separately, since its
    # huge eigenvalue would cost the others precision. (With equally many examples of each class,
    # its weight is the same for all classes and has no effect.)
    target_sums = 2.0 * np.bincount(labels, minlength=num_classes) - len(labels)
    return RidgePath(
        mean=mean,
        scale=scale,
        eigenvalues=np.append(np.maximum(eigenvalues, 0.0), BIAS**2 * len(labels)),
        left=scipy.linalg.block_diag(left, 1.0),
        right=np.vstack([right, BIAS * target_sums]),
    )


def _standardize(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a scaled copy of the features, the mean and the scale."""
    inputs = features.astype(np.float64)
    # Subtract the first row first, so that constant features become exactly 0.
    first = inputs[0].copy()
    inputs -= first
    rest = inputs.mean(axis=0)
    inputs -= rest
    scale = np.sqrt(np.einsum("nd,nd->d", inputs, inputs) / len(inputs)) + STD_OFFSET
    inputs /= scale
    return inputs, first + rest, scale


def _sum_by_class(matrix: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Sums the rows (N, K) of each class, to (K, Y)."""
    # The product matrix' onehot, without a dense one-hot matrix.
    members = scipy.sparse.csr_array(
        (np.ones(len(labels)), labels, np.arange(len(labels) + 1)), shape=(len(labels), num_classes)
    )
    return (members.T @ matrix).T


def select_ridge(results: Mapping[str, FewshotResult]) -> dict[int, float]:
    """Selects the ridge constant with the best mean rank over all data sets, for each shot count.

    On each data set, the constants are ranked by mean accuracy over the seeds; ties share the mean
    of their ranks. Among constants with the same mean rank, the smallest is selected, as published.
    The selection uses the test sets; one constant for all data sets keeps it from overfitting each.

    Args:
        results: Results by name of the data set, all with the same shots and ridges.

    Raises:
        ValueError: If there are no results, or they differ in shots or ridges.

    Example:
        >>> accuracies = np.array([[[0.5], [0.7], [0.6]]])
        >>> choices = {"shots": (5,), "ridges": (1.0, 2.0, 4.0), "seeds": (0,)}
        >>> result = FewshotResult(**choices, accuracies=accuracies, draws_differ=(False,))
        >>> select_ridge({"pets": result})
        {5: 2.0}

    Source: google-research/scenic, `train_lib/transfer/fewshot_utils.py`, where ties are ranked by
    position.
    """
    if not results:
        raise ValueError("`results` is empty. Pass the result of at least one data set.")
    name, first = next(iter(results.items()))
    others = [
        other
        for other, one in results.items()
        if (one.shots, one.ridges) != (first.shots, first.ridges)
    ]
    if others:
        raise ValueError(
            "All results must have the same shots and ridges, in the same order. "
            f"Different from {name}: {listed(others)}."
        )
    # Round, since means of the same accuracies in another order may differ in the last digit.
    means = np.round([result.mean for result in results.values()], 12)
    below = (means[..., :, None] > means[..., None, :]).sum(axis=-1)
    equal = (means[..., :, None] == means[..., None, :]).sum(axis=-1)
    # Twice the ranks, up to a constant, since sums of integers compare exactly.
    ranks = (2 * below + equal).sum(axis=0)
    ridges = np.where(ranks == ranks.max(axis=1, keepdims=True), first.ridges, np.inf).min(axis=1)
    return dict(zip(first.shots, ridges.tolist(), strict=True))


def _find_wrong_choices(
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


def _find_wrong_labels(num_classes: int, **parts: np.ndarray) -> Iterator[str]:
    for name, labels in parts.items():
        if labels.min() < 0 or labels.max() >= num_classes:
            yield f"`{name}` must be 0 to {num_classes - 1}. Received: {labels.min()} to {labels.max()}."
