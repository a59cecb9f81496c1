"""Pre-training: training from random weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_vit.applications import application
from keras_vit.train.config import RunConfig, check_model_options, row_of
from keras_vit.train.losses import default_head_bias
from keras_vit.train.run import Procedure, run


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainConfig:
    """The config of a pre-training.

    Attributes:
        run: Settings of the run.
        model: A name of `keras_vit.list_models()`.
        variant: Fields to change in the row of the model, such as {"patch_size": 4, "depth": 6}.
        model_options: Further arguments of the model, such as `classifier`, `representation_size`,
            `dropout_rate`.
        image_size: Side of the square images, in pixels.
    """

    run: RunConfig
    model: str = "ViT_B16"
    variant: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int = 224


def pretrain(config: PretrainConfig, workdir: str | os.PathLike) -> dict[str, float]:
    """Trains a model from random weights. The same call on the same folder resumes the run.

    Args:
        config: The config of the run.
        workdir: Folder for checkpoints, logs, `model.npz` (the averaged weights if the optimizer
            keeps averages), learning curve and report.

    Returns:
        The metrics of the last evaluation, and "state_sha256".

    Raises:
        ValueError: If the config, the data and the folder do not match.
        keras_vit.train.loop.Stopped: After SIGTERM or SIGINT, when the state is saved.
        keras_vit.train.loop.Diverged: If the loss, a gradient, a weight or a metric is not finite.
    """
    row = row_of(config.model, config.variant)
    check_model_options(row, config.model_options)

    def build(num_classes: int):
        options = {
            "head_bias": default_head_bias(config.run.loss, num_classes),
            **config.model_options,
        }
        shape = (config.image_size, config.image_size, 3)
        return application(row)(
            weights=None,
            input_shape=shape,
            classes=num_classes,
            classifier_activation=None,
            **options,
        )

    title = f"{row.name} on {config.run.data.name or config.run.data.kind}"
    return run(config, workdir, Procedure(title=title, build=build, image_size=config.image_size))
