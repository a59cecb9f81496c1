import math

import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit import grid
from keras_vit.layers import PadToPatches, PatchEmbedding, PatchExtract


def test_patch_extract_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **kwargs: PatchExtract(4, **kwargs),
        (2, 8, 12, 3),
        output_shape=(2, 6, 48),
        num_weights=0,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(("flatten", "shape"), [(True, (2, 6, 5)), (False, (2, 2, 3, 5))])
def test_patch_embedding_keeps_the_layer_contract(flatten, shape, tmp_path):
    check_layer(
        lambda **kwargs: PatchEmbedding(4, 5, flatten=flatten, **kwargs),
        (2, 8, 12, 3),
        output_shape=shape,
        num_weights=2,
        tmp_path=tmp_path,
    )


def test_patches_are_in_raster_order():
    image = np.arange(4 * 6).reshape(1, 4, 6, 1).astype("float32")
    patches = keras.ops.convert_to_numpy(PatchExtract(2)(image))
    np.testing.assert_array_equal(patches[0, 1], [2, 3, 8, 9])
    np.testing.assert_array_equal(patches[0, 3], [12, 13, 18, 19])


@pytest.mark.parametrize("shape", [(2, 32, 48, 3), (1, 16, 16, 1)])
def test_embedding_equals_a_convolution(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    layer = PatchEmbedding(16, 7, flatten=False)
    layer.build(shape)
    layer.bias.assign(np.arange(7.0))
    convolved = keras.ops.conv(x, layer.kernel, strides=16, padding="valid") + layer.bias
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(x)),
        keras.ops.convert_to_numpy(convolved),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_kernel_starts_with_unit_gain():
    layer = PatchEmbedding(8, 512)
    layer.build((None, 16, 16, 3))
    assert np.std(keras.ops.convert_to_numpy(layer.kernel)) == pytest.approx(
        (8 * 8 * 3) ** -0.5, rel=0.02
    )
    assert not keras.ops.convert_to_numpy(layer.bias).any()


def test_a_size_that_does_not_divide_names_its_neighbours():
    with pytest.raises(
        ValueError, match=r"multiple of 16.*\(225, 230\).*Use \(224, 224\) or \(240, 240\)"
    ):
        PatchExtract(16)(np.zeros((1, 225, 230, 3)))


def test_open_sizes_stay_open_until_the_call():
    inputs = keras.Input((None, 32, 3))
    outputs = PatchEmbedding(16, 5, flatten=False)(inputs)
    assert outputs.shape == (None, None, 2, 5)
    assert PatchEmbedding(16, 5).compute_output_shape((None, None, 32, 3)) == (None, None, 5)
    model = keras.Model(inputs, outputs)
    assert model.predict_on_batch(np.zeros((3, 64, 32, 3))).shape == (3, 4, 2, 5)


def test_open_sizes_that_do_not_divide_fail_at_run_time():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, PatchEmbedding(16, 5)(inputs))
    with pytest.raises(Exception, match="(?i)multiple of 16|reshape|shape"):
        # 16 images of 17 rows hold as many pixel rows as 17 strips: only the explicit batch
        # notices.
        model.predict_on_batch(np.zeros((16, 17, 16, 3)))


def test_images_need_four_axes():
    with pytest.raises(ValueError, match=r"\(batch, height, width, channels\)"):
        PatchEmbedding(16, 5)(np.zeros((32, 32, 3)))


@pytest.mark.parametrize(("num_halvings", "rows"), [(0, 20), (2, 29)])
def test_padding_promises_what_every_layer_promises(num_halvings, rows, tmp_path):
    check_layer(
        lambda **kwargs: PadToPatches(4, num_halvings, **kwargs),
        (2, 17, 16, 3),
        output_shape=(2, rows, 16, 3),
        num_weights=0,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("num_halvings", [0, 2])
def test_padding_is_zeros_below_and_to_the_right_and_no_more_than_patches_need(num_halvings: int):
    images = np.random.default_rng(0).standard_normal((2, 13, 16, 3)).astype("float32")
    given = keras.ops.convert_to_numpy(PadToPatches(4, num_halvings)(images))
    np.testing.assert_array_equal(given[:, :13, :16], images)
    assert not given[:, 13:].any() and not given[:, :, 16:].any()
    rows, columns = grid.patch_grid(given.shape[1:3], 4, num_halvings)
    assert (rows, columns) == (
        math.ceil(13 / 4 / 2**num_halvings),
        math.ceil(16 / 4 / 2**num_halvings),
    )
    with pytest.raises(ValueError, match="multiple"):
        grid.patch_grid((given.shape[1] - 2**num_halvings, given.shape[2]), 4, num_halvings)


def test_padding_of_open_sizes_is_that_of_known_ones():
    images = np.random.default_rng(0).standard_normal((2, 13, 18, 3)).astype("float32")
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, PadToPatches(4)(inputs))
    assert model.output_shape == (None, None, None, 3)
    np.testing.assert_array_equal(
        model.predict_on_batch(images), keras.ops.convert_to_numpy(PadToPatches(4)(images))
    )
