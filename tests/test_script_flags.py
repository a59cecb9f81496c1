"""The flags of the scripts reach the functions that compute with them. Each script runs up to the
call of such a function.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow"}


def run(*words: str) -> subprocess.CompletedProcess:
    line = [sys.executable, *words]
    options = {"env": ENV, "cwd": ROOT, "capture_output": True, "text": True}
    return warm.run(line, timeout=HUNG_SECONDS, **options)


def arguments_of(call: str, script: str, *flags: str) -> dict[str, Any]:
    """The named arguments of the call, those that are Python literals as values."""
    module, _, function = call.rpartition(".")
    done = run(f"{ROOT}/tests/watched_script.py", module, function, script, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    _, named = json.loads(done.stdout.splitlines()[-1])
    return {name: _value(text) for name, text in named.items()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, with four photos for training and two for the test."""
    folder, draws = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for label in ("cat", "dog"):
            for number in range(count):
                path = folder / part / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                keras.utils.save_img(path, draws.integers(0, 256, (9, 12, 3)), scale=False)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.keras"
    images = keras.Input((8, 8, 3))
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(images)
    keras.Model(images, keras.layers.Dense(2, name="predictions")(pooled)).save(path)
    return path


@pytest.fixture(scope="module")
def given(photos: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The features lie in the folder after the first script."""
    workdir = tmp_path_factory.mktemp("workdir")
    return (f"--data={photos}", f"--model={model}", f"--workdir={workdir}", "--pixels=0..1")


def test_features_are_extracted_as_the_flags_say(given: tuple[str, ...]):
    by_default = arguments_of("keras_vit.evaluate.extract", "knn", *given)
    expected = {"layer": "pre_logits", "image_size": None, "batch_size": None}
    assert expected.items() <= by_default.items()
    assert by_default["eval_crop"] == "resize_crop"  # as in the paper's few-shot evaluation
    flags = ("--crop=resize_shorter", "--layer=pool", "--image_size=8", "--batch_size=3")
    found = arguments_of("keras_vit.evaluate.extract", "knn", *given, *flags)
    expected = {"layer": "pool", "image_size": (8, 8), "batch_size": 3}
    assert (expected | {"eval_crop": "resize_shorter"}).items() <= found.items()
    name, workdir = (Path(flag.partition("=")[2]) for flag in (given[0], given[2]))
    assert found["output"] == f"PosixPath('{workdir}/features/{name.name}/train')"


@pytest.mark.parametrize(
    ("call", "script", "flags", "expected"),
    [
        (
            "keras_vit.evaluate.knn",
            "knn",
            ("--neighbors=3,4", "--temperature=0.5"),
            {"neighbors": [3, 4], "temperature": 0.5},
        ),
        (
            "keras_vit.evaluate.fewshot",
            "fewshot",
            ("--shots=1,2", "--seeds=5,6", "--ridge=64"),
            {"shots": (1, 2), "seeds": (5, 6), "ridges": (64.0,), "class_names": ("cat", "dog")},
        ),
        (
            "keras_vit.evaluate.linear_probe",
            "probe",
            ("--dev_share=0.25", "--seed=7"),
            {"dev_share": 0.25, "seed": 7, "class_names": ("cat", "dog")},
        ),
        (
            "keras_vit.evaluate.streaming_probe",
            "probe",
            ("--dev_share=0.25", "--seed=7", "--streaming"),
            {"dev_share": 0.25, "seed": 7, "class_names": ("cat", "dog")},
        ),
    ],
)
def test_features_are_used_as_the_flags_say(given, call, script, flags, expected):
    assert expected.items() <= arguments_of(call, script, *given, *flags).items()


def test_features_are_computed_where_and_how_the_flags_say(given: tuple[str, ...]):
    where = ("--devices=one", "--precision=mixed_bfloat16", "--model=ViT_Ti16", "--weights=none")
    watched = (f"{ROOT}/tests/watched_script.py", "keras_vit.devices", "connect", "knn")
    done = run(*watched, *given, *where)
    assert done.returncode == 0, done.stderr[-3000:]
    (config,), _ = json.loads(done.stdout.splitlines()[-1])
    assert "kind='one'" in config and "precision='mixed_bfloat16'" in config


def test_an_evaluation_measures_as_the_flags_say(photos: Path, model: Path, tmp_path: Path):
    flags = (f"--checkpoints={model}", f"--data={photos}/test", f"--workdir={tmp_path}")
    others = ("--crop=resize_shorter", "--batch_size=3", "--strict", "--pixels=0..1")
    where = ("--devices=one", "--precision=mixed_bfloat16")
    call = "keras_vit.evaluate.measure.measure"
    found = arguments_of(call, "evaluate", *flags, *others, *where)
    expected = {"eval_crop": "resize_shorter", "batch_size": 3, "strict": True, "pixels": "0..1"}
    assert expected.items() <= found.items()
    assert "kind='one'" in found["devices"] and "'mixed_bfloat16'" in found["devices"]


def test_numbers_of_other_settings_are_not_taken_for_ours(
    photos: Path, model: Path, tmp_path: Path
):
    """A folder of another measurement, of which only what was asked for is left."""
    flags = (f"--checkpoints={model}", f"--data={photos}/test", f"--workdir={tmp_path}")
    pixels = "--pixels=0..1"
    # a stand-in for the measurement leaves what a measurement leaves
    code = (
        "import sys; sys.path.insert(0, 'experiments'); from keras_vit.evaluate import measure\n"
        "def write(**named):\n"
        "    named['output'].mkdir(parents=True)\n"
        "    (named['output'] / 'results.json').write_text('{\"images\": 4}')\n"
        "    (named['output'] / 'report.md').write_text('')\n"
        "measure.measure = write\n"
        "import runpy; sys.argv[0] = 'experiments/evaluate.py'\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = ("-c", code, *flags, pixels)
    first = run(*words)
    assert first.returncode == 0, first.stderr[-3000:]
    assert run(*words).returncode == 0  # is there already
    for flag in ("--precision=mixed_bfloat16", "--crop=resize_shorter", "--pixels=-1..1"):
        other = run(*words, flag)
        assert other.returncode == 1
        assert "holds a measurement with other settings" in other.stderr


def test_vtab_adapts_and_measures_as_the_flags_say(tmp_path: Path):
    flags = (f"--workdir={tmp_path}", "--smoke", "--model=ViT_Ti16", "--tasks=dtd")
    call = "keras_vit.evaluate.vtab.vtab"
    found = arguments_of(call, "vtab", *flags)
    assert (found["tune"], found["skip_missing"]) == (False, False)
    found = arguments_of(call, "vtab", *flags, "--tune", "--skip_missing")
    assert (found["tune"], found["skip_missing"]) == (True, True)


def test_words_of_tensorflow_datasets_name_training_and_test():
    code = (
        "import sys; sys.path.insert(0, 'experiments')\n"
        "from command_line import frozen_features\n"
        "frozen_features.sources.tfds = lambda *words: words\n"
        "frozen_features.flags.FLAGS(sys.argv)\n"
        "print(frozen_features._make_sources('tfds:a/b:1.0.0:train[:10%]:validation'))"
    )
    done = run("-c", code, "--data=a", "--workdir=b")
    assert done.returncode == 0, done.stderr[-3000:]
    both = (("a/b:1.0.0", "train[:10%]"), ("a/b:1.0.0", "validation"))
    assert done.stdout.splitlines()[-1] == repr(both)


@pytest.mark.parametrize(("is_same", "code"), [(True, 0), (False, 1)])
def test_trials_that_differ_when_run_again_are_an_exit_code(
    is_same: bool, code: int, tmp_path: Path
):
    text = (
        "import runpy, sys; sys.path.insert(0, 'experiments')\n"
        "from ablations.schedule import Schedule\n"
        f"Schedule.repeat = lambda self, pool, count: print('sample of', count) or {is_same}\n"
        "sys.argv[0] = 'experiments/ablations.py'\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    flags = ("--study=class_token", "--size=smoke", f"--workdir={tmp_path}", "--again=2")
    done = run("-c", text, *flags)
    assert done.returncode == code, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "sample of 2"
