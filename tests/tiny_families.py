"""Tiny models of the other families, one for each option of the encoder, with random weights."""

from dataclasses import replace

import keras
import numpy as np

import keras_vit
from keras_vit.variants import FAMILY_VARIANTS, ViTVariant

# Together they have every option.
NAMES = (
    "SigLIP_B16",
    "MAE_B16",
    "DeiT_B16_distilled",
    "DeiT3_B16",
    "CLIP_B16",
    "DINOv2_g14_reg4",
    "DINOv3_S16plus",
)


def tiny_row(name: str) -> ViTVariant:
    """Returns the row of a family with two narrow blocks and patches of 8 pixels."""
    return replace(
        FAMILY_VARIANTS[name],
        name=f"tiny_{name}",
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_dim=24,
        image_size=32,
    )


def build(name: str, **options) -> keras.Model:
    """Builds a tiny model in which no weight is zero, so that each of them matters."""
    given = {"classes": 3, "classifier_activation": "softmax", **options}
    model = keras_vit.application(tiny_row(name))(weights=None, **given)
    generator = np.random.default_rng(0)
    for variable in model.weights:
        centre = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(generator.normal(centre, 0.3, variable.shape))
    return model
