"""Docstrings of this package as those that mkdocstrings reads.

`Example:` becomes the section `Examples:`, the lines `Input shape:`, `Output shape:` and `Source:`
become paragraphs, and arguments that share a text become one entry each.
"""

import re

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_LINE = re.compile(r"^((?:Input|Output) shape|Source):\s+", re.MULTILINE)
# "    height, width: In pixels." in a section of arguments or attributes
_SHARED = re.compile(r"^(    )(\w+(?:,\s+\w+)+)(?=:\s)", re.MULTILINE)


class Sections(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)


def rewrite(text: str) -> str:
    """Returns the docstring in the sections of mkdocstrings.

    Example:
        >>> rewrite("Adds.\\n\\nSource: eq. 1.")
        'Adds.\\n\\n\\n**Source**: eq. 1.'
    """
    text = _LINE.sub(r"\n**\1**: ", _EXAMPLE.sub("Examples:", text))
    return _SHARED.sub(_split, text)


def _split(match: re.Match) -> str:
    first, *others = match[2].replace(",", " ").split()
    # The text follows the last name, so the others, which refer to it, come before.
    *before, last = [first, *others]
    return "".join(f"    {name}: See `{last}`.\n" for name in before) + f"    {last}"
