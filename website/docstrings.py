"""Docstrings of this package as those that mkdocstrings reads.

`Example:` becomes the section `Examples:`, the lines `Input shape:`, `Output shape:` and `Source:`
become paragraphs, and arguments that share a text become one entry each.
"""

import re

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_LINE = re.compile(r"^((?:Input|Output) shape|Source):\s+", re.MULTILINE)
# "    height, width: In pixels." in a section of arguments or attributes
_SHARED = re.compile(r"^(    )(\w+(?:,\s+\w+)+):(\s(?:.*(?:\n {8,}.*)*))", re.MULTILINE)


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
    *before, last = match[2].replace(",", " ").split()
    text = match[3]
    # A text of one line is repeated; a longer one is given once, and the others refer to it.
    other = text if "\n" not in text else f" See `{last}`."
    return "".join(f"    {name}:{other}\n" for name in before) + f"    {last}:{text}"
