import functools
import re
import warnings
import zipfile
from dataclasses import replace

import absl.logging
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.grid import resize_positions
from keras_vit.keras_file import load
from keras_vit.models import resnet, vision_transformer
from keras_vit.variants import RESNET_VARIANTS
from keras_vit.weights import hdf5, keras_h5
from keras_vit.weights.restore import state

OPTIONS = [
    {"classes": 3, "representation_size": 5},
    {"classes": 3, "classifier": "map"},
    {"position_embedding": "learned_2d"},
    {"position_embedding": "relative"},
    {"position_placement": "every_layer"},
]


def _same(named, model):
    expected = state(model.layers)
    assert named.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(named[name], array, err_msg=name)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_variable_of_a_vit_comes_back_under_its_name(options, tiny_vit, tmp_path):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), **options)
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5")[0], model)


@pytest.mark.parametrize("position_embedding", ["learned_1d", "relative"])
def test_every_variable_of_an_axial_vit_comes_back_under_its_name(
    position_embedding, tiny_vit, tmp_path
):
    row = replace(tiny_vit, axial=True)
    model = vision_transformer(
        row, keras.Input((32, 48, 3)), classes=3, position_embedding=position_embedding
    )
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5")[0], model)


@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1", "AxialResNet50"])
def test_every_variable_of_a_resnet_comes_back_under_its_name(name, tmp_path, tiny_resnet):
    model = resnet(tiny_resnet(RESNET_VARIANTS[name]), keras.Input((32, 32, 3)), classes=3)
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5")[0], model)


def test_a_trained_model_brings_no_optimizer_state(tiny_vit, tmp_path):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=3)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5")[0], model)


def test_a_truncated_file_is_an_error(tiny_vit, tmp_path):
    path = tmp_path / "model.weights.h5"
    vision_transformer(tiny_vit, keras.Input((32, 32, 3))).save_weights(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"Cannot read .*model\.weights\.h5.*truncated"):
        keras_h5.read(path)


def test_another_hdf5_file_is_an_error(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "other.weights.h5"
    with h5py.File(path, "w") as file:
        file["conv1/kernel"] = np.zeros(3)
    with pytest.raises(ValueError, match="no group `layers`"):
        keras_h5.read(path)


# --- what is no variable
# ---------------------------------------------------------------------------------------------


def _randomized(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.standard_normal(weight.shape))
    return model


def _forget_constants(path):
    """The file as older versions wrote it."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        places = []
        file.visit(lambda name: places.append(name) if name.endswith("vars/constants") else None)
        for place in places:
            del file[place]
    assert places


@pytest.fixture
def build(tiny_vit):
    """Images of 16 x 64 pixels: 2 x 8 patches, as many as the 4 x 4 of a square."""
    build = keras_vit.application(tiny_vit)
    return lambda **options: build(**{"input_shape": (16, 64, 3), "classes": 5, **options})


def test_positions_of_an_oblong_grid_are_not_taken_for_those_of_a_square(build, tmp_path):
    model = _randomized(build(weights=None))
    model.save_weights(path := tmp_path / "model.weights.h5")
    images = np.random.default_rng(1).standard_normal((2, 16, 64, 3)).astype("float32")
    again = build(weights=path)
    np.testing.assert_array_equal(
        again.get_layer("posembed_input").get_weights(),
        model.get_layer("posembed_input").get_weights(),
    )
    np.testing.assert_array_equal(again.predict_on_batch(images), model.predict_on_batch(images))
    larger = (
        build(weights=path, input_shape=(32, 64, 3)).get_layer("posembed_input").get_weights()[0]
    )
    table = model.get_layer("posembed_input").get_weights()[0]
    np.testing.assert_array_equal(larger, resize_positions(table, (2, 8), (4, 8)))


def test_constants_come_back_with_the_variables(build, tmp_path):
    model = _randomized(build(weights=None, gelu="exact", norm_epsilon=1e-3))
    model.save_weights(path := tmp_path / "model.weights.h5")
    assert keras_h5.read(path)[1] == {
        "grid": (2, 8),
        "gelu": "exact",
        "layer_norm_epsilon": 1e-3,
        "num_heads": 2,
        "classifier": "token",
    }
    block = build(weights=path).get_layer("encoderblock_1")
    assert (block.gelu, block.norm_epsilon) == ("exact", 1e-3)


def test_a_file_without_constants_is_read_with_a_warning(build, tmp_path, caplog):
    model = _randomized(build(weights=None, input_shape=(32, 32, 3)))
    model.save_weights(path := tmp_path / "model.weights.h5")
    _forget_constants(path)
    absl.logging.get_absl_logger().propagate = True
    with caplog.at_level("WARNING", logger="absl"):
        again = build(weights=path, input_shape=(32, 32, 3))
    assert "does not contain its form of GELU" in caplog.text
    np.testing.assert_array_equal(
        again.get_layer("posembed_input").get_weights(),
        model.get_layer("posembed_input").get_weights(),
    )
    with pytest.raises(ValueError, match=r"may be of 4 x 4 patches or.*2 x 8.*checkpoint_grid"):
        build(weights=path)
    model.load_weights(path)  # Keras alone reads it too


def test_layers_that_disagree_are_refused(build, tmp_path):
    """Two files were mixed: a block with exact GELU in a model with the approximation."""
    h5py = pytest.importorskip("h5py")
    paths = {}
    for gelu in ("tanh", "exact"):
        paths[gelu] = tmp_path / f"{gelu}.weights.h5"
        build(weights=None, gelu=gelu).save_weights(paths[gelu])
    found: list[str] = []
    with h5py.File(paths["exact"]) as theirs, h5py.File(paths["tanh"], "a") as ours:
        theirs.visit(
            lambda name: found.append(name) if name.endswith(keras_h5._CONSTANTS) else None
        )
        of_a_block = next(name for name in found if b'"gelu"' in theirs[name][()].tobytes())
        del ours[of_a_block]
        theirs.copy(of_a_block, ours, of_a_block)
    with pytest.raises(ValueError, match="its layers disagree about gelu"):
        build(weights=paths["tanh"])


@pytest.mark.once
@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
def test_files_of_every_version_of_hdf5_are_read(version, tmp_path):
    """And a truncated one is noticed by its header."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.h5"
    with h5py.File(path, "w", libver=version) as file:
        file["x"] = np.arange(1000.0)
    hdf5.check_end(path)
    with hdf5.open_file(path) as file:
        np.testing.assert_array_equal(file["x"], np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        hdf5.check_end(path)


def test_keras_s_own_loading_refuses_a_table_of_another_grid(build, tmp_path):
    build(weights=None).save_weights(path := tmp_path / "model.weights.h5")
    build(weights=None).load_weights(path)
    # Keras warns of what contains the layer, too.
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(
            ValueError, match="of 2 x 8 patches, that of the layer posembed_input of 4 x 4"
        ),
    ):
        build(weights=None, input_shape=(32, 32, 3)).load_weights(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"num_heads": 2',
            '"num_heads": 4',
            "trained with num_heads 2, and this layer has num_heads 4",
        ),
        ('"gelu": "tanh"', '"gelu": "exact"', "trained with gelu 'tanh'"),
        ('"norm_epsilon": 1e-06', '"norm_epsilon": 0.01', "trained with layer_norm_epsilon 1e-06"),
        ('"epsilon": 1e-06', '"epsilon": "x"', "above 0 and at most 1. Received: 'x'"),
        ('"epsilon": 1e-06', '"epsilon": -1', "above 0 and at most 1. Received: -1"),
        ('"epsilon": 1e-06', '"epsilon": null', "above 0 and at most 1. Received: None"),
    ],
)
def test_a_keras_file_with_other_constants_in_its_config_is_refused(
    build, tmp_path, old: str, new: str, said: str
):
    build(weights=None).save(path := tmp_path / "model.keras")
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    changed = members["config.json"].replace(old.encode(), new.encode())
    assert changed != members["config.json"]
    with zipfile.ZipFile(path, "w") as damaged:
        for name, content in {**members, "config.json": changed}.items():
            damaged.writestr(name, content)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ValueError, match=re.escape(said)),
    ):
        load(path)


def test_whole_keras_files_hold_constants_too(build, tmp_path):
    model = _randomized(build(weights=None))
    model.save(tmp_path / "model.keras")
    for mine, again in zip(
        model.get_weights(),
        keras.models.load_model(tmp_path / "model.keras").get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, again)


@pytest.mark.parametrize("target", ["model.npz", "model.weights.h5", "model.safetensors"])
def test_weights_of_another_number_of_heads_are_refused(target, tiny_vit, tmp_path):
    """Kernels have the same shape whatever the number of heads."""
    build = keras_vit.application(replace(tiny_vit, num_heads=4))
    four = _randomized(build(weights=None, input_shape=(32, 32, 3), classes=5))
    save = (
        four.save_weights
        if target.endswith(".h5")
        else functools.partial(keras_vit.save_checkpoint, four)
    )
    save(tmp_path / target)
    with pytest.raises(ValueError, match="trained with 4 attention heads, and tiny has 2"):
        keras_vit.application(tiny_vit)(
            weights=tmp_path / target, input_shape=(32, 32, 3), classes=5
        )


# --- files that are bad
# ----------------------------------------------------------------------------------------------


def _changed(path, change):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        change(h5py, file)


def _first(file):
    """The variables of the layer `embedding`."""
    return file["layers/patch_embedding/vars"]


def _replace(file, value, **options):
    del _first(file)["1"]
    _first(file).create_dataset("1", data=value, **options)


@pytest.mark.once
@pytest.mark.parametrize(
    "change",
    [
        lambda h5py, file: _replace(file, "text"),
        lambda h5py, file: _replace(file, np.zeros(16, "complex64")),
        lambda h5py, file: _replace(file, np.zeros(16, [("a", "f4")])),
        lambda h5py, file: _replace(file, np.full(16, np.nan, "f4")),
        lambda h5py, file: _replace(file, np.full(16, 1e300)),
        lambda h5py, file: _first(file).__setitem__("7x", np.zeros(16)),
        lambda h5py, file: _first(file).attrs.__setitem__("name", 7),
        lambda h5py, file: _first(file).attrs.__delitem__("name"),
        lambda h5py, file: file["layers"].__setitem__("more", np.zeros(3)),
        lambda h5py, file: file["layers/patch_embedding"].__setitem__("again", file["layers"]),
        lambda h5py, file: (_first(file).__delitem__("1"), _first(file).__setitem__("1", h5py.SoftLink("/nowhere"))),
        lambda h5py, file: (_first(file).__delitem__("1"), _first(file).__setitem__("1", h5py.ExternalLink("a", "b"))),
        lambda h5py, file: (_first(file).__delitem__("1"), _first(file).create_dataset("1", (16,), "f4")),
        lambda h5py, file: (
            _first(file).__delitem__("1"),
            _first(file).create_dataset("1", (16,), "f4", external=[("/etc/hostname", 0, 64)]),
        ),
        lambda h5py, file: file["layers/add_position_embs/vars/constants"].__setitem__(12, 99),
    ],
)  # fmt: skip
def test_what_keras_would_not_write_is_refused_in_one_sentence(change, build, tmp_path):
    build(weights=None).save_weights(path := tmp_path / "model.weights.h5")
    _changed(path, change)
    with pytest.raises(
        ValueError,
        match=r"Cannot read '.*model\.weights\.h5' as a (Keras weights file|checkpoint): ",
    ) as caught:
        keras_h5.read(path)
    assert "\n" not in str(caught.value)
