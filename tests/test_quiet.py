"""What TensorFlow logs while it loads is held back, and nothing else."""

import errno
import gc
import io
import os
import subprocess
import sys
import tempfile

import pytest

from keras_vit.quiet import quiet_conversion, quiet_import, quiet_start

NATIVE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "I0000 00:00:1795182050.024637   14321 port.cc:153] oneDNN custom operations are on.\n"
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.\n"
)


def start_up(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, level: str) -> str:
    """What reaches standard error while a made-up Keras is loaded."""
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with quiet_start():
        os.write(2, NATIVE.encode())
        print("UserWarning: this Python is old", file=sys.stderr)
    return capfd.readouterr().err


def test_what_tensorflow_logs_while_it_loads_is_held_back_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    assert start_up(monkeypatch, capfd, "3") == "UserWarning: this Python is old\n"


def test_tensorflow_s_log_is_shown_to_those_who_ask(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    assert start_up(monkeypatch, capfd, "0") == NATIVE + "UserWarning: this Python is old\n"


def test_without_standard_error_in_python_nothing_is_held_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setattr(sys, "stderr", None)  # as in pythonw
    with quiet_conversion():
        os.write(2, NATIVE.encode())
    assert capfd.readouterr().err == NATIVE


@pytest.mark.skipif(sys.platform != "linux", reason="the lines are held in memory on Linux alone")
def test_a_full_disk_loses_no_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    def fail(*_args, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    assert start_up(monkeypatch, capfd, "3") == "UserWarning: this Python is old\n"


def test_standard_error_is_that_of_before_when_its_buffer_is_full(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    class Full(io.StringIO):
        def flush(self):
            if self.getvalue():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Full())
        with pytest.raises(OSError, match="No space left"), quiet_conversion():
            print("lost", file=sys.stderr)
    os.write(2, b"the reason")
    assert capfd.readouterr().err == "the reason"


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_collected_while_keras_loads(monkeypatch: pytest.MonkeyPatch, collects):
    monkeypatch.delitem(sys.modules, "keras")
    (gc.enable if collects else gc.disable)()
    try:
        with quiet_import():
            assert not gc.isenabled()
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_an_error_while_keras_loads_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.delitem(sys.modules, "keras")
    with pytest.raises(ImportError, match="no backend"), quiet_start():
        print("details", file=sys.stderr)
        raise ImportError("no backend")
    assert capfd.readouterr().err == "details\n"


def test_a_conversion_shows_what_matters_and_everything_if_it_fails(
    capfd: pytest.CaptureFixture, monkeypatch
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    said = NATIVE + "fully_quantize: 0, inference_type: 6\nW0000 00:00:1.1 1 a.cc:1] careful\n"
    with quiet_conversion():
        os.write(2, (said + "a word of the user's own\n").encode())
    assert capfd.readouterr().err == "a word of the user's own\n"
    with pytest.raises(ValueError, match="no such operation"), quiet_conversion():
        os.write(2, (said + "error: 'tfl.fully_connected' op operand\n").encode())
        raise ValueError("no such operation")
    err = capfd.readouterr().err
    assert "error: 'tfl.fully_connected'" in err and "careful" in err and "oneDNN" not in err


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_import_prints_nothing_and_imports_nothing_that_keras_does_not():
    """TensorFlow logs eight lines at its own import; `concurrent.futures` has its executor loaded
    on first use.
    """
    code = (
        "import sys, keras_vit; mine = {m for m in sys.modules if m.split('.')[0] != 'keras_vit'};"
        "open(sys.argv[1], 'w').write('\\n'.join(mine))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )

    with tempfile.NamedTemporaryFile("r") as listed:
        done = run(code, listed.name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        mine = set(listed.read().split("\n"))
    done = run("import sys, keras; print('\\n'.join(sys.modules))")
    assert mine - set(done.stdout.split("\n")) <= {"concurrent.futures.thread", "pickletools"}
