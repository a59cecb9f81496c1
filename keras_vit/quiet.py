"""A start without the lines that TensorFlow's native parts log."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_NATIVE_LOG = re.compile(r"[IWE]\d{4} \d\d:\d\d|WARNING: All log messages before absl::Init|To enable the following")


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what TensorFlow logs while it is loaded, and only that.

    Its C++ parts write to file descriptor 2 before any setting can reach them: of TensorFlow 2.21's seven lines,
    TF_CPP_MIN_LOG_LEVEL stops two, and those that come later. With TF_CPP_MIN_LOG_LEVEL=0 all are shown.
    """
    wanted = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0"
    if wanted or sys.stderr is None or "keras" in sys.modules:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _NATIVE_LOG.match(line)))
