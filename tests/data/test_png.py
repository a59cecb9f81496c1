"""PNG files of every kind, against Pillow, and the three ways in which this package reads them
against each other.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data.png import decode_png
from keras_vit.data.transforms import decode, inception_crop
from keras_vit.export.image_bytes import read_images
from keras_vit.photos import read_pixels
from keras_vit.predict import read_photo

pytestmark = pytest.mark.tensorflow

SIZE = (16, 24)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (*SIZE, 4)).astype(np.uint8)


def _kinds() -> dict[str, tuple[Image.Image, dict]]:
    rgb, grey = Image.fromarray(PIXELS[..., :3]), Image.fromarray(PIXELS[..., 0])
    few, many = rgb.quantize(16), rgb.quantize(200)
    kinds = {
        "RGB": (rgb, {}),
        "RGBA": (Image.fromarray(PIXELS), {}),
        "grey": (grey, {}),
        "grey with opacity": (Image.fromarray(PIXELS[..., :2], mode="LA"), {}),
        "one bit": (grey.convert("1"), {}),
        "palette": (many, {}),
        "palette with a clear colour": (many, {"transparency": 3}),
        "palette with opacities": (many, {"transparency": bytes(range(200))}),
        "grey with a clear level": (grey, {"transparency": int(PIXELS[0, 0, 0])}),
        "RGB with a clear colour": (
            rgb,
            {"transparency": tuple(int(level) for level in PIXELS[0, 0, :3])},
        ),
        "one bit with a clear level": (grey.convert("1"), {"transparency": 0}),
        "opaque RGBA": (
            Image.fromarray(np.dstack([PIXELS[..., :3], np.full(SIZE, 255, np.uint8)])),
            {},
        ),
        "nothing but clear": (
            Image.fromarray(np.dstack([PIXELS[..., :3], np.zeros(SIZE, np.uint8)])),
            {},
        ),
    }
    for bits in (1, 2, 4):
        colours = rgb.quantize(2**bits)
        kinds[f"palette of {bits} bits"] = (colours, {"bits": bits})
        kinds[f"palette of {bits} bits with a clear colour"] = (
            colours,
            {"bits": bits, "transparency": 1},
        )
    kinds["palette of 4 bits with opacities"] = (
        few,
        {"bits": 4, "transparency": bytes(range(0, 160, 10))},
    )
    return kinds


KINDS = _kinds()


def _encoded(kind: str) -> bytes:
    image, options = KINDS[kind]
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(6)
def test_pixels_are_those_of_pillow_on_white(kind: str, tmp_path: Path):
    file = _encoded(kind)
    rgba = np.asarray(Image.open(io.BytesIO(file)).convert("RGBA"), np.float64)
    expected = np.round(255 + (rgba[..., :3] - 255) * rgba[..., 3:] / 255)
    np.testing.assert_array_equal(decode_png(tf.constant(file)), expected)
    np.testing.assert_array_equal(decode(tf.constant(file), tf.constant([0, 0])), expected)
    (tmp_path / "a.png").write_bytes(file)
    served, status = read_images(tf.constant([file]), SIZE)
    assert status.numpy().tolist() == [b"ok"]
    np.testing.assert_array_equal(served[0], expected)
    np.testing.assert_allclose(
        read_photo(tmp_path / "a.png", SIZE), expected / 127.5 - 1, atol=1e-6
    )


def _write_png(levels: np.ndarray, depth: int, clear: list[int]) -> bytes:
    """A PNG (H, W, 1 or 3) of any depth with a clear level, as the standard puts it together."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    height, width, channels = levels.shape
    header = struct.pack(">IIBBBBB", width, height, depth, {1: 0, 3: 2}[channels], 0, 0, 0)
    bits = np.unpackbits(levels.astype(">u2").reshape(height, -1, 1).view(np.uint8), axis=-1)
    rows = np.packbits(bits[..., 16 - depth :].reshape(height, -1), axis=-1)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"tRNS", np.array(clear, ">u2").tobytes()),
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))),
            chunk(b"IEND", b""),
        ]
    )


@pytest.mark.parametrize(
    ("depth", "channels"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (8, 3), (16, 3)]
)
def test_a_clear_level_is_that_of_every_depth_in_all_commands(depth: int, channels: int):
    levels = np.random.default_rng(1).integers(0, 2**depth, (6, 8, channels))
    levels[0, :4], levels[1] = 1, levels[0]
    levels[1] ^= 1  # in 16 bits, another level with the same upper byte
    file = _write_png(levels, depth, [1] * channels)
    found = read_pixels(file)
    np.testing.assert_array_equal(found, decode_png(tf.constant(file)))
    upper = levels >> 8 if depth == 16 else levels * (255 // (2**depth - 1))
    clear = (levels == 1).all(axis=-1, keepdims=True)
    np.testing.assert_array_equal(found, np.broadcast_to(np.where(clear, 255, upper), found.shape))
    assert clear.any() and not clear.all()


def test_training_sees_white_too():
    seen = inception_crop(8)(tf.constant(_encoded("nothing but clear")), tf.constant([0, 1]))
    np.testing.assert_array_equal(seen, np.full((8, 8, 3), 255))


def test_every_level_on_every_opacity_is_rounded_right():
    levels, opacities = np.meshgrid(np.arange(256), np.arange(256))
    pixels = np.stack([levels] * 3 + [opacities], axis=-1).astype(np.uint8)
    expected = np.round(255 + (levels - 255.0) * opacities / 255)
    np.testing.assert_array_equal(decode_png(tf.io.encode_png(pixels))[..., 0], expected)


@pytest.mark.parametrize("length", [8, 12, 24, 25, 33, 60])
def test_what_is_cut_off_is_an_error_and_no_crash(length: int):
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_png(tf.constant(_encoded("RGBA")[:length]))
