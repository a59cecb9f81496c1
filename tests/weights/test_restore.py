import itertools

import keras
import numpy as np
import pytest
import scipy.ndimage

from keras_vit.grid import INTERPOLATIONS
from keras_vit.models import vision_transformer
from keras_vit.weights.restore import PositionResize, restore, state


@pytest.fixture
def model(tiny_vit):
    return vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=5, representation_size=7)


def _random_state(model, seed=1):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(array.shape).astype("float32")
        for name, array in state(model.layers).items()
    }


def _assert_state(model, arrays):
    now = state(model.layers)
    assert now.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(now[name], array, err_msg=name)


def test_names_carry_the_nesting(model):
    assert {
        "embedding/kernel",
        "class_token/cls",
        "posembed_input/pos_embedding",
        "encoderblock_1/attention_norm/gamma",
        "encoderblock_1/attention/query/kernel",
        "encoderblock_1/mlp/dense_1/bias",
        "encoder_norm/beta",
        "pre_logits/kernel",
        "predictions/bias",
    } <= state(model.layers).keys()


def test_there_and_back_is_the_identity(model):
    arrays = _random_state(model)
    restore(model.layers, arrays)
    _assert_state(model, arrays)


def test_every_mismatch_is_in_one_error_and_nothing_is_loaded(model):
    before = state(model.layers)
    arrays = _random_state(model)
    del arrays["class_token/cls"], arrays["encoderblock_0/mlp/dense_0/bias"]
    arrays["encoderblock_2/mlp/dense_0/bias"] = np.zeros(3)
    arrays["encoder_norm/beta"] = np.zeros(3)
    with pytest.raises(ValueError) as error:
        restore(model.layers, arrays, origin="a.npz")
    message = str(error.value)
    assert message.startswith("a.npz does not match the model; nothing was loaded.")
    assert (
        "2 missing from the checkpoint:\n  class_token/cls\n  encoderblock_0/mlp/dense_0/bias"
        in message
    )
    assert "1 unexpected in the checkpoint:\n  encoderblock_2/mlp/dense_0/bias" in message
    assert "encoder_norm/beta: the model needs (16,), the checkpoint has (3,)" in message
    _assert_state(model, before)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (
            lambda a: a.update(
                {"predictions/kernel": np.zeros((7, 9)), "predictions/bias": np.zeros(9)}
            ),
            "classes=9",
        ),
        (lambda a: [a.pop("predictions/kernel"), a.pop("predictions/bias")], "include_top=False"),
        (lambda a: a.pop("class_token/cls"), 'classifier="token"'),
        (
            lambda a: a.update({"posembed_input/pos_embedding": np.zeros((1, 9, 16))}),
            "checkpoint_grid",
        ),
    ],
)
def test_common_mismatches_come_with_advice(change, hint, model):
    arrays = _random_state(model)
    change(arrays)
    with pytest.raises(ValueError, match=hint):
        restore(model.layers, arrays)


def test_skipped_names_are_neither_needed_nor_assigned(model):
    before = state(model.layers)
    arrays = _random_state(model)
    del arrays["predictions/bias"]
    restore(model.layers, arrays, skip=("predictions/.*", "pre_logits/.*"))
    after = state(model.layers)
    for name in after:
        skipped = name.startswith(("predictions", "pre_logits"))
        np.testing.assert_array_equal(after[name], before[name] if skipped else arrays[name])


def test_a_pattern_skips_whole_names_only(model):
    arrays = _random_state(model)
    del arrays["predictions/bias"]
    with pytest.raises(ValueError, match="predictions/bias"):
        restore(model.layers, arrays, skip=("predictions",))


def test_square_tables_are_resized_as_published(tiny_vit, model):
    large = vision_transformer(tiny_vit, keras.Input((48, 64, 3)), classes=5, representation_size=7)
    arrays = _random_state(model)
    restore(large.layers, arrays)
    table = arrays["posembed_input/pos_embedding"][0]
    expected = scipy.ndimage.zoom(table[1:].reshape(4, 4, 16), (6 / 4, 8 / 4, 1), order=1).reshape(
        48, 16
    )
    resized = state(large.layers)["posembed_input/pos_embedding"][0]
    np.testing.assert_array_equal(resized[0], table[0])
    np.testing.assert_allclose(resized[1:], expected, atol=1e-6)


def test_a_table_that_may_be_of_two_grids_is_refused_until_one_is_told(tiny_vit, model):
    """4 x 4 as of all published files, or 2 x 8 as of the model: either guess would be wrong in
    silence.
    """
    wide = vision_transformer(tiny_vit, keras.Input((16, 64, 3)), classes=5, representation_size=7)
    arrays, before = _random_state(model), state(wide.layers)
    with pytest.raises(
        ValueError,
        match=r"4 x 4 patches or.*2 x 8 patches.*`checkpoint_grid=\(4, 4\)` or.*\(2, 8\)",
    ):
        restore(wide.layers, arrays)
    _assert_state(wide, before)
    restore(wide.layers, arrays, positions=PositionResize(checkpoint_grid=(4, 4)))
    assert not np.allclose(
        state(wide.layers)["posembed_input/pos_embedding"], arrays["posembed_input/pos_embedding"]
    )
    restore(wide.layers, arrays, positions=PositionResize(checkpoint_grid=(2, 8)))
    np.testing.assert_array_equal(
        state(wide.layers)["posembed_input/pos_embedding"], arrays["posembed_input/pos_embedding"]
    )


def test_a_rectangular_table_is_resized_from_its_stated_grid(tiny_vit):
    wide = vision_transformer(tiny_vit, keras.Input((16, 40, 3)))
    arrays = _random_state(wide)
    square = vision_transformer(tiny_vit, keras.Input((32, 32, 3)))
    with pytest.raises(ValueError, match="checkpoint_grid"):
        restore(square.layers, arrays)
    restore(square.layers, arrays, positions=PositionResize(checkpoint_grid=(2, 5)))
    table = arrays["posembed_input/pos_embedding"][0, 1:].reshape(2, 5, 16)
    corners = state(square.layers)["posembed_input/pos_embedding"][0, 1:].reshape(4, 4, 16)
    np.testing.assert_allclose(
        corners[[0, 0, 3, 3], [0, 3, 0, 3]], table[[0, 0, 1, 1], [0, 4, 0, 4]], atol=1e-6
    )


@pytest.mark.parametrize("size", [(32, 32), (48, 48)])
def test_a_grid_that_the_table_is_not_of_is_refused(tiny_vit, size):
    """Also where the shapes fit, and nothing would be resampled."""
    arrays = _random_state(vision_transformer(tiny_vit, keras.Input((32, 32, 3))))
    model = vision_transformer(tiny_vit, keras.Input((*size, 3)))
    with pytest.raises(ValueError, match="16 rows for patches, and is not of 5 x 5 patches"):
        restore(model.layers, arrays, positions=PositionResize(checkpoint_grid=(5, 5)))


def test_a_grid_that_two_dimensional_tables_are_not_of_is_refused(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((32, 48, 3)), position_embedding="learned_2d")
    with pytest.raises(ValueError, match="are of 4 x 6 patches, not of 6 x 4 patches"):
        restore(
            model.layers, _random_state(model), positions=PositionResize(checkpoint_grid=(6, 4))
        )


def test_halves_of_a_two_dimensional_table_are_resized_alone(tiny_vit):
    small, large = (
        vision_transformer(tiny_vit, keras.Input((*size, 3)), position_embedding="learned_2d")
        for size in ((32, 32), (48, 32))
    )
    arrays = _random_state(small)
    restore(large.layers, arrays)
    after = state(large.layers)
    np.testing.assert_array_equal(
        after["posembed_input/column_embedding"], arrays["posembed_input/column_embedding"]
    )
    expected = scipy.ndimage.zoom(arrays["posembed_input/row_embedding"][0], (6 / 4, 1), order=1)
    np.testing.assert_allclose(after["posembed_input/row_embedding"][0], expected, atol=1e-6)


def test_another_interpolation_on_request(tiny_vit, model):
    large = vision_transformer(tiny_vit, keras.Input((48, 48, 3)), classes=5, representation_size=7)
    arrays, tables = _random_state(model), []
    for method in INTERPOLATIONS:
        restore(large.layers, arrays, positions=PositionResize(interpolation=method))
        tables.append(state(large.layers)["posembed_input/pos_embedding"])
    for one, other in itertools.combinations(tables, 2):
        assert not np.allclose(one, other)


@pytest.mark.parametrize(("stored", "wanted"), [("gap", "token"), ("token", "gap")])
def test_a_checkpoint_with_another_number_of_class_tokens_names_the_classifier(
    tiny_vit, stored, wanted
):
    """Its grid is right, and no other one would help."""
    arrays = _random_state(
        vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classifier=stored)
    )
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classifier=wanted)
    with pytest.raises(ValueError, match='With a class token, pass `classifier="token"`') as error:
        restore(model.layers, arrays, positions=PositionResize(checkpoint_grid=(4, 4)))
    assert "checkpoint_grid" not in str(error.value)
