"""Exit codes of the scripts: 1 for errors that users can resolve, 75 for a stopped run that the
same command resumes.
"""

import contextlib
import sys
from collections.abc import Iterator

from absl import logging

from keras_vit.train import EXIT_STOPPED, Diverged, Stopped


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends the process with an exit code if an expected error is raised. Prints it as one line."""
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except (ValueError, OSError, ImportError, Diverged) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
