"""Pictures of right and wrong: what the pixels say. How they look is judged by eye."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")

from keras_vit.evaluate.plots import draw_confusion, draw_mistakes  # noqa: E402

pytestmark = pytest.mark.tensorflow

ODD = ["-v café", "🐱", "猫 cat", "a_{$x$}^2", "x" * 200, "line\nbreak", "\\run %s"]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize("num_classes", [2, 60, 150])
@pytest.mark.sampled(1)
def test_a_confusion_is_drawn_for_few_and_for_many_classes(tmp_path: Path, num_classes: int):
    counts = np.eye(num_classes, dtype=int) * 5
    draw_confusion(tmp_path / "c.png", counts, [f"class number {i}" for i in range(num_classes)])
    found = pixels(tmp_path / "c.png")
    dark = (found == [8, 48, 107]).all(axis=-1)  # the end of the color map: all images of the class
    rows, columns = np.nonzero(dark)
    middle = columns < found.shape[1] * 0.8  # the color bar aside
    order = np.argsort(rows[middle])
    # along the diagonal
    assert np.corrcoef(rows[middle][order], columns[middle][order])[0, 1] > 0.7
    assert {path.name for path in tmp_path.iterdir()} == {"c.png"}


def test_odd_names_are_drawn_without_a_warning(tmp_path: Path):
    counts = np.ones((7, 7), int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_confusion(tmp_path / "c.png", counts, ODD)
        small = [np.zeros((4, 9, 3), np.uint8)] * 7
        draw_mistakes(
            tmp_path / "m.png", small, list(range(7)), list(range(7))[::-1], [0.9] * 7, ODD
        )
    assert min(pixels(tmp_path / "m.png").shape[:2]) > 300


def test_a_class_without_images_is_an_empty_row(tmp_path: Path):
    draw_confusion(tmp_path / "c.png", np.array([[0, 0], [1, 1]]), ["none", "some"])
    assert pixels(tmp_path / "c.png").shape[0] > 300


def test_every_mistake_is_in_the_picture(tmp_path: Path):
    colors = [(200, 10, 30), (10, 200, 30), (30, 10, 200), (200, 200, 10), (10, 200, 200)]
    images = [np.full((20, 30, 3), color, np.uint8) for color in colors]
    draw_mistakes(tmp_path / "m.png", images, [0] * 5, [1] * 5, [0.5] * 5, ["a", "b"])
    found = pixels(tmp_path / "m.png")
    assert all((found == color).all(axis=-1).sum() > 10_000 for color in colors)


def test_nothing_is_left_of_a_picture_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError):
        draw_confusion(tmp_path / "c.png", np.eye(2, dtype=int), ["a", "b"])
    assert list(tmp_path.iterdir()) == []
