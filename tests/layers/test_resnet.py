import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import BiTMaxPool, BiTUnit, StdConv2D, StemUnit

STEM = {"norm_epsilon": 1e-6, "std_epsilon": 1e-5, "variance_epsilon": 0.0}
BIT = {"norm_epsilon": 1e-5, "std_epsilon": 0.0, "variance_epsilon": 1e-10}
CONV = {"std_epsilon": 1e-5, "variance_epsilon": 0.0}


@pytest.mark.parametrize(
    ("padding", "strides", "side"), [("same", 2, 4), ("fixed", 2, 4), ("fixed", 1, 7)]
)
def test_convolution_keeps_the_layer_contract(padding, strides, side, tmp_path):
    check_layer(
        lambda **k: StdConv2D(6, 3, strides=strides, padding=padding, **CONV, **k),
        (2, 7, 7, 5),
        output_shape=(2, side, side, 6),
        num_weights=1,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("padding", ["ignored", "zeros"])
def test_max_pool_keeps_the_layer_contract(padding, tmp_path):
    check_layer(
        lambda **k: BiTMaxPool(padding, **k),
        (2, 7, 8, 5),
        output_shape=(2, 4, 4, 5),
        num_weights=0,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    ("strides", "channels", "num_weights"), [(1, 128, 9), (1, 64, 12), (2, 128, 12)]
)
@pytest.mark.sampled(1)
def test_stem_unit_keeps_the_layer_contract(strides, channels, num_weights, tmp_path):
    check_layer(
        lambda **k: StemUnit(32, strides=strides, **STEM, **k),
        (2, 5, 6, channels),
        output_shape=(2, -(-5 // strides), 6 // strides, 128),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    ("strides", "channels", "num_weights"), [(1, 128, 9), (1, 64, 10), (2, 128, 10)]
)
@pytest.mark.sampled(2)
def test_bit_unit_keeps_the_layer_contract(strides, channels, num_weights, tmp_path):
    check_layer(
        lambda **k: BiTUnit(32, strides=strides, **BIT, **k),
        (2, 5, 6, channels),
        output_shape=(2, -(-5 // strides), 6 // strides, 128),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    "constants",
    [{"std_epsilon": 0.5, "variance_epsilon": 0.0}, {"std_epsilon": 0.0, "variance_epsilon": 0.25}],
)
def test_the_kernel_is_standardized_per_output_channel(constants):
    layer = StdConv2D(4, 3, padding="fixed", **constants)
    x = np.random.default_rng(0).standard_normal((1, 5, 5, 2)).astype("float32")
    layer(x)
    kernel = keras.ops.convert_to_numpy(layer.kernel).astype("float64")
    mean, std = kernel.mean((0, 1, 2)), kernel.std((0, 1, 2))
    scale = std + 0.5 if constants["std_epsilon"] else np.sqrt(std**2 + 0.25)
    expected = keras.ops.conv(
        np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), ((kernel - mean) / scale).astype("float32")
    )
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(x)),
        keras.ops.convert_to_numpy(expected),
        rtol=1e-4,
        atol=1e-5,
    )


def test_same_padding_of_a_stride_puts_the_odd_zero_last():
    """A 3x3 window with stride 2 on 4 cells: TensorFlow's "same" pads 0 + 1, "fixed" pads 1 + 1."""
    x = np.arange(1.0, 5.0, dtype="float32").reshape(1, 1, 4, 1).repeat(4, axis=1)
    middle = np.zeros((3, 3, 1, 1), "float32")
    middle[1] = 1.0  # sums three neighbours of the middle row
    standardized = (middle - middle.mean()) / middle.std()
    for padding, columns in (("same", [1 + 2 + 3, 3 + 4]), ("fixed", [1 + 2, 2 + 3 + 4])):
        layer = StdConv2D(1, 3, strides=2, padding=padding, std_epsilon=0.0, variance_epsilon=0.0)
        layer.build(x.shape)
        layer.kernel.assign(middle)
        rows = slice(0, None) if padding == "same" else slice(1, None)
        output = keras.ops.convert_to_numpy(layer(x))[0, rows][0, :, 0]
        window = {"same": [(0, 3), (2, 4)], "fixed": [(0, 2), (1, 4)]}[padding]
        low, high = standardized[0, 0, 0, 0], standardized[1, 0, 0, 0]
        sums = [x[0, 0, a:b, 0].sum() for a, b in window]
        assert sums == columns
        np.testing.assert_allclose(output, [s * (high + 2 * low) for s in sums], atol=1e-5)


def test_padding_of_the_root_pool_counts_only_on_request():
    x = np.full((1, 4, 4, 1), -3.0, "float32")
    ignored = keras.ops.convert_to_numpy(BiTMaxPool("ignored")(x))[0, ..., 0]
    zeros = keras.ops.convert_to_numpy(BiTMaxPool("zeros")(x))[0, ..., 0]
    np.testing.assert_array_equal(ignored, [[-3, -3], [-3, -3]])
    np.testing.assert_array_equal(zeros, [[0, 0], [0, -3]])


def test_stem_unit_starts_as_its_shortcut():
    x = np.random.default_rng(0).uniform(0, 1, (1, 4, 4, 128)).astype("float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(StemUnit(32, strides=1, **STEM)(x)), x)


@pytest.mark.parametrize("channels", [128, 64])
def test_bit_unit_adds_to_what_comes_before_its_norm_or_to_its_projection_after_it(channels):
    x = np.random.default_rng(0).standard_normal((1, 4, 4, channels)).astype("float32")
    unit = BiTUnit(32, strides=1, **BIT)
    unit.build(x.shape)
    unit.conv3.kernel.assign(np.zeros(unit.conv3.kernel.shape))
    is_projected = channels == 64
    expected = unit.conv_proj(keras.ops.relu(unit.gn1(x))) if is_projected else x
    found, expected = (keras.ops.convert_to_numpy(each) for each in (unit(x), expected))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_stem_unit_ends_with_relu_and_bit_unit_does_not():
    x = np.random.default_rng(0).standard_normal((1, 4, 4, 128)).astype("float32")
    assert keras.ops.convert_to_numpy(StemUnit(32, strides=1, **STEM)(x)).min() == 0
    assert keras.ops.convert_to_numpy(BiTUnit(32, strides=1, **BIT)(x)).min() < 0


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(0, 1e-5), (1, 1e-3)],
    ids=["squares that vanish in float16", "differences that float16 rounds away"],
)
def test_kernels_are_standardized_in_float32_under_mixed_precision(mean, deviation):
    layer = StdConv2D(4, 3, dtype="mixed_float16", **CONV)
    layer.build((None, 5, 5, 2))
    rng = np.random.default_rng(0)
    kernel = (mean + deviation * rng.standard_normal((3, 3, 2, 4))).astype("float32")
    layer.kernel.assign(kernel)
    x = rng.standard_normal((1, 5, 5, 2)).astype("float16")
    kernel = kernel.astype("float64")
    standard = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + CONV["std_epsilon"])
    expected = keras.ops.conv(x.astype("float32"), standard.astype("float32"), padding="same")
    expected = keras.ops.convert_to_numpy(expected)
    found = keras.ops.convert_to_numpy(layer(x))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())


def test_an_unknown_padding_lists_the_valid_ones():
    with pytest.raises(ValueError, match="'same', 'fixed'.*'valid'"):
        StdConv2D(4, 3, padding="valid", **CONV)
    with pytest.raises(ValueError, match="'ignored', 'zeros'.*'same'"):
        BiTMaxPool("same")


@pytest.mark.parametrize(("padding", "strides"), [("same", 2), ("fixed", 2), ("same", 1)])
def test_a_batch_of_none_has_the_shape_that_was_promised(padding: str, strides: int):
    layer = StdConv2D(
        8, 3, strides=strides, padding=padding, std_epsilon=1e-5, variance_epsilon=0.0
    )
    assert tuple(layer(keras.ops.zeros((0, 9, 12, 3))).shape) == (
        0,
        -(-9 // strides),
        -(-12 // strides),
        8,
    )
