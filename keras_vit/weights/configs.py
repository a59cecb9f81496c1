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
    config_path, pixels_path = path.with_name(_CONFIG), path.with_name(_PREPROCESSOR)
    clip_path = path.with_name(_OPEN_CLIP)
    known = _read_open_clip(clip_path, _load(clip_path))
    known |= _read_config(config_path, _load(config_path))
    return known | _read_preprocessor(pixels_path, _load(pixels_path))


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
    return _find_preprocessor_crop(_load(path.with_name(_PREPROCESSOR)))


def is_timm(path: Path) -> bool:
    """Returns whether the `config.json` beside a file is that of timm, which has the pixels.

    Raises:
        ValueError: If it is not a JSON object.
    """
    return isinstance(_load(path.with_name(_CONFIG)).get("pretrained_cfg"), dict)


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
        config = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise make_error(path, f"it is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise make_error(path, f"it is not a JSON object but {shorten(config)}")
    return config


def _select_image_model(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that describes the image model, of CLIP and SigLIP."""
    part = config.get("vision_config")
    return part if isinstance(part, dict) else config


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
    }
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
        "gelu": _find_timm_gelu(config.get("architecture")),
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
        known |= {
            "num_heads": width // head_width,
            "gelu": "quick" if model.get("quick_gelu") is True else "exact",
            "image_size": [size, size] if is_count(size) else size,
        }
    return check(path, {key: value for key, value in known.items() if value is not None})


def _find_timm_gelu(architecture: Any) -> str | None:
    """timm builds CLIP's models with either GELU, which only their names tell."""
    if not isinstance(architecture, str) or "_clip_" not in architecture:
        return None
    return "quick" if "quickgelu" in architecture else "exact"


def _read_preprocessor(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns mean and deviation of pixels from 0 to 1."""
    if not any(key in config for key in ("image_mean", "image_std", "do_normalize", "do_rescale")):
        return {}
    mean, std = config.get("image_mean"), config.get("image_std")
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
