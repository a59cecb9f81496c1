import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import AttentionPooling, TokenPooling

CONSTANTS = {"norm_epsilon": 1e-6, "gelu": "tanh"}


@pytest.mark.parametrize("mode", ["token", "avg", "max"])
def test_token_pooling_keeps_the_layer_contract(mode, tmp_path):
    check_layer(
        lambda **k: TokenPooling(mode, 1, **k),
        (2, 5, 8),
        output_shape=(2, 8),
        num_weights=0,
        tmp_path=tmp_path,
    )


def test_attention_pooling_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: AttentionPooling(2, 12, **CONSTANTS, **k),
        (2, 5, 8),
        output_shape=(2, 8),
        num_weights=15,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(("mode", "expected"), [("token", 9), ("avg", 2), ("max", 3)])
def test_prefix_tokens_take_no_part_in_the_mean(mode, expected):
    tokens = np.array([9, 1, 2, 3], "float32").reshape(1, 4, 1)
    assert keras.ops.convert_to_numpy(TokenPooling(mode, 1)(tokens)) == expected


def test_attention_pooling_ignores_the_order_of_tokens():
    layer = AttentionPooling(2, 12, **CONSTANTS)
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(x)),
        keras.ops.convert_to_numpy(layer(x[:, ::-1])),
        atol=1e-5,
    )


@pytest.mark.parametrize("mode", ["token", "token_avg"])
def test_the_class_token_must_exist(mode):
    with pytest.raises(ValueError, match="needs a class token"):
        TokenPooling(mode, 0)


def test_an_unknown_mode_lists_the_valid_ones():
    with pytest.raises(ValueError, match="'token', .*'avg', 'max'.*'mean'"):
        TokenPooling("mean", 1)


def test_class_token_and_mean_are_concatenated_and_the_second_token_is_read():
    x = np.random.default_rng(0).standard_normal((2, 5, 4)).astype("float32")
    both = keras.ops.convert_to_numpy(TokenPooling("token_avg", 2)(x))
    np.testing.assert_array_equal(both[:, :4], x[:, 0])
    np.testing.assert_allclose(both[:, 4:], x[:, 2:].mean(axis=1), rtol=1e-5)
    assert TokenPooling("token_avg", 2).compute_output_shape((2, 5, 4)) == (2, 8)
    second = keras.ops.convert_to_numpy(TokenPooling("distillation", 2)(x))
    np.testing.assert_array_equal(second, x[:, 1])
    with pytest.raises(ValueError, match="needs a distillation token"):
        TokenPooling("distillation", 1)
