"""Softmax and sigmoid cross-entropy per example, and the initial bias of a head.

The training step averages over the batch and weights padded examples. Losses are computed in
float32, whatever the compute dtype of the model.

The paper names no loss. Its authors pre-trained on ImageNet-21k and JFT-300M with the sigmoid loss,
summed over the classes and not averaged (big_vision@0127fb6 utils.py, configs/vit_i21k.py), and
fine-tuned with softmax (vision_transformer@c6de1e5 train.py).
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import keras
from keras import ops

Loss = Literal["softmax", "sigmoid"]


def softmax_cross_entropy(labels: Any, logits: Any, *, label_smoothing: float = 0.0) -> Any:
    """Computes -sum(targets * log(softmax(logits))) for each example.

    Args:
        labels: Integer classes (B,), or targets (B, Y), which may be soft.
        logits: (B, Y) float.
        label_smoothing: Share of each target that is spread evenly over all classes, from 0 to 1.

    Returns:
        (B,) float32.

    Raises:
        ValueError: If the shapes do not match, or `label_smoothing` is outside [0, 1].

    Example:
        >>> print(round(float(softmax_cross_entropy(np.array([0]), np.zeros((1, 1000)))[0]), 3))
        6.908
    """
    logits = ops.cast(logits, "float32")
    targets = _smooth(_to_targets(labels, logits), label_smoothing)
    return -ops.sum(targets * ops.log_softmax(logits), axis=-1)


def sigmoid_cross_entropy(labels: Any, logits: Any, *, label_smoothing: float = 0.0) -> Any:
    """Computes the sum of the binary cross-entropies over all classes, for each example.

    A smoothed target is (1 - s) * target + s / Y, as for softmax and as in Google's Scenic. Keras's
    `BinaryCrossentropy` adds s / 2 instead of s / Y: with 21,843 classes and s = 0.1, the targets
    of an image with one class would sum to about 1,000. It also averages over the classes.

    Args:
        labels: Integer classes (B,), or targets (B, Y), of which several may be 1.
        logits: (B, Y) float.
        label_smoothing: The s above, from 0 to 1.

    Returns:
        (B,) float32.

    Raises:
        ValueError: If the shapes do not match, or `label_smoothing` is outside [0, 1].

    Example:
        >>> print(round(float(sigmoid_cross_entropy(np.array([0]), np.zeros((1, 1000)))[0]), 3))
        693.147

    Source: big_vision@0127fb6 utils.py; label smoothing: scenic
        model_lib/base_models/model_utils.py.
    """
    logits = ops.cast(logits, "float32")
    targets = _smooth(_to_targets(labels, logits), label_smoothing)
    # Two softplus terms: `softplus(x) - targets * x` would cancel for confident right answers.
    return ops.sum(
        targets * ops.softplus(-logits) + (1.0 - targets) * ops.softplus(logits), axis=-1
    )


LOSSES: dict[Loss, Callable[..., Any]] = {
    "softmax": softmax_cross_entropy,
    "sigmoid": sigmoid_cross_entropy,
}


# (labels, outputs of the model) -> (loss, hit from 0 to 1) of each example, both (B,) float32.
Objective = Callable[[Any, Any], tuple[Any, Any]]


def classification(loss: Loss = "softmax", *, label_smoothing: float = 0.0) -> Objective:
    """Returns the objective of a classifier: the loss, and 1 where the class with the largest logit
    is the class with the largest label, else 0.

    Args:
        loss: A key of `LOSSES`.
        label_smoothing: As in `softmax_cross_entropy` and `sigmoid_cross_entropy`.

    Raises:
        ValueError: If `loss` is not a key of `LOSSES`.

    Example:
        >>> losses, hits = classification()(np.array([1]), np.array([[0.0, 9.0]], "float32"))
        >>> float(hits[0])
        1.0
    """
    if loss not in LOSSES:
        raise ValueError(f"`loss` must be one of {', '.join(LOSSES)}. Received: {loss!r}.")

    def objective(labels: Any, logits: Any) -> tuple[Any, Any]:
        classes = labels if len(labels.shape) == 1 else ops.argmax(labels, axis=-1)
        hits = ops.equal(ops.cast(classes, "int32"), ops.cast(ops.argmax(logits, axis=-1), "int32"))
        return LOSSES[loss](labels, logits, label_smoothing=label_smoothing), ops.cast(
            hits, "float32"
        )

    return objective


def default_head_bias(loss: Loss, num_classes: int) -> float:
    """Returns the initial bias of a head in pre-training: 0 for softmax, -ln(Y) for sigmoid.

    With -ln(Y) and a kernel of zeros, every class starts at a probability of 1 / (Y + 1). With 0 it
    would start at 1/2, and the first thousands of steps would only lower all probabilities. The
    authors' constants are -ln(Y), rounded: -10 for the 21,843 classes of ImageNet-21k, -6.9 for the
    1000 classes of ImageNet.

    Raises:
        ValueError: If `loss` is not a key of `LOSSES`, or `num_classes` is less than 1.

    Example:
        >>> print(round(default_head_bias("sigmoid", 21843), 2))
        -9.99

    Source: big_vision@0127fb6 configs/vit_i21k.py, configs/vit_i1k.py.
    """
    if loss not in LOSSES:
        raise ValueError(f"`loss` must be one of {tuple(LOSSES)}. Received: {loss!r}.")
    if num_classes < 1:
        raise ValueError(f"`num_classes` must be at least 1. Received: {num_classes}.")
    return -math.log(num_classes) if loss == "sigmoid" else 0.0


def _to_targets(labels: Any, logits: Any) -> Any:
    """Converts integer classes (B,) or targets (B, Y) to targets (B, Y) float32."""
    labels = ops.convert_to_tensor(labels)
    num_classes = logits.shape[-1]
    if len(labels.shape) == 1 and keras.backend.is_int_dtype(labels.dtype):
        return ops.one_hot(labels, num_classes, dtype="float32")
    # Without this check, a last axis of 1 would be broadcast silently.
    if len(labels.shape) != 2 or labels.shape[-1] != num_classes:
        raise ValueError(
            f"`labels` must be integers of shape (B,) or targets of shape (B, {num_classes}). "
            f"Received: labels of shape {tuple(labels.shape)}, "
            f"{keras.backend.standardize_dtype(labels.dtype)}, and logits of shape "
            f"{tuple(logits.shape)}."
        )
    return ops.cast(labels, "float32")


def _smooth(targets: Any, label_smoothing: float) -> Any:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"`label_smoothing` must be between 0 and 1. Received: {label_smoothing}.")
    return targets * (1.0 - label_smoothing) + label_smoothing / targets.shape[-1]
