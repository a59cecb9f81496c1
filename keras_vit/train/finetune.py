"""Training on from a checkpoint: a new head that starts at zero, and any resolution."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_vit.applications import application
from keras_vit.models.ends import classify
from keras_vit.train.config import RunConfig
from keras_vit.train.losses import default_head_bias
from keras_vit.train.recipe import row_of, run
from keras_vit.variants import ResNetVariant

_POOLING = {"token": "token", "gap": "avg", "map": "map"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """A model that goes on learning.

    Attributes:
        run: How to train.
        weights: A tag of `keras_vit.list_weights(model)`, or a checkpoint file of any layout.
        model: A name of `keras_vit.list_models()`.
        variant: Fields of its row that differ, as in the run that made the checkpoint.
        model_options: Further arguments of the model, such as `classifier` and `dropout_rate`.
        image_size: Side of the square images, in pixels; positions are resized as published.
    """

    run: RunConfig
    weights: str
    model: str = "ViT_B16"
    variant: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int = 384

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("`weights` is empty: name a file or a tag, for example --config.weights=run/model.npz.")


def finetune(config: FinetuneConfig, workdir: str | os.PathLike) -> dict[str, float]:
    """Trains a checkpoint on; the same call on the same folder goes on where it stopped.

    Arguments, results and errors are those of `keras_vit.train.pretrain.pretrain`. The whole head of the checkpoint is
    dropped, the tanh layer of pre-training too, for one layer of zeros: training starts with logits of 0.

    Source: arXiv:2010.11929, section 3.2 and B.1.1.
    """
    row = row_of(config.model, config.variant)

    def build(num_classes: int):
        shape = (config.image_size, config.image_size, 3)
        classifier = config.model_options.get("classifier", "token")
        if classifier not in _POOLING:
            raise ValueError(f"`classifier` must be one of {', '.join(_POOLING)}. Received: {classifier!r}.")
        pooling = "avg" if isinstance(row, ResNetVariant) else _POOLING[classifier]
        options = dict(config.model_options)
        trunk = application(row)(
            weights=config.weights, include_top=False, pooling=pooling, input_shape=shape, **options
        )
        logits = classify(trunk.output, num_classes, bias=default_head_bias(config.run.loss, num_classes))
        return keras.Model(trunk.input, logits, name=trunk.name)

    title = f"{row.name} fine-tuned on {config.run.data.name or config.run.data.kind}"
    return run(config, config.run, build, config.image_size, workdir, title)
