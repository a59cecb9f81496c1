"""Metadata of an exported model: package, weights, input, and the images it was judged on."""

import datetime
import hashlib
import importlib.metadata
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.data.transforms import describe_crop, eval_crop
from keras_vit.export.examples import Examples
from keras_vit.imagenet import class_names as imagenet_names
from keras_vit.pixels import RANGES, pixels_of
from keras_vit.writing import to_one_line

FILE = "keras_vit.json"
CHECKSUMS_FILE = "SHA256SUMS"
EXTRA_FOLDER = "assets.extra"  # folder of a SavedModel that TensorFlow ignores


def describe(
    model: keras.Model,
    *,
    accepted: Mapping[str, float],
    judged: Examples,
    calibration: Examples | None = None,
    eval_crop: str = "resize",
    identity: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the metadata of an export, as values that JSON can store.

    Args:
        model: The exported model.
        accepted: Thresholds of the comparison: largest "max_error", smallest "top1_agreement".
        judged: Images on which export and model are compared.
        calibration: Calibration images for int8.
        eval_crop: Policy by which images are resized, as in
            `keras_vit.data.transforms.eval_crop`.
        identity: Origin of the weights: name of the model in the table, tag or file, hash.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=10)
        >>> from keras_vit.export.examples import take
        >>> judged = take(None, (32, 48), 5)
        >>> facts = describe(model, accepted={"max_error": 1e-4}, judged=judged, identity={"weights": "none"})
        >>> facts["input"]["image_size"], facts["weights"], len(facts["variables_sha256"])
        ([32, 48], 'none', 64)
        >>> facts["judged"]["num_images"], facts["judged"]["images"]
        (5, '5 generated pictures')
    """
    size = list(model.inputs[0].shape[1:3])
    return {
        "model": model.name,
        **(identity or {}),
        "variables_sha256": variables_sha256(model),
        "parameters": model.count_params(),
        "input": {
            "image_size": size,
            "dtype": "float32",
            "channels": "RGB",
            "range": pixels_of(model).range,
            "resize": eval_crop,
            "resize_in_words": describe_crop(eval_crop),
        },
        "accepted": dict(accepted),
        "judged": {
            "images": judged.name,
            "num_images": len(judged.images),
            "left_out": [": ".join(skipped) for skipped in judged.left_out],
            "sha256": judged.fingerprint(),
        },
        "calibrated_on": [] if calibration is None else calibration.fingerprints(),
        "checksums": CHECKSUMS_FILE,
        "made_with": {
            name: importlib.metadata.version(name) for name in ("keras-vit", "keras", "tensorflow")
        },
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes the metadata of the exports in a folder."""
    (folder / FILE).write_bytes(as_json(facts))


def as_json(facts: Mapping[str, Any]) -> bytes:
    """Encodes metadata as JSON in UTF-8. Bytes of a path that are not UTF-8 are escaped."""
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def facts_folder(export: Path) -> Path:
    """Returns the folder of the metadata: inside a SavedModel, or that of a file."""
    return export / EXTRA_FOLDER if export.is_dir() else export.parent


def read_facts(export: Path) -> dict[str, Any]:
    """Reads the metadata of a SavedModel (a folder) or a file.

    Raises:
        ValueError: If the metadata are missing or damaged.
    """
    path = facts_folder(export) / FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        wrong = _find_faults(facts)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{export} was not exported by keras_vit, or its {path} is damaged: {error}"
        ) from error
    if wrong:
        raise ValueError(f"{path} is damaged: {'; '.join(wrong)}.")
    return facts


def _find_faults(facts: Any) -> list[str]:
    """Lists the fields that a check needs and that do not have the form `describe` writes."""
    if not isinstance(facts, dict):
        return [f"expected an object, received {facts!r:.40}"]
    taken, accepted = facts.get("input"), facts.get("accepted")
    taken, accepted = (each if isinstance(each, dict) else {} for each in (taken, accepted))
    bounds = accepted.get("max_error", 0.0)
    bounds = list(bounds.values()) if isinstance(bounds, dict) else [bounds]
    calibrated, judged = facts.get("calibrated_on", []), facts.get("judged", {})
    rules = {
        "model": isinstance(facts.get("model"), str),
        "variables_sha256": isinstance(facts.get("variables_sha256"), str),
        "input.image_size": is_size(taken.get("image_size")),
        "input.dtype": taken.get("dtype") in ("float32", "uint8"),
        "input.range": taken.get("range") in [[*ends] for ends in RANGES.values()],
        "input.resize": _is_crop(taken.get("resize", "resize"), taken.get("image_size")),
        "accepted": bool({"max_error", "top1_agreement"} & set(accepted)),
        "accepted.max_error": all(_is_number(bound) and bound >= 0 for bound in bounds),
        "accepted.top1_agreement": _is_number(accepted.get("top1_agreement", 0))
        and 0 <= accepted.get("top1_agreement", 0) <= 1,
        "judged": isinstance(judged, dict) and isinstance(judged.get("sha256", ""), str),
        "num_images": type(facts.get("num_images", 1)) is int and facts.get("num_images", 1) > 0,
        "calibrated_on": isinstance(calibrated, list)
        and all(isinstance(word, str) for word in calibrated),
    }
    return [f"{name} is invalid" for name, is_right in rules.items() if not is_right]


def is_size(value: Any) -> bool:
    """Returns whether a value from JSON is [height, width] in pixels."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(side) is int and 0 < side < 2**16 for side in value)
    )


def _is_crop(value: Any, image_size: Any) -> bool:
    """Returns whether a value from JSON is a policy of `eval_crop` for images of this size."""
    if not isinstance(value, str) or not is_size(image_size):
        return False
    try:
        eval_crop(value, tuple(image_size))
    except ValueError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def variables_sha256(model: keras.Model) -> str:
    """Returns a hash of all weights in their order, independent of the file they came from."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(keras.ops.convert_to_numpy(weight.value).tobytes())
    return digest.hexdigest()


def labels_of(num_classes: int, class_names: Sequence[str] = ()) -> list[str]:
    """Returns a name for each class: the given ones, else ImageNet's if their number matches, else
    numbers.

    Names are reduced to one line, and empty names are replaced by numbers.

    Raises:
        ValueError: If the number of names differs from the number of classes.

    Example:
        >>> labels_of(2, ["cat", "dog"]), labels_of(3), labels_of(1000)[:2]
        (['cat', 'dog'], ['class 0', 'class 1', 'class 2'], ['tench', 'goldfish'])
    """
    if len(class_names):
        if len(class_names) != num_classes:
            raise ValueError(
                f"The model has {num_classes} classes. Received: {len(class_names)} names."
            )
        # TensorFlow skips empty lines.
        return [
            to_one_line(str(name)) if str(name).strip() else f"class {index}"
            for index, name in enumerate(class_names)
        ]
    return imagenet_names(num_classes) or [f"class {index}" for index in range(num_classes)]
