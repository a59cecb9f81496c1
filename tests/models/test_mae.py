"""Masked autoencoders: what the encoder sees, what the decoder restores, and the targets."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.grid import sincos_positions
from keras_vit.models.mae import encoder_of, masked_autoencoder, reconstruct
from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS

SIDE, SIZE = 8, 32
SMALL = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}


def numbers(count: int = 3, length: int = 16) -> np.ndarray:
    return np.random.RandomState(1).uniform(size=(count, length)).astype("float32")


def images(count: int = 3) -> np.ndarray:
    return np.random.RandomState(0).uniform(-1, 1, (count, SIZE, SIZE, 3)).astype("float32")


def cut(pixels: np.ndarray) -> np.ndarray:
    """(B, N, P * P * 3), cut out one by one."""
    places = [(row, column) for row in range(0, SIZE, SIDE) for column in range(0, SIZE, SIDE)]
    patches = [pixels[:, row : row + SIDE, column : column + SIDE] for row, column in places]
    return np.stack(patches, axis=1).reshape(len(pixels), len(places), -1)


SIZES = {"patch_size": SIDE, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
ROW = dataclasses.replace(FAMILY_VARIANTS["MAE_B16"], name="tiny", **SIZES)


@pytest.fixture
def row():
    return ROW


@pytest.fixture(scope="module")
def made() -> dict[bool, keras.Model]:
    """By whether pixels are normalized."""
    models = {}
    for normalize in (True, False):
        models[normalize] = masked_autoencoder(ROW, SIZE, normalize_pixels=normalize, **SMALL)
        for index, variable in enumerate(models[normalize].trainable_variables):
            variable.assign(np.random.RandomState(index).normal(size=variable.shape) * 0.2)
    return models


def run(model: keras.Model, pixels: np.ndarray, noise: np.ndarray) -> list[np.ndarray]:
    return model.predict_on_batch([pixels, noise])


def test_the_encoder_sees_49_of_196_patches_and_the_class_token():
    row = dataclasses.replace(FAMILY_VARIANTS["MAE_B16"], depth=1)
    model = masked_autoencoder(row, 224, decoder_depth=1)
    assert model.get_layer("encoderblock_0").output.shape == (None, 50, 768)
    assert model.get_layer("encoder_norm").output.shape == (None, 50, 768)
    assert model.get_layer("decoderblock_0").output.shape == (None, 197, 512)
    shapes = [(None, 196, 768), (None, 196, 768), (None, 196)]
    assert [output.shape for output in model.outputs] == shapes
    # One of the eight blocks of the paper's decoder, and what is around it, counted by hand.
    count = sum(
        int(np.prod(variable.shape))
        for layer in model.layers
        if layer.name.startswith("decoder")
        for variable in layer.trainable_weights
    )
    width, block = 512, 12 * 512**2 + 13 * 512
    assert count == (768 + 1) * width + width + block + 2 * width + (width + 1) * 768


def test_hidden_pixels_are_not_seen(made):
    model = made[True]
    pixels, noise = images(), numbers()
    predictions, _, mask = run(model, pixels, noise)
    assert (mask.sum(axis=1) == 12).all() and set(np.unique(mask)) == {0, 1}
    visible = np.argsort(noise, axis=1)[:, :4]
    assert all(mask[image, visible[image]].sum() == 0 for image in range(3))
    hidden = np.array([np.flatnonzero(m)[5] for m in mask])
    for shown, places in ((False, hidden), (True, visible[:, 2])):
        changed = pixels.copy()
        for image, place in enumerate(places):
            top, left = place // 4 * SIDE, place % 4 * SIDE
            changed[image, top : top + SIDE, left : left + SIDE] *= -0.5
        others = run(model, changed, noise)[0]
        differences = np.abs(others - predictions).max(axis=(1, 2))
        assert (differences > 1e-4).all() if shown else (differences == 0).all()


@pytest.mark.parametrize("normalize", [True, False])
def test_targets_are_the_pixels_that_the_encoder_receives(made, normalize):
    pixels = images()
    _, targets, _ = run(made[normalize], pixels, numbers())
    mean, std = np.array(ROW.pixel_mean), np.array(ROW.pixel_std)
    expected = cut((pixels / 2 + 0.5 - mean) / std)
    if normalize:
        center = expected.mean(axis=-1, keepdims=True)
        variance = expected.var(axis=-1, ddof=1, keepdims=True)
        expected = (expected - center) / np.sqrt(variance + 1e-6)
    assert targets.dtype == np.float32 and targets.shape == (3, 16, 192)
    np.testing.assert_allclose(targets, expected, atol=1e-5)


def test_half_precision_has_the_masks_and_targets_of_float32(made, row):
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = run(masked_autoencoder(row, SIZE, **SMALL), images(), numbers())
    assert {output.dtype for output in half} == {np.dtype("float32")}
    single = run(made[True], images(), numbers())
    np.testing.assert_allclose(half[1], single[1], atol=1e-6)
    np.testing.assert_array_equal(half[2], single[2])


def test_positions_are_fixed_and_stored(made, row):
    model = made[True]
    for layer, width in (("posembed_input", 16), ("decoder_posembed", 16)):
        table = keras.ops.convert_to_numpy(model.get_layer(layer).pos_embedding)
        np.testing.assert_array_equal(table[:, :1], 0)
        np.testing.assert_array_equal(table[:, 1:], sincos_positions((4, 4), width))
    trained = {variable.path for variable in model.trainable_variables}
    assert not any("posembed" in path for path in trained)
    assert len(model.non_trainable_variables) == 2
    learned = masked_autoencoder(row, SIZE, position_embedding="learned_1d", **SMALL)
    assert "posembed_input/pos_embedding" in {v.path for v in learned.trainable_variables}


def test_the_encoder_of_a_checkpoint_is_the_model_of_that_name(made, row, tmp_path):
    autoencoder = made[True]
    encoder = encoder_of(autoencoder)
    assert all(any(v is w for w in autoencoder.variables) for v in encoder.variables)
    keras_vit.save_checkpoint(encoder, tmp_path / "encoder.npz")
    options = {"include_top": False, "input_shape": (SIZE, SIZE, 3)}
    model = keras_vit.application(row)(weights=tmp_path / "encoder.npz", **options)
    expected, found = (keras.ops.convert_to_numpy(m(images())) for m in (encoder, model))
    assert found.shape == (3, 17, 16)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    names = {"posembed_input", "class_token", "encoderblock_0", "encoder_norm", "embedding"}
    assert names <= {layer.name for layer in model.layers}


def test_visible_tokens_enter_the_blocks_unchanged(row):
    """Up to the last patch, which is hidden, the blocks receive the same tokens."""
    model = masked_autoencoder(row, SIZE, mask_share=0.01, **SMALL)
    noise = np.sort(numbers(1), axis=1)
    visible = keras.Model(model.inputs, model.get_layer("visible_tokens").output)
    tokens = keras.ops.convert_to_numpy(visible([images(1), noise]))
    whole = keras.Model(model.inputs, model.get_layer("dropout").output)
    everything = keras.ops.convert_to_numpy(whole([images(1), noise]))
    np.testing.assert_array_equal(tokens, everything[:, :16])  # the class token and 15 patches


@pytest.mark.parametrize("normalize", [True, False])
def test_a_perfect_prediction_reconstructs_the_image(made, normalize):
    _, targets, mask = made[normalize].outputs
    perfect = keras.Model(made[normalize].inputs, [targets, targets, mask])
    pixels, noise = images(2), numbers(2)
    seen, found = reconstruct(perfect, pixels, noise)
    np.testing.assert_allclose(found, pixels, atol=1e-5)
    _, _, mask = run(perfect, pixels, noise)
    for image, place in np.argwhere(mask >= 0):
        top, left = place // 4 * SIDE, place % 4 * SIDE
        here = np.s_[image, top : top + SIDE, left : left + SIDE]
        np.testing.assert_array_equal(seen[here], 0 if mask[image, place] else pixels[here])


def test_what_is_brighter_than_white_is_shown_as_white(made):
    """And darker than black as black: pixels of a picture are between."""
    _, targets, mask = made[False].outputs
    bright = keras.Model(made[False].inputs, [3 * keras.ops.sign(targets), targets, mask])
    pixels, noise = images(2), numbers(2)
    seen, found = reconstruct(bright, pixels, noise)
    assert set(np.unique(found[seen == 0])) <= {-1.0, 1.0} and np.abs(found).max() <= 1


def test_models_without_a_class_token(row):
    row = dataclasses.replace(row, class_token=False)
    model = masked_autoencoder(row, SIZE, class_token=False, **SMALL)
    assert model.get_layer("encoder_norm").output.shape == (None, 4, 16)
    assert model.outputs[0].shape == (None, 16, 192)


def test_what_cannot_be_an_autoencoder_is_refused(row):
    for name, problem in (
        ("R_ViT_Ti16", "a convolutional stem"),
        ("AxialViT_B32", "axial attention"),
    ):
        with pytest.raises(ValueError, match=f"{name} cannot be a masked autoencoder.*{problem}"):
            masked_autoencoder(VIT_VARIANTS[name], 224)
    with pytest.raises(ValueError, match="rotary positions, which need a whole grid"):
        masked_autoencoder(FAMILY_VARIANTS["DINOv3_S16"], 224)
    for options in ({"position_placement": "shared"}, {"position_embedding": "relative"}):
        with pytest.raises(ValueError, match="adds positions once, before the patches are hidden"):
            masked_autoencoder(row, SIZE, **options)
    with pytest.raises(ValueError, match="decoder_width=18, decoder_depth=1, decoder_heads=2"):
        masked_autoencoder(row, SIZE, **{**SMALL, "decoder_width": 18})


@pytest.mark.parametrize(("mask_share", "size"), [(0.97, SIZE), (0.75, SIDE)])
def test_masks_without_a_visible_or_a_hidden_patch_are_refused(row, mask_share, size):
    with pytest.raises(ValueError, match="^`RandomMask` needs .* Use larger images, or another"):
        masked_autoencoder(row, size, mask_share=mask_share, **SMALL)


def test_levels_are_scaled_and_other_ranges_refused(made):
    levels = np.random.RandomState(0).randint(0, 256, (2, SIZE, SIZE, 3)).astype("uint8")
    found = reconstruct(made[True], levels, numbers(2))
    expected = reconstruct(made[True], levels / 127.5 - 1, numbers(2))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    with pytest.raises(ValueError, match="pixels be uint8 or from -1 to 1. .* pixels from 0 to 25"):
        reconstruct(made[True], levels.astype("float32"), numbers(2))
    for wrong in (numbers(3), numbers(2, 15)):
        with pytest.raises(
            ValueError, match=r"must have the shapes \(2, 32, 32, 3\) and \(2, 16\)"
        ):
            reconstruct(made[True], images(2), wrong)


def test_an_autoencoder_is_not_saved_as_a_checkpoint(made, tmp_path):
    with pytest.raises(ValueError, match=r"decoder_.*save `keras_vit.models.mae.encoder_of"):
        keras_vit.save_checkpoint(made[True], tmp_path / "all.npz")
