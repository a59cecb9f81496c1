"""What VTAB's script makes of its flags for each task: nothing is learned. Whole runs are in
test_vtab_script.py.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

pytestmark = pytest.mark.tensorflow

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
CODE = f"""
import json, sys
sys.path.insert(0, {str(EXPERIMENTS)!r})
import vtab
from pathlib import Path
from types import SimpleNamespace
from absl import flags
from keras_vit.train.config import flatten_config
flags.FLAGS([word for word in sys.argv if not word.startswith("--config.")])
config = vtab.make_config()
found = {{"config": flatten_config(config)}}
for flip, crop in ((True, True), (True, False), (False, True)):
    job = SimpleNamespace(data="dtd:3.0.1", flip=flip, crop=crop)
    found[f"{{flip}}-{{crop}}"] = flatten_config(vtab.set_task(config, job, SimpleNamespace(num_examples=1000)))
for name, files in (("done", ["result.json", "checkpoints/1", "model.npz"]), ("begun", ["checkpoints/1"])):
    for file in files:
        path = Path(sys.argv[1].partition("=")[2], name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
vtab.remove_checkpoints(Path(sys.argv[1].partition("=")[2]))
print(json.dumps(found))
"""


def ask(tmp_path: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", CODE, f"--workdir={tmp_path}", *options]
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1"}
    return warm.run(command, env=env, capture_output=True, text=True, timeout=HUNG_SECONDS)


def test_the_setting_is_the_paper_s_and_flips_and_crops_go_where_they_would_change_the_label(
    tmp_path: Path,
):
    done = ask(tmp_path, "--model=ViT_L16")
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads(done.stdout.splitlines()[-1])
    found = {
        name: {field: ast.literal_eval(text) for field, text in part.items()}
        for name, part in written.items()
    }
    setting = found.pop("config")
    # arXiv:2010.11929, B.1.1 and Table 4: 2500 steps of 512 images at 384 pixels, SGD with momentum
    # at 0.01.
    expected = {
        "run.loop.total_steps": 2500,
        "run.batch_size": 512,
        "image_size": 384,
        "model": "ViT_L16",
    }
    expected |= {"run.optimizer.learning_rate": 0.01, "run.optimizer.name": "momentum"}
    expected |= {"run.data.flip": True, "run.data.crop": "inception"}
    assert {name: setting[name] for name in expected} == expected
    fields = [f"run.data.{name}" for name in ("flip", "crop", "crop_area")]
    assert {name: [task[field] for field in fields] for name, task in found.items()} == {
        "True-True": [True, "inception", 0.05],
        "True-False": [True, "resize", 0.05],
        "False-True": [False, "inception", 0.05],
    }
    task = found["True-True"]
    assert (
        task["run.data.name"] == "dtd:3.0.1; learned from 1000" and task["run.data.kind"] == "given"
    )
    assert task["run.loop.evaluate_every"] == 0 and task["run.data.test"] == ""
    assert (
        not (tmp_path / "done" / "checkpoints").exists()
        and (tmp_path / "done" / "model.npz").exists()
    )
    assert (tmp_path / "begun" / "checkpoints" / "1").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--config.run.data.held_out=0.1", "leave out --config.run.data.held_out"),
        ("--config.run.data.name=pets", "leave out --config.run.data.name"),
        ("--model=ViT_B15", "There is no model 'ViT_B15'. Did you mean ViT_B16"),
        ("--config.run.batch=3", "Did you mean run.batch_size"),
    ],
)
def test_what_the_tasks_decide_and_what_is_misspelt_is_refused(
    tmp_path: Path, option: str, message: str
):
    refused = ask(tmp_path, "--smoke", option)
    assert refused.returncode == 1 and message in refused.stderr


ADAPT = f"""
import dataclasses, shutil, sys
sys.path.insert(0, {str(EXPERIMENTS)!r})
import vtab
import keras_vit
from pathlib import Path
from types import SimpleNamespace
from absl import flags
from keras_vit.devices import Devices
from keras_vit.variants import VIT_VARIANTS
flags.FLAGS(sys.argv)
folder = Path(sys.argv[1].partition("=")[2], "dtd")
folder.mkdir()
row = {{"patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}}
application = keras_vit.application(dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], **row))
model = application(weights=None, input_shape=(16, 16, 3), classes=2, classifier_activation=None)
for number, variable in enumerate(model.weights, start=1):
    variable.assign(vtab.keras.ops.full(variable.shape, number))
trained = model.get_weights()
keras_vit.save_checkpoint(model, folder.parent / "trained.npz")
def build(classes):
    model.set_weights([0 * array for array in trained])
    return model
def run(config, folder, procedure, data):
    print("trains on", data[0].name)
    shutil.copy(folder.parent / "trained.npz", folder / "model.npz")
    (folder / "results.json").touch()
vtab.run, vtab.check_folder = run, lambda *_: True
job = SimpleNamespace(data="dtd:3.0.1", flip=True, crop=True, title="DTD")
train = SimpleNamespace(num_examples=1000, class_names=("a", "b"), name="textures")
for _ in range(2):
    found = vtab.adapt(vtab.make_config(), build, Devices(kind="one", num_replicas=1), job, train, folder)
    pairs = zip(found.get_weights(), trained, strict=True)
    print([(one == other).all() for one, other in pairs].count(False), "arrays differ")
"""


def test_the_measured_model_has_the_weights_of_the_task_and_a_finished_task_is_not_trained_again(
    tmp_path: Path,
):
    command = [sys.executable, "-c", ADAPT, f"--workdir={tmp_path}", "--smoke"]
    env = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = warm.run(command, env=env, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    said = ["trains on textures", "0 arrays differ", "0 arrays differ"]
    assert done.stdout.splitlines()[-3:] == said
