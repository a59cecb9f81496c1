"""Saves a model as a checkpoint of Google's, timm's, Hugging Face's or OpenCLIP's layout, with
metadata.

Source: the layouts of google-research/vision_transformer, timm, Hugging Face Transformers and
    OpenCLIP.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import keras
import numpy as np

from keras_vit.graph import calls_of
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.weights import dialects, files, huggingface_config
from keras_vit.weights.model_content import check_finite, collect_facts, to_canonical

Layout = Literal["google", "timm", "huggingface", "openclip"]
_OTHER_FILES = (".npz", ".h5", ".keras", ".pth", ".pt", ".bin")
_FILE = ".safetensors"  # the suffix of a single file; a Hugging Face folder contains one


def save_checkpoint(
    model: keras.Model,
    path: str | os.PathLike,
    layout: Layout | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> None:
    """Writes the weights of a model in the layout of Google, timm, Hugging Face or OpenCLIP.

    `weights=path` loads them again, bit by bit. The file is written atomically. It contains the
    grid of positions, the image size, the form of GELU, and mean and deviation of the pixels.

    timm builds ViTs with the exact GELU. To load a model with the tanh form into timm, pass
    `act_layer="gelu_tanh"` there. A Hugging Face folder names the class of Transformers that
    computes the same. Axial models can only be written in Google's layout, under names of this
    package.

    Args:
        model: A model of this package, also after fine-tuning.
        path: "*.npz" (Google), "*.safetensors" (timm, OpenCLIP), or a folder (Hugging Face:
            config.json, preprocessor_config.json and model.safetensors). With
            `layout="huggingface"`, "*.safetensors" is a file without these configs.
        layout: "google", "timm", "huggingface" or "openclip". Default: from `path`.
        labels: Names of the classes, in the order of the outputs, for the `config.json` of a
            Hugging Face folder. Default: LABEL_0, LABEL_1, ...

    Raises:
        ValueError: If the layout has no name for a part of the model, a weight is NaN or infinite,
            or `path` or `labels` do not fit the layout. Nothing is written then.
        FileNotFoundError: If the folder of a file does not exist.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> keras_vit.save_checkpoint(model, "vit_ti16.npz")
    """
    path = Path(path).expanduser()
    layout = layout if layout is not None else _layout_of(path)
    if layout not in get_args(Layout):
        raise ValueError(f"`layout` must be one of {get_args(Layout)}. Received: {layout!r}.")
    if labels is not None:
        _check_labels(labels, model, is_folder=layout == "huggingface" and path.suffix != _FILE)
    facts = collect_facts(model.layers, _find_first_images(model))
    canonical = to_canonical(model.layers, facts)
    arrays = _translate(model, canonical, facts, layout)
    _check_suffix(layout, path)
    check_finite(path, arrays)
    if layout == "google":
        files.write_npz(path, arrays, facts)
    elif path.suffix == _FILE:
        files.write_safetensors(path, arrays, facts)
    else:
        known = {**facts, "rotary": _is_rotary(model)}
        config = huggingface_config.make_config(canonical, known)
        preprocessor = huggingface_config.make_preprocessor_config(canonical, known)
        if labels is not None:
            config["id2label"] = {str(index): label for index, label in enumerate(labels)}
            config["label2id"] = {label: index for index, label in enumerate(labels)}
        files.write_huggingface(path, arrays, facts, config, preprocessor)


def check_can_save(model: keras.Model, layout: Layout = "google") -> None:
    """Raises ValueError if `save_checkpoint` cannot save the model, as a check before a long run.

    Example:
        >>> check_can_save(keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3, name="mine")]))
        Traceback (most recent call last):
        ValueError: These variables cannot be stored in a checkpoint: mine/bias, mine/kernel...
    """
    facts = collect_facts(model.layers, _find_first_images(model))
    _translate(model, to_canonical(model.layers, facts), facts, layout)


def _translate(
    model: keras.Model, canonical: dict[str, np.ndarray], facts: dict[str, Any], layout: Layout
) -> dict[str, np.ndarray]:
    rotary = _is_rotary(model)
    arrays = dialects.from_canonical(canonical, layout, grid=facts.get("grid"), rotary=rotary)
    if layout == "huggingface":
        huggingface_config.check_head(canonical, _find_pooling(model), rotary)
    return arrays


def _is_rotary(model: keras.Model) -> bool:
    return any(isinstance(layer, RotaryPositions) for layer in model.layers)


def _find_pooling(model: keras.Model) -> str | None:
    """Returns what the head of a model reads."""
    for layer in model.layers:
        if isinstance(layer, AttentionPooling):
            return "map"
        if isinstance(layer, TokenPooling) and layer.mode != "distillation":
            return layer.mode
    return None


def _check_labels(labels: Sequence[str], model: keras.Model, is_folder: bool) -> None:
    if not is_folder:
        raise ValueError(
            "`labels` are stored in the config.json of a Hugging Face folder. Leave them out, or "
            'pass a folder and `layout="huggingface"`.'
        )
    head = next((layer for layer in model.layers if layer.name == "predictions"), None)
    classes = 0 if head is None else head.units
    if len(labels) != classes or len(set(labels)) != classes:
        raise ValueError(
            f"`labels` must be {classes} different names, one for each class of the model. "
            f"Received: {len(labels)} names, {len(set(labels))} different."
        )


def _check_suffix(layout: Layout, path: Path) -> None:
    needed = {"google": ".npz", "timm": _FILE, "openclip": _FILE}.get(layout)
    if needed is not None and path.suffix != needed:
        raise ValueError(
            f'The layout "{layout}" is written into a file *{needed}. Received: {path.name!r}.'
        )
    if layout == "huggingface" and path.suffix in _OTHER_FILES:
        raise ValueError(
            f'The layout "huggingface" is written into a folder, or into a file *{_FILE}. Received: '
            f"{path.name!r}."
        )


def _layout_of(path: Path) -> Layout:
    layouts: dict[str, Layout] = {".npz": "google", ".safetensors": "timm", "": "huggingface"}
    if path.suffix not in layouts:
        raise ValueError(
            f"Cannot derive the layout from the name {path.name!r}. Use *.npz (Google), "
            "*.safetensors (timm) or a folder (Hugging Face), or pass `layout`. For Keras's "
            "format call `model.save_weights`."
        )
    return layouts[path.suffix]


def _find_first_images(model: keras.Model) -> keras.KerasTensor:
    """Returns the images that the first layer with weights, or of this package, receives.

    Layers of a user that resize them may be in front of it.
    """
    for call in calls_of(model):
        is_ours = type(call.operation).__module__.startswith("keras_vit.")
        if is_ours or getattr(call.operation, "weights", None):
            return call.input_tensors[0]
    return model.inputs[0]
