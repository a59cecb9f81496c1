"""Rotary positions against sines and cosines that are worked out by hand."""

import keras
import numpy as np
import pytest

from keras_vit.layers import RotaryPositions
from keras_vit.layers.rotary import rotate


def _numpy(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def test_the_angle_of_a_patch_is_that_of_its_center():
    cosines, sines = _numpy(RotaryPositions(8, 2)(np.zeros((1, 2, 3, 5), "float32")))
    np.testing.assert_array_equal((cosines[:2], sines[:2]), (np.ones((2, 8)), np.zeros((2, 8))))
    # Second row, third column: centers 0.5 and 2/3; periods 1 and 10.
    angles = 2 * np.pi * np.array([0.5, 0.05, 2 / 3, 2 / 30])
    np.testing.assert_allclose(cosines[-1], np.cos([*angles, *angles]), atol=1e-6)
    np.testing.assert_allclose(sines[-1], np.sin([*angles, *angles]), atol=1e-6)


def test_only_the_place_counts_not_the_number_of_pixels():
    few, many = (
        _numpy(RotaryPositions(8)(np.zeros((1, n, n, 1), "float32"))).reshape(2, n, n, 8)
        for n in (1, 3)
    )
    np.testing.assert_allclose(few[:, 0, 0], many[:, 1, 1], atol=1e-6)  # the center of the image


def test_a_rotation_keeps_lengths_and_turns_by_the_angle():
    rotation = RotaryPositions(4)(np.zeros((1, 2, 2, 1), "float32"))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype("float32")
    turned = _numpy(rotate(keras.ops.convert_to_tensor(x), rotation))
    np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-5)
    angles = np.arctan2(*_numpy(rotation)[::-1])[..., :2]
    expected = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)
    np.testing.assert_allclose(turned[..., :2], expected.real, atol=1e-6)
    np.testing.assert_allclose(turned[..., 2:], expected.imag, atol=1e-6)


def test_products_depend_on_the_distance_alone():
    """The scores of two patches do not change if both move by a row."""
    rotation = RotaryPositions(8)(np.zeros((1, 4, 4, 1), "float32"))
    query, key = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    queries, keys = (
        _numpy(rotate(keras.ops.convert_to_tensor(np.tile(x, (1, 1, 16, 1))), rotation))[0, 0]
        for x in (query, key)
    )
    scores = (queries @ keys.T).reshape(4, 4, 4, 4)
    np.testing.assert_allclose(scores[0, 1, 2, 3], scores[1, 1, 3, 3], atol=1e-5)
    np.testing.assert_allclose(scores[3, 0, 1, 2], scores[3, 1, 1, 3], atol=1e-5)


def test_an_open_size_gives_the_same_rotations(tmp_path):
    patches = keras.Input((None, None, 3))
    layer = RotaryPositions(8, 1)
    model = keras.Model(patches, layer(patches))
    assert model.output_shape == (2, None, 8)
    model.save(tmp_path / "model.keras")
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        for size in ((2, 5), (3, 3)):
            images = np.zeros((1, *size, 3), "float32")
            np.testing.assert_allclose(_numpy(each(images)), _numpy(layer(images)), atol=1e-6)


def test_a_head_that_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="multiple of 4. Received: head_dim=6"):
        RotaryPositions(6)


def test_a_mixed_policy_changes_the_dtype_alone():
    patches = np.zeros((1, 2, 3, 5), "float32")
    wide, narrow = RotaryPositions(8)(patches), RotaryPositions(8, dtype="mixed_bfloat16")(patches)
    assert keras.backend.standardize_dtype(narrow.dtype) == "bfloat16"
    narrow = _numpy(keras.ops.cast(narrow, "float32"))
    np.testing.assert_allclose(narrow, _numpy(wide), atol=1e-2)
