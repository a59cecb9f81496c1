"""A short row of each family through Keras's own formats, without custom objects and in safe
mode.
"""

from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

HYBRID = VIT_VARIANTS["R26_ViT_S32"]
FAMILIES = {
    "ViT": replace(VIT_VARIANTS["ViT_Ti16"], depth=2),
    "hybrid": replace(
        HYBRID, depth=1, width=48, num_heads=3, mlp_dim=64, stem=replace(HYBRID.stem, units=(2, 1))
    ),
    "BiT": replace(RESNET_VARIANTS["BiT_R50x1"], units=(2, 1)),
    "ResNet": replace(RESNET_VARIANTS["ResNet50x1"], units=(2, 1)),
}
SHAPE = (64, 96, 3)
SLOW_ON_JAX = pytest.mark.slow if keras.backend.backend() == "jax" else ()  # compiling


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=SLOW_ON_JAX if name in ("hybrid", "ResNet") else ())
        for name in FAMILIES
    ],
)
def model(request):
    build = keras_vit.application(FAMILIES[request.param])
    model = build(weights=None, input_shape=SHAPE, classes=5, classifier_activation=None)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + 0.02 * rng.standard_normal(weight.shape))
    return model


@pytest.fixture
def images():
    return np.random.default_rng(1).uniform(-1, 1, (2, *SHAPE)).astype("float32")


def _outputs(model, images):
    return keras.ops.convert_to_numpy(model(images))


def test_keras_file(model, images, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_allclose(
        _outputs(loaded, images), _outputs(model, images), rtol=1e-5, atol=1e-5
    )


def test_a_loaded_model_can_be_written_for_others(model, tmp_path):
    """A model from a `.keras` file is as good as one from the front door."""
    model.save(tmp_path / "model.keras")
    keras_vit.save_checkpoint(
        keras.saving.load_model(tmp_path / "model.keras"), tmp_path / "loaded.npz"
    )
    keras_vit.save_checkpoint(model, tmp_path / "built.npz")
    assert (tmp_path / "loaded.npz").read_bytes() == (tmp_path / "built.npz").read_bytes()


def test_weights_file(model, images, tmp_path):
    model.save_weights(tmp_path / "model.weights.h5")
    expected = _outputs(model, images)
    fresh = keras.models.clone_model(model)
    assert not np.allclose(_outputs(fresh, images), expected)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(_outputs(fresh, images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.sampled(2)
def test_saved_model(model, images, tmp_path):
    import tensorflow as tf

    model.export(tmp_path / "saved_model", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved_model")
    np.testing.assert_allclose(
        served.serve(images).numpy(), _outputs(model, images), rtol=1e-4, atol=1e-5
    )


@pytest.mark.tensorflow
def test_saved_model_of_open_size(tmp_path):
    import tensorflow as tf

    model = keras_vit.application(FAMILIES["ViT"])(weights=None, include_top=False, pooling="token")
    model.export(tmp_path / "saved_model", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved_model")
    for shape in ((1, 32, 48, 3), (3, 64, 64, 3)):
        images = np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")
        np.testing.assert_allclose(
            served.serve(images).numpy(), _outputs(model, images), rtol=1e-4, atol=1e-5
        )
