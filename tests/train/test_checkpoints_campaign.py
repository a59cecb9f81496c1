"""The campaign against checkpoints, with a small count: nothing falls."""

import re
import sys
from pathlib import Path

import pytest
import warm
from warm import HUNG_SECONDS

pytestmark = pytest.mark.tensorflow

CAMPAIGN = Path(__file__).parents[1] / "campaigns" / "checkpoints.py"


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_damage_goes_unseen(count: int):
    command = [sys.executable, str(CAMPAIGN), "--seed=3", f"--count={count}"]
    done = warm.run(command, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = {
        name: int(times) for times, name in re.findall(r"^  (\d+) (.+)$", done.stdout, re.MULTILINE)
    }
    assert f"tried {count}, held {count}, fell 0" in done.stdout and sum(ends.values()) == count
    assert ends["the one before"] > count / 2
