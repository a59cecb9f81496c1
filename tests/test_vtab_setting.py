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
    env = {**os.environ, "KERAS_BACKEND": "tensorflow"}
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
