"""Masked patch prediction, the paper's self-supervised pre-training.

Half of the patch embeddings are corrupted, and the model predicts the colours of those patches.
Labels are not used. Fine-tuning from the checkpoint drops the mask token and the head.

Source: arXiv:2010.11929, section 4.6 and appendix B.1.2. The authors' code was never released.
"""

import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.drawing import draw_rows
from keras_vit.grid import join_patches
from keras_vit.layers import MaskTokens, PatchExtract
from keras_vit.layers.tokens import MASKED, SWAPPED, UNTOUCHED
from keras_vit.levels import to_pixels
from keras_vit.models.ends import full_precision
from keras_vit.models.vit import embed_patches, encode_tokens
from keras_vit.options import grid_of, has_class_token
from keras_vit.train.config import RunConfig, row_of
from keras_vit.train.losses import Objective
from keras_vit.train.run import Procedure, run
from keras_vit.variants import ViTVariant

LEVELS = 8  # per colour channel: 3 bits
NUM_COLORS = LEVELS**3
SMALL = 4  # side of a downsized patch, in pixels


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedPatchesConfig:
    """The config of a masked patch prediction.

    Attributes:
        run: Settings of the run. `loss`, `label_smoothing` and `mixup_alpha` must have their
            defaults.
        model: Name of a ViT or hybrid in `keras_vit.list_models()`.
        variant: Fields to change in the row of the model, such as {"patch_size": 4, "depth": 6}.
        model_options: `classifier` ("token", or "gap" for models without a class token, such as
            axial ones), and options of `keras_vit.models.vit.encode_tokens`, such as `dropout_rate`
            and `position_embedding`.
        image_size: Side of the square images, in pixels.
        target: What is predicted. "mean_color": one of 512 colours per patch; "small_patch": one of
            512 colours for each pixel of the patch downsized to 4 x 4; "pixels": the pixels of the
            patch, with a squared error.
        corruption: Share of corrupted patches; 0.15 was slightly worse in the paper.
        mask_share, swap_share: See `keras_vit.layers.MaskTokens`.
    """

    run: RunConfig
    model: str = "ViT_B16"
    variant: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int = 224
    target: str = "mean_color"
    corruption: float = 0.5
    mask_share: float = 0.8
    swap_share: float = 0.1

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(
                f"`target` must be one of {', '.join(TARGETS)}. Received: {self.target!r}."
            )
        if self.run.loss != "softmax" or self.run.label_smoothing or self.run.data.mixup_alpha:
            raise ValueError(
                "Masked patch prediction has its own loss. Leave out `loss`, `label_smoothing` and "
                f"`mixup_alpha`. Received: {self.run.loss!r}, {self.run.label_smoothing}, "
                f"{self.run.data.mixup_alpha}."
            )


def pretrain_masked_patches(
    config: MaskedPatchesConfig, workdir: str | os.PathLike
) -> dict[str, float]:
    """Trains a model to predict corrupted patches. The same call on the same folder resumes it.

    Arguments, results and errors are those of `keras_vit.train.pretrain.pretrain`. "accuracy" is
    the share of corrupted patches whose colour is predicted correctly. `masked_patches.png` shows
    the input of the model and its predictions.
    """
    row = row_of(config.model, config.variant)
    if not isinstance(row, ViTVariant):
        raise ValueError(
            f"{config.model} has no patch embeddings to mask. Choose a ViT or a hybrid."
        )
    options = dict(config.model_options)
    class_token = has_class_token(row, options.pop("classifier", None))
    known = inspect.signature(encode_tokens).parameters
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"`model_options` does not accept {', '.join(unknown)}. Valid: classifier, "
            f"{', '.join([*known][3:])}."
        )

    def build(_num_classes: int) -> keras.Model:
        return masked_patch_model(
            row,
            config.image_size,
            config.target,
            mask=MaskTokens(
                config.corruption,
                mask_share=config.mask_share,
                swap_share=config.swap_share,
                name="mask_token",
            ),
            class_token=class_token,
            **options,
        )

    procedure = Procedure(
        title=f"{row.name}, masked patches of {config.run.data.name or config.run.data.kind}",
        build=build,
        image_size=config.image_size,
        objective=masked_patch_objective(config.target),
        preview=lambda model, images, folder: _draw(
            model, images, config.target, folder / "masked_patches.png"
        ),
    )
    return run(config, workdir, procedure)


def masked_patch_model(
    variant: ViTVariant,
    image_size: int,
    target: str,
    *,
    mask: MaskTokens,
    class_token: bool | None = None,
    **encoder_options: Any,
) -> keras.Model:
    """Builds the model of masked patch prediction.

    Args:
        variant: A row of `keras_vit.variants.VIT_VARIANTS`, or a similar one. A norm after the
            pooling is replaced by one after the last block, whose tokens the predictions read.
        image_size: Side of the square images, in pixels.
        target: See `MaskedPatchesConfig`.
        mask: The layer that corrupts the tokens.
        class_token: Whether the encoder has a class token, for later fine-tuning. Default: True,
            except for axial variants.
        **encoder_options: Further arguments of `keras_vit.models.vit.encode_tokens`.

    Returns:
        A model from images (B, H, W, 3) in [-1, 1] to predictions (B, N, K), targets (B, N, ...),
        and the kind of corruption of each patch (B, N), see `MaskTokens`. Targets are float32,
        whatever the compute dtype of the model.

    Example:
        >>> row = keras_vit.variants.VIT_VARIANTS["ViT_Ti16"]
        >>> model = masked_patch_model(row, 224, "mean_color", mask=MaskTokens(name="mask_token"))
        >>> [output.shape for output in model.outputs]
        [(None, 196, 512), (None, 196), (None, 196)]
    """
    variant = dataclasses.replace(variant, norm_after_pooling=False)
    class_token = not variant.axial if class_token is None else class_token
    images = keras.Input((image_size, image_size, 3))
    rows, columns = grid_of(variant, (image_size, image_size))
    side = image_size // rows
    targets, num_outputs = TARGETS[target].make(images, side), TARGETS[target].num_outputs(side)
    patches = embed_patches(images, variant)
    tokens, kinds = mask(ops.reshape(patches, (-1, rows * columns, variant.width)))
    patches = ops.reshape(tokens, (-1, rows, columns, variant.width))
    tokens = encode_tokens(patches, variant, class_token=class_token, **encoder_options)
    head = keras.layers.Dense(
        num_outputs, kernel_initializer="zeros", dtype=full_precision(), name="patch_predictions"
    )
    predictions = head(tokens[:, -rows * columns :])  # prefix tokens come before the patches
    return keras.Model(
        images, [predictions, targets, kinds], name=f"{variant.name.lower()}_masked_patches"
    )


def masked_patch_objective(target: str) -> Objective:
    """Returns the objective: mean loss and accuracy over the corrupted patches of each image.

    Example:
        >>> outputs = ops.zeros((1, 4, 512)), ops.zeros((1, 4), "int32"), ops.ones((1, 4), "int32")
        >>> round(float(masked_patch_objective("mean_color")(None, outputs)[0][0]), 4)  # ln 512
        6.2383
    """

    def objective(_labels: Any, outputs: tuple) -> tuple[Any, Any]:
        predictions, targets, kinds = outputs
        corrupted = ops.cast(kinds > UNTOUCHED, "float32")
        number = ops.maximum(ops.sum(corrupted, axis=-1), 1.0)
        losses, hits = TARGETS[target].score(targets, ops.cast(predictions, "float32"))  # (B, N)
        return ops.sum(losses * corrupted, axis=-1) / number, ops.sum(
            hits * corrupted, axis=-1
        ) / number

    return objective


def color_classes(colors: Any) -> Any:
    """Returns the class of each colour, 0 to 511: eight equal bins per channel, red first.

    The paper does not say how colours are binned. We assume equal bins.

    Args:
        colors: (..., 3) in [-1, 1].

    Example:
        >>> color_classes(np.array([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -0.7]])).numpy().tolist()
        [0, 511, 1]
    """
    colors = ops.cast(colors, "float32")
    levels = ops.cast(ops.clip(ops.floor((colors + 1) * (LEVELS / 2)), 0, LEVELS - 1), "int32")
    return levels[..., 0] * LEVELS**2 + levels[..., 1] * LEVELS + levels[..., 2]


def class_colors(classes: np.ndarray) -> np.ndarray:
    """Returns the centre of the bin of each colour class, (..., 3) in [-1, 1].

    Example:
        >>> class_colors(np.array([0, 511])).tolist()
        [[-0.875, -0.875, -0.875], [0.875, 0.875, 0.875]]
    """
    levels = np.stack([classes // LEVELS**2, classes // LEVELS % LEVELS, classes % LEVELS], axis=-1)
    return (levels + 0.5) / (LEVELS / 2) - 1


def _cut_patches(images: Any, side: int) -> Any:
    """Splits images (B, H, W, 3) into patches (B, N, side, side, 3), float32."""
    patches = PatchExtract(side, dtype="float32")(images)
    return ops.reshape(patches, (-1, patches.shape[1], side, side, 3))


def _downsize_patches(images: Any, side: int) -> Any:
    """Splits images into patches and averages each down to 4 x 4 pixels: (B, N, 16, 3)."""
    if side % SMALL:
        raise ValueError(
            f'target="small_patch" needs a patch size that is a multiple of {SMALL} pixels. '
            f"Received: {side}."
        )
    patches, block = _cut_patches(images, side), side // SMALL
    blocks = ops.reshape(patches, (-1, patches.shape[1], SMALL, block, SMALL, block, 3))
    return ops.reshape(ops.mean(blocks, axis=(3, 5)), (-1, patches.shape[1], SMALL**2, 3))


def _score_color(targets: Any, predictions: Any) -> tuple[Any, Any]:
    losses = ops.sparse_categorical_crossentropy(targets, predictions, from_logits=True)
    hits = ops.equal(
        ops.cast(ops.argmax(predictions, axis=-1), "int32"), ops.cast(targets, "int32")
    )
    return losses, ops.cast(hits, "float32")


def _score_small(targets: Any, predictions: Any) -> tuple[Any, Any]:
    predictions = ops.reshape(predictions, (-1, targets.shape[1], SMALL**2, NUM_COLORS))
    return tuple(ops.mean(score, axis=-1) for score in _score_color(targets, predictions))


def _score_pixels(targets: Any, predictions: Any) -> tuple[Any, Any]:
    means = (
        ops.mean(ops.reshape(x, (-1, x.shape[1], x.shape[2] // 3, 3)), axis=2)
        for x in (targets, predictions)
    )
    hits = ops.equal(*map(color_classes, means))
    return ops.mean(ops.square(predictions - targets), axis=-1), ops.cast(hits, "float32")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A prediction target: functions for its number of outputs, values, losses and pictures.

    Attributes:
        num_outputs: From the side of a patch, in pixels, to the number K of outputs.
        make: From images and side to targets.
        score: From targets and predictions, both (B, N, ...), to losses and hits, (B, N).
        paint: From outputs (B, N, K) and side to colours (B, N, p, p, 3) in [-1, 1], in NumPy; p
            divides the side.
    """

    num_outputs: Callable[[int], int]
    make: Callable[[Any, int], Any]
    score: Callable[[Any, Any], tuple[Any, Any]]
    paint: Callable[[np.ndarray, int], np.ndarray]


TARGETS: dict[str, Target] = {
    "mean_color": Target(
        num_outputs=lambda side: NUM_COLORS,
        make=lambda images, side: color_classes(ops.mean(_cut_patches(images, side), axis=(2, 3))),
        score=_score_color,
        paint=lambda outputs, side: class_colors(outputs.argmax(-1))[:, :, None, None],
    ),
    "small_patch": Target(
        num_outputs=lambda side: SMALL**2 * NUM_COLORS,
        make=lambda images, side: color_classes(_downsize_patches(images, side)),
        score=_score_small,
        paint=lambda outputs, side: class_colors(
            outputs.reshape(*outputs.shape[:2], SMALL, SMALL, NUM_COLORS).argmax(-1)
        ),
    ),
    "pixels": Target(
        num_outputs=lambda side: side * side * 3,
        make=lambda images, side: PatchExtract(side, dtype="float32")(images),
        score=_score_pixels,
        paint=lambda outputs, side: outputs.reshape(*outputs.shape[:2], side, side, 3).clip(-1, 1),
    ),
}


def _draw(model: keras.Model, images: np.ndarray, target: str, path: Path) -> None:
    """Draws images, the input of the model (grey where masked), and its predictions."""
    pixels = to_pixels(images.astype("float32"))
    predictions = ops.convert_to_numpy(model(pixels, training=False)[0])
    grid = math.isqrt(predictions.shape[1])
    side = images.shape[1] // grid
    kinds, places = map(
        ops.convert_to_numpy, model.get_layer("mask_token").plan(1, grid * grid, training=False)
    )
    cut = ops.convert_to_numpy(_cut_patches(pixels, side))
    said = TARGETS[target].paint(predictions, side)
    times = side // said.shape[2]
    said = said.repeat(times, axis=2).repeat(times, axis=3)
    where = kinds[..., None, None, None]
    rows = {
        "image": cut,
        "seen": np.where(where == MASKED, 0.0, np.where(where == SWAPPED, cut[:, places[0]], cut)),
        "predicted": np.where(where > UNTOUCHED, said, cut),
        "predicted, all": said,
    }
    draw_rows(
        path,
        {name: join_patches(patches, (grid, grid)) / 2 + 0.5 for name, patches in rows.items()},
    )
