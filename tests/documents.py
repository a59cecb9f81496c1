"""The pages that users read, and their fenced blocks.

    python tests/documents.py

prints which blocks are executed, and the reasons of the others.

A comment on the line before a fence says how the block is treated:

    <!-- not run: reason -->            it is not executed
    <!-- tested with: --steps=2 -->     these flags are appended to its commands
    <!-- tested with: finetune --steps=2 -->    the same, to the command or script of that name
    <!-- tested with: finetune(steps=2) -->     of Python: arguments of a function of keras_vit
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "experiments/README.md",
    ROOT / "experiments/serving/README.md",
]
EXECUTED = ("python", "sh")
SHOWN = ("text", "yaml", "json")
_BLOCK = re.compile(
    r"(?:^<!-- (not run|tested with): (.+?) -->\n)?^```([^\n]*)\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_DOCTEST = re.compile(r"^>>> ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block of a page.

    Attributes:
        page: Path in the repository.
        line: The line of its fence.
        language: The word after the fence.
        text: What is inside.
        reason: Why it is not executed, or "".
        flags: Flags that tests append to its commands.
        output: The text of the block that follows, if that is its output; else None.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    flags: str = ""
    output: str | None = None

    @property
    def is_executed(self) -> bool:
        return self.language in EXECUTED and not self.reason


def read_blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page, in order.

    Raises:
        ValueError: If a block has no language that the tests know.
    """
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    return parse_blocks(page.read_text(encoding="utf-8"), name)


def parse_blocks(text: str, page: str) -> list[Block]:
    found, blocks = list(_BLOCK.finditer(text)), []
    fences = len(re.findall(r"^```", text, re.MULTILINE))
    if fences != 2 * len(found):
        raise ValueError(f"{page}: {fences} fences, and {len(found)} whole blocks.")
    for i, match in enumerate(found):
        kind, words, language, content = match.groups()
        line = text.count("\n", 0, match.start(3)) + 1
        if language not in EXECUTED + SHOWN:
            raise ValueError(
                f"{page}:{line}: the language of a block is one of {', '.join(EXECUTED + SHOWN)}. "
                f"Received: {language!r}."
            )
        after = found[i + 1] if i + 1 < len(found) else None
        # Prose may stand between a block and its output, a heading may not.
        is_output = (
            after is not None
            and after[3] == "text"
            and after[1] is None
            and "\n#" not in text[match.end() : after.start()]
        )
        blocks.append(
            Block(
                page=page,
                line=line,
                language=language,
                text=content,
                reason=words if kind == "not run" else "",
                flags=words if kind == "tested with" else "",
                output=after[4] if is_output else None,
            )
        )
    return blocks


def has_doctests(page: Path) -> bool:
    return bool(_DOCTEST.search(page.read_text(encoding="utf-8")))


def list_blocks() -> str:
    """Returns the list of all blocks with their counts."""
    counts, lines = Counter(), []
    for page in PAGES:
        for block in read_blocks(page):
            if block.language in EXECUTED:
                what = f"not run: {block.reason}" if block.reason else "executed"
                counts[block.language, not block.reason] += 1
                compared = ", output compared" if block.output and not block.reason else ""
                lines.append(f"{block.page}:{block.line} {block.language} {what}{compared}")
    for language in EXECUTED:
        lines.append(
            f"{language}: {counts[language, True]} executed, {counts[language, False]} not run"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(list_blocks())
