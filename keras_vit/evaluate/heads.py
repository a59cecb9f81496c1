"""The head and last activation of a classifier, found in its graph."""

import keras

from keras_vit.graph import MEAN_OF_HEADS, has_graph, last_calls, maker_of

_Operation = keras.Operation
# Layers that do not change the outputs of a classifier in inference. Operations are identified by
# the names of their classes.
_PASSING = (keras.layers.Dropout, keras.layers.Identity, keras.layers.Reshape, keras.layers.Flatten)
_PASSING_OPERATIONS = ("Cast", "Reshape", "Squeeze", "Identity", "GetItem")
_ACTIVATIONS = (
    keras.layers.Activation,
    keras.layers.Softmax,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
)
_ACTIVATION_OPERATIONS = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "LogSoftmax": "log_softmax",
    "Tanh": "tanh",
    "Relu": "relu",
}
LOGITS = ("linear", "log_softmax")
"""Last activations of what a softmax makes probabilities of; it does not change a log_softmax."""

_OF_FEATURES = (
    *(
        keras.layers.GlobalAveragePooling2D,
        keras.layers.GlobalMaxPooling2D,
        keras.layers.GlobalAveragePooling1D,
    ),
    *(
        keras.layers.GlobalMaxPooling1D,
        keras.layers.LayerNormalization,
        keras.layers.BatchNormalization,
    ),
    *(keras.layers.UnitNormalization, keras.layers.InputLayer),
)
_OWN_PACKAGE = __name__.partition(".")[0]


def last_activation(model: keras.Model) -> str:
    """Returns the name of the last activation; "linear" if there is none or it is unknown.

    Example:
        >>> last_activation(keras_vit.ViT_Ti16(weights=None)), last_activation(keras.Sequential([]))
        ('softmax', 'linear')
    """
    for step in _list_steps(model):
        if isinstance(step, _PASSING) or type(step).__name__ in _PASSING_OPERATIONS:
            continue
        if step.name == MEAN_OF_HEADS:
            return "linear"
        if hasattr(step, "activation"):
            return getattr(step.activation, "__name__", type(step.activation).__name__)
        kind = type(step).__name__
        is_layer = isinstance(step, _ACTIVATIONS)
        return kind.lower() if is_layer else _ACTIVATION_OPERATIONS.get(kind, "linear")
    return "linear"


def head_of(model: keras.Model) -> keras.layers.Dense | None:
    """Returns the classification head if it is a `Dense` layer, also from a nested model; or None.

    Example:
        >>> head_of(keras_vit.ViT_Ti16(weights=None)).name, head_of(keras_vit.ViT_Ti16(weights=None, include_top=False))
        ('predictions', None)
    """
    step = _find_head(model)
    return step if isinstance(step, keras.layers.Dense) and step.name != "pre_logits" else None


def gives_classes(model: keras.Model, num_names: int = 0) -> bool:
    """Returns whether a model outputs one number for each of at least two classes.

    Outputs of another shape than (B, Y), and outputs of a pooling, a normalization or the tanh
    layer of pre-training, are features, unless a softmax follows or there are as many names. A
    model whose graph cannot be read counts as a classifier.

    Args:
        model: Any model.
        num_names: Number of known class names.

    Example:
        >>> gives_classes(keras_vit.ViT_Ti16(weights=None))
        True
        >>> gives_classes(keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token"))
        False
    """
    shape = model.outputs[0].shape
    if len(shape) != 2 or shape[1] is None or shape[1] < 2:
        return False
    if shape[1] == num_names or last_activation(model) == "softmax":
        return True
    step = _find_head(model)
    is_ours = type(step).__module__.partition(".")[0] == _OWN_PACKAGE
    return (
        not isinstance(step, _OF_FEATURES)
        and not is_ours
        and getattr(step, "name", "") != "pre_logits"
    )


def why_no_classes(model: keras.Model) -> str:
    """Returns the message of the error for a model that is not a classifier.

    Example:
        >>> why_no_classes(keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token"))
        'vit_ti16 has no head: its output has the shape (None, 192). Expected (None, classes), with
        at least two classes.'
    """
    shape = tuple(model.outputs[0].shape)
    if shape[1:] == (1,):
        return (
            f"{model.name} outputs one number for each image. Expected one for each of at least "
            "two classes. For a sigmoid `p`, save a model with the output "
            "`keras.layers.Concatenate()([1 - p, p])`."
        )
    if len(shape) == 4 and shape[1:3] == (1, 1):
        return (
            f"The output of {model.name} has the shape {shape}. Expected (None, classes). Save the "
            "model with `keras.layers.Flatten()` at its end."
        )
    return (
        f"{model.name} has no head: its output has the shape {shape}. Expected (None, classes), "
        f"with at least two classes."
    )


def strip_head(model: keras.Model) -> keras.KerasTensor:
    """Returns the input of the head, or the output of a model without a head.

    Example:
        >>> strip_head(keras_vit.ViT_Ti16(weights=None)).shape
        (None, 192)
    """
    if head_of(model) is None:
        return model.outputs[0]
    call = maker_of(model.outputs[0])
    while not (has_graph(call.operation) or call.operation is head_of(model)):
        call = maker_of(call.input_tensors[0])
    if not has_graph(call.operation):
        return call.input_tensors[0]
    inner = call.operation
    return keras.Model(inner.inputs[0], strip_head(inner), name=inner.name)(call.input_tensors[0])


def _list_steps(model: keras.Model) -> list[_Operation]:
    return [call.operation for call in last_calls(model)] if has_graph(model) else []


def _find_head(model: keras.Model) -> _Operation | None:
    """Returns the last step that is neither an activation nor a change of shape.

    For the mean of two heads, as in a distilled DeiT, this is the first head.
    """
    for step in _list_steps(model):
        is_shape = isinstance(step, _PASSING) or type(step).__name__ in _PASSING_OPERATIONS
        is_activation = (
            isinstance(step, _ACTIVATIONS) or type(step).__name__ in _ACTIVATION_OPERATIONS
        )
        if not is_shape and not is_activation and step.name != MEAN_OF_HEADS:
            return step
    return None
