import numpy as np
import pytest

from keras_vit.weights import hdf5

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.once


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/array"] = np.arange(3.0)
    return tmp_path / "a.h5"


def test_arrays_are_read_through_groups(path):
    with hdf5.open_file(path) as file:
        found = hdf5.read_array(hdf5.open_dataset(hdf5.open_group(file, "group"), "array"))
    np.testing.assert_array_equal(found, [0.0, 1.0, 2.0])
    assert found.dtype == np.float64


def test_a_file_that_is_cut_off_is_refused_before_hdf5_sees_it(path):
    whole = path.read_bytes()
    hdf5.check_end(path)
    for size in (9, 40, 63, 64, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert hdf5.is_hdf5(path)
        with pytest.raises(ValueError, match=r"Cannot read '.*a\.h5'.*truncated"):
            hdf5.check_end(path)


def test_other_files_and_folders_are_no_hdf5(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and more")
    assert not hdf5.is_hdf5(tmp_path / "a.npz") and not hdf5.is_hdf5(tmp_path)


def test_groups_and_arrays_are_told_apart(path):
    with hdf5.open_file(path) as file:
        with pytest.raises(ValueError, match="/group/array is not a group"):
            hdf5.open_group(file["group"], "array")
        with pytest.raises(ValueError, match="/group is not an array"):
            hdf5.open_dataset(file, "group")
        with pytest.raises(ValueError, match="//other is missing"):
            hdf5.open_group(file, "other")


def test_an_item_is_visited_once_under_all_its_names(path):
    with h5py.File(path, "r+") as file:
        file["again"] = file["group"]
        seen: set[int] = set()
        hdf5.check_first_visit(file["group"], seen)
        hdf5.check_first_visit(file["group/array"], seen)
        with pytest.raises(ValueError, match="/again is also stored under another name"):
            hdf5.check_first_visit(file["again"], seen)


def test_errors_of_any_type_become_one_sentence():
    def fail():
        raise KeyError("two\nlines")

    with pytest.raises(ValueError, match="it is bad: 'two.*lines'") as caught:
        hdf5.call_or_refuse(lambda what: ValueError(f"it is bad: {what}"), fail)
    assert "\n" not in str(caught.value)
