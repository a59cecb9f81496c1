"""The graph of a functional Keras model: its calls in order, and the last calls before its
output.
"""

from typing import Any

MEAN_OF_HEADS = "mean_of_heads"  # layer of a distilled DeiT


def calls_of(model: Any) -> list:
    """Returns the calls between the inputs and the outputs of a functional model, in topological
    order.

    It does not use `layer.input`: a layer may be in several models, and `layer.input` is its input
    in the first one.

    Args:
        model: A Keras model; one without a graph (subclassed, or never built) has no calls.

    Returns:
        Nodes of Keras, with `operation`, `input_tensors` and `output_tensors`.

    Example:
        >>> [call.operation.name for call in calls_of(keras_vit.ViT_Ti16(weights=None))][-2:]
        ['pooled', 'predictions']
    """
    if not has_graph(model):
        return []
    ordered, met = [], set()
    waiting = [(maker_of(tensor), False) for tensor in reversed(model.outputs)]
    while waiting:
        call, is_complete = waiting.pop()
        if is_complete:
            ordered.append(call)
        elif id(call) not in met:
            met.add(id(call))
            waiting += [(call, True), *((parent, False) for parent in reversed(call.parent_nodes))]
    return ordered


def maker_of(tensor: Any) -> Any:
    """Returns the call whose output a Keras tensor is."""
    operation, index, _ = tensor._keras_history
    return operation._inbound_nodes[index]


def has_graph(model: Any) -> bool:
    """Returns whether a model has a graph of calls: it is functional, or `Sequential` with a known
    input.

    Example:
        >>> has_graph(keras.Sequential([keras.layers.Dense(2)])), has_graph(keras.layers.Dense(2))
        (False, False)
    """
    return bool(
        getattr(model, "layers", None)
        and getattr(model, "inputs", None)
        and getattr(model, "outputs", None)
    )


def precisions_of(model: Any) -> set[str]:
    """Returns the dtypes in which the layers of a model compute, also those of nested models.

    Example:
        >>> precisions_of(keras.Sequential([keras_vit.ViT_Ti16(weights=None)]))
        {'float32'}
    """
    layers = model._flatten_layers(include_self=False)
    return {layer.compute_dtype for layer in layers if not getattr(layer, "layers", None)}


def last_calls(model: Any) -> list:
    """Returns the chain of calls before the only output of a model, the last call first, up to a
    call that does not have exactly one input.

    A nested model is replaced by its own calls. Of the mean of two heads, in a distilled DeiT, the
    chain follows the first one.

    Example:
        >>> inner = keras_vit.ViT_Ti16(weights=None)
        >>> outer = keras.Model(inner.input, keras.layers.Softmax(name="scores")(inner(inner.input)))
        >>> [call.operation.name for call in last_calls(outer)][:3]
        ['scores', 'predictions', 'pooled']
    """
    calls, tensor = [], model.outputs[0]
    while True:
        call = maker_of(tensor)
        if has_graph(call.operation):
            calls += [inner for inner in last_calls(call.operation) if inner.input_tensors]
        else:
            calls.append(call)
        if len(call.input_tensors) != 1 and call.operation.name != MEAN_OF_HEADS:
            return calls
        tensor = call.input_tensors[0]
