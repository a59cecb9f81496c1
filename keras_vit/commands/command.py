"""The description of a command for the command line."""

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
        summary: One line for the overview.
        example: A complete command line.
        details: Text of `--help`.
        arguments: Names of the positional arguments; "" for none.
        counts: Smallest and largest number of positional arguments.
    """

    run: Callable[[list[str], flags.FlagValues], int]
    define: Callable[[flags.FlagValues], None]
    summary: str
    example: str
    details: str
    arguments: str = ""
    counts: tuple[int, float] = (0, 0)
