"""Two of the same command at once in the same folder: both end well, or one is refused with a
sentence.

    python tests/campaigns/two_at_once.py --seed=0 --count=40
    python tests/campaigns/two_at_once.py --commands=pretrain,npz --count=10

The second begins after the first, by 0 to 1.2 times the seconds that the command takes; the delay
is drawn, and the commands take turns. It holds if

1. each ends with exit code 0, or with 1 and a sentence that names the other, without a traceback,
  and at least one of them with 0;
2. the folder then holds the result of a single run (see `kills.py`): the same complete files, and
  no temporary ones. Exporters that both end well have written two versions.
"""

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import traced
from kills import Expected, expected, parsed, prepared
from tqdm import tqdm


def fall(base: Path, command: str, delay: float, goal: Expected) -> list[str]:
    """Runs two; returns what is wrong."""
    root = traced.empty(base / "root")
    first = traced.started(base, command)
    time.sleep(delay)
    second = traced.started(base, command)
    ended = [first.wait(), second.wait()]
    found = [] if any(each.code == 0 for each in ended) else ["neither ended well"]
    for each in ended:
        told = "Another" in each.output and "Traceback" not in each.output
        if each.code and not (each.code == 1 and told):
            found.append(f"exit code {each.code}: {each.output.strip()[-600:]}")
    return [*found, *traced.problems(root), *goal.differences(root)]


def main() -> int:
    """Returns the exit code."""
    options = parsed(__doc__, count=40)
    rng, fell, names = np.random.default_rng(options.seed), 0, options.commands.split(",")
    tried: Counter = Counter()
    with prepared() as base:
        goals, seconds = {}, {}
        for number in tqdm(range(options.count), disable=None):
            command, share = names[number % len(names)], rng.uniform(0, 1.2)
            if command not in goals:
                begun = time.monotonic()
                goals[command] = expected(base, command)
                seconds[command] = (time.monotonic() - begun) / 2
            tried[command] += 1
            if wrong := fall(base, command, share * seconds[command], goals[command]):
                fell += 1
                print(
                    f"FELL {command}, the second after {share:.2f} of the time: {'; '.join(wrong)}",
                    flush=True,
                )
    print(", ".join(f"{command} {times}" for command, times in tried.items()))
    print(f"tried {options.count}, held {options.count - fell}, fell {fell}")
    return int(fell > 0)


if __name__ == "__main__":
    sys.exit(main())
