"""One run at a time in a folder; a killed one keeps nobody out."""

import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from keras_vit import folder_lock  # noqa: E402
from keras_vit.devices import Devices  # noqa: E402
from keras_vit.folder_lock import lock_folder  # noqa: E402
from keras_vit.train import run  # noqa: E402

pytestmark = pytest.mark.tensorflow
pytest.importorskip("fcntl")


def test_the_second_run_is_refused_until_the_first_has_ended(tmp_path):
    with lock_folder(tmp_path):
        with (
            pytest.raises(ValueError, match="Another run is using .*choose another folder"),
            lock_folder(tmp_path),
        ):
            pytest.fail("two runs in one folder")
        (tmp_path / "other").mkdir()
        with lock_folder(tmp_path / "other"):
            pass
        # a refusal takes nothing away
        with pytest.raises(ValueError, match="Another run"), lock_folder(tmp_path):
            pytest.fail("two runs in one folder")
    with lock_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_run_that_raises_lets_the_next_one_in(tmp_path):
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError
    with lock_folder(tmp_path):
        pass


HOLDER = """
import sys
from keras_vit.folder_lock import lock_folder
with lock_folder(sys.argv[1]):
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_run_keeps_nobody_out(tmp_path):
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], **streams) as holder:
        assert holder.stdout.readline() == "inside\n"
        with pytest.raises(ValueError, match="Another run"), lock_folder(tmp_path):
            pytest.fail("two runs in one folder")
        holder.kill()
        holder.wait()
        with lock_folder(tmp_path):
            pass


def test_a_disk_without_locks_is_said(tmp_path, monkeypatch):
    said = []

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(folder_lock.fcntl, "flock", no_locks)
    monkeypatch.setattr(
        folder_lock.logging, "warning", lambda text, *values: said.append(text % values)
    )
    with lock_folder(tmp_path):
        pass
    assert len(said) == 1 and "cannot be locked" in said[0] and "No locks available" in said[0]
    gc.collect()  # what earlier tests left open
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with lock_folder(tmp_path):
        pass
    if descriptors is not None:
        assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_system_without_locks_is_said(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(folder_lock, "fcntl", None)
    monkeypatch.setattr(
        folder_lock.logging, "warning", lambda text, *values: said.append(text % values)
    )
    with lock_folder(tmp_path):
        pass
    assert len(said) == 1 and "this system has no such lock" in said[0]


def workers(answers: list[int], index: int) -> Devices:
    def gather(value: int) -> list[int]:
        assert value == answers[index]
        return answers

    return Devices(
        kind="multi_worker", num_replicas=2, num_workers=2, worker_index=index, gather=gather
    )


def test_what_one_worker_refuses_all_refuse():
    def refuse():
        raise ValueError("The data have changed")

    with pytest.raises(ValueError, match="The data have changed"):
        run._agree(workers([1, 0], 0), refuse)
    with pytest.raises(ValueError, match="Worker 0 could not start the run. See the error"):
        run._agree(workers([1, 0], 1), lambda: None)
    done = SimpleNamespace(times=0)
    run._agree(workers([0, 0], 1), lambda: setattr(done, "times", done.times + 1))
    assert done.times == 1
