"""A new head, initialized to zeros, on the trunk of a checkpoint or a model, at any resolution.

Source: arXiv:2010.11929, section 3.2 and B.1.1.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.applications import application
from keras_vit.evaluate.heads import strip_head
from keras_vit.graph import calls_of
from keras_vit.layers.axial import AxialTransformerBlock, AxialUnit
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.models.ends import classify
from keras_vit.options import POOLING_OF, resolve_classifier
from keras_vit.pixels import Entry, find_entry
from keras_vit.train.front import apply_kept, list_kept
from keras_vit.variants import Classifier, ResNetVariant, ViTVariant
from keras_vit.weights import source
from keras_vit.weights.restore import PositionResize, restore, state

_NAME = r'"name": "[^"]*"'  # in JSON


def build_on_trunk(
    row: ViTVariant | ResNetVariant,
    weights: str | os.PathLike | None,
    image_size: int,
    num_classes: int,
    *,
    bias: float = 0.0,
    **options: Any,
) -> keras.Model:
    """Builds a model that returns logits: a checkpoint without its head, and one layer of zeros.

    Args:
        row: A row of the table of models, or a similar one.
        weights: Tag, file or URL, or None for random weights.
        image_size: Side of the square images, in pixels.
        num_classes: Number of classes of the new head.
        bias: Initial bias of the new head.
        **options: Further arguments of the model. Default of `classifier`: that of the weights.
    """
    if isinstance(row, ResNetVariant):
        classifier = "gap"
    else:
        options["classifier"] = options.get("classifier") or _find_classifier(row, weights)
        classifier = options["classifier"]
    if classifier not in POOLING_OF:
        raise ValueError(
            f"`classifier` must be one of {', '.join(POOLING_OF)}. Received: {classifier!r}."
        )
    pooling = POOLING_OF[classifier]
    shape = (image_size, image_size, 3)
    trunk = application(row)(
        weights=weights, include_top=False, pooling=pooling, input_shape=shape, **options
    )
    return ClassTokenModel(
        trunk.input, classify(trunk.output, num_classes, bias=bias), name=trunk.name
    )


def _find_classifier(row: ViTVariant, weights: str | os.PathLike | None) -> Classifier:
    """Returns the classifier of a file of weights, or that of the row."""
    found = None if weights is None else source.find(row.name, weights, variant=row)
    if found is None or found.is_tag:
        return resolve_classifier(row, None)
    return source.find_classifier(row, source.load(found)) or resolve_classifier(row, None)


def copy_with_new_head(
    model: keras.Model, image_size: int, num_classes: int, *, bias: float = 0.0
) -> keras.Model:
    """Copies a model of this package with a new image size and a new head, which returns logits.

    The trunk of the copy has the weights of the model. The new head is initialized to zeros. The
    given model is not modified. The copy takes pixels in [-1, 1]. It keeps layers in front of the
    trunk that do more than scale pixels, such as `Resizing`: the trunk then has the size that they
    return for images of `image_size`.

    Args:
        model: A model of this package with a head, which is dropped, or one that returns one vector
            per image. It may be nested in a model that scales pixels to [-1, 1] before it and adds
            another head after it.
        image_size: Side of the square images, in pixels.
        num_classes: Number of classes of the new head.
        bias: Initial bias of the new head.

    Raises:
        ValueError: If it is not such a model.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> copy_with_new_head(model, 48, num_classes=3).output_shape
        (None, 3)
    """
    trunk, entry = _extract_trunk(model)
    images = keras.Input((image_size, image_size, 3))
    seen = apply_kept(entry, images)
    copies: dict[keras.layers.Layer, keras.KerasTensor] = {}

    def call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> keras.KerasTensor:
        copies[layer] = layer(*arguments, **options)
        return copies[layer]

    keras.models.clone_model(
        trunk,
        input_tensors=seen,
        clone_function=_make_clone_function(trunk, seen.shape[1:3]),
        call_function=call,
    )
    features = [*copies.values()][-1]
    tables = [layer for layer in trunk.layers if isinstance(layer, AddPositionEmbs)]
    positions = (
        PositionResize(checkpoint_grid=tables[0].grid, interpolation=tables[0].interpolation)
        if tables
        else None
    )
    restore(copies, state(trunk.layers), positions=positions, origin=f"the model {model.name}")
    return ClassTokenModel(images, classify(features, num_classes, bias=bias), name=model.name)


def _extract_trunk(model: keras.Model) -> tuple[keras.Model, Entry]:
    """Returns the part of a model from pixels in [-1, 1] to the input of the head, and its input.

    Raises:
        ValueError: If the model cannot be fine-tuned here.
    """
    if not _has_own_layers(model):
        raise ValueError(
            f"{model.name} is not a model of this package, and this function fine-tunes no other "
            "models. Train it with Keras's `fit`."
        )
    entry = find_entry(model)
    if abs(entry.low + 1) > 0.02 or abs(entry.high - 1) > 0.02:
        raise ValueError(
            f"The first layer of {model.name} was trained on pixels from {entry.low:.3g} to "
            f"{entry.high:.3g}. Expected: pixels from -1 to 1. Fine-tune it with Keras's `fit`, or "
            "build it on layers that scale pixels to [-1, 1], such as `keras.layers.Rescaling(1 / "
            "127.5, offset=-1)`."
        )
    inner = entry.model
    names = [layer.name for layer in inner.layers]
    head = next((name for name in ("pre_logits", "predictions") if name in names), None)
    features = strip_head(inner) if head is None else inner.get_layer(head).input
    if isinstance(features, list) or len(features.shape) != 2:
        raise ValueError(
            "The model must return one vector per image. Build it with a head, or with `pooling`. "
            f"Received: a model whose last layers are {', '.join(names[-3:])}."
        )
    return keras.Model(entry.images, features, name=model.name), entry


def _has_own_layers(model: keras.Model) -> bool:
    steps = [call.operation for call in calls_of(model)]
    return any(
        _has_own_layers(step) or type(step).__module__.startswith("keras_vit.") for step in steps
    )


def _make_clone_function(
    trunk: keras.Model, image_size: tuple[int, int]
) -> Callable[[keras.layers.Layer], keras.layers.Layer]:
    """Returns a function that copies a layer for another image size.

    The position tables and the number of tokens depend on the image size.
    """
    names = [layer.name for layer in trunk.layers]
    grid = (0, 0)
    if "embedding" in names:
        embedded = next(call for call in calls_of(trunk) if call.operation.name == "embedding")
        patches = keras.Model(trunk.input, embedded.output_tensors[0])
        images = keras.Input((*image_size, 3))
        grid = keras.models.clone_model(patches, input_tensors=images).output_shape[1:3]

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        # With an open input size, the graph resamples the table, so the grid may stay.
        if isinstance(layer, AddPositionEmbs) and None not in trunk.input_shape[1:3]:
            config["grid"] = grid
        if isinstance(layer, AxialTransformerBlock):
            config["grid"] = grid
        if isinstance(layer, keras.layers.Reshape) and layer.name == "flatten_patches":
            config["target_shape"] = (grid[0] * grid[1], layer.target_shape[-1])
        is_relative = config.get("relative_positions") or isinstance(layer, AxialUnit)
        if is_relative and trunk.input_shape[1:3] != image_size:
            raise ValueError(
                "A model with relative positions cannot change its image size. "
                f"Received: images of {image_size}, a model of {trunk.input_shape[1:3]}."
            )
        return type(layer).from_config(config)

    return clone


def _describe_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else type(value).__name__


def start_sha256(model: keras.Model, copy: keras.Model) -> str:
    """Returns the beginning of a hash of what a copy with a new head takes from a model.

    That is the weights of the trunk, and the configs of the layers that are kept in front of it.
    """
    digest = hashlib.sha256()
    for name, array in sorted(state(copy.layers[:-1]).items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    for step in list_kept(find_entry(model)):
        config = json.dumps(step.get_config(), sort_keys=True, default=_describe_value)
        # Names are counted up in a process; a model that is built again has others.
        digest.update(f"{type(step).__name__} {re.sub(_NAME, '', config)}".encode())
    return digest.hexdigest()[:16]
