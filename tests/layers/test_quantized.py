"""Keras's own tools on our models: quantization, kept in files and equal however a model is called;
LoRA; freezing.
"""

import dataclasses
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import kernels
from keras_vit.kernels import gelu
from keras_vit.layers.quantized import is_reproducible
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (3, 32, 32, 3)).astype("float32")
SHAPE = {"weights": None, "input_shape": (32, 32, 3), "classes": 5}


def build(kind: str, tiny_vit) -> keras.Model:
    """A model of one block, whose answers differ from image to image."""
    row = dataclasses.replace(tiny_vit, depth=1)
    if kind == "axial":
        model = keras_vit.application(dataclasses.replace(row, axial=True))(
            **SHAPE, position_embedding="relative"
        )
    elif kind == "axial unit":
        small = dataclasses.replace(RESNET_VARIANTS["AxialResNet50"], name="t", units=(1,))
        model = keras_vit.application(small)(**SHAPE)
    elif kind == "hybrid":
        stem = dataclasses.replace(VIT_VARIANTS["R_ViT_Ti16"].stem, units=(1,))
        model = keras_vit.application(dataclasses.replace(row, stem=stem, patch_size=1))(**SHAPE)
    else:
        options = {"map": {"classifier": "map", "representation_size": 8}}.get(kind, {"gelu": kind})
        model = keras_vit.application(row)(**SHAPE, **options)
    generator = np.random.default_rng(1)
    for weight in model.weights:
        start = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(start + 0.2 * generator.standard_normal(weight.shape))
    return model


def quantize(model: keras.Model, mode: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method implemented")
        model.quantize(mode)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "int8") for kind in ("tanh", "map")),
        *(
            pytest.param(kind, "int8", marks=pytest.mark.slow)
            for kind in ("exact", "axial", "axial unit", "hybrid")
        ),
        *(pytest.param("tanh", mode, marks=pytest.mark.slow) for mode in ("int4", "float8")),
    ],
)
@pytest.mark.sampled(1)
def test_a_quantized_model_is_the_same_once_it_was_saved(
    tiny_vit, tmp_path: Path, kind: str, mode: str
):
    model = build(kind, tiny_vit)
    exact = keras.ops.convert_to_numpy(model(IMAGES))
    quantize(model, mode)
    given = model.predict(IMAGES, verbose=0)
    assert 0 < np.abs(given - exact).max() < 0.2
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(IMAGES)), given, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(loaded(IMAGES)), keras.ops.convert_to_numpy(model(IMAGES))
    )
    loaded.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    assert [weight.dtype for weight in again.weights] == [weight.dtype for weight in model.weights]
    marked = [
        [is_reproducible(layer) for layer in each._flatten_layers()] for each in (model, again)
    ]
    # the unit has group norms, which are not marked
    assert marked[0] == marked[1] and any(marked[0]) == (kind != "axial unit")


@pytest.mark.tensorflow
@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_what_a_quantized_layer_rounds_has_the_same_bits_in_a_graph_and_without(form: str):
    """Else numbers on an edge are rounded the other way; blocks behind make 1 % of the output of
    it.
    """
    import tensorflow as tf

    x = tf.constant(RNG.standard_normal((50, 64)), tf.float32)
    norm = keras_vit.layers.LayerNorm(1e-6)
    norm.build((None, 64))
    norm.gamma.assign(RNG.standard_normal(64))
    expected = norm(x)
    norm.quantize("int8")
    np.testing.assert_allclose(norm(x), expected, atol=1e-6)
    np.testing.assert_array_equal(tf.function(norm)(x), norm(x))
    kept = gelu(x, form, reproducible=True)
    np.testing.assert_allclose(kept, gelu(x, form), atol=1e-6)
    np.testing.assert_array_equal(tf.function(lambda y: gelu(y, form, reproducible=True))(x), kept)


@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", [None, "int8"])
def test_the_gelu_in_front_of_a_quantized_layer_is_reproducible(mode: str | None, monkeypatch):
    layer, asked = keras_vit.layers.MlpBlock(12, gelu="tanh"), []
    layer.build((None, 5, 8))
    if mode is not None:
        layer.dense_1.quantize(mode)
    monkeypatch.setattr(
        kernels,
        "gelu",
        lambda x, form, *, training, reproducible: asked.append(reproducible) or x,
    )
    layer(RNG.standard_normal((2, 5, 8)).astype("float32"))
    assert asked == [mode is not None]


UNIT = {"norm_epsilon": 1e-6, "std_epsilon": 1e-5, "variance_epsilon": 0.0}


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: keras_vit.layers.SwiGluBlock(12), (5, 8)),
        (lambda: keras_vit.layers.AttentionPooling(2, 12, norm_epsilon=1e-6, gelu="tanh"), (5, 8)),
        (lambda: keras_vit.layers.AxialUnit(32, strides=1, **UNIT), (2, 3, 128)),
    ],
    ids=["gated MLP", "attention pooling", "axial unit"],
)
def test_a_quantized_layer_is_the_same_once_it_was_saved(make, shape, tmp_path: Path):
    tokens = keras.Input(shape)
    model = keras.Model(tokens, make()(tokens))
    x = RNG.standard_normal((2, *shape)).astype("float32")
    for weight in model.weights:
        weight.assign(RNG.normal(weight.path.endswith("gamma"), 0.3, weight.shape))
    quantize(model, "int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    types = [weight.dtype for weight in loaded.weights]
    assert types == [weight.dtype for weight in model.weights] and "int8" in types
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(loaded(x)), keras.ops.convert_to_numpy(model(x))
    )


@pytest.mark.tensorflow
@pytest.mark.slow
def test_int8_of_twelve_blocks_is_the_same_called_and_predicted(tiny_vit):
    row = dataclasses.replace(tiny_vit, depth=12)
    model = keras_vit.application(row)(**SHAPE, include_top=False, pooling="token")
    quantize(model, "int8")
    # outputs up to 3.5
    np.testing.assert_allclose(model(IMAGES), model.predict(IMAGES, verbose=0), atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["tanh", pytest.param("axial", marks=pytest.mark.slow)])
def test_lora_trains_alone_and_is_merged_into_what_is_saved(tiny_vit, tmp_path: Path, kind: str):
    model = build(kind, tiny_vit)
    exact, labels = model.predict(IMAGES, verbose=0), np.array([0, 1, 2])
    for weight in model.weights:
        weight.trainable = False
    frozen = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    held = list(model.weights)
    dense = [layer for layer in model._flatten_layers() if layer.name in ("query", "value")]
    for layer in dense:
        layer.enable_lora(2)
    # the second factor starts at zero
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), exact, atol=1e-6)
    assert len(model.trainable_weights) == 2 * len(dense) > 0
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy")
    model.fit(IMAGES, labels, epochs=2, shuffle=False, verbose=0)
    given = model.predict(IMAGES, verbose=0)
    assert np.abs(given - exact).max() > 1e-4
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(IMAGES)), given, atol=1e-6)
    for weight, then in zip(held, frozen, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), then)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(
        keras.models.load_model(tmp_path / "model.keras").predict(IMAGES, verbose=0),
        given,
        atol=1e-6,
    )


def test_what_has_no_place_in_a_checkpoint_is_refused_with_the_way_that_works(
    tiny_vit, tmp_path: Path
):
    for change, message in (
        (lambda dense: dense.enable_lora(2), r"layers with LoRA \(lora_kernel_a\).*model\.keras"),
        (lambda dense: dense.quantize("int8"), r"quantized layers \(kernel_scale\).*model\.keras"),
    ):
        model = keras_vit.application(tiny_vit)(**SHAPE)
        change(model.get_layer("predictions"))
        with pytest.raises(ValueError, match=message):
            keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []
