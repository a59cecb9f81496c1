"""Images and outputs recorded at export, to check an exported file later without the model."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.pixels import Pixels

FILE = "reference.npz"
_MOST_IMAGES = 8


def write_reference(folder: Path, pixels: np.ndarray, outputs: np.ndarray) -> None:
    """Writes the up to 8 images on which the model is most confident, and its outputs.

    Args:
        folder: Folder to write to.
        pixels: (n, H, W, 3) uint8. The outputs must have been computed from exactly these levels.
        outputs: (n, ...) float32.
    """
    # Rounding does not change the top class of these images, so an export that agreed with the
    # model on 95 % of all images agrees on them.
    highest = np.sort(outputs.reshape(len(outputs), -1), axis=1)[:, -2:]
    surest = np.sort(np.argsort(highest[:, 0] - highest[:, -1], kind="stable")[:_MOST_IMAGES])
    np.savez(folder / FILE, pixels=pixels[surest], outputs=outputs[surest])


def read_reference(folder: Path, facts: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the recorded images, as the export takes them, and the outputs of the model.

    Args:
        folder: Folder of the record.
        facts: Metadata of the export, see `metadata.py`.

    Raises:
        ValueError: If the record is missing or damaged.

    Example:
        >>> write_reference(Path("."), np.full((1, 1, 1, 3), 255, np.uint8), np.ones((1, 2), np.float32))
        >>> taken = {"image_size": [1, 1], "range": [-1, 1], "dtype": "float32"}
        >>> images, outputs = read_reference(Path("."), {"input": taken})
        >>> images.tolist(), outputs.tolist()
        ([[[[1.0, 1.0, 1.0]]]], [[1.0, 1.0]])
    """
    if not (folder / FILE).is_file():
        raise ValueError(
            f"{folder} has no {FILE}, so the file cannot be checked without its model: export it "
            f"again."
        )
    try:
        # If the file is not an archive, NumPy does not close it: open and close it here.
        with (folder / FILE).open("rb") as file, np.load(file, allow_pickle=False) as kept:
            pixels, outputs = kept["pixels"], kept["outputs"]
        _check(pixels, outputs, tuple(facts["input"]["image_size"]))
    # zipfile, zlib and NumPy raise a different error for each kind of damage.
    except Exception as error:
        raise ValueError(f"{folder / FILE} is damaged: {error or type(error).__name__}") from error
    if facts["input"]["dtype"] == "uint8":
        return pixels, outputs
    return Pixels(*facts["input"]["range"], "as exported").from_levels(
        pixels.astype(np.float32)
    ), outputs


def _check(pixels: np.ndarray, outputs: np.ndarray, image_size: tuple[int, int]) -> None:
    if pixels.dtype != np.uint8 or pixels.shape != (len(pixels), *image_size, 3) or not len(pixels):
        raise ValueError(
            f"expected images (n, {image_size[0]}, {image_size[1]}, 3) uint8, received "
            f"{pixels.shape}"
        )
    if (
        outputs.dtype != np.float32
        or outputs.ndim < 2
        or len(outputs) != len(pixels)
        or not outputs.size
    ):
        raise ValueError(
            f"expected float32 outputs of {len(pixels)} images, received {outputs.shape}"
        )
    if not np.isfinite(outputs).all():
        raise ValueError("it contains NaN or infinite outputs")
