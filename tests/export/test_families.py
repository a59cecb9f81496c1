"""Exports of the other families: SwiGLU, registers, two heads, rotary positions at any size."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_families import build

from keras_vit.export.saved_model import saved_model
from keras_vit.export.tflite import tflite

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

RNG = np.random.default_rng(0)


def _pixels(*size: int) -> np.ndarray:
    return RNG.uniform(-1, 1, (2, *size, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["DeiT_B16_distilled", "DINOv2_g14_reg4", "DINOv3_S16plus"])
def test_keras_exports_a_model_of_open_size(name, tmp_path):
    model = build(name, input_shape=(None, None, 3))
    model.export(tmp_path / "vit", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "vit"))
    for size in ((32, 32), (48, 24), (64, 40)):
        images = _pixels(*size)
        np.testing.assert_allclose(
            loaded.serve(images), model.predict(images, verbose=0), atol=1e-5
        )


@pytest.mark.parametrize("name", ["DeiT_B16_distilled", "DINOv3_S16plus"])
def test_a_saved_model_equals_the_model_at_the_size_of_the_export(name, tmp_path):
    model = build(name, input_shape=(None, None, 3))
    version = saved_model(model, tmp_path / "vit", image_size=(48, 24), warmup=False)
    loaded = tf.saved_model.load(str(version))
    images = _pixels(48, 24)
    scores = loaded.signatures["predict"](images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(scores, model.predict(images, verbose=0), atol=1e-5)


@pytest.mark.parametrize("name", ["CLIP_B16", "DINOv2_g14_reg4", "DINOv3_S16plus"])
def test_a_tflite_file_equals_the_model(name, tmp_path):
    model = build(name, input_shape=(32, 32, 3))
    (verdict,) = tflite(model, tmp_path, flavours=("float32",), images=_pixels(32, 32))
    assert verdict.top1_agreement == 1 and verdict.max_error < 1e-5
