"""The check of an export: whatever is damaged, it says FAILED and why, and goes on with the next
file.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import acceptance, metadata
from keras_vit.export.checksums import write_checksums
from keras_vit.export.examples import Examples
from keras_vit.export.reference import read_reference, write_reference
from keras_vit.export.verdicts import Verdict

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def version(tmp_path: Path, tiny_vit, monkeypatch) -> Path:
    """An export from Python whose file, when it is run, gives what the model gave."""
    folder = tmp_path / "1"
    folder.mkdir()
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=7)
    levels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    write_reference(folder, levels, keras.ops.convert_to_numpy(model(levels / 127.5 - 1)))
    (folder / "model.onnx").write_bytes(b"graph")
    (folder / "labels.txt").write_text("cat\n")
    judged = Examples(images=np.zeros((1, 32, 32, 3), np.float32), labels=None, name="one")
    metadata.write_facts(
        folder, metadata.describe(model, accepted={"max_error": 1e-4}, judged=judged)
    )
    write_checksums(folder, folder)

    def judged(path: Path, images: np.ndarray, expected: np.ndarray, **_: Any) -> Verdict:
        numbers = {"top1_agreement": 1.0, "max_error": 0.0, "mean_error": 0.0, "latency_ms": 1.0}
        return Verdict(
            name=path.name, size_bytes=1, num_images=len(images), accuracy=None, **numbers
        )

    monkeypatch.setattr(acceptance, "judge", judged)
    return folder


def _problem(version: Path) -> str:
    (checked,) = acceptance.check(version)
    assert checked.text().startswith("FAILED" if checked.problem else "OK")
    return checked.problem


def test_what_is_as_it_was_written_passes(version: Path):
    assert _problem(version) == ""


@pytest.mark.parametrize(
    "name", ["model.onnx", "labels.txt", "keras_vit.json", "reference.npz", "SHA256SUMS"]
)
def test_any_damage_to_any_file_fails(version: Path, name: str):
    path, whole, rng = version / name, (version / name).read_bytes(), np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 20):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << rng.integers(8)]) + whole[place + 1 :]
        )
        assert _problem(version), place
    for damaged in (b"", whole[: len(whole) // 2], whole + b"x"):
        path.write_bytes(damaged)
        assert _problem(version)
    path.unlink()
    assert _problem(version)


def _without_checksums(version: Path) -> dict[str, Any]:
    (version / "SHA256SUMS").unlink()
    facts = json.loads((version / "keras_vit.json").read_text())
    del facts["checksums"]
    (version / "keras_vit.json").write_text(json.dumps(facts))
    return facts


def test_an_export_of_before_there_were_checksums_is_checked_and_told(version: Path):
    _without_checksums(version)
    (checked,) = acceptance.check(version)
    assert (
        checked.problem == ""
        and "without checksums, since an older version wrote it" in checked.against
    )


def _set(name: str, value: Any) -> Callable[[dict], Any]:
    """Sets a value, and gives all."""

    def change(facts: dict) -> Any:
        *parents, last = name.split(".")
        place = facts
        for parent in parents:
            place = place[parent]
        place[last] = value
        return facts

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(lambda _, value=value: value for value in (5, None, [], "x", {})),
        *(_set("input", value) for value in (5, {}, None, [1])),
        *(
            _set("input.image_size", value)
            for value in ([32], "32", [0, 32], [32, 10**9], [32.0, 32], None)
        ),
        *(_set("input.range", value) for value in ([0, 2], "x", None)),
        *(_set("input.resize", value) for value in ("middle", "central:2", 5, None)),
        *(
            _set("accepted", value)
            for value in ({}, 5, {"max_error": float("nan")}, {"max_error": "x"})
        ),
        *(_set("accepted", {"max_error": value}) for value in (-1, True, {"a": None}, [1])),
        *(_set("accepted", {"top1_agreement": value}) for value in (2, "x", None)),
        *(_set("calibrated_on", value) for value in (5, [5])),
        *(_set("judged", value) for value in (5, {"sha256": 5})),
        *(_set("num_images", value) for value in (0, "8", True)),
        *(_set(name, 5) for name in ("model", "variables_sha256", "input.dtype")),
    ],
)
def test_facts_of_another_form_fail_with_a_reason(version: Path, change: Callable[[dict], Any]):
    facts = change(_without_checksums(version))
    (version / "keras_vit.json").write_text(json.dumps(facts))
    assert "keras_vit.json is damaged" in _problem(version)


@pytest.mark.parametrize(
    "arrays",
    [
        {"pixels": np.zeros((3, 32, 32, 3), np.uint8)},
        {"pixels": np.zeros((0, 32, 32, 3), np.uint8), "outputs": np.zeros((0, 7), np.float32)},
        {"pixels": np.zeros((3, 32, 31, 3), np.uint8), "outputs": np.zeros((3, 7), np.float32)},
        {"pixels": np.zeros((3, 32, 32, 3), np.float32), "outputs": np.zeros((3, 7), np.float32)},
        {
            "pixels": np.zeros((3, 32, 32, 3), np.uint8),
            "outputs": np.full((3, 7), np.nan, np.float32),
        },
        {"pixels": np.zeros((3, 32, 32, 3), np.uint8), "outputs": np.array([{}, {}, {}])},
    ],
)
def test_a_reference_of_another_form_fails_with_a_reason(
    version: Path, arrays: dict[str, np.ndarray]
):
    np.savez(version / "reference.npz", **arrays)
    write_checksums(version, version)
    assert "reference.npz is damaged" in _problem(version)


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04" + b"x" * 50, b"\x93NUMPY"])
def test_a_reference_that_cannot_be_read_fails_with_a_reason(version: Path, content: bytes):
    (version / "reference.npz").write_bytes(content)
    write_checksums(version, version)
    assert "reference.npz is damaged" in _problem(version)


@pytest.mark.parametrize(
    ("accepted", "agreement", "error", "problem"),
    [
        ({"max_error": 0.1, "top1_agreement": 0.9}, 0.9, 0.1, ""),
        (
            {"max_error": 0.1, "top1_agreement": 0.9},
            0.89,
            0.1,
            "the top-1 agreement is 89.0%, below 90.0%",
        ),
        ({"max_error": 0.1, "top1_agreement": 0.5}, 0.5, 0.2, "the max error is 0.2, above 0.1"),
        ({"max_error": {"model": 0.3}}, 0.0, 0.2, ""),
        (
            {"max_error": {"other": 0.3}},
            1.0,
            0.0,
            "have no threshold for 'model', only for other",
        ),
        ({"top1_agreement": 0.5}, 0.5, 9.0, ""),
    ],
)
def test_what_is_accepted_is_what_was_recorded_and_nothing_else(
    version: Path,
    monkeypatch,
    accepted: dict[str, Any],
    agreement: float,
    error: float,
    problem: str,
):
    facts = json.loads((version / "keras_vit.json").read_text()) | {"accepted": accepted}
    metadata.write_facts(version, facts)
    write_checksums(version, version)
    numbers = {
        "top1_agreement": agreement,
        "max_error": error,
        "mean_error": 0.0,
        "latency_ms": 1.0,
    }
    found = Verdict(name="model.onnx", size_bytes=1, num_images=100, accuracy=None, **numbers)
    monkeypatch.setattr(acceptance, "judge", lambda *_, **__: found)
    said = _problem(version)
    assert said.endswith(problem) and bool(said) == bool(problem)


def test_a_model_that_is_gone_is_not_passed_over(version: Path):
    (version / "model.onnx").rename(version / "other.onnx")
    checked = {each.path.name: each.problem for each in acceptance.check(version)}
    assert set(checked) == {"model.onnx", "other.onnx"} and all(checked.values())


def test_a_saved_model_without_its_graph_is_not_passed_over(version: Path):
    (version / "assets.extra").mkdir()
    problems = {each.path: each.problem for each in acceptance.check(version)}
    assert "was not exported by keras_vit" in problems[version]


def test_whatever_ends_the_check_of_one_file_the_next_is_checked(version: Path, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(acceptance, "judge", fails)
    assert _problem(version) == "ZeroDivisionError: by zero"


@pytest.mark.parametrize(
    "identity", [{"weights": "a.npz"}, {"weights": 5}, {"weights": None, "image_size": "x"}]
)
def test_what_a_caller_said_of_the_weights_may_have_any_form(
    version: Path, identity: dict[str, Any]
):
    facts = json.loads((version / "keras_vit.json").read_text()) | identity
    metadata.write_facts(version, facts)
    write_checksums(version, version)
    assert _problem(version) == ""


def test_files_of_one_model_are_checked_each_on_its_own_images(
    version: Path, tiny_vit, monkeypatch
):
    """Three files share a model. The second is int8 and takes uint8 pixels; since the export of the
    third, the photographs were replaced.
    """
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=7)
    levels = np.random.default_rng(1).integers(0, 256, (5, 32, 32, 3), np.uint8)
    pixels = levels / np.float32(127.5) - np.float32(1)
    five = Examples(images=pixels, labels=None, name="five")
    monkeypatch.setattr(acceptance, "_rebuild", lambda _: (model, ""))
    monkeypatch.setattr(acceptance, "find_examples", lambda *_: five)
    seen, judge = [], acceptance.judge

    def judged(path: Path, images: np.ndarray, expected: np.ndarray, **named: Any) -> Verdict:
        seen.append(images)
        return judge(path, images, expected, **named)

    monkeypatch.setattr(acceptance, "judge", judged)
    identity = {"model": "ViT_Ti16", "weights": None, "image_size": [32, 32], "num_images": 5}
    facts = json.loads((version / "keras_vit.json").read_text()) | identity
    others = five.those(np.arange(2, 5))
    of_levels = facts["input"] | {"dtype": "uint8", "range": [0, 255]}
    for name, changed in {
        "a": {"judged": {"sha256": five.fingerprint()}},
        "b": {
            "calibrated_on": five.fingerprints()[:2],
            "judged": {"sha256": others.fingerprint()},
            "input": of_levels,
        },
        "c": {"calibrated_on": five.fingerprints()[:2], "judged": {"sha256": "0" * 64}},
    }.items():
        folder = version.parent / "formats" / name / "1"
        shutil.copytree(version, folder)
        metadata.write_facts(folder, facts | changed)
        write_checksums(folder, folder)
    checked = list(acceptance.check(version.parent / "formats"))
    assert [each.problem for each in checked] == [""] * 3
    replaced = ["not the images that it was judged on" in each.against for each in checked]
    assert replaced == [False, False, True]
    for found, expected in zip(seen, (pixels, levels[2:], pixels[2:]), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ({"dtype": "float32", "range": [-1, 1]}, [-1.0, -0.6, 1.0]),
        ({"dtype": "float32", "range": [0, 1]}, [0.0, 0.2, 1.0]),
        ({"dtype": "float32", "range": [0, 255]}, [0.0, 51.0, 255.0]),
        ({"dtype": "uint8", "range": [0, 255]}, [0, 51, 255]),
    ],
)
def test_recorded_images_are_given_as_the_export_takes_them(
    tmp_path: Path, taken: dict[str, Any], expected: list[float]
):
    levels = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    write_reference(tmp_path, levels, np.ones((1, 2), np.float32))
    images, outputs = read_reference(tmp_path, {"input": {"image_size": [1, 1], **taken}})
    assert images.dtype == taken["dtype"] and outputs.tolist() == [[1.0, 1.0]]
    np.testing.assert_allclose(images.ravel(), expected, atol=1e-6)


def test_the_images_that_are_named_come_before_those_of_the_export_and_none_calibrated(
    tmp_path: Path, tiny_vit, monkeypatch
):
    model = keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=7)
    pixels = np.random.default_rng(0).uniform(-1, 1, (5, 32, 32, 3)).astype(np.float32)
    five, asked = Examples(images=pixels, labels=None, name="five"), []
    monkeypatch.setattr(acceptance, "_rebuild", lambda _: (model, ""))
    monkeypatch.setattr(
        acceptance, "find_examples", lambda *words: asked.append((words[0], words[3])) or five
    )
    old, new = (str(tmp_path / name) for name in ("old", "new"))
    Path(old).mkdir()
    calibrated = five.fingerprints()[:2]
    facts = {"model": "ViT_Ti16", "weights": None, "image_size": [32, 32], "judged_on": old}
    facts |= {"num_images": 4, "calibrated_on": [str(each) for each in calibrated]}
    for images, count, used in ((None, None, (old, 4)), (new, None, (new, 4)), (new, 2, (new, 2))):
        found = acceptance._run_model(facts, images, count)
        assert asked.pop() == used
        np.testing.assert_array_equal(found.examples.images, pixels[2:])
        assert len(found.expected) == 3
    Path(old).rmdir()  # no longer there
    acceptance._run_model(facts, None, None)
    assert asked.pop() == (None, 4)
    acceptance._run_model(facts | {"judged_on": "tfds:mnist:test"}, None, None)  # is no file
    assert asked.pop() == ("tfds:mnist:test", 4)
    with pytest.raises(ValueError, match="All 5 images of five were used to calibrate int8"):
        acceptance._run_model(facts | {"calibrated_on": list(five.fingerprints())}, None, None)
