"""A Keras model whose `fit` and `evaluate` weight and clip exactly on any number of devices.

It shares all variables with the model that it was created from, and does not modify that model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_vit.levels import to_pixels
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.train.losses import Objective, classification
from keras_vit.train.optimizers import ParameterGroups
from keras_vit.train.remat import rematerialize

if keras.backend.backend() == "jax":
    from keras_vit.train import jax_step as step
else:
    from keras_vit.train import tensorflow_step as step


class Learner(ClassTokenModel):
    """A functional model with its own training step. `make_learner` creates it.

    Batches are (images, labels, weights). uint8 images are scaled to [-1, 1] on the device. For a
    model with several inputs, the images are a tuple of images and the other inputs. An example of
    weight 0 is padding: it changes neither the gradient nor the metrics.
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
        """Compiles the model and creates its metrics. Returns itself."""
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
        # The training step scales the loss: Keras's loss scaling fails under tf.distribute.
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
        """Does nothing, because everything is built already.

        Keras would read a batch here, and fails if the parts of the replicas differ in size.
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
        """Returns uint8 images scaled to [-1, 1], and other images and inputs unchanged."""
        if isinstance(images, (tuple, list)):
            return [self.scaled(images[0]), *images[1:]]
        if keras.backend.standardize_dtype(images.dtype) != "uint8":
            return images
        return to_pixels(ops.cast(images, "float32"))

    def for_keras(self, value: Any) -> Any:
        """Returns a scalar in the shape that `fit` expects.

        With several workers, Keras reduces the results of a step along axis 0.
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
    """Returns a `Learner` for a model.

    Call it in the scope of the devices, like the constructors of the model and the optimizer.

    Args:
        model: A model that returns logits (B, Y), or the outputs that `objective` expects.
        optimizer: From `make_optimizer`, for this model.
        batch_rows: Rows of a batch over all replicas, including padding.
        objective: Function from labels and outputs to losses and hits. Default:
            `keras_vit.train.losses.classification()`.
        accumulation_steps: Number of micro-batches into which a replica splits its part of a batch.
        remat: Store only the inputs of blocks for the gradient: less memory, about a third more
            compute.
        clip_norm: Largest global norm of the gradient of the whole batch; None for no limit.
        num_replicas, num_workers: Number of replicas and of workers of the devices.
        **options: `jit_compile` and `run_eagerly` of `keras.Model.compile`.

    Raises:
        ValueError: If `batch_rows` is not divisible by replicas times micro-batches, or the model
            ends with an activation.

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
            f"A batch of {batch_rows} rows is not divisible into {num_replicas} replicas with "
            f"{accumulation_steps} micro-batches each. Pad it to {-(-batch_rows // parts) * parts} "
            "rows, with weight 0 for the padding."
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
    """Replaces the weights by their averages, if there are any, for the duration of the context."""
    averages = learner.optimizer.averages
    variables = learner.trainable_variables if averages else []
    # Without copies, JAX would share the buffer with the average and donate it. The copies stay on
    # the devices: a transfer from the host is a collective operation of all workers.
    raw = [ops.copy(variable) for variable in variables]
    for variable, average in zip(variables, averages, strict=True):
        variable.assign(ops.copy(average))
    try:
        yield
    finally:
        for variable, value in zip(variables, raw, strict=True):
            variable.assign(value)
