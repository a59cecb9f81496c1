"""Every flavour of every kind of model: what it gives, what it is made of, and what cannot be
made.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_vit
from keras_vit.export.signatures import output_name
from keras_vit.export.tflite_flavours import FLAVOURS, Graph, convert
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant

pytestmark = pytest.mark.tensorflow

RNG = np.random.default_rng(0)
# The greatest error, as a part of the greatest output. Of int8 it is that of a model with random
# weights, on the images that set its ranges.
BOUNDS = {
    "float32": 1e-5,
    "float16": 5e-3,
    "dynamic_int8": 0.06,
    "int8": 0.25,
    "weight_only_int8": 0.06,
}


TINY = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32
)


def cut(row: ResNetVariant) -> ResNetVariant:
    return replace(row, name="tiny", units=(1, 1))


ROWS = {
    "token": TINY,
    "gap": TINY,
    "map": TINY,
    "exact": replace(TINY, gelu="exact"),
    "tanh": replace(TINY, gelu="tanh"),
    "wide": replace(TINY, width=64, mlp_dim=256),
    "axial": replace(TINY, axial=True),
    "hybrid": replace(TINY, patch_size=1, stem=cut(VIT_VARIANTS["R50_ViT_B16"].stem)),
    "BiT": cut(RESNET_VARIANTS["BiT_R50x1"]),
    "axial resnet": cut(RESNET_VARIANTS["AxialResNet50"]),
}


def build(kind: str = "token", shape: tuple = (32, 32, 3), **options) -> keras.Model:
    """A model of a kind; no weight is zero, so that none can be left out."""
    if kind in ("gap", "map"):
        options["classifier"] = kind
    options = {
        "weights": None,
        "input_shape": shape,
        "classes": 7,
        "classifier_activation": None,
        **options,
    }
    keras.utils.set_random_seed(0)
    model, generator = keras_vit.application(ROWS[kind])(**options), np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(variable + generator.normal(0, 0.05, variable.shape).astype("float32"))
    return model


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Graph]:
    def graph(model: keras.Model, size: tuple[int, int] = (32, 32), **options) -> Graph:
        images = np.random.default_rng(1).uniform(-1, 1, (6, *size, 3)).astype("float32")
        defaults = {
            "output": output_name(model),
            "image_size": size,
            "fixed_batch": False,
            "takes_levels": False,
            "calibration": images,
        }
        return Graph(
            model=model, **{**defaults, **options}, folder=tmp_path_factory.mktemp("graph")
        )

    return graph


def run(content: bytes, images: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(model_content=content)
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(taken["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(taken["index"], images)
    interpreter.invoke()
    return interpreter.get_tensor(given["index"])


def operations(content: bytes) -> list[tuple[str, list[type]]]:
    """The name of each operation and the types of what it takes."""
    interpreter = Interpreter(model_content=content)
    types = {tensor["index"]: tensor["dtype"] for tensor in interpreter.get_tensor_details()}
    return [
        (step["op_name"], [types[index] for index in step["inputs"] if index in types])
        for step in interpreter._get_ops_details()
        if step["op_name"] != "DELEGATE"
    ]


@pytest.fixture(scope="module")
def wide(graph_of) -> Graph:
    """Of a model whose matrices are large enough to be quantized."""
    return graph_of(build("wide"))


@pytest.fixture(scope="module")
def file_of_wide(wide) -> Callable[[str], bytes]:
    return functools.cache(functools.partial(convert, wide))


def check(content: bytes, graph: Graph, flavour: str) -> None:
    images = graph.calibration
    expected = graph.model.predict(images, verbose=0)
    given = run(content, images)
    assert given.dtype == np.float32 and given.shape == expected.shape == (6, 7)
    assert np.abs(given - expected).max() <= BOUNDS[flavour] * np.abs(expected).max()
    assert np.abs(expected).max() > 0.05
    # Names of custom operations and of those that need TensorFlow have small letters: Custom...,
    # Flex...
    assert all(name.isupper() for name, _ in operations(content))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_flavour_gives_what_the_model_gives(flavour: str, file_of_wide, wide):
    check(file_of_wide(flavour), wide, flavour)


@pytest.mark.parametrize(
    "kind",
    [
        "exact",
        "map",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tanh", "gap", "hybrid", "BiT")),
    ],
)
@pytest.mark.sampled(1)
def test_every_kind_of_model_can_be_converted(kind: str, graph_of):
    graph = graph_of(build(kind))
    for flavour in ("float32", "dynamic_int8"):
        check(convert(graph, flavour), graph, flavour)


@pytest.mark.parametrize("kind", ["axial", "axial resnet", "map", "hybrid", "BiT"])
@pytest.mark.slow
def test_every_kind_of_model_has_all_flavours(kind: str, graph_of):
    graph = graph_of(build(kind))
    for flavour in ("float32", "float16", "dynamic_int8", "weight_only_int8"):
        check(convert(graph, flavour), graph, flavour)
    assert run(convert(graph, "int8"), graph.calibration).shape == (6, 7)


@pytest.mark.parametrize(
    "shape", [pytest.param((32, 48, 3), marks=pytest.mark.slow), (None, None, 3)]
)
def test_any_shape_of_images_can_be_converted(shape: tuple, graph_of):
    graph = graph_of(build(shape=shape), (32, 48))
    check(convert(graph, "float32"), graph, "float32")


def test_a_quantized_file_is_smaller_by_what_its_weights_lose(file_of_wide, wide):
    sizes = {flavour: len(file_of_wide(flavour)) for flavour in FLAVOURS}
    weights = 4 * wide.model.count_params()
    assert weights < sizes["float32"] < 1.6 * weights
    assert sizes["float16"] < sizes["float32"] - 0.9 * weights / 2
    for flavour in ("dynamic_int8", "int8", "weight_only_int8"):
        assert sizes[flavour] < sizes["float32"] - 0.8 * weights * 3 / 4


def test_of_int8_the_products_with_weights_are_int8_and_sums_and_statistics_float(file_of_wide):
    found: dict[str, set[type]] = {}
    for name, types in operations(file_of_wide("int8")):
        found.setdefault(name, set()).add(types[0])
    assert found["FULLY_CONNECTED"] == {np.int8}
    statistics = ("MEAN", "SQUARED_DIFFERENCE", "RSQRT", "SUB")
    for name in (*statistics, "SOFTMAX", "BATCH_MATMUL", "ADD", "MUL"):
        assert found[name] == {np.float32}, name


def test_ranges_of_int8_are_set_by_all_images(wide, monkeypatch):
    seen = []

    def debug(*, converter: tf.lite.TFLiteConverter, **_) -> None:
        seen.extend(image for (image,) in converter.representative_dataset())
        raise ValueError("enough")

    monkeypatch.setattr(tf.lite.experimental, "QuantizationDebugger", debug)
    with pytest.raises(ValueError, match="enough"):
        convert(wide, "int8")
    np.testing.assert_array_equal(np.concatenate(seen), wide.calibration)


def test_of_the_other_kinds_of_int8_nothing_is_computed_from_int8_activations(file_of_wide):
    for flavour in ("dynamic_int8", "weight_only_int8"):
        taken = {
            types[0]
            for name, types in operations(file_of_wide(flavour))
            if name == "FULLY_CONNECTED"
        }
        assert taken == {np.float32}


def test_the_batch_is_free_or_one(graph_of, file_of_wide):
    model = build()
    fixed = convert(graph_of(model, fixed_batch=True), "float32")
    for content, batch in ((file_of_wide("float32"), -1), (fixed, 1)):
        interpreter = Interpreter(model_content=content)
        assert interpreter.get_input_details()[0]["shape_signature"].tolist() == [batch, 32, 32, 3]
        assert ("SHAPE" in [name for name, _ in operations(content)]) == (batch == -1)


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_input_and_output_have_names(activation: str | None, graph_of):
    content = convert(graph_of(build(classifier_activation=activation)), "float32")
    name = "probabilities" if activation else "logits"
    assert Interpreter(model_content=content).get_signature_list() == {
        "serving_default": {"inputs": ["images"], "outputs": [name]}
    }


@pytest.mark.parametrize("scales", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_file_may_take_pixels(scales: bool, graph_of):
    model = build(include_preprocessing=scales)
    levels = RNG.integers(0, 256, (6, 32, 32, 3)).astype("uint8")
    content = convert(graph_of(model, takes_levels=True, calibration=levels), "float32")
    expected = model.predict(levels.astype("float32") if scales else levels / 127.5 - 1, verbose=0)
    np.testing.assert_allclose(run(content, levels), expected, atol=1e-5)
    quantized = convert(graph_of(model, takes_levels=True, calibration=levels), "int8")
    np.testing.assert_allclose(run(quantized, levels), expected, atol=0.25 * np.abs(expected).max())


def test_the_model_stays_as_it_is_and_nothing_is_printed(capsys, graph_of):
    model = build()
    before = [variable.numpy() for variable in model.weights]
    for flavour in ("int8", "weight_only_int8"):
        convert(graph_of(model), flavour)
    assert capsys.readouterr().out == ""
    assert all((now.numpy() == then).all() for now, then in zip(model.weights, before, strict=True))


def test_what_cannot_be_made_says_why(monkeypatch, graph_of):
    graph = graph_of(build())
    with pytest.raises(
        ValueError, match="The flavours are float32, .*weight_only_int8. Received: 'int4'"
    ):
        convert(graph, "int4")
    # In a flatbuffer, offsets are signed 32-bit integers.
    monkeypatch.setattr(keras.Model, "count_params", lambda _: 2**31 // 4)
    for flavour in ("float32", "weight_only_int8"):
        with pytest.raises(
            ValueError,
            match=f"tiny cannot be converted to {flavour}: the weights take 2.0 GiB .* less than 2",
        ):
            convert(graph, flavour)


def test_an_operation_that_is_not_built_in_is_refused_by_name(graph_of):
    images = keras.Input((8, 8, 3))
    model = keras.Model(
        images, keras.ops.mean(keras.ops.erfinv(keras.ops.tanh(images)), (1, 2)), name="odd"
    )
    with pytest.raises(ValueError, match="(?s)odd cannot be converted to float32: .*[Ee]rfinv"):
        convert(graph_of(model, (8, 8)), "float32")


def test_what_is_missing_is_named_with_what_to_install(monkeypatch, graph_of):
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    with pytest.raises(ImportError, match="ai-edge-quantizer: pip install .*ai-edge-quantizer"):
        convert(graph_of(build()), "weight_only_int8")
