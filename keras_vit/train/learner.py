"""The model in training: a Keras model whose `fit` and `evaluate` count and clip exactly, on any
number of devices.

It shares all variables with the model that it was made from, which stays as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_vit.levels import to_pixels
from keras_vit.train.losses import Objective, classification
from keras_vit.train.optimizers import ParameterGroups
from keras_vit.train.remat import rematerialize

if keras.backend.backend() == "jax":
    from keras_vit.train import jax_step as step
else:
    from keras_vit.train import tensorflow_step as step


class Learner(keras.Model):
    """A functional model with a training step of its own. Made by `make_learner`.

    Batches are (images, labels, weights). Images of type uint8 are scaled to [-1, 1] on the device.
    An example of weight 0 is padding: it is neither learned from nor counted.
    """

    def prepare(
        self,
        *,
        optimizer: ParameterGroups,
        objective: Objective,
        batch_rows: int,
        num_replicas: int = 1,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        multi_worker: bool = False,
        jit_compile: bool | str = "auto",
        run_eagerly: bool = False,
    ) -> "Learner":
        """Sets what `fit` and `evaluate` need. Returns itself."""
        self.objective = objective
        self.batch_rows, self.rows_per_replica = batch_rows, batch_rows // num_replicas
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self.multi_worker = multi_worker
        self.seeds = [
            v for v in self.non_trainable_variables if v.path.endswith("seed_generator_state")
        ]
        self.counts = {name: keras.metrics.Mean(name=name) for name in ("loss", "accuracy")}
        self.counts["examples"] = keras.metrics.Sum(name="examples")
        for metric in self.counts.values():
            if not metric.variables:
                metric.build()
        # Loss scaling is the step's: Keras's cannot run under tf.distribute.
        self.compile(
            optimizer=optimizer,
            loss=None,
            jit_compile=jit_compile,
            run_eagerly=run_eagerly,
            auto_scale_loss=False,
        )
        return self

    @property
    def metrics(self) -> list:
        return list(getattr(self, "counts", {}).values())

    def train_step(self, *arguments: Any) -> Any:
        return step.train_step(self, *arguments)

    def test_step(self, *arguments: Any) -> Any:
        return step.test_step(self, *arguments)

    def _symbolic_build(self, *_: Any, **__: Any) -> None:
        """All is built before. Keras would read a batch for this, and stumbles where replicas'
        parts differ.
        """

    _maybe_symbolic_build = _symbolic_build

    def count(self, data: tuple) -> dict[str, Any]:
        """Adds a batch to the metrics of an evaluation."""
        images, labels, weights = data
        losses, hits = self.objective(labels, self(self.scaled(images), training=False))
        self.counts["loss"].update_state(losses, sample_weight=weights)
        self.counts["accuracy"].update_state(hits, sample_weight=weights)
        self.counts["examples"].update_state(weights)
        return {name: self.for_keras(metric.result()) for name, metric in self.counts.items()}

    def scaled(self, images: Any) -> Any:
        """uint8 pixels to [-1, 1]; others as they are."""
        if keras.backend.standardize_dtype(images.dtype) != "uint8":
            return images
        return to_pixels(ops.cast(images, "float32"))

    def for_keras(self, value: Any) -> Any:
        """A scalar as `fit` can take it: over several workers, Keras reduces along axis 0 of what a
        step returns.
        """
        return ops.reshape(value, (1,)) if self.multi_worker else value


def make_learner(
    model: keras.Model,
    optimizer: ParameterGroups,
    *,
    batch_rows: int,
    objective: Objective | None = None,
    accumulation_steps: int = 1,
    remat: bool = False,
    clip_norm: float | None = None,
    num_replicas: int = 1,
    num_workers: int = 1,
    **options: Any,
) -> Learner:
    """Returns the model in training. Call it in the scope of the devices, as for the model and the
    optimizer.

    Args:
        model: Gives logits (B, Y), activation none; or what `objective` takes.
        optimizer: From `make_optimizer`, for this model.
        batch_rows: Rows of a batch over all replicas, padding included.
        objective: Labels and outputs to losses and hits; default:
            `keras_vit.train.losses.classification()`.
        accumulation_steps: Micro-batches that a replica computes one after the other for one
            update.
        remat: Keep only the inputs of blocks for the gradient: less memory, about a third more
            work.
        clip_norm: Largest global norm of the gradient of the whole batch; None for no limit.
        num_replicas, num_workers: As of the devices.
        **options: `jit_compile`, `run_eagerly`, as in `keras.Model.compile`.

    Raises:
        ValueError: If the rows do not divide into replicas and micro-batches.

    Example:
        >>> import keras_vit
        >>> import numpy as np
        >>> from keras_vit.train.optimizers import OptimizerConfig, make_optimizer
        >>> options = {"input_shape": (32, 32, 3), "classes": 10, "classifier_activation": None}
        >>> model = keras_vit.ViT_Ti16(weights=None, **options)
        >>> optimizer = make_optimizer(OptimizerConfig(), model, total_steps=10)
        >>> learner = make_learner(model, optimizer, batch_rows=8)
        >>> batch = (np.zeros((8, 32, 32, 3), "uint8"), np.zeros(8, "int64"), np.ones(8, "float32"))
        >>> round(float(learner.train_on_batch(*batch, return_dict=True)["loss"]), 4)
        2.3026
    """
    parts = num_replicas * accumulation_steps
    if batch_rows % parts:
        raise ValueError(
            f"A batch of {batch_rows} rows does not divide into {num_replicas} replicas with "
            f"{accumulation_steps} micro-batches each. Pad it to {-(-batch_rows // parts) * parts} "
            "rows of which some have weight 0."
        )
    if (
        getattr(model.layers[-1], "activation", keras.activations.linear)
        is not keras.activations.linear
    ):
        raise ValueError(
            "The loss needs logits. Build the model with `classifier_activation=None`."
        )
    whole = rematerialize(model) if remat else model
    learner = Learner(
        whole.inputs, whole.outputs if len(whole.outputs) > 1 else whole.outputs[0], name=model.name
    )
    return learner.prepare(
        optimizer=optimizer,
        objective=objective or classification(),
        batch_rows=batch_rows,
        num_replicas=num_replicas,
        accumulation_steps=accumulation_steps,
        clip_norm=clip_norm,
        multi_worker=num_workers > 1,
        **options,
    )


@contextmanager
def use_averaged_weights(learner: Learner) -> Iterator[None]:
    """Inside, the weights are their averages, if averages are kept; afterwards they are what they
    were.
    """
    averages = learner.optimizer.averages
    variables = learner.trainable_variables if averages else []
    # Copies: JAX would share the buffer with the average, and donate it. What is put back stays on
    # the devices: from the host it would be sent to all workers, which must then all take part.
    raw = [ops.copy(variable) for variable in variables]
    for variable, average in zip(variables, averages, strict=True):
        variable.assign(ops.copy(average))
    try:
        yield
    finally:
        for variable, value in zip(variables, raw, strict=True):
            variable.assign(value)
