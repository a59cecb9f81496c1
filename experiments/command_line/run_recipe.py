"""The flags of scripts that run a recipe: `--config`, `--workdir` and `--config.<field>=value`."""

import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags

from command_line.exit_codes import exit_on_error
from keras_vit.train import load_config

_CONFIG = flags.DEFINE_string(
    "config", None, "The recipe: path.py or path.py:argument.", required=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the results.", required=True)


def main(expected: type, procedure: Callable[[Any, str], Any]) -> None:
    """Reads the flags and runs `procedure(config, workdir)`.

    Args:
        expected: Class of the config; another one is an error.
        procedure: Errors that users can resolve end it with one line and an exit code.
    """
    overrides = [
        arg.lstrip("-").removeprefix("config.")
        for arg in sys.argv
        if arg.lstrip("-").startswith("config.")
    ]

    @exit_on_error()
    def run(_: list[str]) -> None:
        config = load_config(_CONFIG.value, overrides)
        if not isinstance(config, expected):
            raise ValueError(
                f"{_CONFIG.value} is a recipe for another script: it returns a "
                f"{type(config).__name__}. This script takes a {expected.__name__}."
            )
        procedure(config, _WORKDIR.value)

    argv = [arg for arg in sys.argv if not arg.lstrip("-").startswith("config.")]
    app.run(run, argv=argv)
