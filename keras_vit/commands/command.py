"""What the command line knows of a command."""

from collections.abc import Callable
from dataclasses import dataclass

from absl import flags

PROGRAM = "python -m keras_vit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command of the command line.

    Attributes:
        run: Takes the positional arguments and the flags, returns the exit code.
        define: Adds the flags.
        arguments: What the positional arguments are called.
        counts: How few and how many of them there may be.
        summary: One line for the overview.
        example: A whole command line.
        details: For `--help`.
    """

    run: Callable[[list[str], flags.FlagValues], int]
    define: Callable[[flags.FlagValues], None]
    arguments: str
    counts: tuple[int, float]
    summary: str
    example: str
    details: str
