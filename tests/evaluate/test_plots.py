"""Pictures of right and wrong: what the pixels say. How they look is judged by eye."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")

from matplotlib.figure import Figure  # noqa: E402

from keras_vit.evaluate.plots import draw_calibration, draw_confusion, draw_mistakes  # noqa: E402

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


def test_a_confusion_is_colored_by_the_share_of_the_true_class(
    tmp_path: Path, figures: list[Figure]
):
    draw_confusion(tmp_path / "c.png", np.array([[3, 1], [0, 2]]), ["cat", "dog"])
    axes, bar = figures[0].axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 1]])
    counts = {text.get_position(): text.get_text() for text in axes.texts}
    assert counts == {(0, 0): "3", (1, 0): "1", (1, 1): "2"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert bar.get_ylabel() == "share of the images of the true class"
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["cat", "dog"]


def test_an_error_is_drawn_with_what_was_predicted_and_what_is_true(
    tmp_path: Path, figures: list[Figure]
):
    draw_mistakes(
        tmp_path / "m.png", [np.zeros((4, 4, 3), np.uint8)], [0], [1], [0.9], ["cat", "dog"]
    )
    assert figures[0].axes[0].get_title() == "predicted: dog  90%\ntrue: cat"


def test_calibration_is_drawn_as_accuracy_against_confidence(tmp_path: Path, figures: list[Figure]):
    confidence, accuracy = np.array([np.nan, 0.4, 0.9]), np.array([np.nan, 0.25, 0.5])
    draw_calibration(tmp_path / "c.png", confidence, accuracy, np.array([0, 4, 2]))
    upper, lower = figures[0].axes
    assert [bar.get_height() for bar in upper.patches] == [0, 0.25, 0.5]
    np.testing.assert_allclose([bar.get_x() for bar in upper.patches], [0, 1 / 3, 2 / 3])
    x, y = upper.lines[1].get_data()
    np.testing.assert_array_equal(x, confidence)
    np.testing.assert_array_equal(y, accuracy)
    assert [bar.get_height() for bar in lower.patches] == [0, 4, 2]
    np.testing.assert_allclose([bar.get_x() for bar in lower.patches], [0, 1 / 3, 2 / 3])
    assert upper.get_ylabel() == "accuracy" and lower.get_xlabel().startswith("confidence")


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
