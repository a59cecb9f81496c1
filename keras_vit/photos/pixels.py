"""Decoding of a photo of any supported format to upright RGB pixels of 8 bits, without transparency.

`keras_vit.data.decoding` decodes JPEG and PNG with TensorFlow's operations to the same pixels, and
uses this module for all other formats. The format is detected from the content, since the suffix may
be wrong.
"""

import functools
import io
import os
import re
from pathlib import Path

import numpy as np
from PIL import Image

from keras_vit.photos import exif

_HEIC = b"ftyp"  # at byte 4; the brand follows
_HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_BIT_DEPTH_AT = 24  # in the header of a PNG, which is the first chunk
_WITHOUT_RANGE = ("F", "I")


def read_pixels(photo: str | os.PathLike | bytes) -> np.ndarray:
    """Reads a photo as upright RGB pixels.

    Grey, palette and CMYK pictures are converted to RGB. Of 16 bits, the upper 8 are kept.
    Transparent pixels are blended with white. Of several frames, the first is read. Colour profiles
    are not applied.

    Args:
        photo: A path, or the bytes of a file.

    Returns:
        (H, W, 3) uint8, from 0 to 255.

    Raises:
        ValueError: If the file is not a photo or damaged, or its levels have no known range. The
            message has one line.
        ImportError: If it is HEIC and `pillow-heif` is absent; the message names the package to
            install.
        OSError: If the file cannot be read from the disk.

    Example:
        >>> Image.new("L", (3, 2), 7).save("grey.png")
        >>> read_pixels("grey.png").shape
        (2, 3, 3)
    """
    file = photo if isinstance(photo, bytes) else Path(photo).read_bytes()
    if not file:
        raise ValueError("the file is empty")
    if file[4:8] == _HEIC and file[8:12] in _HEIC_BRANDS:
        _register_heic()
    try:
        with Image.open(io.BytesIO(file)) as image:
            return np.ascontiguousarray(
                exif.upright(_to_rgb(image, file), _find_orientation(image, file))
            )
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises a different error for each kind of damage
        reason = (
            re.sub(r" <_io\.BytesIO.*>", "", " ".join(str(error).split())) or type(error).__name__
        )
        raise ValueError(reason) from error


def why_not(photo: str | os.PathLike | bytes) -> str:
    """Returns the reason why a photo cannot be read, in one line, or "" if it can be read.

    Example:
        >>> why_not(b"text"), why_not(b"")
        ('cannot identify image file', 'the file is empty')
    """
    try:
        read_pixels(photo)
    except (ValueError, ImportError, MemoryError) as error:
        return str(error) or type(error).__name__
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _find_orientation(image: Image.Image, file: bytes) -> int:
    """Returns the orientation that is still to be undone."""
    # Pillow already rotates TIFF, and libheif rotates HEIC.
    if image.format in ("JPEG", "MPO", "PNG"):
        return exif.orientation(file)
    return (
        exif.orientation_in(image.info.get("exif", b"")) if image.format == "WEBP" else exif.UPRIGHT
    )


def _to_rgb(image: Image.Image, file: bytes) -> np.ndarray:
    """Converts an image to (H, W, 3) uint8."""
    image.load()
    if image.mode.startswith("I;16"):
        levels = np.asarray(image)
        grey = np.where(_is_clear(image, levels), 255, levels >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1)
    if image.format == "PNG" and "transparency" in image.info:
        depth = file[_BIT_DEPTH_AT]
        if image.mode == "RGB" and depth == 16:
            levels = np.asarray(image).astype(np.uint16) << 8 | _read_low_bytes(file)
            clear = _is_clear(image, levels).all(axis=-1, keepdims=True)
            return np.where(clear, np.uint8(255), np.asarray(image))
        if image.mode == "L" and depth < 8:  # Pillow scales the levels to 8 bits, but not this one
            largest = 2**depth - 1
            image.info["transparency"] = (image.info["transparency"] & largest) * (255 // largest)
    if image.mode in _WITHOUT_RANGE:
        kind = "floating-point numbers" if image.mode == "F" else "32-bit integers"
        raise ValueError(f"its levels are {kind} of unknown range: save it with 8 or 16 bits")
    if (
        image.mode in ("RGB", "L", "CMYK", "YCbCr", "LAB", "HSV", "1")
        and "transparency" not in image.info
    ):
        return np.asarray(image.convert("RGB"))
    # Convert to RGBA first, since the conversion to RGB drops the transparency of a palette.
    rgba = np.asarray(image.convert("RGBA"))
    rgb, opacity = rgba[..., :3], rgba[..., 3:].astype(np.uint16)
    if opacity.min() == 255:
        return rgb
    shade = (255 - rgb).astype(np.uint16) * opacity + np.uint16(128)
    return 255 - ((shade + (shade >> 8)) >> 8).astype(np.uint8)  # Blinn's division by 255, rounded


def _is_clear(image: Image.Image, levels: np.ndarray) -> np.ndarray:
    """Returns where levels of 16 bits are those that a PNG declares to be transparent."""
    clear = image.info.get("transparency")
    return np.zeros(levels.shape, bool) if clear is None else levels == clear


def _read_low_bytes(file: bytes) -> np.ndarray:
    """Returns the lower 8 bits of the levels of a PNG with 16 bits and three channels."""
    with Image.open(io.BytesIO(file)) as image:
        # Pillow keeps the upper byte; in the other byte order that is the lower one.
        # Tuples, as in old versions of Pillow, which have no named ones.
        image.tile = [(*tile[:3], "RGB;16L") for tile in image.tile]  # pyright: ignore[reportAttributeAccessIssue]
        return np.asarray(image)


@functools.cache
def _register_heic() -> None:
    try:
        import pillow_heif  # pyright: ignore[reportMissingImports]: optional
    except ImportError as error:
        raise ImportError("HEIC needs another package: pip install pillow-heif") from error
    pillow_heif.register_heif_opener()
