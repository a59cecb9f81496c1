"""Exit codes of the scripts: 1 for errors that users can resolve, 75 for a stopped run that the
same command resumes.
"""

import sys
from collections.abc import Callable
from typing import Any

from absl import logging

from keras_vit.train import EXIT_STOPPED, Diverged, Stopped


def exit_code(procedure: Callable[[], Any]) -> int:
    """Runs a procedure and returns the exit code; prints expected errors as one line."""
    logging.set_verbosity(logging.WARNING)
    try:
        procedure()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return EXIT_STOPPED
    except (ValueError, OSError, ImportError, Diverged) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
