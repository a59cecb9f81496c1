import keras
import numpy as np
from layer_contract import check_layer

from keras_vit.layers import PatchNormalization, PixelNormalization

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_it_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: PixelNormalization(MEAN, STD, **k),
        (2, 4, 6, 3),
        output_shape=(2, 4, 6, 3),
        num_weights=0,
        tmp_path=tmp_path,
    )


def test_pixels_are_normalized_on_the_scale_from_0_to_1():
    levels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3))
    found = PixelNormalization(MEAN, STD)((levels / 127.5 - 1).astype("float32"))
    expected = (levels / 255 - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, atol=1e-5)


def test_other_numbers_of_channels_use_the_colors_in_turn_and_gray_their_mean():
    zeros = np.zeros((1, 1, 1, 5), "float32")
    colors = (0.5 - np.array(MEAN)) / np.array(STD)
    layer = PixelNormalization(MEAN, STD)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(zeros)).ravel(), colors[[0, 1, 2, 0, 1]], rtol=1e-5
    )
    gray = (0.5 - np.mean(MEAN)) / np.mean(STD)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(zeros[..., :1])).ravel(), [gray], rtol=1e-5
    )


def test_patch_normalization_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: PatchNormalization(1e-6, **k),
        (2, 4, 12),
        output_shape=(2, 4, 12),
        num_weights=0,
        tmp_path=tmp_path,
    )


def test_patches_are_normalized_by_their_mean_and_unbiased_variance():
    """The epsilon matters where a patch is almost flat."""
    scale = np.array([1.0, 1e-3, 0.0])[:, None]
    patches = 0.3 + scale * np.random.default_rng(0).standard_normal((2, 3, 48))
    found = keras.ops.convert_to_numpy(PatchNormalization(1e-6)(patches.astype("float32")))
    for image in range(2):
        for place in range(3):
            pixels = patches[image, place]
            mean = pixels.sum() / 48
            variance = ((pixels - mean) ** 2).sum() / 47
            expected = (pixels - mean) / np.sqrt(variance + 1e-6)
            np.testing.assert_allclose(found[image, place], expected, atol=2e-4)
