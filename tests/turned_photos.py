"""Photos as cameras write them, held in all eight ways, of every kind; Pillow turns them back,
which is the witness.
"""

import io

import numpy as np
from PIL import Image

ORIENTATIONS = range(1, 9)
_BEFORE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
# Name to Pillow's format, the mode and the options. GIF and BMP have no place for EXIF.
KINDS = {
    "jpg": ("JPEG", "RGB", {"quality": 95}),
    "progressive.jpg": ("JPEG", "RGB", {"quality": 95, "progressive": True}),
    "grey.jpg": ("JPEG", "L", {"quality": 95}),
    "png": ("PNG", "RGB", {}),
    "palette.png": ("PNG", "P", {}),
    "webp": ("WEBP", "RGB", {"lossless": True}),
    "tiff": ("TIFF", "RGB", {}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
    "heic": ("HEIF", "RGB", {"quality": 100, "chroma": 444}),
}
WITHOUT_EXIF = ("gif", "bmp")


def scene(height: int = 24, width: int = 40, seed: int = 0) -> Image.Image:
    """A smooth picture that no turn or mirror image of it is like."""
    draws = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
    return Image.fromarray(draws).resize((width, height), Image.Resampling.BICUBIC)


def exif_of(orientation: int) -> Image.Exif:
    """With the tags that cameras write in front of the orientation."""
    exif = Image.Exif()
    for tag, text in ((0x010D, "document"), (0x010E, "what"), (0x010F, "maker"), (0x0110, "model")):
        exif[tag] = text
    exif[0x0112] = orientation
    return exif


def as_stored(picture: Image.Image, orientation: int) -> Image.Image:
    """A picture as a camera held so stores it: before it is turned as the tag says."""
    return picture.transpose(_BEFORE[orientation]) if orientation in _BEFORE else picture


def photo(kind: str, orientation: int, picture: Image.Image | None = None) -> bytes:
    """A file of a kind of `KINDS` that a viewer shows upright; of those without EXIF, always as it
    is stored.
    """
    pillow_format, mode, options = KINDS[kind]
    picture = (scene() if picture is None else picture).convert(mode)
    if kind not in WITHOUT_EXIF:
        picture = as_stored(picture, orientation)
        options = options | {
            "exif": exif_of(orientation).tobytes() if kind == "heic" else exif_of(orientation)
        }
    written = io.BytesIO()
    picture.save(written, pillow_format, **options)
    return written.getvalue()
