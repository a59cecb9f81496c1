"""Suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], count: int = 3) -> str:
    """Returns a sentence with the known names that are closest to a word, ignoring case, or "" if
    none is close. An initialism, such as `lr` for `learning_rate`, is close.

    The sentence begins with a space, because it follows an error message.

    Example:
        >>> did_you_mean("vit_b17", ["ViT_B16", "ViT_L16", "ResNet50x1"])
        ' Did you mean ViT_B16 or ViT_L16?'
        >>> did_you_mean("resnet", ["ViT_B16"])
        ''
        >>> did_you_mean("optimizer.lr", ["optimizer.learning_rate", "optimizer.name"])
        ' Did you mean optimizer.learning_rate?'
    """
    lowered = {name.lower(): name for name in known}
    close = [name for name in lowered if word.lower() == _shorten(name)]
    close = close or difflib.get_close_matches(word.lower(), lowered, n=count, cutoff=0.5)
    found = [lowered[name] for name in close]
    *others, last = found or [""]
    return f" Did you mean {', '.join(others)}{' or ' * bool(others)}{last}?" if found else ""


def _shorten(name: str) -> str:
    """Returns a dotted name with the initials of its last part: optimizer.lr."""
    parent, dot, last = name.rpartition(".")
    return parent + dot + "".join(part[:1] for part in last.split("_"))
