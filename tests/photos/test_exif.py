"""EXIF orientation from bytes. The witness is Pillow."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps
from turned_photos import ORIENTATIONS, exif_of, photo

from keras_vit.photos.exif import orientation, orientation_in, upright


@pytest.mark.parametrize("kind", ["jpg", "progressive.jpg", "png"])
@pytest.mark.parametrize("held", ORIENTATIONS)
def test_it_is_what_pillow_reads(kind: str, held: int):
    file = photo(kind, held)
    assert orientation(file) == Image.open(io.BytesIO(file)).getexif()[0x0112] == held


@pytest.mark.parametrize("held", ORIENTATIONS)
def test_pixels_are_turned_as_pillow_turns_them(held: int):
    image = Image.open(io.BytesIO(photo("png", held)))
    np.testing.assert_array_equal(upright(np.asarray(image), held), ImageOps.exif_transpose(image))


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_orders_of_bytes_are_read(order: str):
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    entries = struct.pack(f"{order}HHI4s", 0x010F, 2, 4, b"abc\0") + struct.pack(
        f"{order}HHIH2x", 0x0112, 3, 1, 6
    )
    assert orientation_in(head + struct.pack(f"{order}H", 2) + entries) == 6
    assert orientation_in(b"Exif\0\0" + head + struct.pack(f"{order}H", 2) + entries) == 6
    assert orientation_in(head + struct.pack(f"{order}H", 2) + entries[:-1]) == 1  # cut short


@pytest.mark.parametrize("held", [0, 9, 65535])
def test_numbers_that_mean_nothing_are_upright(held: int):
    assert orientation_in(exif_of(held).tobytes()) == 1


def test_other_segments_may_come_first():
    file = photo("jpg", 6)
    place = file.index(b"\xff\xe1")
    comment = b"\xff\xfe\0\x07EXIF!" + b"\xff\xed" + struct.pack(">H", 1002) + b"\xff\xe1" * 500
    assert orientation(file[:place] + comment + b"\xff\xff\xff" + file[place:]) == 6
    assert orientation(file[:place] + comment * 5 + file[place:]) == 1  # it is not far behind


@pytest.mark.parametrize(
    "file", [b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0"]
)
def test_what_is_no_photo_is_upright(file: bytes):
    assert orientation(file) == orientation_in(file) == 1
