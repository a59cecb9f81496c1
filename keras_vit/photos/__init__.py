"""Photos: which files are some, which are left out and why, and the pixels of one. NumPy and
Pillow, no framework.
"""

from keras_vit.photos.exif import orientation
from keras_vit.photos.files import FORMATS, SUFFIXES, Found, LeftOut, is_ignored, is_photo, walk
from keras_vit.photos.pixels import read_pixels, why_not

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Found",
    "LeftOut",
    "is_ignored",
    "is_photo",
    "orientation",
    "read_pixels",
    "walk",
    "why_not",
]
