"""The layers between the images and the trunk of a model, which its fine-tuned copy keeps."""

from collections.abc import Iterator

import keras
import numpy as np

from keras_vit.graph import calls_of, has_graph
from keras_vit.pixels import Entry, find_entry

# Side lengths of a probe for models of any size. No layer resizes images to them.
_ODD_SIZE = (45, 37)
# Tolerance relative to the width of a range, as in `keras_vit.pixels`.
_CLOSE = 0.02


def list_kept(entry: Entry) -> list[keras.Operation]:
    """Returns the layers and operations in front of a trunk if they do more than scale pixels.

    Layers that resize, crop or pad images, reorder their channels, or augment them in training do
    more. If one of them does, all are kept.

    Args:
        entry: The input of the trunk.

    Example:
        >>> given = keras.Input((48, 48, 3))
        >>> trunk = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> model = keras.Model(given, trunk(keras.layers.Resizing(32, 32, name="smaller")(given)))
        >>> [step.name for step in list_kept(find_entry(model))]
        ['smaller']
        >>> list_kept(find_entry(trunk))
        []
    """
    steps = list(_list_steps(entry))
    if any(_draws(step) for step in steps) or not _only_scales(entry):
        return steps
    return []


def apply_kept(entry: Entry, images: keras.KerasTensor) -> keras.KerasTensor:
    """Applies the layers of `list_kept` to images in [-1, 1], converted to the range they take.

    Args:
        entry: The input of the trunk.
        images: (B, H, W, 3). Layers that draw random numbers are copied, so the copy of a model
            draws the numbers of the global seed, and the given model draws what it would have drawn.

    Returns:
        The input of the trunk: `images` if no layer is kept, else (B, H', W', 3).

    Raises:
        ValueError: If the kept layers return images of unknown size.
    """
    if not list_kept(entry):
        return images
    low, high = entry.taken.low, entry.taken.high
    if (low, high) != (-1, 1):
        scale, offset = (high - low) / 2, (high + low) / 2
        images = keras.layers.Rescaling(scale, offset, name="pixels_as_trained")(images)
    names: set[str] = set()
    for model, end in entry.front:
        images = _inline(model, end, images, names)
    if None in images.shape[1:3]:
        raise ValueError(
            f"The layers in front of {entry.model.name} return images of unknown size: "
            f"{', '.join(step.name for step in _list_steps(entry))}. Fine-tune the model with "
            "Keras's `fit`."
        )
    return images


def describe_kept(model: keras.Model, image_size: int) -> str:
    """Describes the layers in front of the trunk that a fine-tuned copy keeps; "" if there are none.

    Args:
        model: A model that can be fine-tuned.
        image_size: Side of the square images of the copy, in pixels.

    Example:
        >>> given = keras.Input((48, 48, 3))
        >>> trunk = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> model = keras.Model(given, trunk(keras.layers.Resizing(32, 32, name="smaller")(given)))
        >>> describe_kept(model, 64)
        'The layers in front of vit_ti16 are kept (smaller): it receives images of 32 x 32. `model.npz`
        will not contain them.'
    """
    entry = find_entry(model)
    kept = list_kept(entry)
    if not kept:
        return ""
    height, width = apply_kept(entry, keras.Input((image_size, image_size, 3))).shape[1:3]
    return (
        f"The layers in front of {entry.model.name} are kept ({', '.join(step.name for step in kept)}"
        f"): it receives images of {height} x {width}. `model.npz` will not contain them."
    )


def _inline(
    model: keras.Model, end: keras.KerasTensor, images: keras.KerasTensor, names: set[str]
) -> keras.KerasTensor:
    """Applies the layers of a model, up to a tensor, to other images. Nested models are inlined.

    Adds the names of the applied layers to `names`.
    """
    outputs = [images]

    def call(step: keras.Operation, *arguments, **options):
        if has_graph(step):
            outputs.append(_inline(step, step.outputs[0], arguments[0], names))
        else:
            own = _copy_if_needed(step, names)
            names.add(own.name)
            outputs.append(own(*arguments, **options))
        return outputs[-1]

    if end is not model.inputs[0]:
        keras.models.clone_model(
            keras.Model(model.inputs[0], end),
            input_tensors=images,
            clone_function=lambda step: step,
            call_function=call,
        )
    return outputs[-1]


def _copy_if_needed(step: keras.Operation, names: set[str]) -> keras.Operation:
    """Returns a copy of a layer that draws random numbers, or whose name is taken; else the layer."""
    if not _draws(step) and step.name not in names:
        return step
    config = step.get_config()
    number = 0
    while config["name"] in names:
        number += 1
        config["name"] = f"{step.name}_{number}"
    return type(step).from_config(config)


def _list_steps(entry: Entry) -> Iterator[keras.Operation]:
    for model, end in entry.front:
        if end is not model.inputs[0]:
            yield from _list_inner_steps(keras.Model(model.inputs[0], end))


def _list_inner_steps(model: keras.Model) -> Iterator[keras.Operation]:
    for call in calls_of(model):
        if has_graph(call.operation):
            yield from _list_inner_steps(call.operation)
        elif call.input_tensors:
            yield call.operation


def _draws(step: keras.Operation) -> bool:
    """Returns whether a layer, or a layer in it, draws random numbers, as for augmentation."""
    inner = step._flatten_layers() if isinstance(step, keras.Layer) else [step]
    values = [value for part in inner for value in vars(part).values()]
    return any(isinstance(value, keras.random.SeedGenerator) for value in values)


def _only_scales(entry: Entry) -> bool:
    """Compares the layers in front with their scaling, on two images of random pixels.

    Some layers, such as `AutoContrast`, change images in training only. The second image has a low
    contrast, which they raise.
    """
    height, width, channels = entry.front[0][0].inputs[0].shape[1:]
    shape = (1, height or _ODD_SIZE[0], width or _ODD_SIZE[1], channels or 3)
    shares = np.random.default_rng(0).uniform(0, 1, shape)
    return all(
        _is_scaled(entry, seen, training)
        for seen in (shares, 0.3 + 0.4 * shares**2)
        for training in (False, True)
    )


def _is_scaled(entry: Entry, shares: np.ndarray, training: bool) -> bool:
    """Returns whether the layers in front only scale an image, given as shares of their range."""
    low, high = entry.taken.low, entry.taken.high
    pixels = low + (high - low) * shares
    if entry.taken.are_levels:
        pixels = np.round(pixels)
    images = keras.ops.cast(pixels, entry.front[0][0].inputs[0].dtype)
    for model, end in entry.front:
        if end is not model.inputs[0]:
            images = keras.Model(model.inputs[0], end)(images, training=training)
    found = keras.ops.convert_to_numpy(keras.ops.cast(images, "float32"))
    expected = entry.factor * pixels + entry.summand
    return found.shape == expected.shape and bool(
        np.abs(found - expected).max() <= _CLOSE * (entry.high - entry.low)
    )
