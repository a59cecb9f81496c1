"""The campaigns against weights files, with a small count: nothing falls."""

import re
import sys
from pathlib import Path

import pytest
import warm

CAMPAIGNS = Path(__file__).parents[1] / "campaigns"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("weights_files.py", 60), ("metadata.py", 60)])
def test_nothing_falls(name, count):
    command = [sys.executable, str(CAMPAIGNS / name), "--seed=3", f"--count={count}"]
    done = warm.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^tried {count}, held \d+, fell 0", done.stdout, re.MULTILINE)
