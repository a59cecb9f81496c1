"""Quantized models: which Dense layers inside a layer are quantized, and which norms must give the
same bits anywhere.

`model.quantize` changes the Dense layers that a block makes when it is built, and Keras's files
hold the arguments of the block alone. Without this a quantized model would be built again with
float32 kernels, into which its int8 kernels do not go. Keras saves `get_build_config` of each layer
and builds with it again: there the modes belong.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import keras

_NAME = "quantized"  # beside Keras's own `input_shape`
_OPTIONS = ("dtype", "quantization_config")  # of a Dense layer: how it is quantized


def add_modes(layer: keras.layers.Layer, config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns what a layer is built with: Keras's own `config`, and how each Dense layer inside is
    quantized.
    """
    found = _find_modes(layer)
    return {**(config or {}), _NAME: found} if found else config


def store_plan(layer: keras.layers.Layer, config: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves what `add_modes` said of the Dense layers inside with those who make them; returns
    Keras's own part.
    """
    _store_plan(layer, config.get(_NAME, {}))
    return {name: value for name, value in config.items() if name != _NAME}


def pass_plan(layer: keras.layers.Layer, name: str, inner: keras.layers.Layer) -> None:
    """Leaves with `inner`, which `layer` makes as it is built, the part that is about it."""
    _store_plan(inner, _select_plan(_plans.get(layer, {}), name))


def apply_plan(maker: keras.layers.Layer, layer: keras.layers.Dense) -> keras.layers.Dense:
    """Returns the unbuilt Dense layer that `maker` is about to build, quantized where it was when
    it was saved.
    """
    plan = _plans.get(maker, {})
    if layer.name not in plan:
        return layer
    return keras.layers.Dense.from_config({**layer.get_config(), **plan[layer.name]})


def make_reproducible(layer: keras.layers.Layer) -> None:
    """Has a normalization in front of quantized layers give the same bits however it is called.

    A quantized Dense layer rounds what it is given to 8 bits. TensorFlow computes the same formula
    to another last bit one operation at a time, in a graph, and in `predict`. A number on the edge
    is then rounded the other way, by 1 %, and the next blocks make more of it: without this,
    `model(x)` and `predict` of a ViT_Ti16 in int8 differ by 1 % of the largest output, half of what
    int8 costs.
    """
    _reproducible.add(layer)


def is_reproducible(layer: keras.layers.Layer) -> bool:
    """Returns whether `make_reproducible` was called, now or before the layer was saved."""
    return layer in _reproducible


_reproducible: weakref.WeakSet = weakref.WeakSet()
# of layers between `store_plan` and their build
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
    """The part of a plan that is about the layers inside the layer `name`."""
    return {
        path.removeprefix(f"{name}/"): how
        for path, how in plan.items()
        if path.startswith(f"{name}/")
    }


def _find_modes(layer: keras.layers.Layer) -> dict[str, dict[str, Any]]:
    """{path: options} of the quantized Dense layers inside, which have the names of their
    attributes.

    The path of a layer that is reproducible ends with a slash, that of `layer` itself is "".
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
