"""The script that compares replicas and micro-batches with one device, and the bounds that
docs/training.md states.
"""

import os
import subprocess
import sys
from pathlib import Path

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
