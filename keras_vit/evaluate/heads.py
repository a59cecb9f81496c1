"""How a classifier ends, read from its graph: its head, its last activation, whether it tells
classes apart.
"""

import keras

from keras_vit.graph import MEAN_OF_HEADS, has_graph, last_calls, maker_of

_Operation = keras.Operation
# Layers that change no number of a classifier in inference; operations are known by the names of
# their classes.
_PASSING = (keras.layers.Dropout, keras.layers.Identity, keras.layers.Reshape, keras.layers.Flatten)
_PASSING_OPERATIONS = ("Cast", "Reshape", "Squeeze", "Identity", "GetItem")
_ACTIVATIONS = (
    keras.layers.Activation,
    keras.layers.Softmax,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
)
_ACTIVATION_OPERATIONS = ("Softmax", "Sigmoid", "LogSoftmax", "Tanh", "Relu")
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
    """Returns the name of the last activation: "linear" where there is none, or where it cannot be
    read.

    Example:
        >>> last_activation(keras_vit.ViT_Ti16(weights=None)), last_activation(keras.Sequential([]))
        ('softmax', 'linear')
    """
    for step in _steps(model):
        if isinstance(step, _PASSING) or type(step).__name__ in _PASSING_OPERATIONS:
            continue
        if step.name == MEAN_OF_HEADS:
            return "linear"
        if hasattr(step, "activation"):
            return getattr(step.activation, "__name__", type(step.activation).__name__)
        is_one = isinstance(step, _ACTIVATIONS) or type(step).__name__ in _ACTIVATION_OPERATIONS
        return type(step).__name__.lower() if is_one else "linear"
    return "linear"


def head_of(model: keras.Model) -> keras.layers.Dense | None:
    """Returns the layer that gives the classes, if it is a `Dense` layer; the model may lie within
    another.

    Example:
        >>> head_of(keras_vit.ViT_Ti16(weights=None)).name, head_of(keras_vit.ViT_Ti16(weights=None, include_top=False))
        ('predictions', None)
    """
    step = _head(model)
    return step if isinstance(step, keras.layers.Dense) and step.name != "pre_logits" else None


def gives_classes(model: keras.Model) -> bool:
    """Returns whether a model gives a number for each of two classes or more, rather than features.

    Features are what has another shape than (B, Y), or comes out of a pooling, a normalization or
    the tanh layer of pre-training. A model that cannot be read is taken for a classifier.

    Example:
        >>> gives_classes(keras_vit.ViT_Ti16(weights=None))
        True
        >>> gives_classes(keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token"))
        False
    """
    shape = model.outputs[0].shape
    if len(shape) != 2 or shape[1] is None or shape[1] < 2:
        return False
    step = _head(model)
    is_ours = type(step).__module__.partition(".")[0] == _OWN_PACKAGE
    return (
        not isinstance(step, _OF_FEATURES)
        and not is_ours
        and getattr(step, "name", "") != "pre_logits"
    )


def why_no_classes(model: keras.Model) -> str:
    """Returns what is wrong with the output of a model that gives no classes, and what to do.

    Example:
        >>> why_no_classes(keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token"))
        'vit_ti16 gives features of shape (None, 192): it has no head. Expected (None, classes), two
        classes or more.'
    """
    shape = tuple(model.outputs[0].shape)
    if shape[1:] == (1,):
        return (
            f"{model.name} gives one number for each image. Expected one for each class, of two or "
            f"more. Save a model "
            "that gives both: of a sigmoid `p`, `keras.layers.Concatenate()([1 - p, p])`."
        )
    return (
        f"{model.name} gives features of shape {shape}: it has no head. Expected (None, classes), "
        f"two classes or more."
    )


def strip_head(model: keras.Model) -> keras.KerasTensor:
    """Returns what the head reads, or the output of a model without a head.

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


def _steps(model: keras.Model) -> list[_Operation]:
    return [call.operation for call in last_calls(model)] if has_graph(model) else []


def _head(model: keras.Model) -> _Operation | None:
    """The last step that is no activation and no change of shape.

    Of the mean of two heads, as in a distilled DeiT, it is the first head.
    """
    for step in _steps(model):
        is_shape = isinstance(step, _PASSING) or type(step).__name__ in _PASSING_OPERATIONS
        is_activation = (
            isinstance(step, _ACTIVATIONS) or type(step).__name__ in _ACTIVATION_OPERATIONS
        )
        if not is_shape and not is_activation and step.name != MEAN_OF_HEADS:
            return step
    return None
