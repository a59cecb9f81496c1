"""The attention layers of a model, their inputs, and the grid and size of its patches.

They are found in the graph of the model, which is not modified.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

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

CLASS_TOKEN, DISTILLATION_TOKEN, PATCHES = "class token", "distillation token", "patches"
_READ_BY_MODE = {
    "token": (CLASS_TOKEN,),
    "distillation": (DISTILLATION_TOKEN,),
    "avg": (PATCHES,),
    "max": (PATCHES,),
    "token_avg": (CLASS_TOKEN, PATCHES),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sites:
    """The attention layers of a model and their surroundings.

    Attributes:
        before: Models from the images to the input of the ViT, in order; () if the ViT is not
            nested in another model.
        images: Input of the ViT.
        calls: (block, input tokens, the rotation of rotary positions or None), in order.
        poolings: (pooling layer, input tokens), in order: two in a distilled DeiT, none if no layer
            of this package pools the tokens.
        has_class_token: Whether the first token is a class token.
        returns_tokens: Whether the model returns all tokens, (B, N, D), and has no classifier.
        seen: The image from which the patches or the stem are computed, after any resizing in the
            model.
        cut: (tensor that is cut into patches, side of a patch); None if no layer of this package
            embeds patches.
        pixels: Range of the pixels that the model takes; None if unknown.
    """

    before: tuple[keras.Model, ...] = ()
    images: keras.KerasTensor
    calls: tuple[tuple[Block, keras.KerasTensor, keras.KerasTensor | None], ...]
    poolings: tuple[tuple[Pooling, keras.KerasTensor], ...]
    has_class_token: bool
    returns_tokens: bool
    seen: keras.KerasTensor
    cut: tuple[keras.KerasTensor, int] | None
    pixels: Pixels | None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers with attention weights: blocks, or the halves of axial blocks."""
        names = []
        for block, *_ in self.calls:
            halves = ("/row", "/column") if isinstance(block, AxialTransformerBlock) else ("",)
            names += [block.name + half for half in halves]
        return tuple(names)

    @property
    def reads(self) -> tuple[str, ...]:
        """What the classifier reads, in equal shares: "class token", "distillation token" or
        "patches" (their mean, maximum or attention pooling), or two of them.

        Without a pooling of this package, it is the class token, or the patches if there is none.
        """
        parts = [
            part
            for layer, _ in self.poolings
            for part in (
                _READ_BY_MODE[layer.mode] if isinstance(layer, TokenPooling) else (PATCHES,)
            )
        ]
        return tuple(dict.fromkeys(parts)) or (CLASS_TOKEN if self.has_class_token else PATCHES,)

    @property
    def attention_pooling(self) -> tuple[AttentionPooling, keras.KerasTensor] | None:
        """(layer, input tokens) of the attention pooling, whose shares of the patches depend on the
        image; None if the patches have equal shares.
        """
        found = [
            (layer, given) for layer, given in self.poolings if isinstance(layer, AttentionPooling)
        ]
        return found[0] if found else None

    @property
    def is_reading_assumed(self) -> bool:
        """Whether the model has a classifier, but no pooling of this package, so that `reads` is an
        assumption.
        """
        return not (self.poolings or self.returns_tokens)

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """(H, W, C) of the images that the model takes; H and W are None if it takes any size."""
        first = self.before[0].inputs[0] if self.before else self.images
        return tuple(first.shape[1:])

    def scores_shape(self, image_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Returns the shape (L, A, N, N) of the attention weights of one image."""
        length = self._compute_shapes([self.calls[0][1]], image_size)[0][1]
        return len(self.layers), self.calls[0][0].num_heads, length, length

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the (rows, columns) of patches."""
        cut, side = self._require_patches()
        (_, height, width, _) = self._compute_shapes([cut], image_size)[0]
        return height // side, width // side

    def patch_px(self, image_size: tuple[int, int]) -> tuple[float, float]:
        """Returns the (height, width) of a patch in pixels: its side times the stride of the stem."""
        cut, side = self._require_patches()
        seen, cells = self._compute_shapes([self.seen, cut], image_size)
        return side * _infer_stride(seen[1], cells[1]), side * _infer_stride(seen[2], cells[2])

    def shares(self, image_size: tuple[int, int]) -> np.ndarray:
        """Returns the share of each token in the input of the classifier, (N,) float32.

        The parts of `reads` have equal shares, and so has each patch. The sum is 1. Attention
        pooling distributes the share of the patches by its own weights instead.
        """
        row = np.zeros(self.scores_shape(image_size)[-1], np.float32)
        num_prefix_tokens = len(row) - math.prod(self.grid(image_size))
        places = {CLASS_TOKEN: slice(0, 1), DISTILLATION_TOKEN: slice(1, 2)}
        for part in self.reads:
            tokens = row[places.get(part, slice(num_prefix_tokens, None))]
            tokens += 1 / (len(self.reads) * len(tokens))
        return row

    def _require_patches(self) -> tuple[keras.KerasTensor, int]:
        if self.cut is None:
            raise ValueError(
                "The model must have exactly one `PatchEmbedding`, which defines the position of "
                "each token. To read its attention without positions, use `attention_maps`."
            )
        return self.cut

    def _compute_shapes(
        self, tensors: list[keras.KerasTensor], image_size: tuple[int, int]
    ) -> list[tuple]:
        shape = (1, *image_size, self.image_shape[-1])
        for model in self.before:
            shape = model.compute_output_shape(shape)
        return keras.Model(self.images, tensors).compute_output_shape(shape)


def _infer_stride(size: int, cells: int) -> float:
    """Returns the pixels per cell after a stem: the quotient, rounded up to a power of 2."""
    # A stem halves the map several times, and rounds odd sizes up.
    return 2.0 ** math.ceil(math.log2(size / cells))


def blocks_of(model: Any) -> list[Block]:
    """Returns the encoder blocks of a functional model and of the models inside it, in order.

    Example:
        >>> [block.name for block in blocks_of(keras_vit.ViT_Ti16(weights=None))][:2]
        ['encoderblock_0', 'encoderblock_1']
    """
    blocks = []
    for node in calls_of(model):
        block = _get_block(node)
        blocks += blocks_of(node.operation) if block is None else [block]
    return blocks


def find_attention(model: Any) -> Sites:
    """Finds the attention layers of a model.

    Raises:
        ValueError: If there are none, or the graph cannot be analyzed.

    Example:
        >>> sites = find_attention(keras_vit.R_ViT_Ti16(weights=None))
        >>> sites.grid((224, 224)), sites.patch_px((224, 224)), sites.scores_shape((224, 224)), sites.reads
        ((7, 7), (32.0, 32.0), (12, 3, 50, 50), ('class token',))
    """
    if not blocks_of(model):
        raise ValueError(_explain_absence(model))
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
        shapes = ", ".join(str(tensor.shape) for tensor in model.inputs)
        raise ValueError(
            f"{model.name} must have one input, images (B, H, W, C). Received: inputs {shapes}."
        )
    nodes = calls_of(model)
    calls = tuple(
        (block, *_get_arguments(node)) for node in nodes if (block := _get_block(node)) is not None
    )
    if not calls:
        return _find_inside(model, nodes)
    padding = [node.operation for node in nodes if _is_call_of(node, PadToPatches)]
    if padding:
        raise ValueError(
            f"{model.name} pads its images (`pad=True`), so some of its patches lie outside the "
            "image. Build it without `pad`, for a size that is a multiple of the patch size, and "
            "resize the images."
        )
    cuts = [
        (node.input_tensors[0], node.operation.patch_size)
        for node in nodes
        if _is_call_of(node, PatchEmbedding)
    ]
    seen = _find_seen_image(cuts[0][0]) if cuts else model.inputs[0]
    return Sites(
        images=model.inputs[0],
        calls=calls,
        poolings=_find_poolings(nodes, Pooling),
        has_class_token=any(_is_call_of(node, ClassToken) for node in nodes),
        returns_tokens=_returns_tokens(model),
        seen=seen,
        cut=cuts[0] if len(cuts) == 1 else None,
        pixels=pixels_if_known(model),
    )


def _find_inside(model: keras.Model, nodes: list) -> Sites:
    """Finds the attention layers in a model that contains the ViT as a layer."""
    holders = [node for node in nodes if blocks_of(node.operation)]
    if len(holders) != 1:
        names = ", ".join(node.operation.name for node in holders)
        raise ValueError(
            f"{model.name} contains {len(holders)} calls of models with attention: {names}. Pass "
            f"one of these models."
        )
    given, inner = holders[0].input_tensors[0], find_attention(holders[0].operation)
    return replace(
        inner,
        before=(keras.Model(model.inputs[0], given), *inner.before),
        # Attention pooling would need tokens of the outer model.
        poolings=inner.poolings or _find_poolings(nodes, TokenPooling),
        returns_tokens=_returns_tokens(model),
        pixels=pixels_if_known(model),
    )


def _find_poolings(nodes: list, kind: Any) -> tuple[tuple[Any, keras.KerasTensor], ...]:
    return tuple(
        (node.operation, node.input_tensors[0]) for node in nodes if _is_call_of(node, kind)
    )


def _returns_tokens(model: keras.Model) -> bool:
    return len(model.outputs[0].shape) == 3


def _explain_absence(model: Any) -> str:
    if not isinstance(model, keras.Model):
        return f"`model` must be a Keras model. Received: {model!r}."
    if not has_graph(model):
        inside = [layer.name for layer in model.layers if blocks_of(layer)]
        advice = (
            f"Pass the model inside it: {', '.join(inside)}."
            if inside
            else "Build it from `keras.Input`."
        )
        return f"{model.name} is not a functional model, so its graph cannot be read. {advice}"
    return (
        f"{model.name} contains no `TransformerBlock`, so it has no attention between patches. "
        "Pass a ViT or a hybrid. To test a model, call `has_attention`."
    )


def _get_block(node: Any) -> Block | None:
    """Returns the called encoder block, unwrapped from rematerialization; None for other calls."""
    block = getattr(node.operation, "block", node.operation)
    return block if isinstance(block, Block) else None


def _get_arguments(node: Any) -> tuple[keras.KerasTensor, keras.KerasTensor | None]:
    """Returns the tokens of a block and its rotation, None without rotary positions."""
    tokens, *rotation = node.input_tensors
    return tokens, rotation[0] if rotation else None


def _is_call_of(node: Any, kind: Any) -> bool:
    return isinstance(node.operation, kind)


def _walk_upstream(tensor: keras.KerasTensor) -> Iterator[keras.KerasTensor]:
    """Yields a tensor, the tensor it was computed from, and so on to the images."""
    while True:
        yield tensor
        before = maker_of(tensor).input_tensors
        if not before:
            return
        tensor = before[0]


def _find_seen_image(cut: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the last tensor before the patches with as many channels as the images."""
    *tensors, images = _walk_upstream(cut)
    return next((tensor for tensor in tensors if tensor.shape[-1] == images.shape[-1]), images)
