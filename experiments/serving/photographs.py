"""Files of photographs: which there are, and their bytes as they are sent."""

import io
from pathlib import Path

from PIL import Image, ImageOps

_ENDINGS = (".jpg", ".jpeg", ".png")
_ORIENTATION, _TURNED = 0x0112, range(2, 9)  # the tag of EXIF; 1 is upright
_FORMATS = {"JPEG": "JPEG", "MPO": "JPEG", "PNG": "PNG"}  # MPO: what some phones write, a JPEG and more behind it
_QUALITY = 95  # of a JPEG that is written again: differences below what a model sees
# Turning a photograph takes 3 bytes for each pixel, twice, in every thread. The server refuses larger ones anyway.
_MAX_PIXELS = 2**26


def find_photographs(folder: Path) -> list[Path]:
    """Returns all JPEG and PNG files in a folder and in those within it, in the order of their names.

    Raises:
        ValueError: If there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS and not path.is_dir())
    if not paths:
        raise ValueError(f"There is no file in {folder} that ends in {', '.join(_ENDINGS)}.")
    return paths


def upright(file: bytes) -> bytes:
    """Turns a photograph as its EXIF says; others come back as they are.

    Phones store many photographs as the sensor saw them, with a note how to turn them. Viewers follow it, and the graph
    on the server, like most decoders, does not: it would see people lie on their sides. Only such files are written
    again. What cannot be read stays what it is, for the server to say what is wrong with it.
    """
    try:
        with Image.open(io.BytesIO(file)) as image:
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            if not turned or image.format not in _FORMATS or image.width * image.height > _MAX_PIXELS:
                return file
            written, profile = io.BytesIO(), image.info.get("icc_profile")
            kind = _FORMATS[image.format]
            ImageOps.exif_transpose(image).save(written, format=kind, quality=_QUALITY, icc_profile=profile)
            return written.getvalue()
    except Exception:  # damaged files raise nearly anything: OSError, SyntaxError, ValueError, struct.error, ...
        return file
