"""Whole runs through the scripts, as a user starts them: pre-train, fine-tune from it, and what can
go wrong.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
Image = pytest.importorskip("PIL.Image")

import keras_vit  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.data.pipeline import Share  # noqa: E402
from keras_vit.devices import Devices, DevicesConfig  # noqa: E402
from keras_vit.folder_lock import lock_folder  # noqa: E402
from keras_vit.train import (  # noqa: E402
    DataConfig,
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    inputs,
    workdir,
)
from keras_vit.train import run as running  # noqa: E402
from keras_vit.train.config import flatten_config, row_of  # noqa: E402
from keras_vit.train.inputs import make_sources, preview  # noqa: E402

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[2]


def script(
    name: str, recipe: str, workdir: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess:
    recipe = f"--config={ROOT}/experiments/configs/{recipe}"
    command = [
        sys.executable,
        f"{ROOT}/experiments/{name}.py",
        recipe,
        f"--workdir={workdir}",
        *options,
    ]
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1", **environment}
    return warm.run(command, env=env, capture_output=True, text=True, timeout=HUNG_SECONDS)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("pretrained")
    done = script("pretrain", "cifar10_scratch.py:smoke", workdir)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^state sha256: [0-9a-f]{64}$", done.stdout, re.MULTILINE)
    return workdir


def test_a_run_leaves_what_people_look_for(pretrained: Path):
    names = {path.name for path in pretrained.iterdir()}
    files = {
        "checkpoints",
        "config.json",
        "learning_curve.png",
        "metrics.csv",
        "model.npz",
        "report.md",
        "tensorboard",
    }
    files |= {"results.json"}
    assert names == files
    config = json.loads((pretrained / "config.json").read_text())
    assert config["config"]["run.seed"] == "0" and config["versions"]["Keras"]
    report = (pretrained / "report.md").read_text()
    assert (
        "pretrain.py" in report
        and "cifar10_scratch.py:smoke" in report
        and "state_sha256" in report
    )
    assert "unreadable images" in report and "digits train, 1437 examples" in report
    with Image.open(pretrained / "learning_curve.png") as picture:
        assert picture.size[0] > 300


def test_the_weights_can_be_fine_tuned_at_another_size(pretrained: Path, tmp_path):
    done = script(
        "finetune", "finetune.py:smoke", tmp_path, f"--config.weights={pretrained}/model.npz"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "model.npz") as arrays:
        assert arrays["head/kernel"].shape == (32, 10)


@pytest.mark.slow
def test_a_folder_of_images_with_one_broken_file(tmp_path):
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = (
                    np.random.RandomState(number)
                    .randint(0, 256, (20 + number, 30, 3))
                    .astype("uint8")
                )
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    broken = tmp_path / "data" / "train" / "cat" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    options = ("--config.run.data.kind=image_folder", f"--config.run.data.name={tmp_path}/data")
    done = script("pretrain", "cifar10_scratch.py:smoke", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"1: {broken}" in (tmp_path / "run" / "report.md").read_text()
    assert str(broken) in done.stderr
    strict = script(
        "pretrain",
        "cifar10_scratch.py:smoke",
        tmp_path / "strict",
        *options,
        "--config.run.data.strict=True",
    )
    assert strict.returncode == 1
    assert f"{broken} cannot be read: " in strict.stderr
    assert "Traceback" not in strict.stderr


class Seen(Exception):
    """Ends a run before it trains."""


def test_training_images_of_the_test_set_are_dropped(tmp_path, tiny_vit, monkeypatch):
    for split, first in (("train", 0), ("test", 5)):  # number 5 is in both
        for label, shift in (("cat", 0), ("dog", 100)):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            for number in range(first, first + 6):
                pixels = (
                    np.random.RandomState(number + shift).randint(0, 256, (6, 6, 3)).astype("uint8")
                )
                Image.fromarray(pixels).resize((40, 40)).save(folder / f"{number}.png")

    def end(training, *_, **__):
        raise Seen(training.num_examples)

    monkeypatch.setattr(running, "make_inputs", end)
    monkeypatch.setitem(keras_vit.variants.VARIANTS, "ViT_Ti16", tiny_vit)
    data = DataConfig(kind="image_folder", name=f"{tmp_path}/data", drop_duplicates=True)
    settings = RunConfig(data=data, loop=LoopConfig(total_steps=1))
    for drops, left in ((True, 10), (False, 12)):
        config = PretrainConfig(
            model="ViT_Ti16",
            image_size=16,
            run=replace(settings, data=replace(data, drop_duplicates=drops)),
        )
        with pytest.raises(Seen, match=f"^{left}$"):
            keras_vit.train.pretrain(config, tmp_path / f"run_{left}")
    found = (tmp_path / "run_10" / "duplicates.md").read_text()
    assert "train/cat/5.png" in found and "train/dog/5.png" in found and "4.png" not in found
    assert not (tmp_path / "run_12" / "duplicates.md").exists()


@pytest.mark.slow
def test_a_batch_that_replicas_do_not_divide_is_filled_up(tmp_path):
    options = [
        "--config.run.batch_size=10",
        "--config.run.accumulation_steps=4",
        "--config.run.loop.total_steps=3",
    ]
    done = script("pretrain", "cifar10_scratch.py:smoke", tmp_path, *options)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("finetune", [], "is a recipe for another script: it returns a PretrainConfig"),
        (
            "pretrain",
            ["--config.run.optimizer.learning_rat=1"],
            "Did you mean run.optimizer.learning_rate",
        ),
        (
            "pretrain",
            ["--config.run.data.kind=image_folder", "--config.run.data.name=/nowhere"],
            "There is no folder",
        ),
        (
            "pretrain",
            ["--config.model=ViT_B17"],
            "There is no model 'ViT_B17'. Did you mean ViT_B16",
        ),
        (
            "pretrain",
            ["--config.variant.breadth=3"],
            "has no field breadth. Fields: name, patch_size",
        ),
        ("pretrain", ["--config.run.data.crop=centre"], "centre"),
    ],
)
def test_mistakes_are_one_line(tmp_path, name: str, options: list[str], message: str):
    done = script(name, "cifar10_scratch.py:smoke", tmp_path, *options)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr, done.stderr[-2000:]


def test_the_folder_of_another_run_is_refused(pretrained: Path):
    done = script("pretrain", "cifar10_scratch.py:smoke", pretrained, "--config.run.batch_size=8")
    assert done.returncode == 1
    assert "contains a run with another config:\n  run.batch_size: there 32, here 8" in done.stderr


def test_a_folder_in_which_another_process_trains_is_refused(pretrained: Path):
    before = {path: path.stat().st_mtime_ns for path in pretrained.rglob("*")}
    with lock_folder(pretrained):
        done = script("pretrain", "cifar10_scratch.py:smoke", pretrained)
    assert done.returncode == 1 and "ValueError: Another run is using" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in pretrained.rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


@pytest.mark.slow
def test_a_recipe_for_another_model_is_refused(pretrained: Path, tmp_path):
    weights = f"--config.weights={pretrained}/model.npz"
    done = script("finetune", "finetune.py:smoke", tmp_path, weights, "--config.variant.width=48")
    assert done.returncode == 1
    assert "48" in done.stderr and "Traceback" not in done.stderr, done.stderr[-2000:]


def two_classes(folder: Path, count: int = 3) -> Path:
    for number in range(count):
        for label in ("cat", "dog"):
            pixels = np.random.RandomState(number).randint(0, 256, (9, 8, 3)).astype("uint8")
            (folder / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def replace_one(folder: Path) -> None:
    """By another image of the same size in bytes, under the same name."""
    path = folder / "cat" / "1.png"
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes(20))


CHANGES = {
    "nothing": lambda folder: None,
    "an image is replaced": replace_one,
    "an image is added": lambda folder: shutil.copy2(
        folder / "cat" / "1.png", folder / "dog" / "9.png"
    ),
    "an image is removed": lambda folder: (folder / "dog" / "2.png").unlink(),
    "an image is moved": lambda folder: (folder / "dog" / "2.png").rename(folder / "cat" / "7.png"),
}


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_folder_of_a_run_is_refused_when_the_data_have_changed(
    tmp_path: Path, change: str, part: str
):
    for name in ("train", "test"):
        two_classes(tmp_path / name)
    data = DataConfig(kind="image_folder", name=str(tmp_path))
    config, chief = (
        RunConfig(data=data, loop=LoopConfig(total_steps=2)),
        Devices(kind="one", num_replicas=1),
    )
    (tmp_path / "run").mkdir()
    workdir.claim(tmp_path / "run", config, make_sources(data, seed=0), chief)
    CHANGES[change](tmp_path / part)
    found = make_sources(data, seed=0)
    if change == "nothing":
        assert workdir.check_folder(tmp_path / "run", config, found)
        return
    with pytest.raises(
        ValueError, match=f"The data have changed since the run in {tmp_path}/run was started"
    ):
        workdir.claim(tmp_path / "run", config, found, chief)
    other_worker = replace(chief, num_workers=2, worker_index=1)  # whose files may be copies
    workdir.claim(tmp_path / "run", config, found, other_worker)


def test_the_hash_of_data_is_that_of_their_contents(tmp_path: Path):
    pixels, labels = np.zeros((4, 2, 2), "uint8"), np.array([0, 1, 0, 1])
    base = sources.arrays(pixels, labels)
    others = [
        sources.arrays(pixels + np.uint8(1), labels),
        sources.arrays(pixels, np.array([0, 0, 1, 1])),
        sources.arrays(pixels, labels, ["a", "b"]),
        base.subset([0, 1, 2]),
        base.subset([0, 1, 3, 2]),
        base.relabelled([1, 0], ["0", "1"]),
        sources.fractals(3, images_per_class=4, image_size=16),
        sources.fractals(3, images_per_class=4, image_size=32),
    ]
    assert base.sha256() == sources.arrays(pixels, labels).sha256()
    assert len({source.sha256() for source in (base, *others)}) == 1 + len(others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrain", "masked_patches"])
def test_a_run_that_was_stopped_does_not_go_on_with_other_data(tmp_path: Path, name: str):
    for split in ("train", "test"):
        two_classes(tmp_path / "data" / split)
    options = ("--config.run.data.kind=image_folder", f"--config.run.data.name={tmp_path}/data")
    config = "cifar10_scratch.py:smoke" if name == "pretrain" else "masked_patches.py:smoke"
    done = script(name, config, tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.copy2(
        tmp_path / "data" / "train" / "cat" / "1.png", tmp_path / "data" / "train" / "dog" / "9.png"
    )
    again = script(name, config, tmp_path / "run", *options)
    assert again.returncode == 1 and "Traceback" not in again.stderr
    assert f"The data have changed since the run in {tmp_path}/run was started" in again.stderr


def test_fractals_keep_instances_for_validation():
    data = DataConfig(kind="fractals", num_classes=3, images_per_class=40, image_size=16)
    train, test = make_sources(data, seed=0)
    assert (train.num_examples, test.num_examples) == (3 * 36, 3 * 4)
    assert train.class_names == test.class_names


def test_the_fractals_of_a_run_follow_its_seed():
    data = DataConfig(kind="fractals", num_classes=2, images_per_class=2, image_size=8)
    pictures = [
        part.read(tf.constant(0, tf.int64))[0].numpy().tobytes()
        for seed in (0, 1)
        for part in make_sources(data, seed=seed)
    ]
    assert len(set(pictures)) == 4


def test_the_classes_of_the_validation_are_those_of_the_training(tmp_path):
    """The folder of the validation may have no photo of the first class, or other classes."""
    two_classes(tmp_path / "train", count=1)
    two_classes(tmp_path / "test", count=1)
    (tmp_path / "test" / "cat").rename(tmp_path / "test" / "ant")
    _, test = make_sources(DataConfig(kind="image_folder", name=str(tmp_path)), seed=0)
    assert test.class_names == ("cat", "dog") and test.labels.tolist() == [1]


def test_each_split_of_tensorflow_datasets_has_its_part_in_the_run(monkeypatch):
    pixels, labels = np.zeros((2, 4, 4), "uint8"), np.array([0, 1])
    monkeypatch.setattr(
        sources, "tfds", lambda name, split: sources.arrays(pixels, labels, name=f"{name} {split}")
    )
    data = DataConfig(kind="tfds", name="cifar10", train="train[:90%]", test="train[90%:]")
    train, test = make_sources(data, seed=0)
    assert (train.name, test.name) == ("cifar10 train[:90%]", "cifar10 train[90%:]")


def test_a_folder_without_a_test_set_is_told_how_to_go_without(tmp_path):
    for number in range(2):
        folder = tmp_path / "train" / "abc"[number]
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "1.png")
    data = DataConfig(kind="image_folder", name=str(tmp_path))
    with pytest.raises(
        ValueError,
        match="for the validation. Name another with .* or disable validation: "
        "--config.run.data.test=",
    ):
        make_sources(data, seed=0)
    data = DataConfig(kind="image_folder", name=str(tmp_path), test="")
    train, test = make_sources(data, seed=0)
    assert train.num_examples == 2 and test is None


def test_the_weights_that_are_left_are_the_averages(tmp_path, tiny_vit, monkeypatch):
    def train(learner, *_, **__) -> dict:
        for average in learner.optimizer.averages:
            average.assign_add(keras.ops.ones(average.shape))
        return {"validation/accuracy": 0.5, "state_sha256": "0"}

    def build(num_classes: int) -> keras.Model:
        built = keras_vit.application(tiny_vit)
        models.append(
            built(
                weights=None,
                input_shape=(16, 16, 3),
                classes=num_classes,
                classifier_activation=None,
            )
        )
        return models[-1]

    models: list[keras.Model] = []
    monkeypatch.setattr(running, "train", train)
    monkeypatch.setattr(running, "write_report", lambda *_, **__: None)
    config = RunConfig(
        data=DataConfig(kind="digits"),
        loop=LoopConfig(total_steps=1),
        optimizer=OptimizerConfig(average_momentum=0.9),
        devices=DevicesConfig(kind="one"),
    )
    procedure = running.Procedure(title="title", build=build, image_size=16)
    running.run(PretrainConfig(run=config), tmp_path, procedure)
    assert not models[0].get_layer("predictions").get_weights()[1].any()  # given back
    with np.load(tmp_path / "model.npz") as arrays:
        assert (arrays["head/bias"] == 1).all() and arrays["head/bias"].shape == (10,)
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "validation/accuracy": 0.5,
        "state_sha256": "0",
    }


@pytest.mark.parametrize("collector", ["unreadable", "unreadable_validation"])
def test_an_image_that_ends_a_run_is_named(tmp_path, monkeypatch, collector: str):
    """The image may belong to the training set or to the validation set."""

    def train(learner, model, training_batches, *_, **__):
        with suppress(ValueError):  # tf.data raises another error in its place
            getattr(training_batches.__self__, collector).add(np.array([0]))
        raise RuntimeError("what tf.data makes of it")

    def build(num_classes: int) -> keras.Model:
        pixels = keras.Input((8, 8, 3))
        head = keras.layers.Dense(num_classes, name="predictions")
        return keras.Model(pixels, head(keras.layers.Flatten()(pixels)))

    monkeypatch.setattr(running, "train", train)
    config = RunConfig(
        data=DataConfig(kind="digits", strict=True),
        loop=LoopConfig(total_steps=1),
        devices=DevicesConfig(kind="one"),
    )
    procedure = running.Procedure(title="title", build=build, image_size=8)
    name = {"unreadable": "train", "unreadable_validation": "test"}[collector]
    with pytest.raises(ValueError, match=rf"^digits {name}\[0\] cannot be read: "):
        running.run(PretrainConfig(run=config), tmp_path, procedure)


def record_calls(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, *, ends: bool = False):
    """The positional and named arguments of each call, which is made, unless the first `ends`."""
    calls: list[tuple[tuple, dict]] = []
    function = getattr(where, name)

    def call(*arguments, **named):
        calls.append((arguments, named))
        if ends:
            raise Seen
        return function(*arguments, **named)

    monkeypatch.setattr(where, name, call)
    return calls


def test_each_setting_of_a_run_reaches_the_step(tiny_vit, tmp_path, monkeypatch):
    """All settings differ from their defaults."""
    steps = record_calls(monkeypatch, running, "make_learner", ends=True)
    optimizers = record_calls(monkeypatch, running, "make_optimizer")
    seeds = record_calls(monkeypatch, keras.utils, "set_random_seed")
    pretraining = sys.modules["keras_vit.train.pretrain"]
    biases = record_calls(monkeypatch, pretraining, "default_head_bias")
    monkeypatch.setitem(keras_vit.variants.VARIANTS, "ViT_Ti16", tiny_vit)
    settings = RunConfig(
        data=DataConfig(kind="digits"),
        loop=LoopConfig(total_steps=7),
        optimizer=OptimizerConfig(name="adamw", clip_norm=0.5),
        devices=DevicesConfig(kind="one", precision="mixed_float16", jit_compile=True),
        batch_size=6,
        accumulation_steps=4,
        remat=True,
        loss="sigmoid",
        label_smoothing=0.3,
        seed=5,
    )
    config = PretrainConfig(run=settings, model="ViT_Ti16", image_size=16)
    with pytest.raises(Seen):
        keras_vit.train.pretrain(config, tmp_path)
    (((model, optimizer), found),) = steps
    objective = found.pop("objective")
    assert found == {
        "batch_rows": 8,  # 6, filled up to whole micro-batches
        "accumulation_steps": 4,
        "remat": True,
        "clip_norm": 0.5,
        "num_replicas": 1,
        "num_workers": 1,
        "jit_compile": True,
    }
    logits = np.array([[2.0, -1.0, 1.5]], "float32")
    targets = 0.7 * np.array([[0.0, 0.0, 1.0]]) + 0.3 / 3
    by_hand = (targets * np.log1p(np.exp(-logits)) + (1 - targets) * np.log1p(np.exp(logits))).sum()
    assert float(objective(np.array([2]), logits)[0][0]) == pytest.approx(by_hand, rel=1e-6)
    ((given, named),) = optimizers
    assert given == (settings.optimizer, model, 7) and named == {"loss_scaling": True}
    assert optimizer.loss_scale is not None
    assert [given for given, _ in seeds] == [(5,)] and [given for given, _ in biases] == [
        ("sigmoid", 10)
    ]
    np.testing.assert_allclose(
        model.get_layer("predictions").get_weights()[1], -np.log(10), rtol=1e-6
    )


def test_without_float16_no_loss_is_scaled_and_jit_is_left_to_the_step(
    tiny_vit, tmp_path, monkeypatch
):
    steps = record_calls(monkeypatch, running, "make_learner", ends=True)
    optimizers = record_calls(monkeypatch, running, "make_optimizer")
    monkeypatch.setitem(keras_vit.variants.VARIANTS, "ViT_Ti16", tiny_vit)
    settings = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=7))
    config = PretrainConfig(run=settings, model="ViT_Ti16", image_size=16)
    with pytest.raises(Seen):
        keras_vit.train.pretrain(config, tmp_path)
    assert optimizers[0][1] == {"loss_scaling": False} and "jit_compile" not in steps[0][1]


def test_each_setting_of_a_run_reaches_the_input(tmp_path, monkeypatch):
    trained = record_calls(monkeypatch, inputs, "training_batches")
    measured = record_calls(monkeypatch, inputs, "evaluation_batches")
    data = DataConfig(kind="digits", mixup_alpha=0.3, strict=True)
    settings = RunConfig(
        data=data,
        loop=LoopConfig(total_steps=9),
        batch_size=6,
        eval_batch_size=50,
        accumulation_steps=4,
        seed=5,
    )
    worker = Devices(kind="multi_worker", num_replicas=4, num_workers=2, worker_index=1)
    found = inputs.make_inputs(
        *make_sources(data, seed=5), settings, 16, tmp_path, worker, noise_length=3
    )

    def stamp() -> int:
        return 0

    found.training_batches(4, stamp)
    found.validation_batches()
    (((source, _), named),) = trained
    share = named.pop("share")
    assert source is found.training and named == {
        "batch_size": 6,
        "seed": 5,
        "start_step": 4,
        "total_steps": 9,
        "mixup_alpha": 0.3,
        "noise_length": 3,
        "unreadable": found.unreadable,
        "stamp": stamp,
    }
    # each worker has two of the four replicas
    assert share == Share(rows=16, num_workers=2, worker_index=1, num_parts=2)
    (((source, _), named),) = measured
    share = named.pop("share")
    assert source is found.validation and named == {
        "batch_size": 50,
        "noise_length": 3,
        "unreadable": found.unreadable_validation,
    }
    assert share == Share(rows=52, num_workers=2, worker_index=1, num_parts=2)
    assert found.unreadable.strict and found.unreadable_validation.strict
    mild = replace(settings, data=replace(data, strict=False))
    lenient = inputs.make_inputs(*make_sources(data, seed=5), mild, 16, tmp_path, worker)
    assert not lenient.unreadable.strict and not lenient.unreadable_validation.strict


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_rerun_counts_no_image_that_was_repaired(has_checkpoint: bool, tmp_path):
    """Without a checkpoint the record of training ends; with one the report still needs it."""
    image, run = tmp_path / "repaired.png", tmp_path / "run"
    keras.utils.save_img(image, np.zeros((4, 4, 3)), scale=False)
    line = f"{image}\tInput/output error\n"
    (run / "checkpoints").mkdir(parents=True)
    if has_checkpoint:
        (run / "checkpoints" / "0000000003").mkdir()
    for part in ("train", "test"):
        (run / f"unreadable_{part}.txt").write_text(line)
    data = DataConfig(kind="digits")
    settings = RunConfig(data=data, loop=LoopConfig(total_steps=9))
    one = Devices(kind="one", num_replicas=1, num_workers=1, worker_index=0)
    found = inputs.make_inputs(*make_sources(data, seed=5), settings, 16, run, one)
    assert found.unreadable.places == found.unreadable_validation.places == []
    assert found.unreadable_places() == [str(image)] * has_checkpoint
    assert not (run / "unreadable_test.txt").exists()


def test_images_are_changed_as_the_config_says(monkeypatch):
    chosen = []
    monkeypatch.setattr(
        inputs.transforms, "train_crop", lambda *a, **k: chosen.append((a, k)) or ["crop"]
    )
    monkeypatch.setattr(
        inputs.transforms, "eval_crop", lambda *a: chosen.append((a, {})) or ["middle"]
    )
    monkeypatch.setattr(inputs, "rand_augment", lambda *a: chosen.append((a, {})) or "augment")
    plain = DataConfig(kind="digits", crop_area=0.3, flip=False, eval_crop="resize_shorter")
    rich = replace(plain, flip=True, rand_augment_ops=3, rand_augment_magnitude=15.0)
    to_uint8, flip = inputs.transforms.to_uint8, inputs.transforms.flip_left_right
    assert inputs.training_transforms(plain, 24) == ["crop", to_uint8]
    assert inputs.training_transforms(rich, 24) == ["crop", flip, to_uint8, "augment"]
    assert inputs.evaluation_transforms(rich, 24)[:1] == ["middle"]
    crop = (("inception", 24), {"smallest_area": 0.3})
    assert chosen == [crop, crop, ((3, 15.0), {}), (("resize_shorter", 24), {})]


def test_pixels_of_the_validation_are_not_rounded():
    """Two pixels, 0 and 255, become four: 0, 63.75, 191.25 and 255."""
    pixels, seed = np.array([[0, 255]], "uint8"), tf.constant([0, 0])
    for transform in inputs.evaluation_transforms(DataConfig(kind="digits"), 4):
        pixels = transform(pixels, seed)
    np.testing.assert_allclose(pixels[0, :, 0], [-1.0, -0.5, 0.5, 1.0], atol=1e-6)


@pytest.mark.parametrize(
    ("each", "kept"), [(5, 1), (19, 1), (20, 2), (99, 9), (100, 10), (5000, 10)]
)
@pytest.mark.sampled(4)
def test_of_fractals_a_tenth_is_unseen_but_at_least_one_and_at_most_ten(each: int, kept: int):
    data = DataConfig(kind="fractals", num_classes=2, images_per_class=each, image_size=8)
    train, test = make_sources(data, seed=0)
    assert (train.num_examples, test.num_examples) == (2 * (each - kept), 2 * kept)
    whole, absent = make_sources(replace(data, test=""), seed=0)
    assert whole.num_examples == 2 * each and absent is None
    places = [
        {part.locate(index) for index in (0, part.num_examples - 1)} for part in (train, test)
    ]
    assert not places[0] & places[1]


def test_where_a_run_computes_may_change_but_not_what(tmp_path, caplog):
    def config(**devices) -> RunConfig:
        return RunConfig(
            data=DataConfig(kind="digits"),
            loop=LoopConfig(total_steps=1),
            devices=DevicesConfig(**devices),
        )

    one = Devices(kind="one", num_replicas=1)
    assert not workdir.check_folder(tmp_path, config())
    workdir.claim(
        tmp_path, config(), (), Devices(kind="x", num_replicas=2, num_workers=2, worker_index=1)
    )
    assert not (tmp_path / "config.json").exists()  # the chief writes it
    workdir.claim(tmp_path, config(), (), one)
    for free in ({"kind": "one"}, {"names": ("CPU:1",)}, {"jit_compile": False}):
        assert workdir.check_folder(tmp_path, config(**free))
    with pytest.raises(
        ValueError, match="devices.precision: there 'float32', here 'mixed_bfloat16'"
    ):
        workdir.check_folder(tmp_path, config(precision="mixed_bfloat16"))
    assert not caplog.records
    record = json.loads((tmp_path / "config.json").read_text())
    record["versions"]["Keras"] = "3.0.0"
    (tmp_path / "config.json").write_text(json.dumps(record))
    workdir.claim(tmp_path, config(), (), one)
    assert (
        "started with other versions, so its results may differ" in caplog.text
        and "Keras" in caplog.text
    )
    assert json.loads((tmp_path / "config.json").read_text()) == record


def test_images_to_look_at_are_from_all_over_the_source():
    shades = np.arange(40, dtype="uint8").reshape(-1, 1, 1, 1) * np.ones((1, 4, 4, 3), "uint8")
    source = sources.arrays(shades, np.zeros(40, int), ["one"])
    seen = inputs.preview(source, DataConfig(kind="given"), 4)
    assert seen.shape == (8, 4, 4, 3) and seen[:, 0, 0, 0].tolist() == [
        0,
        6,
        11,
        17,
        22,
        28,
        33,
        39,
    ]


def test_rows_take_changes():
    row = row_of("ViT_Ti16", {"depth": 3, "name": "mine"})
    model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=3)
    assert sum(layer.name.startswith("encoderblock_") for layer in model.layers) == 3


def test_what_is_held_out_is_validated_on_and_the_test_set_is_left_alone(tmp_path, monkeypatch):
    def touched(*_):
        raise AssertionError("the test set was opened")

    monkeypatch.setattr(inputs, "_make_validation_source", touched)
    data = DataConfig(kind="digits", held_out=0.1)
    train_source, dev = inputs.make_sources(data, seed=0)
    assert (train_source.num_examples, dev.num_examples) == (1293, 144)
    places = {
        part.locate(index) for part in (train_source, dev) for index in range(part.num_examples)
    }
    assert len(places) == 1437 and all("train" in place for place in places)
    # The same examples are held out in every run, whatever its seed; what is learned from is drawn
    # anew.
    few = [inputs.make_sources(replace(data, train_share=0.1), seed=seed) for seed in (0, 1)]
    assert [[part.locate(index) for index in range(144)] for _, part in few] == [
        [dev.locate(index) for index in range(144)]
    ] * 2
    chosen = [{part.locate(index) for index in range(part.num_examples)} for part, _ in few]
    assert [len(part) for part in chosen] == [129, 129] and chosen[0] != chosen[1]
    with pytest.raises(AssertionError, match="opened"):
        inputs.make_sources(DataConfig(kind="digits"), seed=0)


def test_shares_of_the_training_set_are_checked():
    with pytest.raises(ValueError, match=r"Received: held_out=1.0, train_share=1.0"):
        DataConfig(kind="digits", held_out=1.0)


def test_no_password_is_recorded(tmp_path):
    run = RunConfig(data=DataConfig(kind="digits"), loop=LoopConfig(total_steps=1))
    config = FinetuneConfig(run=run, weights="https://me:secret@example.org/model.npz?token=secret")
    recorded = workdir.describe_config(config)
    assert recorded["weights"] == "'https://***@example.org/model.npz?***'"
    assert recorded.keys() == {"recipe", *flatten_config(config)}
    # The config of a run that was begun when they were recorded is that of the same run.
    record = {"config": {**recorded, "weights": repr(config.weights)}, "versions": {}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert workdir.check_folder(tmp_path, config)


def test_pictures_show_no_unreadable_image(tmp_path):
    """It has the pixels of black, and weight 0."""
    for index in range(3):
        image = np.full((8, 8, 3), 100 + index, "uint8")
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "a" / f"{index}.png")
    (tmp_path / "a" / "0.png").write_bytes(b"xx")
    data = DataConfig(kind="image_folder", name=str(tmp_path))
    images = preview(sources.image_folder(tmp_path), data, 8, count=3)
    assert images.dtype == np.uint8 and [int(image.max()) for image in images] == [101, 102]
