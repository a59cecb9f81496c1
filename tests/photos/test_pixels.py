"""Photos of every kind to pixels. The witnesses are Pillow's own turning, and arithmetic."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from turned_photos import KINDS, ORIENTATIONS, photo, scene

from keras_vit.photos import read_pixels, why_not


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "heic"])
@pytest.mark.parametrize("held", ORIENTATIONS)
def test_photos_are_read_the_right_way_up(kind: str, held: int):
    file = photo(kind, held)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))
    assert expected.shape == (24, 40, 3)
    np.testing.assert_array_equal(read_pixels(file), expected)


@pytest.mark.parametrize("held", ORIENTATIONS)
def test_heic_is_turned_as_its_container_says(held: int):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    upright = scene()
    written = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = held  # alone it counts for nothing, as the standard has it
    upright.save(written, "HEIF", quality=100, chroma=444, exif=exif)
    np.testing.assert_allclose(
        read_pixels(written.getvalue()).astype(int), np.asarray(upright), atol=12
    )
    file = photo("heic", held)
    assert read_pixels(file).shape == (24, 40, 3)
    assert np.abs(read_pixels(file).astype(int) - np.asarray(upright)).mean() < 3


def test_without_its_package_heic_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    from keras_vit.photos import pixels

    pixels._register_heic.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    file = b"\0\0\0\x18ftypheic" + b"\0" * 40
    with pytest.raises(ImportError, match="HEIC needs another package: pip install pillow-heif"):
        read_pixels(file)
    assert "pillow-heif" in why_not(file)
    pixels._register_heic.cache_clear()


def test_16_bits_keep_the_upper_8(tmp_path: Path):
    deep = np.random.default_rng(0).integers(0, 65536, (5, 4), np.uint16)
    for kind in ("PNG", "TIFF"):
        pixels = read_pixels(encoded(Image.fromarray(deep), kind))
        np.testing.assert_array_equal(pixels, np.repeat((deep >> 8)[..., None], 3, axis=-1))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_what_is_transparent_is_laid_on_white(kind: str):
    clear = np.random.default_rng(0).integers(0, 256, (8, 9, 4), np.uint8)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    pixels = read_pixels(encoded(Image.fromarray(clear), kind, **options))
    expected = np.round(255 + (clear[..., :3].astype(float) - 255) * clear[..., 3:] / 255)
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_taken(kind: str):
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    file = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert read_pixels(file).tolist() == [[[255, 0, 0]] * 3] * 2


def test_a_name_may_lie(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(photo("webp", 6))
    assert read_pixels(tmp_path / "a.jpg").shape == (24, 40, 3)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "the file is empty"),
        (b"text", "cannot identify image file"),
        (photo("png", 1)[:60], "truncated|broken|Truncated"),
        (photo("jpg", 1)[:-200], "image file is truncated .*"),
        (
            encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"),
            "its levels are floating-point numbers of unknown",
        ),
        (
            encoded(Image.fromarray(np.ones((2, 2), np.int32)), "TIFF"),
            "its levels are 32-bit integers of unknown range",
        ),
    ],
)
def test_what_cannot_be_read_has_a_reason_in_one_line(file: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        read_pixels(file)
    assert why_not(file) and "\n" not in why_not(file) and "0x" not in why_not(file)


def test_a_photo_for_which_memory_is_short_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(MemoryError, match="no room"):
        read_pixels(b"a photo")
    assert why_not(b"a photo") == "no room"


def test_a_file_that_is_not_there_has_one_too(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_pixels(tmp_path / "no.jpg")
    assert why_not(tmp_path / "no.jpg") == "No such file or directory"
    assert why_not(photo("jpg", 3)) == ""
