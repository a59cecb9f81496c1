"""Where weights are found: tags, files, URLs."""

from dataclasses import fields, replace

import keras
import numpy as np
import pytest
import safetensors.numpy
from numbered_arrays import TINY, tiny

import keras_vit
from keras_vit.weights import dialects, files, source


@pytest.mark.once
def test_a_folder_with_the_name_of_a_tag_does_not_hide_the_tag(tmp_path, monkeypatch):
    (tmp_path / "imagenet/val").mkdir(parents=True)
    (tmp_path / "ViT-B_16.npz").touch()
    monkeypatch.chdir(tmp_path)
    assert source.find("ViT_B16", "imagenet").is_tag
    assert source.find("DINOv2_B14", "imagenet").is_tag
    for path in ("./imagenet", tmp_path / "imagenet", "ViT-B_16.npz", "hf://google/vit"):
        assert not source.find("ViT_B16", path).is_tag
    # A model that has no such tag, and a model of the user's
    assert not source.find("ViT_H14", "imagenet").is_tag
    assert not source.find("mine", "imagenet").is_tag


@pytest.mark.once
@pytest.mark.parametrize(
    ("dialect", "gelu"), [("google", "tanh"), ("timm", "exact"), ("huggingface", "exact")]
)
def test_a_file_without_its_form_of_gelu_has_that_of_its_package(dialect, gelu, tmp_path):
    """Google trained the ViTs with the tanh form; timm and Transformers compute the exact one."""
    path = tmp_path / ("file.npz" if dialect == "google" else "file.safetensors")
    write = files.write_npz if dialect == "google" else files.write_safetensors
    write(path, dialects.from_canonical(tiny(), dialect))
    assert source.load(source.find("tiny", path, variant=TINY)).gelu == gelu


@pytest.mark.tensorflow
def test_a_head_that_timm_trained_on_the_mean_of_the_patches_reads_them(tiny_vit, tmp_path):
    """timm's `global_pool="avg"` keeps the class token, and has `fc_norm` in place of `norm`."""
    build = keras_vit.application(replace(tiny_vit, gelu="exact"))
    options = {"input_shape": (32, 32, 3), "classes": 3, "classifier_activation": None}
    other = build(weights=None, **options)
    draws = np.random.default_rng(0)
    for variable in other.trainable_variables:
        variable.assign(draws.normal(size=variable.shape) * 0.3)
    keras_vit.save_checkpoint(other, tmp_path / "token.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "token.safetensors")
    names = {name: f"fc_{name}" if name.startswith("norm.") else name for name in arrays}
    arrays = {names[name]: array for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "mean.safetensors")
    model = build(weights=tmp_path / "mean.safetensors", **options)
    images = draws.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    last = keras.Model(other.input, other.get_layer("encoderblock_1").output)
    mean = last.predict(images, verbose=0)[:, 1:].mean(1)
    centred = mean - mean.mean(-1, keepdims=True)
    normal = centred / np.sqrt(mean.var(-1, keepdims=True) + tiny_vit.norm_epsilon)
    vectors = normal * arrays["fc_norm.weight"] + arrays["fc_norm.bias"]
    expected = vectors @ arrays["head.weight"].T + arrays["head.bias"]
    found = model.predict(images, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    keras_vit.save_checkpoint(model, tmp_path / "again.safetensors")
    again = safetensors.numpy.load_file(tmp_path / "again.safetensors")
    assert {name: array.tolist() for name, array in again.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


@pytest.mark.once
def test_the_hash_of_weights_depends_on_numbers_and_not_on_their_order():
    draws = np.random.default_rng(0)
    arrays = {name: draws.normal(size=3) for name in ("b", "a", "c")}
    found = source.Pretrained(
        **{field.name: None for field in fields(source.Pretrained)} | {"arrays": arrays}
    )
    turned = replace(found, arrays=dict(sorted(arrays.items())))
    assert turned.sha256() == found.sha256()
    assert replace(found, arrays=arrays | {"a": arrays["c"]}).sha256() != found.sha256()
    assert replace(found, gelu="tanh").sha256() != found.sha256()
