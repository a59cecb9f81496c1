"""Full-size models, filled with the synthetic checkpoint, against the outputs of the published
implementations.
"""

import dataclasses

import keras
import numpy as np
import pytest
from synthetic_checkpoint import LARGE, checkpoint, reference_cases, synthetic_images

import keras_vit
from keras_vit.models import vision_transformer
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights import layouts, variables
from keras_vit.weights.restore import restore

CASES = {case["name"]: case for family in ("vit", "bit") for case in reference_cases(family)}
# The case without a public name: ViT-Ti with patches of 8 pixels.
UNNAMED = {"ViT-Ti/8 at 128"}
NOT_QUICK = {
    "ViT-S/16 global average pooling",
    *(("BiT-R50x1",) if keras.backend.backend() == "jax" else ()),
}


def _assert_equals_reference(logits, case, tolerance=1e-4):
    """The first 8 logits within `tolerance` of their norm, the norm of all, and the winner."""
    expected = np.array(case["logits_first8"])
    error = np.linalg.norm(logits[:, :8] - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < tolerance
    assert np.abs(logits[:, :8] - expected).max() < tolerance * np.abs(expected).max()
    np.testing.assert_allclose(np.linalg.norm(logits, axis=1), case["logits_norm"], rtol=tolerance)
    assert logits.argmax(axis=1).tolist() == case["argmax"]


def _row(case):
    if case["variant"] in RESNET_VARIANTS:
        return RESNET_VARIANTS[case["variant"]]
    return dataclasses.replace(VIT_VARIANTS[case["variant"]], patch_size=case["patch_size"])


def _arrays(case):
    """The synthetic checkpoint of a case, at the size of the checkpoint."""
    if case["variant"] in RESNET_VARIANTS:
        return checkpoint(_row(case))
    options = {name: case[name] for name in ("representation_size", "classifier")}
    return checkpoint(_row(case), image_size=case["checkpoint_size"], **options)


@pytest.mark.parametrize(
    "name",
    [
        # On JAX, of the large ones a hybrid and a resized one, which has every part of the third.
        # Compiling a ResNet there takes as long as fifty other tests.
        pytest.param(
            name,
            marks=()
            if name not in (*LARGE, *NOT_QUICK)
            else (pytest.mark.slow, pytest.mark.once)
            if name == "ViT-B/16 with pre_logits"
            else pytest.mark.slow,
        )
        for name in sorted(CASES.keys() - UNNAMED)
    ],
)
def test_a_published_file_gives_the_published_logits(name, tmp_path):
    """Through the front door, from a file in the spelling of the published ones."""
    case = CASES[name]
    path, size = tmp_path / "published.npz", case["image_size"]
    np.savez(path, **layouts.to_published(_arrays(case)))
    options = {"classifier": case["classifier"]} if "classifier" in case else {}
    build = getattr(keras_vit, case["variant"])
    model = build(weights=path, input_shape=(size, size, 3), classifier_activation=None, **options)
    assert len(model.weights) == case["arrays"]
    if case["checkpoint_size"] == size:
        assert model.count_params() == case["parameters"]
    _assert_equals_reference(model.predict(synthetic_images(size, size), verbose=0), case)


def test_a_row_of_ones_own_gives_the_published_logits():
    case = CASES["ViT-Ti/8 at 128"]
    size = case["image_size"]
    model = vision_transformer(_row(case), keras.Input((size, size, 3)), classes=1000)
    assert model.count_params() == case["parameters"]
    restore(model.layers, variables.to_keras(_arrays(case)))
    _assert_equals_reference(model.predict(synthetic_images(size, size), verbose=0), case)
