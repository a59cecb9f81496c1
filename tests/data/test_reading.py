"""Images that cannot be read: counted once each, whatever their files are called."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.reading import Unreadable, read_pixels
from keras_vit.data.sources import image_folder

pytestmark = pytest.mark.tensorflow

NAMES = [
    "plain.png",
    "two\nlines.png",
    "line\u2028separator.png",
    "bytes\udce9.png",
    "return\r.png",
    "next\x85line.png",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images under odd names, and as many files that are none."""
    for name in NAMES:
        try:
            (tmp_path / "images" / "whole").mkdir(parents=True, exist_ok=True)
            (tmp_path / "images" / "bad").mkdir(exist_ok=True)
            (tmp_path / "images" / "whole" / name).write_bytes(
                tf.io.encode_png(np.full((2, 3, 3), 7, np.uint8)).numpy()
            )
            (tmp_path / "images" / "bad" / name).write_bytes(b"")
        except OSError:
            pytest.skip("the file system refuses such names")
    return tmp_path / "images"


def test_files_of_any_name_are_read(folder: Path):
    source = image_folder(folder)
    whole = np.flatnonzero(source.labels == 1)
    assert sorted(os.path.basename(source.locate(int(index))) for index in whole) == sorted(NAMES)
    for index in whole:
        np.testing.assert_array_equal(read_pixels(source, int(index)), np.full((2, 3, 3), 7))


def test_a_file_of_any_name_is_counted_once_over_all_parts_of_a_run(folder: Path, tmp_path: Path):
    source, record = image_folder(folder), tmp_path / "unreadable.txt"
    bad = np.flatnonzero(source.labels == 0)
    Unreadable(source, record=record).add(bad[:4])
    second = Unreadable(source, record=record)
    second.add(bad)
    assert len(second.places) == len(bad) == len(NAMES)
    assert record.read_text(encoding="utf-8").count("\n") == len(bad)
    assert Unreadable(source, record=record).places == second.places
    assert any(place.endswith(r"two\nlines.png") for place in second.places)


def test_a_record_that_is_no_text_ends_nothing(folder: Path, tmp_path: Path):
    (tmp_path / "unreadable.txt").write_bytes(b"a\xff\n\nb")
    assert len(Unreadable(image_folder(folder), record=tmp_path / "unreadable.txt").places) == 2
