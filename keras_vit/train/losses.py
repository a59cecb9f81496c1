"""Losses, one number per example: softmax and sigmoid cross-entropy, and the bias a head starts
from.

The mean over the batch and the weights of padded examples are the business of the train step.
Everything here is computed in float32, whatever the model computes in.

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
    """Computes -sum(targets * log(softmax(logits))) of each example.

    Args:
        labels: Class of each example as an integer (B,), or its targets (B, Y), which may be soft.
        logits: (B, Y) float.
        label_smoothing: Share of a target that is spread evenly over all classes, from 0 to 1.

    Returns:
        (B,) float32.

    Raises:
        ValueError: If the shapes do not belong together, or if `label_smoothing` is no share.

    Example:
        >>> print(round(float(softmax_cross_entropy(np.array([0]), np.zeros((1, 1000)))[0]), 3))
        6.908
    """
    logits = ops.cast(logits, "float32")
    targets = _smooth(_to_targets(labels, logits), label_smoothing)
    return -ops.sum(targets * ops.log_softmax(logits), axis=-1)


def sigmoid_cross_entropy(labels: Any, logits: Any, *, label_smoothing: float = 0.0) -> Any:
    """Computes the binary cross-entropies of all classes of each example, and sums them.

    A smoothed target is (1 - s) * target + s / Y, as for softmax and as in Google's Scenic. Keras's
    `BinaryCrossentropy` takes s / 2 instead: with 21,843 classes and s = 0.1, a thousand classes'
    worth of targets for an image that shows one. It also averages over the classes.

    Args:
        labels: Class of each example as an integer (B,), or its targets (B, Y): several may be 1.
        logits: (B, Y) float.
        label_smoothing: As for softmax: the s above, from 0 to 1.

    Returns:
        (B,) float32.

    Raises:
        ValueError: If the shapes do not belong together, or if `label_smoothing` is no share.

    Example:
        >>> print(round(float(sigmoid_cross_entropy(np.array([0]), np.zeros((1, 1000)))[0]), 3))
        693.147

    Source: big_vision@0127fb6 utils.py; label smoothing: scenic
        model_lib/base_models/model_utils.py.
    """
    logits = ops.cast(logits, "float32")
    targets = _smooth(_to_targets(labels, logits), label_smoothing)
    # Softplus of both signs: `softplus(x) - targets * x` would cancel where the model is right and
    # sure.
    return ops.sum(
        targets * ops.softplus(-logits) + (1.0 - targets) * ops.softplus(logits), axis=-1
    )


LOSSES: dict[Loss, Callable[..., Any]] = {
    "softmax": softmax_cross_entropy,
    "sigmoid": sigmoid_cross_entropy,
}


# Labels and what the model gave, to the loss and the success (0 to 1) of each example, both (B,)
# float32.
Objective = Callable[[Any, Any], tuple[Any, Any]]


def classification(loss: Loss = "softmax", *, label_smoothing: float = 0.0) -> Objective:
    """Returns the objective of a classifier: its loss, and whether the largest logit is that of the
    largest label.

    Args:
        loss: A key of `LOSSES`.
        label_smoothing: See there.

    Raises:
        ValueError: If there is no such loss.

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
    """Returns the bias from which the head of a pre-training starts: 0 for softmax, -ln(Y) for
    sigmoid.

    With a kernel of zeros, every class then has a probability of 1 / (Y + 1). From 0 it would be
    1/2, and the first thousands of steps would go into saying no to all classes. The authors'
    constants are this number rounded: -10 for the 21,843 classes of ImageNet-21k, -6.9 for the 1000
    of ImageNet.

    Raises:
        ValueError: If there is no such loss, or no class.

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
    """Labels of either kind to (B, Y) float32."""
    labels = ops.convert_to_tensor(labels)
    num_classes = logits.shape[-1]
    if len(labels.shape) == 1 and keras.backend.is_int_dtype(labels.dtype):
        return ops.one_hot(labels, num_classes, dtype="float32")
    # Compared, for a last axis of 1 would be broadcast without a word.
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
        raise ValueError(
            f"`label_smoothing` must lie between 0 and 1. Received: {label_smoothing}."
        )
    return targets * (1.0 - label_smoothing) + label_smoothing / targets.shape[-1]
