"""Fine-tuning without a config, on the folders that people have; and the handover that it ends
with.
"""

import csv
import json
import math
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

import keras_vit  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.devices import Devices  # noqa: E402
from keras_vit.models.mae import masked_autoencoder  # noqa: E402
from keras_vit.predict import read_photo  # noqa: E402
from keras_vit.train import Stopped, loop, workdir  # noqa: E402
from keras_vit.train import finetune as module  # noqa: E402
from keras_vit.train.logs import read_metrics  # noqa: E402
from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS  # noqa: E402

pytestmark = pytest.mark.tensorflow

ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32
)
CLASSES = ["-v  café", "plain", "x" * 200, "猫 cat", "🐱"]


def tiny(size: int = 32) -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras_vit.application(ROW)(weights=None, input_shape=(size, size, 3), classes=7)


def write_stranger(root: Path) -> None:
    """Six files of all kinds in each of five classes, and what else lies in people's folders."""
    draw = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        folder = root / name
        folder.mkdir(parents=True)
        for kind, file in enumerate(("1.JPG", "2.png", "3.PNG", "4.gif", "5.jpeg", "6.png")):
            pixels = draw.integers(0, 256, (20 + 9 * kind, 30 + number, 4)).astype(np.uint8)
            pixels[..., number % 3] = 50 * number
            image = Image.fromarray(pixels)
            image.convert(["RGB", "L", "RGBA", "P", "CMYK", "P"][kind]).save(folder / file)
    broken = root / "plain" / "broken.jpg"
    broken.write_bytes((root / "plain" / "1.JPG").read_bytes()[:200])
    for name in ("notes.txt", ".hidden.jpg", "a.svg"):
        (root / "plain" / name).write_text("no image")
    (root / ".cache").mkdir()


def some(count: int = 20, classes: int = 2) -> sources.Source:
    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return sources.arrays(images, np.arange(count) % classes, name="some")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a stranger, what came of it, and where it is."""
    root = tmp_path_factory.mktemp("stranger")
    write_stranger(root / "my data")
    done = module.finetune(tiny(), root / "my data", root / "out", steps=6)
    return done, root / "out", root / "my data"


def test_the_folder_of_a_stranger_just_works(stranger):
    done, output, data = stranger
    assert done.class_names == tuple(CLASSES)
    files = {path.name for path in output.iterdir()}
    files -= {"errors.png", "saved_model"}  # of luck; of the test that runs what the report says
    assert files == {
        *(
            "answers.csv",
            "checkpoints",
            "classes.txt",
            "config.json",
            "confusion.png",
            "example.png",
        ),
        *(
            "learning_curve.png",
            "metrics.csv",
            "model.keras",
            "model.npz",
            "report.md",
            "results.json",
            "tensorboard",
        ),
        "unreadable_train.txt",
    }
    assert (output / "classes.txt").read_text(encoding="utf-8").split("\n")[:-1] == CLASSES
    page = done.report.read_text(encoding="utf-8")
    assert f"1, left out:\n\n- `{data}/plain/broken.jpg`" in page
    words = " ".join(page.split())
    assert (
        "Left out, 2: not a photo by its suffix, .svg (1: a.svg); not a photo by its suffix, .txt "
        "(1:" in words
    )
    assert "26 images of 5 classes, 5 to 6 per class" in page
    assert "validation on 5 other images" in words


def test_training_starts_at_the_loss_of_guessing(stranger):
    _, output, _ = stranger
    assert read_metrics(output)["train/loss"][0] == (1, pytest.approx(math.log(5), rel=1e-6))


def test_the_model_gives_probabilities_and_its_weights_are_those_of_the_checkpoint(stranger):
    done, output, _ = stranger
    image = read_photo(output / "example.png", (32, 32))[None]
    found = done.model.predict(image, verbose=0)
    assert found.shape == (1, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)
    loaded = keras.models.load_model(output / "model.keras").predict(image, verbose=0)
    again = keras_vit.application(ROW)(
        weights=output / "model.npz", classes=5, input_shape=(32, 32, 3)
    )
    for other in (loaded, again.predict(image, verbose=0)):
        np.testing.assert_allclose(other, found, rtol=1e-5)


def test_the_accuracy_is_that_of_the_answers(stranger):
    done, output, _ = stranger
    with open(output / "answers.csv", encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert sorted(answer["class"] for answer in answers) == sorted(CLASSES)
    assert done.accuracy == pytest.approx(
        sum(answer["class"] == answer["answer"] for answer in answers) / 5
    )


def test_the_same_call_again_says_that_it_is_finished(stranger, capsys: pytest.CaptureFixture):
    done, output, data = stranger
    before = (output / "model.npz").stat().st_mtime_ns
    again = module.finetune(tiny(), data, output, steps=6)
    assert (
        "already contains this run, and it is finished. To repeat it, choose another folder"
        in capsys.readouterr().out
    )
    assert (again.accuracy, again.class_names) == (done.accuracy, done.class_names)
    assert (output / "model.npz").stat().st_mtime_ns == before


def test_the_folder_of_another_run_is_refused(stranger):
    _, output, data = stranger
    with pytest.raises(
        ValueError,
        match="contains a run with another config:\n  run.loop.*\n.*\n?.*Choose another folder",
    ):
        module.finetune(tiny(), data, output, steps=7)
    other = tiny()
    other.get_layer("embedding").bias.assign_add(np.ones(16))
    with pytest.raises(ValueError, match="weights: there 'in memory, sha256"):
        module.finetune(other, data, output, steps=6)


@pytest.mark.slow
def test_what_the_report_says_to_type_works(stranger, tmp_path: Path):
    done, output, _ = stranger
    blocks = re.findall(r"```(\w+)\n(.*?)```", done.report.read_text(encoding="utf-8"), re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "python"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = []
    for language, code in blocks:
        ran = warm.run(
            [sys.executable, *shlex.split(code)[1:]]
            if language == "sh"
            else [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HUNG_SECONDS,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        said.append(ran.stdout)
    assert [sum(name in text for name in CLASSES) for text in said[:2]] == [min(5, len(CLASSES)), 3]
    served = keras.layers.TFSMLayer(str(output / "saved_model" / "1"), call_endpoint="serve")
    image = read_photo(output / "example.png", (32, 32))[None]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(served(image)),
        done.model.predict(image, verbose=0),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = module.finetune(tiny(), some(), tmp_path / "whole", steps=6)
    act = loop._Run.on_train_batch_end

    def stop_after_three(self, batch, logs=None):
        if self.step == 2:
            self.ask_to_stop("SIGTERM")
        act(self, batch, logs)

    monkeypatch.setattr(loop._Run, "on_train_batch_end", stop_after_three)
    with pytest.raises(Stopped, match="Stopped by SIGTERM after step 3 of 6"):
        module.finetune(tiny(), some(), tmp_path / "parts", steps=6)
    monkeypatch.undo()
    parts = module.finetune(tiny(), some(), tmp_path / "parts", steps=6)
    states = [
        json.loads((tmp_path / n / "results.json").read_text())["state_sha256"]
        for n in ("whole", "parts")
    ]
    assert states[0] == states[1] and parts.accuracy == whole.accuracy


def plan_of(
    monkeypatch: pytest.MonkeyPatch, model, data, output: Path, *, fast: bool = False, **options
):
    """The settings that a run would have, without running it."""
    seen = []

    class Enough(Exception):
        pass

    def stop(config, *arguments, **keywords):
        seen.append((config, keywords["data"]))
        raise Enough

    monkeypatch.setattr(module, "run", stop)
    monkeypatch.setattr(module, "has_accelerator", lambda: fast)
    with pytest.raises(Enough):
        module.finetune(model, data, output, **options)
    return seen[0]


@pytest.mark.parametrize(("images", "steps", "warmup"), [(2_000, 500, 100), (23_000, 10_000, 500)])
def test_the_defaults_follow_the_size_of_the_data(
    tmp_path: Path, monkeypatch, images: int, steps: int, warmup: int
):
    source = sources.arrays(np.zeros((images, 1, 1), np.uint8), np.arange(images) % 4)
    config, (training, measured) = plan_of(monkeypatch, tiny(), source, tmp_path, fast=True)
    run, optimizer = config.run, config.run.optimizer
    assert (run.loop.total_steps, optimizer.warmup_steps, run.batch_size) == (steps, warmup, 512)
    assert (optimizer.name, optimizer.schedule, optimizer.learning_rate) == (
        "momentum",
        "cosine",
        0.01,
    )
    assert (optimizer.weight_decay, optimizer.clip_norm, run.loss, run.data.crop) == (
        0.0,
        1.0,
        "softmax",
        "inception",
    )
    assert run.data.eval_crop == "resize" and run.data.flip
    assert (training.num_examples, measured.num_examples) == (images * 9 // 10, images // 10)


def test_what_was_asked_for_is_in_the_settings_and_in_the_plan(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
):
    asked = {"steps": 30, "batch_size": 4, "learning_rate": 0.3, "seed": 7}
    config, _ = plan_of(monkeypatch, tiny(), some(), tmp_path, **asked)
    run = config.run
    assert (run.loop.total_steps, run.batch_size, run.seed) == (30, 4, 7)
    assert run.optimizer.learning_rate == 0.3
    said = " ".join(capsys.readouterr().out.split())
    # 120 images, of 18 to learn from
    assert "30 steps of 4 images, which is 6.67 epochs" in said
    assert "rises to 0.3 over 6 steps" in said


def test_batches_are_small_where_data_or_machine_are(tmp_path: Path, monkeypatch):
    batches = [
        plan_of(monkeypatch, tiny(), some(count), tmp_path / f"{count}{fast}", fast=fast)[
            0
        ].run.batch_size
        for count, fast in ((400, False), (400, True), (20, True), (4, False))
    ]
    assert batches == [32, 256, 16, 2]  # of 360, 360, 18 and 2 images to learn from


def test_large_images_are_learned_from_in_parts(tmp_path: Path, monkeypatch):
    parts = {
        size: plan_of(monkeypatch, tiny(size), some(1000), tmp_path / str(size), fast=True)[
            0
        ].run.accumulation_steps
        for size in (32, 384)
    }
    assert parts == {32: 1, 384: 32}  # 16 of 512 images at a time


@pytest.mark.parametrize(
    ("model", "weights", "size", "tag"),
    [
        ("ViT_B16", "imagenet21k", 384, "imagenet21k"),
        ("ViT_S16", "imagenet21k", 384, "augreg_in21k"),
        ("ViT_S16", "augreg_in21k_ft_in1k_384", 384, "augreg_in21k_ft_in1k_384"),
        ("ViT_H14", "imagenet21k", 378, "imagenet21k"),
        ("ViT_B16", None, 224, "none"),
        ("BiT_R50x1", "bit_m", 384, "bit_m"),
    ],
)
def test_the_size_is_the_paper_s_unless_the_weights_have_another(
    tmp_path: Path, monkeypatch, model, weights, size, tag
):
    config, _ = plan_of(monkeypatch, model, some(), tmp_path, weights=weights)
    assert (config.image_size, config.weights) == (size, tag)


def test_weights_of_a_file_keep_their_size_and_their_pooling(tmp_path: Path, monkeypatch):
    row = VIT_VARIANTS["ViT_Ti16"]
    model = keras_vit.application(row)(
        weights=None, input_shape=(48, 48, 3), classes=2, classifier="gap"
    )
    keras_vit.save_checkpoint(model, tmp_path / "gap.npz")
    monkeypatch.chdir(tmp_path)
    config, _ = plan_of(monkeypatch, "ViT_Ti16", some(), tmp_path / "out", weights="gap.npz")
    path, _, digest = config.weights.partition(", sha256 ")
    assert (config.image_size, path, len(digest)) == (48, str(tmp_path / "gap.npz"), 16)
    start = module._find_start("ViT_Ti16", "gap.npz", None)
    assert start.build(3).output_shape == (None, 3)
    # other weights under the same path are another run
    assert (start.weights, start.recorded_weights) == (path, config.weights)
    model.get_layer("embedding").bias.assign_add(keras.ops.ones(192))
    keras_vit.save_checkpoint(model, tmp_path / "gap.npz")
    changed = module._find_start("ViT_Ti16", "gap.npz", None).recorded_weights
    assert changed.startswith(f"{path}, sha256 ") and changed != config.weights


def test_weights_of_a_file_keep_their_attention_pooling(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(keras_vit.variants.VARIANTS, "ViT_Ti16", ROW)
    options = {"input_shape": (16, 16, 3), "classes": 2, "classifier": "map"}
    model = keras_vit.application(ROW)(weights=None, **options)
    keras_vit.save_checkpoint(model, tmp_path / "map.npz")
    built = module._find_start("ViT_Ti16", tmp_path / "map.npz", None).build(3)
    assert built.output_shape == (None, 3)
    for found, expected in zip(
        built.get_layer("map_head").get_weights(),
        model.get_layer("map_head").get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_random_weights_are_advised_against(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
):
    plan_of(monkeypatch, "ViT_Ti16", some(), tmp_path, weights=None, image_size=32)
    said = " ".join(capsys.readouterr().out.split())
    assert "The weights are random: unless you have hundreds of thousands of images" in said
    assert "Training on 18 images of 2 classes, 9 per class" in said


def test_a_validation_set_may_be_given(tmp_path: Path, monkeypatch):
    _, (training, measured) = plan_of(monkeypatch, tiny(), some(20), tmp_path, validation=some(4))
    assert (training.num_examples, measured.num_examples) == (20, 4)
    with pytest.raises(
        ValueError,
        match="some has other classes than some. Expected: 0, 1. Received: 0, 1, 2",
    ):
        module.finetune(tiny(), some(20), tmp_path / "other", validation=some(6, classes=3))


def test_a_command_repeats_a_run_on_a_folder_unless_its_validation_was_given(
    tmp_path: Path, monkeypatch
):
    """No flag names the images of the validation."""
    for name in ("train/a", "train/b", "held/a", "held/b"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{number}.png")
    orders = []
    monkeypatch.setattr(module, "Handover", lambda *, order, plan: orders.append(order))
    for options in ({}, {"validation": tmp_path / "held"}):
        options = {"weights": None, **options}
        plan_of(monkeypatch, "ViT_Ti16", tmp_path / "train", tmp_path / "out", **options)
    commands = [shlex.split(order.command()) for order in orders]
    assert f"--data={tmp_path / 'train'}" in commands[0] and commands[1] == []


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("vit_b17", {}, "There is no model 'vit_b17'. Did you mean ViT_B16"),
        ("ViT_B16", {"weights": "imagenet22k"}, "imagenet21k"),
        ("ViT_B16", {"weights": "absent.npz"}, "there is no such file"),
        ("ResNet50x1", {}, "The `weights` argument should be"),
        (
            "ViT_B16",
            {"weights": None, "image_size": 50},
            "The image size must be a multiple of 16 pixels along each axis. Received: "
            "image_size=.50, 50.",
        ),
        ("ViT_Ti16", {"weights": None, "steps": 0}, "Received: `steps` = 0"),
        ("ViT_Ti16", {"weights": None, "batch_size": 0}, "Received: `batch_size` = 0"),
        ("ViT_Ti16", {"weights": None, "learning_rate": 0.0}, "`learning_rate` must be above 0"),
        ("ViT_Ti16", {"weights": None, "image_size": 0}, "`image_size` must be at least 1"),
    ],
)
def test_mistakes_are_said_before_the_folder_is_made(
    tmp_path: Path, model: str, options: dict, message: str
):
    with pytest.raises(ValueError, match=message):
        module.finetune(model, some(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_weights_of_a_model_in_memory_are_not_ignored(tmp_path: Path):
    with pytest.raises(
        ValueError, match="A model in memory or in a file contains its weights. Leave out `weights`"
    ):
        module.finetune(tiny(), some(), tmp_path, weights=None)


def test_another_package_s_model_is_refused_at_once(tmp_path: Path):
    images = keras.Input((32, 32, 3))
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="mine")(images))
    with pytest.raises(
        ValueError, match="is not a model of this package, and this function fine-tunes no other"
    ):
        module.finetune(keras.Model(images, features), some(), tmp_path)


def test_a_model_of_a_file_goes_on_from_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture):
    model, given = tiny(), keras.Input((32, 32, 3))
    keras.Model(given, model(keras.layers.Rescaling(1 / 127.5, offset=-1)(given))).save(
        tmp_path / "model.keras"
    )
    start = module._find_start(str(tmp_path / "model.keras"), "imagenet21k", None)
    assert (start.source, start.image_size) == (str(tmp_path / "model.keras"), 32)
    assert "takes pixels from 0 to 255 (its layer `rescaling" in capsys.readouterr().out
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    found, expected = (
        keras.Model(each.input, each.get_layer("predictions").input)(pixels)
        for each in (start.build(3), model)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="There is no file"):
        module._find_start(str(tmp_path / "no.keras"), "imagenet21k", None)


def test_a_mistake_does_not_take_the_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(
        module.source, "load", lambda *_: (_ for _ in ()).throw(OSError("no network"))
    )
    with pytest.raises(OSError, match="no network"):
        module.finetune("ViT_Ti16", some(), tmp_path / "out", image_size=32, steps=2)
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_is_missing_is_asked_for_before_anything_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="needs matplotlib: pip install .*matplotlib"):
        module.finetune("ViT_Ti16", tmp_path / "absent", tmp_path / "out")


def test_an_output_in_the_data_is_refused(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{number}.png")
    with pytest.raises(
        ValueError, match="is inside the folder of the data, .*, where it would be read as images"
    ):
        module.finetune(tiny(), tmp_path, tmp_path / "out")


@pytest.mark.parametrize("start", ["model.keras", "mine.npz"])
def test_the_folder_of_the_start_is_refused_before_anything_is_written(start: str, tmp_path: Path):
    model, own = tiny(), tmp_path / "own"
    own.mkdir()
    if start == "model.keras":
        model.save(own / start)
        options = {"model": own / start}
    else:
        keras_vit.save_checkpoint(model, own / start)
        options = {"model": "ViT_Ti16", "weights": str(own / start), "image_size": 32}
    (own / "classes.txt").write_text("a\nb\n")
    before = {path: path.read_bytes() for path in own.iterdir()}
    options |= {"data": some(), "output": own, "steps": 1}
    with pytest.raises(
        ValueError, match=f"contains the model that training starts from, .*{start}. .*another"
    ):
        module.finetune(**options)
    assert {path: path.read_bytes() for path in own.iterdir()} == before


@pytest.mark.parametrize("name", ["model.keras", "model.npz", "classes.txt"])
def test_a_model_that_is_no_run_of_ours_is_not_replaced(name: str, tmp_path: Path):
    (tmp_path / name).write_text("of another")
    with pytest.raises(ValueError, match=f"contains {name}, but no config.json .* move them away"):
        module.finetune(tiny(), some(), tmp_path, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_weights_in_the_home_folder_are_found(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    keras_vit.save_checkpoint(tiny(), tmp_path / "mine.npz")
    config, _ = plan_of(monkeypatch, "ViT_Ti16", some(), tmp_path / "out", weights="~/mine.npz")
    assert config.weights.startswith(f"{tmp_path}/mine.npz, sha256 ")


def test_a_single_class_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="has a single class"):
        module.finetune(tiny(), some(4, classes=1), tmp_path / "out")


@pytest.mark.parametrize(
    ("steps", "log", "evaluate", "checkpoint", "warmup"),
    [
        (4, 1, 1, 20, 0),
        (101, 2, 21, 20, 20),
        (500, 10, 100, 50, 100),
        (20_000, 400, 4000, 100, 500),
    ],
)
def test_when_things_happen_follows_the_length(
    tmp_path: Path, monkeypatch, steps, log, evaluate, checkpoint, warmup
):
    run = plan_of(monkeypatch, tiny(), some(), tmp_path, steps=steps)[0].run
    loop = run.loop
    found = (
        loop.total_steps,
        loop.log_every,
        loop.evaluate_every,
        loop.checkpoint_every,
        run.optimizer.warmup_steps,
    )
    assert found == (steps, log, evaluate, checkpoint, warmup) and loop.keep_checkpoints == 1


def test_blocks_are_computed_twice_from_two_hundred_million_parameters_on(
    tmp_path: Path, monkeypatch
):
    found = {
        model: plan_of(monkeypatch, model, some(), tmp_path / model, weights=None)[0].run.remat
        for model in ("ViT_B16", "ViT_L16", "ViT_H14")  # 87, 304, 632 million
    }
    assert found == {"ViT_B16": False, "ViT_L16": True, "ViT_H14": True}


@pytest.mark.parametrize(
    ("size", "fast", "rows"), [(384, True, 16), (192, True, 64), (32, True, 512), (384, False, 8)]
)
def test_as_many_are_measured_at_once_as_are_learned_from(
    tmp_path: Path, monkeypatch, size, fast, rows
):
    run = plan_of(monkeypatch, tiny(size), some(1000), tmp_path, fast=fast)[0].run
    assert run.eval_batch_size == rows and run.accumulation_steps == -(-run.batch_size // rows)


def test_other_labels_or_names_are_other_data(tmp_path: Path, monkeypatch):
    images = np.zeros((8, 4, 4), np.uint8)
    labels = np.arange(8) % 2
    found = {
        sources.arrays(images, given, names).sha256()
        for given, names in (
            (labels, ["a", "b"]),
            (1 - labels, ["a", "b"]),
            (labels, ["a", "c"]),
            (labels, ["b", "a"]),
        )
    }
    assert len(found) == 4


def test_other_data_are_another_run(tmp_path: Path, monkeypatch):
    """Also of the same labels; the folder of a finished run does not answer for them."""
    pixels, labels = (
        np.random.RandomState(0).randint(0, 256, (20, 8, 8, 3)).astype("uint8"),
        np.arange(20) % 2,
    )
    model, folder = tiny(), tmp_path / "out"
    config, _ = plan_of(monkeypatch, model, sources.arrays(pixels, labels), folder, steps=2)
    test, training = sources.arrays(pixels, labels).split_by_class(0.1)
    workdir.claim(folder, config, (training, test), Devices(kind="one", num_replicas=1))
    for name in ("results.json", "model.keras"):
        (folder / name).write_text("finished")
    monkeypatch.setattr(module, "_load_result", lambda folder, training: "the old model")
    assert (
        module.finetune(model, sources.arrays(pixels, labels), folder, steps=2) == "the old model"
    )
    with pytest.raises(
        ValueError,
        match="The data have changed since the run in .*out was started: arrays and arrays",
    ):
        module.finetune(model, sources.arrays(255 - pixels, labels), folder, steps=2)


def test_the_declared_pixels_are_those_of_the_start_and_of_the_order(tmp_path: Path, monkeypatch):
    tiny().save(tmp_path / "mine.keras")
    declared, orders = [], []
    declare = module.declare
    monkeypatch.setattr(
        module, "declare", lambda model, pixels: (declared.append(pixels), declare(model, pixels))
    )
    monkeypatch.setattr(module, "Handover", lambda *, order, plan: orders.append(order))
    plan_of(monkeypatch, tmp_path / "mine.keras", some(), tmp_path / "run", pixels="-1..1")
    assert declared == ["-1..1"] and orders[0].pixels == "-1..1"


def test_a_model_of_two_inputs_is_refused():
    row = replace(FAMILY_VARIANTS["MAE_B16"], depth=1, width=16, num_heads=2, mlp_dim=16)
    model = masked_autoencoder(row, 32, decoder_width=16, decoder_depth=1, decoder_heads=2)
    with pytest.raises(ValueError, match=r'nothing else. .*\(None, 4\).*weights="model.npz"'):
        module._find_start(model, "imagenet21k", None)
