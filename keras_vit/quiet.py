"""Suppression of TensorFlow's native log lines while it is imported and while models are converted."""

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # 0 shows all lines
_NATIVE_LOG = re.compile(
    r"[IWE]\d{4} \d\d:\d\d|WARNING: All log messages before absl::Init|To enable the following"
)
# Other lines of converters: TensorFlow's converter to TFLite, and the graph saver that tf2onnx uses.
_OF_CONVERTERS = re.compile(
    r"fully_quantize: |(WARNING:tensorflow:|W\d{4} .*)?Issue encountered when serializing "
    r"|Type is unsupported, or the types of the items|'NoneType' object has no attribute 'name'$"
)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Suppresses TensorFlow's log lines at import and later. With TF_CPP_MIN_LOG_LEVEL=0 all are shown."""
    # TensorFlow's C++ code writes to file descriptor 2 before settings take effect. Of the seven
    # lines of TensorFlow 2.21, TF_CPP_MIN_LOG_LEVEL stops two, and all later ones.
    os.environ.setdefault(_LEVEL, "3")
    with quiet_import():
        yield


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Suppresses TensorFlow's log lines during the import of Keras only, without changing settings.

    Garbage collection is disabled meanwhile. It would visit the many objects of Keras and
    TensorFlow again and again, which takes 7 % of the time of the import.
    """
    if "keras" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _filter_stderr(lambda line, _: bool(_NATIVE_LOG.match(line))):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def quiet_conversion() -> Iterator[None]:
    """Suppresses the log lines of converters. After an error, all but informational lines are shown."""
    with _filter_stderr(_is_noise):
        yield


def _is_noise(line: str, has_failed: bool) -> bool:
    if has_failed:
        return line[:1] == "I" and bool(_NATIVE_LOG.match(line))
    return bool(_NATIVE_LOG.match(line) or _OF_CONVERTERS.match(line))


@contextlib.contextmanager
def _filter_stderr(is_noise: Callable[[str, bool], bool]) -> Iterator[None]:
    """Collects what is written to file descriptor 2, and then prints the lines that are not noise."""
    if os.environ.get(_LEVEL) == "0" or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    with _open_buffer() as held:
        terminal = os.dup(2)
        os.dup2(held.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            try:
                sys.stderr.flush()
            finally:  # also if the disk of the buffer is full: the reason is printed after it
                os.dup2(terminal, 2)
                os.close(terminal)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not is_noise(line, has_failed)))


def _open_buffer() -> IO[bytes]:
    """Opens a file in memory, which a full disk does not stop, or else a temporary file."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()
