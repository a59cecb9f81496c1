"""Prints the oldest versions of the dependencies that setup.cfg accepts, as constraints of pip.

    python release/oldest.py > constraints.txt
    python -m pip install -c constraints.txt -e ".[test]"

A dependency without a lower bound is not constrained.
"""

import configparser
import re
from pathlib import Path

SETUP = Path(__file__).resolve().parents[1] / "setup.cfg"
_BOUND = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])? *>= *([\d.]+)")


def list_oldest(setup: str) -> list[str]:
    """Returns "name==version" for each lower bound in the text of a setup.cfg.

    Raises:
        ValueError: If two requirements give one dependency different lower bounds.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    extras = parser["options.extras_require"].values() if "options.extras_require" in parser else ()
    lines = "\n".join([parser["options"]["install_requires"], *extras]).splitlines()
    found: dict[str, str] = {}
    for name, version in (match.groups() for match in map(_BOUND.match, lines) if match):
        if found.setdefault(name, version) != version:
            raise ValueError(f"{name} has two lower bounds: {found[name]} and {version}.")
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    print("\n".join(list_oldest(SETUP.read_text(encoding="utf-8"))))
