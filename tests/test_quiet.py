"""What TensorFlow logs while it loads is held back, and nothing else."""

import os
import sys

import pytest

from keras_vit.quiet import quiet_start

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


def test_tensorflow_s_log_is_shown_to_those_who_ask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    assert start_up(monkeypatch, capfd, "0") == NATIVE + "UserWarning: this Python is old\n"


def test_an_error_while_keras_loads_is_not_swallowed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.delitem(sys.modules, "keras")
    with pytest.raises(ImportError, match="no backend"), quiet_start():
        print("details", file=sys.stderr)
        raise ImportError("no backend")
    assert capfd.readouterr().err == "details\n"
