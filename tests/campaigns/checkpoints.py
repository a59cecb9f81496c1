"""Damaged checkpoints of runs: each is read as it was, or passed over for the one before, with a
reason of one line.

    python tests/campaigns/checkpoints.py --seed=0 --count=2000

A folder with two checkpoints is copied, and the newer one is cut, flipped, overwritten, shuffled,
emptied, or given another state.json, with and without hashes that fit. It holds if reading gives
exactly what was written; or the older one, with the newer one named as damaged; or, where both are
damaged, a ValueError.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from absl import logging

from keras_vit.train import checkpoints
from keras_vit.train.checkpoints import Checkpoints

STEPS = (3, 6)
NUMBERS = (0, -1, 1, 2**31, 2**63, 10**400, 0.5, "6", None, True, [], {}, [[1, "a"]], "é")


def write_whole(folder: Path) -> dict[int, tuple]:
    """Two checkpoints. Returns {step: (state, metrics, window)}."""
    rng, written = np.random.default_rng(0), {}
    run = Checkpoints(folder)
    for step in STEPS:
        state = {
            "weights/kernel": rng.standard_normal((8, 16)).astype("float32"),
            "seeds/000": np.array([step, 7], "uint32"),
            "optimizer/0000/iterations": np.array(step),
            "weights/none": np.zeros((0, 3), "float32"),
        }
        written[step] = (
            state,
            {"validation/accuracy": step / 10, "validation/loss": 1.5},
            [[float(step), 0.5, 2.0]],
        )
        run.save(step, *written[step])
    return written


# ---- what happens to them


def damage(rng, path: Path) -> str:
    """Changes one file of a checkpoint. Returns what was done."""
    kinds = (
        cut,
        extend,
        flip_bits,
        overwrite,
        remove,
        empty,
        delete,
        swap_states,
        change_fact,
        change_fact_and_hash,
    )
    kind = kinds[rng.integers(len(kinds))]
    kind(rng, path / ("state.npz", "state.json")[rng.integers(2)])
    return kind.__name__


def cut(rng, file):
    data = file.read_bytes()
    file.write_bytes(data[: int(rng.integers(len(data)))])


def extend(rng, file):
    file.write_bytes(file.read_bytes() + rng.bytes(int(rng.integers(1, 100))))


def flip_bits(rng, file):
    data = bytearray(file.read_bytes())
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(data))


def overwrite(rng, file):
    data, size = bytearray(file.read_bytes()), int(rng.integers(1, 200))
    place = int(rng.integers(len(data)))
    data[place : place + size] = (rng.bytes(size), bytes(size), b"[" * size)[rng.integers(3)]
    file.write_bytes(bytes(data))


def remove(rng, file):
    data = file.read_bytes()
    place = int(rng.integers(len(data)))
    file.write_bytes(data[:place] + data[place + int(rng.integers(1, 200)) :])


def empty(rng, file):
    file.write_bytes(b"")


def delete(rng, file):
    file.unlink()


def swap_states(rng, file):
    """The file of the other checkpoint under this name."""
    (other,) = (f"{step:010}" for step in STEPS if f"{step:010}" != file.parent.name)
    source = file.parents[1] / other / file.name
    if source.exists():  # the newer one may have lost it before
        shutil.copy(source, file)


def change_fact(rng, file):
    facts_path = file.with_name("state.json")
    facts = json.loads(facts_path.read_text())
    _change(rng, facts)
    facts_path.write_text(json.dumps(facts))


def change_fact_and_hash(rng, file):
    """As somebody would who knows the form: only the hash of the facts is made to fit."""
    facts_path = file.with_name("state.json")
    facts = json.loads(facts_path.read_text())
    facts.pop("sha256")
    _change(rng, facts, ("step", "file_sha256"))
    whole = json.dumps(facts, sort_keys=True).encode()
    facts_path.write_text(json.dumps({**facts, "sha256": hashlib.sha256(whole).hexdigest()}))


def _change(rng, facts, names=None):
    names = names or list(facts)
    name = names[rng.integers(len(names))]
    if rng.integers(4) == 0:
        del facts[name]
    else:
        facts[name] = NUMBERS[rng.integers(len(NUMBERS))]


# ---- judging


def same(found, written) -> bool:
    state, metrics, window = written
    return (
        found.state.keys() == state.keys()
        and all(found.state[name].dtype == state[name].dtype for name in state)
        and all(np.array_equal(found.state[name], state[name]) for name in state)
        and found.metrics == metrics
        and found.window == window
    )


def judge(rng, whole: Path, folder: Path, written) -> tuple[str, str, str]:
    """Returns what was done, "held" or "fell", and how it ended."""
    shutil.copytree(whole, folder)
    newest = folder / "checkpoints" / f"{STEPS[1]:010}"
    done = damage(rng, newest)
    if both := rng.integers(8) == 0:
        done += ", and the older one: " + damage(rng, newest.with_name(f"{STEPS[0]:010}"))
    try:
        found = Checkpoints(folder).latest()
    except ValueError as error:
        told = "No checkpoint of this run can be read" in str(error)
        return done, "held" if both and told else "fell", str(error)
    except Exception as error:
        return done, "fell", f"{type(error).__name__}: {error}"
    if found is None:
        return done, "fell", "no checkpoint was found, and nothing was said"
    if not same(found, written[found.step]):
        return done, "fell", f"step {found.step} is not what was written"
    if found.step == STEPS[1]:
        return done, "held", "unharmed"
    told = len(found.damaged) == 1 and str(newest) in found.damaged[0]
    return (
        done,
        "held" if told else "fell",
        "the one before" if told else f"named as damaged: {found.damaged}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    logging.set_verbosity(logging.FATAL)
    checkpoints._sync = lambda folder: None  # what a power cut would lose is not tried here
    counted: Counter = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        written = write_whole(Path(temporary) / "whole")
        for number in range(options.count):
            rng = np.random.default_rng([options.seed, number])
            folder = Path(temporary) / "copy"
            done, verdict, end = judge(rng, Path(temporary) / "whole", folder, written)
            shutil.rmtree(folder)
            counted[verdict] += 1
            counted[
                end.splitlines()[0] if verdict == "fell" else end.split(":")[0].split("\n")[0]
            ] += 1
            if verdict == "fell":
                print(f"FELL --seed={options.seed} number {number}: {done}: {end}", flush=True)
    print(f"tried {options.count}, held {counted['held']}, fell {counted['fell']}")
    for end, times in counted.most_common():
        if end not in ("held", "fell"):
            print(f"  {times} {end}")
    sys.exit(int(counted["fell"] > 0))


if __name__ == "__main__":
    main()
