"""Flags shared by several commands, their parsing, and the progress line."""

import os
import re
import sys

from absl import flags

from keras_vit.commands.command import PROGRAM

SIZE_FORMS = "Image size in pixels: one side (384), or height,width (224,384)."


def require_folders(values: flags.FlagValues, *names: str) -> None:
    """Raises absl's usage error if one of these flags is missing."""
    missing = [f"--{name}=FOLDER" for name in names if not values[name].value]
    if missing:
        raise flags.IllegalFlagValueError(f"{' and '.join(missing)} must be given")


def define_model(values: flags.FlagValues) -> None:
    """Adds `--model`."""
    text = f"Model name, as listed by `{PROGRAM} info`, or a file saved by Keras (model.keras)."
    flags.DEFINE_string("model", "ViT_B16", text, flag_values=values)


def define_weights(values: flags.FlagValues, more: str = "") -> None:
    """Adds `--weights`; see `default_weights`."""
    text = f"Weights of a named model: a tag, a file or a URL{more}. Default: imagenet."
    flags.DEFINE_string("weights", None, text, flag_values=values)


def define_image_size(values: flags.FlagValues) -> None:
    """Adds `--image_size`; see `parse_size`."""
    flags.DEFINE_string(
        "image_size", None, f"{SIZE_FORMS} Default: the size of the weights.", flag_values=values
    )


def define_pixels(values: flags.FlagValues) -> None:
    """Adds `--pixels`."""
    kinds = "Pixel range that the model was trained on. Default: read from the model's layers."
    flags.DEFINE_enum("pixels", None, ["0..255", "0..1", "-1..1"], kinds, flag_values=values)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Returns (height, width).

    Raises:
        flags.IllegalFlagValueError: If the text is not a size.

    Example:
        >>> parse_size("384"), parse_size("224,384"), parse_size(None)
        ((384, 384), (224, 384), None)
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)(?:[,x]([1-9]\d*))?", text)
    if not match:
        raise flags.IllegalFlagValueError(
            f"flag --image_size={text}: expected 384, or height,width such as 224,384"
        )
    return int(match[1]), int(match[2] or match[1])


def show_progress(done: int | None, total: int) -> None:
    """Overwrites the progress line on the terminal; None clears it."""
    if total > 1 and sys.stderr.isatty():
        text = "" if done is None else f"{done} of {total} photos"
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)


def default_weights(values: flags.FlagValues) -> str | None:
    """Returns `--weights`, with `~` replaced by the home folder. Default: imagenet for a named model;
    a file model.keras contains its weights.
    """
    if values.weights:
        return os.path.expanduser(values.weights)
    return None if values.model.endswith(".keras") else "imagenet"
