"""The script that compares replicas and micro-batches with one device, and the bounds that
docs/training.md states.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parents[1] / "experiments" / "replica_equality.py"
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow"}


def run(*options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *options]
    return warm.run(command, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)


def largest(model: str, *options: str) -> list[tuple[float, float]]:
    """The largest differences in losses and weights after 12 steps, of all divisions of the batch;
    by optimizer.
    """
    done = run(f"--models={model}", "--steps=12", *options)
    assert done.returncode == 0, done.stderr[-2000:]
    found = []
    for row in done.stdout.splitlines()[2:]:
        name, _, _, steps, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        assert (name, steps, len(cells)) == (model, "12", 4)
        losses, weights = zip(*(map(float, cell.split(", ")) for cell in cells), strict=True)
        found.append((max(losses), max(weights)))
    return found


def printed_by(code: str) -> Any:
    """The Python value in the last line that some code prints in a process of its own."""
    command = [sys.executable, "-c", code]
    done = warm.run(command, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    return ast.literal_eval(done.stdout.splitlines()[-1])


COMPARES = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import replica_equality as script
from keras_vit.train import OptimizerConfig
def train(name, optimizer, steps, way):
    record = script.Record(steps)
    share = SIGN * (1e-3 * (way.replicas - 1) + 1e-5 * (way.micro_batches - 1))
    record.losses = [2.0 + share] * 12
    record.weights = {{12: [script.np.full(3, 1.0 + share)]}}
    return record
script._train = train
print(script._compare("vit", OptimizerConfig(name="adam", learning_rate=1e-3), [12]))
"""


@pytest.mark.parametrize("sign", [1, -1])
def test_each_division_of_the_batch_is_compared_with_one_device(sign: int):
    """A training of n replicas and m micro-batches is off by (n - 1) / 1000 + (m - 1) / 100000."""
    ((*_, steps, two, four, micro, between),) = printed_by(f"SIGN = {sign}\n{COMPARES}")
    assert steps == "12"
    weights = [float(cell.split(", ")[1]) for cell in (two, four, micro, between)]
    assert weights == pytest.approx([1e-3, 3e-3, 1e-5, 0.99e-3], rel=0.06)


TRAINS = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import replica_equality as script
from absl import flags
from contextlib import nullcontext
from types import SimpleNamespace
from keras_vit.train import OptimizerConfig
flags.FLAGS(["replica_equality.py"])
class Begun(Exception):
    pass
def connect(config):
    count = len(config.names) or 1
    return SimpleNamespace(local_parts=count, num_replicas=count, scope=nullcontext)
def make_learner(model, optimizer, **how):
    found.append((how["num_replicas"], how["accumulation_steps"]))
    raise Begun
found = []
script.connect, script.make_learner = connect, make_learner
script._build = lambda row: None
script.make_optimizer = lambda *_: None
for way in (script.Way(), *script.WAYS.values()):
    try:
        script._train("vit", OptimizerConfig(), [1], way)
    except Begun:
        pass
print(found)
"""


def test_each_training_divides_the_batch_as_its_column_says():
    # (replicas, micro-batches) of one device and of the three columns
    assert printed_by(TRAINS) == [(1, 1), (2, 1), (4, 1), (1, 2)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--models=vit,bitt", "must be of vit, axial_vit, hybrid, bit, resnet, axial_resnet"),
        ("--optimizers=adam", "must be NAME:RATE, such as adam:1e-3"),
        ("--optimizers=adm:1e-3", "`name` must be one of adam, adamw"),
        ("--steps=0", "must be whole numbers from 1"),
    ],
)
def test_what_is_mistyped_is_refused_with_what_there_is(option: str, message: str):
    done = run(option)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr


# Bounds are three times the largest difference of any convolutional model that was measured
# (docs/training.md).


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet"])  # the others take four minutes
def test_momentum_keeps_to_rounding_and_adam_to_the_bounds_of_the_documents(model: str):
    (losses, weights), (losses_of_adam, weights_of_adam) = largest(
        model, "--optimizers=momentum:1e-2,adam:1e-2"
    )
    assert losses <= 6e-7
    assert weights <= 0.04  # of a bias that is still near 0, where it began
    assert losses_of_adam <= 9e-3
    assert weights_of_adam <= 2.1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bit"])
def test_without_kinks_adam_keeps_to_rounding_too(model: str):
    ((losses, weights),) = largest(model, "--optimizers=adam:1e-2", "--smooth")
    assert losses <= 6e-7
    assert weights <= 1.6e-4
