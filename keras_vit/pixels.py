"""The range of pixels that a model takes: 0 to 255, 0 to 1, or -1 to 1."""

import weakref
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.graph import calls_of, has_graph, maker_of
from keras_vit.levels import to_pixels

RANGES = {"0..255": (0.0, 255.0), "0..1": (0.0, 1.0), "-1..1": (-1.0, 1.0)}
"""Names of the ranges, as `--pixels` takes them."""

# A scaling with a larger mean or deviation is made for pixels from 0 to 255.
_OF_LEVELS = 4.0
# Values of constant images that measure the function of the first layers.
_PROBES = (-1.0, 0.0, 1.0, 127.5, 255.0)
_WHOLE_PROBES = (64.0, 0.0, 1.0, 127.0, 255.0)  # of a model that takes integers
_ANY_SIZE = 32  # side of a probe in pixels, if the model takes any size
# Tolerance relative to the width of a range, for rounding to bfloat16 and for a scaling by 1/128
# instead of 1/127.5.
_CLOSE = 0.02
_OWN_PACKAGE = __name__.partition(".")[0]
# Declared ranges by input layer, which models of the same graph share.
_DECLARED: weakref.WeakKeyDictionary[keras.layers.Layer, "Pixels"] = weakref.WeakKeyDictionary()


class Pixels(NamedTuple):
    """The range of pixels that a model takes.

    Attributes:
        low, high: Ends of the range.
        reason: Explanation of how the range was determined.
    """

    low: float
    high: float
    reason: str

    @property
    def range(self) -> list[int]:
        """The two ends as integers."""
        return [int(self.low), int(self.high)]

    @property
    def are_levels(self) -> bool:
        """Whether the range is 0 to 255."""
        return self.high == 255

    def from_levels(self, levels: Any) -> Any:
        """Converts float pixels from 0 to 255, of NumPy or a framework, to this range.

        Example:
            >>> Pixels(-1.0, 1.0, "").from_levels(np.array([0.0, 255.0])).tolist()
            [-1.0, 1.0]
        """
        if self.are_levels:
            return levels
        return to_pixels(levels) if self.low < 0 else levels / 255.0

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g} ({self.reason})"


def declare(model: keras.Model, pixels: str) -> None:
    """Declares the range of pixels that a model takes, and all models with its input layer.

    The declaration is valid in this process.

    Args:
        model: A functional model, or one that is built.
        pixels: "0..255", "0..1" or "-1..1".

    Raises:
        ValueError: If there is no such range.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None)
        >>> declare(model, "0..1")
        >>> str(pixels_of(model))
        'from 0 to 1 (as declared)'
    """
    if pixels not in RANGES:
        raise ValueError(f"`pixels` must be one of {', '.join(RANGES)}. Received: {pixels!r}.")
    _DECLARED[_find_input_layer(model)] = Pixels(*RANGES[pixels], "as declared")


def is_declared(model: keras.Model) -> bool:
    """Returns whether a range was declared for a model."""
    return _find_input_layer(model) in _DECLARED


def copy_declaration(model: keras.Model, copy: keras.Model) -> None:
    """Copies the declaration of a model, if there is one, to a copy of the model."""
    if _find_input_layer(model) in _DECLARED:
        _DECLARED[_find_input_layer(copy)] = _DECLARED[_find_input_layer(model)]


def pixels_of(model: keras.Model) -> Pixels:
    """Returns the range of pixels that a model takes: the declared one, else that of its graph.

    The graph determines the range in these cases: the model takes integers; the layers before the
    first one with weights scale pixels, such as `Rescaling`, `Normalization` or arithmetic, also in
    nested models; or the first layer with weights is of this package, whose models take pixels in
    [-1, 1].

    Args:
        model: Model with one input, images (B, H, W, C).

    Raises:
        ValueError: If the range is unknown. The message explains how to declare it.

    Example:
        >>> str(pixels_of(keras_vit.ViT_Ti16(weights=None)))
        'from -1 to 1 (its layer `embedding` is of keras_vit)'
        >>> str(pixels_of(keras_vit.ViT_Ti16(weights=None, include_preprocessing=True)))
        'from 0 to 255 (its operation `true_divide...` scales them)'
    """
    if not has_graph(model):
        raise _make_error(model, "has no graph that can be read")
    if _find_input_layer(model) in _DECLARED:
        return _DECLARED[_find_input_layer(model)]
    if _takes_integers(model):
        return Pixels(*RANGES["0..255"], f"it takes {model.inputs[0].dtype}")
    found = _decide(model, model, np.float64(1), np.float64(0))
    if not isinstance(found, Pixels):
        raise _make_error(model, "has no layer that scales pixels, and none of this package")
    return found


def pixels_if_known(model: keras.Model) -> Pixels | None:
    """Returns the range of pixels that a model takes, or None if it is unknown."""
    try:
        return pixels_of(model)
    except ValueError:
        return None


def describe_pixels(model: keras.Model, image_size: tuple[int, int]) -> str:
    """Describes the pixels and the image size that a model takes, in a sentence.

    Example:
        >>> describe_pixels(keras_vit.ViT_Ti16(weights=None), (224, 224))
        'vit_ti16 takes pixels from -1 to 1 (its layer `embedding` is of keras_vit), images of 224 x
        224.'
    """
    return f"{model.name} takes pixels {pixels_of(model)}, images of {image_size[0]} x {image_size[1]}."


class Entry(NamedTuple):
    """The input of the first layer with weights.

    Attributes:
        front: The layers in front of it: the outermost model, and the nested ones down to the layer,
            each with the tensor where its layers in front of it end.
        taken: The range of pixels that the outermost model takes.
        factor, summand: The layers in front compute factor * pixel + summand if they only scale
            pixels. One number, or one per channel.
    """

    front: tuple[tuple[keras.Model, keras.KerasTensor], ...]
    taken: Pixels
    factor: np.ndarray
    summand: np.ndarray

    @property
    def model(self) -> keras.Model:
        """The model that contains the layer: the outermost model or a nested one."""
        return self.front[-1][0]

    @property
    def images(self) -> keras.KerasTensor:
        """Input of the layer."""
        return self.front[-1][1]

    @property
    def low(self) -> float:
        """Smallest pixel at the layer."""
        return float(np.mean(self.factor * self.taken.low + self.summand))

    @property
    def high(self) -> float:
        """Largest pixel at the layer."""
        return float(np.mean(self.factor * self.taken.high + self.summand))


def find_entry(model: keras.Model) -> Entry:
    """Returns the input of the first layer with weights, after all resizing and scaling.

    Raises:
        ValueError: If the range is unknown, or several layers read the images.

    Example:
        >>> entry = find_entry(keras_vit.ViT_Ti16(weights=None, include_preprocessing=True))
        >>> entry.low, entry.high, entry.taken.range
        (-1.0, 1.0, [0, 255])
    """
    taken = pixels_of(model)
    found = _enter(model, model, np.float64(1), np.float64(0))
    if found is None:
        raise ValueError(f"{model.name} has no layer with weights that its images reach.")
    front, scaling = found
    return Entry(front, taken, *scaling)


_Affine = tuple[np.ndarray, np.ndarray]  # factor and summand, scalars or one value per channel


def _enter(
    whole: keras.Model, model: keras.Model, factor: Any, summand: Any
) -> tuple[tuple[tuple[keras.Model, Any], ...], _Affine] | None:
    """Finds the first layer with weights: `Entry.front`, and the scaling of its input.

    Arguments are those of `_decide`.

    Returns:
        None if all layers of the model are pixelwise.
    """
    tensor, calls = model.inputs[0], calls_of(model)
    while tensor is not model.outputs[0]:
        consumers = [call for call in calls if any(given is tensor for given in call.input_tensors)]
        if len(consumers) != 1:
            raise ValueError(
                f"{len(consumers)} layers of {whole.name} read its images. Expected one first "
                f"layer. Fine-tune the model with Keras's `fit`."
            )
        call = consumers[0]
        if has_graph(call.operation):
            found = _enter(
                whole, call.operation, *_measure_scaling(whole, model, tensor, (factor, summand))
            )
            if found is not None:
                return ((model, tensor), *found[0]), found[1]
        elif not _is_pixelwise(call):
            return ((model, tensor),), _measure_scaling(whole, model, tensor, (factor, summand))
        tensor = call.output_tensors[0]
    return None


def _decide(whole: keras.Model, model: keras.Model, factor: Any, summand: Any) -> Pixels | _Affine:
    """Determines the range, or the scaling of a model that contains only pixelwise layers.

    Args:
        whole: The outermost model, for error messages.
        model: The model to analyze.
        factor, summand: The input of `model` is factor * pixel + summand, for the pixels of `whole`.
    """
    calls = calls_of(model)

    def behind(tensor: Any, scaling: _Affine) -> Pixels | _Affine:
        consumers = [call for call in calls if any(given is tensor for given in call.input_tensors)]
        found = [after(call, scaling) for call in consumers] or [scaling]
        ranges = {(each.low, each.high) for each in found if isinstance(each, Pixels)}
        if len(ranges) > 1:
            raise _make_error(whole, "scales pixels in different ways at once")
        return next((each for each in found if isinstance(each, Pixels)), found[0])

    def after(call: Any, scaling: _Affine) -> Pixels | _Affine:
        step = call.operation
        if has_graph(step):
            inner = _decide(whole, step, *scaling)
            if isinstance(inner, Pixels):
                return inner
            return behind(call.output_tensors[0], inner)
        if _is_part(call):
            return behind(call.output_tensors[0], scaling)
        if not _is_pixelwise(call):
            return _judge_first_layer(whole, step, scaling)
        composed = _measure_scaling(whole, model, call.output_tensors[0], (factor, summand))
        return _match_range(step, composed) or behind(call.output_tensors[0], composed)

    return behind(model.inputs[0], (factor, summand))


def _is_pixelwise(call: Any) -> bool:
    """Returns whether a call may scale, resize, crop or augment images, and has no weights."""
    step, shapes = call.operation, [tensor.shape for tensor in call.output_tensors]
    if _is_ours(step) or len(shapes) != 1 or len(shapes[0]) != 4 or isinstance(step, keras.Model):
        return False
    return not getattr(step, "weights", None) or isinstance(step, keras.layers.Normalization)


def _is_part(call: Any) -> bool:
    """Returns whether an operation splits images, such as into channels that are reordered."""
    is_layer = isinstance(call.operation, keras.layers.Layer)
    return not is_layer and any(len(tensor.shape) != 4 for tensor in call.output_tensors)


def _is_ours(step: Any) -> bool:
    return type(step).__module__.partition(".")[0] == _OWN_PACKAGE


def _judge_first_layer(whole: keras.Model, step: Any, scaling: _Affine) -> Pixels:
    is_untouched = np.allclose(scaling[0], 1, atol=1e-3) and np.allclose(scaling[1], 0, atol=1e-3)
    if _is_ours(step) and is_untouched:
        return Pixels(*RANGES["-1..1"], f"its layer `{step.name}` is of {_OWN_PACKAGE}")
    if is_untouched:
        raise _make_error(
            whole, f"starts with {type(step).__name__} (`{step.name}`), which takes any range"
        )
    raise _make_error(
        whole,
        f"computes {np.ravel(scaling[0]).round(4).tolist()} * pixel + "
        f"{np.ravel(scaling[1]).round(4).tolist()} before "
        f"{type(step).__name__} (`{step.name}`), which fits several ranges",
    )


def _measure_scaling(
    whole: keras.Model, model: keras.Model, tensor: Any, scaling: _Affine
) -> _Affine:
    """Measures the scaling from the pixels of `whole` to a tensor of `model`, on constant images."""
    if tensor is model.inputs[0]:
        return scaling
    step, (height, width, channels) = maker_of(tensor).operation, model.inputs[0].shape[1:]
    if isinstance(step, keras.layers.Normalization) and step.mean is None:
        raise ValueError(
            f"The layer {step.name} of {whole.name} has no statistics: call its `adapt`."
        )
    probes = _WHOLE_PROBES if _takes_integers(model) else _PROBES
    shape = (len(probes), height or _ANY_SIZE, width or _ANY_SIZE, channels or 3)
    images = np.broadcast_to(np.reshape(probes, (-1, 1, 1, 1)), shape).astype("float32")
    words = f"starts with {type(step).__name__} (`{step.name}`), which"
    try:
        given = keras.Model(model.inputs[0], tensor)(images, training=False)
        values = keras.ops.convert_to_numpy(keras.ops.cast(given, "float32")).astype(np.float64)
    except Exception as error:  # a layer of a user may raise anything
        raise _make_error(whole, f"{words} cannot be computed separately: {error}") from error
    at_centre = values[:, values.shape[1] // 2, values.shape[2] // 2]
    summand, factor = at_centre[1], (at_centre[-1] - at_centre[1]) / probes[-1]
    expected = np.multiply.outer(probes, factor) + summand
    tolerance = _CLOSE * np.abs(factor).max() + 1e-3 * np.abs(expected) + 1e-6
    if np.any(np.abs(at_centre - expected) > tolerance) or not np.any(factor):
        raise _make_error(whole, f"{words} does more than scale pixels")
    return factor * scaling[0], factor * scaling[1] + summand


def _match_range(step: Any, scaling: _Affine) -> Pixels | None:
    """Returns the range for which a scaling is made, or None."""
    factor, summand = scaling
    kind = "layer" if isinstance(step, keras.layers.Layer) else "operation"
    reason = f"its {kind} `{step.name}` scales them"
    for taken in RANGES.values():
        for target in RANGES.values():
            made = [factor * end + summand for end in taken]
            off = max(
                float(np.max(np.abs(mine - end))) for mine, end in zip(made, target, strict=True)
            )
            if target != taken and off <= _CLOSE * (target[1] - target[0]):
                return Pixels(*taken, reason)
    deviation = 1 / np.maximum(np.abs(factor), 1e-12)
    if max(np.max(deviation), np.max(np.abs(summand) * deviation)) > _OF_LEVELS:
        return Pixels(*RANGES["0..255"], reason)
    return None


def _takes_integers(model: keras.Model) -> bool:
    return np.dtype(keras.backend.standardize_dtype(model.inputs[0].dtype)).kind in "iu"


def _find_input_layer(model: keras.Model) -> keras.layers.Layer:
    return maker_of(model.inputs[0]).operation


def _make_error(model: keras.Model, why: str) -> ValueError:
    return ValueError(
        f"{model.name} {why}, so the range of pixels that it takes is unknown. Pass the range of "
        f"its training with --pixels={'|'.join(RANGES)} (in Python: `keras_vit.pixels.declare`). "
        "Or save the model with a layer that scales its pixels: "
        "`keras.Model(images, model(keras.layers.Rescaling(1 / 255)(images)))`; for a model of "
        "keras.applications, use its `preprocess_input` instead of `Rescaling`."
    )
