"""The linear probe: logistic regression on frozen features, in memory, by scikit-learn.

The regularization is selected on the training set alone. `streaming_probe.py` is for features
larger than memory, `fewshot.py` for ridge regression on a few examples.

Each feature is scaled to mean 0 and standard deviation 1 over the training set. The weights W and
biases b minimize

    sum of the cross-entropies of softmax(x W + b)  +  regularization / 2 * sum of the squares of W

The first term is a sum, not a mean. So the regularization is the inverse variance of a Gaussian
prior for the weights, and a value that is selected on nine tenths of the examples is also right for
all of them. In scikit-learn it is 1 / C.

Source: arXiv:2103.00020 appendix A.3 (logistic regression by L-BFGS on features, the L2 penalty
from a logarithmic sweep on a validation set); dinov2@05c66df eval/log_regression.py (the sweep on a
tenth of the training set, then all of it, in float64). The scaling is specific to this package: it
makes one range of regularizations suitable for the features of any layer.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from absl import logging

from keras_vit.data.sources import share_of_each_class
from keras_vit.evaluate.labelled import blocks, check_finite, listed, refuse, wrong_arrays
from keras_vit.extras import absent

# Two per decade, from almost none to a value for a million examples.
REGULARIZATIONS = tuple(10.0 ** (exponent / 2) for exponent in range(-4, 13))

# Limit of the largest component of the gradient of the mean loss. With scikit-learn's default of
# 1e-4, the search stops early if the features separate the classes well, and the result depends on
# the starting point.
_TOLERANCE = 1e-6
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeResult:
    """The result of a probe, with its classifier.

    Attributes:
        accuracy: Accuracy on the test set, from 0 to 1.
        regularization: The selected regularization: that of the highest accuracy on the held-out
            part, and of equally accurate ones that of the lowest cross-entropy there.
        dev_accuracies: Maps each regularization to its accuracy on the held-out part of the training
            set, strongest first. Empty if there was only one.
        at_edge: Whether the strongest or the weakest regularization was selected and none inside
            the range was as accurate, so that a better one may lie outside of it.
        converged: Whether the fit at `regularization` on the whole training set reached the optimum.
        kernel: (D, Y) float64.
        bias: (Y,) float64. logits = features @ kernel + bias, for unscaled features, as in
            `keras.layers.Dense`.
    """

    accuracy: float
    regularization: float
    dev_accuracies: dict[float, float]
    at_edge: bool
    converged: bool
    kernel: np.ndarray = field(repr=False)
    bias: np.ndarray = field(repr=False)

    def scores(self) -> dict[str, float]:
        """Returns "probe", "probe_regularization" and, if several were tried, "probe_dev"."""
        scores = {"probe": self.accuracy, "probe_regularization": self.regularization}
        return scores | (
            {"probe_dev": self.dev_accuracies[self.regularization]} if self.dev_accuracies else {}
        )


def linear_probe(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    regularizations: Sequence[float] = REGULARIZATIONS,
    dev_share: float = 0.1,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> ProbeResult:
    """Measures the accuracy of logistic regression on features, in memory and in float64.

    The regularization is selected on a held-out part of the training set, with the same share of
    each class. The classifier is then fitted to the whole training set, and evaluated once on the
    test set.

    Args:
        train_features: (N, D) numbers. A copy in float64 must fit into memory.
        train_labels: (N,) integers from 0, at least two of each class.
        test_features: (M, D) numbers.
        test_labels: (M,) integers, classes of the training set.
        regularizations: Values to select from, see the docstring of this module. With a single
            value, nothing is held out, and one example of each class is enough.
        dev_share: Share of each class that is held out, between 0 and 1. Each part has at least one
            example of each class.
        seed: Seed of the split.
        class_names: Names in the order of the labels. Default: numbers, up to the largest training
            label.

    Raises:
        ImportError: If scikit-learn is absent; the message names the package to install.
        ValueError: If the arrays do not fit one another, a value is NaN or infinite, a class has
            too few examples, or there is only one class.

    Example:
        >>> features, labels = np.repeat(np.eye(3), 20, axis=0), np.repeat([0, 1, 2], 20)
        >>> linear_probe(features, labels, features, labels, regularizations=(1.0, 10.0)).scores()
        {'probe': 1.0, 'probe_regularization': 1.0, 'probe_dev': 1.0}
    """
    _check_extra()
    arrays = (train_features, train_labels, test_features, test_labels)
    examples = checked(
        arrays, regularizations=regularizations, dev_share=dev_share, class_names=class_names
    )
    return measure(
        examples, partial(_fit_all, examples), regularizations, dev_share=dev_share, seed=seed
    )


def _check_extra() -> None:
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError as error:
        raise absent("evaluate", "The linear probe needs scikit-learn", error) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Features and labels that have passed `checked`."""

    train_features: np.ndarray
    train_labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    num_classes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Classifier:
    """Weights of a classifier, with logits = features @ kernel + bias; and whether it converged."""

    kernel: np.ndarray
    bias: np.ndarray
    converged: bool

    def measure(
        self, features: np.ndarray, labels: np.ndarray, rows: np.ndarray
    ) -> tuple[float, float]:
        """Returns the accuracy and the mean cross-entropy of these rows."""
        right, losses = 0, 0.0
        for block in blocks(rows, features.shape[1] + len(self.bias)):
            logits = features[block] @ self.kernel + self.bias
            logits -= logits.max(axis=1, keepdims=True)
            right += np.sum(logits.argmax(axis=1) == labels[block])
            true = logits[np.arange(len(block)), labels[block]]
            losses += np.sum(np.log(np.exp(logits).sum(axis=1)) - true)
        return float(right / len(rows)), float(losses / len(rows))


# Function from rows of the training set and regularizations, strongest first, to one classifier for
# each.
Fit = Callable[[np.ndarray, Sequence[float]], Iterable[Classifier]]


def measure(
    examples: Examples, fit: Fit, regularizations: Sequence[float], *, dev_share: float, seed: int
) -> ProbeResult:
    """Selects the regularization, fits the whole training set, and evaluates on the test set."""
    strongest_first = sorted(map(float, regularizations), reverse=True)
    features, labels = examples.train_features, examples.train_labels
    dev_accuracies, dev_losses, unfinished = {}, {}, []
    if len(strongest_first) > 1:
        rest, dev = split_by_class(labels, dev_share, seed=seed)
        for regularization, classifier in zip(
            strongest_first, fit(rest, strongest_first), strict=True
        ):
            found = classifier.measure(features, labels, dev)
            dev_accuracies[regularization], dev_losses[regularization] = found
            unfinished += [] if classifier.converged else [f"{regularization:g}"]
    # With a few held-out examples, many are equally accurate: from the strongest, whose
    # probabilities are almost uniform, to the weakest.
    chosen = max(
        strongest_first, key=lambda one: (dev_accuracies.get(one, 0.0), -dev_losses.get(one, 0.0))
    )
    (classifier,) = fit(np.arange(len(labels)), [chosen])
    inside = [dev_accuracies[one] for one in strongest_first[1:-1]]
    at_edge = (
        len(strongest_first) > 1
        and chosen in (strongest_first[0], strongest_first[-1])
        and dev_accuracies[chosen] not in inside
    )
    _warn(chosen, strongest_first if at_edge else [], unfinished, classifier.converged)
    everything = np.arange(len(examples.test_labels))
    return ProbeResult(
        accuracy=classifier.measure(examples.test_features, examples.test_labels, everything)[0],
        regularization=chosen,
        dev_accuracies=dev_accuracies,
        at_edge=at_edge,
        converged=classifier.converged,
        kernel=classifier.kernel,
        bias=classifier.bias,
    )


def _warn(
    chosen: float, edges: Sequence[float], unfinished: Sequence[str], converged: bool
) -> None:
    if edges:
        logging.warning(
            "The best regularization, %g, is the %s of the range %g to %g. A better one may lie "
            "outside of it.",
            *(chosen, "strongest" if chosen == edges[0] else "weakest", edges[0], edges[-1]),
        )
    if unfinished:
        logging.warning(
            "The fits at regularization %s did not converge, and the selection compares them.",
            unfinished,
        )
    if not converged:
        logging.warning("The final fit, at regularization %g, did not converge.", chosen)


def split_by_class(labels: np.ndarray, share: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits rows into two parts, in ascending order; the second contains `share` of each class.

    Each part has at least one example of each class, so each class needs at least two.

    Example:
        >>> labels = np.repeat([0, 1], [20, 3])
        >>> [np.bincount(labels[rows]).tolist() for rows in split_by_class(labels, 0.1, seed=0)]
        [[18, 2], [2, 1]]
    """
    held_out = share_of_each_class(labels, share, seed=seed)
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def moments(features: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each feature, (D,) float64, in one pass over blocks.

    If a feature varies by less than the precision of float32, its deviation is set to 1, so that
    scaling does not amplify noise.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
    sample variances".
    """
    count, mean, squares = 0, np.zeros(features.shape[1]), np.zeros(features.shape[1])
    for block in blocks(rows, features.shape[1]):
        values = features[block].astype(np.float64)
        own_mean, total = values.mean(axis=0), count + len(block)
        squares += np.square(values - own_mean).sum(axis=0) + np.square(own_mean - mean) * (
            count * len(block) / total
        )
        mean += (own_mean - mean) * (len(block) / total)
        count = total
    std = np.sqrt(squares / count)
    return mean, np.where(std > np.finfo(np.float32).eps * np.abs(mean), std, 1.0)


def classifier_of(
    kernel: np.ndarray, bias: np.ndarray, scaling: tuple[np.ndarray, np.ndarray], converged: bool
) -> Classifier:
    """Converts weights for scaled features to weights for unscaled features."""
    mean, std = scaling
    # Adding a constant to the logits of all classes has no effect. Subtract the means over the
    # classes, which are 0 at the optimum.
    kernel = (kernel - kernel.mean(axis=1, keepdims=True)) / std[:, None]
    return Classifier(kernel=kernel, bias=bias - bias.mean() - mean @ kernel, converged=converged)


def _fit_all(
    examples: Examples, rows: np.ndarray, regularizations: Sequence[float]
) -> Iterator[Classifier]:
    """Fits a classifier for each regularization, starting each from the previous solution."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = moments(examples.train_features, rows)
    inputs = examples.train_features[rows].astype(np.float64)
    inputs -= mean
    inputs /= std
    # With two classes, scikit-learn fits the difference of the logits, w. The two columns are -w / 2
    # and w / 2, and the sum of their squares is half that of w. So twice the C gives the same
    # problem.
    pair = examples.num_classes == 2
    model = LogisticRegression(tol=_TOLERANCE, max_iter=_MAX_ITERATIONS, warm_start=True)
    for regularization in regularizations:
        model.set_params(C=(2.0 if pair else 1.0) / regularization)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            with _limit_scipy_threads():
                model.fit(inputs, examples.train_labels[rows])
        others = [
            warning for warning in caught if not issubclass(warning.category, ConvergenceWarning)
        ]
        for other in others:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        kernel, bias = model.coef_.T, model.intercept_
        if pair:
            kernel, bias = (
                np.concatenate([-kernel, kernel], axis=1) / 2,
                np.concatenate([-bias, bias]) / 2,
            )
        yield classifier_of(kernel, bias, (mean, std), converged=len(others) == len(caught))


def _limit_scipy_threads() -> AbstractContextManager:
    """Limits SciPy's BLAS to one thread."""
    # SciPy's wheels contain a separate BLAS, which L-BFGS uses only for vectors. While they wait,
    # its threads and those of NumPy's BLAS, which multiplies the matrices, occupy the cores: on a
    # busy machine with two cores, scikit-learn's digits took more than ten times as long.
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()
    paths = [
        library["filepath"] for library in controller.info() if "scipy.libs" in library["filepath"]
    ]
    return controller.select(filepath=paths).limit(limits=1)


def checked(
    arrays: Sequence[np.ndarray],
    *,
    regularizations: Sequence[float],
    dev_share: float,
    class_names: Sequence[str] | None,
) -> Examples:
    """Checks the arguments of `linear_probe`.

    Raises:
        ValueError: If they do not fit one another.
    """
    train, train_labels, test, test_labels = map(np.asarray, arrays)
    refuse(
        *_find_wrong_choices(regularizations, dev_share),
        *wrong_arrays("train_", train, train_labels),
        *wrong_arrays(
            "test_", test, test_labels, width=train.shape[-1] if train.ndim == 2 else None
        ),
    )
    train_labels, test_labels = train_labels.astype(np.int64), test_labels.astype(np.int64)
    names = range(max(0, train_labels.max()) + 1) if class_names is None else class_names
    refuse(
        *_find_wrong_labels(
            train_labels, test_labels, names, least=1 if len(regularizations) == 1 else 2
        )
    )
    check_finite("train_features", train, np.arange(len(train)))
    check_finite("test_features", test, np.arange(len(test)))
    return Examples(
        train_features=train,
        train_labels=train_labels,
        test_features=test,
        test_labels=test_labels,
        num_classes=len(names),
    )


def _find_wrong_choices(regularizations: Sequence[float], dev_share: float) -> Iterator[str]:
    fits = [0 < value < np.inf for value in regularizations]
    if not fits or not all(fits) or len(set(regularizations)) < len(fits):
        yield f"`regularizations` must be different finite numbers above 0. Received: {list(regularizations)}."
    if not 0 < dev_share < 1:
        yield f"`dev_share` must be between 0 and 1. Received: {dev_share}."


def _find_wrong_labels(
    train: np.ndarray, test: np.ndarray, names: Sequence, *, least: int
) -> Iterator[str]:
    if len(names) < 2:
        yield f"There must be at least two classes. Received: {listed(names)}."
    for name, labels in (("train_labels", train), ("test_labels", test)):
        if labels.min() < 0 or labels.max() >= len(names):
            yield (
                f"`{name}` must be classes of the training set, 0 to {len(names) - 1}. "
                f"Received: {labels.min()} to {labels.max()}."
            )
    if len(names) > len(train):
        yield f"{len(names):,} classes cannot be learned from {len(train):,} examples. Labels must be 0, 1, 2, ..."
        return
    counts = np.bincount(train[(0 <= train) & (train < len(names))], minlength=len(names))
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count < least]
    if few:
        why = (
            "one for training and one for the selection of the regularization"
            if least == 2
            else "one for training"
        )
        yield (
            f"{len(few)} of the {len(names)} classes have too few training examples: "
            f"{listed(few)}. Each needs {why}. Add examples, or remove these classes and renumber "
            f"the others."
        )
