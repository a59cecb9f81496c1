"""Files that appear whole or not at all, also after a kill; and JSON that is JSON."""

import errno
import json
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import warm

from keras_vit.writing import _MARK, to_one_line, write_array, write_atomically, write_json

_KILLED = """
import os, sys
from pathlib import Path
from keras_vit.writing import write_atomically
with write_atomically(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    os._exit(9)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no harmless signal to ask with")
def test_what_killed_writers_left_is_removed_by_the_next_writer_in_the_folder(tmp_path: Path):
    for name in ("report.md", "other.md"):
        assert warm.run([sys.executable, "-c", _KILLED, str(tmp_path / name)]).returncode == 9
    assert [path.name.endswith("-other.md") for path in tmp_path.iterdir()] == [True]
    with write_atomically(tmp_path / "report.md") as partial:
        partial.write_text("whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("report.md", "whole")
    ]


def test_two_threads_may_write_the_same_file_and_a_number_of_a_killed_process_may_come_again(
    tmp_path: Path,
):
    (tmp_path / f"{_MARK}{os.getpid()}.{10**9}-report.md").touch()
    with (
        write_atomically(tmp_path / "report.md") as one,
        write_atomically(tmp_path / "report.md") as other,
    ):
        assert one != other
        one.write_text("one"), other.write_text("other")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.md", "one")]


def test_what_a_living_writer_or_another_machine_writes_stays(tmp_path: Path):
    elsewhere, living = (
        tmp_path / ".partial-00000000-1-report.md",
        tmp_path / f"{_MARK}{os.getppid()}-report.md",
    )
    elsewhere.touch()
    living.touch()
    with write_atomically(tmp_path / "report.md") as ours:
        ours.write_text("ours")
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", elsewhere.name, living.name}


def test_what_a_process_of_another_user_writes_stays(tmp_path: Path, monkeypatch):
    def refuse(*_) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    theirs = tmp_path / f"{_MARK}1-report.md"
    theirs.touch()
    monkeypatch.setattr(os, "kill", refuse)
    with write_atomically(tmp_path / "report.md") as ours:
        ours.write_text("ours")
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", theirs.name}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_an_array_on_a_full_disk_is_an_error_that_says_so():
    with pytest.raises(OSError, match="No space left") as raised:
        write_array(Path("/dev/full"), np.zeros(10_000))
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("array", [np.arange(12).reshape(3, 4).T, np.float32(2), np.zeros((0, 2))])
def test_an_array_is_read_as_it_was_written(array, tmp_path):
    write_array(tmp_path / "a.npy", np.asarray(array))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array, strict=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_was_not_written_and_what_is_kept(tmp_path: Path, code: int):
    (tmp_path / "a.md").write_text("old")
    words = (
        f"{os.strerror(code)}: make room. An older file of this name is kept: '{tmp_path / 'a.md'}'"
    )
    with pytest.raises(OSError, match=re.escape(words)), write_atomically(tmp_path / "a.md"):
        raise OSError(code, os.strerror(code))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.md", "old")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain été", "plain été"),
        ("a\nb", r"a\nb"),
        ("\u2028\x85", r"\u2028\x85"),
        ("\udce9", r"\udce9"),
    ],
)
def test_a_name_is_one_line_of_text(text: str, expected: str):
    assert to_one_line(text) == expected
    assert len(to_one_line(text).splitlines()) == 1
    to_one_line(text).encode()


def test_json_comes_back(tmp_path: Path):
    content = {"a": [1, 2.5, None, True], "b": {"c": "text"}}
    write_json(tmp_path / "x.json", content)
    assert json.loads((tmp_path / "x.json").read_text()) == content


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_named_and_nothing_is_written(
    tmp_path: Path, number: float
):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=re.escape("was not written: a.b.1, c is NaN or infinite")):
        write_json(path, {"a": {"b": [0.5, number]}, "c": number, "d": 1.0})
    assert path.read_text() == "{}" and list(tmp_path.iterdir()) == [path]
