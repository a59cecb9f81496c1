"""A block in training keeps less, and gives what the plain block gives."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_vit.layers import TransformerBlock

pytestmark = pytest.mark.tensorflow

CONSTANTS = {"norm_epsilon": 1e-6, "gelu": "tanh"}


def _block(dtype: str = "float32", **options) -> TransformerBlock:
    block = TransformerBlock(3, 64, **{**CONSTANTS, **options}, dtype=dtype)
    block.build((None, 7, 24))
    rng = np.random.default_rng(0)
    for weight in block.weights:
        weight.assign(weight.numpy() + 0.3 * rng.standard_normal(weight.shape))
    return block


def _everything(block: TransformerBlock, x) -> dict[str, np.ndarray]:
    """Outputs and all gradients, in a graph."""
    import tensorflow as tf

    variables = [weight.value for weight in block.trainable_weights]

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = block(x, training=True)
            loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32)))
        return [y, *tape.gradient(loss, [x, *variables])]

    names = ["y", "x", *(weight.path for weight in block.trainable_weights)]
    return dict(
        zip(names, (tf.cast(value, tf.float32).numpy() for value in compute(x)), strict=True)
    )


@pytest.mark.parametrize(
    "options", [{"gelu": "tanh"}, {"gelu": "exact"}, {"query_chunk": 3}], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16"])
@pytest.mark.parametrize("part_size", [50, pytest.param(2**22, marks=pytest.mark.slow)])
@pytest.mark.sampled(5)
def test_numbers_and_gradients_are_those_of_the_plain_block(options, dtype, part_size, monkeypatch):
    import tensorflow as tf

    from keras_vit.kernels.tensorflow import halves, products

    # 50 numbers: each of the 4 images by itself
    monkeypatch.setattr(products, "_PART_SIZE", part_size)
    block = _block(dtype, **options)
    x = tf.constant(np.random.default_rng(1).standard_normal((4, 7, 24)).astype("float32"))
    assert halves.fits(block)
    found = _everything(block, x)
    monkeypatch.setattr(halves, "fits", lambda block: False)
    expected = _everything(block, x)
    largest = max(np.abs(values).max() for values in expected.values())
    tolerance = {"float32": 1e-5, "float64": 1e-6, "mixed_bfloat16": 2**-5}[dtype]
    for name, values in expected.items():
        # its true gradient is 0
        scale = largest if name.endswith("key/bias") else np.abs(values).max()
        assert np.abs(found[name] - values).max() <= tolerance * scale, name
        assert np.abs(values).max() > 0


def _peak_megabytes(is_lean: bool) -> float:
    command = [sys.executable, "-W", "ignore", __file__, "lean" if is_lean else "plain"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


@pytest.mark.slow
def test_a_step_takes_less_memory():
    """Six blocks, 8 images of 500 tokens, width 64: probabilities of 32 MB, hidden layers of 8 MB
    and more of them.
    """
    assert _peak_megabytes(is_lean=True) < _peak_megabytes(is_lean=False) - 150


def _train_one_step(is_lean: bool) -> None:
    import tensorflow as tf

    from keras_vit.kernels.tensorflow import halves

    if not is_lean:
        halves.fits = lambda block: False
    blocks = [TransformerBlock(4, 512, **CONSTANTS) for _ in range(6)]
    for block in blocks:
        block.build((None, 500, 64))
    variables = [weight.value for block in blocks for weight in block.trainable_weights]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for block in blocks:
                x = block(x, training=True)
        return [tf.reduce_sum(gradient) for gradient in tape.gradient(x, variables)]

    step(tf.ones((8, 500, 64)))
    print(
        int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6
    )


@pytest.mark.parametrize(
    "options",
    [{"dropout_rate": 0.1}, {"attention_dropout_rate": 0.1}, {"relative_positions": 7}],
    ids=str,
)
def test_what_it_cannot_do_is_left_to_the_plain_block(options):
    from keras_vit.kernels.tensorflow import halves

    assert not halves.fits(_block(**options))


@pytest.mark.parametrize("change", ["adapter", "int8"])
@pytest.mark.parametrize("part", ["attention.query", "mlp.dense_1"])
def test_adapters_and_quantized_layers_are_left_to_the_plain_block(part, change):
    from keras_vit.kernels.tensorflow import halves

    block = _block()
    half, name = part.split(".")
    dense = getattr(getattr(block, half), name)
    if change == "adapter":
        dense.enable_lora(2)
    else:
        dense.quantize("int8")
    assert not halves.fits(block)


def test_probabilities_are_computed_for_one_chunk_of_queries_at_a_time(monkeypatch):
    """Those of all queries together would take the memory that `query_chunk` saves."""
    import tensorflow as tf

    from keras_vit.kernels.tensorflow import halves

    block, softmax, chunks = _block(query_chunk=3), tf.nn.softmax, []
    assert halves.fits(block)
    monkeypatch.setattr(
        tf.nn, "softmax", lambda logits: chunks.append(logits.shape[-2]) or softmax(logits)
    )
    block(tf.ones((2, 7, 24)), training=True)
    assert chunks == [3, 3, 1]


if __name__ == "__main__":
    _train_one_step(sys.argv[1] == "lean")
