"""Checkpoints: whole or absent, verified, the newest and the best."""

import json
import os
import sys

import numpy as np
import pytest
import recorded_writes

pytest.importorskip("tensorflow")

from keras_vit.train.checkpoints import Checkpoints, state_sha256  # noqa: E402

pytestmark = pytest.mark.tensorflow


def state(number: int) -> dict[str, np.ndarray]:
    return {"weights/a": np.full((2, 3), number, "float32"), "seeds/000": np.array([number, 7])}


def test_what_was_saved_is_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, state(5), {"validation/accuracy": 0.5})
    found = Checkpoints(tmp_path).latest()
    assert (found.step, found.metrics, found.damaged) == (5, {"validation/accuracy": 0.5}, ())
    assert all((found.state[name] == array).all() for name, array in state(5).items())
    assert found.state["seeds/000"].dtype == np.int64


def test_an_empty_folder_has_none(tmp_path):
    assert Checkpoints(tmp_path).latest() is None


@pytest.mark.parametrize(("metric", "best"), [("validation/accuracy", 2), ("validation/loss", 3)])
def test_the_newest_and_the_best_are_kept(tmp_path, metric: str, best: int):
    checkpoints = Checkpoints(tmp_path, keep=2, best_metric=metric)
    for step, value in enumerate([0.5, 0.9, 0.1, 0.6, 0.4, 0.45], start=1):
        checkpoints.save(step, state(step), {metric: value})
    assert checkpoints.steps() == [best, 5, 6]
    assert checkpoints.best() == best


def test_checkpoints_without_the_metric_are_not_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, best_metric="validation/accuracy")
    checkpoints.save(1, state(1), {"validation/accuracy": 0.1})
    checkpoints.save(2, state(2), {"validation/loss": 0.1})
    checkpoints.save(3, state(3))
    assert checkpoints.steps() == [1, 3]


def test_what_a_kill_left_is_no_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    for name in (".writing-0000000009-1", "0000000003.damaged", "notes"):
        (folder / name).mkdir(parents=True)
    assert Checkpoints(tmp_path).steps() == []
    assert not (folder / ".writing-0000000009-1").exists()


@pytest.mark.parametrize("what", ["flip", "cut", "empty", "no facts", "garbled facts", "no arrays"])
def test_damage_is_seen_and_the_one_before_is_taken(tmp_path, what: str):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    path = checkpoints.save(2, state(2))
    arrays, facts = path / "state.npz", path / "state.json"
    data = bytearray(arrays.read_bytes())
    data[len(data) // 2] ^= 1
    {
        "flip": lambda: arrays.write_bytes(data),
        "cut": lambda: arrays.write_bytes(data[:-20]),
        "empty": lambda: arrays.write_bytes(b""),
        "no facts": facts.unlink,
        "garbled facts": lambda: facts.write_text("{"),
        "no arrays": arrays.unlink,
    }[what]()
    found = checkpoints.latest()
    assert found.step == 1 and len(found.damaged) == 1 and "0000000002" in found.damaged[0]


def changed(facts: dict, name: str) -> object:
    """Another value of the same type."""
    if isinstance(facts[name], str):
        return facts[name][::-1]
    return {int: lambda value: value + 1, dict: lambda _: {"loss": 0.25}, list: lambda _: [[1.0]]}[
        type(facts[name])
    ](facts[name])


@pytest.mark.parametrize(
    "name", ["step", "metrics", "window", "state_sha256", "file_sha256", "sha256"]
)
def test_a_changed_fact_is_seen(tmp_path, name: str):
    checkpoints = Checkpoints(tmp_path, best_metric="loss")
    checkpoints.save(1, state(1), {"loss": 0.5})
    path = checkpoints.save(2, state(2), {"loss": 1.0}, [[1.0, 2.0]]) / "state.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, name: changed(facts, name)}))
    found = checkpoints.latest()
    assert (
        found.step == 1
        and len(found.damaged) == 1
        and "state.json was changed after it was written" in found.damaged[0]
    )
    assert checkpoints.best() == 1


def test_a_checkpoint_in_the_folder_of_another_step_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1)).rename(checkpoints.path(3))
    with pytest.raises(ValueError, match="it was written for step 1"):
        checkpoints.latest()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_a_number_is_neither_written_nor_read(tmp_path, number: float, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    poisoned = {**state(2), "weights/a": np.full((2, 3), number, "float32")}
    with pytest.raises(ValueError, match="step 2 is not saved: NaN or infinity in weights/a"):
        checkpoints.save(2, poisoned)
    with pytest.raises(ValueError, match="NaN or infinity in loss"):
        checkpoints.save(2, state(2), {"loss": number})
    assert checkpoints.steps() == [1]
    monkeypatch.setattr("keras_vit.train.checkpoints._find_not_finite", lambda arrays: [])
    checkpoints.save(2, poisoned)  # as if another program had
    monkeypatch.undo()
    found = checkpoints.latest()
    assert found.step == 1 and "has NaN or infinity in weights/a" in found.damaged[0]


def test_a_crash_between_two_renames_cannot_lose_the_last(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state(1))
    rename = os.rename

    def crash(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, state(2))
    monkeypatch.setattr(os, "rename", rename)
    assert Checkpoints(tmp_path).latest().step == 1


@pytest.mark.skipif(
    sys.platform != "linux", reason="tells files by their descriptors as Linux does"
)
def test_all_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    events = recorded_writes.record(monkeypatch)
    checkpoints.save(1, state(1))
    assert events == [
        *(("synced", "state.npz"), ("synced", "state.json"), ("renamed", "0000000001")),
        ("synced folder", "checkpoints"),
    ]
    events.clear()
    checkpoints.save(1, state(1), {"validation/accuracy": 0.5})  # metrics that come later
    assert events == [("synced", ".state.json"), ("renamed", "state.json")]


def test_what_was_measured_first_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for value in (0.5, 0.6):
        checkpoints.save(1, state(1), {"validation/accuracy": value})
    assert checkpoints.latest().metrics == {"validation/accuracy": 0.5}


@pytest.mark.parametrize(
    ("metric", "best"), [("top1_error", 2), ("validation/loss", 2), ("validation/top1", 1)]
)
def test_of_equals_the_earliest_is_the_best(tmp_path, metric: str, best: int):
    checkpoints = Checkpoints(tmp_path, keep=9, best_metric=metric)
    for step, value in enumerate([0.9, 0.1, 0.9, 0.1], start=1):
        checkpoints.save(step, state(step), {metric: value})
    assert checkpoints.best() == best


def test_what_is_newer_is_set_aside_and_nothing_else(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=9)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step))
    checkpoints.set_aside(2)
    assert checkpoints.steps() == [1, 2]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.damaged")) == [
        *("0000000003.damaged", "0000000004.damaged")
    ]


def test_an_old_checkpoint_that_a_killed_process_did_not_remove_is_removed_when_the_run_continues(
    tmp_path,
):
    for step in (1, 2):
        Checkpoints(tmp_path, keep=9).save(step, state(step))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.set_aside(2)
    assert checkpoints.steps() == [2]


def test_metrics_that_come_later_are_added(tmp_path):
    checkpoints = Checkpoints(tmp_path, best_metric="validation/accuracy")
    checkpoints.save(1, state(1))
    checkpoints.save(1, state(1), {"validation/accuracy": 0.5})
    assert checkpoints.latest().metrics == {"validation/accuracy": 0.5} and checkpoints.best() == 1


def test_another_worker_removes_nothing(tmp_path):
    writing = tmp_path / "checkpoints" / ".writing-0000000009-1"
    writing.mkdir(parents=True)
    Checkpoints(tmp_path, is_writer=False)
    assert writing.exists()


def test_the_hash_is_that_of_names_types_shapes_and_bits():
    base = state_sha256(state(1))
    assert base == state_sha256(dict(reversed(state(1).items())))
    one = state(1)
    others = [
        {**one, "weights/a": one["weights/a"].T},
        {**one, "weights/a": one["weights/a"].astype("float64")},
        {**one, "weights/a": np.nextafter(one["weights/a"], np.float32(2))},
        {"weights/b": one["weights/a"], "seeds/000": one["seeds/000"]},
    ]
    assert len({base, *map(state_sha256, others)}) == 5


def test_the_hash_in_the_file_is_that_of_the_state(tmp_path):
    path = Checkpoints(tmp_path).save(1, state(1))
    assert json.loads((path / "state.json").read_text())["state_sha256"] == state_sha256(state(1))


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`keep` must be at least 1"):
        Checkpoints(tmp_path, keep=0)
