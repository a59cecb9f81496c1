"""The command line of the scripts: `--config`, `--workdir`, and one `--config.<field>=value` for
each change.
"""

import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags

from command_line.exit_codes import exit_code
from keras_vit.train import load_config

_CONFIG = flags.DEFINE_string(
    "config", None, "A recipe: path.py or path.py:argument.", required=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)


def main(expected: type, procedure: Callable[[Any, str], Any]) -> None:
    """Runs `procedure(config, workdir)`, and turns what users can do something about into a line
    and an exit code.
    """
    overrides = [
        arg.lstrip("-").removeprefix("config.")
        for arg in sys.argv
        if arg.lstrip("-").startswith("config.")
    ]

    def run() -> None:
        config = load_config(_CONFIG.value, overrides)
        if not isinstance(config, expected):
            raise ValueError(
                f"{_CONFIG.value} is a recipe for another script: it makes a "
                f"{type(config).__name__}, and this one takes a {expected.__name__}."
            )
        procedure(config, _WORKDIR.value)

    argv = [arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")]
    app.run(lambda _: exit_code(run), argv=argv)
