"""Classifiers as their weights say."""

import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from synthetic_checkpoint import checkpoint

import keras_vit
from keras_vit.applications import application
from keras_vit.evaluate.classifier import build, class_names, names_for, representation
from keras_vit.evaluate.features import feature_model
from keras_vit.pixels import pixels_of
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights import files
from keras_vit.weights.save import save_checkpoint

pytestmark = pytest.mark.usefixtures("shallow")

TI16 = replace(VIT_VARIANTS["ViT_Ti16"], depth=2)  # as `shallow` has it


@pytest.mark.parametrize(
    ("classifier", "layer"),
    [("token", "class_token"), ("gap", "encoder_norm"), ("map", "map_head")],
)
def test_a_model_is_built_with_the_head_of_its_file(classifier: str, layer: str, tmp_path: Path):
    np.savez(
        tmp_path / "file.npz", **checkpoint(TI16, image_size=32, classes=7, classifier=classifier)
    )
    model = build("ViT_Ti16", tmp_path / "file.npz", (48, 32))
    assert model.input_shape == (None, 48, 32, 3)
    assert model.output_shape == (None, 7)
    assert model.get_layer("predictions").activation.__name__ == "linear"
    assert layer in [each.name for each in model.layers]


def test_a_file_without_a_head_predicts_nothing(tmp_path: Path):
    np.savez(tmp_path / "file.npz", **checkpoint(TI16, image_size=32, classes=None))
    with pytest.raises(ValueError, match="has no classification head"):
        build("ViT_Ti16", tmp_path / "file.npz")


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_a_head_that_does_not_choose_a_class_is_refused(problem: str, tmp_path: Path):
    model = application(VIT_VARIANTS["ViT_Ti16"])(weights=None, input_shape=(32, 32, 3), classes=3)
    save_checkpoint(model, tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    (tmp_path / "vit" / "config.json").write_text(json.dumps({**config, "problem_type": problem}))
    with pytest.raises(ValueError, match=f"problem_type: {problem}.*classifier_activation=None"):
        build("ViT_Ti16", tmp_path / "vit")
    assert representation("ViT_Ti16", tmp_path / "vit").output_shape == (None, 192)


@pytest.mark.parametrize("classifier", ["token", "gap", "token_gap"])
def test_head_and_representation_read_what_the_file_was_trained_on(classifier, tmp_path: Path):
    options = {"input_shape": (32, 32, 3), "classes": 3, "classifier_activation": None}
    model = keras_vit.DeiT_Ti16(weights=None, classifier=classifier, **options)
    generator = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(generator.normal(weight.path.endswith("gamma"), 0.1, weight.shape))
    save_checkpoint(model, tmp_path / "vit.npz")
    images = generator.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    again = build("DeiT_Ti16", tmp_path / "vit.npz")
    np.testing.assert_array_equal(again.predict(images), model.predict(images))
    features = representation("DeiT_Ti16", tmp_path / "vit.npz").predict(images)
    expected = keras.Model(model.input, model.get_layer("pooled").output).predict(images)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_a_fine_tuned_copy_may_have_the_name_of_a_published_file(tmp_path: Path):
    model = application(VIT_VARIANTS["ViT_B16"])(weights=None, input_shape=(32, 32, 3), classes=3)
    head = model.get_layer("predictions")
    head.kernel.assign(np.ones(head.kernel.shape))
    save_checkpoint(model, tmp_path / "ViT-B_16.npz")
    assert build("ViT_B16", tmp_path / "ViT-B_16.npz").output_shape == (None, 3)


def test_a_published_head_of_zeros_is_refused_before_the_download():
    with pytest.raises(ValueError, match="all zeros.*augreg_in21k"):
        build("ViT_B16", "imagenet21k")


def test_names_are_read_beside_the_weights(tmp_path: Path):
    assert class_names("imagenet") == class_names(tmp_path / "model.npz") == []
    (tmp_path / "model.npz").touch()
    assert class_names(tmp_path / "model.npz") == []
    (tmp_path / "classes.txt").write_text("a cat\n🐱\x0b\n-v\n", encoding="utf-8")
    assert class_names(tmp_path / "model.npz") == ["a cat", "🐱\x0b", "-v"]


def test_names_as_editors_of_windows_save_them(tmp_path: Path):
    (tmp_path / "model.npz").touch()
    (tmp_path / "classes.txt").write_bytes("\ufeffä cat\r\ndog\r\n\r\n".encode())
    assert class_names(tmp_path / "model.npz") == ["ä cat", "dog"]
    (tmp_path / "classes.txt").write_bytes("ä cat\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"classes\.txt is not UTF-8: .* Save it as UTF-8\."):
        class_names(tmp_path / "model.npz")
    (tmp_path / "classes.txt").write_bytes(b"\n")
    assert class_names(tmp_path / "model.npz") == []


def test_there_are_as_many_names_as_classes(tmp_path: Path):
    images = keras.Input((8, 8, 3))
    features = keras.layers.GlobalAveragePooling2D()(images)
    headless = keras.Model(images, features)
    model = keras.Model(images, keras.layers.Dense(2)(features), name="mine")
    (tmp_path / "model.keras").touch()
    assert names_for(model, tmp_path / "model.keras") == []
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8")
    assert names_for(model, tmp_path / "model.keras") == ["cat", "dog"]
    assert names_for(headless, tmp_path / "model.keras") == []
    (tmp_path / "classes.txt").write_text("cat\ndog\nowl\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"classes\.txt has 3 names, and mine gives 2 classes\. Correct the file"
    ):
        names_for(model, tmp_path / "model.keras")


def test_a_saved_model_is_loaded_as_it_is(tmp_path: Path):
    saved = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")]
    )
    saved.save(tmp_path / "model.keras")
    pixels = np.ones((1, 8, 8, 3), "float32")
    np.testing.assert_allclose(build(tmp_path / "model.keras")(pixels), saved(pixels), rtol=1e-6)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n", encoding="utf-8")
    assert class_names(tmp_path / "model.keras") == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no file .*other.keras"):
        build(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="includes its weights"):
        build(tmp_path / "model.keras", "imagenet")


@pytest.mark.parametrize(
    "options", [{}, {"classifier": "gap"}, {"classifier": "map"}, {"representation_size": 24}]
)
def test_what_stands_before_the_head_is_what_the_head_reads(options: dict, tmp_path: Path):
    arrays = checkpoint(TI16, image_size=32, classes=7, **options)
    np.savez(tmp_path / "file.npz", **arrays)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    whole = build("ViT_Ti16", tmp_path / "file.npz", (32, 32))
    expected = feature_model(whole, "pre_logits")(pixels)
    vectors = representation("ViT_Ti16", tmp_path / "file.npz", (32, 32))(pixels)
    assert vectors.shape == (2, options.get("representation_size", 192))
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)
    kernel, bias = whole.get_layer("predictions").get_weights()
    np.testing.assert_allclose(
        np.asarray(vectors) @ kernel + bias, whole(pixels), rtol=1e-4, atol=1e-4
    )


def test_only_the_last_dense_layer_of_a_file_is_its_head(tmp_path: Path):
    images = keras.Input((8, 8, 3))
    hidden = keras.layers.Dense(6)(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images)))
    keras.Model(images, keras.layers.Dense(3)(hidden)).save(tmp_path / "model.keras")
    vectors = representation(tmp_path / "model.keras")
    assert vectors.output_shape == (None, 6)
    assert feature_model(vectors, "pre_logits").output_shape == (None, 6)
    assert feature_model(build(tmp_path / "model.keras"), "pre_logits").output_shape == (None, 6)


def test_a_file_without_a_head_has_a_representation(tmp_path: Path):
    np.savez(tmp_path / "file.npz", **checkpoint(TI16, image_size=32, classes=None))
    assert representation("ViT_Ti16", tmp_path / "file.npz").output_shape == (None, 192)
    assert representation("ResNet50x1", "none", (64, 64)).output_shape == (None, 2048)
    with pytest.raises(ValueError, match="Weights are missing"):
        representation("ViT_Ti16")


def test_a_representation_is_of_the_size_of_its_weights_unless_another_is_asked_for(tmp_path: Path):
    arrays = checkpoint(TI16, image_size=(32, 48), classes=None)
    recorded = {"image_size": (32, 48), "grid": (2, 3)}
    files.write_npz(tmp_path / "file.npz", arrays, recorded)
    for asked, expected in ((None, (32, 48)), ((64, 32), (64, 32))):
        model = representation("ViT_Ti16", tmp_path / "file.npz", asked)
        assert model.input_shape == (None, *expected, 3)


def test_a_representation_takes_the_pixels_that_are_asked_for():
    for pixels, expected in ((None, [-1, 1]), ("0..1", [0, 1])):
        model = representation("ViT_Ti16", "none", (32, 32), pixels)
        assert pixels_of(model).range == expected


def test_a_model_of_gray_images_is_not_for_photographs(tiny_vit, tmp_path):
    model = application(tiny_vit)(weights=None, input_shape=(32, 32, 1), classes=3)
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="takes images with 1 channels, but photographs have 3"):
        build(tmp_path / "model.keras")
