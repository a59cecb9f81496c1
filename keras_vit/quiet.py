"""TensorFlow's native log lines held back: while it is loaded, and while models are converted."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # 0 shows all of it
_NATIVE_LOG = re.compile(
    r"[IWE]\d{4} \d\d:\d\d|WARNING: All log messages before absl::Init|To enable the following"
)
# What converters write besides: TensorFlow's to TFLite, and the saver of graphs that tf2onnx makes
# use of.
_OF_CONVERTERS = re.compile(
    r"fully_quantize: |(WARNING:tensorflow:|W\d{4} .*)?Issue encountered when serializing "
    r"|Type is unsupported, or the types of the items|'NoneType' object has no attribute 'name'$"
)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what TensorFlow logs while a command line loads it, and what it would log later.

    Its C++ parts write to file descriptor 2 before any setting can reach them: of TensorFlow 2.21's
    seven lines, TF_CPP_MIN_LOG_LEVEL stops two, and those that come later. With
    TF_CPP_MIN_LOG_LEVEL=0 all are shown.
    """
    os.environ.setdefault(_LEVEL, "3")
    with quiet_import():
        yield


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Holds back what TensorFlow logs while Keras is loaded, and only that; settings stay as they
    are.
    """
    if "keras" in sys.modules:
        yield
        return
    with _held(lambda line, _: bool(_NATIVE_LOG.match(line))):
        yield


@contextlib.contextmanager
def quiet_conversion() -> Iterator[None]:
    """Holds back what converters log. If the conversion ends with an error, all but information is
    shown.
    """
    with _held(_is_noise):
        yield


def _is_noise(line: str, has_failed: bool) -> bool:
    if has_failed:
        return line[:1] == "I" and bool(_NATIVE_LOG.match(line))
    return bool(_NATIVE_LOG.match(line) or _OF_CONVERTERS.match(line))


@contextlib.contextmanager
def _held(is_noise: Callable[[str, bool], bool]) -> Iterator[None]:
    """Keeps what is written to file descriptor 2, and then shows the lines that are no noise."""
    if os.environ.get(_LEVEL) == "0" or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not is_noise(line, has_failed)))
