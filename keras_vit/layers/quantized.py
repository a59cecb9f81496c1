"""Saving and loading of quantized models: quantization modes of inner Dense layers.

`model.quantize` changes the Dense layers inside a block, but Keras's files contain only the
arguments of the block. A loaded block would have float32 kernels, which do not match the stored
int8 kernels. Therefore the modes are stored in `get_build_config`, which Keras saves, and uses to
build the layer again. The module also marks the norms before quantized layers, which must be
reproducible bit by bit.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import keras

_NAME = "quantized"  # key in the build config, beside Keras's `input_shape`
_OPTIONS = ("dtype", "quantization_config")  # arguments of Dense that describe its quantization


def add_modes(layer: keras.layers.Layer, config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns Keras's build config with the quantization of each inner Dense layer added."""
    found = _find_modes(layer)
    return {**(config or {}), _NAME: found} if found else config


def store_plan(layer: keras.layers.Layer, config: Mapping[str, Any]) -> dict[str, Any]:
    """Stores the modes of a build config for the layers that create the Dense layers.

    Returns:
        The build config without the modes.
    """
    _store_plan(layer, config.get(_NAME, {}))
    return {name: value for name, value in config.items() if name != _NAME}


def pass_plan(layer: keras.layers.Layer, name: str, inner: keras.layers.Layer) -> None:
    """Stores the modes for `inner`, which `layer` creates in its `build`."""
    _store_plan(inner, _select_plan(_plans.get(layer, {}), name))


def apply_plan(maker: keras.layers.Layer, layer: keras.layers.Dense) -> keras.layers.Dense:
    """Returns an unbuilt Dense layer of `maker`, quantized if it was quantized when saved."""
    plan = _plans.get(maker, {})
    if layer.name not in plan:
        return layer
    return keras.layers.Dense.from_config({**layer.get_config(), **plan[layer.name]})


def make_reproducible(layer: keras.layers.Layer) -> None:
    """Marks a normalization before quantized layers, whose results must be equal in all modes.

    A quantized Dense layer rounds its inputs to 8 bits. TensorFlow's results differ in the last bit
    between eager mode, graphs and `predict`. An input near a rounding boundary may then differ by 1
    %, and later blocks amplify the difference. Without this mark, `model(x)` and `predict` of a
    ViT_Ti16 in int8 differ by 1 % of the largest output, half of the error of int8 itself.
    """
    _reproducible.add(layer)


def is_reproducible(layer: keras.layers.Layer) -> bool:
    """Returns whether `make_reproducible` was called, also if before the layer was saved."""
    return layer in _reproducible


_reproducible: weakref.WeakSet = weakref.WeakSet()
# Modes of the inner layers, from `store_plan` to the build of each layer.
_plans: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _store_plan(layer: keras.layers.Layer, plan: Mapping[str, Any]) -> None:
    if not plan:
        return
    _plans[layer] = plan
    if "" in plan:
        make_reproducible(layer)
    for name, inner in vars(layer).items():
        if isinstance(inner, keras.layers.Layer):
            _store_plan(inner, _select_plan(plan, name))


def _select_plan(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the part of a plan for the layers inside the layer `name`."""
    return {
        path.removeprefix(f"{name}/"): how
        for path, how in plan.items()
        if path.startswith(f"{name}/")
    }


def _find_modes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """Returns {path: options} of the quantized Dense layers inside a layer.

    Paths consist of attribute names. The path of a reproducible layer ends with a slash; that of
    `layer` itself is "".
    """
    found: dict[str, dict[str, Any]] = {"": {}} if layer in _reproducible else {}
    for name, inner in vars(layer).items():
        if isinstance(inner, keras.layers.Dense):
            if inner.quantization_mode is not None:
                config = inner.get_config()
                found[name] = {
                    option: config[option] for option in _OPTIONS if config.get(option) is not None
                }
        elif isinstance(inner, keras.layers.Layer):
            found |= {f"{name}/{path}": how for path, how in _find_modes(inner).items()}
    return found
