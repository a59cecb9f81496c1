"""Runs a script of `experiments/` up to the first call of one function, prints the arguments of
that call as JSON, and ends.

    python watched_script.py MODULE FUNCTION SCRIPT [FLAG...]

The script must import the function from MODULE, or call it there.
"""

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import NoReturn

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def main(where: str, name: str, script: str, *flags: str) -> None:
    sys.path.insert(0, str(EXPERIMENTS))
    module = importlib.import_module(where)

    def watched(*arguments, **named) -> NoReturn:
        print(json.dumps([[*map(repr, arguments)], {key: repr(named[key]) for key in named}]))
        sys.exit(0)

    setattr(module, name, watched)
    sys.argv = [str(EXPERIMENTS / f"{script}.py"), *flags]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
