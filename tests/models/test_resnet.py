from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_vit.models import resnet
from keras_vit.variants import RESNET_VARIANTS

OPEN = ["BiT_R50x1", "ResNet50x1"]
NAMES = [*OPEN, "AxialResNet50"]
SLOW_ON_JAX = pytest.mark.slow if keras.backend.backend() == "jax" else ()  # compiling


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"pooling": None}, (2, 4, 6, 512)),
        ({}, (2, 512)),
        ({"pooling": "max"}, (2, 512)),
        ({"classes": 5}, (2, 5)),
    ],
)
def test_output_shapes(name, options, shape, tiny_resnet):
    model = resnet(tiny_resnet(RESNET_VARIANTS[name]), keras.Input((None, None, 3)), **options)
    assert model(np.zeros((2, 31, 48, 3), "float32")).shape == shape


@pytest.mark.once
def test_each_stage_has_twice_the_channels_and_half_the_side_of_the_one_before():
    row = replace(RESNET_VARIANTS["BiT_R50x1"], units=(1, 1, 1, 1))
    model = resnet(row, keras.Input((64, 64, 3)))
    shapes = [model.get_layer(f"block{stage}_unit1").output.shape[1:] for stage in (1, 2, 3, 4)]
    assert shapes == [(16, 16, 256), (8, 8, 512), (4, 4, 1024), (2, 2, 2048)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.once)]
)
def test_the_head_is_in_float32_under_mixed_precision(name, policy, tiny_resnet):
    keras.config.set_dtype_policy(policy)
    model = resnet(tiny_resnet(RESNET_VARIANTS[name]), keras.Input((32, 32, 3)), classes=5)
    assert keras.backend.standardize_dtype(model.output.dtype) == "float32"
    assert (
        keras.backend.standardize_dtype(model.get_layer("pool_root").output.dtype)
        == policy.split("_")[1]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pooling": "token"}, "'avg', 'max'"), ({"pooling": None, "classes": 3}, "pooled")],
)
def test_options_that_contradict_are_errors(options, message, tiny_resnet):
    with pytest.raises(ValueError, match=message):
        resnet(tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]), keras.Input((32, 32, 3)), **options)


def test_each_kind_of_unit_where_it_belongs(tiny_resnet):
    for name, unit in (
        ("BiT_R50x1", "BiTUnit"),
        ("ResNet50x1", "StemUnit"),
        ("AxialResNet50", "AxialUnit"),
    ):
        model = resnet(tiny_resnet(RESNET_VARIANTS[name]), keras.Input((32, 32, 3)))
        assert type(model.get_layer("block2_unit1")).__name__ == unit


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"pooling": None}, (2, 4, 6, 512)),
        pytest.param({}, (2, 512), marks=SLOW_ON_JAX),
        pytest.param({"pooling": "max"}, (2, 512), marks=SLOW_ON_JAX),
        ({"classes": 5}, (2, 5)),
    ],
)
def test_an_axial_resnet_has_a_fixed_size_of_any_shape(options, shape, tiny_resnet):
    """Cells at an edge are averaged over what there is: 31 x 48 pixels, 8 x 12 cells, 4 x 6."""
    row = tiny_resnet(RESNET_VARIANTS["AxialResNet50"])
    model = resnet(row, keras.Input((31, 48, 3)), **options)
    assert model(np.zeros((2, 31, 48, 3), "float32")).shape == shape
    unit = model.get_layer("block2_unit1")
    assert (unit.column.relative_positions, unit.row.relative_positions) == (8, 12)
    with pytest.raises(ValueError, match="fixed image size. Received: a map of None x 12 cells"):
        resnet(row, keras.Input((None, 48, 3)), **options)


@pytest.mark.parametrize(("pooling", "reduce"), [("avg", np.mean), ("max", np.max)])
def test_features_are_pooled_as_asked(pooling, reduce, tiny_resnet):
    model = resnet(
        tiny_resnet(RESNET_VARIANTS["ResNet50x1"]), keras.Input((32, 32, 3)), pooling=pooling
    )
    layer = model.get_layer(f"{pooling}_pool")
    assert model.outputs[0] is layer.output
    maps = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("float32")
    pooled = keras.ops.convert_to_numpy(layer(maps))
    np.testing.assert_allclose(pooled, reduce(maps, axis=(1, 2)), rtol=1e-5, atol=1e-6)


def test_axial_units_are_post_activation(tiny_resnet):
    row = replace(tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]), axial=True)
    with pytest.raises(ValueError, match="Axial units are post-activation. tiny has"):
        resnet(row, keras.Input((32, 32, 3)))
