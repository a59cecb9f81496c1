"""The metadata of a checkpoint: its keys and their checks. `configs.py` reads `config.json`.

`npz.py`, `tensors.py` and `keras_h5.py` store metadata in their formats. Keys that are not in the
table belong to other programs and are kept unchanged.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from keras_vit.weights.refusal import make_error

_LARGEST_SIDE = 2**13  # of an image, in pixels
_LARGEST_PIXEL = 1e3  # mean and deviation of pixels from 0 to 1, also of files that scale them
_SMALLEST_STD = 1e-6


def is_count(value: Any, largest: int = _LARGEST_SIDE) -> bool:
    """Returns whether a value is an integer from 1 to the largest side of an image."""
    return type(value) is int and 0 < value <= largest


def is_pair(value: Any) -> bool:
    """Returns whether a value is a pair of such integers."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_count, value))


def _is_epsilon(value: Any) -> bool:
    # In float32 a smaller number may be 0, and the norm of equal numbers would then be NaN.
    return type(value) is float and float(np.finfo(np.float32).tiny) <= value < 1


def _is_color(value: Any, smallest: float) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 3
        and all(type(each) in (int, float) and smallest <= each <= _LARGEST_PIXEL for each in value)
    )


_PAIR = f"two integers from 1 to {_LARGEST_SIDE}"
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "grid": (is_pair, f"{_PAIR}: rows and columns"),
    "image_size": (is_pair, f"{_PAIR}: height and width"),
    "gelu": (
        lambda value: isinstance(value, str) and value in ("tanh", "exact", "quick"),
        '"tanh", "exact" or "quick"',
    ),
    "classifier": (
        lambda value: isinstance(value, str) and value in ("token", "gap", "map", "token_gap"),
        '"token", "gap", "map" or "token_gap"',
    ),
    "layer_norm_epsilon": (_is_epsilon, "a number above 0 and below 1"),
    "num_heads": (is_count, f"an integer from 1 to {_LARGEST_SIDE}"),
    "pixel_mean": (
        partial(_is_color, smallest=-_LARGEST_PIXEL),
        f"three numbers from -{_LARGEST_PIXEL:g} to {_LARGEST_PIXEL:g}",
    ),
    "pixel_std": (
        partial(_is_color, smallest=_SMALLEST_STD),
        f"three numbers from {_SMALLEST_STD:g} to {_LARGEST_PIXEL:g}",
    ),
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
        f"{key} is {shorten(metadata[key])}, expected {expected}"
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
    if not is_pair(grid):
        raise ValueError(f"`{name}` must be {_PAIR}, (rows, columns). Received: {shorten(grid)}.")


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


def shorten(value: Any) -> str:
    """Returns a value as text of at most 63 characters, for a message."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # an integer of thousands of digits
        return f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else f"{text[:60]}..."
