import keras
import numpy as np
import pytest

import keras_vit


def test_pixels_are_scaled_to_minus_one_and_one():
    pixels = np.array([[[[0, 51, 255]]]], "uint8")
    scaled = keras_vit.preprocess_input(pixels)
    np.testing.assert_allclose(scaled, [[[[-1, -0.6, 1]]]], atol=1e-6)
    assert scaled.dtype == np.float32
    assert pixels.dtype == np.uint8 and pixels.max() == 255


def test_float_arrays_are_scaled_in_place_as_in_keras_applications():
    pixels = np.array([[[[0.0, 127.5, 255.0]]]], "float32")
    assert keras_vit.preprocess_input(pixels) is pixels
    np.testing.assert_allclose(pixels, [[[[-1, 0, 1]]]])


@pytest.mark.parametrize(
    ("classes", "index", "expected"),
    [
        (1000, 0, ("n01440764", "tench")),
        (1000, 999, ("n15075141", "toilet_tissue")),
        (21843, 0, ("n00004475", "organism")),
    ],
)
def test_classes_have_their_names(classes, index, expected):
    scores = np.zeros((2, classes), "float32")
    scores[1, index] = 0.5
    decoded = keras_vit.decode_predictions(scores, top=3)
    assert [len(row) for row in decoded] == [3, 3]
    assert decoded[1][0] == (*expected, 0.5)


def test_predictions_come_in_descending_order():
    scores = np.random.default_rng(0).random((3, 1000))
    for row, decoded in zip(
        scores, keras_vit.decode_predictions(keras.ops.convert_to_tensor(scores)), strict=True
    ):
        np.testing.assert_allclose(
            [score for *_, score in decoded], np.sort(row)[::-1][:5], rtol=1e-6
        )


@pytest.mark.parametrize("shape", [(1000,), (2, 999), (2, 3, 1000)])
def test_other_shapes_are_errors(shape):
    with pytest.raises(ValueError, match=r"samples, 1000.*samples, 21843"):
        keras_vit.decode_predictions(np.zeros(shape))
