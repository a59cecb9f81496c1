import functools
import json
from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.grid import resize_positions
from keras_vit.models import resnet, vision_transformer
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS
from keras_vit.weights import (
    dialects,
    files,
    huggingface_config,
    huggingface_names,
    variables,
)
from keras_vit.weights.restore import state

pytestmark = pytest.mark.usefixtures("shallow")

SHAPE = (32, 48, 3)


def _randomized(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.standard_normal(weight.shape))
    return model


def _assert_same_bits(one, other):
    one, other = state(one.layers), state(other.layers)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.parametrize("target", ["model.npz", "model.safetensors", "folder", "model.weights.h5"])
@pytest.mark.parametrize("name", ["ViT_Ti16", "R_ViT_Ti16"])
@pytest.mark.sampled(4)
def test_there_and_back_is_bit_identical(name, target, tmp_path):
    """Also at a rectangular size, which no published file has: the grid is recorded."""
    model = _randomized(getattr(keras_vit, name)(weights=None, input_shape=(32, 64, 3), classes=5))
    path = tmp_path / target
    if target.endswith(".h5"):
        model.save_weights(path)
    elif name == "R_ViT_Ti16" and target == "folder":
        with pytest.raises(ValueError, match="conv_root"):
            keras_vit.save_checkpoint(model, path)
        assert not path.exists()
        return
    else:
        keras_vit.save_checkpoint(model, path)
    again = getattr(keras_vit, name)(weights=path, input_shape=(32, 64, 3), classes=5)
    _assert_same_bits(model, again)


@pytest.mark.parametrize("target", ["model.npz", "model.safetensors"])
@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1", "AxialResNet50"])
def test_resnets_there_and_back(name, target, tmp_path, tiny_resnet):
    row = tiny_resnet(RESNET_VARIANTS[name])
    model = _randomized(resnet(row, keras.Input(SHAPE), classes=5))
    if name != "BiT_R50x1" and target.endswith(".safetensors"):
        pytest.skip("timm has no post-activation ResNet of this kind")
    keras_vit.save_checkpoint(model, tmp_path / target)
    arrays = variables.to_keras(dialects.to_canonical(files.read(tmp_path / target).arrays))
    for key, array in state(model.layers).items():
        np.testing.assert_array_equal(arrays[key], array, err_msg=key)
    assert arrays.keys() == state(model.layers).keys()


@pytest.mark.parametrize(
    "options",
    [
        {"position_embedding": "learned_2d"},
        {"position_embedding": "relative"},
        {"position_placement": "every_layer"},
        {"position_placement": "shared"},
        {"position_embedding": "none"},
        {"classifier": "map"},
        {"classifier": "gap"},
        {"representation_size": 7},
    ],
    ids=str,
)
def test_every_option_there_and_back(options, tmp_path):
    model = _randomized(
        keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=5, **options)
    )
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    _assert_same_bits(
        model, keras_vit.ViT_Ti16(weights=tmp_path / "model.npz", classes=5, **options)
    )


def test_the_file_says_what_a_reader_must_know(tmp_path):
    model = _randomized(
        keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=5, gelu="exact")
    )
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    again = keras_vit.ViT_Ti16(weights=tmp_path / "model.npz", classes=5)
    assert again.input_shape == (None, *SHAPE)
    assert again.get_layer("encoderblock_0").gelu == "exact"
    assert np.load(tmp_path / "model.npz").files[0]  # plain NumPy reads it


def test_google_files_have_the_names_of_the_published_ones(tmp_path):
    keras_vit.save_checkpoint(keras_vit.ViT_Ti16(weights=None), tmp_path / "model.npz")
    names = set(np.load(tmp_path / "model.npz").files)
    assert len(names) == 40  # 8 and 16 for each block
    assert "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel" in names


def test_a_hugging_face_folder_has_its_config(tmp_path):
    keras_vit.save_checkpoint(
        keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=5), tmp_path / "folder"
    )
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    assert config["layer_norm_eps"] == 1e-6
    assert config["image_size"] == [32, 48]
    assert len(config["id2label"]) == 5
    pixels = json.loads((tmp_path / "folder" / "preprocessor_config.json").read_text())
    assert pixels["size"] == pixels["crop_size"] == {"height": 32, "width": 48}


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"representation_size": 7, "classes": 5}, "model.safetensors", "pre_logits"),
        ({"position_embedding": "learned_2d"}, "model.safetensors", "row_embedding"),
        ({}, "model.pth", r"\*.npz"),
    ],
)
def test_what_a_vocabulary_cannot_say_is_an_error_and_nothing_is_written(
    options, target, message, tiny_vit, tmp_path
):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), **options)
    with pytest.raises(ValueError, match=message):
        keras_vit.save_checkpoint(model, tmp_path / target)
    assert not list(tmp_path.iterdir())


def test_labels_are_in_the_config_of_a_hugging_face_folder(tmp_path):
    model = _randomized(keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=2))
    keras_vit.save_checkpoint(model, tmp_path / "folder", labels=["tulip", "daisy"])
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["id2label"] == {"0": "tulip", "1": "daisy"}
    assert config["label2id"] == {"tulip": 0, "daisy": 1}


@pytest.mark.parametrize(
    ("target", "labels", "message"),
    [
        ("model.npz", ["a", "b"], "config.json of a Hugging Face folder"),
        ("model.safetensors", ["a", "b"], "config.json of a Hugging Face folder"),
        ("folder", ["a"], "2 different names.*1 names"),
        ("folder", ["a", "a"], "2 different names.*2 names, 1 different"),
    ],
)
def test_labels_that_do_not_fit_are_an_error_and_nothing_is_written(
    target, labels, message, tmp_path
):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=2)
    with pytest.raises(ValueError, match=message):
        keras_vit.save_checkpoint(model, tmp_path / target, labels=labels)
    assert not list(tmp_path.iterdir())


def test_an_unknown_layout_lists_the_valid_ones(tiny_vit, tmp_path):
    with pytest.raises(ValueError, match="'google', 'timm', 'huggingface'.*'jax'"):
        keras_vit.save_checkpoint(
            vision_transformer(tiny_vit, keras.Input((32, 32, 3))), tmp_path / "a", "jax"
        )


@pytest.mark.parametrize(
    ("target", "layout", "message"),
    [
        ("vit", "timm", r"written into a file \*.safetensors. Received: 'vit'"),
        ("vit.npz", "timm", r"written into a file \*.safetensors. Received: 'vit.npz'"),
        ("vit.safetensors", "google", r"written into a file \*.npz"),
        ("vit", "google", r"written into a file \*.npz"),
        ("vit.npz", "huggingface", r"written into a folder, or into a file \*.safetensors"),
        ("vit.pth", "huggingface", r"written into a folder"),
        ("none/vit.npz", None, "There is no such folder. Create it first: '.*none'"),
    ],
)
def test_a_file_that_does_not_fit_the_layout_is_refused(target, layout, message, tmp_path):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=2)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        keras_vit.save_checkpoint(model, tmp_path / target, layout)
    assert not list(tmp_path.iterdir())


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = keras_vit.ViT_Ti16(weights=None, input_shape=SHAPE, classes=2)
    keras_vit.save_checkpoint(model, "~/vit.npz")
    keras_vit.save_checkpoint(model, "~/folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "vit.npz"]


def test_heads_of_unusual_models_are_recorded(tmp_path):
    """32 heads of size 6 fit no row, so a reader could not guess them."""
    row = replace(VIT_VARIANTS["ViT_Ti16"], depth=1, num_heads=32)
    model = _randomized(vision_transformer(row, keras.Input((32, 32, 3))))
    keras_vit.save_checkpoint(model, tmp_path / "model.safetensors")
    read = files.read(tmp_path / "model.safetensors")
    arrays = dialects.to_canonical(read.arrays, read.metadata["num_heads"], read.metadata["grid"])
    assert arrays[
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
    ].shape == (192, 32, 6)


# Axial models, which no published file holds.


def _axial(tiny_vit, **changes):
    return replace(tiny_vit, axial=True, **changes)


@pytest.mark.parametrize("target", ["model.npz", "model.weights.h5"])
@pytest.mark.parametrize(
    "options", [{}, {"position_embedding": "relative"}, {"classifier": "map"}], ids=str
)
@pytest.mark.sampled(3)
def test_an_axial_vit_there_and_back(options, target, tiny_vit, tmp_path):
    build = keras_vit.application(_axial(tiny_vit))
    model = _randomized(build(weights=None, input_shape=SHAPE, classes=5, **options))
    path = tmp_path / target
    (
        model.save_weights
        if target.endswith(".h5")
        else functools.partial(keras_vit.save_checkpoint, model)
    )(path)
    _assert_same_bits(model, build(weights=path, input_shape=SHAPE, classes=5, **options))


def test_an_axial_vit_at_another_size_resizes_its_positions(tiny_vit, tmp_path):
    build = keras_vit.application(_axial(tiny_vit))
    model = _randomized(build(weights=None, input_shape=SHAPE, classes=5))
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    assert build(weights=tmp_path / "model.npz", classes=5).input_shape == (None, *SHAPE)
    large = build(weights=tmp_path / "model.npz", input_shape=(64, 40, 3), classes=5)
    table = model.get_layer("posembed_input").get_weights()[0]
    expected = resize_positions(table, (4, 6), (8, 5))
    np.testing.assert_array_equal(large.get_layer("posembed_input").get_weights()[0], expected)
    trunk = build(weights=tmp_path / "model.npz", include_top=False, pooling="avg")
    assert trunk.input_shape == (None, *SHAPE) and trunk.output_shape == (None, 16)


@pytest.mark.parametrize("stem", [False, True])
def test_relative_positions_of_axial_models_belong_to_one_size(
    stem, tiny_vit, tmp_path, tiny_resnet
):
    row = tiny_resnet(RESNET_VARIANTS["AxialResNet50"]) if stem else _axial(tiny_vit)
    options = {} if stem else {"position_embedding": "relative"}
    build = keras_vit.application(row)
    model = _randomized(build(weights=None, input_shape=SHAPE, classes=5, **options))
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    assert build(weights=tmp_path / "model.npz", classes=5, **options).input_shape == (None, *SHAPE)
    with pytest.raises(
        ValueError,
        match=r"(?s)row/\S*relative_embedding.*positions cannot be resampled: pass the `input_",
    ):
        build(weights=tmp_path / "model.npz", classes=5, input_shape=(48, 64, 3), **options)


def test_an_axial_stem_keeps_its_own_head_count(tiny_vit, tmp_path, tiny_resnet):
    row = replace(tiny_vit, patch_size=1, stem=tiny_resnet(RESNET_VARIANTS["AxialResNet50"]))
    build = keras_vit.application(row)
    model = _randomized(build(weights=None, input_shape=SHAPE, classes=5))
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    _assert_same_bits(model, build(weights=tmp_path / "model.npz", classes=5))


@pytest.mark.parametrize("layout", ["timm", "huggingface"])
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_axial_models_are_in_no_vocabulary_but_ours(kind, layout, tiny_vit, tmp_path, tiny_resnet):
    images = keras.Input(SHAPE)
    resnet_row = tiny_resnet(RESNET_VARIANTS["AxialResNet50"])
    model = (
        vision_transformer(_axial(tiny_vit), images)
        if kind == "vit"
        else resnet(resnet_row, images)
    )
    with pytest.raises(ValueError, match=f"dialect {layout} cannot express.*column/.*Use google"):
        keras_vit.save_checkpoint(model, tmp_path / "model", layout)
    assert not list(tmp_path.iterdir())


def test_the_names_of_an_axial_file(tiny_vit, tmp_path):
    model = vision_transformer(_axial(tiny_vit), keras.Input(SHAPE), classes=5)
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    names = set(np.load(tmp_path / "model.npz").files)
    assert "Transformer/encoderblock_1/row/LayerNorm_0/scale" in names
    assert "Transformer/encoderblock_1/column/MultiHeadDotProductAttention_0/query/kernel" in names
    assert "cls" not in names


@pytest.mark.parametrize("reader_is_axial", [False, True])
def test_a_file_of_the_other_kind_is_refused(reader_is_axial, tiny_vit, tmp_path):
    writer = keras_vit.application(replace(tiny_vit, axial=not reader_is_axial))
    reader = keras_vit.application(replace(tiny_vit, axial=reader_is_axial))
    options = {"input_shape": SHAPE, "classes": 5, "classifier": "gap"}
    keras_vit.save_checkpoint(_randomized(writer(weights=None, **options)), tmp_path / "model.npz")
    with pytest.raises(ValueError, match="Either the model or the checkpoint is axial"):
        reader(weights=tmp_path / "model.npz", **options)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_saved(number, tmp_path):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=2)
    kernel = model.get_layer("predictions").kernel
    kernel.assign(np.full(kernel.shape, number))
    with pytest.raises(
        ValueError, match=r"is not written: 1 of \d+ arrays contain NaN or infinity .head/kernel"
    ):
        keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("distilled", "ends"), [(True, "WithTeacher"), (False, "Classification")])
def test_a_deit_without_a_teacher_has_the_class_of_one_head(distilled, ends):
    """Transformers would draw the second head at random."""
    arrays = {
        "embedding/kernel": np.zeros((8, 8, 3, 16)),
        "cls": np.zeros((1, 1, 16)),
        "dist": np.zeros((1, 1, 16)),
        "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel": np.zeros((16, 32)),
        "head/kernel": np.zeros((16, 3)),
    }
    arrays |= {"head_dist/kernel": np.zeros((16, 3))} if distilled else {}
    assert huggingface_names.find_model_type(arrays, False) == "deit"
    facts = {"rotary": False, "grid": (4, 4), "num_heads": 2, "gelu": "exact"}
    found = huggingface_config.make_config(arrays, {**facts, "layer_norm_epsilon": 1e-6})
    assert len(found["architectures"]) == 1 and found["architectures"][0].endswith(ends)


def test_the_ratio_of_a_gated_mlp_is_the_one_that_transformers_rounds():
    """DINOv2 g: a width of 1536 and a ratio of 4 give 4096 hidden units."""
    assert huggingface_config._find_ratio(1536, 4096, True) == 4
    assert huggingface_config._find_ratio(768, 3072, False) == 4
    assert huggingface_config._find_ratio(768, 1920, False) == 2.5
    with pytest.raises(ValueError, match="cannot have 4097 hidden units"):
        huggingface_config._find_ratio(1536, 4097, True)


@pytest.mark.parametrize("name", ["ViT_Ti16", "DeiT_Ti16", "DINOv2_S14", "CLIP_B16"])
def test_dropout_is_named_where_the_class_of_transformers_has_it(name, tmp_path):
    """KerasHub refuses a ViT whose `config.json` does not name it."""
    row = replace(VARIANTS[name], depth=1, width=32, num_heads=2, mlp_dim=64)
    model = keras_vit.application(row)(weights=None, input_shape=(112, 112, 3), include_top=False)
    keras_vit.save_checkpoint(model, tmp_path / "model", "huggingface")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    named = {key: value for key, value in config.items() if "dropout" in key}
    fields = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    assert named == ({} if name.startswith("CLIP") else fields)
