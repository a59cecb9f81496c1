import math
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from layer_contract import check_layer
from warm import HUNG_SECONDS

from keras_vit.layers import (
    MlpBlock,
    MultiHeadDotProductAttention,
    RotaryPositions,
    SwiGluBlock,
    TransformerBlock,
)

CONSTANTS = {"norm_epsilon": 1e-6, "gelu": "tanh"}


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_mlp_keeps_the_layer_contract(gelu, tmp_path):
    check_layer(
        lambda **k: MlpBlock(12, gelu=gelu, **k),
        (2, 5, 8),
        output_shape=(2, 5, 8),
        num_weights=4,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    ("options", "num_weights"), [({}, 8), ({"relative_positions": 5}, 9), ({"query_chunk": 2}, 8)]
)
def test_attention_keeps_the_layer_contract(options, num_weights, tmp_path):
    check_layer(
        lambda **k: MultiHeadDotProductAttention(2, **options, **k),
        (2, 5, 8),
        output_shape=(2, 5, 8),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


def test_attention_of_few_queries_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: MultiHeadDotProductAttention(2, **k),
        (2, 1, 8),
        (2, 5, 8),
        output_shape=(2, 1, 8),
        num_weights=8,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    ("options", "num_weights"),
    [({}, 16), ({"relative_positions": 5}, 17), ({"query_chunk": 2}, 16)],
)
def test_block_keeps_the_layer_contract(options, num_weights, tmp_path):
    check_layer(
        lambda **k: TransformerBlock(2, 12, **CONSTANTS, **options, **k),
        (2, 5, 8),
        output_shape=(2, 5, 8),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


def _numpy(layer) -> dict[str, np.ndarray]:
    return {
        w.path.split("/", 1)[1]: keras.ops.convert_to_numpy(w).astype("float64")
        for w in layer.weights
    }


def _softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _attention(x, p, num_heads, relative=None):
    """One loop per head and pair: slow, and plain to read."""
    width = x.shape[-1]
    size = width // num_heads
    q, k, v = (x @ p[f"{n}/kernel"] + p[f"{n}/bias"] for n in ("query", "key", "value"))
    heads = []
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        logits = q[..., part] @ k[..., part].swapaxes(-1, -2)
        if relative is not None:
            length = x.shape[1]
            for i in range(length):
                for j in range(length):
                    logits[:, i, j] += q[:, i, part] @ relative[i - j + length - 1]
        heads.append(_softmax(logits / math.sqrt(size)) @ v[..., part])
    return np.concatenate(heads, axis=-1) @ p["out/kernel"] + p["out/bias"]


@pytest.mark.parametrize("relative", [False, True])
def test_attention_equals_equations_5_to_8(relative):
    layer = MultiHeadDotProductAttention(2, relative_positions=5 if relative else None)
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("float32")
    layer(x)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(1).standard_normal(weight.shape))
    p = _numpy(layer)
    expected = _attention(x.astype("float64"), p, 2, p.get("relative_embedding"))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_mlp_equals_its_formula(gelu):
    layer = MlpBlock(16, gelu=gelu)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")
    layer(x)
    p = _numpy(layer)
    hidden = x @ p["dense_0/kernel"] + p["dense_0/bias"]
    if gelu == "exact":
        active = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    else:
        active = (
            hidden * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        )
    expected = active @ p["dense_1/kernel"] + p["dense_1/bias"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-6)


def test_the_quick_form_is_x_times_a_sigmoid():
    layer = MlpBlock(16, gelu="quick")
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")
    layer(x)
    p = _numpy(layer)
    hidden = x @ p["dense_0/kernel"] + p["dense_0/bias"]
    expected = hidden / (1 + np.exp(-1.702 * hidden)) @ p["dense_1/kernel"] + p["dense_1/bias"]
    for training in (False, True):
        found = keras.ops.convert_to_numpy(layer(x, training=training))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_swiglu_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: SwiGluBlock(12, **k),
        (2, 6, 8),
        output_shape=(2, 6, 8),
        num_weights=6,
        tmp_path=tmp_path,
    )


def test_swiglu_equals_its_formula():
    layer = SwiGluBlock(16)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")
    layer(x)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(1).standard_normal(weight.shape))
    p = _numpy(layer)
    gate = x @ p["gate/kernel"] + p["gate/bias"]
    hidden = gate / (1 + np.exp(-gate)) * (x @ p["dense_0/kernel"] + p["dense_0/bias"])
    expected = hidden @ p["dense_1/kernel"] + p["dense_1/bias"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", ["no_key", "none"])
def test_missing_biases_are_zeros(bias):
    """A layer without biases equals one with biases of zero."""
    layer, full = MultiHeadDotProductAttention(2, bias=bias), MultiHeadDotProductAttention(2)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")
    layer(x), full(x)
    own = {weight.path.split("/", 1)[1]: weight for weight in layer.weights}
    absent = {"no_key": {"key"}, "none": {"query", "key", "value"}}[bias]
    for weight in full.weights:
        name = weight.path.split("/", 1)[1]
        values = np.random.default_rng(len(name)).standard_normal(weight.shape)
        if name in own:
            own[name].assign(values)
        else:
            assert name.split("/")[-1] == "bias" and name.split("/")[-2] in absent
            values = np.zeros(weight.shape)
        weight.assign(values)
    found, expected = (keras.ops.convert_to_numpy(each(x)) for each in (layer, full))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_block_with_layer_scale_of_ones_is_a_plain_block():
    scaled, plain = (TransformerBlock(2, 12, layer_scale=s, **CONSTANTS) for s in (True, False))
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    scaled(x), plain(x)
    for weight in scaled.weights:
        weight.assign(np.random.default_rng(1).standard_normal(weight.shape))
    scales = (scaled.attention_scale.gamma, scaled.mlp_scale.gamma)
    plain.set_weights([w.numpy() for w in scaled.weights if all(w is not s for s in scales)])
    for scale in scales:
        scale.assign(np.ones(8))
    for training in (False, True):
        found, expected = (
            keras.ops.convert_to_numpy(each(x, training=training)) for each in (scaled, plain)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    scaled.mlp_scale.gamma.assign(np.zeros(8))
    scaled.attention_scale.gamma.assign(np.zeros(8))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(scaled(x)), x)


@pytest.mark.parametrize(
    ("options", "is_rotated"),
    [
        ({"norm_epsilon": 0.1}, False),
        ({}, True),
        ({"norm_epsilon": 0.1, "attention_bias": "no_key", "mlp": "swiglu"}, True),
    ],
    ids=str,
)
def test_a_block_without_dropout_is_the_same_in_training_and_in_inference(options, is_rotated):
    """Training and inference use different kernels. Both must get the constants and the rotation."""
    block = TransformerBlock(2, 12, **{**CONSTANTS, **options})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 8)).astype("float32")
    rotation = RotaryPositions(4, 1)(np.zeros((1, 2, 2, 1), "float32")) if is_rotated else None
    block(x)
    for weight in block.weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    found, expected = (
        keras.ops.convert_to_numpy(block(x, rotation=rotation, training=training))
        for training in (True, False)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_attention_scores_are_those_that_the_block_uses():
    block = TransformerBlock(2, 12, **CONSTANTS)
    x = keras.random.normal((2, 5, 8))
    block(x)
    scores = block.attention_scores(x)
    assert scores.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(keras.ops.sum(scores, -1)), 1, atol=1e-6)
    values = keras.ops.reshape(block.attention.value(block.attention_norm(x)), (2, 5, 2, 4))
    mixed = keras.ops.reshape(keras.ops.einsum("baqn,bnak->bqak", scores, values), (2, 5, 8))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(block.attention.out(mixed)),
        keras.ops.convert_to_numpy(block.attention(block.attention_norm(x))),
        atol=1e-6,
    )


def _gradients(layer: keras.layers.Layer, x: np.ndarray) -> list[np.ndarray]:
    """Of the sum of sines of what the layer gives in training, by its weights."""
    values = [weight.value for weight in layer.trainable_weights]

    def loss(values):
        outputs, _ = layer.stateless_call(
            values, [w.value for w in layer.non_trainable_weights], x, training=True
        )
        return keras.ops.sum(keras.ops.sin(outputs))

    if keras.backend.backend() == "jax":
        import jax

        return [np.asarray(gradient) for gradient in jax.jit(jax.grad(loss))(values)]
    import tensorflow as tf

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = loss(values)
        return tape.gradient(result, values)

    return [gradient.numpy() for gradient in compute()]


@pytest.mark.parametrize("query_chunk", [1, 2, 5, 100])
def test_attention_in_chunks_of_queries_is_attention(query_chunk):
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    whole, chunked = (
        MultiHeadDotProductAttention(2, query_chunk=size) for size in (None, query_chunk)
    )
    whole.build(x.shape)
    chunked.build(x.shape)
    chunked.set_weights(whole.get_weights())
    for training in (False, True):
        found, expected = (layer(x, training=training) for layer in (chunked, whole))
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(found),
            keras.ops.convert_to_numpy(expected),
            rtol=1e-5,
            atol=1e-6,
        )
    for found, expected in zip(_gradients(chunked, x), _gradients(whole, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _peak_megabytes(query_chunk: int | None) -> float:
    """Of a process that lets 8 images of 1000 tokens attend with 8 heads: probabilities of 256
    MB.
    """
    code = f"""
import re, keras, numpy
from keras_vit.layers import MultiHeadDotProductAttention
images = keras.Input((1000, 64))
layer = MultiHeadDotProductAttention(8, query_chunk={query_chunk})
keras.Model(images, layer(images)).predict_on_batch(numpy.ones((8, 1000, 64), "float32"))
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024 / 1e6)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process is read from Linux's /proc",
)
def test_chunks_of_queries_take_less_memory():
    assert _peak_megabytes(100) < _peak_megabytes(None) - 150


def test_glorot_fans_are_those_of_the_flat_matrix():
    """Keras's own attention layer, before 2026-04, started queries, keys and values six times too
    small.
    """
    block = TransformerBlock(12, 3072, **CONSTANTS)
    block.build((None, 5, 768))
    for name in ("query", "key", "value", "out"):
        kernel = keras.ops.convert_to_numpy(getattr(block.attention, name).kernel)
        assert np.abs(kernel).max() == pytest.approx(math.sqrt(6 / (768 + 768)), rel=1e-3)
    assert np.std(keras.ops.convert_to_numpy(block.mlp.dense_0.bias)) == pytest.approx(
        1e-6, rel=0.1
    )


def test_relative_embeddings_start_with_deviation_002():
    layer = MultiHeadDotProductAttention(2, relative_positions=500)
    layer.build((None, 500, 64))
    table = keras.ops.convert_to_numpy(layer.relative_embedding)
    assert np.std(table) == pytest.approx(0.02, rel=0.02)


@pytest.fixture
def dropouts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, tuple[int, ...]]]:
    """Rate and shape of each dropout that is applied."""
    applied: list[tuple[float, tuple[int, ...]]] = []
    dropout = keras.layers.Dropout.call

    def spy(self, inputs, training=False):
        applied.append((self.rate, tuple(inputs.shape)))
        return dropout(self, inputs, training=training)

    monkeypatch.setattr(keras.layers.Dropout, "call", spy)
    return applied


def test_dropout_follows_every_dense_layer_but_query_key_value(dropouts):
    block = TransformerBlock(
        2, 12, **CONSTANTS, dropout_rate=0.1, attention_dropout_rate=0.2, drop_path_rate=0.3
    )
    block(np.zeros((4, 5, 8), "float32"), training=True)
    tokens, hidden, scores = (4, 5, 8), (4 * 5, 12), (4, 2, 5, 5)
    assert dropouts == [
        (0.2, scores),
        (0.1, tokens),
        (0.3, tokens),
        (0.1, hidden),
        (0.1, tokens),
        (0.3, tokens),
    ]


def test_dropout_follows_the_hidden_layer_and_the_output_of_a_gated_mlp(dropouts):
    SwiGluBlock(12, dropout_rate=0.1)(np.zeros((4, 5, 8), "float32"), training=True)
    assert dropouts == [(0.1, (4 * 5, 12)), (0.1, (4, 5, 8))]


def test_stochastic_depth_drops_whole_examples_and_keeps_the_expectation():
    block = TransformerBlock(2, 12, **CONSTANTS, drop_path_rate=0.5)
    x = np.random.default_rng(0).standard_normal((1, 5, 8)).astype("float32").repeat(4000, axis=0)
    plain = keras.ops.convert_to_numpy(block(x)) - x
    dropped = keras.ops.convert_to_numpy(block(x, training=True)) - x
    untouched = np.all(dropped == 0, axis=(1, 2))
    assert untouched.mean() == pytest.approx(0.25, abs=0.03)  # both branches dropped
    attention = keras.ops.convert_to_numpy(block.attention(block.attention_norm(x[:1])))[0]
    assert np.any(np.all(np.isclose(dropped, 2 * attention, atol=1e-5), axis=(1, 2)))
    assert dropped.mean() == pytest.approx(plain.mean(), abs=0.05)


def test_no_randomness_in_inference():
    block = TransformerBlock(
        2, 12, **CONSTANTS, dropout_rate=0.5, attention_dropout_rate=0.5, drop_path_rate=0.5
    )
    x = keras.random.normal((2, 5, 8))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(block(x)), keras.ops.convert_to_numpy(block(x))
    )


def test_softmax_is_computed_in_float32_under_mixed_precision():
    layer = MultiHeadDotProductAttention(1, dtype="mixed_bfloat16")
    scores = layer(np.zeros((1, 300, 4))) is not None and layer.attention_scores(
        keras.ops.zeros((1, 300, 4))
    )
    total = keras.ops.sum(keras.ops.cast(scores, "float32"), axis=-1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(total), 1, atol=5e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MultiHeadDotProductAttention(3)(np.zeros((1, 2, 8))),
            "must divide the token size.*3 heads, size 8",
        ),
        (lambda: MlpBlock(4, gelu="relu"), "one of .*'tanh', 'exact', 'quick'.*'relu'"),
        (
            lambda: MultiHeadDotProductAttention(2, relative_positions=4)(np.zeros((1, 5, 8))),
            "for 4 tokens. Received: 5",
        ),
        (
            lambda: MultiHeadDotProductAttention(2, query_chunk=0),
            "must be at least 1.*Received: query_chunk=0",
        ),
        (
            lambda: TransformerBlock(2, 8, query_chunk=4, attention_dropout_rate=0.1, **CONSTANTS),
            "cannot be combined.*0.1",
        ),
        (
            lambda: MultiHeadDotProductAttention(2, query_chunk=4, relative_positions=3),
            "relative positions.*Received.*3",
        ),
        (
            lambda: MultiHeadDotProductAttention(2, query_chunk=4).build((None, None, 8)),
            "one image size",
        ),
    ],
)
def test_wrong_arguments_say_what_is_right(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", [lambda: TransformerBlock(2, 8), lambda: MlpBlock(8)])
def test_constants_of_a_checkpoint_have_no_default(make):
    with pytest.raises(TypeError, match="missing .* required keyword-only.*gelu"):
        make()
