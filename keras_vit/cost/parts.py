"""The convolutions and attentions of a model at an image size, and the cost of each.

`counts.py` and `compute.py` add up the parts; `memory.py` computes peaks of memory.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.options import (
    Classifier,
    PositionEmbedding,
    Size,
    grid_of,
    num_prefix_tokens,
)
from keras_vit.variants import ResNetVariant, ViTVariant

AXIAL_RESNET_HEADS = 8


# Projections of queries, keys and values that have no bias, by `attention_bias` of a row.
_NUM_WITHOUT_BIAS = {"all": 0, "no_key": 1, "none": 3}


def dense_parameters(inputs: int, outputs: int | None, has_bias: bool = True) -> int:
    """Returns the parameters of a dense layer, 0 if there is no layer."""
    return (inputs + has_bias) * (outputs or 0)


class Convolution(NamedTuple):
    """A convolution without biases.

    Attributes:
        name: Name in the variables of the model.
        size: Side of the kernel.
        inputs, outputs: Number of channels.
        cells_in: Rows and columns of the input.
        stride: Stride along both axes.
        is_centred: Whether there are size // 2 zeros before the first cell (BiT). If not, padding
            is that of TensorFlow's "same".
    """

    name: str
    size: int
    inputs: int
    outputs: int
    cells_in: Size
    stride: int = 1
    is_centred: bool = False

    @property
    def cells_out(self) -> Size:
        return math.ceil(self.cells_in[0] / self.stride), math.ceil(self.cells_in[1] / self.stride)

    @property
    def values_in(self) -> int:
        return math.prod(self.cells_in) * self.inputs

    @property
    def values_out(self) -> int:
        return math.prod(self.cells_out) * self.outputs

    @property
    def parameters(self) -> int:
        return self.size**2 * self.inputs * self.outputs

    def macs(self, count_padding: bool = True) -> int:
        if count_padding:
            return self.parameters * math.prod(self.cells_out)
        return self.inputs * self.outputs * math.prod(map(self._count_taps, self.cells_in))

    def _count_taps(self, length: int) -> int:
        """Counts the pairs of kernel taps and cells along an axis, without padding."""
        num_places = math.ceil(length / self.stride)
        overhang = max((num_places - 1) * self.stride + self.size - length, 0)
        before = self.size // 2 if self.is_centred else overhang // 2
        starts = range(-before, num_places * self.stride - before, self.stride)
        return sum(max(min(start + self.size, length) - max(start, 0), 0) for start in starts)


class Attention(NamedTuple):
    """Attention among the tokens of each line: all tokens of an image, or a row or column.

    Attributes:
        num_lines: Number of lines of an image.
        length: Tokens of a line.
        width: Size of a token.
        num_heads: Number of heads.
        relative: Whether there are relative embeddings, shared by the heads.
        num_without_bias: How many of the four projections have no bias.
        rotary: Whether queries and keys are rotated.
    """

    num_lines: int
    length: int
    width: int
    num_heads: int
    relative: bool
    num_without_bias: int = 0
    rotary: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of queries, keys, values and output, and the relative embeddings."""
        offsets = (2 * self.length - 1) * (self.width // self.num_heads)
        projections = 4 * dense_parameters(self.width, self.width)
        return projections - self.num_without_bias * self.width + (offsets if self.relative else 0)

    @property
    def macs(self) -> int:
        """Multiply-adds of four projections per token, of scores and weighted values per pair of
        tokens, and of queries and relative embeddings.
        """
        per_token = 4 * self.width**2 + 2 * self.length * self.width
        offsets = (2 * self.length - 1) * self.width if self.relative else 0
        return self.num_lines * self.length * (per_token + offsets)

    @property
    def values(self) -> int:
        """Number of values in all tokens."""
        return self.num_lines * self.length * self.width

    @property
    def scores(self) -> int:
        """Number of values in the attention weights of all lines and heads."""
        return self.num_lines * self.num_heads * self.length**2


def parts_of_trunk(
    resnet: ResNetVariant, image_size: Size, channels: int
) -> Iterator[Convolution | Attention]:
    """Yields the convolutions of a trunk in order.

    Each stride halves the map and rounds up, for any padding. In an axial trunk, two attentions
    along rows and columns replace each 3 x 3 convolution.

    Raises:
        ValueError: If the trunk is axial and pre-activation, which no model is.
    """
    if resnet.axial and resnet.preactivation:
        raise ValueError(
            "Axial units are post-activation. Received: a row with `axial=True` and "
            "`preactivation=True`. Set one of them to False."
        )
    is_centred = resnet.preactivation
    root = Convolution("conv_root", 7, channels, resnet.width, image_size, 2, is_centred)
    yield root
    cells: Size = math.ceil(root.cells_out[0] / 2), math.ceil(root.cells_out[1] / 2)
    inputs = resnet.width
    for stage, num_units in enumerate(resnet.units):
        inner = resnet.width * 2**stage
        for unit in range(num_units):
            stride = 2 if stage > 0 and unit == 0 else 1
            if unit == 0:
                yield Convolution("conv_proj", 1, inputs, 4 * inner, cells, stride)
            yield Convolution("conv1", 1, inputs, inner, cells)
            conv2 = Convolution("conv2", 3, inner, inner, cells, stride, is_centred)
            if resnet.axial:
                rows, columns = cells
                yield Attention(rows, columns, inner, AXIAL_RESNET_HEADS, relative=True)
                yield Attention(columns, rows, inner, AXIAL_RESNET_HEADS, relative=True)
            else:
                yield conv2
            cells = conv2.cells_out
            yield Convolution("conv3", 1, inner, 4 * inner, cells)
            inputs = 4 * inner


def attentions_of_block(
    variant: ViTVariant,
    image_size: Size,
    classifier: Classifier | None,
    position_embedding: PositionEmbedding,
) -> tuple[Attention, ...]:
    """Returns the attentions of a block: one, or two if it is axial. An MLP follows each."""
    (rows, columns), relative = grid_of(variant, image_size), position_embedding == "relative"
    width, num_heads = variant.width, variant.num_heads
    if not variant.axial:
        length = num_prefix_tokens(variant, classifier) + rows * columns
        missing = _NUM_WITHOUT_BIAS[variant.attention_bias]
        return (Attention(1, length, width, num_heads, relative, missing, variant.rotary),)
    return Attention(rows, columns, width, num_heads, relative), Attention(
        columns, rows, width, num_heads, relative
    )
