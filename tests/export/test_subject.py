"""The model of an export, and its image size."""

import keras
import pytest

from keras_vit.export import subject

pytestmark = pytest.mark.tensorflow


def test_a_size_must_be_that_of_the_model_along_each_axis():
    assert subject._check_size((32, 64), None) == (32, 64)
    for built in ((32, 64), (32, None), (None, 64), (None, None)):
        assert subject._check_size(built, (32, 64)) == (32, 64)
    for built in ((32, 64), (32, None), (None, 64)):
        with pytest.raises(ValueError, match=r"Received: image_size=\(64, 32\)"):
            subject._check_size(built, (64, 32))


def test_layers_of_a_nested_model_must_compute_in_float32_too():
    images = keras.Input((8, 8, 3))
    for dtype in ("float32", "mixed_bfloat16"):
        pool = keras.layers.GlobalAveragePooling2D(dtype=dtype)
        inner = keras.Sequential([keras.Input((8, 8, 3)), pool], name="inner")
        model = keras.Model(images, keras.layers.Dense(2)(inner(images)))
        if dtype == "float32":
            subject.check_float32(model)
            continue
        with pytest.raises(ValueError, match="layers that compute in bfloat16"):
            subject.check_float32(model)
