"""Files that people and later runs rely on: whole or not at all, whoever is interrupted; and what
is kept is kept.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import recorded_writes

from keras_vit.weights import files
from keras_vit.writing import table, write_atomically, write_text

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="tells files by their descriptors as Linux does"
)


def text(path: Path) -> None:
    write_text(path, "new")


def by_hand(path: Path) -> None:
    with write_atomically(path) as partial:
        assert partial.suffix == path.suffix and partial.parent == path.parent and partial != path
        partial.write_text("new")


def npz(path: Path) -> None:
    files.write_npz(path, {"a": np.arange(3.0)})


def safetensors(path: Path) -> None:
    files.write_safetensors(path, {"a": np.arange(3.0)})


WRITERS = [text, by_hand, npz, safetensors]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_takes_the_place_of_the_old_one_and_leaves_nothing_beside_it(
    tmp_path: Path, write: Callable
):
    path = tmp_path / "a.npz"
    path.write_text("old")
    write(path)
    assert path.read_bytes() != b"old" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("write", WRITERS)
def test_an_interrupted_writer_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, write: Callable, monkeypatch
):
    path = tmp_path / "a.npz"
    path.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


@on_linux
@pytest.mark.parametrize("write", [npz, safetensors])
def test_weights_are_on_the_disk_before_they_take_their_name(
    tmp_path: Path, write: Callable, monkeypatch
):
    events = recorded_writes.record(monkeypatch)
    write(tmp_path / "a.npz")
    assert [kind for kind, _ in events] == ["synced", "renamed"] and events[1][1] == "a.npz"
    assert re.fullmatch(r"\.partial-\w{8}-\d+\.\d+-a\.npz", events[0][1])


def test_no_script_draws_under_the_final_name():
    root = Path(__file__).parents[1]
    code = [path for name in ("keras_vit", "experiments") for path in (root / name).rglob("*.py")]
    calls = [
        call
        for path in code
        for call in re.findall(
            r"^(?! *\.\.\.).*(?:savefig|save_img)\(\s*\S+", path.read_text(encoding="utf-8"), re.M
        )
    ]
    assert len(calls) > 3
    assert not [call for call in calls if not re.search(r"\(\s*partial\b", call)]


def test_what_is_in_a_cell_ends_neither_the_cell_nor_the_row():
    rows = table(["a", "b|c"], [["one\ntwo", "x | y"], [1, None]]).splitlines()
    assert rows == ["| a | b\\|c |", "| --- | --- |", "| one two | x \\| y |", "| 1 | None |"]


def test_bytes_of_a_name_that_are_no_utf_8_are_written_as_escapes(tmp_path: Path):
    write_text(tmp_path / "a.md", os.fsdecode(b"na\xefve") + " é")
    assert (tmp_path / "a.md").read_bytes() == "na\\udcefve é".encode()
