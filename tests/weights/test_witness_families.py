"""The NumPy pass of the other families, beside their Keras models."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_families import NAMES, build, tiny_row

from keras_vit.weights import variables, witness
from keras_vit.weights.restore import state

SIZE = (32, 48)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, *SIZE, 3)).astype(np.float32)


def _relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _arrays_and_logits(name: str, **options) -> tuple[dict, np.ndarray]:
    model = build(name, input_shape=(*SIZE, 3), classifier_activation=None, **options)
    arrays = variables.from_keras(state(model.layers), num_heads=2)
    return arrays, model.predict(IMAGES, verbose=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(4)
def test_the_keras_model_equals_the_numpy_pass(name):
    arrays, logits = _arrays_and_logits(name)
    found = witness.forward(arrays, IMAGES, tiny_row(name))
    assert _relative_error(found["logits"], logits) < 1e-5


def test_class_token_and_mean_together():
    arrays, logits = _arrays_and_logits("DINOv2_g14_reg4", classifier="token_gap")
    found = witness.forward(arrays, IMAGES, tiny_row("DINOv2_g14_reg4"))
    assert _relative_error(found["logits"], logits) < 1e-5


def _without_scale(arrays, row):
    return {
        name: np.ones_like(x) if "LayerScale_1" in name else x for name, x in arrays.items()
    }, row


def _with_gate_and_hidden_swapped(arrays, row):
    def swap(name: str) -> str:
        ends = {"Gate_0": "Dense_0", "Dense_0": "Gate_0"}
        return next((name.replace(a, b) for a, b in ends.items() if f"/{a}/" in name), name)

    return {swap(name): x for name, x in arrays.items()}, row


def _with_other_registers(arrays, row):
    return {**arrays, "registers": arrays["registers"] ** 2}, row


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("DINOv2_g14_reg4", _without_scale),
        ("DINOv2_g14_reg4", _with_gate_and_hidden_swapped),
        ("DINOv2_g14_reg4", _with_other_registers),
        ("CLIP_B16", lambda arrays, row: (arrays, replace(row, gelu="exact"))),
        ("CLIP_B16", lambda arrays, row: (arrays, replace(row, norm_epsilon=1e-2))),
        ("MAE_B16", lambda arrays, row: (arrays, replace(row, classifier="token"))),
        ("DeiT3_B16", lambda arrays, row: (arrays, replace(row, pixel_mean=(0.5, 0.5, 0.5)))),
    ],
)
def test_a_fault_is_noticed(name, change):
    arrays, logits = _arrays_and_logits(name)
    sound = witness.forward(arrays, IMAGES, tiny_row(name))
    assert _relative_error(sound["logits"], logits) < 1e-5
    arrays, row = change(arrays, tiny_row(name))
    found = witness.forward(arrays, IMAGES, row)
    assert _relative_error(found["logits"], logits) > 1e-3


def test_rotations_of_a_patch_follow_its_place_by_hand():
    # One head of 4 numbers: the pair (0, 2) turns with the row, (1, 3) with the column.
    x = np.zeros((1, 1 + 2 * 3, 1, 4), np.float32)
    x[..., 0], x[..., 1] = 1, 1
    turned = witness.rotate(x, grid=(2, 3), num_prefix=1)
    np.testing.assert_array_equal(turned[0, 0], x[0, 0])  # the class token
    row, column = 2 * np.pi * -0.5, 2 * np.pi * (2 / 3)  # of the last patch of the first row
    expected = [np.cos(row), np.cos(column), np.sin(row), np.sin(column)]
    np.testing.assert_allclose(turned[0, 3, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("DINOv2_g14_reg4", "registers"),
        ("DINOv2_g14_reg4", "Transformer/encoderblock_1/LayerScale_0/scale"),
        ("DINOv2_g14_reg4", "Transformer/encoderblock_0/MlpBlock_0/Gate_0/bias"),
        ("CLIP_B16", "Transformer/norm_before_blocks/scale"),
        ("DeiT_B16_distilled", "dist"),
    ],
)
def test_a_missing_array_is_named(name, array):
    arrays, _ = _arrays_and_logits(name)
    del arrays[array]
    with pytest.raises(ValueError, match=array):
        witness.forward(arrays, IMAGES, tiny_row(name))
