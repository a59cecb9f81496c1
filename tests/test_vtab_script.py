"""VTAB through the script, as a user starts it: killed, stopped, gone on with, and what comes out
in the end.

The data sets are small ones on the disk, laid down by TensorFlow Datasets in the features of its
own builders.
"""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

import keras_vit
from keras_vit.variants import VIT_VARIANTS

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("matplotlib")

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1"}
TASKS = ["dtd", "clevr_count", "dsprites_location"]
# Long enough to be killed and stopped in the middle, with a checkpoint every 20 steps.
OPTIONS = ["--smoke", "--config.run.loop.total_steps=200", "--config.run.loop.checkpoint_every=20"]


def command(data: Path, workdir: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        f"{ROOT}/experiments/vtab.py",
        f"--data_dir={data}",
        f"--workdir={workdir}",
        *options,
    ]


def started(data: Path, workdir: Path, *options: str) -> subprocess.Popen:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return warm.Popen(command(data, workdir, *options), env=ENV, **streams)


def vtab(data: Path, workdir: Path, *options: str) -> subprocess.CompletedProcess:
    return warm.run(
        command(data, workdir, *options),
        env=ENV,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )


def pixels(label: int, draws: np.random.Generator) -> np.ndarray:
    """Noise whose brightness tells the label."""
    return np.clip(draws.normal(15 + 30 * (label % 8), 25, (8, 8, 3)), 0, 255).astype(np.uint8)


def png(image: np.ndarray) -> io.BytesIO:
    return io.BytesIO(tf.io.encode_png(image).numpy())


def texture(number: int, draws: np.random.Generator) -> dict[str, Any]:
    label = number % 47
    return {"image": png(pixels(label, draws)), "label": label, "file_name": str(number)}


def scene(number: int, draws: np.random.Generator) -> dict[str, Any]:
    count = 3 + number % 8
    thing = {"color": "red", "material": "metal", "shape": "cube", "size": "large", "rotation": 0.0}
    things = [
        {**thing, "3d_coords": [0.0] * 3, "pixel_coords": [1.0, 1.0, 9.0]} for _ in range(count)
    ]
    questions = [{"question": "How many?", "answer": "Some."}]
    return {
        "image": png(pixels(count, draws)),
        "file_name": str(number),
        "objects": things,
        "question_answer": questions,
    }


def sprite(number: int, draws: np.random.Generator) -> dict[str, Any]:
    place = number % 32
    image = np.zeros((64, 64, 1), np.uint8)
    image[20:40, 2 * place : 2 * place + 2] = 1
    names = ("shape", "scale", "orientation", "x_position", "y_position")
    facts = {f"label_{name}": 0 for name in names} | {f"value_{name}": 0.0 for name in names}
    return {**facts, "image": png(image), "label_x_position": place, "id": str(number)}


# Name, version, an example, sizes of the splits: 800 to learn from, and 200 in what VTAB makes its
# validation set.
SETS = (
    ("dtd", "3.0.1", texture, {"train": 810, "validation": 205, "test": 90}),
    ("clevr", "3.1.0", scene, {"train": 2000, "validation": 70}),
    ("dsprites", "2.1.0", sprite, {"train": 2000}),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    for name, version, example_of, sizes in SETS:
        lay_down(folder, name, version, example_of, sizes)
    return folder


def lay_down(
    folder: Path, name: str, version: str, example_of: Callable, sizes: dict[str, int]
) -> None:
    real = tfds.builder_cls(name)
    with tfds.core.registered.skip_registration():

        class Small(real):
            VERSION = tfds.core.Version(version)
            SUPPORTED_VERSIONS = []

            def _split_generators(self, dl_manager):
                return {
                    split: self._generate_examples(split, size) for split, size in sizes.items()
                }

            def _generate_examples(self, split, size) -> Iterator[tuple[int, dict]]:
                draws = np.random.default_rng(len(split))
                for number in range(size):
                    yield number, example_of(number, draws)

    Small.name = name
    Small(data_dir=folder).download_and_prepare(file_format="tfrecord")


def steps(folder: Path) -> list[str]:
    """Names of the checkpoints that are whole."""
    found = (folder / "checkpoints").glob("*") if (folder / "checkpoints").is_dir() else ()
    return sorted(path.name for path in found if not path.name.startswith("."))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HUNG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def outcome(workdir: Path, *names: str) -> dict[str, bytes]:
    """Everything that must not depend on when a run was interrupted."""
    paths = [workdir / "vtab.csv", workdir / "vtab.md", workdir / "vtab.png"]
    paths += [workdir / task / name for task in TASKS for name in ("result.json", "model.npz")]
    return {str(path.relative_to(workdir)): path.read_bytes() for path in paths}


@dataclass
class Story:
    data: Path
    workdir: Path
    at_once: subprocess.CompletedProcess
    expected: dict[str, bytes]
    first: tuple[bytes, int]  # the result of the first task when the second was killed
    checkpoint: str  # the newest of the second task then
    had_result: bool
    stopped: subprocess.CompletedProcess
    done: subprocess.CompletedProcess


def stamp(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mtime_ns


@pytest.fixture(scope="module")
def story(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The three tasks at once; and in another folder killed in the second, stopped in it too, then
    finished.
    """
    root = tmp_path_factory.mktemp("runs")
    options, second = [*OPTIONS, f"--tasks={','.join(TASKS)}"], root / "parts" / TASKS[1]
    at_once = vtab(data, root / "at_once", *options)
    assert at_once.returncode == 0, at_once.stderr[-3000:]

    killed = started(data, root / "parts", *options)
    wait_for(lambda: steps(second) or killed.poll() is not None)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    first, newest, had_result = (
        stamp(root / "parts" / TASKS[0] / "result.json"),
        steps(second)[-1],
        False,
    )
    had_result = (second / "result.json").exists()

    stopped = started(data, root / "parts", *options)
    wait_for(lambda: steps(second)[-1:] > [newest] or stopped.poll() is not None)
    stopped.send_signal(signal.SIGTERM)
    output, errors = stopped.communicate(timeout=HUNG_SECONDS)
    stopped = subprocess.CompletedProcess(stopped.args, stopped.returncode, output, errors)
    done = vtab(data, root / "parts", *options)
    expected = outcome(root / "at_once")
    return Story(data, root / "parts", at_once, expected, first, newest, had_result, stopped, done)


def test_a_killed_run_goes_on_from_its_checkpoint(story: Story):
    assert not story.had_result
    assert (
        f"Resuming from step {int(''.join(filter(str.isdigit, story.checkpoint)))} of 200"
        in story.stopped.stderr
    )
    assert "3 tasks, 1 already finished." in story.stopped.stdout


def test_a_stopped_run_saves_and_says_so_with_its_code(story: Story):
    assert story.stopped.returncode == 75, story.stopped.stderr[-3000:]
    assert "Stopped by SIGTERM after step" in story.stopped.stderr
    assert "Traceback" not in story.stopped.stderr


def test_a_finished_task_is_left_alone(story: Story):
    assert story.done.returncode == 0, story.done.stderr[-3000:]
    assert stamp(story.workdir / TASKS[0] / "result.json") == story.first
    assert (
        "[1/2] Clevr-Count: 1,000 training images, 70 evaluation images (test)" in story.done.stdout
    )
    assert (
        "[2/2] dSpr-Loc: 1,000 training images, 200 evaluation images (test)" in story.done.stdout
    )


def test_the_interrupted_run_ends_with_the_same_bits(story: Story):
    found = outcome(story.workdir)
    assert [name for name in found if found[name] != story.expected[name]] == []


def test_the_tasks_are_learned(story: Story):
    """Chance is one in 8 and one in 16; the labels can be read off the images."""
    shares = {
        task: json.loads(story.expected[f"{task}/result.json"])["numbers"]["top1"] for task in TASKS
    }
    assert shares["clevr_count"] > 0.4 and shares["dsprites_location"] > 0.12
    assert f"vtab/clevr_count: {shares['clevr_count']:.2%}" in story.done.stdout
    page = (story.workdir / "vtab.md").read_text()
    assert "3 of the 19 tasks of VTAB" in page and "VTAB (3 of 19 tasks)" in page
    assert "vtab/mean" not in story.done.stdout


def test_flips_and_crops_are_off_where_they_would_change_the_label(story: Story):
    def settings(task: str) -> tuple[str, str]:
        config = json.loads((story.workdir / task / "config.json").read_text())["config"]
        return config["run.data.flip"], config["run.data.crop"]

    assert settings("clevr_count")[1] == settings("dsprites_location")[1] == "'resize'"
    assert settings("dtd")[1] == "'inception'"
    assert settings("dsprites_location")[0] == "False"


def test_weights_stay_and_checkpoints_of_finished_tasks_go(story: Story):
    assert not list(story.workdir.glob("*/checkpoints"))
    assert len(list(story.workdir.glob("*/model.npz"))) == 3


def test_a_run_killed_while_it_measured_is_not_trained_again(story: Story):
    path = story.workdir / "clevr_count" / "result.json"
    before, weights = path.read_bytes(), stamp(story.workdir / "clevr_count" / "model.npz")
    path.unlink()
    again = vtab(story.data, story.workdir, *OPTIONS, f"--tasks={','.join(TASKS)}")
    assert again.returncode == 0, again.stderr[-3000:]
    assert path.read_bytes() == before
    assert stamp(story.workdir / "clevr_count" / "model.npz") == weights


def test_another_setting_in_the_same_folder_is_refused(story: Story):
    other = vtab(
        story.data,
        story.workdir,
        "--smoke",
        "--tasks=dtd",
        "--config.run.optimizer.learning_rate=0.03",
    )
    assert other.returncode == 1 and "Traceback" not in other.stderr
    assert "contains another VTAB run:\n" in other.stderr
    assert "run.optimizer.learning_rate: there 0.01, here 0.03" in other.stderr


def test_missing_data_are_said_before_anything_runs(data: Path, tmp_path: Path):
    missing = vtab(data, tmp_path / "run", "--smoke", "--tasks=dtd,resisc45")
    assert missing.returncode == 1 and "Traceback" not in missing.stderr
    assert "data on disk: DTD\n  manual download needed: Resisc45" in missing.stdout
    assert (
        "resisc45: This data set needs a manual download." in missing.stderr
        and "downloads/manual" in missing.stderr
    )
    assert not (tmp_path / "run").exists()


def test_mistakes_of_the_command_line_are_told(data: Path, tmp_path: Path):
    for option, message in (
        ("--tasks=clevr", "There is no task 'clevr'. Did you mean clevr_count"),
        ("--model=ViT_B15", "There is no model 'ViT_B15'. Did you mean ViT_B16"),
        ("--weights=absent.npz", "there is no such file"),
        ("--model=absent.keras", "There is no file absent.keras"),
        ("--config.run.data.held_out=0.1", "leave out --config.run.data.held_out"),
    ):
        wrong = vtab(data, tmp_path / "run", "--smoke", "--tasks=dtd", option)
        assert (
            wrong.returncode == 1 and message in wrong.stderr and "Traceback" not in wrong.stderr
        ), wrong.stderr
    assert not (tmp_path / "run").exists()


def test_a_setting_is_chosen_on_a_folder_of_your_own_without_its_test_set(tmp_path: Path):
    draws = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 3)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for number in range(count):
                image = pixels(4 * label, draws)
                content = tf.io.encode_png(image).numpy() if part == "train" else b"a trap"
                (tmp_path / "pets" / part / name / f"{number}.png").write_bytes(content)
    task = [f"--tasks=folder:{tmp_path}/pets", "--smoke", "--config.run.data.strict=True"]
    tuned = vtab(tmp_path, tmp_path / "tuned", *task, "--tune")
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    assert "pets: 48 training images, 12 evaluation images (validation)" in tuned.stdout
    tested = vtab(tmp_path, tmp_path / "tested", *task)
    assert tested.returncode == 1 and "cannot be read: " in tested.stderr


def test_a_file_of_keras_is_fine_tuned_on_the_tasks(data: Path, tmp_path: Path):
    row = dataclasses.replace(
        VIT_VARIANTS["ViT_Ti16"], depth=1, patch_size=8, width=16, num_heads=2, mlp_dim=32
    )
    keras_vit.application(row)(weights=None, classes=3, input_shape=(24, 24, 3)).save(
        tmp_path / "own.keras"
    )
    done = vtab(data, tmp_path / "run", "--smoke", "--tasks=dtd", f"--model={tmp_path}/own.keras")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        "own.keras" in (tmp_path / "run/dtd/config.json").read_text()
        and "vtab/dtd: " in done.stdout
    )
    assert (tmp_path / "run/vtab.md").read_text().startswith("# VTAB-1k: own from sha256 ")
    twice = vtab(
        data,
        tmp_path / "x",
        "--smoke",
        "--tasks=dtd",
        f"--model={tmp_path}/own.keras",
        "--weights=none",
    )
    assert twice.returncode == 1 and "contains its weights: leave out --weights" in twice.stderr
