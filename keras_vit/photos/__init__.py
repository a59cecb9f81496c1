"""Search for photos in folders, and decoding of a photo with NumPy and Pillow."""

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
