"""`pip` in the shell blocks of pages: checks what `pip install` is asked for, and installs nothing.

page_pip.py install ".[train]"
"""

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check(arguments: list[str]) -> str | None:
    """Returns what is wrong, or None."""
    if arguments[:1] != ["install"] or not arguments[1:]:
        return f"Not a command that the tests can check: pip {' '.join(arguments)}"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = setup["options.extras_require"]
    for word in arguments[1:]:
        found = re.fullmatch(r"(?:\.|keras[-_]vit)\[([\w, -]+)\]", word)
        for extra in re.split(r", *", found[1]) if found else ():
            if extra not in extras:
                return f"There is no extra `{extra}`. Extras: {', '.join(extras)}"
    return None


if __name__ == "__main__":
    sys.exit(check(sys.argv[1:]))
