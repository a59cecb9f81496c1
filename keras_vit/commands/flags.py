"""Flags that several commands have, how they are read, and the progress line."""

import re
import sys

from absl import flags

NEW_SIZE = "Height and width in pixels: 384, or 224,384."


def require_folders(values: flags.FlagValues, *names: str) -> None:
    """Raises absl's error for a wrong flag if one of these is not given."""
    missing = [f"--{name}=FOLDER" for name in names if not values[name].value]
    if missing:
        raise flags.IllegalFlagValueError(f"{' and '.join(missing)} must be given")


def define_pixels(values: flags.FlagValues) -> None:
    """Adds `--pixels`. Default: as the model says."""
    kinds = "Pixels that the model was trained on. Default: as its layers say."
    flags.DEFINE_enum("pixels", None, ["0..255", "0..1", "-1..1"], kinds, flag_values=values)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Returns (height, width).

    Raises:
        flags.IllegalFlagValueError: If the text is no size.

    Example:
        >>> parse_size("384"), parse_size("224,384"), parse_size(None)
        ((384, 384), (224, 384), None)
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)(?:[,x]([1-9]\d*))?", text)
    if not match:
        raise flags.IllegalFlagValueError(f"flag --image_size={text}: expected 384, or height,width such as 224,384")
    return int(match[1]), int(match[2] or match[1])


def show_progress(done: int | None, total: int) -> None:
    """One line on the terminal that is overwritten; None wipes it out."""
    if total > 1 and sys.stderr.isatty():
        text = "" if done is None else f"{done} of {total} photos"
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)


def default_weights(values: flags.FlagValues) -> str | None:
    """Returns `--weights`; default: imagenet, of a named model. A file model.keras brings its own."""
    return values.weights or (None if values.model.endswith(".keras") else "imagenet")
