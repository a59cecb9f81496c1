"""The campaigns that damage pictures and interrupt commands run, with a small count, and nothing
falls.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

CAMPAIGNS = Path(__file__).with_name("campaigns")
AS_USER = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
MOUNTING = ["/bin/sh", "-c", " ".join(["unshare --mount", *AS_USER, "mount -t tmpfs tmpfs /mnt"])]


@pytest.mark.parametrize(
    "options",
    [
        ["pictures.py", "--count=60"],
        ["kills.py", "--count=4", "--commands=features,tflite"],
        ["full_disk.py", "--count=4", "--commands=features,npz"],
        ["two_at_once.py", "--count=4", "--commands=features,download"],
    ],
    ids=lambda options: options[0],
)
def test_nothing_falls(options: list[str]):
    script, *rest = options
    if script == "full_disk.py" and subprocess.run(MOUNTING, capture_output=True).returncode:
        pytest.skip("a full disk is a small one that is mounted, which is not allowed here")
    done = warm.run(
        [sys.executable, str(CAMPAIGNS / script), "--seed=1", *rest], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried, held, fell = map(
        int, re.search(r"^tried (\d+), held (\d+), fell (\d+)$", done.stdout, re.MULTILINE).groups()
    )
    assert tried == held > 0 and fell == 0
