"""Construction of a classifier, or a model without head, from weights; names of its classes."""

import os
from pathlib import Path
from typing import Any

import keras

from keras_vit import applications
from keras_vit.evaluate.features import feature_model
from keras_vit.evaluate.heads import gives_classes
from keras_vit.keras_file import is_file, load
from keras_vit.options import POOLING_OF, resolve_classifier
from keras_vit.pixels import declare
from keras_vit.variants import VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import catalog, source


def build(
    model: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    image_size: tuple[int, int] | None = None,
    pixels: str | None = None,
) -> keras.Model:
    """Builds a classifier with the head and the pooling of its weights.

    Args:
        model: Name of a model, or a file `model.keras`, which includes its weights.
        weights: Tag, file or URL.
        image_size: (height, width) in pixels; default: that of the weights. Required for a file
            whose model takes images of any size; the model still takes any size.
        pixels: "0..255", "0..1" or "-1..1". Default: see `keras_vit.pixels.pixels_of`.

    Returns:
        A model that outputs logits; for a `.keras` file, the saved model, as a functional model.

    Raises:
        ValueError: If the weights are unknown, damaged, without a trained head or for another model;
            or if a file is missing, or its model does not have one input of images and one output.
        OSError: If the weights cannot be read or downloaded.
    """
    built = _check_channels(_build(model, weights, image_size))
    if pixels is not None:
        declare(built, pixels)
    return built


def _build(
    model: str | os.PathLike, weights: str | os.PathLike | None, image_size: tuple[int, int] | None
) -> keras.Model:
    if is_file(model):
        if weights is not None:
            raise ValueError(f"{model} includes its weights: omit `weights`.")
        return load(model, image_size)
    if weights is None:
        raise ValueError(_ask_for_weights(model))
    found = source.find(str(model), weights)
    if found.row is not None and found.is_published:
        if found.row.classes is None:
            raise ValueError(_describe_headless(found))
        options: dict[str, Any] = {"classes": found.row.classes}
    else:
        pretrained = source.load(found)
        if "predictions/bias" not in pretrained.arrays:
            raise ValueError(_describe_headless(found))
        if pretrained.problem_type is not None:
            raise ValueError(
                f"The head of {source.origin_of(found)} does not choose one of several classes "
                f"(problem_type: {pretrained.problem_type}). Build the model in Python with "
                "`classifier_activation=None`."
            )
        options = {"classes": pretrained.arrays["predictions/bias"].size}
    shape = None if image_size is None else (*image_size, 3)
    build_model = getattr(applications, str(model))
    return build_model(weights=weights, input_shape=shape, classifier_activation=None, **options)


def representation(
    model: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    image_size: tuple[int, int] | None = None,
    pixels: str | None = None,
) -> keras.Model:
    """Builds a model without its head, which outputs one vector per image.

    If the weights have the tanh layer of pre-training, the vector is its output. Errors are those
    of `build`, but the weights need no head.

    Args:
        model, image_size, pixels: As in `build`.
        weights: Tag, file or URL; "none" for random weights.

    Example:
        >>> representation("ViT_Ti16", "none", (32, 32)).output_shape
        (None, 192)
    """
    if is_file(model):
        return feature_model(build(model, weights, image_size, pixels), "pre_logits")
    built = _build_representation(model, weights, image_size)
    if pixels is not None:
        declare(built, pixels)
    return built


def _build_representation(
    model: str | os.PathLike, weights: str | os.PathLike | None, image_size: tuple[int, int] | None
) -> keras.Model:
    if weights is None:
        raise ValueError(_ask_for_weights(model))
    if str(model) not in applications.list_models():
        raise ValueError(
            f"There is no model {str(model)!r}. Available: {', '.join(applications.list_models())}."
        )
    row = VARIANTS[str(model)]
    classifier = "gap" if isinstance(row, ResNetVariant) else resolve_classifier(row, None)
    options: dict[str, Any] = {}
    if weights != "none":
        pretrained = source.load(source.find(str(model), weights))
        image_size = image_size or pretrained.image_size
        if isinstance(row, ViTVariant):
            classifier = source.find_classifier(row, pretrained) or classifier
            options = {
                "classifier": classifier,
                "representation_size": pretrained.representation_size,
            }
    side = row.image_size if isinstance(row, ViTVariant) else 224
    shape = (*(image_size or (side, side)), 3)
    weights = None if weights == "none" else weights
    return getattr(applications, str(model))(
        weights=weights,
        include_top=False,
        input_shape=shape,
        pooling=POOLING_OF[classifier],
        **options,
    )


def _describe_headless(found: source.WeightsSource) -> str:
    return f"{source.origin_of(found)} has no classification head, so it cannot classify."


def _check_channels(network: keras.Model) -> keras.Model:
    """Returns the model if its images have three channels.

    Raises:
        ValueError: If they have another number, so that photographs do not fit.
    """
    channels = {tensor.shape[-1] for tensor in network.inputs if len(tensor.shape) == 4} - {3, None}
    if channels:
        raise ValueError(
            f"{network.name} takes images with {channels.pop()} channels, but photographs have 3: "
            "red, green and blue. Pass arrays in Python: `model.predict(images)`, "
            "`keras_vit.evaluate`."
        )
    return network


def _ask_for_weights(model: str | os.PathLike) -> str:
    return (
        f"Weights are missing: pass a file or a tag, {', '.join(catalog.list_weights(str(model)))}."
    )


def class_names(weights: str | os.PathLike) -> list[str]:
    """Reads the class names from `classes.txt` in the folder of a file of weights, if it exists.

    Raises:
        ValueError: If it is not UTF-8.

    Example:
        >>> class_names("imagenet")
        []
    """
    path = Path(weights).expanduser()
    file = path.with_name("classes.txt") if path.is_file() else None
    if file is None or not file.is_file():
        return []
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows begins it with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}. Save it as UTF-8.") from error
    return text.rstrip("\n").split("\n") if text.strip() else []


def names_for(network: keras.Model, weights: str | os.PathLike) -> list[str]:
    """Returns the names of the classes of a model, from `classes.txt` beside its weights; none if
    there is no such file, or the model has no classes.

    Raises:
        ValueError: If there are not as many names as classes.

    Example:
        >>> names_for(keras_vit.ViT_Ti16(weights=None), "imagenet")
        []
    """
    names = class_names(weights)
    if not names or not gives_classes(network, len(names)):
        return []
    if len(names) != network.outputs[0].shape[-1]:
        raise ValueError(
            f"{Path(weights).with_name('classes.txt')} has {len(names)} names, and {network.name} gives "
            f"{network.outputs[0].shape[-1]} classes. Correct the file, or move it away."
        )
    return names
