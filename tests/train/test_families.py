"""Heads and trunks of the other families: evaluation, a new head, fine-tuning."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_families import NAMES, build, tiny_row

import keras_vit
from keras_vit.evaluate import heads
from keras_vit.pixels import pixels_of
from keras_vit.train.masked_patches import masked_patch_model
from keras_vit.train.new_head import build_on_trunk, copy_with_new_head
from keras_vit.train.remat import rematerialize

IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_a_head_is_found_and_replaced_and_the_trunk_stays(name):
    model = build(name, input_shape=(32, 32, 3))
    assert heads.last_activation(model) == "softmax" and heads.gives_classes(model)
    assert heads.head_of(model).name == "predictions"
    assert (pixels_of(model).low, pixels_of(model).high) == (-1, 1)
    features = keras.Model(model.input, heads.strip_head(model)).predict(IMAGES, verbose=0)
    for copy in (
        copy_with_new_head(model, 32, num_classes=5),
        keras_vit.replace_head(model, classes=5),
    ):
        assert copy.output_shape == (None, 5)
        trunk = keras.Model(copy.input, heads.strip_head(copy))
        np.testing.assert_allclose(trunk.predict(IMAGES, verbose=0), features, atol=1e-6)
    scores = keras_vit.replace_head(model, classes=5).predict(IMAGES, verbose=0)
    np.testing.assert_allclose(scores, 0.2)  # both heads of a distilled DeiT are new


def test_both_heads_of_a_distilled_deit_are_found_and_replaced():
    model = build("DeiT_B16_distilled", input_shape=(32, 32, 3))
    assert heads.head_of(model).name == "predictions"
    features = keras.Model(model.input, heads.strip_head(model))
    assert features.layers[-1].name == "pooled"
    copy = keras_vit.replace_head(model, classes=5)
    for name, token in (
        ("predictions", "pooled"),
        ("predictions_distilled", "pooled_distillation"),
    ):
        assert copy.get_layer(name).units == 5
        assert copy.get_layer(name).input is model.get_layer(token).output


@pytest.mark.parametrize("name", ["MAE_B16", "DeiT3_B16", "DINOv2_g14_reg4", "DINOv3_S16plus"])
@pytest.mark.sampled(2)
def test_a_trunk_changes_its_size_by_the_rule_of_its_row(name):
    model = build(name, input_shape=(32, 32, 3))
    larger = copy_with_new_head(model, 48, num_classes=5)
    expected = build(name, input_shape=(None, None, 3))
    images = np.random.default_rng(1).uniform(-1, 1, (2, 48, 48, 3)).astype(np.float32)
    np.testing.assert_allclose(
        keras.Model(larger.input, heads.strip_head(larger)).predict(images, verbose=0),
        keras.Model(expected.input, heads.strip_head(expected)).predict(images, verbose=0),
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["SigLIP_B16", "DeiT_B16_distilled", "DINOv3_S16plus"])
@pytest.mark.sampled(1)
def test_a_step_of_training_changes_every_weight_that_is_read(name):
    model = build_on_trunk(tiny_row(name), None, 32, num_classes=3)
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        centre = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(generator.normal(centre, 0.3, variable.shape))
    before = {variable.path: np.array(variable.numpy()) for variable in model.trainable_variables}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(IMAGES, np.array([0, 2]), batch_size=2, verbose=0)
    same = {v.path for v in model.trainable_variables if np.array_equal(v.numpy(), before[v.path])}
    # A bias of the keys adds the same number to all logits.
    assert {path for path in same if not path.endswith("key/bias")} == set()


def test_masked_patches_are_predicted_for_patches_alone():
    row = tiny_row("DINOv2_g14_reg4")
    mask = keras_vit.layers.MaskTokens(name="mask_token")
    model = masked_patch_model(row, 32, "mean_color", mask=mask)
    predictions, _, kinds = model.predict(IMAGES, verbose=0)
    assert predictions.shape == (2, 16, 512) and kinds.shape == (2, 16)
    assert "pixel_normalization" in [layer.name for layer in model.layers]


@pytest.mark.parametrize("name", ["DINOv2_g14_reg4", "DINOv3_S16plus", "DeiT_B16_distilled"])
def test_rematerialized_blocks_have_the_same_gradients(name):
    model = build(name, input_shape=(32, 32, 3))
    plain, again = model, rematerialize(model)
    gradients = []
    for each in (plain, again):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(each(IMAGES, training=True)[:, 0])
        gradients.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["CLIP_B16", "DINOv2_g14_reg4", "DINOv3_S16plus"])
@pytest.mark.sampled(1)
def test_the_shortcut_of_the_last_block_changes_nothing(name):
    model = build(name, input_shape=(32, 32, 3))
    plain = keras.Model(model.input, model.output)
    for each in (model, plain):
        each.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    np.testing.assert_allclose(
        model.predict(IMAGES, verbose=0), plain.predict(IMAGES, verbose=0), atol=1e-6
    )
    start = model.get_weights()
    model.fit(IMAGES, np.array([0, 2]), batch_size=2, verbose=0)
    found = model.get_weights()
    model.set_weights(start)
    plain.fit(IMAGES, np.array([0, 2]), batch_size=2, verbose=0)
    for one, other in zip(found, plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
