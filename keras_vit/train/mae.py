"""Masked autoencoders (MAE): self-supervised pre-training on a quarter of the patches.

Three quarters of the patches are hidden. A ViT encodes the others, and a small decoder predicts the
pixels of the hidden ones. Labels are not used. Fine-tuning takes the encoder.

Source: arXiv:2111.06377 (He et al.); facebookresearch/mae@6a2ba40 models_mae.py.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.drawing import draw_rows
from keras_vit.layers import PatchNormalization
from keras_vit.levels import to_pixels
from keras_vit.models.mae import encoder_of, masked_autoencoder, reconstruct
from keras_vit.options import EncoderOptions, grid_of, has_class_token
from keras_vit.train.config import RunConfig, row_of
from keras_vit.train.run import Procedure, run
from keras_vit.variants import ViTVariant
from keras_vit.weights.huggingface_mae import find_problems, save_vit_mae

_FOLDER = "vit_mae"  # in the folder of the run, for Transformers


@dataclass(frozen=True, kw_only=True, slots=True)
class MAEConfig:
    """The config of a pre-training of a masked autoencoder.

    Attributes:
        run: Settings of the run. `loss`, `label_smoothing` and `mixup_alpha` must have their
            defaults.
        model: Name of a ViT in `keras_vit.list_models()`, without a stem.
        variant: Fields to change in the row of the model, such as {"patch_size": 4, "depth": 6}.
        model_options: `classifier`, which decides whether there is a class token, and options of
            `keras_vit.options.EncoderOptions`. Without `position_embedding`, positions are the
            fixed sine-cosine table of the authors' code.
        image_size: Side of the square images, in pixels.
        mask_share: Share of hidden patches.
        decoder_width, decoder_depth, decoder_heads: Size of a token, number of blocks and of
            attention heads of the decoder.
        normalize_pixels: Whether the pixels of each patch are normalized by their mean and
            variance before they are compared. Without, fine-tuned accuracy was 0.5 points lower in
            the paper.
    """

    run: RunConfig
    model: str = "MAE_B16"
    variant: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int = 224
    mask_share: float = 0.75
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalize_pixels: bool = True

    def __post_init__(self) -> None:
        if self.run.loss != "softmax" or self.run.label_smoothing or self.run.data.mixup_alpha:
            raise ValueError(
                "A masked autoencoder has its own loss. Leave out `loss`, `label_smoothing` and "
                f"`mixup_alpha`. Received: {self.run.loss!r}, {self.run.label_smoothing}, "
                f"{self.run.data.mixup_alpha}."
            )


def pretrain_mae(config: MAEConfig, workdir: str | os.PathLike) -> dict[str, float]:
    """Trains a masked autoencoder. The same call on the same folder resumes it.

    The mask of an image depends only on the seed of the run, the epoch and the image, like its
    augmentation. It does not depend on the devices, and the masks of a resumed run are those of an
    uninterrupted one. Each validation image has one mask.

    `model.npz` contains the encoder. The folder `vit_mae` contains encoder and decoder, for
    `ViTMAEForPreTraining` of Hugging Face Transformers, if it can express the model.
    `reconstructions.png` shows validation images, or training images without a validation set, their
    visible patches and the reconstructions.

    Arguments, results and errors are those of `keras_vit.train.pretrain.pretrain`. "accuracy" is
    the share of the variance inside the hidden patches that the predictions explain, 0 at least.

    Example:
        >>> from keras_vit.train import DataConfig, LoopConfig
        >>> run_config = RunConfig(
        ...     data=DataConfig(kind="digits", flip=False),
        ...     batch_size=8,
        ...     loop=LoopConfig(total_steps=1),
        ... )
        >>> config = MAEConfig(
        ...     run=run_config,
        ...     model="ViT_Ti16",
        ...     variant={"patch_size": 4, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32},
        ...     image_size=16,
        ...     decoder_width=16,
        ...     decoder_depth=1,
        ...     decoder_heads=2,
        ... )
        >>> results = pretrain_mae(config, "mae_digits")  # doctest: +ELLIPSIS
        mae_digits/report.md...
        >>> results["validation/examples"]
        360.0
    """
    row = row_of(config.model, config.variant)
    if not isinstance(row, ViTVariant):
        raise ValueError(f"{config.model} has no patches to hide. Choose a plain ViT.")
    options = dict(config.model_options)
    class_token = has_class_token(row, options.pop("classifier", None))
    known = [known.name for known in fields(EncoderOptions)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"`model_options` does not accept {', '.join(unknown)}. Valid: classifier, "
            f"{', '.join(known)}."
        )

    def build(_num_classes: int) -> keras.Model:
        return masked_autoencoder(
            row,
            config.image_size,
            mask_share=config.mask_share,
            decoder_width=config.decoder_width,
            decoder_depth=config.decoder_depth,
            decoder_heads=config.decoder_heads,
            normalize_pixels=config.normalize_pixels,
            class_token=class_token,
            **options,
        )

    rows, columns = grid_of(row, (config.image_size, config.image_size))
    procedure = Procedure(
        title=f"{row.name}, masked autoencoder of {config.run.data.name or config.run.data.kind}",
        build=build,
        image_size=config.image_size,
        noise_length=rows * columns,
        trunk=encoder_of,
        objective=reconstruction,
        preview=lambda model, images, folder: _draw(model, images, folder / "reconstructions.png"),
        conclude=_write_vit_mae,
    )
    return run(config, workdir, procedure)


def reconstruction(_labels: Any, outputs: tuple) -> tuple[Any, Any]:
    """Computes the mean squared error of the hidden patches, and the share of their variance that
    is explained, of each image.

    Args:
        _labels: Not used.
        outputs: Predictions (B, N, K), targets (B, N, K) and mask (B, N) of a masked autoencoder.

    Returns:
        The error (B,), and 1 - error / variance inside the patches (B,), 0 at least: 0 for patches
        of their mean color, 1 for perfect predictions.

    Example:
        >>> targets = np.array([[[1.0, -1.0], [1.0, -1.0]]])
        >>> losses, explained = reconstruction(None, (0.5 * targets, targets, np.array([[1.0, 0.0]])))
        >>> float(losses[0]), float(explained[0])
        (0.25, 0.75)
    """
    predictions, targets, mask = (ops.cast(output, "float32") for output in outputs)

    def average(squares: Any) -> Any:
        of_patches = ops.mean(squares, axis=-1)
        return ops.sum(of_patches * mask, axis=-1) / ops.maximum(ops.sum(mask, axis=-1), 1.0)

    losses = average(ops.square(predictions - targets))
    variances = average(ops.square(targets - ops.mean(targets, axis=-1, keepdims=True)))
    return losses, ops.clip(1.0 - losses / ops.maximum(variances, 1e-12), 0.0, 1.0)


def _draw(model: keras.Model, images: np.ndarray, path: Path) -> None:
    """Draws images, their visible patches, and the reconstructions."""
    pixels = to_pixels(images.astype("float32"))
    noise = np.random.default_rng(0).uniform(size=(len(images), model.inputs[1].shape[1]))
    seen, made = reconstruct(model, pixels, noise)
    rows = {"image": pixels, "visible": seen, "reconstruction": made}
    draw_rows(path, {name: values / 2 + 0.5 for name, values in rows.items()})


def _write_vit_mae(model: keras.Model, validation: Any, folder: Path) -> Sequence[str]:
    """Writes encoder and decoder for Transformers. Returns the sections of the report."""
    heading = "## Encoder and decoder\n\n`model.npz` contains the encoder."
    picture = _describe_picture(model, "training" if validation is None else "validation")
    if problems := find_problems(model):
        return [
            f"{heading} The decoder is in the checkpoints: `ViTMAEForPreTraining` of Transformers "
            f"cannot express this model, because {' and '.join(problems)}.",
            picture,
        ]
    save_vit_mae(model, folder / _FOLDER)
    return [
        f"{heading} `{_FOLDER}` contains encoder and decoder, for "
        f'`ViTMAEForPreTraining.from_pretrained("{_FOLDER}")` of Transformers.',
        picture,
    ]


def _describe_picture(model: keras.Model, shown: str) -> str:
    """Returns the section of the report about the reconstructions of `shown` images."""
    scaled = (
        ", which are scaled by mean and variance of the true patches; the model does not know these"
        if any(isinstance(layer, PatchNormalization) for layer in model.layers)
        else ""
    )
    return (
        f"## Reconstructions\n\n`reconstructions.png` shows {shown} images, their visible patches and "
        f"the reconstructions{scaled}."
    )
