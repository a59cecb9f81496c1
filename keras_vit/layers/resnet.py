"""Weight-standardized convolutions, and the residual units of hybrids, ResNets and BiT.

`StemUnit` is the post-activation unit of the hybrids and of the paper's ResNets, `BiTUnit` the
pre-activation unit of Big Transfer. They deliberately share no code, so that each can be compared
with its source.

Source: arXiv:1903.10520 (weight standardization), arXiv:1912.11370 (BiT);
    vision_transformer@c6de1e5 models_resnet.py; big_transfer@140de6e bit_tf2/models.py.
"""

import math
from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_vit.layers.freezing import keep_frozen
from keras_vit.layers.norm import GroupNorm

Padding = Literal["same", "fixed"]
PoolPadding = Literal["ignored", "zeros"]

NUM_GROUPS = 32


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Layer):
    """A 2-D convolution without bias whose kernel is standardized to mean 0 and deviation 1.

    Each output channel of the kernel is standardized, in float32 for any compute dtype.

    Args:
        filters: Output channels.
        kernel_size: Side of the square kernel.
        strides: Stride along both axes.
        padding: "same" as in TensorFlow (hybrids), or "fixed": kernel_size // 2 zeros on each side
            (BiT).
        std_epsilon: Added to the standard deviation. No default: it must match the checkpoint.
        variance_epsilon: Added to the variance before the square root. No default: it must match
            the checkpoint.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, ceil(H / strides), ceil(W / strides), filters), same dtype as the input.

    Example:
        >>> conv = StdConv2D(64, 7, strides=2, std_epsilon=1e-5, variance_epsilon=0.0)
        >>> keras.ops.shape(conv(keras.ops.zeros((2, 224, 224, 3))))
        (2, 112, 112, 64)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        padding: Padding = "same",
        std_epsilon: float,
        variance_epsilon: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if padding not in get_args(Padding):
            raise ValueError(
                f"`padding` must be one of {get_args(Padding)}. Received: {padding!r}."
            )
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.std_epsilon = std_epsilon
        self.variance_epsilon = variance_epsilon

    def build(self, input_shape: tuple) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, _ = input_shape
        return batch, *(size and -(-size // self.strides) for size in (height, width)), self.filters

    def call(self, x):
        if x.shape[0] == 0:  # for an empty batch, oneDNN returns the shape of the input
            return ops.zeros(self.compute_output_shape(tuple(x.shape)), x.dtype)
        kernel = ops.cast(self._standardize_kernel(), x.dtype)
        if self.padding == "same":
            return ops.conv(
                x, kernel, strides=self.strides, padding="same", data_format="channels_last"
            )
        margin = self.kernel_size // 2
        if margin:
            x = ops.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
        return ops.conv(
            x, kernel, strides=self.strides, padding="valid", data_format="channels_last"
        )

    def _standardize_kernel(self):
        kernel = ops.convert_to_tensor(self.kernel)
        centred = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(centred), axis=(0, 1, 2), keepdims=True)
        return centred / (ops.sqrt(variance + self.variance_epsilon) + self.std_epsilon)

    def get_config(self) -> dict:
        names = ("filters", "kernel_size", "strides", "padding", "std_epsilon", "variance_epsilon")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTMaxPool(keras.layers.Layer):
    """The 3x3 max-pooling with stride 2 of BiT's root, with one cell of padding on each side.

    Args:
        padding: "ignored": padding is never the maximum (big_vision). "zeros": padding counts as 0
            (big_transfer and timm). The results differ, because the map may be negative.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, ceil(H / 2), ceil(W / 2), C), same dtype as the input.

    Example:
        >>> keras.ops.shape(BiTMaxPool()(keras.ops.zeros((2, 112, 112, 64))))
        (2, 56, 56, 64)

    Source: big_vision@0127fb6 models/bit_paper.py; big_transfer@140de6e bit_tf2/models.py.
    """

    def __init__(self, padding: PoolPadding = "ignored", **kwargs: Any):
        super().__init__(**kwargs)
        if padding not in get_args(PoolPadding):
            raise ValueError(
                f"`padding` must be one of {get_args(PoolPadding)}. Received: {padding!r}."
            )
        self.padding = padding

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, channels = input_shape
        return batch, *(size and -(-size // 2) for size in (height, width)), channels

    def call(self, x):
        value = 0.0 if self.padding == "zeros" else -math.inf
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=value)
        return ops.max_pool(x, 3, strides=2, padding="valid", data_format="channels_last")

    def get_config(self) -> dict:
        return {**super().get_config(), "padding": self.padding}


@keras.saving.register_keras_serializable(package="keras_vit")
class StemUnit(keras.layers.Layer):
    """A post-activation bottleneck (ResNet v1.5): convolutions 1x1, 3x3 with the stride, and 1x1.

    Each convolution is followed by group normalization. The scale of the last normalization is
    initialized to 0, so that the unit initially equals its shortcut. The shortcut is projected and
    normalized if its shape differs.

    Args:
        filters: Channels of the bottleneck; the output has four times as many.
        strides: Stride of the 3x3 convolution.
        norm_epsilon, std_epsilon, variance_epsilon: No defaults: they must match the checkpoint.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, ceil(H / strides), ceil(W / strides), 4 * filters), same dtype as the input.

    Example:
        >>> unit = StemUnit(64, strides=1, norm_epsilon=1e-6, std_epsilon=1e-5, variance_epsilon=0.0)
        >>> keras.ops.shape(unit(keras.ops.zeros((2, 56, 56, 64))))
        (2, 56, 56, 256)

    Source: vision_transformer@c6de1e5 models_resnet.py.
    """

    def __init__(
        self,
        filters: int,
        *,
        strides: int,
        norm_epsilon: float,
        std_epsilon: float,
        variance_epsilon: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.norm_epsilon = norm_epsilon
        self.std_epsilon = std_epsilon
        self.variance_epsilon = variance_epsilon

    def build(self, input_shape: tuple) -> None:
        make_conv, make_norm = make_unit_factories(self, "same")
        filters, outputs = self.filters, 4 * self.filters
        self.conv1, self.gn1 = make_conv("conv1", filters, 1, 1), make_norm("gn1")
        self.conv2, self.gn2 = make_conv("conv2", filters, 3, self.strides), make_norm("gn2")
        self.conv3, self.gn3 = (
            make_conv("conv3", outputs, 1, 1),
            make_norm("gn3", gamma_initializer="zeros"),
        )
        self.conv_proj = self.gn_proj = None
        if input_shape[-1] != outputs or self.strides != 1:
            self.conv_proj, self.gn_proj = (
                make_conv("conv_proj", outputs, 1, self.strides),
                make_norm("gn_proj"),
            )
            self.conv_proj.build(input_shape)
            self.gn_proj.build((None, None, None, outputs))
        shape = tuple(input_shape)
        for layer_conv, layer_norm in (
            (self.conv1, self.gn1),
            (self.conv2, self.gn2),
            (self.conv3, self.gn3),
        ):
            layer_conv.build(shape)
            shape = layer_conv.compute_output_shape(shape)
            layer_norm.build(shape)
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return unit_output_shape(input_shape, self.filters, self.strides)

    def call(self, x):
        shortcut = (
            x if self.conv_proj is None or self.gn_proj is None else self.gn_proj(self.conv_proj(x))
        )
        y = ops.relu(self.gn1(self.conv1(x)))
        y = ops.relu(self.gn2(self.conv2(y)))
        return ops.relu(shortcut + self.gn3(self.conv3(y)))

    def get_config(self) -> dict:
        return {**super().get_config(), **unit_config(self)}


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTUnit(keras.layers.Layer):
    """A pre-activation bottleneck (ResNet v2): normalization and ReLU before each convolution.

    Args:
        filters: Channels of the bottleneck; the output has four times as many.
        strides: Stride of the 3x3 convolution.
        norm_epsilon, std_epsilon, variance_epsilon: No defaults: they must match the checkpoint.

    Input shape:   (B, H, W, C) float.
    Output shape:  (B, ceil(H / strides), ceil(W / strides), 4 * filters), same dtype as the input.

    Example:
        >>> unit = BiTUnit(64, strides=2, norm_epsilon=1e-5, std_epsilon=0.0, variance_epsilon=1e-10)
        >>> keras.ops.shape(unit(keras.ops.zeros((2, 56, 56, 64))))
        (2, 28, 28, 256)

    Source: big_transfer@140de6e bit_tf2/models.py.
    """

    def __init__(
        self,
        filters: int,
        *,
        strides: int,
        norm_epsilon: float,
        std_epsilon: float,
        variance_epsilon: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.norm_epsilon = norm_epsilon
        self.std_epsilon = std_epsilon
        self.variance_epsilon = variance_epsilon

    def build(self, input_shape: tuple) -> None:
        make_conv, make_norm = make_unit_factories(self, "fixed")
        filters, outputs = self.filters, 4 * self.filters
        self.gn1, self.conv1 = make_norm("gn1"), make_conv("conv1", filters, 1, 1)
        self.gn2, self.conv2 = make_norm("gn2"), make_conv("conv2", filters, 3, self.strides)
        self.gn3, self.conv3 = make_norm("gn3"), make_conv("conv3", outputs, 1, 1)
        self.conv_proj = None
        if input_shape[-1] != outputs or self.strides != 1:
            self.conv_proj = make_conv("conv_proj", outputs, 1, self.strides)
            self.conv_proj.build(input_shape)
        shape = tuple(input_shape)
        for layer_norm, layer_conv in (
            (self.gn1, self.conv1),
            (self.gn2, self.conv2),
            (self.gn3, self.conv3),
        ):
            layer_norm.build(shape)
            layer_conv.build(shape)
            shape = layer_conv.compute_output_shape(shape)
        keep_frozen(self)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return unit_output_shape(input_shape, self.filters, self.strides)

    def call(self, x):
        y = ops.relu(self.gn1(x))
        shortcut = x if self.conv_proj is None else self.conv_proj(y)
        y = ops.relu(self.gn2(self.conv1(y)))
        y = ops.relu(self.gn3(self.conv2(y)))
        return shortcut + self.conv3(y)

    def get_config(self) -> dict:
        return {**super().get_config(), **unit_config(self)}


def make_unit_factories(unit: keras.layers.Layer, padding: Padding):
    """Returns functions that create convolutions and norms with the constants and dtype
    of a unit.
    """

    def make_conv(name: str, filters: int, kernel_size: int, strides: int) -> StdConv2D:
        return StdConv2D(
            filters,
            kernel_size,
            strides=strides,
            padding=padding,
            std_epsilon=unit.std_epsilon,
            variance_epsilon=unit.variance_epsilon,
            name=name,
            dtype=unit.dtype_policy,
        )

    def make_norm(name: str, **kwargs: Any) -> GroupNorm:
        return GroupNorm(
            NUM_GROUPS, epsilon=unit.norm_epsilon, name=name, dtype=unit.dtype_policy, **kwargs
        )

    return make_conv, make_norm


def unit_output_shape(input_shape: tuple, filters: int, strides: int) -> tuple:
    """Returns the output shape of a bottleneck."""
    batch, height, width, _ = input_shape
    return batch, *(size and -(-size // strides) for size in (height, width)), 4 * filters


def unit_config(unit: keras.layers.Layer) -> dict:
    """Returns the arguments that all residual units share."""
    names = ("filters", "strides", "norm_epsilon", "std_epsilon", "variance_epsilon")
    return {name: getattr(unit, name) for name in names}
