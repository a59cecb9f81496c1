"""Checksums of an export: every byte of every file counts, and the tool of the system reads the
list.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from keras_vit.export.checksums import FILE, damage, has_checksums, write_checksums


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Two models in one folder, with what belongs to both."""
    for name, text in {
        "a.tflite": "one",
        "b.tflite": "two",
        "labels.txt": "cat\n",
        "keras_vit.json": "{}",
    }.items():
        (tmp_path / name).write_text(text)
    write_checksums(tmp_path, tmp_path)
    return tmp_path


def test_every_file_counts_and_of_other_models_none(version: Path):
    assert has_checksums(version / "a.tflite")
    assert damage(version / "a.tflite") == damage(version / "b.tflite") == []
    (version / "b.tflite").write_text("twp")
    (version / ".DS_Store").write_text("hidden")
    assert damage(version / "a.tflite") == []
    assert damage(version / "b.tflite") == ["b.tflite is changed"]


def test_what_is_changed_missing_or_added_is_named(version: Path):
    (version / "labels.txt").write_text("cow\n")
    (version / "keras_vit.json").unlink()
    (version / "notes.md").write_text("")
    expected = ["keras_vit.json is missing", "labels.txt is changed", "notes.md was added"]
    assert damage(version / "a.tflite") == expected


@pytest.mark.parametrize("content", [b"", b"rubbish\n", b"\xff\xfe", b"00  a.tflite\n"])
def test_a_damaged_list_is_damage(version: Path, content: bytes):
    (version / FILE).write_bytes(content)
    assert damage(version / "a.tflite")


def test_any_bit_of_a_list_counts(version: Path):
    whole = (version / FILE).read_bytes()
    for place in range(len(whole)):
        (version / FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert damage(version / "a.tflite") or damage(version / "b.tflite"), place


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="the system has no sha256sum")
def test_the_tool_of_the_system_reads_the_list(version: Path):
    assert (
        subprocess.run(
            ["sha256sum", "--check", "--strict", FILE], cwd=version, capture_output=True
        ).returncode
        == 0
    )


def test_the_list_of_a_saved_model_lies_within_its_extra_files(tmp_path: Path):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_text("graph")
    (tmp_path / "variables" / "data").write_text("weights")
    write_checksums(tmp_path, tmp_path / "assets.extra")
    assert damage(tmp_path) == []
    (tmp_path / "variables" / "data").write_text("weightz")
    assert damage(tmp_path) == ["variables/data is changed"]
