"""A hash of what a model computes besides its weights: its graph, and the options of its layers."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.graph import calls_of, has_graph

# Names are counted up in a process, and a frozen model computes the same. The code of a Lambda layer
# is stored in bytes that differ from load to load.
_IGNORED = ("name", "trainable", "seed", "module", "registered_name", "code")
# Names of layers in the config of a model inside a layer.
_NAMES = ("keras_history", "input_layers", "output_layers")
_OF_TRAINING = ("_initializer", "_regularizer", "_constraint")


def config_sha256(model: keras.Model) -> str:
    """Returns a hash of the graph of a model: layers and operations, their options and connections.

    Models that differ only in names, weights, initializers, regularizers, or in what is trainable
    have the same hash, also in another process. The code of `Lambda` layers, and the options of
    layers without `get_config`, are not part of it.

    Args:
        model: A functional model.

    Example:
        >>> def build(**options):
        ...     return keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), **options)
        >>> config_sha256(build()) == config_sha256(build(name="another"))
        True
        >>> config_sha256(build()) == config_sha256(build(classifier_activation=None))
        False
    """
    text = json.dumps(_describe_graph(model), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_graph(model: keras.Model) -> list:
    steps: dict[int, int] = {}  # a layer that is called twice is one layer
    tensors: dict[int, int] = {}
    described = []
    for call in calls_of(model):
        step = call.operation
        described.append(
            [
                type(step).__name__,
                steps.setdefault(id(step), len(steps)),
                _describe_graph(step) if has_graph(step) else _describe(_config_of(step), tensors),
                _describe(call.arguments.args, tensors),
                _describe(call.arguments.kwargs, tensors),
            ]
        )
        for tensor in call.output_tensors:
            tensors[id(tensor)] = len(tensors)
    return [described, [tensors[id(tensor)] for tensor in model.outputs]]


def _config_of(step: keras.Operation) -> Mapping[str, Any]:
    try:
        return step.get_config()
    except Exception:  # a layer of a user may raise anything
        return {}


def _describe(value: Any, tensors: Mapping[int, int]) -> Any:
    """Returns a value for JSON: options without `_IGNORED` and None, tensors of the graph by number."""
    if isinstance(value, Mapping):
        return {
            str(key): _describe(inner, tensors)
            for key, inner in value.items()
            if inner is not None
            and key not in (*_IGNORED, *_NAMES)
            and not str(key).endswith(_OF_TRAINING)
        }
    if isinstance(value, list | tuple):
        return [_describe(inner, tensors) for inner in value]
    if isinstance(value, keras.KerasTensor):
        return {"tensor": tensors.get(id(value))}
    if isinstance(value, slice):
        return {"slice": [_describe(end, tensors) for end in (value.start, value.stop, value.step)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic) or keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value).tolist()
    return type(value).__name__
