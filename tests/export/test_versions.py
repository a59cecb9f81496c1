"""Version folders: whole or not at all, numbered, never overwritten, whoever else writes or is
killed.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
import warm

from keras_vit.export import versions as module
from keras_vit.export.versions import latest, new_version, temporary_folder, versions

pytestmark = pytest.mark.tensorflow

_WRITER = """
import sys, time
from pathlib import Path
from keras_vit.export.versions import new_version
with new_version(sys.argv[1]) as version:
    for number in range(200):
        (version.folder / f"{number}").write_text("x" * 1000)
        if number == 100:
            print("half", flush=True)
            while not Path(sys.argv[2]).exists():
                time.sleep(0.01)
print(version.path, flush=True)
"""


def _write(base: Path, text: str = "whole") -> Path:
    with new_version(base) as version:
        (version.folder / "file").write_text(text)
    return version.path


def test_versions_count_from_one_and_go_on_from_the_greatest(tmp_path: Path):
    base = tmp_path / "vit"
    assert [_write(base), _write(base)] == [base / "1", base / "2"]
    (base / "40").mkdir()
    (base / "notes").mkdir()
    (base / "99").write_text("a file, not a version")
    assert _write(base) == base / "41"
    assert versions(base) == [1, 2, 40, 41]
    assert latest(base) == base / "41"


@pytest.mark.parametrize("name", ["٣", "²", "-1", "1.5", " 1", "1a"])
def test_a_version_is_a_number_as_a_server_reads_it(tmp_path: Path, name: str):
    (tmp_path / "vit" / name).mkdir(parents=True)
    assert versions(tmp_path / "vit") == []
    assert _write(tmp_path / "vit") == tmp_path / "vit" / "1"


def test_nothing_of_a_version_is_seen_before_it_is_whole(tmp_path: Path):
    base = tmp_path / "vit"
    with new_version(base) as version:
        (version.folder / "file").write_text("half")
        assert versions(base) == []
        assert version.folder.name.startswith(".")  # TensorFlow Serving takes integer names alone
    assert [path.name for path in base.iterdir()] == ["1"]


def test_an_error_leaves_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError, match="no more"), new_version(tmp_path / "vit") as version:
        (version.folder / "file").write_text("half")
        raise RuntimeError("no more")
    assert list((tmp_path / "vit").iterdir()) == []


def test_a_place_that_is_taken_meanwhile_is_never_overwritten(tmp_path: Path):
    base = tmp_path / "vit"
    with new_version(base) as version:
        (version.folder / "file").write_text("mine")
        (base / "1").mkdir()
        (base / "1" / "file").write_text("theirs")
        (base / "2").write_text("a file")
    assert (base / "1" / "file").read_text() == "theirs"
    assert version.path == base / "3"


def test_twenty_writers_at_once_get_twenty_versions(tmp_path: Path):
    base = tmp_path / "vit"
    with ThreadPoolExecutor(20) as pool:
        paths = list(pool.map(lambda number: _write(base, str(number)), range(20)))
    assert versions(base) == list(range(1, 21))
    assert [path.joinpath("file").read_text() for path in paths] == [
        str(number) for number in range(20)
    ]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_writer_leaves_no_version_and_the_next_one_clears_up(tmp_path: Path):
    base = tmp_path / "vit"
    with _process(base) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "half\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert versions(base) == []
    (left,) = base.iterdir()
    with _process(base) as alive:
        assert alive.stdout is not None and alive.stdout.readline() == "half\n"
        assert _write(base) == base / "1"  # while another one is at work, whose files stay
        assert not left.exists()
        (tmp_path / "go on").write_text("")
        assert alive.stdout.readline() == f"{base / '2'}\n"
    assert len(list((base / "2").iterdir())) == 200


def _process(base: Path) -> subprocess.Popen:
    """A writer that stops half-way, until there is a file `go on` beside the folder."""
    command = [sys.executable, "-c", _WRITER, str(base), str(base.with_name("go on"))]
    return warm.Popen(command, stdout=subprocess.PIPE, text=True)


def test_what_an_exporter_of_the_same_number_left_is_removed_and_what_is_in_work_stays(
    tmp_path: Path,
):
    """In a container every process may have the number 7."""
    base = tmp_path / "vit"
    with new_version(base) as version:
        left = base / re.sub(r"-[^-]+$", "-abandoned", version.folder.name)
        left.mkdir()
        (version.folder / "file").write_text("")
        _write(base)
        assert version.folder.exists() and not left.exists()
    assert versions(base) == [1, 2]


def test_temporary_folders_that_were_left_are_removed_by_whoever_needs_one(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = """
import os, sys, tempfile
from keras_vit.export.versions import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder("kv_"):
    os._exit(9)
"""
    assert warm.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 9
    (left,) = tmp_path.iterdir()
    with temporary_folder("kv_") as first, temporary_folder("kv_") as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second]) and left not in (first, second)
    assert list(tmp_path.iterdir()) == []


def _ends_with(error: BaseException) -> None:
    raise error


def _caused_by_the_disk() -> None:
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise RuntimeError("no words") from error


@pytest.mark.parametrize(
    "fails",
    [
        lambda: _ends_with(OSError(errno.ENOSPC, "No space left on device", "x")),
        lambda: _ends_with(OSError(errno.EDQUOT, "Disk quota exceeded")),
        lambda: _ends_with(
            tf.errors.ResourceExhaustedError(None, None, "/x/1; No space left on device")
        ),
        lambda: _ends_with(
            ValueError("x cannot be run: OSError: [Errno 28] No space left on device")
        ),
        _caused_by_the_disk,
    ],
)
def test_a_full_disk_is_one_kind_of_error_that_says_what_is_kept(tmp_path: Path, fails):
    base = tmp_path / "vit"
    _write(base)
    with pytest.raises(
        OSError, match="The disk is full: make room.*not written.*kept: 1"
    ) as raised:
        with new_version(base):
            fails()
    assert raised.value.errno == errno.ENOSPC and raised.value.__cause__ is not None
    assert [path.name for path in base.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("device", "file", "said"),
    [
        (
            1,
            "{temporary}/images.npy",
            "The disk of temporary files, {temporary}, is full: make room",
        ),
        (1, "{base}/.partial-a/weights", "The disk is full: make room"),
        (
            1,
            "weights",
            "The disk, or that of temporary files, {temporary}, is full: .* set TMPDIR to",
        ),
        (0, "{temporary}/images.npy", "The disk is full: make room"),
    ],
)
def test_the_disk_that_is_full_is_named(
    tmp_path: Path, monkeypatch, device: int, file: str, said: str
):
    """That of temporary files is often another one, and smaller."""
    places = {"temporary": tmp_path / "tmp", "base": tmp_path / "vit"}
    places["temporary"].mkdir()
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(places["temporary"]))
    disks = {places["temporary"]: device, places["base"]: 0}
    monkeypatch.setattr(module, "_find_device", disks.__getitem__)
    error = OSError(errno.ENOSPC, "No space left on device", file.format(**places))
    with (
        pytest.raises(OSError, match=said.format(**places)) as raised,
        new_version(places["base"]),
    ):
        raise error
    assert raised.value.__cause__ is error


def test_a_version_with_zeros_in_front_is_found_and_counted(tmp_path: Path):
    (tmp_path / "vit" / "001").mkdir(parents=True)
    assert versions(tmp_path / "vit") == [1] and latest(tmp_path / "vit").name == "001"
    with new_version(tmp_path / "vit") as version:
        pass
    assert version.path.name == "2" and latest(tmp_path / "vit") == version.path


def test_a_folder_in_the_home_folder_is_that_one(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with new_version("~/models/vit") as version:
        pass
    assert version.path == tmp_path / "models" / "vit" / "1" == latest("~/models/vit")
    assert versions("~/models/vit") == [1] and not (tmp_path / "~").exists()


@pytest.mark.parametrize(("free", "kind"), [(2**12, OSError), (2**30, RuntimeError)])
def test_a_failed_stream_of_openvino_is_a_full_disk_where_there_is_no_room(
    tmp_path: Path, free: int, kind: type, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(kind), new_version(tmp_path / "vit"):
        raise RuntimeError("basic_ios::clear: iostream error")


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_server_that_is_somebody_else_may_read_a_version(tmp_path: Path):
    mask = os.umask(0o022)
    try:
        assert _write(tmp_path / "vit").stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(mask)


def test_a_version_or_a_file_is_no_base(tmp_path: Path):
    with (
        pytest.raises(ValueError, match="Pass the folder of all versions"),
        new_version(tmp_path / "vit" / "1"),
    ):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"), new_version(tmp_path / "file"):
        pass
    with pytest.raises(ValueError, match="contains no version"):
        latest(tmp_path / "none")


def test_a_base_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _write(Path("~/vit")) == tmp_path / "vit" / "1"
    assert versions("~/vit") == [1] and latest("~/vit") == tmp_path / "vit" / "1"
