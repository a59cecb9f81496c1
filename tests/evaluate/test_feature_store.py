"""A folder that fills with features: what counts, what is on the disk and when, and what is left at
the end.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import recorded_writes

pytest.importorskip("tensorflow")

from keras_vit.evaluate import feature_store  # noqa: E402
from keras_vit.evaluate.feature_store import FeatureStore, read  # noqa: E402

pytestmark = pytest.mark.tensorflow

VALUES = np.arange(21, dtype="float32").reshape(7, 3)
# 3, 7 and 8 could not be read
LABELS, INDICES = np.array([0, 1, 2, 0, 1, 2, 0]), np.array([0, 1, 2, 4, 5, 6, 9])


def store(folder: Path, *, is_chief: bool = True, **record) -> FeatureStore:
    return FeatureStore(folder, {"layer": "pre_logits", **record}, is_chief=is_chief)


def fill(some: FeatureStore, start: int, stop: int) -> None:
    part = slice(start, stop)
    some.append(VALUES[part], LABELS[part], INDICES[part])


def check_whole(folder: Path) -> None:
    found = read(folder)
    assert (found["values"] == VALUES).all() and found["values"].dtype == np.float32
    assert (found["labels"] == LABELS).all() and (found["indices"] == INDICES).all()
    assert found["labels"].dtype == found["indices"].dtype == np.int64
    assert (found["class_names"], found["name"]) == (("a", "b", "c"), "mine")
    names = {path.name for path in folder.iterdir()}
    assert names == {"features.npy", "labels.npy", "indices.npy", "features.json"}


def test_rows_come_back_and_only_what_is_finished_is_left(tmp_path: Path):
    with store(tmp_path) as some:
        fill(some, 0, 4)
        fill(some, 4, 7)
        assert (some.rows, some.next) == (7, 10)
    assert json.loads((tmp_path / "progress.json").read_text())["rows"] == 7
    with pytest.raises(ValueError, match="is not finished: rerun it to resume"):
        read(tmp_path)
    some.finish("mine", ("a", "b", "c"))
    check_whole(tmp_path)
    again = store(tmp_path)
    assert again.is_finished and again.rows == 7
    with pytest.raises(ValueError, match="Create them with `extract`"):
        read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("there", "here"),
    [({"pixels": "0..1"}, {}), ({}, {"pixels": "0..1"}), ({"crop": "a"}, {"crop": "b"})],
)
@pytest.mark.parametrize("rows", [4, 7])
def test_features_with_another_description_are_not_continued(
    tmp_path: Path, there: dict, here: dict, rows: int
):
    with store(tmp_path, **there) as some:
        fill(some, 0, rows)
    if rows == 7:
        some.finish("mine", ("a", "b", "c"))
    (name,) = there or here
    said = f"there {{'{name}': {there.get(name)!r}}}, here {{'{name}': {here.get(name)!r}}}"
    with pytest.raises(ValueError, match=f"contains other features: {re.escape(said)}"):
        store(tmp_path, **here)
    assert store(tmp_path, **there).rows == rows


def test_a_field_that_earlier_versions_lack_is_not_added_to_their_features(tmp_path: Path):
    with store(tmp_path) as some:
        fill(some, 0, 4)
    with store(tmp_path, config_sha256="a") as some:
        fill(some, 4, 7)
    some.finish("mine", ("a", "b", "c"))
    assert store(tmp_path, config_sha256="b").is_finished
    assert "config_sha256" not in json.loads((tmp_path / "features.json").read_text())["record"]
    with store(tmp_path / "new", config_sha256="a") as some:
        fill(some, 0, 4)
    for other in ({"config_sha256": "b"}, {}):
        with pytest.raises(ValueError, match="there {'config_sha256': 'a'}"):
            store(tmp_path / "new", **other)


def test_what_a_process_left_that_was_killed_after_it_had_finished_is_removed(
    tmp_path: Path, monkeypatch
):
    with store(tmp_path) as some:
        fill(some, 0, 7)
    with monkeypatch.context() as killed:
        killed.setattr(FeatureStore, "_remove_unfinished", lambda _: None)
        some.finish("mine", ("a", "b", "c"))
    assert (tmp_path / "places.partial").exists()
    store(tmp_path, is_chief=False)
    assert (tmp_path / "places.partial").exists()
    assert store(tmp_path).is_finished
    check_whole(tmp_path)


@pytest.mark.parametrize("torn", [b"", b"\x00" * 5, b"\x01" * 40])
def test_what_was_written_and_does_not_count_is_cut_off(tmp_path: Path, torn: bytes):
    with store(tmp_path) as some:
        fill(some, 0, 4)
    for name in ("features.npy", "places.partial"):
        with open(tmp_path / name, "ab") as file:
            file.write(torn)
    with store(tmp_path) as some:
        assert (some.rows, some.next) == (4, 5)
        fill(some, 4, 7)
    some.finish("mine", ("a", "b", "c"))
    check_whole(tmp_path)


def test_rows_that_were_written_before_the_first_save_do_not_count(tmp_path: Path):
    with store(tmp_path) as some:
        fill(some, 0, 4)
    (tmp_path / "progress.json").unlink()  # as if killed before it was written
    with store(tmp_path) as some:
        fill(some, 0, 7)
    some.finish("mine", ("a", "b", "c"))
    check_whole(tmp_path)


@pytest.mark.parametrize("name", ["features.npy", "places.partial"])
def test_rows_that_counted_and_are_gone_are_noticed(tmp_path: Path, name: str):
    with store(tmp_path) as some:
        fill(some, 0, 4)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-1])
    with pytest.raises(ValueError, match=f"{name} is missing or was truncated"):
        store(tmp_path).__enter__()
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing or was truncated"):
        store(tmp_path).__enter__()


@pytest.mark.skipif(
    sys.platform != "linux", reason="tells files by their descriptors as Linux does"
)
def test_rows_are_on_the_disk_before_they_count(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(feature_store, "_SECONDS_BETWEEN_SAVES", -1)  # after each batch
    events = recorded_writes.record(monkeypatch)
    with store(tmp_path) as some:
        for start, stop in ((0, 4), (4, 7)):
            events.clear()
            fill(some, start, stop)
            assert events[:2] == [("synced", "features.npy"), ("synced", "places.partial")]
            assert [name for kind, name in events[2:] if kind == "renamed"] == ["progress.json"]
            assert (tmp_path / "places.partial").stat().st_size == 16 * stop
    events.clear()
    some.finish("mine", ("a", "b", "c"))
    assert [name for kind, name in events if kind == "renamed"] == [
        "indices.npy",
        "labels.npy",
        "features.json",
    ]


def test_saves_are_far_apart_while_images_come(tmp_path: Path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(feature_store.time, "monotonic", lambda: now[0])
    with store(tmp_path) as some:
        for start, seconds, saved in (
            (0, 9, False),
            (1, 10, False),
            (2, 11, True),
            (3, 12, False),
            (4, 22, True),
        ):
            (tmp_path / "progress.json").unlink(missing_ok=True)
            now[0] = 100.0 + seconds
            fill(some, start, start + 1)
            assert (tmp_path / "progress.json").exists() == saved, seconds


def test_another_worker_writes_nothing(tmp_path: Path):
    with store(tmp_path, is_chief=False) as some:
        fill(some, 0, 7)
    some.finish("mine", ("a", "b", "c"))
    assert list(tmp_path.iterdir()) == []


def test_features_of_something_else_are_refused_and_none_is_an_error(tmp_path: Path):
    with store(tmp_path, size=224) as some:
        fill(some, 0, 4)
    with pytest.raises(
        ValueError,
        match="there {'size': 224}, here {'size': 384}. Choose another folder, or remove this one.",
    ):
        store(tmp_path, size=384)
    with store(tmp_path / "empty") as nothing:
        nothing.append(VALUES[:0], LABELS[:0], INDICES[:0])
    with pytest.raises(ValueError, match="No image of mine could be read"):
        nothing.finish("mine", ())
