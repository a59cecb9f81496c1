import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import ClassToken, MaskTokens, Registers
from keras_vit.layers.tokens import KEPT, MASKED, SWAPPED, UNTOUCHED


def test_class_token_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: ClassToken(**k),
        (2, 6, 5),
        output_shape=(2, 7, 5),
        num_weights=1,
        tmp_path=tmp_path,
    )


def test_the_token_comes_first_and_starts_at_zero():
    x = np.ones((2, 3, 4), "float32")
    layer = ClassToken()
    output = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(output[:, 0], 0)
    np.testing.assert_array_equal(output[:, 1:], x)
    layer.cls.assign(np.arange(4.0).reshape(1, 1, 4))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x))[:, 0], [range(4)] * 2)


def test_registers_keep_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: Registers(3, place=1, **k),
        (2, 6, 5),
        output_shape=(2, 9, 5),
        num_weights=1,
        tmp_path=tmp_path,
    )


def test_registers_stand_between_prefix_tokens_and_patches():
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    layer = Registers(2, place=1)
    layer(x)
    layer.registers.assign(-np.arange(8.0).reshape(1, 2, 4))
    output = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(output[:, [0, 3, 4]], x)
    np.testing.assert_array_equal(output[1, 1:3], -np.arange(8.0).reshape(2, 4))


def masked(layer: MaskTokens, x: np.ndarray, training: bool) -> tuple[np.ndarray, np.ndarray]:
    return tuple(keras.ops.convert_to_numpy(output) for output in layer(x, training=training))


def different_tokens(batch: int, length: int) -> np.ndarray:
    return np.arange(1, batch * length * 3 + 1, dtype="float32").reshape(batch, length, 3)


def test_as_many_tokens_are_corrupted_as_the_paper_says():
    _, kinds = masked(MaskTokens(seed=0), different_tokens(64, 196), training=True)
    assert ((kinds > UNTOUCHED).sum(axis=1) == 98).all()
    corrupted = kinds[kinds > UNTOUCHED]
    for kind, share in ((MASKED, 0.8), (SWAPPED, 0.1), (KEPT, 0.1)):
        deviation = np.sqrt(share * (1 - share) / corrupted.size)
        assert abs((corrupted == kind).mean() - share) < 4 * deviation
    # Every place as often as any other.
    places = (kinds > UNTOUCHED).mean(axis=0)
    assert abs(places - 0.5).max() < 4.5 * np.sqrt(0.25 / 64)
    _, few = masked(MaskTokens(0.15, seed=0), different_tokens(2, 196), training=True)
    assert (few > UNTOUCHED).sum(axis=1).tolist() == [29, 29]


@pytest.mark.parametrize("training", [True, False])
def test_each_kind_of_corruption_does_what_its_name_says(training):
    x, layer = different_tokens(8, 40), MaskTokens(seed=3)
    layer.build(x.shape)
    layer.mask.assign(np.full((1, 1, 3), -7.0))
    tokens, kinds = masked(layer, x, training)
    same = (kinds == UNTOUCHED) | (kinds == KEPT)
    np.testing.assert_array_equal(tokens[same], x[same])
    np.testing.assert_array_equal(tokens[kinds == MASKED], -7.0)
    assert (kinds == SWAPPED).any()
    for image, place in np.argwhere(kinds == SWAPPED):
        (origin,) = np.flatnonzero((x[image] == tokens[image, place]).all(axis=-1))
        assert origin != place


def test_a_token_is_swapped_for_any_other_of_its_image():
    x, layer = different_tokens(300, 4), MaskTokens(1.0, mask_share=0.0, swap_share=1.0, seed=1)
    tokens, kinds = masked(layer, x, training=True)
    assert (kinds == SWAPPED).all()
    origins = (x[:, None] == tokens[:, :, None]).all(axis=-1).argmax(axis=-1)
    for place in range(4):
        assert sorted(set(origins[:, place])) == [each for each in range(4) if each != place]


def test_training_draws_anew_and_evaluation_never_does():
    x, layer = different_tokens(6, 50), MaskTokens(seed=0)
    first, second = (masked(layer, x, training=True)[1] for _ in range(2))
    assert (first != second).any() and (first[0] != first[1]).any()
    again = masked(MaskTokens(seed=0), x, training=True)[1]
    np.testing.assert_array_equal(again, first)
    whole = masked(layer, x, training=False)[1]
    np.testing.assert_array_equal(masked(layer, x[:1], training=False)[1], whole[:1])
    assert (whole == whole[0]).all()


def test_masked_tokens_can_be_saved_trained_and_computed_in_half_precision(tmp_path):
    layer = MaskTokens(0.5, mask_share=0.6, swap_share=0.2, seed=4, name="mask_token")
    assert MaskTokens.from_config(layer.get_config()).get_config() == layer.get_config()
    symbol = keras.Input((10, 4))
    model = keras.Model(symbol, layer(symbol))
    x = np.random.RandomState(0).normal(size=(3, 10, 4)).astype("float32")
    expected = [keras.ops.convert_to_numpy(output) for output in model(x)]
    model.save(tmp_path / "layer.keras")
    for output, loaded in zip(
        expected, keras.saving.load_model(tmp_path / "layer.keras")(x), strict=True
    ):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded), output)
    assert [weight.path for weight in layer.trainable_weights] == ["mask_token/mask"]
    half = MaskTokens(dtype="mixed_bfloat16")
    tokens, kinds = half(x)
    assert (keras.backend.standardize_dtype(tokens.dtype), half.mask.dtype) == (
        "bfloat16",
        "float32",
    )
    assert keras.backend.standardize_dtype(kinds.dtype) == "int32"


def test_what_cannot_be_masked_is_refused():
    with pytest.raises(ValueError, match="Received: rate=0, mask_share=0.8, swap_share=0.1"):
        MaskTokens(0)
    with pytest.raises(ValueError, match="add up to 1 at most"):
        MaskTokens(mask_share=0.8, swap_share=0.3)
    with pytest.raises(ValueError, match="needs a fixed number of tokens"):
        MaskTokens()(keras.Input((None, 4)))


def test_a_rate_that_corrupts_no_token_is_refused():
    with pytest.raises(ValueError, match="none of the 16 tokens. Use a `rate` of at least 0.062"):
        MaskTokens(0.02)(different_tokens(1, 16))
    _, kinds = masked(MaskTokens(1 / 16, seed=0), different_tokens(3, 16), training=True)
    assert (kinds > UNTOUCHED).sum(axis=1).tolist() == [1, 1, 1]
