"""Where attention stands in a model: its blocks and what each is given, the grid of its patches,
their size in pixels.

All of it is read from the graph of the model, which stays as it is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras

from keras_vit.graph import calls_of, has_graph, maker_of
from keras_vit.layers import (
    AttentionPooling,
    AxialTransformerBlock,
    ClassToken,
    PadToPatches,
    PatchEmbedding,
    TokenPooling,
    TransformerBlock,
)
from keras_vit.pixels import Pixels, pixels_if_known

Block = TransformerBlock | AxialTransformerBlock
Pooling = TokenPooling | AttentionPooling


@dataclass(frozen=True, kw_only=True, eq=False)
class Sites:
    """Where attention stands in a model.

    Attributes:
        before: Models from the images to what the ViT is given, one after the other; () if it is
            not within another.
        images: What the ViT is given.
        calls: (block, its tokens, the rotation of rotary positions or None), the first block first.
        pooling: (the pooling layer, the tokens that it is given); None if all tokens come out.
        has_class_token: Whether the first token is a class token.
        seen: The image that patches, or the stem, are computed from: behind what resizes it within
            the model.
        cut: (what is cut into patches, the side of a patch); None where no layer of this package
            embeds patches.
        pixels: Which pixels the model takes; None if it cannot be known.
    """

    before: tuple[keras.Model, ...] = ()
    images: keras.KerasTensor
    calls: tuple[tuple[Block, keras.KerasTensor, keras.KerasTensor | None], ...]
    pooling: tuple[Pooling, keras.KerasTensor] | None
    has_class_token: bool
    seen: keras.KerasTensor
    cut: tuple[keras.KerasTensor, int] | None
    pixels: Pixels | None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all that has attention weights: a block, or each half of an axial one."""
        names = []
        for block, *_ in self.calls:
            halves = ("/row", "/column") if isinstance(block, AxialTransformerBlock) else ("",)
            names += [block.name + half for half in halves]
        return tuple(names)

    @property
    def reads(self) -> str:
        """What the classifier reads: "token", the class token; "patches", their mean; "pooled", by
        attention pooling.

        The maximum takes each number from another patch: that counts as "patches".
        """
        if self.pooling is None:
            return "token" if self.has_class_token else "patches"
        layer, _ = self.pooling
        if isinstance(layer, AttentionPooling):
            return "pooled"
        return "token" if layer.mode in ("token", "token_avg") else "patches"

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """(H, W, C) of the images that the model takes; H and W are None where any size will do."""
        first = self.before[0].inputs[0] if self.before else self.images
        return tuple(first.shape[1:])

    def scores_shape(self, image_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """(L, A, N, N): attention weights of one image."""
        length = self._shapes([self.calls[0][1]], image_size)[0][1]
        return len(self.layers), self.calls[0][0].num_heads, length, length

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of patches."""
        cut, side = self._cut()
        (_, height, width, _) = self._shapes([cut], image_size)[0]
        return height // side, width // side

    def patch_px(self, image_size: tuple[int, int]) -> tuple[float, float]:
        """(height, width) of a patch in pixels: its side times the stride of the stem."""
        cut, side = self._cut()
        seen, cells = self._shapes([self.seen, cut], image_size)
        return side * _stride(seen[1], cells[1]), side * _stride(seen[2], cells[2])

    def _cut(self) -> tuple[keras.KerasTensor, int]:
        if self.cut is None:
            raise ValueError(
                "The model has attention, but not one `PatchEmbedding` that says which token is "
                "which place. "
                "`attention_maps` needs none."
            )
        return self.cut

    def _shapes(self, tensors: list[keras.KerasTensor], image_size: tuple[int, int]) -> list[tuple]:
        shape = (1, *image_size, self.image_shape[-1])
        for model in self.before:
            shape = model.compute_output_shape(shape)
        return keras.Model(self.images, tensors).compute_output_shape(shape)


def _stride(size: int, cells: int) -> float:
    """Pixels per cell behind a stem, which halves the map some times and rounds up: the next power
    of 2.
    """
    return 2.0 ** math.ceil(math.log2(size / cells))


def blocks_of(model: Any) -> list[Block]:
    """Returns the encoder blocks of a functional model and of the models inside it, the first
    first.

    Example:
        >>> [block.name for block in blocks_of(keras_vit.ViT_Ti16(weights=None))][:2]
        ['encoderblock_0', 'encoderblock_1']
    """
    blocks = []
    for node in calls_of(model):
        block = _block(node)
        blocks += blocks_of(node.operation) if block is None else [block]
    return blocks


def find_attention(model: Any) -> Sites:
    """Returns where attention stands in a model.

    Raises:
        ValueError: If there is none, or it cannot be told from the graph.

    Example:
        >>> sites = find_attention(keras_vit.R_ViT_Ti16(weights=None))
        >>> sites.grid((224, 224)), sites.patch_px((224, 224)), sites.scores_shape((224, 224)), sites.reads
        ((7, 7), (32.0, 32.0), (12, 3, 50, 50), 'token')
    """
    if not blocks_of(model):
        raise ValueError(_why_there_is_none(model))
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
        shapes = ", ".join(str(tensor.shape) for tensor in model.inputs)
        raise ValueError(
            f"{model.name} must take images (B, H, W, C) and nothing else. Received: inputs "
            f"{shapes}."
        )
    nodes = calls_of(model)
    calls = tuple(
        (block, *_arguments(node)) for node in nodes if (block := _block(node)) is not None
    )
    if not calls:
        return _find_inside(model, nodes)
    padding = [node.operation for node in nodes if _is(node, PadToPatches)]
    if padding:
        raise ValueError(
            f"{model.name} pads its images (`pad=True`), so some of its patches show nothing, and "
            f"attention to them "
            "has no place in the image. Build it without `pad` at a size that its patches tile, "
            "and resize the images."
        )
    cuts = [
        (node.input_tensors[0], node.operation.patch_size)
        for node in nodes
        if _is(node, PatchEmbedding)
    ]
    poolings = [(node.operation, node.input_tensors[0]) for node in nodes if _is(node, Pooling)]
    seen = _seen(cuts[0][0]) if cuts else model.inputs[0]
    return Sites(
        images=model.inputs[0],
        calls=calls,
        pooling=poolings[0] if poolings else None,
        has_class_token=any(_is(node, ClassToken) for node in nodes),
        seen=seen,
        cut=cuts[0] if len(cuts) == 1 else None,
        pixels=pixels_if_known(model),
    )


def _find_inside(model: keras.Model, nodes: list) -> Sites:
    """In a model that contains the ViT as a layer."""
    holders = [node for node in nodes if blocks_of(node.operation)]
    if len(holders) != 1:
        names = ", ".join(node.operation.name for node in holders)
        raise ValueError(
            f"{model.name} applies models with attention {len(holders)} times: {names}. Pass one "
            f"of them."
        )
    given, inner = holders[0].input_tensors[0], find_attention(holders[0].operation)
    return replace(
        inner,
        before=(keras.Model(model.inputs[0], given), *inner.before),
        pixels=pixels_if_known(model),
    )


def _why_there_is_none(model: Any) -> str:
    if not isinstance(model, keras.Model):
        return f"`model` must be a Keras model. Received: {model!r}."
    if not has_graph(model):
        inside = [layer.name for layer in model.layers if blocks_of(layer)]
        advice = (
            f"Pass the one inside it: {', '.join(inside)}."
            if inside
            else "Build it from `keras.Input`."
        )
        return f"{model.name} is no functional model, so its graph cannot be read. {advice}"
    return (
        f"{model.name} has no attention between patches: there is no `TransformerBlock` in it. "
        f"Pass a ViT or a hybrid, "
        "and ask `has_attention` first where it may be neither."
    )


def _block(node: Any) -> Block | None:
    """The encoder block that is called, also if it is wrapped for rematerialization."""
    block = getattr(node.operation, "block", node.operation)
    return block if isinstance(block, Block) else None


def _arguments(node: Any) -> tuple[keras.KerasTensor, keras.KerasTensor | None]:
    """Returns the tokens of a block and its rotation, None without rotary positions."""
    tokens, *rotation = node.input_tensors
    return tokens, rotation[0] if rotation else None


def _is(node: Any, kind: Any) -> bool:
    return isinstance(node.operation, kind)


def _upstream(tensor: keras.KerasTensor) -> Iterator[keras.KerasTensor]:
    """A tensor, what it was computed from, and so on to the images."""
    while True:
        yield tensor
        before = maker_of(tensor).input_tensors
        if not before:
            return
        tensor = before[0]


def _seen(cut: keras.KerasTensor) -> keras.KerasTensor:
    """The last image before the patches: the last tensor with as many channels as the images, or
    the images.
    """
    *tensors, images = _upstream(cut)
    return next((tensor for tensor in tensors if tensor.shape[-1] == images.shape[-1]), images)
