"""Loads files `model.keras`: any Keras model of images, as a functional model with one output."""

import os
from pathlib import Path
from typing import Any

import keras

import keras_vit.layers  # noqa: F401, registers the layers of this package with Keras
from keras_vit.graph import has_graph
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.pixels import declare

_IN_PYTHON = (
    "`measure` of `keras_vit.evaluate.measure`, `inspect` of `keras_vit.analyze.inspection` or "
    "`deliver` of `keras_vit.export.delivery`"
)


def is_file(model: str | os.PathLike) -> bool:
    """Returns whether a string is the path of a `.keras` file (existing or not), and not the name
    of a model.

    Example:
        >>> is_file("flowers_vit/model.keras"), is_file("ViT_B16")
        (True, False)
    """
    return os.fspath(model).endswith(".keras")


def load(
    file: str | os.PathLike, image_size: tuple[int, int] | None = None, *, any_size: bool = False
) -> keras.Model:
    """Loads a file as a functional model with one input of images and one output.

    Args:
        file: Saved by `model.save`.
        image_size: (height, width) in pixels, for a model that takes images of any size. The
            returned model still takes any size.
        any_size: Whether a model that takes any size is accepted without `image_size`.

    Raises:
        ValueError: If the file is missing, cannot be loaded or contains another kind of model, or
            if `image_size` differs from the size of the model.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    loaded = _make_functional(_load_model(path), path, image_size)
    shapes = [tuple(tensor.shape) for tensor in loaded.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(
            f"{path} must take images (B, H, W, C), and nothing else. Its input shapes: {shapes}."
        )
    if len(loaded.outputs) != 1:
        given = ", ".join(
            f"`{name}` {tuple(tensor.shape)}"
            for name, tensor in zip(loaded.output_names, loaded.outputs, strict=True)
        )
        raise ValueError(
            f"{path} has {len(loaded.outputs)} outputs: {given}. Expected one. Save a model with "
            f'one output: `model = keras.models.load_model("{path.name}"); '
            f'keras.Model(model.inputs, model.outputs[0]).save("one.keras")`.'
        )
    built = shapes[0][1:3]
    if image_size is None and None in built and not any_size:
        raise ValueError(f"{path} takes images of any size. Choose one with --image_size=SIDE.")
    if image_size is not None and any(
        side not in (None, asked) for side, asked in zip(built, image_size, strict=True)
    ):
        raise ValueError(
            f"{path} was saved for images of {built[0]} x {built[1]} pixels. Received: image_size="
            f"{tuple(image_size)}. Omit the image size. For another size, save the weights with "
            "`keras_vit.save_checkpoint`, and load them with `weights=` at that size."
        )
    return loaded


def _load_model(path: Path) -> Any:
    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Keras raises many types of errors for damaged files
        # Keras puts the whole config of the model in front of the reason.
        reason = " ".join(str(error).rpartition("Exception encountered:")[2].split())[:300]
        if "safe_mode" in reason or "enable_unsafe_deserialization" in str(error):
            raise ValueError(
                f"{path} contains a Lambda layer or a TFSMLayer, which may run any code, so Keras "
                "loads it from trusted files alone. Replace it by layers of Keras, or, if you "
                "trust the file, call in Python `keras.config.enable_unsafe_deserialization()` "
                "and then "
                f"{_IN_PYTHON} with it."
            ) from error
        raise ValueError(
            f"{path} cannot be loaded: {reason}\nThe command line loads models that consist of "
            "layers of Keras and of this package. If the model contains layers or classes of your "
            "own, import them in Python (decorated with "
            f"`keras.saving.register_keras_serializable`) and call {_IN_PYTHON} with this file."
        ) from error


def _make_functional(model: Any, path: Path, image_size: tuple[int, int] | None) -> keras.Model:
    """Returns the model itself if it is functional, else a functional model that calls it."""
    if has_graph(model):
        plain = model
        # The class of functional models has no public name.
        is_functional = isinstance(model, ClassTokenModel) or type(model).__name__ == "Functional"
        if not is_functional or any(
            keras.tree.is_nested(end) for end in (model.input, model.output)
        ):
            inputs, outputs = (
                each[0] if len(each) == 1 else each for each in (model.inputs, model.outputs)
            )
            plain = keras.Model(inputs, outputs, name=model.name)
        return _add_preprocessor(plain, getattr(model, "preprocessor", None))
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"{path} contains a {type(model).__name__}, which is not a model. Expected a file "
            "saved by `model.save`."
        )
    shape = (model.get_build_config() or {}).get("input_shape") or (None, None, None, 3)
    if len(shape) != 4:
        raise ValueError(f"{path} must take images (B, H, W, C). Its input shape: {tuple(shape)}.")
    height, width, channels = shape[1:]
    size = image_size or (height, width)
    if None in size:
        raise ValueError(
            f"{path} contains a {type(model).__name__}, which does not state its image size. "
            "Specify it with --image_size=SIDE."
        )
    images = keras.Input((*size, channels or 3))
    return keras.Model(images, model(images), name=model.name)


def _add_preprocessor(plain: keras.Model, preprocessor: Any) -> keras.Model:
    """Adds the preprocessor of a KerasHub model, which scales pixels outside the graph, so that the
    result takes pixels from 0 to 255.
    """
    converter = getattr(preprocessor, "image_converter", None)
    if converter is None or len(plain.inputs) != 1:
        return plain
    height, width, channels = plain.inputs[0].shape[1:]
    size = getattr(converter, "image_size", None) or (None, None)
    images = keras.Input((height or size[0], width or size[1], channels))
    scale, offset = (getattr(converter, name, None) for name in ("scale", "offset"))
    scaled = images
    if scale is not None or offset is not None:
        scaled = keras.layers.Rescaling(
            1.0 if scale is None else scale, 0.0 if offset is None else offset
        )(images)
    model = keras.Model(images, plain(scaled), name=plain.name)
    declare(model, "0..255")
    return model
