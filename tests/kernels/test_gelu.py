import math

import keras
import numpy as np
import pytest

from keras_vit.kernels import gelu

FORMS = ("tanh", "exact")
X = np.linspace(-6, 6, 4001)


def _value(x: np.ndarray, form: str) -> np.ndarray:
    if form == "exact":
        return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _numpy(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(
        keras.ops.cast(x, "float64" if keras.backend.backend() != "jax" else "float32")
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("training", [False, True])
def test_values_are_those_of_the_formula(form, training):
    found = gelu(keras.ops.convert_to_tensor(X.astype("float32")), form, training=training)
    np.testing.assert_allclose(_numpy(found), _value(X, form), atol=2e-6)


def test_the_forms_differ_by_less_than_they_are_said_to():
    difference = np.abs(_value(X, "tanh") - _value(X, "exact")).max()
    assert 4e-4 < difference < 5e-4


@pytest.mark.tensorflow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_gradient_in_training_is_the_slope(form, dtype):
    import tensorflow as tf

    x = tf.cast(X, dtype)
    upstream = tf.cast(np.cos(X), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, form, training=True)
    found = tape.gradient(y, x, output_gradients=upstream)
    assert (y.dtype, found.dtype) == (x.dtype, x.dtype)
    points, step = tf.cast(x, "float64").numpy(), 1e-5
    slope = (_value(points + step, form) - _value(points - step, form)) / (2 * step)
    expected = tf.cast(upstream, "float64").numpy() * slope
    # 16 bits are widened first, so that a number is rounded once: half a unit in its last place.
    tolerance = {"float64": 1e-8, "float32": 3e-5, "bfloat16": 2**-8, "float16": 2**-10}[dtype]
    np.testing.assert_allclose(
        tf.cast(found, "float64"), expected, rtol=tolerance, atol=tolerance / 10
    )


@pytest.mark.tensorflow
def test_the_gradient_has_a_gradient():
    """As a penalty on gradients asks for it."""
    import tensorflow as tf

    x = tf.constant([-1.0, 0.3, 2.0])
    found = []
    for training in (False, True):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(gelu(x, "tanh", training=training))
            slope = inner.gradient(y, x)
        found.append(outer.gradient(slope, x))
    np.testing.assert_allclose(*found, atol=1e-5)


def _fused(function, *arguments) -> set[bytes]:
    """What TensorFlow has put into products, after its optimizers: "BiasAdd", "GeluApproximate"."""
    from tensorflow.python.eager import context

    context.enable_run_metadata()  # graphs are told when they are optimized: at the first call
    try:
        function(*arguments)
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    graphs = [graph.post_optimization_graph for graph in graphs]
    nodes = [
        node
        for graph in graphs
        for part in (graph, *graph.library.function)
        for node in _nodes(part)
    ]
    found = {
        name for node in nodes if "FusedMatMul" in node.op for name in node.attr["fused_ops"].list.s
    }
    if not found:
        pytest.skip("This TensorFlow fuses nothing into its products.")
    return found


def _nodes(part):
    return part.node if hasattr(part, "node") else part.node_def


@pytest.mark.tensorflow
def test_tensorflow_makes_one_operation_of_product_bias_and_gelu():
    import tensorflow as tf

    from keras_vit.kernels.tensorflow import inference
    from keras_vit.layers import MlpBlock

    block = MlpBlock(64, gelu="tanh")
    block.build((None, 5, 32))
    found = _fused(tf.function(lambda x: block(x, training=False)), tf.ones((2, 5, 32)))
    if found == {b"BiasAdd"} and not inference._norm_works(tf.bfloat16):
        pytest.skip("TensorFlow does not put GELU into products on this processor.")
    assert found == {b"BiasAdd", b"GeluApproximate"}


@pytest.mark.tensorflow
def test_tensorflow_still_needs_gelu_to_be_named_behind_the_product():
    """When this fails, the name scope in `gelu` can go."""
    import tensorflow as tf

    first, second = keras.layers.Dense(64), keras.layers.Dense(32)
    first.build((None, 32))
    second.build((None, 64))
    found = _fused(
        tf.function(lambda x: second(tf.nn.gelu(first(x), approximate=True))), tf.ones((10, 32))
    )
    assert found == {b"BiasAdd"}
