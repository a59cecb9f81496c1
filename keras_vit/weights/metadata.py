"""The metadata of a checkpoint: its keys and their checks; the `config.json` of Hugging Face.

`npz.py`, `tensors.py` and `keras_h5.py` store metadata in their formats. Keys that are not in the
table belong to other programs and are kept unchanged.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.refusal import make_error

_LARGEST_SIDE = 2**13  # of an image, in pixels
_MAX_CONFIG_BYTES = 2**24
_HUGGING_FACE_GELU = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
}


def _is_count(value: Any, largest: int = _LARGEST_SIDE) -> bool:
    return type(value) is int and 0 < value <= largest


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_count, value))


def _is_epsilon(value: Any) -> bool:
    # In float32 a smaller number may be 0, and the norm of equal numbers would then be NaN.
    return type(value) is float and float(np.finfo(np.float32).tiny) <= value < 1


_PAIR = f"two integers from 1 to {_LARGEST_SIDE}"
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "grid": (_is_pair, f"{_PAIR}: rows and columns"),
    "image_size": (_is_pair, f"{_PAIR}: height and width"),
    "gelu": (
        lambda value: isinstance(value, str) and value in ("tanh", "exact"),
        '"tanh" or "exact"',
    ),
    "layer_norm_epsilon": (_is_epsilon, "a number above 0 and below 1"),
    "num_heads": (_is_count, f"an integer from 1 to {_LARGEST_SIDE}"),
}


def check(path: str | os.PathLike, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the metadata of a file, and returns it with lists as tuples.

    Raises:
        ValueError: If values have a type or size that their keys do not allow. The message lists
            all of them.

    Example:
        >>> check("model.npz", {"grid": [2, 3], "num_heads": 3})
        {'grid': (2, 3), 'num_heads': 3}
    """
    wrong = [
        f"{key} is {_shorten(metadata[key])}, expected {expected}"
        for key, (is_valid, expected) in _VALID.items()
        if key in metadata and not is_valid(metadata[key])
    ]
    if wrong:
        raise make_error(
            path,
            f"in its metadata {', and '.join(wrong)}",
            "Export it again, or correct the metadata.",
        )
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in metadata.items()
    }


def check_grid(grid: Any, name: str = "checkpoint_grid") -> None:
    """Raises ValueError if an argument is not a grid.

    Example:
        >>> check_grid((2, 8))
    """
    if not _is_pair(grid):
        raise ValueError(f"`{name}` must be {_PAIR}, (rows, columns). Received: {_shorten(grid)}.")


def parse(text: str | bytes) -> Any:
    """Parses a JSON text.

    Raises:
        ValueError: If it is not JSON, or nested too deeply.

    Example:
        >>> parse('{"grid": [2, 3]}')
        {'grid': [2, 3]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_config(path: Path) -> dict[str, Any]:
    """Returns the metadata in the `config.json` of a Hugging Face ViT.

    Returns an empty dict if there is no such file, or if it has no fields of a transformer.

    Raises:
        ValueError: If it is not a JSON object, or if its values are not valid.
    """
    if not path.exists():
        return {}
    config = _read_json(path)
    gelu = _parse_gelu(path, config) if "hidden_act" in config else None
    epsilon, size, patch = (
        config.get(key) for key in ("layer_norm_eps", "image_size", "patch_size")
    )
    if not any(key in config for key in ("hidden_act", "num_attention_heads", "layer_norm_eps")):
        return {}
    known = {
        "layer_norm_epsilon": float(epsilon) if type(epsilon) is int else epsilon,
        "num_heads": config.get("num_attention_heads"),
        "image_size": [size, size] if _is_count(size) else size,
        "gelu": gelu,
    }
    known = check(path, {key: value for key, value in known.items() if value is not None})
    if patch is None or "image_size" not in known:
        return known
    patches = (patch, patch) if _is_count(patch) else patch
    if not _is_pair(patches):
        raise make_error(
            path, f"patch_size is {_shorten(patch)}, expected an integer", "Correct the file."
        )
    grid = tuple(side // step for side, step in zip(known["image_size"], patches, strict=True))
    if not all(grid):
        raise make_error(
            path, f"its patches of {patches} are larger than its images of {known['image_size']}"
        )
    return known | {"grid": grid}


def _parse_gelu(path: Path, config: dict[str, Any]) -> str:
    activation = config["hidden_act"]
    if not isinstance(activation, str) or activation not in _HUGGING_FACE_GELU:
        valid = ", ".join(_HUGGING_FACE_GELU)
        raise make_error(
            path, f"hidden_act is {_shorten(activation)}", f"Only these are implemented: {valid}."
        )
    return _HUGGING_FACE_GELU[activation]


def _read_json(path: Path) -> dict[str, Any]:
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
        raise make_error(path, f"it is not a JSON object but {_shorten(config)}")
    return config


def _shorten(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # an integer of thousands of digits
        return f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else f"{text[:60]}..."
