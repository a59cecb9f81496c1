"""Visible and hidden patches against plain NumPy."""

import keras
import numpy as np
import pytest

from keras_vit.layers import KeepTokens, RandomMask, RestoreTokens


def arrays(outputs) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(output) for output in outputs]


def noise(batch: int, length: int) -> np.ndarray:
    return np.random.RandomState(batch).uniform(size=(batch, length)).astype("float32")


def test_a_quarter_of_the_patches_is_visible():
    numbers = noise(64, 196)
    visible, ranks = arrays(RandomMask()(numbers))
    assert visible.shape == (64, 49) and ranks.shape == (64, 196)
    assert visible.dtype == ranks.dtype == np.int32
    for image in range(64):
        smallest = np.argsort(numbers[image])[:49]
        np.testing.assert_array_equal(visible[image], smallest)
        assert set(np.flatnonzero(ranks[image] < 49)) == set(smallest)
        np.testing.assert_array_equal(ranks[image, visible[image]], range(49))
    # Every patch as often as any other.
    assert abs((ranks < 49).mean(axis=0) - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / 64)


@pytest.mark.parametrize(("mask_share", "count"), [(0.5, 8), (0.6, 6), (0.9, 1), (0.75, 4)])
def test_the_number_of_visible_patches_is_rounded_down(mask_share, count):
    visible, _ = RandomMask(mask_share)(noise(1, 16))
    assert visible.shape == (1, count)


def test_half_precision_does_not_change_the_mask():
    numbers = 0.5 + 1e-3 * noise(2, 64)  # all equal in bfloat16
    keras.config.set_dtype_policy("mixed_bfloat16")
    symbol = keras.Input((64,))
    model = keras.Model(symbol, RandomMask(0.5)(symbol))
    keras.config.set_dtype_policy("float32")
    _, ranks = arrays(model(numbers))
    np.testing.assert_array_equal(ranks, numbers.argsort(axis=1).argsort(axis=1))


def test_kept_tokens_come_in_the_order_of_their_indices():
    tokens = np.random.RandomState(0).normal(size=(3, 2 + 7, 5)).astype("float32")
    visible = np.array([[6, 0], [3, 3], [1, 2]])
    (kept,) = arrays([KeepTokens(2)(tokens, visible)])
    assert kept.dtype == np.float32
    for image in range(3):
        expected = np.concatenate([tokens[image, :2], tokens[image, 2:][visible[image]]])
        np.testing.assert_array_equal(kept[image], expected)


def test_restored_tokens_are_at_their_places():
    tokens = np.random.RandomState(0).normal(size=(4, 1 + 12, 5)).astype("float32")
    visible, ranks = RandomMask(0.5)(noise(4, 12))
    layer = RestoreTokens(1)
    kept = KeepTokens(1)(tokens, visible)
    layer.build(kept.shape, ranks.shape)
    layer.mask.assign(np.full((1, 1, 5), -7.0))
    restored, visible = arrays([layer(kept, ranks), visible])
    assert restored.shape == tokens.shape and restored.dtype == np.float32
    for image in range(4):
        expected = np.full((13, 5), -7.0, "float32")
        places = [0, *(1 + visible[image])]
        expected[places] = tokens[image, places]
        np.testing.assert_array_equal(restored[image], expected)


def test_the_layers_can_be_saved_and_computed_in_half_precision(tmp_path):
    """Instead of the layer contract, whose inputs are all floats."""
    keep, restore = KeepTokens(1, name="keep"), RestoreTokens(1, name="restore")
    tokens, numbers = keras.Input((13, 5)), keras.Input((12,))
    visible, ranks = RandomMask(0.5, name="draw")(numbers)
    model = keras.Model([tokens, numbers], restore(keep(tokens, visible), ranks))
    x = np.random.RandomState(0).normal(size=(2, 13, 5)).astype("float32")
    (expected,) = arrays([model([x, noise(2, 12)])])
    model.save(tmp_path / "layers.keras")
    (loaded,) = arrays([keras.saving.load_model(tmp_path / "layers.keras")([x, noise(2, 12)])])
    np.testing.assert_array_equal(loaded, expected)
    assert [weight.path for weight in model.trainable_weights] == ["restore/mask"]
    for layer in (keep, restore, model.get_layer("draw")):
        assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
    half = RestoreTokens(1, dtype="mixed_bfloat16")
    output = half(x[:, :7].astype("float32"), np.zeros((2, 12), "int32"))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert half.mask.dtype == "float32"


@pytest.mark.once
def test_the_mask_token_starts_with_deviation_002():
    """As in the authors' code: `torch.nn.init.normal_(self.mask_token, std=.02)`."""
    layer = RestoreTokens(1)
    layer.build((None, 4, 20_000), (None, 9))
    assert np.std(keras.ops.convert_to_numpy(layer.mask)) == pytest.approx(0.02, rel=0.03)


def test_what_cannot_be_hidden_is_refused():
    for share in (0, 1, -0.5):
        with pytest.raises(ValueError, match=f"between 0 and 1. Received: {share}"):
            RandomMask(share)
    with pytest.raises(ValueError, match="one hidden. Received: 3 patches, mask_share=0.75"):
        RandomMask()(noise(1, 3))
    with pytest.raises(ValueError, match="needs a fixed number of patches"):
        RandomMask()(keras.Input((None,)))
