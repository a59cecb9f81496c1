"""What is handed over with a fine-tuned model. Whole runs are in test_transfer.py."""

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit import cli  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate.accuracy import Answers  # noqa: E402
from keras_vit.train import DataConfig, LoopConfig, OptimizerConfig, RunConfig, handover  # noqa: E402
from keras_vit.train.handover import Handover, Order, save_model  # noqa: E402
from keras_vit.train.new_head import copy_with_new_head  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402

pytestmark = pytest.mark.tensorflow


def order(**fields) -> Order:
    settings = RunConfig(
        data=DataConfig(kind="given", name="mine"),
        loop=LoopConfig(total_steps=500),
        optimizer=OptimizerConfig(learning_rate=0.01),
        batch_size=64,
    )
    standard = {
        "model": "ViT_B16",
        "weights": "imagenet21k",
        "data": Path("/d d"),
        "image_size": 384,
        "seed": 0,
    }
    standard |= {"settings": settings, "folder": Path("/o/it's")}
    return Order(
        **{name: value for name, value in {**standard, **fields}.items() if name != "seed"}
    )


def test_the_command_of_a_model_of_a_file_has_its_pixels_and_no_weights():
    words = shlex.split(order(model="/m/model.keras", weights=None, pixels="0..255").command())
    assert "--model=/m/model.keras" in words and "--pixels=0..255" in words
    assert not any(word.startswith("--weights") for word in words)


def test_the_command_has_every_flag_and_quotes_what_shells_would_split():
    words = shlex.split(order(pixels="-1..1").command())
    assert words[:4] == ["python", "-m", "keras_vit", "finetune"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in words[4:])
    assert flags == {
        **{
            "data": "/d d",
            "output": "/o/it's",
            "model": "ViT_B16",
            "weights": "imagenet21k",
            "image_size": "384",
        },
        **{
            "steps": "500",
            "batch_size": "64",
            "learning_rate": "0.01",
            "seed": "0",
            "pixels": "-1..1",
        },
    }
    values = cli.flags.FlagValues()
    cli.COMMANDS["finetune"].define(values)
    assert set(flags) == set(values)  # not one more, not one fewer


@pytest.mark.parametrize("absent", ["model", "data"])
def test_what_a_command_line_cannot_name_has_no_command(absent: str):
    assert order(**{absent: None}).command() == ""


def test_what_was_left_out_is_named_once(tmp_path: Path):
    assert handover._list_unreadable(tmp_path) == "None."
    (tmp_path / "unreadable_train.txt").write_text("b.png\na.png\nb.png\n")
    (tmp_path / "unreadable_test.txt").write_text("c.png\tthe file is empty\na.png\n")
    lines = handover._list_unreadable(tmp_path).splitlines()
    assert lines[1:] == ["", "- `b.png`", "- `a.png`", "- `c.png`: the file is empty"]


def test_the_example_is_the_first_image_with_an_answer(tmp_path: Path, monkeypatch):
    """The two before it cannot be read."""
    levels = np.arange(4, dtype="uint8").reshape(4, 1, 1, 1) * np.ones((1, 2, 2, 3), "uint8")
    labels = np.array([0, 1, 0, 1])
    source = sources.arrays(levels, labels, ["a", "b"])
    card = Answers(
        source=source,
        indices=np.array([2, 3]),
        labels=labels[2:],
        answers=labels[2:],
        shares=np.array([0.9, 0.8]),
        ranks=np.zeros(2, int),
        losses=np.zeros(2),
        unreadable=("arrays[0]", "arrays[1]"),
    )
    monkeypatch.setattr(handover, "answer", lambda *_, **__: card)
    monkeypatch.setattr(handover, "write_pictures", lambda *_: [])
    monkeypatch.setattr(handover, "save_model", lambda *_: None)
    monkeypatch.setattr(handover, "_list_files", lambda _: [])
    Handover(order=order(folder=tmp_path), plan="")(None, source, tmp_path)
    example = np.array(keras.utils.load_img(tmp_path / "example.png"))
    np.testing.assert_array_equal(example, levels[2])


def test_a_model_that_cannot_be_saved_whole_leaves_the_old_one(tmp_path: Path, monkeypatch):
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
    )
    logits = copy_with_new_head(
        keras_vit.application(row)(weights=None, input_shape=(16, 16, 3)), 16, 3
    )
    (tmp_path / "model.keras").write_text("old")

    def half(self, path) -> None:
        Path(path).write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", half)
    with pytest.raises(OSError, match="No space left"):
        save_model(logits, tmp_path / "model.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    assert (tmp_path / "model.keras").read_text() == "old"


def test_the_python_in_the_report_names_the_three_best_best_first(
    tmp_path: Path, monkeypatch, capsys
):
    """The code as it is printed, with a model that gives known probabilities."""
    given = np.array([[0.1, 0.4, 0.05, 0.25, 0.2]])
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n", encoding="utf-8")
    code = next(
        block
        for block in Handover(order=order(folder=tmp_path), plan="")._format_usage()
        if "argsort" in block
    )
    code = code.partition("```python\n")[2].removesuffix("```")
    monkeypatch.setattr(
        keras.models, "load_model", lambda path: SimpleNamespace(predict=lambda images: given)
    )
    monkeypatch.setattr("keras_vit.predict.read_photo", lambda path, size: np.zeros((*size, 3)))
    exec(compile(code, "report", "exec"), {})
    assert capsys.readouterr().out.split("\n")[:3] == ["40.0%  b", "25.0%  d", "20.0%  e"]


def test_the_saved_model_is_the_softmax_of_the_logits(tmp_path: Path):
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
    )
    logits = copy_with_new_head(
        keras_vit.application(row)(weights=None, input_shape=(16, 16, 3)), 16, 3
    )
    logits.get_layer("predictions").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    save_model(logits, tmp_path / "model.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    images = np.random.default_rng(1).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    expected = np.exp(keras.ops.convert_to_numpy(logits(images)).astype(np.float64))
    expected /= expected.sum(axis=1, keepdims=True)
    found = keras.models.load_model(tmp_path / "model.keras")(images)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, rtol=1e-5)
