"""Prints the section of CHANGELOG.md on the version of the package, as release notes.

    python release/notes.py
    python release/notes.py --tag=v0.1.0

With `--tag`, the tag must be that of the version, the section must have a date, and nothing may be
left under "Unreleased". The version is `__version__` in `keras_vit/__init__.py`.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^## \[([^\]]+)\](?: - (.*))?$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_UNRELEASED = "Unreleased"


def read_version(init: str) -> str:
    """Returns the literal `__version__` of a module, without importing it."""
    for node in ast.parse(init).body:
        if isinstance(node, ast.Assign) and [ast.unparse(x) for x in node.targets] == [
            "__version__"
        ]:
            return ast.literal_eval(node.value)
    raise ValueError("keras_vit/__init__.py must assign a literal to `__version__`.")


def read_sections(changelog: str) -> dict[str, tuple[str, str]]:
    """Returns {version: (date, text)} of each section."""
    found = list(_HEADING.finditer(changelog))
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return {
        match[1]: (match[2] or "", changelog[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    }


def write_notes(changelog: str, version: str, tag: str | None = None) -> str:
    """Returns the release notes of a version, one line for each entry.

    Raises:
        ValueError: If there is no section or it is empty, or if `tag` is not ready.
    """
    sections = read_sections(changelog)
    if version not in sections:
        raise ValueError(
            f"CHANGELOG.md has no section '## [{version}]'. It has: {', '.join(sections)}."
        )
    date, text = sections[version]
    problems = [] if text else [f"The section [{version}] is empty."]
    if tag is not None:
        if tag != f"v{version}":
            problems.append(
                f"The tag is {tag}, and `__version__` is {version}: expected v{version}."
            )
        if not _DATE.fullmatch(date):
            problems.append(f"The section [{version}] is dated '{date}', expected yyyy-mm-dd.")
        if sections.get(_UNRELEASED, ("", ""))[1]:
            problems.append(f"Move the entries under [{_UNRELEASED}] to [{version}].")
    if problems:
        raise ValueError(" ".join(problems))
    # Public hosts show a line break within a paragraph as a line break.
    return re.sub(r"\n +(?=[^\s-])", " ", text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", help="name of the tag that is released")
    options = parser.parse_args()
    try:
        version = read_version((ROOT / "keras_vit/__init__.py").read_text(encoding="utf-8"))
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        print(write_notes(changelog, version, options.tag), end="")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
