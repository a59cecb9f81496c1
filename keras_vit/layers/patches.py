"""Patches of images and their embedding as tokens.

Source: arXiv:2010.11929, section 3.1.
"""

from typing import Any

import keras
from keras import ops

from keras_vit import grid


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchExtract(keras.layers.Layer):
    """Splits an image into square patches without overlap, in raster order.

    Args:
        patch_size: Side of a patch, in pixels. Must divide both sides of the image.

    Input shape:   (B, H, W, C).
    Output shape:  (B, N, P * P * C), N = (H / P) * (W / P); pixels of a patch in raster order,
        channels last. Same dtype as the input.

    Raises:
        ValueError: If the image size is not a multiple of the patch size.

    Example:
        >>> keras.ops.shape(PatchExtract(16)(keras.ops.zeros((2, 224, 384, 3))))
        (2, 336, 768)
    """

    def __init__(self, patch_size: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, channels = _check_image_shape(input_shape)
        pixels = None if channels is None else self.patch_size**2 * channels
        rows, columns = _compute_patch_grid(height, width, self.patch_size)
        return batch, None if rows is None or columns is None else rows * columns, pixels

    def call(self, images):
        batch, height, width, channels = ops.shape(images)
        side = self.patch_size
        rows, columns = _compute_patch_grid(height, width, side)
        fixed = isinstance(rows, int) and isinstance(columns, int)
        # Two steps of rank 4 instead of one of rank 6, which mobile runtimes do not support. Use -1
        # only for the batch: with another unknown size, an indivisible size would not raise.
        strips = ops.reshape(
            images, (-1 if fixed else batch * rows, side, columns, side * channels)
        )
        patches = ops.transpose(strips, (0, 2, 1, 3))
        return ops.reshape(
            patches, (-1 if fixed else batch, rows * columns, side * side * channels)
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "patch_size": self.patch_size}


@keras.saving.register_keras_serializable(package="keras_vit")
class PadToPatches(keras.layers.Layer):
    """Pads images with zeros at the bottom and right to the next multiple of the patch size.

    Zero is gray for pixels in [-1, 1]. An axis whose size is already a multiple is not padded.

    Args:
        patch_size: Side of a patch, in cells of the feature map after the halvings.
        num_halvings: Number of strided steps of a convolutional stem before the patches.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, H', W', C), same dtype as the input; without halvings H' = ceil(H / P) * P,
        and so W'.

    Example:
        >>> keras.ops.shape(PadToPatches(16)(keras.ops.ones((2, 225, 300, 3))))
        (2, 240, 304, 3)

    Source: timm's `dynamic_img_pad` (layers/patch_embed.py) pads at the same places, with the same
        value.
    """

    def __init__(self, patch_size: int, num_halvings: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.num_halvings = num_halvings

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, channels = _check_image_shape(input_shape)
        return batch, *(size and self._pad_size(size) for size in (height, width)), channels

    def call(self, images):
        _, height, width, channels = ops.shape(images)
        new_height, new_width = self._pad_size(height), self._pad_size(width)
        images = ops.pad(images, ((0, 0), (0, new_height - height), (0, new_width - width), (0, 0)))
        # With an open size, `pad` loses the static number of channels.
        return ops.reshape(images, (-1, new_height, new_width, channels))

    def _pad_size(self, size: Any) -> Any:
        return grid.padded(size, self.patch_size, self.num_halvings)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "num_halvings": self.num_halvings,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(keras.layers.Layer):
    """Maps each patch of an image linearly to a token.

    It equals a convolution whose stride is its kernel size, computed as one matrix product.

    Args:
        patch_size: Side of a patch, in pixels. Must divide both sides of the image.
        width: Size of a token.
        flatten: Whether to return a sequence of tokens instead of a grid of tokens.
        use_bias: Whether to add a learned vector to each token.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, N, D), N = (H / P) * (W / P); with `flatten=False` (B, H / P, W / P, D).

    Raises:
        ValueError: If the image size is not a multiple of the patch size.

    Example:
        >>> keras.ops.shape(PatchEmbedding(16, 192)(keras.ops.zeros((2, 224, 224, 3))))
        (2, 196, 192)

    Source: arXiv:2010.11929 eq. 1; vision_transformer@c6de1e5 models_vit.py.
    """

    def __init__(
        self,
        patch_size: int,
        width: int,
        *,
        flatten: bool = True,
        use_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.width = width
        self.flatten = flatten
        self.use_bias = use_bias
        self._extract = PatchExtract(patch_size, dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        channels = _check_image_shape(input_shape)[-1]
        if channels is None:
            raise ValueError(
                f"The number of channels must be known. Received: input_shape={tuple(input_shape)}."
            )
        self.input_spec = keras.layers.InputSpec(axes={-1: channels})
        # Otherwise Keras calls the model once more before the first prediction on JAX.
        self._extract.build(input_shape)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.patch_size, self.patch_size, channels, self.width),
            initializer="lecun_normal",
        )
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.width,), initializer="zeros")

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, _ = _check_image_shape(input_shape)
        rows, columns = _compute_patch_grid(height, width, self.patch_size)
        if not self.flatten:
            return batch, rows, columns, self.width
        return batch, None if rows is None or columns is None else rows * columns, self.width

    def call(self, images):
        matrix = ops.reshape(self.kernel, (-1, self.width))
        tokens = ops.matmul(self._extract(images), matrix)
        if self.use_bias:
            tokens = tokens + self.bias
        if self.flatten:
            return tokens
        batch, height, width, _ = ops.shape(images)
        rows, columns = _compute_patch_grid(height, width, self.patch_size)
        fixed = isinstance(rows, int) and isinstance(columns, int)
        return ops.reshape(tokens, (-1 if fixed else batch, rows, columns, self.width))

    def get_config(self) -> dict:
        names = ("patch_size", "width", "flatten", "use_bias")
        config = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **config}


def _check_image_shape(shape: tuple) -> tuple:
    if len(shape) != 4:
        raise ValueError(
            f"Images must have the shape (batch, height, width, channels). Received: "
            f"{tuple(shape)}."
        )
    return tuple(shape)


def _compute_patch_grid(height: Any, width: Any, patch_size: int) -> tuple[Any, Any]:
    """Returns the grid of patches. For an unknown size, its entries are tensors or None."""
    if isinstance(height, int) and isinstance(width, int):
        return grid.patch_grid((height, width), patch_size)
    for size in (height, width):
        if isinstance(size, int):
            grid.patch_grid((size, size), patch_size)
    return (
        None if height is None else height // patch_size,
        None if width is None else width // patch_size,
    )
