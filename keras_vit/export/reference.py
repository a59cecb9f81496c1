"""What the model answered when it was exported, kept beside the export: so it can be checked without the model."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.examples import from_levels

FILE = "reference.npz"


def write_reference(folder: Path, pixels: np.ndarray, outputs: np.ndarray) -> None:
    """Writes images and what the model gives for them.

    Args:
        folder: Where to write.
        pixels: (n, H, W, 3) uint8. The outputs must be those of exactly these levels.
        outputs: (n, ...) float32.
    """
    np.savez(folder / FILE, pixels=pixels, outputs=outputs)


def read_reference(folder: Path, facts: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images, as the export takes them, and what the model gave for them.

    Args:
        folder: Where they are.
        facts: Of the export, see `metadata.py`.

    Raises:
        ValueError: If there are none.

    Example:
        >>> write_reference(Path("."), np.full((1, 1, 1, 3), 255, np.uint8), np.ones((1, 2), np.float32))
        >>> images, outputs = read_reference(Path("."), {"input": {"range": [-1, 1], "dtype": "float32"}})
        >>> images.tolist(), outputs.tolist()
        ([[[[1.0, 1.0, 1.0]]]], [[1.0, 1.0]])
    """
    if not (folder / FILE).is_file():
        raise ValueError(f"There is no {FILE} in {folder}, so nothing to compare with: export it again.")
    with np.load(folder / FILE) as kept:
        pixels, outputs = kept["pixels"], kept["outputs"]
    if facts["input"]["dtype"] == "uint8":
        return pixels, outputs
    return from_levels(pixels, takes_levels=facts["input"]["range"] == [0, 255]), outputs
