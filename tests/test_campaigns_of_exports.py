"""The campaigns that try to break pictures and exports run, deterministic by seed, and nothing falls."""

import re
import sys
from pathlib import Path

import pytest
import warm

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

CAMPAIGNS = Path(__file__).with_name("campaigns")


@pytest.mark.parametrize(
    "options",
    [
        ["pictures.py", "--count=60"],
        ["export_kills.py", "--count=4", "--formats=tflite"],
    ],
    ids=lambda options: options[0],
)
def test_nothing_falls(options: list[str]):
    script, *rest = options
    done = warm.run([sys.executable, str(CAMPAIGNS / script), "--seed=1", *rest], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, held, fell = map(
        int, re.search(r"^tried (\d+), held (\d+), fell (\d+)$", done.stdout, re.MULTILINE).groups()
    )
    assert tried == held > 0 and fell == 0
