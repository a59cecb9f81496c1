"""The linear probe on features that do not fit into memory, trained on batches.

The loss of `probe.py` is divided by the number N of examples, which does not change the optimum:
the mean of the cross-entropies + regularization / (2 N) * the sum of the squared weights. A batch
estimates the first term. The problem is convex, so Adam with a learning rate that decays to 0
reaches the same optimum as L-BFGS, up to noise.

All regularizations are trained at once, as heads of one layer, so the features are read only once.
The heads share no weights, and Adam updates each weight separately, so the result of each head does
not depend on the others.

Source: dinov2@05c66df eval/linear.py, for many classifiers in one pass and a similar number of
steps (12,500 of 1024 images).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.evaluate.labelled import blocks
from keras_vit.evaluate.probe import (
    REGULARIZATIONS,
    Classifier,
    Examples,
    ProbeResult,
    checked,
    classifier_of,
    measure,
    moments,
)

_BATCH_SIZE = 1024
_LEARNING_RATE = 0.01
# Limit of the largest component of the gradient of the mean loss: scikit-learn's default, which
# training on batches can reach.
_TOLERANCE = 1e-4


def streaming_probe(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    regularizations: Sequence[float] = REGULARIZATIONS,
    dev_share: float = 0.1,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
    num_steps: int = 10_000,
    progress: bool = True,
) -> ProbeResult:
    """Measures the accuracy of logistic regression on memory-mapped features, in float32.

    Selection, optimum and result are those of `linear_probe`, up to the noise of training on
    batches. Only one batch and one block of the features are in memory. Rows are read in random
    order, so use a disk with fast random access.

    Args:
        train_features: (N, D) numbers, such as `numpy.load(path, mmap_mode="r")` returns.
        train_labels: (N,) integers from 0.
        test_features: (M, D) numbers.
        test_labels: (M,) integers, classes of the training set.
        regularizations, dev_share, seed, class_names: As in `linear_probe`. The seed also
            determines the order of the examples.
        num_steps: Number of steps of 1024 examples, both for the selection and for the final fit.
        progress: Whether to show progress bars on standard error.

    Raises:
        ValueError: As in `linear_probe`.

    Example:
        >>> features, labels = np.repeat(np.eye(3), 20, axis=0), np.repeat([0, 1, 2], 20)
        >>> arrays = (features, labels, features, labels)
        >>> streaming_probe(*arrays, regularizations=(1.0,), num_steps=100, progress=False).accuracy
        1.0
    """
    arrays = (train_features, train_labels, test_features, test_labels)
    examples = checked(
        arrays, regularizations=regularizations, dev_share=dev_share, class_names=class_names
    )
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be at least 1. Received: {num_steps}.")
    train = partial(_fit_all, examples, seed=seed, num_steps=num_steps, progress=progress)
    return measure(examples, train, regularizations, dev_share=dev_share, seed=seed)


def _fit_all(
    examples: Examples,
    rows: np.ndarray,
    regularizations: Sequence[float],
    *,
    seed: int,
    num_steps: int,
    progress: bool,
) -> Iterator[Classifier]:
    scaling = moments(examples.train_features, rows)
    batches = _Batches(examples, rows, scaling, seed, num_steps)
    penalties = np.array(regularizations, np.float32) / len(rows)
    several = len(regularizations) > 1
    label = (
        f"{len(regularizations)} regularizations"
        if several
        else f"regularization {regularizations[0]:g}"
    )
    bar = _Bar(num_steps, label, shown=progress)
    with _use_one_device():
        heads = _make_heads(
            examples.train_features.shape[1], examples.num_classes, penalties, num_steps
        )
        heads.fit(batches, epochs=1, shuffle=False, verbose=0, callbacks=[bar])
    kernels, biases = (np.asarray(weights, np.float64) for weights in heads.get_weights())
    for index, regularization in enumerate(regularizations):
        kernel, bias = kernels[:, index], biases[index]
        # The gradient needs a pass over all examples. It is not computed in the selection, whose
        # winner is fitted again.
        flat = (
            several
            or _compute_slope(examples, rows, scaling, kernel, bias, regularization) < _TOLERANCE
        )
        yield classifier_of(kernel, bias, scaling, converged=flat)


@contextmanager
def _use_one_device() -> Iterator[None]:
    """Disables the distribution of Keras."""
    # The batch size may not be divisible by the number of devices of a mesh.
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


class _Batches(keras.utils.PyDataset):
    """Batches of scaled features and labels, from an endless sequence of permutations."""

    def __init__(
        self,
        examples: Examples,
        rows: np.ndarray,
        scaling: tuple[np.ndarray, np.ndarray],
        seed: int,
        num_steps: int,
    ):
        super().__init__()
        self._examples, self._rows, self._seed, self._num_steps = examples, rows, seed, num_steps
        self._mean, self._std = scaling
        self._batch_size = min(_BATCH_SIZE, len(rows))
        self._epoch, self._order = -1, rows

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        # Read in the order of the file; the order within a batch has no effect.
        rows = np.sort(self._select_rows(step))
        inputs = (self._examples.train_features[rows] - self._mean) / self._std
        return inputs.astype(np.float32), self._examples.train_labels[rows].astype(np.int32)

    def _select_rows(self, step: int) -> np.ndarray:
        epochs, places = np.divmod(
            np.arange(self._batch_size) + step * self._batch_size, len(self._rows)
        )
        return np.concatenate(
            [self._permute(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs)]
        )

    def _permute(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._order = (
                epoch,
                np.random.default_rng([self._seed, epoch]).permutation(self._rows),
            )
        return self._order


class _Penalties(keras.regularizers.Regularizer):
    """Half of the sum of squares of each head (D, R, Y), times the penalty of the head.

    Keras documents classes only, and not all versions take a function.
    """

    def __init__(self, penalties: np.ndarray):
        self._penalties = penalties[:, None]

    def __call__(self, kernel: Any) -> Any:
        return 0.5 * ops.sum(self._penalties * ops.square(kernel))


def _make_heads(width: int, num_classes: int, penalties: np.ndarray, num_steps: int) -> keras.Model:
    """Makes a float32 model from scaled features (B, D) to logits (B, R, Y), initially zero."""
    inputs = keras.Input((width,), dtype="float32")
    logits = keras.layers.EinsumDense(
        "bd,dry->bry",
        output_shape=(len(penalties), num_classes),
        bias_axes="ry",
        kernel_initializer="zeros",
        kernel_regularizer=_Penalties(penalties),
        dtype="float32",
    )(inputs)
    model = keras.Model(inputs, logits)
    schedule = keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, num_steps)
    model.compile(
        keras.optimizers.Adam(schedule), _CrossEntropies(dtype="float32"), auto_scale_loss=False
    )
    return model


class _CrossEntropies(keras.losses.Loss):
    """Cross-entropy of each example, summed over the heads."""

    def call(self, y_true, y_pred):
        labels = ops.broadcast_to(ops.cast(y_true, "int32")[:, None], ops.shape(y_pred)[:2])
        return ops.sum(
            ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True), axis=1
        )


class _Bar(keras.callbacks.Callback):
    def __init__(self, num_steps: int, label: str, *, shown: bool):
        from tqdm import tqdm

        super().__init__()
        self._bar = tqdm(desc=label, total=num_steps, unit="step", disable=not shown)

    def on_train_batch_end(self, batch, logs=None):
        self._bar.update()

    def on_train_end(self, logs=None):
        self._bar.close()


def _compute_slope(
    examples: Examples,
    rows: np.ndarray,
    scaling: tuple[np.ndarray, np.ndarray],
    kernel: np.ndarray,
    bias: np.ndarray,
    regularization: float,
) -> float:
    """Returns the largest component of the gradient of the mean loss over all rows, in float64."""
    mean, std = scaling
    of_kernel, of_bias = regularization * kernel, np.zeros_like(bias)
    for block in blocks(rows, len(kernel) + 2 * len(bias)):
        inputs = (examples.train_features[block] - mean) / std
        logits = inputs @ kernel + bias
        errors = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(block)), examples.train_labels[block]] -= 1.0
        of_kernel += inputs.T @ errors
        of_bias += errors.sum(axis=0)
    return float(max(np.abs(of_kernel).max(), np.abs(of_bias).max()) / len(rows))
