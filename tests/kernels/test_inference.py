"""In `predict` on TensorFlow norms and softmax are oneDNN's, each one operation; whatever is saved
has plain ones.
"""

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from keras_vit.kernels.tensorflow import inference  # noqa: E402
from keras_vit.layers import LayerNorm, MultiHeadDotProductAttention  # noqa: E402

pytestmark = pytest.mark.tensorflow
WIDTH = 48


@pytest.fixture
def uses(monkeypatch) -> list[bool]:
    """What was decided, each time that a norm was traced. Where the operation is missing these
    tests say nothing.
    """
    if not (inference._norm_works(tf.float32) and inference._norm_works(tf.bfloat16)):
        pytest.skip("This TensorFlow has no layer normalization of oneDNN's for this processor.")
    decided, has = [], inference.has_one_pass_norm
    monkeypatch.setattr(
        inference, "has_one_pass_norm", lambda x: decided.append(answer := has(x)) or answer
    )
    return decided


def _model(shape: tuple = (5, WIDTH), dtype: str = "float32", epsilon: float = 1e-6) -> keras.Model:
    images = keras.Input(shape, dtype="float32")
    layer = LayerNorm(epsilon, dtype=dtype)
    model = keras.Model(images, layer(images))
    draws = np.random.default_rng(1)
    layer.gamma.assign(draws.normal(1, 0.3, WIDTH))
    layer.beta.assign(draws.normal(0, 0.3, WIDTH))
    return model


def _tokens(*shape: int, offset: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(0).normal(offset, 2, (*shape, WIDTH))).astype("float32")


def _expected(model: keras.Model, x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    gamma, beta = (keras.ops.convert_to_numpy(weight).astype("float64") for weight in model.weights)
    x = x.astype("float64")
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("shape", [(WIDTH,), (5, WIDTH)])
def test_it_is_what_the_formula_says(uses, shape, epsilon, offset):
    model = _model(shape, epsilon=epsilon)
    uses.clear()
    x = _tokens(7, *shape[:-1], offset=offset)
    found = model.predict(x, batch_size=3, verbose=0)  # 3, 3 and 1
    assert uses and all(uses)
    np.testing.assert_allclose(found, _expected(model, x, epsilon), atol=2e-6 + 2e-6 * offset)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_16_bits_are_rounded_once(uses, dtype):
    model = _model(dtype=dtype)
    uses.clear()
    x = np.asarray(tf.cast(tf.cast(_tokens(4, 5), tf.bfloat16), tf.float32))
    found = np.asarray(tf.cast(model.predict_on_batch(x), tf.float32))
    assert all(uses) and uses
    expected = _expected(model, x)
    # Half a unit of the last of 8 digits; weights are what they are, in 8 or in 24 digits.
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 5, WIDTH), (2, 3, 5, WIDTH)])
def test_other_ranks_and_types_are_as_they_were(uses, shape):
    model = _model(shape, dtype="float64" if len(shape) == 3 else "float32")
    uses.clear()
    x = _tokens(2, *shape[:-1])
    found = model.predict_on_batch(x)
    assert uses == [False]
    np.testing.assert_allclose(found, _expected(model, x), atol=2e-6)


def test_all_replicas_of_a_strategy_use_it(uses, two_replicas):
    with two_replicas.scope():
        model = _model()
    uses.clear()
    x = _tokens(8, 5)
    np.testing.assert_allclose(
        model.predict(x, batch_size=4, verbose=0), _expected(model, x), atol=2e-6
    )
    assert uses and all(uses)


def test_compiled_by_xla_and_run_eagerly_it_is_plain(uses):
    model, x = _model(), _tokens(4, 5)
    for options in ({"jit_compile": True}, {"run_eagerly": True, "jit_compile": False}):
        model.compile(**options)
        uses.clear()
        np.testing.assert_allclose(model.predict_on_batch(x), _expected(model, x), atol=2e-6)
        assert uses and not any(uses)


def test_what_is_saved_has_public_operations_alone(uses, tmp_path):
    model, x = _model(), _tokens(4, 5)
    model.predict_on_batch(x)
    uses.clear()
    model.export(tmp_path / "saved", verbose=False)
    assert uses and not any(uses)
    served = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    operations = {
        node.op
        for function in served.graph.as_graph_def().library.function
        for node in function.node_def
    }
    assert "Rsqrt" in operations and not [name for name in operations if name.startswith("_Mkl")]
    np.testing.assert_allclose(
        next(iter(served(tf.constant(x)).values())), _expected(model, x), atol=2e-6
    )


def test_in_training_a_norm_that_is_frozen_still_has_a_gradient(uses):
    """`backbone(x, training=False)` in a model that is trained."""
    norm = LayerNorm(1e-6)

    class AsInInference(keras.Model):
        def call(self, x):
            return norm(x, training=False)

    model = AsInInference()
    model.norm = norm
    model(_tokens(4, 5))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    before = keras.ops.convert_to_numpy(norm.gamma)
    uses.clear()
    model.fit(_tokens(4, 5), np.zeros((4, 5, WIDTH)), verbose=0)
    assert uses and not any(uses)
    assert np.abs(keras.ops.convert_to_numpy(norm.gamma) - before).max() > 1e-3


def test_in_front_of_a_quantized_layer_it_is_plain(uses):
    """Its last bits decide how the layer rounds: `predict` must give what a call gives."""
    model, x = _model(), _tokens(4, 5)
    model.layers[-1].quantize("int8")
    uses.clear()
    found = model.predict_on_batch(x)
    assert not any(uses)
    np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(model(x)))


@pytest.mark.parametrize("fault", ["is not there", "is wrong"])
def test_an_operation_that_is_missing_or_wrong_is_not_used(monkeypatch, fault):
    def operation(x, gamma, beta, epsilon):
        if fault == "is not there":
            tf.compat.v1.get_default_graph().create_op("_NoSuchOperation", [x], [x.dtype])
        return x

    monkeypatch.setattr(inference, "_apply_onednn_norm", operation)
    assert not inference._norm_works.__wrapped__(tf.float32)


@pytest.fixture
def softmax_uses(monkeypatch) -> list[bool]:
    if not inference._softmax_works():
        pytest.skip("This TensorFlow's softmax of bfloat16 computes in bfloat16 on this processor.")
    decided, has = [], inference.has_narrow_softmax
    monkeypatch.setattr(
        inference, "has_narrow_softmax", lambda x: decided.append(answer := has(x)) or answer
    )
    return decided


def _attention(length: int, dtype: str) -> keras.Model:
    tokens = keras.Input((length, WIDTH), dtype="float32")
    layer = MultiHeadDotProductAttention(3, dtype=dtype)
    model = keras.Model(tokens, layer(tokens))
    for index, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(index).normal(0, 0.3, weight.shape))
    return model


@pytest.mark.parametrize("length", [1, 2, 197])
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_a_softmax_of_bfloat16_gives_the_same_bits_without_its_casts(
    softmax_uses, monkeypatch, dtype, length
):
    x = _tokens(3, length)
    softmax_uses.clear()
    narrow = _attention(length, dtype).predict_on_batch(x)
    assert any(softmax_uses)
    monkeypatch.setattr(inference, "has_narrow_softmax", lambda logits: False)
    wide = _attention(length, dtype).predict_on_batch(x)
    np.testing.assert_array_equal(
        *(np.asarray(tf.cast(found, tf.float32)) for found in (narrow, wide))
    )


def test_a_softmax_is_of_float32_in_float32_and_in_what_is_saved(softmax_uses, tmp_path):
    model = _attention(5, "float32")
    softmax_uses.clear()
    model.predict_on_batch(_tokens(2, 5))
    model = _attention(5, "mixed_bfloat16")
    model.export(tmp_path / "saved", verbose=False)
    assert softmax_uses and not any(softmax_uses)
    served = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    nodes = [
        node
        for function in served.graph.as_graph_def().library.function
        for node in function.node_def
    ]
    types = {node.attr["T"].type for node in nodes if node.op == "Softmax"}
    assert types == {tf.float32.as_datatype_enum}


def test_a_softmax_that_computes_in_bfloat16_is_not_used(monkeypatch):
    def softmax(logits):
        exponents = tf.exp(logits - tf.reduce_max(logits, -1, keepdims=True))
        return exponents / tf.cast(tf.reduce_sum(exponents, -1, keepdims=True), logits.dtype)

    monkeypatch.setattr(tf.nn, "softmax", softmax)
    assert not inference._softmax_works.__wrapped__()
