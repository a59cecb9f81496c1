"""The command line: `python -m keras_vit`, or `keras-vit` if the package is installed.

This module parses the command line, and reports usage errors and exit codes. The commands and their
flags are in `commands/`.

Exit codes: 0 success; 1 the command failed, or its check failed; 2 usage error; 75 training was
stopped on request after saving its state, and the same command resumes it.
"""

import io
import os
import sys
from collections.abc import Callable, Sequence

from absl import flags

from keras_vit.commands import COMMANDS
from keras_vit.commands.command import PROGRAM, Command
from keras_vit.suggestions import did_you_mean


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code.

    Args:
        argv: Arguments without the name of the program; default: those of the process.

    Example:
        >>> main(["info", "ViT_B16", "--image_size=225"])
        1
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may contain bytes that are not valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "-help", "help"):
        return _run(PROGRAM, lambda: print(_format_overview()))
    name, *arguments = argv
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        return _report_usage_error(
            PROGRAM,
            f"there is no command {name!r}.{did_you_mean(name, COMMANDS)} Commands: {known}.",
        )
    command, values = COMMANDS[name], flags.FlagValues()
    values.set_gnu_getopt(True)  # allows flags after file names
    command.define(values)
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", flag_values=values)
    try:
        positional = values([name, *arguments])[1:]
        if values.help:
            return _run(name, lambda: print(_format_help(name, command, values)))
        fewest, most = command.counts
        if not fewest <= len(positional) <= most:
            expected = command.arguments or "no arguments"
            return _report_usage_error(
                f"{PROGRAM} {name}", f"expected {expected}, received {positional or 'none'}."
            )
        return _run(f"{PROGRAM} {name}", lambda: command.run(positional, values))
    except flags.Error as error:
        return _report_usage_error(f"{PROGRAM} {name}", str(error))


def _run(program: str, action: Callable[[], int | None]) -> int:
    """Runs a command or prints its help, and returns the exit code."""
    try:
        code = action()
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # The reader closed the pipe, as in `... | head`. Python flushes stdout again when it exits,
        # which would raise a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"{program}: {_shorten(str(error))}", file=sys.stderr)
        return 1


# --- help and error messages ---


def _format_overview() -> str:
    lines = [
        "Vision Transformers in Keras 3, with published weights.",
        "",
        f"usage: {PROGRAM} COMMAND ...",
        "",
    ]
    for name, command in COMMANDS.items():
        lines += [f"  {name:<11} {command.summary}", f"  {'':<11} $ {command.example}", ""]
    return "\n".join([*lines, f"Help for a command: {PROGRAM} COMMAND --help"])


def _format_help(name: str, command: Command, values: flags.FlagValues) -> str:
    usage = f"usage: {PROGRAM} {name} {command.arguments} [flags]".replace("  ", " ")
    shown = {flag.name: flag for flag in map(values.__getitem__, values)}
    rows = [
        (
            f"--{flag.name}"
            + ("" if flag.boolean else f"={'' if flag.default is None else flag.default}"),
            flag.help,
        )
        for flag in shown.values()
    ]
    width = max(len(left) for left, _ in rows)
    example = f"example: {command.example}"
    return "\n".join(
        [usage, "", command.details, "", *(f"  {a:<{width}}  {b}" for a, b in rows), "", example]
    )


def _report_usage_error(program: str, message: str) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    print(f"Help: {program} --help", file=sys.stderr)
    return 2


def _shorten(message: str) -> str:
    """Omits the middle of long messages, which may list hundreds of names."""
    lines = message.splitlines()
    if len(lines) > 24:
        lines[12:-4] = [f"  ... ({len(lines) - 16} lines more)"]
    return "\n".join(lines)
