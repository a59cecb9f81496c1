from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_vit.models import resnet, vision_transformer
from keras_vit.variants import RESNET_VARIANTS
from keras_vit.weights import keras_h5
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
    _same(keras_h5.read(tmp_path / "model.weights.h5"), model)


@pytest.mark.parametrize("position_embedding", ["learned_1d", "relative"])
def test_every_variable_of_an_axial_vit_comes_back_under_its_name(position_embedding, tiny_vit, tmp_path):
    row = replace(tiny_vit, axial=True)
    model = vision_transformer(row, keras.Input((32, 48, 3)), classes=3, position_embedding=position_embedding)
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5"), model)


@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1", "AxialResNet50"])
def test_every_variable_of_a_resnet_comes_back_under_its_name(name, tmp_path, tiny_resnet):
    model = resnet(tiny_resnet(RESNET_VARIANTS[name]), keras.Input((32, 32, 3)), classes=3)
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5"), model)


def test_a_trained_model_brings_no_optimizer_state(tiny_vit, tmp_path):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=3)
    model.compile("adam", "mse")
    model.train_on_batch(np.zeros((1, 32, 32, 3)), np.zeros((1, 3)))
    model.save_weights(tmp_path / "model.weights.h5")
    _same(keras_h5.read(tmp_path / "model.weights.h5"), model)


def test_a_truncated_file_is_an_error(tiny_vit, tmp_path):
    path = tmp_path / "model.weights.h5"
    vision_transformer(tiny_vit, keras.Input((32, 32, 3))).save_weights(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"Cannot read .*model\.weights\.h5.*save_weights"):
        keras_h5.read(path)


def test_another_hdf5_file_is_an_error(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "other.weights.h5"
    with h5py.File(path, "w") as file:
        file["conv1/kernel"] = np.zeros(3)
    with pytest.raises(ValueError, match="no group `layers`"):
        keras_h5.read(path)
