"""Commands whose disk is full from one of their file operations on: a sentence, nothing lost, and
the same end later.

    python tests/campaigns/full_disk.py --seed=0 --count=1000
    python tests/campaigns/full_disk.py --commands=pretrain,features --count=20

Each command writes to a separate tmpfs (this needs Linux and the right to mount, or `unshare`).
Before an operation the disk is cut down to what is on it, and up to three pages more. What
TensorFlow and HDF5 write meets it too. `--count` of all operations are drawn. It holds if

1. the exit code is 1, and what is printed says that the disk is full and what was kept, without a
  traceback; or it is 0 and the result is that of a disk with room: what was missing was not needed,
  or came later;
2. nothing that has its own name is half written;
3. when there is room, the same command ends with exit code 0 and the result of an uninterrupted run
  (see `kills.py`).
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import traced
from kills import Expected, Moment, expected, parsed, prepared
from tqdm import tqdm

FULL = re.compile(r"No space left on device|disk is full|make room")
KEPT = re.compile(r"whole|kept|stays?\b|No checkpoint yet|[Nn]othing|same command")
OWN_NAMESPACE = "KERAS_VIT_CAMPAIGN_MAY_MOUNT"


def fall(base: Path, moment: Moment, pages: int, goal: Expected) -> list[str]:
    """Runs a command on a disk that fills up, then with room; returns what is wrong."""
    root = base / "root"
    traced.resize(root, traced.ROOM)
    traced.empty(root)
    ended = traced.started(base, moment.command, full=moment.number, pages=pages).wait()
    found = traced.problems(root)
    if ended.code:
        found += _told(ended.code, ended.output)
    else:  # the hash of a download may be missing, if that is said
        is_said = FULL.search(ended.output) is not None
        found += [line for line in goal.differences(root) if not (is_said and ".sha256" in line)]
    traced.resize(root, traced.ROOM)
    again = traced.started(base, moment.command).wait()
    if again.code:
        return [*found, f"again: exit code {again.code}: {again.output.strip()[-600:]}"]
    return [*found, *traced.problems(root), *goal.differences(root)]


def _told(code: int | None, output: str) -> list[str]:
    end = output.strip()[-600:]
    found = [f"exit code {code}: {end}"] if code != 1 else []
    found += [f"a traceback: {end}"] if "Traceback" in output else []
    return found + [
        f"not told {what}: {end}"
        for what, words in (("why", FULL), ("what was kept", KEPT))
        if not words.search(end)
    ]


def main() -> int:
    """Returns the exit code."""
    options = parsed(__doc__, count=1000)
    if OWN_NAMESPACE not in os.environ:
        _start_where_mounting_is_allowed()
    rng, fell, every = np.random.default_rng(options.seed), 0, []
    with prepared() as base:
        traced.mount(base / "root")
        try:
            goals = {command: expected(base, command) for command in options.commands.split(",")}
            for command, goal in goals.items():
                every += [
                    Moment(command, number, operation)
                    for number, operation in enumerate(goal.operations)
                ]
            chosen = np.sort(rng.permutation(len(every))[: options.count])
            for moment in tqdm([every[place] for place in chosen], disable=None):
                pages = int(rng.integers(4))
                if wrong := fall(base, moment, pages, goals[moment.command]):
                    fell += 1
                    print(f"FELL {moment}, {pages} pages: {'; '.join(wrong)}", flush=True)
        finally:
            traced.unmount(base / "root")
    counted = Counter(every[place].command for place in chosen)
    print(
        ", ".join(f"{command} {number}" for command, number in counted.items()),
        f"of {len(every)} operations",
    )
    print(f"tried {len(chosen)}, held {len(chosen) - fell}, fell {fell}")
    return int(fell > 0)


def _start_where_mounting_is_allowed() -> None:
    """Restarts the script in a private mount namespace: no other process sees its disks, and they
    end with it.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    environment = {name: value for name, value in os.environ.items() if name != traced.warm.FOLDER}
    unshare = ["unshare", "--mount", *user]
    if (
        not shutil.which(unshare[0])
        or subprocess.run([*unshare, "true"], capture_output=True).returncode
    ):
        sys.exit(
            "A small disk cannot be mounted here. Run this on Linux, as root or with user "
            "namespaces."
        )
    os.execvpe(
        unshare[0], [*unshare, sys.executable, *sys.argv], {**environment, OWN_NAMESPACE: "1"}
    )


if __name__ == "__main__":
    sys.exit(main())
