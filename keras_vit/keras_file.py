"""Files `model.keras`: any Keras model of images that a user saved, as a functional model with one
output.
"""

import os
from pathlib import Path
from typing import Any

import keras

import keras_vit.layers  # noqa: F401, tells Keras the layers of this package
from keras_vit.graph import has_graph
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.pixels import declare


def is_file(model: str | os.PathLike) -> bool:
    """Returns whether this is a file `model.keras`, there or missing, and not the name of a model.

    Example:
        >>> is_file("flowers_vit/model.keras"), is_file("ViT_B16")
        (True, False)
    """
    return os.fspath(model).endswith(".keras")


def load(
    file: str | os.PathLike, image_size: tuple[int, int] | None = None, *, any_size: bool = False
) -> keras.Model:
    """Returns the model of a file as a functional one, with one input of images and one output.

    Args:
        file: Saved by `model.save`.
        image_size: (height, width) in pixels, for a model that takes images of any size; it stays
            one of any size.
        any_size: Whether such a model is returned without `image_size` too.

    Raises:
        ValueError: If the file is missing, cannot be loaded or holds another kind of model, or the
            size does not fit.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    loaded = _with_graph(_loaded(path), path, image_size)
    shapes = [tuple(tensor.shape) for tensor in loaded.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(
            f"{path} must take images (B, H, W, C), and nothing else. It takes {shapes}."
        )
    if len(loaded.outputs) != 1:
        given = ", ".join(
            f"`{name}` {tuple(tensor.shape)}"
            for name, tensor in zip(loaded.output_names, loaded.outputs, strict=True)
        )
        raise ValueError(
            f"{path} has {len(loaded.outputs)} outputs: {given}. Save a model with one of them: "
            f"`model = "
            f'keras.models.load_model("{path.name}"); keras.Model(model.inputs, '
            f'model.outputs[0]).save("one.keras")`.'
        )
    built = shapes[0][1:3]
    if image_size is None and None in built and not any_size:
        raise ValueError(f"{path} takes images of any size: say which with --image_size=SIDE.")
    if image_size is not None and any(
        side not in (None, asked) for side, asked in zip(built, image_size, strict=True)
    ):
        raise ValueError(
            f"{path} was saved for {built[0]} x {built[1]} pixels: leave out the image size."
        )
    return loaded


def _loaded(path: Path) -> Any:
    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Keras has a kind of error for every kind of damage
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{path} cannot be loaded: {reason}\nThe command line loads models of Keras's own "
            f"layers and of this "
            "package. For layers or classes of yours, import them in Python (decorated with "
            "`keras.saving.register_keras_serializable`) and call "
            "`keras_vit.evaluate.measure.measure`, "
            "`keras_vit.analyze.inspection.inspect` or `keras_vit.export.delivery.deliver` with "
            "this file. In place of "
            "a Lambda, save a layer."
        ) from error


def _with_graph(model: Any, path: Path, image_size: tuple[int, int] | None) -> keras.Model:
    """The model itself if it is functional; else one that calls it."""
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
        return _behind_its_preprocessor(plain, getattr(model, "preprocessor", None))
    if not isinstance(model, keras.Model):
        raise ValueError(f"{path} holds a {type(model).__name__}, which is no model.")
    shape = (model.get_build_config() or {}).get("input_shape") or (None, None, None, 3)
    if len(shape) != 4:
        raise ValueError(
            f"{path} must take images (B, H, W, C). It was built for inputs of shape "
            f"{tuple(shape)}."
        )
    height, width, channels = shape[1:]
    size = image_size or (height, width)
    if None in size:
        raise ValueError(
            f"{path} holds a {type(model).__name__}, which does not say which size of images it "
            f"takes. Say so with "
            "--image_size=SIDE."
        )
    images = keras.Input((*size, channels or 3))
    return keras.Model(images, model(images), name=model.name)


def _behind_its_preprocessor(plain: keras.Model, preprocessor: Any) -> keras.Model:
    """Of KerasHub, which keeps the scaling outside the graph, a model that takes pixels from 0 to
    255.
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
