"""A model as TensorFlow Serving wants it: a folder with a number, and in it a graph with named
signatures.

    PATH/1/saved_model.pb, variables/              the graph and the weights; no Python code is needed to run them
    PATH/1/assets/classes.txt                      names of the classes, one a line; the graph reads them from here
    PATH/1/assets.extra/keras_vit.json             which package and weights, what goes in, how far it is from the model
    PATH/1/assets.extra/reference.npz              images and what the model gave, to check the export without the model
    PATH/1/assets.extra/SHA256SUMS                 checksums of all files
    PATH/1/assets.extra/tf_serving_warmup_requests what the server asks before it says that it is ready

The signatures are listed in `signatures.py`.
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
from keras_vit.export import examples, metadata, verdicts
from keras_vit.export.checksums import write_checksums
from keras_vit.export.image_bytes import MAX_PIXELS, STATUSES
from keras_vit.export.reference import write_reference
from keras_vit.export.signatures import signatures
from keras_vit.export.subject import subject_of
from keras_vit.export.versions import new_version
from keras_vit.export.warmup import write_warmup
from keras_vit.pixels import copy_declaration
from keras_vit.quiet import quiet_conversion

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
# Greatest difference of an output, as a part of the greatest output (or of 1 where all are
# smaller). Measured: 1e-6 in float32; in bfloat16, whose numbers have 8 bits, 1 % for ViT-B/16 and
# 2 % for R50+ViT-B/16. Deeper models have more. A graph that computes something else is off by
# about 1.
_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}
_EVAL_CROPS = ("resize", "resize_shorter")


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
    """Writes a model as the next version in a folder, whole or not at all; older versions stay.

    Before it takes its place, the export is loaded in a process without Keras and compared with the
    model.

    Args:
        model: Functional, of one input (B, H, W, 3) and one output; stays as it is.
        path: Folder of all versions; its last part is the name by which a server knows the model.
        class_names: In the order of the classes; default: ImageNet's where their number tells, else
            numbers.
        eval_crop: How files are brought to the size of the model: "resize" (the whole image, as in
            the paper) or "resize_shorter" (the middle, as in AugReg).
        top: Classes that `serving_default` names.
        attention: Add a signature for the attention weights of all layers.
        precision: What the graph computes in: "float32" or "bfloat16", with the same float32
            weights.
        any_size: Take images of all sizes, and resize them in the graph. Files may have any size
            anyway.
        image_size: Side in pixels, or (height, width), that images are resized to. Only for a model
            of any size, which needs it; its other signatures take any size without resizing, unless
            `any_size`.
        max_pixels: Files with more pixels are refused, unread; see
            `keras_vit.export.image_bytes.MAX_PIXELS`.
        identity: What is known of the weights, for the metadata: the tag or file, its hash.
        images: To compare model and export on; default: generated pictures. See
            `keras_vit.export.examples.take`.
        num_images: On how many of them, at most.
        calibration: Images that set the ranges of an int8 file of the same model; recorded, so that
            `export --check` leaves them out here too.
        warmup: Write requests that TensorFlow Serving replays before it says that it is ready.

    Returns:
        The folder of the version, `path/<number>`.

    Raises:
        ValueError: If the model or an argument does not fit, or the export gives something else
            than the model.
    """
    _check(eval_crop=eval_crop, top=top, precision=precision)
    subject = subject_of(model, image_size, class_names)
    size = subject.image_size
    judged = examples.take(images, size, num_images, crop=eval_crop)
    levels = judged.pixels()
    expected = replace(subject, model=_computing_in(model, "float32")).answers(levels)
    with new_version(path) as version:
        asked = _write_graph(
            _computing_in(model, _POLICIES[precision]),
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
        accepted = {"max_error": _TOLERANCES[precision] * max(1.0, float(np.abs(expected).max()))}
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
        facts["signatures"] = {name: _words(function) for name, function in asked.items()}
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
    for name, value, valid in (
        ("precision", precision, tuple(_POLICIES)),
        ("eval_crop", eval_crop, _EVAL_CROPS),
    ):
        if value not in valid:
            raise ValueError(f"`{name}` must be one of {', '.join(valid)}. Received: {value!r}.")
    if top < 1:
        raise ValueError(f"`top` must be at least 1. Received: {top}.")


def _computing_in(model: keras.Model, policy: str) -> keras.Model:
    """The model, or one with its weights that computes in another precision; its head stays in
    float32, as in training.

    Weights are float32 in either.
    """

    def policy_of(layer: keras.layers.Layer) -> keras.DTypePolicy:
        is_end = isinstance(layer, keras.layers.InputLayer) or layer.name == "predictions"
        return keras.DTypePolicy("float32" if is_end else policy)

    def converted(layer: keras.layers.Layer) -> keras.layers.Layer:
        return type(layer).from_config(layer.get_config() | {"dtype": policy_of(layer).name})

    layers = [layer for layer in model.layers if not isinstance(layer, keras.Model)]
    if all(layer.compute_dtype == policy_of(layer).compute_dtype for layer in layers):
        return model
    clone = keras.models.clone_model(model, clone_function=converted, recursive=True)
    clone.set_weights(model.get_weights())
    copy_declaration(model, clone)
    return clone


def _write_graph(
    model: keras.Model, folder: Path, labels: Sequence[str], **options: Any
) -> dict[str, Callable[..., dict[str, tf.Tensor]]]:
    """Returns the signatures."""
    file = folder / "classes.txt"  # TensorFlow copies it to `assets`
    file.write_text("\n".join([*labels, ""]), encoding="utf-8")
    holder, asked = signatures(model, class_file=file if labels else None, **options)
    with quiet_conversion():
        tf.saved_model.save(holder, str(folder), signatures=asked)
    file.unlink()
    return asked


def _words(function: Callable) -> dict[str, dict[str, str]]:
    """What a signature takes and gives, for people."""
    sides = {
        "takes": {spec.name: spec for spec in function.input_signature},
        "gives": function.get_concrete_function().structured_outputs,
    }
    return {
        side: {name: f"{tensor.dtype.name} {tensor.shape}" for name, tensor in tensors.items()}
        for side, tensors in sides.items()
    }


def _check_close(verdict: verdicts.Verdict, accepted: float) -> None:
    """Raises a ValueError if the export is further from the model in float32 than rounding
    explains.
    """
    if verdict.max_error > accepted:
        raise ValueError(
            f"The export gives outputs that are up to {verdict.max_error:.2g} off those of the "
            f"model, and rounding "
            f"explains {accepted:.2g}. Nothing was written."
        )
