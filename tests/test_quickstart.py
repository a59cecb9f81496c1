"""The tiny run proves the way, the full run the recipe."""

import dataclasses
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit import cli, quickstart
from keras_vit.applications import application

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with one block and two batches, trained without tracing, which takes longer than
    a few steps. TFLite quantizes weights of 1024 numbers, so the MLP has them.
    """
    compiled = keras.Sequential.compile
    monkeypatch.setattr(
        keras.Sequential,
        "compile",
        lambda *arguments, **options: compiled(*arguments, **options, run_eagerly=True),
    )
    row = dataclasses.replace(quickstart.DIGITS_ROW, depth=1, width=16, num_heads=2, mlp_dim=64)
    train, test = quickstart.load_digits()
    monkeypatch.setattr(quickstart, "NUM_FRACTALS", 3)
    monkeypatch.setattr(quickstart, "FRACTALS_EACH", 20)
    few = [quickstart.Digits(digits.images[:64], digits.labels[:64]) for digits in (train, test)]
    monkeypatch.setattr(quickstart, "DIGITS_ROW", row)
    monkeypatch.setattr(quickstart, "digits_vit", application(row))
    monkeypatch.setattr(quickstart, "load_digits", lambda: few)


@pytest.mark.tensorflow
def test_a_run_puts_new_artefacts_in_place_of_old_ones(
    tmp_path: Path, tiny, capsys, monkeypatch: pytest.MonkeyPatch
):
    built, build = [], quickstart.digits_vit
    monkeypatch.setattr(
        quickstart, "digits_vit", lambda **options: (built.append(options), build(**options))[1]
    )
    output = tmp_path / "new" / "folder"
    names = ("vit_fractals.npz", "curves.png", "digit.jpg", "attention.png")
    served = "saved_model/1/saved_model.pb"
    for name in (*names, served):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("old")
    fitted, fit = [], quickstart.fit
    drawn, draw = [], quickstart.draw_curves
    shares = []

    def record(model, pixels, labels, epochs, **named):
        fitted.append((len(labels), epochs, "test" in named and len(named["test"].labels)))
        shares.append(fit(model, pixels, labels, epochs, **named))
        return shares[-1]

    monkeypatch.setattr(quickstart, "fit", record)
    monkeypatch.setattr(
        quickstart, "draw_curves", lambda curves, *more: drawn.append(curves) or draw(curves, *more)
    )
    quickstart.main(str(output), pretrain_epochs=1, finetune_epochs=2)
    assert list(drawn[0]) == ["pre-trained on fractals", "from scratch"]
    # The two may be equal after so few steps.
    assert [id(curve) for curve in drawn[0].values()] == [id(curve) for curve in shares[1:]]
    few = len(quickstart.some_of_each(quickstart.load_digits()[0]).labels)
    assert [each[1:] for each in fitted] == [(1, False), (2, 64), (2, 64)]
    assert [each[0] for each in fitted[1:]] == [few, few]
    assert [name for name in names if (output / name).read_bytes() == b"old"] == []
    # on fractals; then fine-tuned from there; and the same from scratch
    checkpoint = output.resolve() / "vit_fractals.npz"
    assert [options["weights"] for options in built] == [None, checkpoint, None]
    sides = [quickstart.LOW, quickstart.HIGH, quickstart.HIGH]
    assert [options["input_shape"] for options in built] == [(side, side, 3) for side in sides]
    printed = capsys.readouterr().out
    # with and without pre-training, then again in the table
    assert printed.count("on 64 held-out digits") == 4
    assert f"Files in {output.resolve()}:" in printed
    assert (output / served).read_text() == "old"  # a version is never overwritten
    assert (output / "saved_model" / "2" / "saved_model.pb").is_file()
    for name in ("SavedModel", "float32.tflite", "float16.tflite"):
        assert re.search(rf"\n{re.escape(name)} .*100.00%", printed), name
    difference = re.search(r"int8 differs from the Keras model by (\S+)", printed)
    assert difference and 0 < float(difference[1]) < 0.1
    assert "SavedModel: " not in printed  # both files give one answer


def test_the_held_out_digits_are_no_training_digits_and_of_every_kind():
    train, test = quickstart.load_digits()
    assert train.images.shape == (1437, 8, 8) and test.images.shape == (360, 8, 8)
    assert (train.images.min(), train.images.max()) == (0, 1)
    assert np.bincount(test.labels).min() >= 34
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_the_digits_with_a_label_are_as_many_of_each_kind():
    train, _ = quickstart.load_digits()
    few = quickstart.some_of_each(train)
    assert np.bincount(few.labels).tolist() == [quickstart.LABELS_EACH] * 10
    assert {image.tobytes() for image in few.images} <= {image.tobytes() for image in train.images}


def test_a_curve_is_of_held_out_digits_and_the_learning_rate_ends_at_zero(monkeypatch):
    trained = []

    def keep(model: keras.Model, *data: np.ndarray, **options) -> SimpleNamespace:
        trained.append((model, data, options))
        return SimpleNamespace(history={"val_accuracy": [0.5]})

    monkeypatch.setattr(keras.Sequential, "fit", keep)
    train, test = quickstart.load_digits()
    few = quickstart.some_of_each(train)
    images = quickstart.pixels(few.images, quickstart.HIGH)
    network = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    assert quickstart.fit(network, images, few.labels, 10, learning_rate=0.5, test=test) == [0.5]
    ((model, data, options),) = trained
    assert data[0] is images and data[1] is few.labels
    unseen, labels = options["validation_data"]
    np.testing.assert_array_equal(unseen, quickstart.pixels(test.images, quickstart.HIGH))
    np.testing.assert_array_equal(labels, test.labels)
    # ten epochs of two batches: up in the first fifth, then down to zero
    rates = []
    for step in (0, 2, 4, 12, 20):
        model.optimizer.iterations.assign(step)
        rates.append(float(model.optimizer.learning_rate))
    np.testing.assert_allclose(rates, [0, 0.25, 0.5, 0.25, 0], atol=1e-6)
    # Muon updates the kernels of the blocks, AdamW that of the head.
    assert model.optimizer.exclude_layers == ["predictions"]
    assert (model.optimizer.weight_decay, model.optimizer.global_clipnorm) == (0.05, 1.0)


def test_two_runs_start_from_the_same_random_numbers(tmp_path: Path, monkeypatch):
    drawn = []

    class Seen(Exception):
        pass

    def end():
        drawn.append((random.random(), np.random.random()))
        raise Seen

    monkeypatch.setattr(quickstart, "draw_fractals", end)
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        with pytest.raises(Seen):
            quickstart.main(str(tmp_path))
    assert drawn[0] == drawn[1]


@pytest.mark.tensorflow
def test_fractals_are_scaled_and_as_many_of_each_kind(monkeypatch):
    monkeypatch.setattr(quickstart, "NUM_FRACTALS", 4)
    monkeypatch.setattr(quickstart, "FRACTALS_EACH", 10)
    drawn, kinds = quickstart.draw_fractals()
    assert drawn.shape == (40, 32, 32, 3) and drawn.min() == -1 and 0.5 < drawn.max() <= 1
    assert np.bincount(kinds).tolist() == [10] * 4


def test_pixels_are_scaled_to_minus_one_and_one():
    image = np.zeros((1, 8, 8), "float32")
    image[0, :4] = 1
    pixels = quickstart.pixels(image, 32)
    assert pixels.shape == (1, 32, 32, 3) and pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels[0, [0, 31], 5], [[1, 1, 1], [-1, -1, -1]])


def test_a_photo_is_read_as_the_pixels_that_were_written(tmp_path: Path):
    _, test = quickstart.load_digits()
    quickstart.write_photo(tmp_path / "digit.jpg", test.images[0])
    photo = quickstart.read(tmp_path / "digit.jpg")
    assert photo.shape == (1, 48, 48, 3)
    np.testing.assert_allclose(photo, quickstart.pixels(test.images[:1], 48), atol=0.5)
    assert np.abs(photo - quickstart.pixels(test.images[:1], 48)).mean() < 0.1


def test_class_attention_is_a_probability_for_each_patch_in_the_last_block():
    row = dataclasses.replace(quickstart.DIGITS_ROW, depth=2, width=16, num_heads=2, mlp_dim=64)
    model = application(row)(weights=None, input_shape=(48, 48, 3), classes=10)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 48, 48, 3)).astype("float32")
    attention = quickstart.class_attention(model, images)
    assert attention.shape == (2, 12, 12)
    # What is left of 1 is the attention of the class token to itself.
    assert ((attention.sum(axis=(1, 2)) > 0.5) & (attention.sum(axis=(1, 2)) < 1)).all()
    assert np.ptp(attention) > 1e-4
    block = model.get_layer("encoderblock_1")
    tokens = block.attention_norm(keras.Model(model.input, block.input)(images))
    query, key = (
        keras.ops.convert_to_numpy(layer(tokens)).reshape(2, 145, 2, 8)
        for layer in (block.attention.query, block.attention.key)
    )
    shares = np.exp(np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(8))
    shares /= shares.sum(axis=-1, keepdims=True)
    expected = shares.mean(axis=1)[:, 0, 1:].reshape(2, 12, 12)
    np.testing.assert_allclose(attention, expected, rtol=1e-4)
    # Queries of zero attend to all 145 tokens alike.
    query = model.get_layer("encoderblock_1").attention.query
    query.set_weights([np.zeros(weight.shape) for weight in query.weights])
    np.testing.assert_allclose(quickstart.class_attention(model, images), 1 / 145, rtol=1e-5)


@pytest.mark.parametrize(
    "module",
    ["sklearn.datasets", "matplotlib.figure", "ai_edge_litert.interpreter", "ai_edge_quantizer"],
)
def test_what_is_missing_is_named_before_anything_is_done(module: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="pip install .*ai-edge-litert.*matplotlib"):
        quickstart.main(str(tmp_path / "output"))
    assert not (tmp_path / "output").exists()


def test_a_folder_that_cannot_be_made_is_named_before_anything_is_trained(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write to .*/file/output: .*--output=FOLDER"):
        quickstart.main(str(tmp_path / "file" / "output"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(quickstart.tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        OSError, match=r"Cannot write to .*: Permission denied\. Choose another folder"
    ):
        quickstart.open_folder(str(tmp_path))


def test_a_folder_in_the_home_folder_is_that_one(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert quickstart.open_folder("~/quick") == tmp_path / "quick"
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]


@pytest.mark.parametrize("name", ["finetune", "export"])
def test_the_next_steps_name_the_folders_without_which_a_command_ends(name: str, capsys):
    (line,) = (line for line in quickstart.NEXT.splitlines() if f"keras_vit {name}" in line)
    words = line.split("keras_vit ")[1].split()
    assert cli.main(words[:1]) == 2
    missing = re.findall(r"--(\w+)=FOLDER", capsys.readouterr().err)
    assert missing and {f"--{flag}=DIR" for flag in missing} == set(words[1:])


def test_the_model_is_a_row_of_its_own():
    model = quickstart.digits_vit(weights=None, input_shape=(32, 32, 3), classes=10)
    assert isinstance(model, keras.Model)
    assert model.name == "vit_digits"
    # 4 blocks of 4 D^2 + 4 D + 8 D^2 + 5 D + 4 D; patches, class token, positions, last norm and
    # head.
    width = 64
    blocks = 4 * (12 * width**2 + 13 * width)
    assert model.count_params() == blocks + (
        48 + 1
    ) * width + width + 65 * width + 2 * width + 10 * (width + 1)
