"""The images that an export is tried on: where they come from, their size and range."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.data import sources
from keras_vit.export.examples import Examples, take

pytestmark = pytest.mark.tensorflow


def test_images_of_a_source_come_from_all_its_parts(tmp_path: Path):
    grey = np.repeat(np.arange(10, dtype=np.uint8), 7)  # ten classes of seven images, in order
    images = np.broadcast_to(grey[:, None, None, None] * 20, (70, 8, 8, 3))
    examples = take(sources.arrays(images, grey.astype(np.int64)), (4, 6), 10)
    assert examples.images.shape == (10, 4, 6, 3)
    assert examples.labels is not None and sorted(set(examples.labels)) == list(range(10))
    np.testing.assert_allclose(
        examples.images[:, 0, 0, 0], examples.labels * 20 / 127.5 - 1, atol=1e-6
    )
    np.testing.assert_array_equal(examples.pixels()[:, 0, 0, 0], examples.labels * 20)


def test_an_image_that_cannot_be_read_is_left_out(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            keras.utils.save_img(
                tmp_path / name / f"{number}.png", np.full((8, 8, 3), 60), scale=False
            )
    (tmp_path / "a" / "0.png").write_bytes(b"rubbish")
    examples = take(sources.image_folder(tmp_path), (8, 8), 6)
    assert examples.labels is not None and examples.labels.tolist() == [0, 0, 1, 1, 1]


def test_an_array_is_taken_as_pixels_or_in_the_range_of_the_models():
    pixels = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    expected = np.array([-1.0, -0.6, 1.0], np.float32).reshape(1, 1, 1, 3)
    for given in (pixels, expected, Examples(images=expected, labels=None, name="")):
        examples = take(given, (1, 1), 5)
        np.testing.assert_allclose(examples.images, expected, atol=1e-6)
        np.testing.assert_array_equal(examples.pixels(), pixels)


def test_without_images_pictures_are_drawn_always_the_same():
    examples, again = take(None, (24, 16), 6), take(None, (24, 16), 6)
    assert examples.images.shape == (6, 24, 16, 3)
    assert examples.labels is None and "generated" in examples.name
    assert examples.images.std(axis=(1, 2)).min() > 0.01  # none of them is empty
    np.testing.assert_array_equal(examples.images, again.images)


def test_near_copies_of_one_picture_are_alike_whatever_its_contrast():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (12, 8, 8, 3)).astype(np.uint8)
    copies = noise[:1] + rng.integers(0, 2, noise.shape).astype(np.uint8)
    assert len(np.unique(copies, axis=0)) == 12
    assert take(copies, (8, 8), 12).are_alike() and not take(noise, (8, 8), 12).are_alike()


def test_images_of_another_size_or_range_are_refused():
    with pytest.raises(ValueError, match="8 x 8 pixels. Received: 4 x 8"):
        take(np.zeros((2, 4, 8, 3), np.uint8), (8, 8), 2)
    with pytest.raises(ValueError, match=r"in \[-1, 1\], or uint8"):
        take(np.full((2, 8, 8, 3), 200.0), (8, 8), 2)
    with pytest.raises(ValueError, match=r"Received: \(0, 8, 8, 3\)"):
        take(np.zeros((0, 8, 8, 3), np.uint8), (8, 8), 2)
