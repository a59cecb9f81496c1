"""Export to a SavedModel for TensorFlow Serving.

    PATH/1/saved_model.pb, variables/              graph and weights; they run without Python code of the model
    PATH/1/assets/classes.txt                      class names, one per line, which the graph reads
    PATH/1/assets.extra/keras_vit.json             package, weights, input, differences from the model
    PATH/1/assets.extra/reference.npz              images and outputs of the model, to check the export without it
    PATH/1/assets.extra/SHA256SUMS                 checksums of all files
    PATH/1/assets.extra/tf_serving_warmup_requests requests that the server replays before it is ready

`signatures.py` lists the signatures.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.sources import Source
from keras_vit.data.transforms import check_eval_crop
from keras_vit.export import examples, metadata, verdicts
from keras_vit.export.checksums import write_checksums
from keras_vit.export.image_bytes import MAX_PIXELS, STATUSES
from keras_vit.export.reference import write_reference
from keras_vit.export.signatures import signatures
from keras_vit.export.subject import subject_of
from keras_vit.export.versions import new_version
from keras_vit.export.warmup import write_warmup
from keras_vit.graph import has_graph
from keras_vit.pixels import copy_declaration
from keras_vit.quiet import quiet_conversion

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
# Largest difference of an output, relative to the largest output. Measured: 1e-6 in float32; in
# bfloat16, which has 8 significant bits, 1 % for ViT-B/16 and 2 % for R50+ViT-B/16. Deeper models
# differ more. The outputs of a wrong graph differ by about 1.
_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    class_names: Sequence[str] = (),
    eval_crop: str = "resize",
    top: int = 5,
    attention: bool = False,
    precision: str = "float32",
    any_size: bool = False,
    image_size: int | tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    identity: Mapping[str, Any] | None = None,
    images: examples.Examples | Source | np.ndarray | None = None,
    num_images: int = 8,
    calibration: examples.Examples | None = None,
    warmup: bool = True,
) -> Path:
    """Writes a model as the next version in a folder, atomically. Existing versions are kept.

    Before it is published, the export is loaded in a process without Keras and compared with the
    model.

    Args:
        model: Functional model with one input (B, H, W, 3) and one output. It is not modified.
        path: Folder of all versions. Its last part is the name of the model on the server.
        class_names: Names in the order of the classes. Default: ImageNet's if their number matches,
            else numbers.
        eval_crop: Policy by which files are resized: "resize" (the whole image, as in the paper),
            "resize_shorter" (a central crop, as in AugReg) or "central:SHARE", see
            `keras_vit.data.transforms.eval_crop`.
        top: Number of classes that `serving_default` returns.
        attention: Adds a signature for the attention weights of all layers.
        precision: Precision of the computation: "float32" or "bfloat16". The weights are float32 in
            both.
        any_size: Accepts arrays of all sizes and resizes them in the graph. Files may always have
            any size.
        image_size: Side in pixels, or (height, width), to which images are resized. Required if the
            model takes any size, else not allowed to differ. Signatures that take arrays do not
            resize, unless `any_size` is true.
        max_pixels: Files with more pixels are not decoded; see
            `keras_vit.export.image_bytes.MAX_PIXELS`.
        identity: Origin of the weights, for the metadata: tag or file, hash.
        images: Images on which model and export are compared. Default: generated pictures. See
            `keras_vit.export.examples.take`.
        num_images: Maximum number of these images.
        calibration: Calibration images of an int8 file of the same model. They are recorded, so that
            `export --check` does not judge on them.
        warmup: Writes requests that TensorFlow Serving replays before it reports that it is ready.

    Returns:
        The folder of the version, `path/<number>`.

    Raises:
        ValueError: If the model or an argument does not fit, or the outputs of the export differ
            from those of the model.
    """
    _check(eval_crop=eval_crop, top=top, precision=precision)
    subject = subject_of(model, image_size, class_names)
    size = subject.image_size
    judged = examples.take(images, size, num_images, crop=eval_crop)
    levels = judged.pixels()
    expected = replace(subject, model=_cast(model, "float32")).answers(levels)
    written = _cast(model, _POLICIES[precision])
    with new_version(path) as version:
        asked = _write_graph(
            written,
            version.folder,
            subject.labels,
            image_size=size,
            eval_crop=eval_crop,
            top=top,
            attention=attention,
            any_size=any_size,
            max_pixels=max_pixels,
        )
        if warmup:
            jpeg = tf.io.encode_jpeg(levels[0]).numpy()
            write_warmup(version.folder, Path(path).name, asked, image_size=size, jpeg=jpeg)
        accepted = {"max_error": _TOLERANCES[precision] * float(np.abs(expected).max())}
        facts = metadata.describe(
            model,
            accepted=accepted,
            judged=judged,
            calibration=calibration,
            eval_crop=eval_crop,
            identity=identity,
        )
        facts["input"]["image_size"] = list(size)
        facts["precision"] = precision
        facts["files"] = {
            "formats": ["JPEG", "PNG"],
            "max_pixels": max_pixels,
            "statuses": list(STATUSES),
        }
        facts["signatures"] = {
            name: _describe_signature(function) for name, function in asked.items()
        }
        verdict = verdicts.judge(
            version.folder,
            subject.inputs(levels),
            expected,
            labels=judged.labels,
            name="SavedModel",
        )
        _check_close(verdict, accepted["max_error"])
        facts["parity"] = {
            name: value for name, value in asdict(verdict).items() if name != "version"
        }
        extra = version.folder / metadata.EXTRA_FOLDER
        extra.mkdir(exist_ok=True)
        write_reference(extra, levels, expected)
        metadata.write_facts(extra, facts)
        write_checksums(version.folder, extra)
    return version.path


def _check(*, eval_crop: str, top: int, precision: str) -> None:
    check_eval_crop(eval_crop)
    if precision not in _POLICIES:
        raise ValueError(
            f"`precision` must be one of {', '.join(_POLICIES)}. Received: {precision!r}."
        )
    if top < 1:
        raise ValueError(f"`top` must be at least 1. Received: {top}.")


def _cast(model: keras.Model, policy: str) -> keras.Model:
    """Returns the model, or a copy that computes in another precision with the same weights."""

    # As in training, the head stays in float32.
    def policy_of(layer: keras.layers.Layer) -> keras.DTypePolicy:
        is_end = isinstance(layer, keras.layers.InputLayer) or layer.name == "predictions"
        return keras.DTypePolicy("float32" if is_end else policy)

    def converted(layer: keras.Operation) -> keras.Operation:
        if not isinstance(layer, keras.layers.Layer):  # an operation, which has no precision
            return type(layer).from_config(layer.get_config())
        return type(layer).from_config(layer.get_config() | {"dtype": policy_of(layer).name})

    layers = model._flatten_layers(include_self=False)
    nested = [layer for layer in layers if isinstance(layer, keras.Model)]
    if all(
        layer.compute_dtype == policy_of(layer).compute_dtype
        for layer in layers
        if layer not in nested
    ):
        return model
    subclassed = [layer.name for layer in nested if not has_graph(layer)]
    if subclassed:
        raise ValueError(
            f"The precision of {model.name} cannot be changed to {policy}: it contains "
            f"{', '.join(subclassed)}, a subclass of keras.Model. Omit `precision`, or rebuild that "
            "part as a functional model in float32."
        )
    clone = keras.models.clone_model(model, clone_function=converted, recursive=True)
    clone.set_weights(model.get_weights())
    copy_declaration(model, clone)
    return clone


def _write_graph(
    model: keras.Model, folder: Path, labels: Sequence[str], **options: Any
) -> dict[str, Callable[..., dict[str, tf.Tensor]]]:
    """Saves the graph with its weights, and returns the signatures."""
    file = folder / "classes.txt"  # TensorFlow copies it to `assets`
    file.write_text("\n".join([*labels, ""]), encoding="utf-8")
    holder, asked = signatures(model, class_file=file if labels else None, **options)
    # TensorFlow does not reuse a trace made during `save`, so `_describe_signature` would trace again.
    traced = {name: function.get_concrete_function() for name, function in asked.items()}
    with quiet_conversion():
        tf.saved_model.save(holder, str(folder), signatures=traced)
    file.unlink()
    return asked


def _describe_signature(function: Callable) -> dict[str, dict[str, str]]:
    """Returns dtypes and shapes of the inputs and outputs of a signature, as text."""
    sides = {
        "takes": {spec.name: spec for spec in function.input_signature},
        "gives": function.get_concrete_function().structured_outputs,
    }
    return {
        side: {name: f"{tensor.dtype.name} {tensor.shape}" for name, tensor in tensors.items()}
        for side, tensors in sides.items()
    }


def _check_close(verdict: verdicts.Verdict, accepted: float) -> None:
    """Raises a ValueError if the export differs from the model by more than rounding explains."""
    if verdict.max_error > accepted:
        raise ValueError(
            f"The outputs of the export differ from those of the model by up to "
            f"{verdict.max_error:.2g}; rounding explains {accepted:.2g}. Nothing was written."
        )
