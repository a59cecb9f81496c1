import keras
import numpy as np
import pytest
import scipy.ndimage
from layer_contract import check_layer

from keras_vit.grid import INTERPOLATIONS, resize_positions
from keras_vit.layers import AddPositionEmbs

KINDS = {"learned_1d": 1, "learned_2d": 3, "sincos2d": 0}


@pytest.mark.parametrize(("kind", "num_weights"), KINDS.items())
def test_positions_keep_the_layer_contract(kind, num_weights, tmp_path):
    check_layer(
        lambda **kwargs: AddPositionEmbs((2, 3), 1, kind=kind, **kwargs),
        (2, 7, 8),
        output_shape=(2, 7, 8),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d"])
def test_positions_at_another_size_keep_the_layer_contract(kind, tmp_path):
    check_layer(
        lambda **kwargs: AddPositionEmbs(
            (2, 3), 1, kind=kind, interpolation="bilinear_half_pixel", **kwargs
        ),
        (2, 21, 8),
        (2, 4, 5, 8),
        output_shape=(2, 21, 8),
        num_weights=KINDS[kind],
        tmp_path=tmp_path,
    )


def _table(layer, tokens, *patches):
    return keras.ops.convert_to_numpy(layer(np.zeros(tokens, "float32"), *patches))[0]


def test_the_table_is_added():
    layer = AddPositionEmbs((2, 3), 1)
    x = np.random.default_rng(0).standard_normal((2, 7, 4)).astype("float32")
    output = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(output - x, np.repeat(layer.pos_embedding.numpy(), 2, 0), atol=1e-6)


def test_learned_tables_start_with_deviation_002():
    layer = AddPositionEmbs((32, 32))
    layer.build((None, 1024, 64))
    assert np.std(keras.ops.convert_to_numpy(layer.pos_embedding)) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("new", [(4, 6), (3, 2), (1, 5), (5, 1)])
def test_resizing_in_the_graph_equals_the_published_routine(new):
    layer = AddPositionEmbs((2, 3), 1)
    layer.build((1, 7, 4))
    old = keras.ops.convert_to_numpy(layer.pos_embedding)[0]
    table = _table(layer, (1, 1 + new[0] * new[1], 4), np.zeros((1, *new, 1)))
    zoom = (new[0] / 2, new[1] / 3, 1)
    expected = scipy.ndimage.zoom(old[1:].reshape(2, 3, 4), zoom, order=1)
    np.testing.assert_allclose(table[0], old[0])
    np.testing.assert_allclose(table[1:], expected.reshape(-1, 4), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_open_sizes_are_resized_in_the_compiled_graph(kind):
    images, tokens = keras.Input((None, None, 3)), keras.Input((None, 8))
    layer = AddPositionEmbs((2, 2), 1, kind=kind)
    model = keras.Model([tokens, images], layer(tokens, images))
    for grid in ((2, 2), (4, 3)):
        x, y = (
            np.zeros((2, 1 + grid[0] * grid[1], 8), "float32"),
            np.zeros((2, *grid, 3), "float32"),
        )
        eager = keras.ops.convert_to_numpy(layer(x, y))
        np.testing.assert_allclose(model.predict([x, y], verbose=0), eager, atol=1e-6)


@pytest.mark.parametrize("method", INTERPOLATIONS)
@pytest.mark.sampled(3)
def test_open_sizes_are_resized_by_the_rule_of_a_restored_table(method):
    images, tokens = keras.Input((None, None, 3)), keras.Input((None, 6))
    layer = AddPositionEmbs((4, 5), 1, interpolation=method)
    model = keras.Model([tokens, images], layer(tokens, images))
    table = np.random.default_rng(0).standard_normal((1, 21, 6)).astype("float32")
    layer.pos_embedding.assign(table)
    for new in ((4, 5), (4, 9), (7, 5), (9, 11), (2, 3), (1, 8)):
        zeros = np.zeros((1, 1 + new[0] * new[1], 6), "float32")
        resized = model.predict([zeros, np.zeros((1, *new, 3), "float32")], verbose=0)
        expected = resize_positions(table, (4, 5), new, method)
        np.testing.assert_allclose(resized, expected, atol=1e-5)


@pytest.mark.parametrize("method", INTERPOLATIONS)
@pytest.mark.sampled(2)
def test_halves_of_open_sizes_are_resized_by_the_rule_of_restored_halves(method):
    images, tokens = keras.Input((None, None, 3)), keras.Input((None, 4))
    layer = AddPositionEmbs((4, 5), kind="learned_2d", interpolation=method)
    model = keras.Model([tokens, images], layer(tokens, images))
    rng = np.random.default_rng(0)
    by_row, by_column = (rng.standard_normal((1, n, 2)).astype("float32") for n in (4, 5))
    layer.row_embedding.assign(by_row)
    layer.column_embedding.assign(by_column)
    for new in ((4, 5), (4, 9), (6, 5), (2, 3)):
        zeros = np.zeros((1, new[0] * new[1], 4), "float32")
        resized = model.predict([zeros, np.zeros((1, *new, 3), "float32")], verbose=0)
        resized = resized.reshape(*new, 4)
        for half, old, axis in ((by_column, 5, 1), (by_row, 4, 0)):
            expected = resize_positions(half, (old, 1), (new[axis], 1), method)[0]
            ours = resized[0, :, :2] if axis else resized[:, 0, 2:]
            np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_two_dimensional_embeddings_are_column_half_then_row_half():
    layer = AddPositionEmbs((2, 3), 1, kind="learned_2d")
    layer.build((1, 7, 4))
    layer.row_embedding.assign(np.array([[[10, 11], [20, 21]]]))
    layer.column_embedding.assign(np.array([[[1, 2], [3, 4], [5, 6]]]))
    layer.prefix_embedding.assign(np.full((1, 1, 4), 7))
    table = _table(layer, (1, 7, 4))
    np.testing.assert_array_equal(table[0], [7, 7, 7, 7])
    np.testing.assert_array_equal(table[1 + 0 * 3 + 2], [5, 6, 10, 11])
    np.testing.assert_array_equal(table[1 + 1 * 3 + 0], [1, 2, 20, 21])


def test_sincos_by_hand():
    table = _table(AddPositionEmbs((2, 3), 1, kind="sincos2d"), (1, 7, 8))
    np.testing.assert_array_equal(table[0], 0)
    row, column = 1, 2
    slow = 1 / 10_000
    expected = [
        *(np.sin(column), np.sin(column * slow), np.cos(column), np.cos(column * slow)),
        *(np.sin(row), np.sin(row * slow), np.cos(row), np.cos(row * slow)),
    ]
    np.testing.assert_allclose(table[1 + row * 3 + column], expected, atol=1e-6)


def test_a_wrong_number_of_tokens_is_an_error():
    with pytest.raises(ValueError, match=r"Expected 7 tokens.*Received: 8"):
        AddPositionEmbs((2, 3), 1)(np.zeros((1, 8, 4)))


def test_an_unknown_kind_lists_the_valid_ones():
    with pytest.raises(ValueError, match="learned_1d.*Received: 'rotary'"):
        AddPositionEmbs((2, 3), kind="rotary")


def test_a_width_that_cannot_be_halved_is_an_error():
    with pytest.raises(ValueError, match="multiple of 4 for sincos2d"):
        AddPositionEmbs((2, 3), kind="sincos2d")(np.zeros((1, 6, 6)))
