"""The photographs of a folder, and their bytes in a format that the server reads."""

import io
from pathlib import Path

from PIL import Image

from keras_vit.photos import SUFFIXES, Found, read_pixels, walk
from keras_vit.writing import group_by_reason

_SERVED = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # first bytes of JPEG and PNG


def find_photographs(folder: Path) -> Found:
    """Finds the photographs in a folder and its subfolders, in the order of their names.

    Raises:
        ValueError: If the folder does not exist or contains no photographs.
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
    """Returns JPEG and PNG files unchanged, and converts others to PNG.

    The server rotates JPEG and PNG by EXIF; others are rotated here. Empty files are returned
    unchanged, and the server reports them.

    Raises:
        ValueError: If the file is of another kind, or damaged.
        ImportError: If it is HEIC and `pillow-heif` is absent; the message names the package to
            install.
    """
    if not file or file.startswith(_SERVED):
        return file
    written = io.BytesIO()
    Image.fromarray(read_pixels(file)).save(written, "PNG", compress_level=1)
    return written.getvalue()
