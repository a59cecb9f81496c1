"""Images that cannot be read: counted once each, whatever their files are called, and when they are
too many.

Batches are in test_pipeline.py.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import sources
from keras_vit.data.reading import (
    Unreadable,
    explain_unreadable,
    forget_from,
    forget_repaired,
    read_pixels,
    read_record,
)
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
    assert (
        set(read_record(record).values()) == set(second.reasons.values()) == {"the file is empty"}
    )


def test_a_record_that_is_no_text_ends_nothing(folder: Path, tmp_path: Path):
    (tmp_path / "unreadable.txt").write_bytes(b"a\xff\n\nb")
    assert len(Unreadable(image_folder(folder), record=tmp_path / "unreadable.txt").places) == 2


def source(count: int) -> sources.Source:
    return sources.arrays(np.zeros((count, 2, 2), "uint8"), np.arange(count) % 2, name="grey")


@pytest.mark.parametrize(("count", "most"), [(200, 40), (100, 20), (51, 10), (20, 10), (5, 4)])
def test_a_fifth_may_be_unreadable_and_ten_anyway(count: int, most: int):
    found = Unreadable(source(count))
    for index in range(most):
        assert found.add(np.array([index, index])) == 2  # the same again is no new one
    assert len(found.places) == most and found.fatal is None
    if most < count:
        with pytest.raises(
            ValueError,
            match=rf"{most + 1} of the {count} images of grey could not be read. The most frequent "
            rf"reason, {most + 1}: not an image, or truncated. .* that the disk is mounted",
        ):
            found.add(np.array([most]))
        assert (
            found.fatal.startswith(f"{most + 1} of the {count}") and found.places[-1] in found.fatal
        )


def test_places_are_kept_in_a_file_once_over_all_parts_and_workers(tmp_path: Path):
    record, grey = tmp_path / "unreadable.txt", source(100)
    first, other = Unreadable(grey, record=record), Unreadable(grey, record=record)
    first.add(np.array([3, 1]))
    other.add(np.array([1, 7]))
    places = [grey.locate(index) for index in (3, 1, 7)]
    assert first.recorded() == places == Unreadable(grey, record=record).places
    again = Unreadable(grey, record=record)
    again.add(np.array([7, 3]))
    lines = [line.partition("\t") for line in record.read_text().splitlines()]
    # what two workers met at the same time
    assert [place for place, _, _ in lines] == [*places[:2], *places[1:]]
    assert {reason for _, _, reason in lines} == {"not an image, or truncated"}
    assert Unreadable(grey).recorded() == []


def test_images_that_are_read_again_are_forgotten(folder: Path, tmp_path: Path):
    images, record = image_folder(folder), tmp_path / "unreadable.txt"
    Unreadable(images, record=record).add(np.flatnonzero(images.labels == 0))
    before = read_record(record)
    assert len(before) == len(NAMES)
    forget_from(record, images, len(NAMES))
    assert read_record(record) == before
    forget_from(record, images, 2)  # the third image and those after it are read again
    assert list(read_record(record).items()) == list(before.items())[:2]
    forget_from(record, images, 0)
    assert not record.exists()
    forget_from(record, images, 3)
    assert not record.exists()


def test_repaired_images_count_no_more_and_the_record_is_kept_until_it_is_told(
    folder: Path, tmp_path: Path
):
    images, record = image_folder(folder), tmp_path / "unreadable.txt"
    bad = [int(index) for index in np.flatnonzero(images.labels == 0)]
    Unreadable(images, record=record).add(np.array(bad))
    recorded = read_record(record)
    repaired = next(index for index in bad if images.locate(index).endswith("plain.png"))
    Path(images.locate(repaired)).write_bytes((folder / "whole" / "plain.png").read_bytes())
    again = Unreadable(images, record=record)
    assert set(recorded) - set(again.places) == {images.locate(repaired)}
    assert read_record(record) == recorded  # what earlier steps lacked
    forget_repaired(record)
    assert list(read_record(record)) == again.places
    for index in bad:
        Path(images.locate(index)).write_bytes((folder / "whole" / "plain.png").read_bytes())
    record.write_text(f"{images.locate(repaired)}\tempty\n")
    forget_repaired(record)
    assert not record.exists()


def test_the_most_frequent_reason_is_named(folder: Path, tmp_path: Path):
    files = [tmp_path / f"{number}.jpg" for number in range(5)]
    for number, file in enumerate(files):
        file.write_bytes(b"rubbish" if number % 2 else b"")
    found = Unreadable(sources.photos(files))
    with pytest.raises(ValueError, match="5 of the 5 .* reason, 3: the file is empty. .*4.jpg"):
        found.add(np.arange(5))


def test_with_strict_the_first_ends_it_in_plain_words():
    found, others = Unreadable(source(100), strict=True), Unreadable(source(100))
    assert found.add(np.array([], int)) == 0
    with pytest.raises(
        ValueError,
        match="cannot be read: not an image, or truncated. Replace it, or disable `strict`",
    ):
        found.add(np.array([4]))
    with (
        pytest.raises(ValueError, match="^" + re.escape(found.fatal)) as raised,
        explain_unreadable(None, others, found),
    ):
        raise RuntimeError("what tf.data makes of it")
    assert isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="of another kind"), explain_unreadable(others):
        raise RuntimeError("of another kind")


def test_pixels_are_those_in_the_source():
    levels = np.arange(2 * 3 * 4 * 3, dtype="uint8").reshape(2, 3, 4, 3)
    assert (read_pixels(sources.arrays(levels, np.zeros(2, int), ["one"]), 1) == levels[1]).all()
