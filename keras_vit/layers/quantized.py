"""Quantized Dense layers inside layers: which ones there are, kept in Keras's files beside the shapes of the build.

`model.quantize` changes the Dense layers that a block makes when it is built, and Keras's files hold the arguments of
the block alone. Without this a quantized model would be built again with float32 kernels, into which its int8 kernels
do not go. Keras saves `get_build_config` of each layer and builds with it again: there the modes belong.
"""

from collections.abc import Mapping
from typing import Any

import keras

_NAME = "quantized"  # beside Keras's own `input_shape`
_OPTIONS = ("dtype", "quantization_config")  # of a Dense layer: how it is quantized


def build_config(layer: keras.layers.Layer, config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns what a layer is built with: Keras's own `config`, and how each Dense layer inside is quantized."""
    found = _modes(layer)
    return {**(config or {}), _NAME: found} if found else config


def planned(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns Keras's own part of what `build_config` gave, and {path of a Dense layer: how it is quantized}.

    Example:
        >>> planned({"input_shape": [2, 3], "quantized": {"query": {"dtype": "int8_from_float32"}}})
        ({'input_shape': [2, 3]}, {'query': {'dtype': 'int8_from_float32'}})
    """
    return {name: value for name, value in config.items() if name != _NAME}, dict(config.get(_NAME, {}))


def below(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the part of a plan that is about the layers inside the layer `name`.

    Example:
        >>> below({"attention/query": 1, "mlp/dense_0": 2}, "attention")
        {'query': 1}
    """
    return {path.removeprefix(f"{name}/"): how for path, how in plan.items() if path.startswith(f"{name}/")}


def dense(layer: keras.layers.Dense, plan: Mapping[str, Any]) -> keras.layers.Dense:
    """Returns an unbuilt Dense layer, quantized where the plan says so of its name."""
    if layer.name not in plan:
        return layer
    return keras.layers.Dense.from_config({**layer.get_config(), **plan[layer.name]})


def _modes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """{path: options} of the quantized Dense layers inside, which have the names of their attributes."""
    found = {}
    for name, inner in vars(layer).items():
        if isinstance(inner, keras.layers.Dense):
            if inner.quantization_mode is not None:
                config = inner.get_config()
                found[name] = {option: config[option] for option in _OPTIONS if config.get(option) is not None}
        elif isinstance(inner, keras.layers.Layer):
            found |= {f"{name}/{path}": how for path, how in _modes(inner).items()}
    return found
