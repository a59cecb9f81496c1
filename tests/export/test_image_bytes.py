"""JPEG and PNG bytes to pixels inside a graph. The witness is Pillow."""

import functools
import io
import struct
import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from keras_vit.data.transforms import eval_crop
from keras_vit.export.image_bytes import MAX_PIXELS, STATUSES, read_images

pytestmark = pytest.mark.tensorflow

SIZE = (24, 40)
RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (*SIZE, 3)).astype(np.uint8)


def encoded(kind: str, pixels: np.ndarray = NOISE, mode: str | None = None, **options) -> bytes:
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """Signature and first chunk of a PNG, with a right checksum."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    )


def jpeg_of_size(width: int, height: int) -> bytes:
    """A JPEG whose header says so, whatever is in it."""
    jpeg = encoded("JPEG")
    start = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:start] + struct.pack(">HH", height, width) + jpeg[start + 4 :]


def jpeg_of_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is there many times."""
    jpeg = encoded("JPEG", np.full((16, 16, 3), 99, np.uint8), progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    return jpeg[:-2] + jpeg[last:-2] * (count - jpeg.count(b"\xff\xda")) + b"\xff\xd9"


JPEG, PNG = encoded("JPEG"), encoded("PNG")


@functools.cache
def graph(size: tuple[int, int], **options) -> Callable:
    taking = [tf.TensorSpec([None], tf.string)]
    return tf.function(lambda files: read_images(files, size, **options), input_signature=taking)


def read(
    files: list[bytes], size: tuple[int, int] = SIZE, **options
) -> tuple[np.ndarray, list[str]]:
    """In a graph, as it is exported."""
    pixels, status = graph(size, **options)(tf.constant(files, tf.string))
    return pixels.numpy(), [text.decode() for text in status.numpy()]


def status_of(file: bytes, size: tuple[int, int] = SIZE, **options) -> str:
    (status,) = read([file], size, **options)[1]
    return status


# ── what is read ──


@pytest.mark.parametrize(
    "file",
    [
        JPEG,
        encoded("JPEG", quality=40, subsampling=2),
        encoded("JPEG", progressive=True),
        encoded("JPEG", mode="L"),
        PNG,
        encoded("PNG", mode="L"),
        encoded("PNG", mode="P"),
        encoded("PNG", mode="1"),
    ],
)
def test_pixels_are_those_of_pillow(file: bytes):
    pixels, status = read([file])
    assert status == ["ok"] and pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels[0], Image.open(io.BytesIO(file)).convert("RGB"))


def test_transparency_is_laid_on_white_and_16_bits_become_8():
    clear = np.concatenate([NOISE, RNG.integers(0, 256, (*SIZE, 1)).astype(np.uint8)], axis=-1)
    on_white = 255 + (NOISE - 255.0) * (clear[..., 3:] / 255)
    deep = RNG.integers(0, 65536, SIZE).astype(np.uint16)
    pixels, status = read([encoded("PNG", clear), encoded("PNG", deep)])
    assert status == ["ok", "ok"]
    np.testing.assert_allclose(pixels[0], on_white, atol=0.5)
    np.testing.assert_allclose(pixels[1], np.repeat(deep[..., None] / 257, 3, axis=-1), atol=1)


def test_four_inks_are_read_or_refused_but_never_crash():
    assert status_of(encoded("JPEG", mode="CMYK")) in ("ok", "damaged")


@pytest.mark.parametrize(
    ("policy", "size"),
    [("resize", (24, 40)), ("resize_shorter", (32, 32)), ("central:0.9", (32, 32))],
)
def test_other_sizes_are_brought_to_that_of_the_model_as_in_evaluation(
    policy: str, size: tuple[int, int]
):
    large = RNG.integers(0, 256, (90, 130, 3)).astype(np.uint8)
    files = [encoded("PNG", large), encoded("JPEG", large, progressive=True)]
    pixels, status = read(files, size, eval_crop=policy)
    assert status == ["ok", "ok"]
    for file, found in zip(files, pixels, strict=True):
        # decoded by Pillow, then cropped as for evaluation
        expected = np.asarray(Image.open(io.BytesIO(file)))
        for transform in eval_crop(policy, size):
            expected = transform(expected, tf.constant([0, 0]))
        np.testing.assert_allclose(found, expected, atol=1e-4)


# ── what is not ──


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (b"", "empty"),
        (b"\x00", "unsupported"),
        (b"%PDF-1.7", "unsupported"),
        (encoded("GIF"), "unsupported"),
        (encoded("BMP"), "unsupported"),
        (encoded("TIFF"), "unsupported"),
        (encoded("WEBP"), "unsupported"),
        (JPEG[:3], "damaged"),
        (JPEG[:100], "damaged"),
        (JPEG[: len(JPEG) // 2], "damaged"),
        (JPEG[:-2], "damaged"),
        (PNG[:8], "damaged"),
        (PNG[:20], "damaged"),
        (PNG[:33], "damaged"),
        (PNG[: len(PNG) // 2], "damaged"),
        (PNG[:-13], "damaged"),
        (PNG[:40] + bytes([PNG[40] ^ 255]) + PNG[41:], "damaged"),
        (b"\x89PNG\r\n\x1a\n" + PNG[33:], "damaged"),
        (png_header(0, 5) + PNG[33:], "damaged"),
        (jpeg_of_size(0, 5), "damaged"),
        (jpeg_of_size(40, 0), "damaged"),
        (png_header(2**31 - 1, 2**31 - 1) + PNG[33:], "too_large"),
        (png_header(2**32 - 1, 2**32 - 1) + PNG[33:], "too_large"),
        (png_header(2**26 + 1, 1) + PNG[33:], "too_large"),
        (jpeg_of_size(65_000, 65_000), "too_large"),
        (jpeg_of_scans(101), "too_large"),
    ],
)
@pytest.mark.sampled(13)
def test_what_cannot_be_read_has_a_status_and_no_pixels(file: bytes, expected: str):
    pixels, status = read([file])
    assert status == [expected] and expected in STATUSES
    assert pixels.shape == (1, *SIZE, 3) and not pixels.any()


@pytest.mark.parametrize("good", [JPEG, PNG])
def test_one_bad_image_costs_only_itself(good: bytes):
    alone = read([good])[0][0]
    bad = [b"", b"junk", JPEG[:-99], PNG[:-99], jpeg_of_size(60_000, 60_000)]
    for place in range(len(bad) + 1):
        pixels, status = read([*bad[:place], good, *bad[place:]])
        assert [index for index, text in enumerate(status) if text == "ok"] == [place]
        np.testing.assert_array_equal(pixels[place], alone)


def test_a_batch_may_be_empty_or_hold_nothing_but_bad_images():
    assert [len(part) for part in read([])] == [0, 0]
    assert read([b"", JPEG[:50]])[1] == ["empty", "damaged"]


# ── bounds ──


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_limit_of_pixels_is_exact(kind: str):
    file = encoded(kind, NOISE[:20, :30])
    assert status_of(file, max_pixels=600) == "ok"
    assert status_of(file, max_pixels=599) == "too_large"


def test_many_scans_are_read_and_very_many_are_not():
    assert (status_of(jpeg_of_scans(100)), status_of(jpeg_of_scans(101))) == ("ok", "too_large")


def test_a_photograph_with_a_video_behind_it_is_read():
    """A "motion photo" of 8 MB: what begins a scan is in the video by chance, more than a hundred
    times.
    """
    video = np.random.default_rng(0).integers(0, 256, 8_000_000).astype(np.uint8).tobytes()
    assert video.count(b"\xff\xda") > 100
    for photo in (JPEG, encoded("JPEG", progressive=True)):
        pixels, status = read([photo + video, photo])
        assert status == ["ok", "ok"]
        np.testing.assert_array_equal(pixels[0], pixels[1])


def png_of_texts(count: int) -> bytes:
    texts = PngInfo()
    for index in range(count):
        texts.add_text(f"key {index}", "0" * 100_000, zip=True)
    return encoded("PNG", pnginfo=texts)


def test_texts_beside_the_pixels_are_few_or_none_is_unpacked():
    assert (status_of(png_of_texts(16)), status_of(png_of_texts(17))) == ("ok", "too_large")


@pytest.mark.parametrize("policy", ["resize_shorter", "central:0.875"])
def test_a_thread_is_not_enlarged_to_a_billion_pixels(policy: str):
    thread = encoded("PNG", np.zeros((1, 60_000, 3), np.uint8))
    assert status_of(thread) == "ok"
    assert status_of(PNG, (224, 224), eval_crop=policy) == "ok"  # traced
    start = time.process_time()
    assert status_of(thread, (224, 224), eval_crop=policy) == "too_large"
    assert time.process_time() - start < 10  # the image would have 256 * 15,360,000 pixels
    # Enlarged to 256 x 65536 float32 pixels, an image takes as many bytes as the largest one that is
    # decoded.
    assert 256 * 65536 * 3 * 4 == 3 * MAX_PIXELS
    for width, status in ((500, "ok"), (514, "too_large")):
        wide = encoded("PNG", np.zeros((2, width, 3), np.uint8))
        assert status_of(wide, (224, 224), eval_crop=policy) == status


def test_cameras_are_below_the_default_limit():
    assert 61e6 < MAX_PIXELS < 1e8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixels": 0}, "`max_pixels` must be positive. Received: 0"),
        ({"eval_crop": "middle"}, "`eval_crop` must be one of resize, .* Received: 'middle'"),
        ({"eval_crop": "resize_shorter"}, r"gives squares. Received: size=\(24, 40\)"),
    ],
)
def test_wrong_arguments_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        read_images(tf.constant([JPEG]), SIZE, **options)
