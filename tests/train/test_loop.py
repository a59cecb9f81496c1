"""A run that is killed ends with the bits of one that is not, and what goes wrong is said."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

from free_ports import free_ports  # noqa: E402

from keras_vit.data import pipeline, sources, transforms  # noqa: E402
from keras_vit.data.reading import Unreadable, explain_unreadable  # noqa: E402
from keras_vit.devices import Devices  # noqa: E402
from keras_vit.models import vision_transformer  # noqa: E402
from keras_vit.train.checkpoints import Checkpoints  # noqa: E402
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.logs import read_metrics  # noqa: E402
from keras_vit.train.loop import (  # noqa: E402
    EXIT_STOPPED,
    Diverged,
    LoopConfig,
    Stopped,
    _Run,
    _SignalHandlers,
    train,
)
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer  # noqa: E402
from keras_vit.train.progress import InputClock  # noqa: E402
from keras_vit.variants import ViTVariant  # noqa: E402

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parent / "everything_on.py"


def start(workdir: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1", **environment}
    command = [sys.executable, str(SCRIPT), str(workdir), *arguments]
    return warm.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sha256(process: subprocess.Popen) -> str:
    output = process.communicate(timeout=HUNG_SECONDS)[0]
    found = re.search(r"state sha256: ([0-9a-f]{64})", output)
    assert process.returncode == 0 and found, output[-3000:]
    return found[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sha256(start(tmp_path_factory.mktemp("uninterrupted")))


def wait_for_progress(process: subprocess.Popen, workdir: Path, steps: int) -> None:
    """Returns when the run has saved `steps` more steps than it had, or has ended."""
    folder = workdir / "checkpoints"

    def newest() -> int:
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    goal = newest() + steps
    while process.poll() is None and newest() < goal:
        time.sleep(0.01)


def wait_for_writing(process: subprocess.Popen, workdir: Path) -> None:
    """Returns in the middle of the writing of a checkpoint."""
    while process.poll() is None and not list((workdir / "checkpoints").glob(".writing-*")):
        time.sleep(0.0005)


@pytest.mark.slow
def test_ten_kills_change_no_bit(tmp_path: Path, uninterrupted: str):
    draws = random.Random(0)
    kills = 0
    while kills < 10:
        process = start(tmp_path)
        wait_for_progress(process, tmp_path, 3)
        if kills % 2:
            wait_for_writing(process, tmp_path)
        else:
            time.sleep(draws.uniform(0, 0.1))
        process.kill()
        output = process.communicate()[0]
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, output[-3000:]
            break  # the run was over before the kill
        kills += 1
    assert kills >= 5
    assert sha256(start(tmp_path)) == uninterrupted
    assert sha256(start(tmp_path)) == uninterrupted  # a run that has ended stays as it is
    steps = [step for step, _ in read_metrics(tmp_path)["train/loss"]]
    assert steps == sorted(set(steps)) and steps[-1] == 150


@pytest.mark.slow
def test_a_jax_run_that_is_stopped_changes_no_bit(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    jax = {"KERAS_BACKEND": "jax"}
    whole = sha256(start(tmp_path_factory.mktemp("whole"), "30", **jax))
    process = start(tmp_path, "30", **jax)
    wait_for_progress(process, tmp_path, 3)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=HUNG_SECONDS)[0]
    assert process.returncode == EXIT_STOPPED, output[-2000:]
    assert sha256(start(tmp_path, "30", **jax)) == whole
    assert [value for _, value in read_metrics(tmp_path)["validation/examples"]] == [360, 360]


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_its_own_code(tmp_path: Path, uninterrupted: str):
    process = start(tmp_path)
    wait_for_progress(process, tmp_path, 3)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=HUNG_SECONDS)[0]
    assert process.returncode == EXIT_STOPPED == 75, output[-2000:]
    assert (
        "Stopped by SIGTERM after step" in output and "Rerun the same command to resume" in output
    )
    assert sha256(start(tmp_path)) == uninterrupted


def start_workers(*workdirs: Path, steps: int = 150) -> list[subprocess.Popen]:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(len(workdirs))]}
    configs = [
        {"cluster": cluster, "task": {"type": "worker", "index": index}}
        for index in range(len(workdirs))
    ]
    return [
        start(workdir, str(steps), TF_CONFIG=json.dumps(config), KIND="multi_worker")
        for workdir, config in zip(workdirs, configs, strict=True)
    ]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    whole = tmp_path_factory.mktemp("two_workers")
    return [sha256(worker) for worker in start_workers(whole, whole, steps=60)]


@pytest.mark.slow
def test_a_killed_worker_changes_no_bit(tmp_path: Path, two_workers: list[str]):
    """The chief first, then the other one of those that go on."""
    assert two_workers[0] == two_workers[1]
    for victim in (0, 1):
        workers = start_workers(tmp_path, tmp_path, steps=60)
        wait_for_progress(workers[0], tmp_path, 6)
        workers[victim].send_signal(signal.SIGKILL)
        workers[victim].communicate()
        try:
            # it may notice, or wait for the other for ever
            output = workers[1 - victim].communicate(timeout=20)[0]
            assert workers[1 - victim].returncode
            assert "another worker of this run is no longer reachable" in output, output[-3000:]
        except subprocess.TimeoutExpired:
            workers[1 - victim].kill()
            workers[1 - victim].communicate()
    assert [sha256(worker) for worker in start_workers(tmp_path, tmp_path, steps=60)] == two_workers


@pytest.mark.slow
def test_a_worker_that_is_asked_to_stop_stops_all_after_the_same_step(tmp_path: Path):
    workers = start_workers(*[tmp_path] * 3)
    wait_for_progress(workers[0], tmp_path, 6)
    workers[2].send_signal(signal.SIGTERM)
    outputs = [worker.communicate(timeout=HUNG_SECONDS)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [EXIT_STOPPED] * 3, outputs
    assert len({re.search(r"after step (\d+) of 150", output)[1] for output in outputs}) == 1
    assert "Stopped by another worker" in outputs[0] and "Stopped by SIGTERM" in outputs[2]
    # One that does not see the checkpoint of the others would train another model beside them.
    workers = start_workers(tmp_path, tmp_path / "elsewhere")
    outputs = [worker.communicate(timeout=HUNG_SECONDS)[0] for worker in workers]
    assert all("All workers must share one folder" in output for output in outputs), outputs


# In one process from here on.

ONE = Devices(kind="one", num_replicas=1)


@pytest.fixture
def tiny_vit(tiny_vit: ViTVariant) -> ViTVariant:
    """One block: the loop does not know how many there are."""
    return replace(tiny_vit, depth=1)


class Loop:
    """A small run in this process, whose parts a test may change."""

    def __init__(self, workdir: Path, row: ViTVariant | None = None, **loop):
        keras.utils.set_random_seed(0)
        self.workdir = workdir
        images = keras.Input((16, 16, 3))
        # linear, for what no model changes: traced in a tenth of the time; its dropout has a seed
        if row is None:
            dropped = keras.layers.Dropout(0.1)(keras.layers.Flatten()(images))
            self.model = keras.Model(images, keras.layers.Dense(10, name="predictions")(dropped))
        else:
            self.model = vision_transformer(row, images, classes=10, dropout_rate=0.1)
        self.config = LoopConfig(
            **{"total_steps": 6, "log_every": 2, "checkpoint_every": 2, **loop}
        )
        optimizer = make_optimizer(OptimizerConfig(average_momentum=0.9), self.model, 6)
        self.learner = make_learner(self.model, optimizer, batch_rows=8)
        self.source, self.unreadable = sources.digits("train"), None

    def batches(self, first_step: int, stamp) -> tf.data.Dataset:
        resized = [transforms.resize(16), transforms.to_uint8]
        options = {
            "start_step": first_step,
            "total_steps": self.config.total_steps,
            "stamp": stamp,
            "unreadable": self.unreadable,
        }
        return pipeline.training_batches(self.source, resized, batch_size=8, seed=0, **options)

    def run(self, **options) -> dict:
        options = {"batch_size": 8, "devices": ONE, "show_progress": False, **options}
        return train(self.learner, self.model, self.batches, self.config, self.workdir, **options)


def test_a_run_writes_what_it_measured(tmp_path):
    test_set = sources.digits("test")
    loop = Loop(tmp_path, evaluate_every=3)
    results = loop.run(
        validation=lambda: pipeline.evaluation_batches(
            test_set, [transforms.resize(16), transforms.to_uint8], batch_size=100
        ),
        evaluators={"mine": lambda model: {"answer": 42}},
    )
    metrics = read_metrics(tmp_path)
    assert [step for step, _ in metrics["train/loss"]] == [2, 4, 6]
    assert [step for step, _ in metrics["validation/accuracy"]] == [3, 6]
    assert results["validation/examples"] == 360 and results["mine/answer"] == 42
    assert all(0 <= value <= 1 for _, value in metrics["train/input_bound"])
    assert all(
        value > 0 for _, value in metrics["train/images_per_second"] + metrics["train/memory_gb"]
    )
    assert Checkpoints(tmp_path).steps() == [4, 6]


def test_a_stop_in_the_middle_changes_no_bit(tiny_vit, tmp_path):
    whole = Loop(tmp_path / "whole", tiny_vit).run()["state_sha256"]
    loop = Loop(tmp_path / "stopped", tiny_vit)
    batches, calls = loop.batches, []

    def interrupted(first_step, stamp):
        def stamp_and_stop():
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return stamp()

        return batches(first_step, stamp_and_stop)

    loop.batches = interrupted
    with pytest.raises(Stopped, match="Stopped by SIGTERM after step [1-5] of 6"):
        loop.run()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert Loop(tmp_path / "stopped", tiny_vit).run()["state_sha256"] == whole


def stopping_validation(seen: list) -> Callable[[], tf.data.Dataset]:
    """Batches of the digits, of which the third that is ever read asks the run to stop."""
    shapes = [(10, 16, 16, 3), (10,), (10,)]

    def stop(*batch):
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch

    def validation() -> tf.data.Dataset:
        resized = [transforms.resize(16), transforms.to_uint8]
        batches = pipeline.evaluation_batches(sources.digits("test"), resized, batch_size=10)
        counted = batches.map(
            lambda *batch: tf.py_function(stop, batch, [part.dtype for part in batch])
        )
        shaped = counted.map(
            lambda *b: tuple(tf.ensure_shape(x, s) for x, s in zip(b, shapes, strict=True))
        )
        return shaped.prefetch(0)

    return validation


# the second: in the evaluation at the end, whose result is that of the run
@pytest.mark.parametrize(("every", "steps"), [(2, [2, 4, 6]), (0, [6])])
def test_a_stop_does_not_wait_for_an_evaluation(tmp_path, every: int, steps: list[int]):
    seen: list = []
    validation = stopping_validation(seen)
    with pytest.raises(Stopped, match=f"after step {steps[0]} of 6"):
        Loop(tmp_path, evaluate_every=every).run(validation=validation)
    assert len(seen) < 36
    assert "validation/accuracy" not in read_metrics(tmp_path)
    results = Loop(tmp_path, evaluate_every=every).run(validation=validation)
    assert [step for step, _ in read_metrics(tmp_path)["validation/examples"]] == steps
    assert results["validation/examples"] == 360


def test_an_evaluation_that_was_interrupted_is_in_its_checkpoint_after_the_resume(tmp_path):
    """So that the step can be the best one, and is not evaluated a third time."""
    validation = stopping_validation([])
    with pytest.raises(Stopped):
        Loop(tmp_path, evaluate_every=2, keep_checkpoints=9).run(validation=validation)
    file = tmp_path / "checkpoints" / "0000000002" / "state.json"
    assert json.loads(file.read_text())["metrics"] == {}
    Loop(tmp_path, evaluate_every=2, keep_checkpoints=9).run(validation=validation)
    measured = dict(read_metrics(tmp_path)["validation/accuracy"])[2]
    assert json.loads(file.read_text())["metrics"]["validation/accuracy"] == measured


@pytest.mark.parametrize(
    ("norm", "loss_scale", "fails"),
    [(np.inf, 1.0, True), (np.nan, 1.0, True), (np.inf, 2.0, False), (1.0, 1.0, False)],
)
def test_a_gradient_that_is_not_finite_ends_the_run_unless_the_loss_scale_can_fall(
    tmp_path, norm: float, loss_scale: float, fails: bool
):
    run = Between(tmp_path, Devices(kind="one", num_replicas=1)).run
    values = {"loss": 1.0, "gradient_norm": norm, "loss_scale": loss_scale}
    with pytest.raises(Diverged, match="the norm of the gradient") if fails else nullcontext():
        run._check_finite(values)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    whole = Loop(tmp_path).run()["state_sha256"]
    newest = tmp_path / "checkpoints" / "0000000006" / "state.npz"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    again = Loop(tmp_path)
    assert again.run()["state_sha256"] == whole
    assert Checkpoints(tmp_path).steps() == [4, 6]
    assert (tmp_path / "checkpoints" / "0000000006.damaged").is_dir()


def test_no_readable_checkpoint_is_an_error(tmp_path):
    Loop(tmp_path).run()
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "state.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="No checkpoint of this run can be read"):
        Loop(tmp_path).run()


def test_not_a_number_names_the_step_and_the_last_good_checkpoint(tmp_path):
    loop = Loop(tmp_path, total_steps=6)
    batches = loop.batches

    def poisoned(first_step, stamp):
        def poison(step, batch):
            images = tf.cast(batch[0], tf.float32) / 255
            return (tf.where(step == 4, np.nan, images), *batch[1:])

        return batches(first_step, stamp).enumerate().map(poison)

    loop.batches = poisoned
    with pytest.raises(
        Diverged, match=r"Step 5: the loss is nan.*Last good checkpoint: .*0000000004"
    ):
        loop.run()
    assert Checkpoints(tmp_path).steps() == [2, 4]


def in_float16(loop: "Loop", row) -> "Loop":
    """The same loop with a loss scale."""
    keras.config.set_dtype_policy("mixed_float16")
    loop.model = vision_transformer(row, keras.Input((16, 16, 3)), classes=10)
    loop.model.get_layer("predictions").kernel.assign(
        np.random.RandomState(0).normal(size=(16, 10)) * 0.1
    )
    made = make_optimizer(OptimizerConfig(), loop.model, loop.config.total_steps, loss_scaling=True)
    loop.learner = make_learner(loop.model, made, batch_rows=8)
    return loop


def written(folder: Path) -> str:
    """All that a run has measured, as text."""
    return (folder / "metrics.csv").read_text()


class InfiniteAtLast(keras.optimizers.schedules.LearningRateSchedule):
    """In the third update, after which no loss is computed."""

    def __call__(self, step):
        return keras.ops.where(keras.ops.cast(step, "float32") < 2, 1e-3, np.inf)


def test_a_last_update_that_is_not_a_number_is_not_written(tmp_path):
    loop = Loop(tmp_path, total_steps=3, checkpoint_every=1)
    for rule in loop.learner.optimizer.rules.values():
        rule._learning_rate = InfiniteAtLast()
    with pytest.raises(
        Diverged, match=r"Step 3: \d+ variables of the run contain NaN or infinity.*0000000002"
    ):
        loop.run()
    assert Checkpoints(tmp_path).steps() == [1, 2]
    assert Checkpoints(tmp_path).latest().step == 2
    assert "nan" not in written(tmp_path)


def test_in_float16_a_loss_that_is_not_a_number_ends_the_run(tiny_vit, tmp_path):
    loop = in_float16(Loop(tmp_path), tiny_vit)
    batches = loop.batches

    def poisoned(first_step, stamp):
        return batches(first_step, stamp).map(
            lambda images, *rest: (tf.cast(images, tf.float32) * np.nan, *rest)
        )

    loop.batches = poisoned
    with pytest.raises(Diverged, match="Step 1: the loss is nan.*Last good checkpoint: none yet"):
        loop.run()
    assert Checkpoints(tmp_path).steps() == [] and "nan" not in written(tmp_path)


def test_in_float16_gradients_may_overflow_until_the_loss_scale_is_1(tiny_vit, tmp_path):
    loop = in_float16(Loop(tmp_path, total_steps=12), tiny_vit)
    loop.learner.optimizer.loss_scale.assign(2.0**20)
    loop.run()
    # halved, and not in every step
    assert 2.0**10 < float(loop.learner.optimizer.loss_scale.numpy()) < 2.0**20
    assert "inf" not in written(tmp_path) and "nan" not in written(tmp_path)
    loop = in_float16(Loop(tmp_path / "never", total_steps=3), tiny_vit)
    loop.learner.optimizer.loss_scale.assign(2.0**60)
    with pytest.raises(
        Diverged, match="the gradient of every step overflowed, so no weight was ever updated"
    ):
        loop.run()
    assert Checkpoints(tmp_path / "never").steps() == [2]


@pytest.mark.parametrize("number", [np.nan, pytest.param(-np.inf, marks=pytest.mark.slow)])
def test_a_metric_that_is_not_a_number_is_no_result(tmp_path, number):
    with pytest.raises(Diverged, match="among the metrics, mine/answer is (nan|-inf)"):
        Loop(tmp_path).run(evaluators={"mine": lambda model: {"answer": number}})
    assert Checkpoints(tmp_path).steps() == [2, 4] and "mine/answer" not in written(tmp_path)


def nothing_readable(folder: Path, count: int) -> sources.Source:
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no picture")
    return sources.image_folder(folder)


@pytest.mark.parametrize("count", [4, 100])  # of 100 a run of two batches meets too few to tell
def test_no_image_is_no_result(tmp_path, count):
    loop = Loop(tmp_path / "run", total_steps=2, checkpoint_every=0, log_every=1)
    loop.source = nothing_readable(tmp_path / "data", count)
    loop.unreadable = Unreadable(loop.source)
    message = (
        "4 of the 4 images of .* could not be read"
        if count == 4
        else "No image of the 2 batches of this run"
    )
    with pytest.raises(ValueError, match=message), explain_unreadable(loop.unreadable):
        loop.run()
    assert "train/loss" not in written(tmp_path / "run")
    assert Checkpoints(tmp_path / "run").steps() == []


def test_no_validation_image_is_no_result(tmp_path):
    source = nothing_readable(tmp_path / "data", 4)
    resized = [transforms.resize(16), transforms.to_uint8]
    bad = Unreadable(source)
    with (
        pytest.raises(ValueError, match="4 of the 4 images of .* could not be read"),
        explain_unreadable(bad),
    ):
        Loop(tmp_path / "run").run(
            validation=lambda: pipeline.evaluation_batches(
                source, resized, batch_size=2, unreadable=bad
            )
        )
    assert "validation" not in written(tmp_path / "run")


def test_rows_after_a_stop_are_those_of_a_run_that_was_not_stopped(tmp_path):
    """Also where the stop is between two rows, whose means then cover steps on both sides of it."""
    names = ("train/loss", "train/accuracy", "train/gradient_norm", "train/learning_rate")

    def end(_model):
        raise InterruptedError

    Loop(tmp_path / "whole", log_every=3).run()
    # after step 5; there is a row of step 3, and a checkpoint of step 4
    with pytest.raises(InterruptedError):
        Loop(tmp_path / "stopped", log_every=3, evaluate_every=5).run(evaluators={"mine": end})
    assert Checkpoints(tmp_path / "stopped").steps()[-1] == 4
    Loop(tmp_path / "stopped", log_every=3).run()
    whole, resumed = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "stopped")
    assert [whole[name] for name in names] == [resumed[name] for name in names]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    loop = Loop(tmp_path, checkpoint_every=2)
    save = np.savez

    def full(file, **arrays):
        if full.calls in (1, 2):
            full.calls += 1
            file.write(b"part of it")
            raise OSError(28, "No space left on device")
        full.calls += 1
        return save(file, **arrays)

    full.calls = 0
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(
        OSError, match="Step 6: no checkpoint could be written.*No space left.*Make room"
    ):
        loop.run()
    monkeypatch.undo()
    assert Checkpoints(tmp_path).steps() == [2]
    assert not list((tmp_path / "checkpoints").glob(".writing-*"))
    whole = Loop(tmp_path / "other").run()["state_sha256"]
    assert Loop(tmp_path).run()["state_sha256"] == whole


def test_a_checkpoint_of_another_model_is_refused(tiny_vit, tmp_path):
    Loop(tmp_path).run()
    with pytest.raises(ValueError, match="another model or optimizer.*variables differ"):
        Loop(tmp_path, tiny_vit).run()


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(OSError):
        Loop(tmp_path / "run").run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 0}, "`total_steps` = 0"),
        ({"log_every": 0}, "`log_every` = 0"),
        ({"evaluate_every": -1}, "-1"),
    ],
)
def test_bad_lengths_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LoopConfig(**{"total_steps": 1, **options})


def rows_of(workdir: Path, name: str) -> dict[int, float]:
    return dict(read_metrics(workdir)[name])


def test_a_row_is_the_mean_of_the_steps_since_the_row_before(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.train.loop.InputClock.end", lambda clock: 0.5)
    Loop(tmp_path / "each", total_steps=5, log_every=1).run()
    Loop(tmp_path / "some", total_steps=5, log_every=2).run()
    for name in ("loss", "accuracy", "gradient_norm"):
        each, some = (rows_of(tmp_path / folder, f"train/{name}") for folder in ("each", "some"))
        expected = {2: (each[1] + each[2]) / 2, 4: (each[3] + each[4]) / 2, 5: each[5]}
        assert some == pytest.approx(expected, rel=1e-5)
    # 8 images in half a second.
    assert rows_of(tmp_path / "some", "train/images_per_second") == pytest.approx(
        {2: 16, 4: 16, 5: 16}
    )
    # The schedule counts updates from 0, the log from 1; the run has six, as in `Loop`.
    cosine = {step: 1e-3 * 0.5 * (1 + np.cos(np.pi * (step - 1) / 6)) for step in range(1, 6)}
    assert rows_of(tmp_path / "each", "train/learning_rate") == pytest.approx(cosine, rel=1e-5)


def test_evaluations_and_checkpoints_are_no_time_of_training_and_see_its_state(
    tmp_path, monkeypatch
):
    """The clock restarts after each step, after the evaluation and the checkpoint. On JAX, the
    state is in the variables only after `jax_state_sync`.
    """
    said: list[str] = []

    class Recorded(InputClock):
        def restart(self) -> None:
            said.append("restart")
            super().restart()

    monkeypatch.setattr("keras_vit.train.loop.InputClock", Recorded)
    save = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda *all_, **named: (said.append("save"), save(*all_, **named))[1]
    )
    evaluators = {"mine": lambda _: said.append("evaluate") or {"answer": 1.0}}
    loop = Loop(tmp_path, total_steps=3, evaluate_every=2, checkpoint_every=2)
    loop.learner.jax_state_sync = lambda: said.append("sync")
    loop.run(evaluators=evaluators)
    assert [word for word in said if word != "sync"] == [
        "restart",
        "restart",
        "evaluate",
        "save",
        "restart",
        "restart",
        "evaluate",
        "save",
    ]
    before = {said[place - 1] for place, word in enumerate(said) if word in ("evaluate", "save")}
    assert before == {"sync"}


def test_the_rate_in_the_log_is_that_of_the_last_layers(tmp_path, monkeypatch):
    """With a decay over the layers, the first ones have lower rates."""
    run, written = Between(tmp_path, Devices(kind="one", num_replicas=1)).run, []
    run.step = 5
    rates = {"first": 0.125, "head": 0.5, "second": 0.25}
    run.learner.optimizer.learning_rates = lambda step: {4: rates}[step]
    means = SimpleNamespace(metrics={}, steps=10, seconds=4.0)
    run.window = SimpleNamespace(take_means=lambda: means)
    monkeypatch.setattr(run, "_write", written.append)
    run._write_window()
    assert written[0]["train/learning_rate"] == 0.5
    assert written[0]["train/images_per_second"] == 20.0  # 10 steps of 8


def test_averages_are_evaluated_and_the_weights_are_as_before(tmp_path):
    loop, seen = Loop(tmp_path, evaluate_every=0), []

    def look(model: keras.Model) -> dict[str, float]:
        seen.append(
            ([value.copy() for value in model.get_weights()], [v.numpy() for v in loop.averages])
        )
        return {"looked": 1.0}

    loop.averages = loop.learner.optimizer.averages
    loop.run(evaluators={"mine": look})
    [(evaluated, averages)] = seen  # at the end, and only there
    weights = [variable.numpy() for variable in loop.model.trainable_variables]
    assert len(averages) == len(weights) and any(
        (a != w).any() for a, w in zip(averages, weights, strict=True)
    )
    for average in averages:
        assert any(value.shape == average.shape and (value == average).all() for value in evaluated)
    stored = Checkpoints(tmp_path).latest().state
    for number, variable in enumerate(loop.model.trainable_variables):
        name = next(
            name for name in stored if name.startswith("weights/") and name.endswith(variable.path)
        )
        assert (stored[name] == weights[number]).all()


def test_a_checkpoint_has_the_metrics_of_its_own_step(tmp_path):
    options = {"evaluate_every": 4, "checkpoint_every": 1, "keep_checkpoints": 9}
    Loop(tmp_path, **options).run(evaluators={"mine": lambda model: {"answer": 42.0}})
    folder = tmp_path / "checkpoints"
    found = {
        int(path.parent.name): json.loads(path.read_text())["metrics"]
        for path in folder.glob("*/state.json")
    }
    answer = {"mine/answer": 42.0}
    assert found == {1: {}, 2: {}, 3: {}, 4: answer, 5: {}, 6: answer}


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    options = {"evaluate_every": 2, "keep_checkpoints": 1, "best_metric": "mine/answer"}
    answers = iter((3.0, 1.0, 2.0))
    Loop(tmp_path, **options).run(evaluators={"mine": lambda _: {"answer": next(answers)}})
    assert Checkpoints(tmp_path).steps() == [2, 6]


def test_a_run_that_has_ended_is_not_measured_again(tmp_path):
    calls = []
    evaluators = {"mine": lambda model: {"calls": float(len(calls)) + (calls.append(1) or 0)}}
    first = Loop(tmp_path).run(evaluators=evaluators)
    assert Loop(tmp_path).run(evaluators=evaluators) == first and len(calls) == 1


def test_going_on_sets_aside_what_is_newer(tmp_path):
    Loop(tmp_path, keep_checkpoints=9).run()
    newest = tmp_path / "checkpoints" / "0000000006" / "state.json"
    newest.write_text("{")
    Loop(tmp_path, keep_checkpoints=9, total_steps=4).run()
    assert (
        Checkpoints(tmp_path).steps() == [2, 4] and newest.parent.with_suffix(".damaged").is_dir()
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_is_not_caught(number: signal.Signals):
    asked = []
    before = signal.signal(number, lambda *_: asked.append("before"))
    try:
        with _SignalHandlers(asked.append):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert asked == [number.name, "before", "before"]


class Between:
    """What `_Run` reads of the rest: nothing is trained."""

    def __init__(
        self, workdir: Path, devices: Devices, loss_scale: float | None = None, start: int = 0
    ):
        learner = SimpleNamespace(optimizer=SimpleNamespace(loss_scale=loss_scale))
        checkpoints = Checkpoints(workdir, is_writer=devices.is_chief)
        config = LoopConfig(total_steps=1000)
        self.run = _Run(
            learner=learner,
            model=None,
            config=config,
            checkpoints=checkpoints,
            log=None,
            bar=None,
            batch_size=8,
            devices=devices,
            validation=None,
            evaluators={},
            start=start,
        )

    def stops_at(self, step: int) -> bool:
        self.run.step = step
        return self.run._is_stopping()


def test_workers_leave_after_a_step_that_none_has_begun(tmp_path):
    (tmp_path / "stop").touch()
    (tmp_path / "stop_after").write_text("1")  # of an earlier part of the run
    chief, other = (
        Between(
            tmp_path,
            Devices(kind="multi_worker", num_replicas=2, num_workers=2, worker_index=index),
        )
        for index in range(2)
    )
    assert not chief.stops_at(1) and not other.stops_at(1)
    other.run.ask_to_stop("SIGTERM")
    assert not other.stops_at(3)  # it may be one step ahead of the chief, or one behind
    assert not chief.stops_at(3)
    assert (tmp_path / "stop_after").read_text() == "5"
    assert not other.stops_at(4) and not chief.stops_at(4)
    assert other.stops_at(5) and chief.stops_at(5)
    assert (chief.run.asked_by, other.run.asked_by) == ("another worker", "SIGTERM")


def test_workers_that_find_different_checkpoints_do_not_begin(tmp_path):
    two = Devices(
        kind="multi_worker", num_replicas=2, num_workers=2, gather=lambda step: [step, step + 4]
    )
    with pytest.raises(OSError, match="of steps 0, 4. All workers must share one folder"):
        Loop(tmp_path).run(devices=two)
    assert not (tmp_path / "metrics.csv").exists()


def test_how_often_things_happen_by_default():
    config = LoopConfig(total_steps=1)
    assert (
        config.log_every,
        config.evaluate_every,
        config.checkpoint_every,
        config.keep_checkpoints,
    ) == (
        50,
        0,
        1000,
        2,
    )
    # EX_TEMPFAIL of sysexits.h
    assert config.best_metric == "validation/accuracy" and EXIT_STOPPED == 75


@pytest.mark.slow
def test_evaluation_counts_each_image_once(tiny_vit, two_replicas, tmp_path):
    """On one device and on two replicas, for any number of images and any batch size."""
    draws = np.random.RandomState(0)
    images = draws.randint(0, 256, (10_000, 16, 16, 3)).astype("uint8")
    labels = draws.randint(0, 10, 10_000)
    distribute = lambda dataset: two_replicas.distribute_datasets_from_function(lambda _: dataset)  # noqa: E731
    two = Devices(kind="mirrored", num_replicas=2, scope=two_replicas.scope, distribute=distribute)
    found = {}
    for devices in (ONE, two):
        keras.utils.set_random_seed(0)
        with devices.scope():
            model = vision_transformer(tiny_vit, keras.Input((16, 16, 3)), classes=10)
            for index, variable in enumerate(model.trainable_variables):
                variable.assign(np.random.RandomState(index).normal(size=variable.shape) * 0.3)
            learner = make_learner(
                model,
                make_optimizer(OptimizerConfig(), model, 1),
                batch_rows=2,
                num_replicas=devices.num_replicas,
            )
        for count in (1, 3, 33, 10_000):
            source = sources.arrays(
                images[:count], labels[:count], class_names=list(map(str, range(10)))
            )
            for batch_size in (1, 7, 128) if count < 10_000 else (128,):
                rows = pipeline.padded_rows(min(batch_size, count), devices.num_replicas)
                share = pipeline.Share(rows=rows, num_parts=devices.local_parts)
                batches = pipeline.evaluation_batches(
                    source, [], batch_size=batch_size, share=share
                )
                steps = int(batches.cardinality()) // devices.local_parts
                logs = learner.evaluate(
                    devices.distribute(batches), steps=steps, verbose=0, return_dict=True
                )
                found[devices.num_replicas, count, batch_size] = logs
    logits = np.concatenate(
        [model.predict(part / 127.5 - 1.0, verbose=0) for part in np.split(images, 10)]
    )
    hits = logits.argmax(-1) == labels
    losses = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    losses -= logits[np.arange(len(labels)), labels]
    for (_, count, _), logs in found.items():
        assert logs["examples"] == count
        assert logs["accuracy"] == pytest.approx(hits[:count].mean(), abs=1e-7)
        assert logs["loss"] == pytest.approx(losses[:count].mean(), rel=2e-6)


def test_an_old_run_may_be_copied(tmp_path):
    whole = Loop(tmp_path / "first").run()["state_sha256"]
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert Loop(tmp_path / "second").run()["state_sha256"] == whole
