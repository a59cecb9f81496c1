"""Sweeps through the script, as a user starts them: killed, stopped, failed and gone on with; then
what they report.
"""

import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1"}
RECIPE = f"""
import runpy
get_config = runpy.run_path("{ROOT}/experiments/configs/cifar10_scratch.py")["get_config"]
"""
SWEEP = """
def get_sweep(arg):
    return {"learning_rates": (0.003, 0.001, 1e30), "held_out": 0.25}
"""


# On the path of a sweep, it keeps one of its runs from ever beginning.
SLEEPER = """
import sys, time
if any(arg.startswith("--workdir=") and arg.endswith("/lr_0.003") for arg in sys.orig_argv):
    time.sleep(3600)
"""


def command(recipe: Path, workdir: Path, *options: str) -> list[str]:
    recipe_option = f"--config={recipe}:smoke"
    return [
        sys.executable,
        f"{ROOT}/experiments/sweep.py",
        recipe_option,
        f"--workdir={workdir}",
        *options,
    ]


def sweep(recipe: Path, workdir: Path, *options: str) -> subprocess.CompletedProcess:
    line = command(recipe, workdir, *options)
    return warm.run(line, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HUNG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def finished(workdir: Path) -> dict[str, tuple[str, int]]:
    """What would differ if a run had been repeated, by folder."""
    return {
        str(path.parent): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in workdir.glob("*/*/results.json")
    }


def write_images(folder: Path, labels: tuple[str, ...], count: int) -> None:
    draws = np.random.RandomState(len(labels) + count)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(draws.randint(0, 256, (16, 16, 3)).astype("uint8")).save(
                folder / label / f"{number}.png"
            )


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    return path


@dataclass
class Story:
    recipe: Path
    workdir: Path
    options: list[str]
    stopped: subprocess.Popen
    orphan: psutil.Process
    without_test: subprocess.CompletedProcess
    grid: dict[str, tuple[str, int]]  # finished before the test set could be read
    done: subprocess.CompletedProcess


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One sweep: killed in its second run, stopped, then stuck with a test set that cannot be
    opened, then finished.
    """
    root = tmp_path_factory.mktemp("sweep")
    recipe, workdir, second = (
        root / "recipe.py",
        root / "sweep",
        root / "sweep" / "trials" / "lr_0.003",
    )
    recipe.write_text(RECIPE + SWEEP)
    write_images(root / "data" / "train", ("cat", "dog"), 20)
    # a trap: whoever opens it fails, for want of cats and dogs
    write_images(root / "data" / "test", ("wolf",), 1)
    (root / "sleeper").mkdir()
    (root / "sleeper" / "sitecustomize.py").write_text(SLEEPER)
    options = [
        "--config.run.data.kind=image_folder",
        f"--config.run.data.name={root}/data",
        "--seeds=2",
    ]
    line = command(recipe, workdir, *options)
    path = [f"{root}/sleeper", *filter(None, [ENV.get("PYTHONPATH")])]
    asleep = {**ENV, "PYTHONPATH": os.pathsep.join(path)}
    with ExitStack() as stack, open(root / "stopped.txt", "w") as output:
        killed = stack.enter_context(ended(line, asleep, subprocess.DEVNULL))
        wait_for(lambda: read(second / "trial.json").get("process") or killed.poll() is not None)
        orphan = psutil.Process(read(second / "trial.json")["process"][0])
        killed.kill()
        killed.wait()

        stopped = stack.enter_context(ended(line, ENV, output))
        wait_for(lambda: (second / "metrics.csv").exists() or stopped.poll() is not None)
        time.sleep(0.5)  # it compiles; its signal handlers are there
        stopped.send_signal(signal.SIGTERM)
        stopped.wait(HUNG_SECONDS)

        without_test = sweep(recipe, workdir, *options)
        grid = finished(workdir)
        shutil.rmtree(root / "data" / "test")
        write_images(root / "data" / "test", ("cat", "dog"), 8)
        done = sweep(recipe, workdir, *options, "--parallel=2")
        yield Story(recipe, workdir, options, stopped, orphan, without_test, grid, done)


@contextmanager
def ended(line: list[str], env: dict[str, str], output: Any) -> Iterator[subprocess.Popen]:
    """A process that ends with the block, and all that it started."""
    start = subprocess.Popen if "PYTHONPATH" in env else warm.Popen
    process = start(line, env=env, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            for member in psutil.Process(process.pid).children(recursive=True):
                member.kill()
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_signal_reaches_the_run_which_saves(story: Story):
    assert story.stopped.returncode == 75, (story.workdir.parent / "stopped.txt").read_text()
    log = (story.workdir / "trials" / "lr_0.003" / "log.txt").read_text()
    assert "Stopped by SIGTERM after step" in log
    assert "Resuming from step" in log  # in the next sweep
    assert "rerun the same command to resume" in (story.workdir.parent / "stopped.txt").read_text()


@pytest.mark.slow
def test_a_run_of_a_killed_sweep_is_not_run_twice_at_a_time(story: Story):
    assert (
        "lr_0.003 still runs, though the sweep was killed"
        in (story.workdir.parent / "stopped.txt").read_text()
    )
    assert not story.orphan.is_running()


@pytest.mark.slow
def test_the_test_set_is_not_opened_before_the_winner_is_known(story: Story):
    assert story.without_test.returncode == 1
    assert "The winner is" in story.without_test.stdout
    said = story.without_test.stderr.splitlines()[-1]
    assert said.startswith("ValueError: ") and "wolf" in said
    assert "Traceback" not in story.without_test.stderr
    assert {Path(folder).name for folder in story.grid} == {"lr_0.001", "lr_0.003"}


@pytest.mark.slow
def test_no_finished_run_is_repeated(story: Story):
    assert story.done.returncode == 0, story.done.stderr[-3000:]
    after = finished(story.workdir)
    assert {Path(folder).name for folder in after} == {"lr_0.001", "lr_0.003", "seed_0", "seed_1"}
    assert {folder: after[folder] for folder in story.grid} == story.grid
    assert (
        "trials: 0 of 3 runs to do" in story.done.stdout
        and "final: 2 of 2 runs to do" in story.done.stdout
    )


TEST_SET = f"""
import sys
sys.path.insert(0, "{ROOT}/experiments")
import sweep
from keras_vit.train import DataConfig, LoopConfig, PretrainConfig, RunConfig
data = DataConfig(kind="image_folder", name="data")
run = RunConfig(data=data, loop=LoopConfig(total_steps=1))
sweep._check_test_set(PretrainConfig(run=run, model="ViT_Ti16"), sweep.Path("sweep"))
"""


def test_finished_runs_do_not_answer_for_another_test_set(tmp_path: Path):
    """The plan does not contain it, because it may not be opened before the winner is known."""
    write_images(tmp_path / "data" / "train", ("cat", "dog"), 2)
    write_images(tmp_path / "data" / "test", ("cat", "dog"), 2)
    final = tmp_path / "sweep" / "final" / "seed_0"
    final.mkdir(parents=True)
    (tmp_path / "sweep" / "sweep.json").write_text('{"plan": {}}')

    def check() -> subprocess.CompletedProcess:
        line = [sys.executable, "-c", TEST_SET]
        return warm.run(line, env=ENV, cwd=tmp_path, capture_output=True, text=True)

    def assert_accepted() -> None:
        done = check()
        assert done.returncode == 0, done.stderr[-3000:]

    assert_accepted()
    assert read(tmp_path / "sweep" / "sweep.json").keys() == {"plan", "test_sha256"}
    shutil.copy(tmp_path / "data/test/dog/0.png", tmp_path / "data/test/dog/9.png")
    assert_accepted()  # no run has begun
    (final / "config.json").write_text("a run has begun")
    assert_accepted()
    (tmp_path / "data/test/dog/9.png").unlink()
    assert "The test set has changed since the runs in sweep/final were started" in check().stderr


@pytest.mark.slow
def test_the_best_on_the_held_out_part_wins_and_divergence_loses(story: Story):
    values = {
        rate: read(story.workdir / "trials" / f"lr_{rate}" / "results.json")["validation/accuracy"]
        for rate in (0.001, 0.003)
    }
    best = max(values.values())
    expected = min(rate for rate, value in values.items() if value == best)
    report = read(story.workdir / "sweep.json")
    assert report["winner"] == expected
    assert [row["accuracy"] for row in report["grid"]] == [values[0.001], values[0.003], None]
    assert report["grid"][2]["diverged"].startswith("Step ")
    assert "lr_1e+30 diverged" in story.without_test.stdout
    for path in story.workdir.glob("trials/*/config.json"):
        assert read(path)["config"]["run.data.held_out"] == "0.25"
    for path in story.workdir.glob("final/*/config.json"):
        assert read(path)["config"]["run.data.held_out"] == "0.0"
        assert read(path)["config"]["run.optimizer.learning_rate"] == str(expected)


@pytest.mark.slow
def test_each_final_run_is_evaluated_once_at_its_end(story: Story):
    for seed in (0, 1):
        folder = story.workdir / "final" / f"seed_{seed}"
        rows = [
            line
            for line in (folder / "metrics.csv").read_text().splitlines()
            if "validation/accuracy" in line
        ]
        assert len(rows) == 1 and rows[0].startswith("10,")
        assert read(folder / "config.json")["config"]["run.seed"] == str(seed)
        assert "16 examples" in (folder / "report.md").read_text()


@pytest.mark.slow
def test_mean_and_deviation_are_those_of_the_final_runs(story: Story):
    paths = [story.workdir / "final" / f"seed_{seed}" / "results.json" for seed in (0, 1)]
    values = [read(path)["validation/accuracy"] for path in paths]
    test = read(story.workdir / "sweep.json")["test"]
    assert test["values"] == values
    assert test["mean"] == pytest.approx(statistics.mean(values), abs=1e-12)
    assert test["std"] == pytest.approx(statistics.stdev(values), abs=1e-12)
    in_words = f"{statistics.mean(values):.2%} ± {statistics.stdev(values):.2%}"
    page = (story.workdir / "sweep.md").read_text()
    assert in_words in page and in_words in story.done.stdout
    assert "(winner)" in page and "| 1e+30 | diverged |" in page
    with Image.open(story.workdir / "sweep.png") as picture:
        assert picture.size == (1200, 750)


@pytest.mark.slow
def test_runs_go_side_by_side(story: Story):
    output = story.done.stdout
    assert output.index("seed_1 starts") < min(
        output.index(f"seed_{seed} is finished") for seed in (0, 1)
    )


@pytest.mark.slow
def test_the_folder_of_another_sweep_is_refused(story: Story):
    other = sweep(story.recipe, story.workdir, *story.options, "--learning_rates=0.001,0.003,0.01")
    assert other.returncode == 1
    assert (
        "holds another sweep:\n  learning_rates: there [0.001, 0.003, 1e+30], here [0.001, 0.003, "
        "0.01]" in other.stderr
    )


CLAIMS = f"""
import json, sys
sys.path.insert(0, "{ROOT}/experiments")
import sweep
from absl import flags
flags.FLAGS(["sweep.py", "--config=a", "--workdir=b"])
def claim(path, plan, free):
    print(json.dumps([str(path), plan]))
    sys.exit(0)
sweep.make_plan = lambda config: {{"kind": "FinetuneConfig", "learning_rates": [0.1], "seeds": 3}}
sweep.claim = claim
sweep.main(None, sys.argv[1])
"""


def test_the_folder_is_claimed_for_the_whole_plan(tmp_path: Path):
    done = warm.run(
        [sys.executable, "-c", CLAIMS, str(tmp_path)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    plan = {"kind": "FinetuneConfig", "learning_rates": [0.1], "seeds": 3}
    assert json.loads(done.stdout.splitlines()[-1]) == [f"{tmp_path}/sweep.json", plan]


def fabricate(folder: Path, accuracy: float | None) -> None:
    """A run that is over, without the time it takes."""
    folder.mkdir(parents=True)
    if accuracy is None:
        (folder / "trial.json").write_text(
            json.dumps({"diverged": "Step 3: the loss is nan. Try less."})
        )
    else:
        (folder / "results.json").write_text(json.dumps({"validation/accuracy": accuracy}))


COMMANDS = f"""
import json, sys
sys.path.insert(0, "{ROOT}/experiments")
import sweep
from absl import flags
from pathlib import Path
words = [word for word in sys.argv if not word.startswith("--config.")]
flags.FLAGS(words)
sys.argv[0] = "experiments/sweep.py"
config = {{"run": {{"data": {{"kind": "tfds"}}}}}}
plan = {{"kind": "FinetuneConfig", "held_out": 0.25, "config": config}}
grid, final = (sweep._make_trial(plan, Path("w", *where), 0.003, *seed) for where, seed in ((["a"], []), (["b"], [4])))
print(json.dumps([[*each.command, each.name, each.tries] for each in (grid, final)]))
"""


WEIGHTS = f"""
import sys
sys.path.insert(0, "{ROOT}/experiments")
import sweep
from absl import flags
import dataclasses, keras, keras_vit
from keras_vit.train import DataConfig, FinetuneConfig, LoopConfig, RunConfig
from keras_vit.variants import VIT_VARIANTS
flags.FLAGS(sys.argv)
row = {{"patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}}
model = keras_vit.application(dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], **row))
model = model(weights=None, input_shape=(32, 32, 3), classes=2)
run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
config = FinetuneConfig(run=run, model="ViT_Ti16", weights="w.npz", variant=row, image_size=32)
for shift in (0, 0, 1):
    model.get_layer("embedding").bias.assign_add(shift * keras.ops.ones(16))
    keras_vit.save_checkpoint(model, "w.npz")
    print(sweep.make_plan(config)["config"]["weights"])
"""


def test_other_weights_under_the_same_path_are_another_sweep(tmp_path: Path):
    options = ["--config=r.py", "--workdir=sweep", "--learning_rates=0.1", "--held_out=0.25"]
    done = warm.run(
        [sys.executable, "-c", WEIGHTS, *options],
        env=ENV,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, same, other = done.stdout.splitlines()[-3:]
    assert first.startswith("w.npz, sha256 ") and other.startswith("w.npz, sha256 ")
    assert first == same != other


PLANS = f"""
import json, sys
sys.path.insert(0, "{ROOT}/experiments")
import sweep
from absl import flags
from absl.testing import flagsaver
from keras_vit.train import DataConfig, LoopConfig, PretrainConfig, RunConfig
run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
for given in ([], ["--learning_rates=0.5,0.25"], ["--held_out=0.125"]):
    with flagsaver.flagsaver():
        flags.FLAGS([*sys.argv, *given])
        plan = sweep.make_plan(PretrainConfig(run=run, model="ViT_Ti16"))
        print(json.dumps([plan["learning_rates"], plan["held_out"]]))
"""


def test_the_recipe_gives_only_what_the_flags_do_not_give(recipe: Path, tmp_path: Path):
    recipe.write_text(RECIPE + SWEEP)
    line = [sys.executable, "-c", PLANS, f"--config={recipe}:smoke", f"--workdir={tmp_path}"]
    done = warm.run(line, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads(plan) for plan in done.stdout.splitlines()[-3:]] == [
        [[0.001, 0.003, 1e30], 0.25],
        [[0.25, 0.5], 0.25],
        [[0.001, 0.003, 1e30], 0.125],
    ]


def test_the_grid_is_held_out_from_and_the_final_runs_learn_from_all_and_are_tested_at_their_end(
    tmp_path: Path,
):
    options = [
        "--config=r.py:pets",
        f"--workdir={tmp_path}",
        "--config.run.batch_size=8",
        "--config.variant.depth=3",
    ]
    done = warm.run(
        [sys.executable, "-c", COMMANDS, *options], env=ENV, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (*grid, _, of_grid), (*final, name, of_final) = json.loads(done.stdout.splitlines()[-1])
    same = ["experiments/finetune.py", "--config=r.py:pets"]
    changed = [
        "--config.run.batch_size=8",
        "--config.variant.depth=3",
        "--config.run.optimizer.learning_rate=0.003",
    ]
    unnamed = ["--config.run.data.held_out=0.25", "--config.run.data.test=''"]
    assert grid == [*same, "--workdir=w/a", *changed, *unnamed]
    whole = [
        "--config.run.data.held_out=0.0",
        "--config.run.seed=4",
        "--config.run.loop.evaluate_every=0",
    ]
    assert final == [*same, "--workdir=w/b", *changed, *whole] and name == "b"
    assert (of_grid, of_final) == (
        {"learning_rate": 0.003, "seed": None},
        {"learning_rate": 0.003, "seed": 4},
    )


def test_of_equals_the_smaller_rate_wins(recipe: Path, tmp_path: Path):
    for rate, accuracy in ((0.001, 0.5), (0.003, 0.75), (0.01, 0.75), (0.03, None)):
        fabricate(tmp_path / "sweep" / "trials" / f"lr_{rate}", accuracy)
    for seed, accuracy in enumerate((0.7, 0.8, 0.9)):
        fabricate(tmp_path / "sweep" / "final" / f"seed_{seed}", accuracy)
    done = sweep(
        recipe, tmp_path / "sweep", "--learning_rates=0.03,0.01,0.003,0.001", "--held_out=0.1"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = read(tmp_path / "sweep" / "sweep.json")
    assert report["winner"] == 0.003
    assert (report["test"]["mean"], report["test"]["std"]) == (
        pytest.approx(0.8),
        pytest.approx(0.1),
    )
    assert "80.00% ± 10.00%" in done.stdout


def test_a_sweep_in_which_all_diverge_fails(recipe: Path, tmp_path: Path):
    for rate in (1.0, 10.0):
        fabricate(tmp_path / "sweep" / "trials" / f"lr_{rate}", None)
    done = sweep(recipe, tmp_path / "sweep", "--learning_rates=1,10", "--held_out=0.1")
    assert done.returncode == 1
    assert "All learning rates diverged" in done.stderr and "Traceback" not in done.stderr
    assert (
        "| 10.0 | diverged | Step 3: the loss is nan |"
        in (tmp_path / "sweep" / "sweep.md").read_text()
    )


def test_all_mistakes_are_named_at_once(recipe: Path, tmp_path: Path):
    options = [
        "--learning_rates=0.1,0.1,-1",
        "--held_out=1",
        "--seeds=0",
        "--parallel=0",
        "--config.run.data.test=",
    ]
    done = sweep(recipe, tmp_path / "sweep", *options, "--config.run.optimizer.learning_rate=1")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    for message in (
        "Learning rates must be finite and greater than 0. Received: [-1.0]",
        "Learning rates must differ from each other",
        "`--held_out` must be between 0 and 1",
        "`--seeds` must be at least 1",
        "`--parallel` must be at least 1",
        "A sweep needs a test set: name one with --config.run.data.test=NAME",
        "The sweep sets `run.optimizer.learning_rate` itself: use --learning_rates",
    ):
        assert message in done.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--learning_rates=", "--held_out=0.1"],
            "The grid is empty: name a learning rate, such as --learning_rates=",
        ),
        (
            ["--learning_rates=fast", "--held_out=0.1"],
            "Learning rates must be numbers, such as --learning_rates=",
        ),
        (
            ["--held_out=0.1"],
            "has no function `get_sweep(arg)`. Set both the grid",
        ),
    ],
)
def test_a_grid_that_is_none_is_told(
    recipe: Path, tmp_path: Path, options: list[str], message: str
):
    done = sweep(recipe, tmp_path / "sweep", *options)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr, done.stderr[-3000:]


def test_a_winner_at_the_edge_and_a_change_of_versions_are_told(recipe: Path, tmp_path: Path):
    folder = tmp_path / "sweep"
    for rate, accuracy in ((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)):
        fabricate(folder / "trials" / f"lr_{rate}", accuracy)
    for seed in range(3):
        fabricate(folder / "final" / f"seed_{seed}", 0.7)
    options = ["--learning_rates=0.1,0.2,0.3", "--held_out=0.1"]
    done = sweep(recipe, folder, *options)
    assert (
        "0.3: 70.00% on the held-out part. It is at the edge of the grid: try larger" in done.stdout
    )
    page, keras = (folder / "sweep.md").read_text(), f"Keras {version('keras')}"
    assert "try larger learning rates too" in page and keras in page
    assert page.count("Keras ") == 1
    found = json.loads((folder / "sweep.json").read_text())
    (folder / "trials" / "lr_0.1" / "config.json").write_text("{}")  # a run has begun
    (before,) = found["versions"]
    found["versions"] = [{**before, "Keras": "2.9"}]
    (folder / "sweep.json").write_text(json.dumps({**found, "process": None}))
    (folder / "trials" / "lr_0.3" / "results.json").write_text('{"validation/accuracy": 0.55}')
    done = sweep(recipe, folder, *options)
    assert "started with other versions" in done.stdout
    assert "edge of the grid" not in done.stdout
    page = (folder / "sweep.md").read_text()
    assert "Keras 2.9" in page and keras in page and "try larger" not in page


def test_a_missing_test_set_is_told_before_the_grid_and_runs_without_a_plan_are_refused(
    recipe: Path, tmp_path: Path
):
    folder, options = tmp_path / "sweep", ["--learning_rates=0.1", "--held_out=0.1"]
    data = ["--config.run.data.kind=image_folder", f"--config.run.data.name={tmp_path}"]
    done = sweep(recipe, folder, *options, *data)
    assert done.returncode == 1 and f"There is no folder {tmp_path}/test: name the" in done.stderr
    (folder / "trials" / "lr_0.1").mkdir(parents=True)
    (folder / "trials" / "lr_0.1" / "config.json").write_text("{}")
    done = sweep(recipe, folder, *options)
    assert done.returncode == 1 and "but no sweep.json that tells of which sweep" in done.stderr
