"""Extraction of features from any layer of a model, into memory or into a folder.

`feature_store.py` writes the folder.
"""

import hashlib
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.reading import Unreadable, forget_from
from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.evaluate.config_hash import config_sha256
from keras_vit.evaluate.feature_store import FeatureStore, read
from keras_vit.evaluate.heads import strip_head
from keras_vit.evaluate.outputs import Outputs, outputs
from keras_vit.folder_lock import lock_folder
from keras_vit.graph import calls_of
from keras_vit.layers import TokenPooling, TransformerBlock
from keras_vit.layers.tokens import count_prefix_tokens
from keras_vit.models.class_token import ClassTokenModel
from keras_vit.pixels import is_declared, pixels_of
from keras_vit.suggestions import did_you_mean
from keras_vit.writing import explain_full_disk

LAYERS = ("pre_logits", "class_token", "patch_mean")  # or the name of any layer


@dataclass(frozen=True, kw_only=True)
class Features:
    """Outputs of a layer for the images of a source, one row for each readable image.

    Attributes:
        values: (n, ...) float32; memory-mapped and read-only if loaded from a folder.
        labels: (n,) int64, from 0.
        indices: (n,) int64, indices of the images in the source.
        class_names: Names in the order of the labels.
        name: Name of the source.
    """

    values: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    class_names: tuple[str, ...]
    name: str


def extract(
    model: keras.Model,
    source: Source,
    *,
    layer: str = "pre_logits",
    output: str | os.PathLike | None = None,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    strict: bool = False,
    progress: bool = True,
) -> Features:
    """Extracts the outputs of a layer for the images of a source. Unreadable images are skipped.

    Args:
        model: A model of this package, or any functional model with a layer of that name.
        source: The images.
        layer: "pre_logits": the input of the head, as in few-shot evaluation; "class_token": the
            class token after the last normalization; "patch_mean": the mean of the patch tokens
            there, or of a ResNet's feature map; or the name of a layer. A fine-tuned MAE does not
            normalize its tokens, so they are those of its last block.
        output: Folder for the features, instead of memory. The same call on the same folder resumes
            an interrupted extraction, or returns the finished features.
        image_size, eval_crop, batch_size, devices, progress: As in
            `keras_vit.evaluate.outputs.outputs`.
        strict: Raises an error for an unreadable image.

    Raises:
        ValueError: If the model has no such layer, the folder contains other features, another
            process is writing to it, no image can be read, or a feature is NaN or infinite.
        OSError: If the disk is full, or `output` cannot be written. Rows that were saved before are
            kept.

    Example:
        >>> from keras_vit.data import sources
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> features = extract(model, sources.digits("test"), layer="patch_mean")
        >>> features.values.shape, features.labels[:3].tolist()
        ((360, 192), [2, 3, 4])
    """
    reader = feature_model(model, layer)
    options = {
        "image_size": image_size,
        "eval_crop": eval_crop,
        "batch_size": batch_size,
        "devices": devices,
    }
    if output is None:
        given = outputs(
            reader,
            source,
            unreadable=Unreadable(source, strict=strict),
            progress=progress,
            **options,
        )
        return _collect(given, source)
    record, folder = (
        _make_record(model, source, layer, image_size, eval_crop),
        Path(output).expanduser(),
    )
    is_chief = devices is None or devices.is_chief
    with _lock_until_finished(folder) if is_chief else nullcontext():
        store = FeatureStore(folder, record, is_chief=is_chief)
        if not store.is_finished:
            _fill(store, reader, source, strict, progress, options)
    features = load(folder)
    if strict and len(features.indices) < source.num_examples:
        missing = source.num_examples - len(features.indices)
        raise ValueError(
            f"{missing} images of {source.name} could not be read, see {folder / 'unreadable.txt'}."
        )
    return features


@contextmanager
def _lock_until_finished(folder: Path) -> Iterator[None]:
    """Locks a folder while it is written. Finished folders may be read by several processes."""
    if (folder / "features.json").exists():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        yield


def _fill(
    store: FeatureStore,
    reader: keras.Model,
    source: Source,
    strict: bool,
    progress: bool,
    options: dict[str, Any],
) -> None:
    """Extracts the rows that the folder does not contain yet."""
    devices, record = options["devices"], store.folder / "unreadable.txt"
    if store.is_chief:  # images that are read again may have been repaired
        forget_from(record, source, store.next)
    _check_same_start(store.next, devices)  # waits for the chief
    collector = Unreadable(source, strict=strict, record=record)
    with explain_full_disk(
        store.folder, "The rows saved before are kept: the same call continues from them"
    ):
        with store:
            for part in outputs(
                reader, source, unreadable=collector, start=store.next, progress=progress, **options
            ):
                _check_finite(part, source)
                store.append(part.values, part.labels, part.indices)
        store.finish(source.name, source.class_names)
    _check_same_start(0, devices)  # wait until the first worker has written the features


def load(folder: str | os.PathLike) -> Features:
    """Loads the features that `extract` wrote to a folder, memory-mapped.

    Raises:
        ValueError: If there are no features, or the extraction is not finished.
    """
    return Features(**read(Path(folder).expanduser()))


# Cached, so that it is compiled once for all sources.
_PARTS: weakref.WeakKeyDictionary[keras.Model, dict[str, keras.Model]] = weakref.WeakKeyDictionary()
# Models whose head was removed. A dense layer at their end is not a head, but a part of the trunk.
_HEADLESS: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def feature_model(model: keras.Model, layer: str) -> keras.Model:
    """Returns the part of a model from its images to a layer; see `extract` for the names.

    Of a part that ends before the head, "pre_logits" is the output.

    Raises:
        ValueError: If the model has no such layer. The message suggests similar names.
    """
    parts = _PARTS.setdefault(model, {})
    if layer not in parts:
        # Not `model.input`, which a Sequential model has only after it was called.
        images = model.inputs[0] if len(model.inputs) == 1 else model.inputs
        parts[layer] = ClassTokenModel(images, _find_output(model, layer), name=model.name)
        if layer == "pre_logits":
            _HEADLESS.add(parts[layer])
    return parts[layer]


def _find_output(model: keras.Model, layer: str) -> keras.KerasTensor:
    names = [step.name for step in model.layers]
    if layer == "pre_logits":
        return model.outputs[0] if model in _HEADLESS else strip_head(model)
    if layer == "class_token" and layer not in names:
        raise ValueError(
            f'{model.name} has no class token. Use `layer="patch_mean"` or "pre_logits".'
        )
    if layer in LAYERS and (tokens := _find_tokens(model)) is not None:
        mode = "token" if layer == "class_token" else "avg"
        return TokenPooling(mode, count_prefix_tokens(model))(tokens)
    if layer == "patch_mean" and {"avg_pool", "max_pool"} & {*names}:
        pool = "avg_pool" if "avg_pool" in names else "max_pool"
        return keras.layers.GlobalAveragePooling2D()(model.get_layer(pool).input)
    if layer in names:
        return _find_output_of(model, layer)
    known = [name for name in (*LAYERS, *names) if name != layer]
    raise ValueError(
        f"{model.name} has no layer {layer!r}.{did_you_mean(layer, known)} Its last layers are "
        f"{', '.join(names[-6:])}."
    )


def _find_tokens(model: keras.Model) -> keras.KerasTensor | None:
    """Returns the output tokens of a ViT; None for another model."""
    if any(step.name == "encoder_norm" for step in model.layers):
        return _find_output_of(model, "encoder_norm")
    blocks = [
        call
        for call in calls_of(model)
        # Rematerialization wraps a block.
        if isinstance(getattr(call.operation, "block", call.operation), TransformerBlock)
    ]
    return blocks[-1].output_tensors[0] if blocks else None


def _find_output_of(model: keras.Model, layer: str) -> keras.KerasTensor:
    # `layer.output` is that of the first model which contains the layer; of a nested model, its own.
    calls = [call for call in calls_of(model) if call.operation.name == layer]
    made = [tensor for call in calls for tensor in call.output_tensors]
    if len(made) != 1:
        raise ValueError(
            f"The layer {layer!r} of {model.name} has {len(made)} outputs. Expected one: choose "
            f"another layer."
        )
    return made[0]


def _collect(given: Iterable[Outputs], source: Source) -> Features:
    values: np.ndarray | None = None
    labels, indices, count = [], [], 0
    for part in given:
        _check_finite(part, source)
        if values is None:  # allocate once: growing the array would take twice the memory
            values = np.empty((source.num_examples, *part.values.shape[1:]), np.float32)
        values[count : count + len(part.values)] = part.values
        count += len(part.values)
        labels.append(part.labels)
        indices.append(part.indices)
    if values is None or not count:
        raise ValueError(f"No image of {source.name} could be read.")
    return Features(
        values=values[:count],
        labels=np.concatenate(labels).astype(np.int64),
        indices=np.concatenate(indices),
        class_names=source.class_names,
        name=source.name,
    )


def _check_finite(part: Outputs, source: Source) -> None:
    finite = np.isfinite(part.values).all(axis=tuple(range(1, part.values.ndim)))
    if not finite.all():
        raise ValueError(
            f"The features of image {part.indices[finite.argmin()]} of {source.name} are NaN or "
            "infinite. Check the weights of the model, and its precision."
        )


def _make_record(
    model: keras.Model,
    source: Source,
    layer: str,
    image_size: int | tuple[int, int] | None,
    eval_crop: str,
) -> dict[str, Any]:
    weights = hashlib.sha256()
    for variable in model.weights:
        weights.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    size = image_size or model.input_shape[1:3]
    declared = {"pixels": pixels_of(model).range} if is_declared(model) else {}
    num_prefix = count_prefix_tokens(model)
    # An earlier version left only the class token out of the mean.
    left_out = {"prefix_tokens": num_prefix} if layer == "patch_mean" and num_prefix > 1 else {}
    return {
        "model": model.name,
        "weights_sha256": weights.hexdigest(),
        "config_sha256": config_sha256(model),
        "precision": ", ".join(sorted({step.compute_dtype for step in model.layers})),
        "layer": layer,
        "source": source.name,
        "images_sha256": source.sha256(),
        "image_size": list(size) if isinstance(size, Iterable) else [size, size],
        "eval_crop": eval_crop,
        **declared,
        **left_out,
    }


def _check_same_start(start: int, devices: Devices | None) -> None:
    starts = [start] if devices is None else devices.gather(start)
    if len(set(starts)) > 1:
        raise ValueError(
            f"Workers would resume from different images: {starts}. `output` must be a folder that "
            f"all of them share."
        )
