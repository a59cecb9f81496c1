"""Masked autoencoders: a ViT that encodes the visible patches, and a decoder that draws the others.

Models have random weights. `keras_vit.train.mae` trains them, and
`keras_vit.weights.huggingface_mae` writes them for Transformers.

Source: arXiv:2111.06377 (He et al.), section 3; facebookresearch/mae@6a2ba40 models_mae.py.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.grid import join_patches, sincos_positions
from keras_vit.layers.masking import KeepTokens, RandomMask, RestoreTokens
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.patches import PatchExtract
from keras_vit.layers.pixels import PatchNormalization, PixelNormalization
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.transformer import TransformerBlock
from keras_vit.levels import to_pixels
from keras_vit.models.ends import full_precision
from keras_vit.models.vit import embed_patches, encode_selected_tokens
from keras_vit.options import EncoderOptions, grid_of
from keras_vit.variants import ViTVariant

LARGEST_PIXEL = 1.5  # resizing may exceed 1
PIXEL_EPSILON = 1e-6  # added to the variance of the pixels of a patch
MLP_RATIO = 4  # hidden size of the decoder's MLPs, relative to its width
_KEEP = "visible_tokens"  # the layer behind which the encoder sees the visible patches alone


def masked_autoencoder(
    variant: ViTVariant,
    image_size: int,
    *,
    mask_share: float = 0.75,
    decoder_width: int = 512,
    decoder_depth: int = 8,
    decoder_heads: int = 16,
    normalize_pixels: bool = True,
    class_token: bool = True,
    **encoder_options: Any,
) -> keras.Model:
    """Builds a masked autoencoder.

    Its initialization is that of our ViTs: the class token starts at zero, in the authors' code at
    random numbers of standard deviation 0.02.

    The encoder computes the prefix tokens and the visible patches: 1 + 49 tokens instead of 1 + 196
    at 224 pixels with patches of 16. The decoder computes all tokens; a learned mask token and its
    position stand for a hidden patch. The layers of the encoder have the names that they have in
    the models of `keras_vit.application`.

    Args:
        variant: A row of `keras_vit.variants.VIT_VARIANTS`, or a similar one, without a stem,
            axial attention and rotary positions. A norm after the pooling is replaced by one after
            the last block.
        image_size: Side of the square images, in pixels.
        mask_share: Share of hidden patches, see `keras_vit.layers.RandomMask`.
        decoder_width, decoder_depth, decoder_heads: Size of a token, number of blocks and of
            attention heads of the decoder. The hidden size of its MLPs is four times its width.
        normalize_pixels: Whether the decoder predicts pixels normalized by
            `keras_vit.layers.PatchNormalization`.
        class_token: Whether the encoder has a class token, for later fine-tuning.
        **encoder_options: Fields of `keras_vit.options.EncoderOptions`. Without
            `position_embedding`, the encoder has the fixed sine-cosine positions of the authors'
            code. They are stored like learned ones, and fine-tuning trains them.

    Returns:
        A model from images (B, H, W, 3) in [-1, 1] and random numbers (B, N) to predictions
        (B, N, P * P * 3), targets of the same shape, and the mask (B, N): 1 for hidden patches, 0
        for visible ones. All outputs are float32.

    Raises:
        ValueError: If the patches of the variant see each other before the encoder, if positions
            are not added once before the first block, or if a size is not divisible.

    Example:
        >>> row = keras_vit.variants.FAMILY_VARIANTS["MAE_B16"]
        >>> model = masked_autoencoder(dataclasses.replace(row, depth=1), 224, decoder_depth=1)
        >>> model.get_layer("encoder_norm").output.shape
        (None, 50, 768)
        >>> [output.shape for output in model.outputs]
        [(None, 196, 768), (None, 196, 768), (None, 196)]
    """
    variant = dataclasses.replace(variant, norm_after_pooling=False)
    _check(variant, encoder_options)
    _check_decoder(decoder_width, decoder_depth, decoder_heads)
    options = EncoderOptions(**encoder_options)
    rows, columns = grid = grid_of(variant, (image_size, image_size))
    num_prefix_tokens = int(class_token) + variant.distilled + variant.num_registers
    images = keras.Input((image_size, image_size, 3), name="images")
    noise = keras.Input((rows * columns,), name="noise")
    mask = RandomMask(mask_share, name="random_mask")
    mask.compute_output_shape(noise.shape)  # raises a plain error, which Keras would wrap
    visible, ranks = mask(noise)
    keep = KeepTokens(num_prefix_tokens, name=_KEEP)
    tokens = encode_selected_tokens(
        embed_patches(images, variant),
        variant,
        lambda tokens: keep(tokens, visible),
        class_token=class_token,
        **encoder_options,
    )
    tokens = keras.layers.Dense(decoder_width, name="decoder_embedding")(tokens)
    tokens = RestoreTokens(num_prefix_tokens, name="decoder_mask_token")(tokens, ranks)
    tokens = AddPositionEmbs(grid, num_prefix_tokens, name="decoder_posembed")(tokens)
    for index in range(decoder_depth):
        tokens = TransformerBlock(
            decoder_heads,
            MLP_RATIO * decoder_width,
            norm_epsilon=_epsilon_of(variant, options),
            gelu=options.gelu or variant.gelu,
            name=f"decoderblock_{index}",
        )(tokens)
    tokens = LayerNorm(_epsilon_of(variant, options), name="decoder_norm")(tokens)
    head = keras.layers.Dense(
        variant.patch_size**2 * 3, dtype=full_precision(), name="decoder_predictions"
    )
    predictions = head(tokens[:, num_prefix_tokens:])
    targets = _make_targets(images, variant, normalize_pixels)
    mask = ops.cast(ranks >= visible.shape[1], "float32")
    name = f"{variant.name.lower()}_masked_autoencoder"
    model = keras.Model([images, noise], [predictions, targets, mask], name=name)
    fixed = ["decoder_posembed"]
    if "position_embedding" not in encoder_options:
        fixed.append("posembed_input")
    for layer in fixed:
        _fix_positions(model.get_layer(layer))
    return model


def encoder_of(model: keras.Model) -> keras.Model:
    """Returns the encoder of a masked autoencoder, which sees all patches.

    It shares all variables with the autoencoder.

    Args:
        model: From `masked_autoencoder`.

    Returns:
        A model from images (B, H, W, 3) in [-1, 1] to all output tokens, (B, T + N, D).

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], depth=1)
        >>> encoder_of(masked_autoencoder(row, 32, decoder_width=16, decoder_heads=2)).output_shape
        (None, 5, 192)
    """

    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if layer.name == _KEEP else layer(*arguments, **options)

    masked = keras.Model(model.inputs, model.get_layer("encoder_norm").output)
    whole = keras.models.clone_model(masked, clone_function=lambda layer: layer, call_function=call)
    return keras.Model(whole.inputs[0], whole.outputs[0], name=f"{model.name}_encoder")


def reconstruct(
    model: keras.Model, images: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a masked autoencoder sees of images, and what it makes of it.

    Args:
        model: From `masked_autoencoder`.
        images: (B, H, W, 3), floats in [-1, 1] or uint8.
        noise: (B, N), the second input of the model.

    Returns:
        Two arrays (B, H, W, 3) in [-1, 1]: the images with gray in place of the hidden patches, and
        with predictions in place of them. If the model predicts normalized pixels, they are scaled
        by mean and variance of the true patch, which the model does not know.

    Raises:
        ValueError: If pixels are not in [-1, 1], or `images` and `noise` do not have the shapes of
            the inputs.

    Example:
        >>> row = dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], depth=1)
        >>> model = masked_autoencoder(row, 32, decoder_width=16, decoder_depth=1, decoder_heads=2)
        >>> seen, made = reconstruct(model, np.ones((1, 32, 32, 3)), np.array([[0.2, 0.1, 0.3, 0.4]]))
        >>> seen[0, ::16, ::16, 0].tolist(), made.shape
        ([[0.0, 1.0], [0.0, 0.0]], (1, 32, 32, 3))
    """
    images = to_pixels(images.astype("float32")) if images.dtype == np.uint8 else images
    shapes = [(len(images), *each.shape[1:]) for each in model.inputs]
    if [images.shape, noise.shape] != shapes or np.abs(images).max(initial=0) > LARGEST_PIXEL:
        raise ValueError(
            f"`images` and `noise` must have the shapes {shapes[0]} and {shapes[1]}, and pixels be "
            f"uint8 or from -1 to 1. Received: {images.shape} and {noise.shape}, pixels from "
            f"{images.min(initial=0):g} to {images.max(initial=0):g}."
        )
    images, noise = images.astype("float32"), noise.astype("float32")
    predictions, _, mask = model([images, noise], training=False)
    layers = {layer.name: layer for layer in model.layers}
    cut, side = layers["target_patches"], layers["target_patches"].patch_size
    colors = layers.get("target_pixels")
    if (normalization := layers.get("target_normalization")) is not None:
        mean, deviation = normalization.compute_statistics(
            cut(images if colors is None else colors(images))
        )
        predictions = predictions * deviation + mean
    patches, predictions, mask = map(ops.convert_to_numpy, (cut(images), predictions, mask))
    shape = (*patches.shape[:2], side, side, 3)
    patches, predictions = patches.reshape(shape), predictions.reshape(shape)
    if colors is not None:
        predictions = 2 * (predictions * np.array(colors.std) + np.array(colors.mean)) - 1
    hidden = mask[..., None, None, None] > 0
    grid = (images.shape[1] // side, images.shape[2] // side)
    seen, made = (
        join_patches(np.where(hidden, others, patches), grid).astype("float32")
        for others in (0.0, predictions.clip(-1, 1))
    )
    return seen, made


def _check(variant: ViTVariant, options: dict[str, Any]) -> None:
    problems = [
        problem
        for problem, is_there in (
            ("a convolutional stem, in which patches see each other", variant.stem is not None),
            ("axial attention, which needs a whole grid", variant.axial),
            ("rotary positions, which need a whole grid", variant.rotary),
        )
        if is_there
    ]
    if problems:
        raise ValueError(
            f"{variant.name} cannot be a masked autoencoder: it has {'; '.join(problems)}. Choose a "
            "plain ViT."
        )
    placement = options.get("position_placement", "stem")
    if placement != "stem" or options.get("position_embedding") == "relative":
        raise ValueError(
            "A masked autoencoder adds positions once, before the patches are hidden. Received: "
            f"position_embedding={options.get('position_embedding')!r}, "
            f'position_placement={placement!r}. Use "stem", and omit relative positions.'
        )


def _check_decoder(width: int, depth: int, num_heads: int) -> None:
    if depth < 1 or num_heads < 1 or width % 4 or width % num_heads:
        raise ValueError(
            "The decoder needs at least one block, and a width that is a multiple of 4 and of its "
            f"number of heads. Received: decoder_width={width}, decoder_depth={depth}, "
            f"decoder_heads={num_heads}."
        )


def _epsilon_of(variant: ViTVariant, options: EncoderOptions) -> float:
    return variant.norm_epsilon if options.norm_epsilon is None else options.norm_epsilon


def _make_targets(
    images: keras.KerasTensor, variant: ViTVariant, normalize_pixels: bool
) -> keras.KerasTensor:
    """Returns the pixels of each patch, (B, N, P * P * 3), as the encoder receives them."""
    if {*variant.pixel_mean, *variant.pixel_std} != {0.5}:
        mean, std = variant.pixel_mean, variant.pixel_std
        images = PixelNormalization(mean, std, dtype="float32", name="target_pixels")(images)
    patches = PatchExtract(variant.patch_size, dtype="float32", name="target_patches")(images)
    if not normalize_pixels:
        return patches
    return PatchNormalization(PIXEL_EPSILON, dtype="float32", name="target_normalization")(patches)


def _fix_positions(layer: AddPositionEmbs) -> None:
    """Fills a position table with sines and cosines, with zeros for prefix tokens, and freezes it."""
    shape = layer.pos_embedding.shape
    patches = sincos_positions(layer.grid, shape[-1])
    prefix = ops.zeros((1, layer.num_prefix_tokens, shape[-1]))
    layer.pos_embedding.assign(ops.concatenate([prefix, ops.convert_to_tensor(patches)], axis=1))
    layer.trainable = False
