"""The answers of a classifier, counted: by hand, from what the model says of each image."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate import plots  # noqa: E402
from keras_vit.evaluate.accuracy import Answers  # noqa: E402
from keras_vit.evaluate.scorecard import (  # noqa: E402
    class_table,
    headline,
    worst,
    write_answers,
    write_pictures,
)

pytestmark = pytest.mark.tensorflow

NAMES = ["cat", "dog", "a|b"]


def card_of(labels: list[int], answers: list[int], shares: list[float] | None = None) -> Answers:
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3)).astype(np.uint8)
    return made_of(
        sources.arrays(images, np.array(labels), NAMES, name="all"), labels, answers, shares
    )


def made_of(source: sources.Source, labels, answers, shares=None) -> Answers:
    labels, answers = np.array(labels), np.array(answers)
    return Answers(
        source=source,
        indices=np.arange(len(labels)),
        labels=labels,
        answers=answers,
        shares=np.array(shares or [0.5] * len(labels)),
        ranks=(labels != answers).astype(int),
        losses=np.zeros(len(labels)),
    )


def test_the_worst_mistakes_are_those_of_which_the_model_was_most_sure():
    card = card_of([0, 0, 1, 1, 2], [0, 1, 0, 1, 1], [0.99, 0.4, 0.9, 0.5, 0.6])
    assert worst(card).tolist() == [2, 4, 1]
    assert worst(card, 2).tolist() == [2, 4]


def test_the_table_of_classes_says_what_is_found_and_what_is_mixed_up():
    lines = class_table(card_of([0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 1, 0])).splitlines()
    assert lines[2] == "| 0 | cat | 4 | 25.0% | 50.0% | dog (2) |"
    assert lines[3] == "| 1 | dog | 2 | 50.0% | 33.3% | cat (1) |"
    assert lines[4] == r"| 2 | a\|b | 0 | none | 0.0% |  |"


def test_what_is_right_is_not_the_most_frequent_error():
    line = class_table(card_of([0, 0, 0, 1], [0, 0, 1, 1])).splitlines()[2]
    assert line == "| 0 | cat | 3 | 66.7% | 100.0% | dog (1) |"


def test_of_many_classes_the_table_has_those_found_least():
    """A class without images has no recall, so it is not one of them."""
    labels = np.arange(20, 130)
    names = [f"name {number}" for number in range(130)]
    source = sources.arrays(np.zeros((110, 2, 2), np.uint8), labels, names)
    answers = np.where(labels == 77, 20, labels)
    text = class_table(made_of(source, labels, answers))
    assert text.startswith("The 100 of 130 classes with the lowest recall.")
    rows = text.splitlines()[4:]
    assert rows[0].startswith("| 77 | name 77 | 1 | 0.0% | none | name 20 (1)")
    assert len(rows) == 100
    assert all(int(row.split(" | ")[2]) == 1 for row in rows)


def test_the_headline_has_wilson_s_interval():
    # E. B. Wilson 1927; 9 of 10 gives 0.596 to 0.982.
    card = card_of([0] * 10, [0] * 9 + [1])
    assert headline(card).startswith("**Accuracy 90.00% on 10 images** (9 correct, 1 wrong;")
    assert "59.6% to 98.2%" in headline(card)
    assert "100.0%)" in headline(card_of([0, 1], [0, 1]))


def test_every_answer_is_written(tmp_path: Path):
    write_answers(card_of([0, 2], [0, 1], [0.75, 0.5]), tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv", encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "class", "answer", "probability", "right"],
            ["all[0]", "cat", "cat", "0.750000", "1"],
            ["all[1]", "a|b", "dog", "0.500000", "0"],
        ]


def test_answers_about_files_of_any_name_are_written(tmp_path: Path):
    source = replace(card_of([0], [0]).source, locate=lambda _: "two\nlines \udce9\u2028.png")
    write_answers(made_of(source, [0], [0]), tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv", encoding="utf-8", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["image", "two\nlines \\udce9\u2028.png"]


def test_without_mistakes_there_is_no_picture_of_them(tmp_path: Path):
    assert write_pictures(card_of([0, 1], [1, 1]), tmp_path) == ["confusion.png", "errors.png"]
    assert write_pictures(card_of([0, 1], [0, 1]), tmp_path) == ["confusion.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"confusion.png"}


def test_a_large_image_is_drawn_small_in_its_own_proportions(tmp_path: Path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "draw_confusion", lambda *_: None)
    monkeypatch.setattr(plots, "draw_mistakes", lambda _, images, *__: drawn.extend(images))
    image = np.arange(900)[:, None, None] + 2 * np.arange(1800)[:, None] + np.zeros(3, int)
    source = sources.arrays(image.astype(np.uint8)[None], np.array([0]), NAMES)
    write_pictures(made_of(source, [0], [1]), tmp_path)
    height, width, _ = drawn[0].shape
    assert width == 2 * height and height < 450
    step = 900 // height
    np.testing.assert_array_equal(drawn[0], image.astype(np.uint8)[::step, ::step])


def test_the_errors_are_drawn_with_their_own_images(tmp_path: Path, monkeypatch):
    """An image that cannot be read has no row, so the rows behind it have other numbers than images."""
    drawn = []
    monkeypatch.setattr(plots, "draw_confusion", lambda *_: None)
    monkeypatch.setattr(plots, "draw_mistakes", lambda *given: drawn.append(given))
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 3), np.uint8)
    source = sources.arrays(images, np.array([0, 0, 1, 2, 2]), NAMES)
    whole = made_of(source, [0, 1, 2, 2], [0, 0, 0, 2], [0.5, 0.75, 1.0, 0.5])
    card = replace(whole, indices=np.array([0, 2, 3, 4]))
    write_pictures(card, tmp_path)
    path, shown, *columns = drawn[0]
    assert path == tmp_path / "errors.png"
    assert [image.max() for image in shown] == [3, 2]
    assert columns == [[2, 1], [0, 0], [1.0, 0.75], tuple(NAMES)]
