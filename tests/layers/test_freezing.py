"""Frozen layers stay frozen when a model is saved, loaded or cloned."""

from dataclasses import replace

import keras
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

TINY = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
KINDS = {
    "map": (replace(VIT_VARIANTS["ViT_Ti16"], name="tiny", **TINY), {"classifier": "map"}),
    "axial": (replace(VIT_VARIANTS["AxialViT_B32"], name="tiny", **TINY), {}),
    "BiT": (replace(RESNET_VARIANTS["BiT_R50x1"], name="tiny", units=(1, 1)), {}),
}


def trainable(model: keras.Model) -> list[str]:
    return [weight.path for weight in model.trainable_weights]


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_probe_on_a_frozen_trunk_is_one_after_loading_and_cloning(kind: str, tmp_path):
    row, options = KINDS[kind]
    model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=3, **options)
    for layer in model.layers[:-1]:
        layer.trainable = False
    model.save(tmp_path / "probe.keras")
    expected = ["predictions/kernel", "predictions/bias"]
    assert trainable(model) == expected
    assert trainable(keras.models.load_model(tmp_path / "probe.keras")) == expected
    assert trainable(keras.models.clone_model(model)) == expected


def test_keras_still_trains_what_a_frozen_layer_makes():
    """When this fails, Keras keeps it frozen, and `freezing.py` can go."""

    class Outer(keras.layers.Layer):
        def build(self, input_shape):
            self.inner = keras.layers.Dense(2)
            self.inner.build(input_shape)

    outer = Outer(trainable=False)
    outer.build((None, 3))
    assert outer.inner.trainable


def test_a_block_that_is_thawed_is_trained_whole():
    block = TransformerBlock(
        num_heads=2, mlp_dim=8, norm_epsilon=1e-6, gelu="tanh", trainable=False
    )
    block.build((None, 3, 4))
    assert block.trainable_weights == []
    block.trainable = True
    assert len(block.trainable_weights) == len(block.weights) == 16
