"""Fine-tuning of a checkpoint or a file `model.keras` by a recipe, at any resolution."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras

from keras_vit.keras_file import is_file, load
from keras_vit.pixels import describe_pixels
from keras_vit.train.config import RunConfig, check_model_options, row_of
from keras_vit.train.front import describe_kept
from keras_vit.train.losses import default_head_bias
from keras_vit.train.new_head import build_on_trunk, copy_with_new_head, start_sha256
from keras_vit.train.run import Procedure, run
from keras_vit.weights import source


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """The config of a fine-tuning.

    Attributes:
        run: Settings of the run.
        weights: A tag of `keras_vit.list_weights(model)`, a checkpoint file of any layout, or
            "none" for random weights.
        model: A name of `keras_vit.list_models()`, or a file `model.keras` of a model of this
            package. Such a file contains its own weights, row and options: `weights`, `variant` and
            `model_options` are then ignored.
        variant: Fields to change in the row of the model, as in the run that wrote the checkpoint.
        model_options: Further arguments of the model, such as `classifier` and `dropout_rate`.
        image_size: Side of the square images, in pixels. Positions are resized as in the paper.
    """

    run: RunConfig
    weights: str
    model: str = "ViT_B16"
    variant: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int = 384

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError(
                "`weights` is empty: name a file or a tag, for example "
                "--config.weights=run/model.npz."
            )


def run_finetuning(config: FinetuneConfig, workdir: str | os.PathLike) -> dict[str, float]:
    """Fine-tunes a checkpoint. The same call on the same folder resumes the run.

    Arguments, results and errors are those of `keras_vit.train.pretrain.pretrain`. One layer of
    zeros replaces the head of the checkpoint, including the tanh layer of pre-training, so training
    starts with logits of 0.

    Source: arXiv:2010.11929, section 3.2 and B.1.1.
    """
    config, build = settle(config)
    title = f"{name_of(config)} fine-tuned on {config.run.data.name or config.run.data.kind}"
    return run(config, workdir, Procedure(title=title, build=build, image_size=config.image_size))


def settle(config: FinetuneConfig) -> tuple[FinetuneConfig, Callable[[int], keras.Model]]:
    """Returns the config as it is recorded, and a function from the number of classes to the model.

    The model returns logits. Weights of a file or a URL are recorded with their hash. For a file
    `model.keras`, the recorded weights are their hash, and the range of its pixels is printed.

    Raises:
        ValueError: If there is no such model, or it cannot be fine-tuned.
    """
    size = config.image_size
    if not is_file(config.model):
        row = row_of(config.model, config.variant)
        check_model_options(row, config.model_options, set_too=("head_bias",))
        weights = None if config.weights == "none" else config.weights

        def build_by_name(num_classes: int) -> keras.Model:
            bias = default_head_bias(config.run.loss, num_classes)
            return build_on_trunk(
                row, weights, size, num_classes, bias=bias, **config.model_options
            )

        if weights is None:
            return config, build_by_name
        recorded = source.describe_for_record(row.name, weights, variant=row)
        return replace(config, weights=recorded), build_by_name
    if config.run.devices.precision != "float32":
        raise ValueError(
            f"{config.model} computes in the precision that it was saved with. Leave out "
            "`precision`. "
            f"Received: {config.run.devices.precision}."
        )
    given = load(config.model, any_size=True)
    height, width = given.input_shape[1:3]
    print(describe_pixels(given, (height or size, width or size)), flush=True)
    digest = start_sha256(given, copy_with_new_head(given, size, 2))
    if kept := describe_kept(given, size):
        print(kept, flush=True)

    def build(num_classes: int) -> keras.Model:
        return copy_with_new_head(
            given, size, num_classes, bias=default_head_bias(config.run.loss, num_classes)
        )

    return replace(config, weights=f"sha256 {digest}", variant={}, model_options={}), build


def name_of(config: FinetuneConfig) -> str:
    """Returns the name of the model for titles."""
    return (
        Path(config.model).stem
        if is_file(config.model)
        else row_of(config.model, config.variant).name
    )
