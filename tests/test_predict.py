"""Photographs of every kind in, class names out."""

from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from turned_photos import ORIENTATIONS, as_stored, exif_of

from keras_vit import predict
from keras_vit.photos import LeftOut


class Classifier(keras.Model):
    """A classifier that favours one class, and keeps what it was given; behind a layer that takes
    pixels in [-1, 1].
    """

    def __init__(self, classes: int, favourite: int = 0):
        images = keras.Input((8, 8, 3))
        to_one = keras.ops.add(keras.ops.multiply(images, 0.5), 0.5)
        flat = keras.ops.reshape(to_one, (-1, 8 * 8 * 3))
        super().__init__(images, keras.layers.Dense(classes, kernel_initializer="zeros")(flat))
        self.classes, self.favourite, self.batches = classes, favourite, []

    def predict_on_batch(self, images: np.ndarray) -> np.ndarray:
        self.batches.append(images)
        logits = np.zeros((len(images), self.classes), np.float32)
        logits[:, self.favourite] = 2.0
        return logits


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Four coloured quarters, 16 by 12 pixels: no turn or mirror image of it is like another."""
    pixels = np.zeros((12, 16, 3), np.uint8)
    pixels[:6, :8], pixels[:6, 8:], pixels[6:, :8], pixels[6:, 8:] = (
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (255,) * 3,
    )
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def quarters(pixels: np.ndarray) -> list[list[float]]:
    """Colours at the four corners."""
    return [pixels[row, column].round(4).tolist() for row in (0, -1) for column in (0, -1)]


RED, GREEN, BLUE, WHITE = [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, 1.0]


def test_a_folder_gives_its_photographs_sorted_and_nothing_else(tmp_path: Path):
    (tmp_path / "e.jpg").mkdir()
    for name in (
        "b.JPEG",
        "a.png",
        "c.webp",
        "d.bmp",
        "notes.txt",
        "e.jpg/f.TIFF",
        "e.jpg/._f.tiff",
    ):
        (tmp_path / name).touch()
    found = predict.find_photos([tmp_path / "notes.txt", tmp_path])
    assert [path.name for path in found.photos] == [
        "notes.txt",
        "a.png",
        "b.JPEG",
        "c.webp",
        "d.bmp",
        "f.TIFF",
    ]
    assert found.left_out == [(tmp_path / "notes.txt", "not a photo by its suffix, .txt")]


def test_a_folder_without_photographs_beside_another_is_left_out_by_name(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.png").touch()
    found = predict.find_photos([tmp_path / "empty", tmp_path / "full"])
    assert found.photos == [tmp_path / "full" / "a.png"]
    assert found.left_out == [(tmp_path / "empty", "a folder without photos")]


def test_a_folder_without_photographs_is_an_error(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        ValueError,
        match="No photos .*jpeg.* in .* or its subfolders. Left out, 1: not a photo by",
    ):
        predict.find_photos([tmp_path])


def test_places_that_do_not_exist_are_an_error_before_anything_is_loaded():
    with pytest.raises(ValueError, match="no such file or folder: nowhere.jpg"):
        predict.find_photos(["nowhere.jpg"])


def test_pixels_are_scaled_to_the_range_of_the_models(photo: Path):
    pixels = predict.read_photo(photo, (12, 16))
    assert pixels.shape == (12, 16, 3) and pixels.dtype == np.float32
    assert quarters(pixels) == [RED, GREEN, BLUE, WHITE]


def test_a_model_of_integers_is_given_the_levels_of_the_file(tmp_path: Path):
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(levels).save(tmp_path / "levels.png")
    images = keras.Input((16, 16, 3), dtype="uint8")
    flat = keras.layers.Flatten()(images)[:, ::3]
    model = keras.Model(images, keras.layers.Dense(256, kernel_initializer="identity")(flat))
    given, predict_on_batch = [], model.predict_on_batch
    model.predict_on_batch = lambda batch: given.append(predict_on_batch(batch)) or given[-1]
    assert next(predict.predict(model, [tmp_path / "levels.png"], top=1)).guesses[0].name == (
        "class 255"
    )
    np.testing.assert_array_equal(given[0][0], np.arange(256))


def test_resizing_is_bilinear_without_antialiasing(tmp_path: Path):
    values = np.random.default_rng(0).integers(0, 256, (4, 16)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "noise.png")
    pixels = predict.read_photo(tmp_path / "noise.png", (4, 4))
    # A cell of the result has its centre between the second and the third of its four pixels;
    # antialiasing would read all four.
    expected = (values[:, 1::4].astype(float) + values[:, 2::4]) / 2 / 127.5 - 1
    np.testing.assert_allclose(pixels, np.repeat(expected[..., None], 3, axis=-1), atol=1e-5)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_photographs_are_turned_the_right_way_up(orientation: int, photo: Path, tmp_path: Path):
    with Image.open(photo) as image:
        as_stored(image, orientation).save(tmp_path / "turned.png", exif=exif_of(orientation))
    assert quarters(predict.read_photo(tmp_path / "turned.png", (12, 16))) == [
        RED,
        GREEN,
        BLUE,
        WHITE,
    ]


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("P", "png"), ("RGBA", "png"), ("CMYK", "jpg"), ("RGB", "webp"), ("RGB", "bmp")],
)
def test_coloured_pictures_of_any_mode_keep_their_colours(
    mode: str, suffix: str, photo: Path, tmp_path: Path
):
    path = tmp_path / f"other.{suffix}"
    with Image.open(photo) as image:
        image.convert(mode).save(path, **({"lossless": True} if suffix == "webp" else {}))
    corners = quarters(predict.read_photo(path, (12, 16)))
    np.testing.assert_allclose(
        corners, [RED, GREEN, BLUE, WHITE], atol=0.1 if suffix == "jpg" else 0
    )


@pytest.mark.parametrize("bits", [8, 16])
def test_grey_pictures_keep_their_shades(bits: int, tmp_path: Path):
    shades = np.array([[0, 51], [102, 255]]) * (257 if bits == 16 else 1)
    Image.fromarray(shades.astype(f"uint{bits}")).save(tmp_path / "grey.png")
    pixels = predict.read_photo(tmp_path / "grey.png", (2, 2))
    np.testing.assert_allclose(pixels[..., 1], [[-1, -0.6], [-0.2, 1]], atol=1e-6)
    np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])


def test_transparent_pictures_are_laid_on_white(tmp_path: Path):
    pixels = np.array([[[0, 0, 0, 0], [0, 0, 0, 255]], [[255, 0, 0, 255], [0, 0, 0, 51]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "logo.png")
    found = quarters(predict.read_photo(tmp_path / "logo.png", (2, 2)))
    np.testing.assert_allclose(found, [WHITE, [-1, -1, -1], RED, [0.6, 0.6, 0.6]], atol=1e-6)


def test_transparent_palettes_are_laid_on_white(tmp_path: Path):
    image = Image.fromarray(np.array([[0, 1], [1, 1]], np.uint8), "L").convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "logo.png", transparency=bytes([0, 255]))
    assert quarters(predict.read_photo(tmp_path / "logo.png", (2, 2))) == [WHITE, RED, RED, RED]


def test_classes_are_named_with_probabilities_that_add_up_to_one(photo: Path):
    answer = next(predict.predict(Classifier(1000, favourite=3), [photo], top=1000))
    assert answer.guesses[0][1:] == ("tiger_shark", "n01491361")
    assert answer.guesses[0].score == pytest.approx(np.exp(2) / (np.exp(2) + 999))
    assert sum(guess.score for guess in answer.guesses) == pytest.approx(1)


def test_the_classes_of_imagenet_21k_have_a_probability_each(photo: Path):
    """And the names of WordNet: the first is "organism", the last "knothole"."""
    answer = next(predict.predict(Classifier(21843, favourite=21842), [photo], top=2))
    assert [guess.score for guess in answer.guesses] == pytest.approx([1 / (1 + np.exp(-2)), 0.5])
    assert answer.guesses[0][1:] == ("knothole", "n15102894")
    assert answer.guesses[1][1:] == ("organism", "n00004475")


def test_classes_without_names_are_counted(photo: Path):
    answer = next(predict.predict(Classifier(7, favourite=4), [photo], top=3))
    assert [guess[1:] for guess in answer.guesses] == [
        ("class 4", ""),
        ("class 0", ""),
        ("class 1", ""),
    ]


def test_a_broken_photograph_is_reported_and_the_others_are_answered(photo: Path, tmp_path: Path):
    broken, missing = tmp_path / "broken.jpg", tmp_path / "missing.jpg"
    broken.write_bytes(b"not a picture")
    answers = list(predict.predict(Classifier(7), [broken, photo, missing]))
    assert [answer.photo for answer in answers] == [broken, photo, missing]
    assert [answer.problem is None for answer in answers] == [False, True, False]
    assert answers[0].problem == "cannot identify image file"
    assert "No such file" in str(answers[2].problem)
    assert [len(answer.guesses) for answer in answers] == [0, 5, 0]


def test_a_photograph_too_large_for_the_memory_is_reported_and_the_others_are_answered(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read_pixels = predict.read_pixels

    def read(path: Path) -> np.ndarray:
        if path.name == "large.png":
            raise MemoryError
        return read_pixels(path)

    monkeypatch.setattr(predict, "read_pixels", read)
    large, other = predict.predict(Classifier(7), [tmp_path / "large.png", photo])
    assert (large.problem, large.guesses) == ("MemoryError", [])
    assert other.problem is None and len(other.guesses) == 5


def test_many_photographs_go_through_in_batches(photo: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predict, "BATCH_SIZE", 2)
    classifier, steps = Classifier(7), []
    assert len(list(predict.predict(classifier, [photo] * 5, progress=steps.append))) == 5
    assert [len(batch) for batch in classifier.batches] == [2, 2, 1]
    assert steps == [0, 2, 4]


def test_names_of_one_s_own_take_the_place_of_numbers_and_of_imagenet_s(photo: Path):
    names = [f"mine {number}" for number in range(1000)]
    for classes, given, expected in (
        (3, names[:3], "mine 1"),
        (1000, names, "mine 1"),
        (1000, names[:3], "goldfish"),
    ):
        answer = next(
            iter(predict.predict(Classifier(classes, favourite=1), [photo], top=1, names=given))
        )
        assert answer.guesses[0].name == expected
    assert (
        next(iter(predict.predict(Classifier(3), [photo], top=1, names=["too few"])))
        .guesses[0]
        .name
        == "class 0"
    )


def test_files_beside_a_single_photo_are_named(capsys):
    answer = predict.Answer(Path("a.jpg"), [predict.Guess(0.9, "tench", "n01440764")], None)
    left_out = [LeftOut(Path("b.avif"), "not a photo by its suffix, .avif")]
    assert predict.tell([answer], "text", left_out=left_out) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == ["Left out, 1: not a photo by its suffix, .avif (1: b.avif)."]
    assert predict.tell([answer], "text") == 0 and capsys.readouterr().err == ""


def test_photos_that_cannot_be_read_are_counted_and_named_with_their_reasons(capsys):
    guesses = [predict.Guess(0.9, "tench", "n01440764")]
    answers = [
        predict.Answer(Path("a.jpg"), guesses, None),
        predict.Answer(Path("b.jpg"), [], "it is empty"),
        predict.Answer(Path("c.jpg"), [], "it is empty"),
    ]
    assert predict.tell(answers, "text") == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "a.jpg" and "b.jpg" not in said.out
    lines = said.err.splitlines()
    assert lines[:3] == [
        "cannot read b.jpg: it is empty",
        "cannot read c.jpg: it is empty",
        "1 of 3 photos were read",
    ]
    assert "b.jpg" in "".join(lines[3:]) and "it is empty" in "".join(lines[3:])
