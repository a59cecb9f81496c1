"""The head and last activation of a classifier, found in its graph, and the scores of its classes."""

import weakref
from typing import Literal

import keras
import numpy as np

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
# A softmax makes probabilities of these; it does not change a log_softmax.
_LOGITS = ("linear", "log_softmax")
# Heads with this number of classes are trained with one sigmoid per class, all others with softmax.
_IMAGENET_21K = 21843
_ADDS_UP = 1e-2  # largest difference from 1 of a sum of probabilities, in 16 bits

Outputs = Literal["logits", "sigmoid logits", "softmax", "sigmoid"]
"""What a classifier outputs: probabilities that add up to 1 ("softmax"), an independent probability
for each class ("sigmoid"), or the logits of either."""

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
    return _find_activation(model) or "linear"


def outputs_of(model: keras.Model) -> Outputs:
    """Returns what a classifier outputs, the same for all commands.

    If the graph does not show it, as for a subclassed model or the mean of several models, the
    model is called on random images.

    Raises:
        ValueError: If it ends in another activation than a softmax or a sigmoid.

    Example:
        >>> outputs_of(keras_vit.ViT_Ti16(weights=None, classifier_activation="sigmoid"))
        'sigmoid'
    """
    activation = _find_activation(model) or _guess_activation(model)
    if activation in ("softmax", "sigmoid"):
        return activation
    if activation not in _LOGITS:
        raise ValueError(
            f"The model must output logits, a softmax or sigmoids. {model.name} ends in "
            f"{activation}. Build it with `classifier_activation=None`, or a head of your own with "
            f"`activation=None`."
        )
    return "sigmoid logits" if model.outputs[0].shape[-1] == _IMAGENET_21K else "logits"


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
            "`keras.layers.Concatenate()([1 - p, p])`; for a logit `x`, with `[0 * x, x]`."
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


def _find_activation(model: keras.Model) -> str | None:
    """Returns the name of the last activation, "linear" for a layer without one, None if unknown."""
    for step in _list_steps(model):
        if isinstance(step, _PASSING) or type(step).__name__ in _PASSING_OPERATIONS:
            continue
        if step.name == MEAN_OF_HEADS:
            return "linear"
        if hasattr(step, "activation"):
            return getattr(step.activation, "__name__", type(step.activation).__name__)
        kind = type(step).__name__
        return kind.lower() if isinstance(step, _ACTIVATIONS) else _ACTIVATION_OPERATIONS.get(kind)
    return None


_GUESSED: weakref.WeakKeyDictionary[keras.Model, str] = weakref.WeakKeyDictionary()


def _guess_activation(model: keras.Model) -> str:
    """Returns "softmax", "sigmoid" or "linear", by the outputs for random images."""
    if not has_graph(model) or len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
        return "linear"
    if model not in _GUESSED:
        taken = model.inputs[0]
        shape = [side or default for side, default in zip(taken.shape[1:], _ANY_SHAPE, strict=True)]
        # The range that the model takes does not matter: a softmax always adds up to 1.
        levels = np.random.default_rng(0).uniform(0, 255, (_NUM_GUESSES, *shape))
        images = levels * np.linspace(1 / 255, 1, _NUM_GUESSES)[:, None, None, None]
        try:
            values = model(keras.ops.cast(images, taken.dtype), training=False)
        except Exception:  # a model of any size may refuse this one
            return "linear"
        _GUESSED[model] = _classify(keras.ops.convert_to_numpy(keras.ops.cast(values, "float32")))
    return _GUESSED[model]


_NUM_GUESSES, _ANY_SHAPE = 8, (224, 224, 3)


def _classify(values: np.ndarray) -> str:
    """Returns the activation that outputs such values, (n, Y)."""
    if add_up(values):
        return "softmax"
    return "sigmoid" if values.min() >= 0 and values.max() <= 1 and np.ptp(values) else "linear"


def add_up(values: np.ndarray) -> bool:
    """Returns whether values (n, Y) are probabilities that add up to 1.

    Example:
        >>> add_up(np.array([[0.25, 0.75]])), add_up(np.array([[0.25, 0.5]]))
        (True, False)
    """
    return bool(values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() < _ADDS_UP)


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
