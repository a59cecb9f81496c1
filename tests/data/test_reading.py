"""When images that cannot be read are too many, and what is remembered of them. Batches are in test_pipeline.py."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.data import sources  # noqa: E402
from keras_vit.data.reading import Unreadable, named, read_pixels  # noqa: E402

pytestmark = pytest.mark.tensorflow


def source(count: int) -> sources.Source:
    return sources.arrays(np.zeros((count, 2, 2), "uint8"), np.arange(count) % 2, name="grey")


@pytest.mark.parametrize(("count", "most"), [(200, 40), (100, 20), (51, 10), (20, 10), (5, 5)])
def test_a_fifth_may_be_unreadable_and_ten_anyway(count: int, most: int):
    found = Unreadable(source(count))
    for index in range(most):
        assert found.add(np.array([index, index])) == 2  # the same again is no new one
    assert len(found.places) == most and found.fatal is None
    if most < count:
        with pytest.raises(
            ValueError, match=rf"{most + 1} of the {count} images of grey could not be read. Is the disk"
        ):
            found.add(np.array([most]))
        assert found.fatal.startswith(f"{most + 1} of the {count}") and found.places[-1] in found.fatal


def test_places_are_kept_in_a_file_once_over_all_parts_and_workers(tmp_path: Path):
    record, grey = tmp_path / "unreadable.txt", source(100)
    first, other = Unreadable(grey, record=record), Unreadable(grey, record=record)
    first.add(np.array([3, 1]))
    other.add(np.array([1, 7]))
    places = [grey.locate(index) for index in (3, 1, 7)]
    assert first.recorded() == places == Unreadable(grey, record=record).places
    again = Unreadable(grey, record=record)
    again.add(np.array([7, 3]))
    assert record.read_text().splitlines() == [*places[:2], *places[1:]]  # what two workers met at the same time
    assert Unreadable(grey).recorded() == []


def test_with_strict_the_first_ends_it_in_plain_words():
    found, others = Unreadable(source(100), strict=True), Unreadable(source(100))
    assert found.add(np.array([], int)) == 0
    with pytest.raises(ValueError, match="is not an image, or cut short. Replace it, or turn `strict` off"):
        found.add(np.array([4]))
    with pytest.raises(ValueError, match="^" + re.escape(found.fatal)) as raised, named(None, others, found):
        raise RuntimeError("what tf.data makes of it")
    assert isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="of another kind"), named(others):
        raise RuntimeError("of another kind")


def test_pixels_are_those_in_the_source():
    levels = np.arange(2 * 3 * 4 * 3, dtype="uint8").reshape(2, 3, 4, 3)
    assert (read_pixels(sources.arrays(levels, np.zeros(2, int), ["one"]), 1) == levels[1]).all()
