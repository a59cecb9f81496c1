"""Files of photographs: which there are, and their bytes as they are sent."""

import io
from pathlib import Path

from PIL import Image

from keras_vit.photos import SUFFIXES, Found, read_pixels, walk
from keras_vit.writing import group_by_reason

_SERVED = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # how JPEG and PNG begin


def find_photographs(folder: Path) -> Found:
    """Returns the photographs in a folder and in those within it, in the order of their names, and
    what is left out.

    Raises:
        ValueError: If there is no such folder, or no photograph in it.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    found = walk(folder)
    if not found.photos:
        raise ValueError(
            f"No photos ({', '.join(SUFFIXES)}) in {folder}. {group_by_reason(found.left_out)}".rstrip()
        )
    return found


def as_served(file: bytes) -> bytes:
    """Returns a file as the server reads it: JPEG and PNG unchanged, others as PNG.

    The server turns JPEG and PNG upright itself; others are turned here. What is empty stays so:
    the server says it.

    Raises:
        ValueError: If it is none of these and cannot be read; says why.
        ImportError: If it is HEIC and `pillow-heif` is absent; says what to install.
    """
    if not file or file.startswith(_SERVED):
        return file
    written = io.BytesIO()
    Image.fromarray(read_pixels(file)).save(written, "PNG", compress_level=1)
    return written.getvalue()
