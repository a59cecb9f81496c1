"""The JSON files beside weights: `config.json` of Hugging Face and of timm,
`preprocessor_config.json`, and `open_clip_config.json`, as metadata.

Source: transformers 5.24.0 `models/*/configuration_*.py`, `image_processing_utils.py`; timm 1.0.31
    `models/_hub.py`; open_clip 3.3.0 `model.py` (CLIPVisionCfg), `factory.py`.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.metadata import check, is_count, is_pair, parse, shorten
from keras_vit.weights.refusal import make_error

_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_PROCESSOR = "processor_config.json"  # of transformers 5, for models with several processors
_OPEN_CLIP, _OPEN_CLIP_HEAD_WIDTH = "open_clip_config.json", 64
_MAX_CONFIG_BYTES = 2**24
_GELU = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "quick_gelu": "quick",
}
_ROPE_THETA = 100.0
_TOWER_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip": {
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 32,
    },
    "siglip": {
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
    },
}
_OF_HEAD = ("architectures", "problem_type")
_CLASSIFIERS = {  # what the head of a class of Transformers reads
    "ViTForImageClassification": "token",
    "DeiTForImageClassification": "token",
    "DeiTForImageClassificationWithTeacher": "token",
    "IJepaForImageClassification": "gap",
    "Dinov2ForImageClassification": "token_gap",
    "Dinov2WithRegistersForImageClassification": "token_gap",
    "SiglipForImageClassification": "gap",
    "CLIPVisionModelWithProjection": "token",
}
_OTHER_PROBLEMS = ("regression", "multi_label_classification")
_TIMM_POOLING = {"token": "token", "avg": "gap", "map": "map"}
_TIMM_GELU = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
# Fields of a transformer's config. Other programs, such as timm, have none of them.
_OF_TRANSFORMER = ("hidden_act", "num_attention_heads", "layer_norm_eps")


def read_beside(path: Path) -> dict[str, Any]:
    """Returns the metadata in the JSON files beside a file: those of Hugging Face or timm, else that
    of OpenCLIP.

    Returns an empty dict if there are no such files, or if they have none of the known fields.

    Raises:
        ValueError: If one is not a JSON object, if its values are not valid, or if it describes a
            computation that no model of this package has.
    """
    config_path, clip_path = path.with_name(_CONFIG), path.with_name(_OPEN_CLIP)
    known = _read_open_clip(clip_path, _load(clip_path))
    known |= _read_config(config_path, _load(config_path))
    return known | _read_preprocessor(*_load_preprocessor(path))


def read_crop(path: str | os.PathLike) -> str | None:
    """Returns the crop of the evaluation, from `preprocessor_config.json` or timm's `config.json`.

    Args:
        path: The file, or its directory.

    Returns:
        A policy of `keras_vit.data.transforms.eval_crop`: "resize" for the whole image or
        "central:SHARE" for a central crop; None if the files say neither.

    Raises:
        ValueError: If one is not a JSON object.
    """
    path = Path(path)
    path = path / _CONFIG if path.is_dir() else path.with_name(_CONFIG)
    pretrained = _load(path).get("pretrained_cfg")
    if isinstance(pretrained, dict):
        return _find_timm_crop(pretrained)
    return _find_preprocessor_crop(_load_preprocessor(path)[1])


def is_timm(path: Path) -> bool:
    """Returns whether the `config.json` beside a file is that of timm, which has the pixels.

    Raises:
        ValueError: If it is not a JSON object.
    """
    return isinstance(_load(path.with_name(_CONFIG)).get("pretrained_cfg"), dict)


def has_processor(path: Path) -> bool:
    """Returns whether the `processor_config.json` beside a file describes the pixels.

    Raises:
        ValueError: If it is not a JSON object.
    """
    return isinstance(_load(path.with_name(_PROCESSOR)).get("image_processor"), dict)


def _find_timm_crop(config: dict[str, Any]) -> str | None:
    share, mode = config.get("crop_pct"), config.get("crop_mode") or "center"
    if not isinstance(share, float | int) or isinstance(share, bool) or not 0 < share <= 1:
        return None
    if mode == "squash":
        return "resize" if share == 1 else None
    return f"central:{share:g}" if mode == "center" else None


def _find_preprocessor_crop(config: dict[str, Any]) -> str | None:
    if config.get("do_resize", True) is False or "size" not in config:
        return None
    size, crop = config["size"], config.get("crop_size")
    is_cropped = config.get("do_center_crop") is True
    shortest: Any = size.get("shortest_edge") if isinstance(size, dict) else None
    if not is_cropped:
        return "resize" if shortest is None else None
    side: Any = crop.get("height") if isinstance(crop, dict) else crop
    if not is_count(shortest) or not is_count(side) or side > shortest:
        return None
    return f"central:{side / shortest:g}"


def check_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if the `config.json` beside a file contradicts its canonical arrays.

    Args:
        path: The file, or its directory.
        arrays: Canonical arrays.
    """
    path = Path(path)
    path = path / _CONFIG if path.is_dir() else path.with_name(_CONFIG)
    config = _select_image_model(_load(path))
    if not any(field in config for field in _OF_TRANSFORMER):
        return
    kernel = arrays.get("embedding/kernel")
    registers = arrays.get("registers")
    blocks = {name.split("/")[1] for name in arrays if "/encoderblock_" in name}
    is_gated = any("/Gate_0/" in name for name in arrays)
    found: dict[str, Any] = {
        "num_hidden_layers": len(blocks),
        "num_register_tokens": 0 if registers is None else registers.shape[1],
        "use_swiglu_ffn": is_gated,
        "use_gated_mlp": is_gated,
    }
    if kernel is not None and kernel.ndim == 4:
        found |= {"hidden_size": kernel.shape[-1]}
        if is_count(config.get("patch_size")):
            found |= {"patch_size": kernel.shape[0]}
    wrong = [
        f"{field} is {shorten(config[field])} and its arrays have {value}"
        for field, value in found.items()
        if field in config and config[field] != value
    ]
    if wrong:
        raise make_error(
            path, ", ".join(wrong), "Its weights belong to another config. Download both again."
        )


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise make_error(
            path,
            f"it has {path.stat().st_size} bytes, too many for the config of a model",
            "Correct the file.",
        )
    try:
        config = parse(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise make_error(path, f"it is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise make_error(path, f"it is not a JSON object but {shorten(config)}")
    return config


def _load_preprocessor(path: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the file beside a file that describes the pixels, and what it says."""
    beside, of_all = path.with_name(_PREPROCESSOR), path.with_name(_PROCESSOR)
    if beside.exists():
        return beside, _load(beside)
    part = _load(of_all).get("image_processor")
    return of_all, part if isinstance(part, dict) else {}


def _select_image_model(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that describes the image model, of CLIP and SigLIP.

    Transformers leaves fields of that part out which have the default of its class.
    """
    part = config.get("vision_config")
    if not isinstance(part, dict):
        return config
    family = str(part.get("model_type", config.get("model_type"))).partition("_")[0]
    shared = {name: config[name] for name in _OF_HEAD if name in config}
    return {**_TOWER_DEFAULTS.get(family, {}), **shared, **part}


def _read_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    config = _select_image_model(config)
    if isinstance(config.get("pretrained_cfg"), dict):
        return _read_timm_config(path, config)
    gelu = _parse_activation(path, config) if "hidden_act" in config else None
    if not any(field in config for field in _OF_TRANSFORMER):
        return {}
    _refuse_other_rotations(path, config)
    epsilon, size, patch = (
        config.get(key) for key in ("layer_norm_eps", "image_size", "patch_size")
    )
    known = {
        "layer_norm_epsilon": float(epsilon) if type(epsilon) is int else epsilon,
        "num_heads": config.get("num_attention_heads"),
        "image_size": [size, size] if is_count(size) else size,
        "gelu": gelu,
        "classifier": _find_classifier(config.get("architectures")),
    }
    if config.get("problem_type") in _OTHER_PROBLEMS:
        known["problem_type"] = config["problem_type"]
    if (pooler := config.get("pooler_act", "tanh")) != "tanh":
        raise make_error(
            path, f"pooler_act is {shorten(pooler)}", "Only tanh is implemented for the pooler."
        )
    known = check(path, {key: value for key, value in known.items() if value is not None})
    if patch is None or "image_size" not in known:
        return known
    patches = (patch, patch) if is_count(patch) else patch
    if not is_pair(patches):
        raise make_error(
            path, f"patch_size is {shorten(patch)}, expected an integer", "Correct the file."
        )
    grid = tuple(side // step for side, step in zip(known["image_size"], patches, strict=True))
    if not all(grid):
        raise make_error(
            path, f"its patches of {patches} are larger than its images of {known['image_size']}"
        )
    return known | {"grid": grid}


def _find_classifier(architectures: Any) -> str | None:
    names = architectures if isinstance(architectures, list) else []
    return next((_CLASSIFIERS[name] for name in map(str, names) if name in _CLASSIFIERS), None)


def _parse_activation(path: Path, config: dict[str, Any]) -> str | None:
    """Returns the form of GELU. A gated MLP has none, and its activation must be SiLU."""
    activation = config["hidden_act"]
    if config.get("use_swiglu_ffn") is True:  # DINOv2, whose class ignores the field
        return None
    if config.get("use_gated_mlp") is True:  # DINOv3
        if activation != "silu":
            raise make_error(
                path,
                f"hidden_act of its gated MLP is {shorten(activation)}",
                "Only silu is implemented.",
            )
        return None
    if not isinstance(activation, str) or activation not in _GELU:
        valid = ", ".join(_GELU)
        raise make_error(
            path, f"hidden_act is {shorten(activation)}", f"Only these are implemented: {valid}."
        )
    return _GELU[activation]


def _refuse_other_rotations(path: Path, config: dict[str, Any]) -> None:
    theta = config.get("rope_theta", _ROPE_THETA)
    if theta != _ROPE_THETA:
        raise make_error(
            path, f"rope_theta is {shorten(theta)}", f"Only {_ROPE_THETA:g} is implemented."
        )


def _read_timm_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    pretrained = config["pretrained_cfg"]
    known = {
        "pixel_mean": pretrained.get("mean"),
        "pixel_std": pretrained.get("std"),
        "gelu": _read_timm_activation(path, config) or _find_timm_gelu(config.get("architecture")),
        "classifier": _find_timm_classifier(path, config),
    }
    size = pretrained.get("input_size")
    if isinstance(size, list) and len(size) == 3:
        known["image_size"] = size[1:]
    return check(path, {key: value for key, value in known.items() if value is not None})


def _read_open_clip(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns heads, GELU, image size and pixels; those of a vision model of timm are not there."""
    model, pixels = config.get("model_cfg"), config.get("preprocess_cfg")
    model, pixels = (part if isinstance(part, dict) else {} for part in (model, pixels))
    known: dict[str, Any] = {"pixel_mean": pixels.get("mean"), "pixel_std": pixels.get("std")}
    vision = model.get("vision_cfg")
    if isinstance(vision, dict) and is_count(width := vision.get("width")):
        size, head_width = vision.get("image_size"), vision.get("head_width", _OPEN_CLIP_HEAD_WIDTH)
        if not is_count(head_width):
            raise make_error(path, f"head_width is {shorten(head_width)}, expected an integer")
        pooling = (
            "attentional" if vision.get("attentional_pool") else vision.get("pool_type", "tok")
        )
        if pooling != "tok":
            raise make_error(path, f"pool_type is {shorten(pooling)}", "Only tok is implemented.")
        approximate = (vision.get("act_kwargs") or {}).get("approximate", "none")
        gelu = "tanh" if approximate == "tanh" else "exact"
        known |= {
            "num_heads": width // head_width,
            "gelu": "quick" if model.get("quick_gelu") is True else gelu,
            "image_size": [size, size] if is_count(size) else size,
        }
    return check(path, {key: value for key, value in known.items() if value is not None})


def _read_timm_activation(path: Path, config: dict[str, Any]) -> str | None:
    arguments = config.get("model_args")
    name = arguments.get("act_layer") if isinstance(arguments, dict) else None
    return None if name is None else _look_up(path, "act_layer", name, _TIMM_GELU)


def _find_timm_gelu(architecture: Any) -> str | None:
    """timm builds CLIP's models with either GELU, which only their names tell."""
    if not isinstance(architecture, str) or "_clip_" not in architecture:
        return None
    return "quick" if "quickgelu" in architecture else "exact"


def _find_timm_classifier(path: Path, config: dict[str, Any]) -> str | None:
    pooling = config.get("global_pool")
    if pooling is None or config.get("num_classes") == 0:
        return None
    return _look_up(path, "global_pool", pooling, _TIMM_POOLING)


def _look_up(path: Path, field: str, value: Any, valid: Mapping[str, str]) -> str:
    if not isinstance(value, str) or value not in valid:
        raise make_error(
            path,
            f"{field} is {shorten(value)}",
            f"Only these are implemented: {', '.join(valid)}.",
        )
    return valid[value]


def _as_color(value: Any) -> Any:
    """Returns a mean or deviation of all colors, such as that of images of one channel, as three."""
    if type(value) in (int, float):
        return [value] * 3
    return value * 3 if isinstance(value, list) and len(value) == 1 else value


def _read_preprocessor(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns mean and deviation of pixels from 0 to 1."""
    if not any(key in config for key in ("image_mean", "image_std", "do_normalize", "do_rescale")):
        return {}
    mean, std = (_as_color(config.get(name)) for name in ("image_mean", "image_std"))
    if config.get("do_normalize", True) is False:
        mean, std = [0.0] * 3, [1.0] * 3
    known = {"pixel_mean": mean, "pixel_std": std}
    known = check(path, {key: value for key, value in known.items() if value is not None})
    factor = config.get("rescale_factor", 1 / 255)
    if type(factor) not in (int, float) or not 0 < factor <= 1:
        raise make_error(
            path, f"rescale_factor is {shorten(factor)}, expected a number above 0 and up to 1"
        )
    scale = 255.0 * (factor if config.get("do_rescale", True) is not False else 1.0)
    if math.isclose(scale, 1.0):
        return known
    scaled = {key: [value / scale for value in color] for key, color in known.items()}
    return check(path, scaled)
