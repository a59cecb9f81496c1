"""TensorFlow's operations follow the rules of `keras_vit.photos.exif` to the letter, on damaged
files too.
"""

import numpy as np
import pytest
import tensorflow as tf
from turned_photos import ORIENTATIONS, photo

from keras_vit.data import turning
from keras_vit.photos import exif

pytestmark = pytest.mark.tensorflow

OF_JPEG, OF_PNG = turning.orientation_of_jpeg, turning.orientation_of_png


@pytest.mark.parametrize("held", ORIENTATIONS)
def test_they_read_what_is_there(held: int):
    assert int(OF_JPEG(photo("jpg", held))) == int(OF_PNG(photo("png", held))) == held


def test_what_follows_the_end_of_a_png_is_not_read():
    with_it, without = photo("png", 6), photo("png", 1)
    start = with_it.index(b"eXIf") - 4
    length = int.from_bytes(with_it[start : start + 4], "big")
    chunk = with_it[start : start + 12 + length]
    bare = with_it.replace(chunk, b"")
    assert int(OF_PNG(with_it)) == 6 and int(OF_PNG(bare)) == exif.orientation(bare) == exif.UPRIGHT
    for file in (bare + chunk, without + chunk):
        assert int(OF_PNG(file)) == exif.orientation(file) == exif.UPRIGHT


@pytest.mark.parametrize("lost", range(1, 13))
def test_an_entry_that_is_cut_short_is_no_entry(lost: int):
    """An entry has 12 bytes: tag, type, number of values, the value, and two bytes of padding."""
    entry = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"
    block = b"MM\0*\x00\x00\x00\x08\x00\x01" + entry
    segment = b"Exif\0\0" + block

    def jpeg(content: bytes) -> bytes:
        return b"\xff\xd8\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content

    assert int(OF_JPEG(jpeg(segment))) == exif.orientation(jpeg(segment)) == 6
    short = jpeg(segment[:-lost])
    assert int(OF_JPEG(short)) == exif.orientation(short) == exif.UPRIGHT


@pytest.mark.parametrize("held", ORIENTATIONS)
def test_pixels_shapes_and_windows_are_turned_alike(held: int):
    stored = np.random.default_rng(held).integers(0, 256, (5, 8, 3), np.uint8)
    expected = exif.upright(stored, held)
    np.testing.assert_array_equal(turning.upright(tf.constant(stored), tf.constant(held)), expected)
    shape = turning.upright_shape(tf.constant(stored.shape), tf.constant(held))
    assert shape.numpy().tolist() == list(expected.shape)
    top, left, height, width = 1, 2, 3, 2
    window = turning.stored_window(
        tf.constant([top, left, height, width]), shape, tf.constant(held)
    ).numpy()
    part = stored[window[0] : window[0] + window[2], window[1] : window[1] + window[3]]
    np.testing.assert_array_equal(
        exif.upright(part, held), expected[top : top + height, left : left + width]
    )


def damaged(file: bytes, rng: np.random.Generator) -> bytes:
    """Cut, with other bytes in the header, or with junk inside; its first 8 bytes stay."""
    numbers = np.frombuffer(file, np.uint8).copy()
    how = rng.integers(4)
    if how == 0:
        return file[: rng.integers(8, len(file))]
    if how == 1:
        place = rng.integers(8, len(file))
        return file[:place] + rng.bytes(rng.integers(1, 30)) + file[place:]
    places = rng.integers(8, min(160, len(file)), rng.integers(1, 5))
    if how == 2:
        numbers[places] = rng.integers(0, 256, len(places))
    else:
        numbers[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
    return numbers.tobytes()


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_of_damaged_files_both_say_the_same(kind: str, count: int):
    rng, read = np.random.default_rng(count), OF_JPEG if kind == "jpg" else OF_PNG
    files = [photo(kind, held) for held in ORIENTATIONS]
    seen = set()
    for number in range(count):
        file = damaged(files[number % 8], rng)
        seen.add(exif.orientation(file))
        assert int(read(file)) == exif.orientation(file)
    assert seen >= {1, 6}
