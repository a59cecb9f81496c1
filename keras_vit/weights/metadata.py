"""Metadata of a checkpoint: the numbers that travel with its arrays, and the one check of them.

What lives here: which keys there are, what each may be, and the `config.json` of Hugging Face in
these terms. What does not: where a kind of file keeps them (`npz.py`, `tensors.py`, `keras_h5.py`).

A key that is not in the table belongs to somebody else and passes unchanged.
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
    # Models compute in float32, where a smaller number is zero, and a norm of equal numbers then
    # NaN.
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
    """Returns the metadata with lists as tuples, or refuses the file that has them.

    Raises:
        ValueError: If a value is of another type or size than its key allows; it lists them all.

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
    """Refuses an argument that is no grid.

    Example:
        >>> check_grid((2, 8))
    """
    if not _is_pair(grid):
        raise ValueError(f"`{name}` must be {_PAIR}, (rows, columns). Received: {_shorten(grid)}.")


def parse(text: str | bytes) -> Any:
    """Returns what a JSON text says.

    Raises:
        ValueError: If it is no JSON, or nested too deeply.

    Example:
        >>> parse('{"grid": [2, 3]}')
        {'grid': [2, 3]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_config(path: Path) -> dict[str, Any]:
    """Returns what the `config.json` of a Hugging Face ViT says; nothing if there is none, or if it
    is of other models.

    Raises:
        ValueError: If it is no JSON object, or if what it says is not valid.
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
            f"it has {path.stat().st_size} bytes, more than a description of a model",
            "Correct the file.",
        )
    try:
        config = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise make_error(path, f"it is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise make_error(path, f"it is no JSON object but {_shorten(config)}")
    return config


def _shorten(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # an integer of thousands of digits
        return f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else f"{text[:60]}..."
