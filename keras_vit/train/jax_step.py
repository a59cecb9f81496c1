"""The training step on JAX: one program over all devices, so sums cover the whole batch."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras import ops

Sums = tuple[jax.Array, ...]  # sums over examples: weighted loss, weighted hits, weights


def train_step(learner: Any, state: tuple, data: tuple) -> tuple[dict[str, jax.Array], tuple]:
    """Computes the state after an update. A stateless form of `tensorflow_step.train_step`.

    Args:
        learner: A `keras_vit.train.learner.Learner`.
        state: Trainable, other, optimizer and metrics variables, in Keras's order.
        data: Images (B, H, W, C), labels (B,) or (B, Y), and weights (B,) of the whole batch.

    Returns:
        The metrics that `tensorflow_step.train_step` returns, and the new state.
    """
    trainable, others, optimizer_variables, metrics_variables = state
    optimizer = learner.optimizer
    loss_scale = (
        1.0
        if optimizer.loss_scale is None
        else optimizer_variables[_find_index(optimizer, optimizer.loss_scale)]
    )
    gradients, others, (loss, hits, weight) = _accumulate(
        learner, trainable, others, data, loss_scale
    )
    gradients = optimizer.zero_noise(gradients)
    examples, weight = weight, jnp.maximum(weight, 1e-12)
    to_mean = learner.batch_rows / (weight * loss_scale)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype("float32"))) for g in gradients)) * to_mean
    factor = (
        to_mean
        if learner.clip_norm is None
        else to_mean * learner.clip_norm / jnp.maximum(norm, learner.clip_norm)
    )
    gradients = [gradient * factor.astype(gradient.dtype) for gradient in gradients]
    finite = jnp.isfinite(norm)
    trainable, optimizer_variables = _update(
        optimizer, trainable, optimizer_variables, gradients, finite
    )
    logs = {"loss": loss / weight, "accuracy": hits / weight, "gradient_norm": norm}
    logs |= {
        "examples": examples,
        "finite": finite.astype("float32"),
        "loss_scale": jnp.asarray(loss_scale),
    }
    return logs, (trainable, others, optimizer_variables, metrics_variables)


def test_step(learner: Any, state: tuple, data: tuple) -> tuple[dict[str, jax.Array], tuple]:
    """Adds a batch to the metrics."""
    trainable, others, metrics_variables = state
    variables = [
        *learner.trainable_variables,
        *learner.non_trainable_variables,
        *learner.metrics_variables,
    ]
    with keras.StatelessScope(
        list(zip(variables, [*trainable, *others, *metrics_variables], strict=True))
    ) as scope:
        logs = learner.count(data)
        new = [scope.get_current_value(v) for v in learner.metrics_variables]
    return logs, (trainable, others, new)


def _find_index(optimizer: Any, variable: keras.Variable) -> int:
    return next(index for index, other in enumerate(optimizer.variables) if other is variable)


def _update(
    optimizer: Any, trainable: list, variables: list, gradients: list, finite: jax.Array
) -> tuple[list, list]:
    new_trainable, new_variables = optimizer.stateless_apply(variables, gradients, trainable)
    if optimizer.loss_scale is None:
        return new_trainable, new_variables
    keep = [jnp.where(finite, new, old) for new, old in zip(new_variables, variables, strict=True)]
    with keras.StatelessScope(list(zip(optimizer.variables, keep, strict=True))) as scope:
        optimizer.move_loss_scale(finite)
        keep = [scope.get_current_value(v) for v in optimizer.variables]
    return [
        jnp.where(finite, new, old) for new, old in zip(new_trainable, trainable, strict=True)
    ], keep


def _accumulate(
    learner: Any, trainable: list, others: list, data: tuple, loss_scale: Any
) -> tuple[list, list, Sums]:
    """Returns gradients, the new other variables, and `Sums`, accumulated over micro-batches.

    The gradients are divided by the number of rows of the whole batch.
    """
    num_micro = learner.accumulation_steps

    def compute_loss(trainable: list, others: list, data: tuple) -> tuple:
        images, labels, weights = data
        outputs, others = learner.stateless_call(
            trainable, others, learner.scaled(images), training=True
        )
        losses, hits = learner.objective(labels, outputs)
        loss = jnp.sum(losses * weights)
        sums = (loss, jnp.sum(hits * weights), jnp.sum(weights))
        return loss * loss_scale / learner.batch_rows, (others, sums)

    gradient_of = jax.value_and_grad(compute_loss, has_aux=True)
    if num_micro == 1:
        (_, (others, sums)), gradients = gradient_of(trainable, others, data)
        return gradients, others, sums

    def add_one(carry: tuple, part: tuple) -> tuple:
        gradients, others, sums = carry
        (_, (others, new_sums)), new = gradient_of(trainable, others, part)
        added = [old + more for old, more in zip(gradients, new, strict=True)]
        return (
            added,
            others,
            tuple(old + more for old, more in zip(sums, new_sums, strict=True)),
        ), None

    # A micro-batch takes every num_micro-th example, so that it is spread over all devices.
    parts = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, num_micro, *x.shape[1:]), 0, 1), data)
    start = ([jnp.zeros_like(value) for value in trainable], others, (jnp.zeros(()),) * 3)
    (gradients, others, sums), _ = ops.scan(add_one, start, parts)
    return gradients, others, sums
