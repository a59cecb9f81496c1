import math

import keras
import numpy as np
import pytest
from layer_contract import check_layer

from keras_vit.layers import (
    AxialTransformerBlock,
    AxialUnit,
    MultiHeadDotProductAttention,
    TransformerBlock,
)

CONSTANTS = {"norm_epsilon": 1e-6, "gelu": "tanh"}
UNIT = {"norm_epsilon": 1e-6, "std_epsilon": 1e-5, "variance_epsilon": 0.0}
GRID = (2, 3)


def _block(grid=GRID, **options):
    return AxialTransformerBlock(2, 12, grid=grid, **CONSTANTS, **options)


def _built(layer, shape, seed=1):
    """The layer with random weights everywhere."""
    layer.build((None, *shape))
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(0.4 * rng.standard_normal(weight.shape))
    return layer


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize(
    ("options", "num_weights"),
    [pytest.param({}, 32, marks=pytest.mark.slow), ({"relative_positions": True}, 34)],
)
def test_block_keeps_the_layer_contract(options, num_weights, tmp_path):
    check_layer(
        lambda **k: AxialTransformerBlock(2, 12, grid=GRID, **CONSTANTS, **options, **k),
        (2, 6, 8),
        output_shape=(2, 6, 8),
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize(
    ("strides", "shape", "expected", "num_weights"),
    [
        (1, (2, 3, 4, 256), (2, 3, 4, 256), 26),
        pytest.param(2, (2, 7, 9, 16), (2, 4, 5, 256), 29, marks=pytest.mark.once),
    ],
)
def test_unit_keeps_the_layer_contract(strides, shape, expected, num_weights, tmp_path):
    check_layer(
        lambda **k: AxialUnit(64, strides=strides, **UNIT, **k),
        shape,
        output_shape=expected,
        num_weights=num_weights,
        tmp_path=tmp_path,
    )


def test_variables_are_those_of_two_blocks():
    block = _block(name="encoderblock_3")
    block.build((None, 6, 8))
    paths = [weight.path for weight in block.weights]
    assert (
        "encoderblock_3/row/attention/query/kernel" in paths
        and "encoderblock_3/column/mlp/dense_1/bias" in paths
    )
    one = TransformerBlock(2, 12, **CONSTANTS)
    one.build((None, 6, 8))
    assert block.count_params() == 2 * one.count_params()


# By hand, one loop per row and column, head and pair.


def _weights(layer) -> dict[str, np.ndarray]:
    return {w.path.split("/", 1)[1]: _numpy(w).astype("float64") for w in layer.weights}


def _within(p, scope):
    return {
        name.removeprefix(f"{scope}/"): x for name, x in p.items() if name.startswith(f"{scope}/")
    }


def _norm(x, p):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * p["gamma"] + p["beta"]


def _attention(x, p, num_heads):
    """(N, D) to the same, and the weights (A, N, N)."""
    length, size = len(x), x.shape[-1] // num_heads
    q, k, v = (x @ p[f"{n}/kernel"] + p[f"{n}/bias"] for n in ("query", "key", "value"))
    heads, weights = [], []
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        logits = np.empty((length, length))
        for i in range(length):
            for j in range(length):
                key = k[j, part] + (
                    p["relative_embedding"][i - j + length - 1] if "relative_embedding" in p else 0
                )
                logits[i, j] = q[i, part] @ key / math.sqrt(size)
        exponentials = np.exp(logits)
        weights.append(exponentials / exponentials.sum(-1, keepdims=True))
        heads.append(weights[-1] @ v[:, part])
    return np.concatenate(heads, axis=-1) @ p["out/kernel"] + p["out/bias"], np.stack(weights)


def _transformer(x, p):
    y, weights = _attention(_norm(x, _within(p, "attention_norm")), _within(p, "attention"), 2)
    x = x + y
    hidden = _norm(x, _within(p, "mlp_norm")) @ p["mlp/dense_0/kernel"] + p["mlp/dense_0/bias"]
    hidden = hidden * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    return x + hidden @ p["mlp/dense_1/kernel"] + p["mlp/dense_1/bias"], weights


def _axial(x, p, grid):
    """(R * C, D) to the same, and the weights of both halves, (A, N, N)."""
    places = np.arange(math.prod(grid)).reshape(grid)
    scores = np.zeros((2, 2, len(x), len(x)))
    for half, lines in enumerate((places, places.T)):
        y = np.empty_like(x)
        for line in lines:
            y[line], weights = _transformer(x[line], _within(p, ("row", "column")[half]))
            scores[half][:, line[:, None], line] = weights
        x = y
    return x, scores


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(
    "grid",
    [(2, 3), *(pytest.param(grid, marks=pytest.mark.once) for grid in ((4, 1), (1, 3), (3, 3)))],
)
def test_block_equals_two_blocks_by_hand(grid, relative):
    count = math.prod(grid)
    block, x = _built(_block(grid, relative_positions=relative), (count, 8)), _random(3, count, 8)
    p = _weights(block)
    assert ("row/attention/relative_embedding" in p) is relative
    if relative:
        assert p["row/attention/relative_embedding"].shape == (2 * grid[1] - 1, 4)
        assert p["column/attention/relative_embedding"].shape == (2 * grid[0] - 1, 4)
    by_hand = [_axial(image.astype("float64"), p, grid) for image in x]
    np.testing.assert_allclose(
        _numpy(block(x)), np.stack([y for y, _ in by_hand]), rtol=1e-4, atol=1e-4
    )
    row, column = block.attention_scores(x)
    assert row.shape == column.shape == (3, 2, count, count)
    np.testing.assert_allclose(
        _numpy(row), np.stack([scores[0] for _, scores in by_hand]), atol=1e-5
    )
    np.testing.assert_allclose(
        _numpy(column), np.stack([scores[1] for _, scores in by_hand]), atol=1e-5
    )


def test_scores_times_values_are_what_each_half_attends_to():
    block, x = _built(_block(), (6, 8)), _random(2, 6, 8)
    rows, columns = GRID
    after_rows = _numpy(block.row(x.reshape(2 * rows, columns, 8))).reshape(2, 6, 8)
    by_column = after_rows.reshape(2, rows, columns, 8).swapaxes(1, 2).reshape(2 * columns, rows, 8)
    halves = (
        (
            block.row,
            x,
            _numpy(block.row.attention(block.row.attention_norm(x.reshape(-1, columns, 8)))),
        ),
        (
            block.column,
            after_rows,
            _numpy(block.column.attention(block.column.attention_norm(by_column)))
            .reshape(2, columns, rows, 8)
            .swapaxes(1, 2),
        ),
    )
    for scores, (half, tokens, attended) in zip(block.attention_scores(x), halves, strict=True):
        values = keras.ops.reshape(half.attention.value(half.attention_norm(tokens)), (2, 6, 2, 4))
        mixed = keras.ops.reshape(keras.ops.einsum("baqn,bnak->bqak", scores, values), (2, 6, 8))
        np.testing.assert_allclose(
            _numpy(half.attention.out(mixed)), attended.reshape(2, 6, 8), atol=1e-5
        )
        np.testing.assert_allclose(_numpy(keras.ops.sum(scores, -1)), 1, atol=1e-6)


def _moved(function, x, place):
    """(R, C): where the result of `function` moves when the token at `place` does."""
    changed = x.copy()
    # of all features alike: the norm would take it away
    changed.reshape(1, *GRID, -1)[0, *place, 0] += 1
    return np.abs(function(changed) - function(x)).max(axis=-1).reshape(GRID) > 1e-5


@pytest.mark.once
def test_a_token_reaches_its_row_and_then_every_row():
    block, x = _built(_block(), (6, 8)), _random(1, 6, 8)
    row = lambda x: _numpy(block.row(x.reshape(GRID[0], GRID[1], 8)))  # noqa: E731
    np.testing.assert_array_equal(_moved(row, x, (1, 2)), [[False] * 3, [True] * 3])
    assert _moved(lambda x: _numpy(block(x)), x, (1, 2)).all()
    with_scores = [_numpy(scores)[0, 0] > 0 for scores in block.attention_scores(x)]
    places = np.arange(6)
    np.testing.assert_array_equal(with_scores[0], places[:, None] // 3 == places // 3)
    np.testing.assert_array_equal(with_scores[1], places[:, None] % 3 == places % 3)


@pytest.mark.parametrize(
    ("grid", "half", "other"), [((1, 5), "row", "column"), ((5, 1), "column", "row")]
)
def test_on_one_line_it_is_dense_attention(grid, half, other):
    """The other half then attends to single tokens, one weight of 1."""
    block, x = _built(_block(grid), (5, 8)), _random(2, 5, 8)
    dense = TransformerBlock(2, 12, **CONSTANTS)
    dense.build((None, 5, 8))
    dense.set_weights(getattr(block, half).get_weights())
    alone = getattr(block, other)
    single = lambda x: keras.ops.reshape(alone(keras.ops.reshape(x, (-1, 1, 8))), (-1, 5, 8))  # noqa: E731
    expected = single(dense(x)) if half == "row" else dense(single(x))
    np.testing.assert_allclose(_numpy(block(x)), _numpy(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.once
def test_stochastic_depth_drops_a_half_of_whole_images_and_keeps_the_expectation():
    block = _built(_block(drop_path_rate=0.5), (6, 8))
    x = _random(1, 6, 8).repeat(4000, axis=0)
    keras.utils.set_random_seed(3)
    dropped = _numpy(block(x, training=True)) - x
    untouched = np.isclose(dropped, 0, atol=1e-6).all(axis=-1)
    assert set(untouched.sum(axis=1)) == {0, 6}  # all tokens of an image, or none
    assert untouched.all(axis=1).mean() == pytest.approx(0.25, abs=0.03)  # both halves
    kinds = np.unique(dropped.round(3).reshape(4000, -1), axis=0)
    assert len(kinds) == 4
    np.testing.assert_array_equal(_numpy(block(x[:2])), _numpy(_copy(block)(x[:2])))


def _copy(block):
    plain = _block()
    plain.build((None, 6, 8))
    plain.set_weights(block.get_weights()[: len(plain.weights)])
    for weight, source in zip(plain.trainable_weights, block.trainable_weights, strict=True):
        weight.assign(source)
    return plain


@pytest.mark.once
def test_options_reach_both_halves():
    block = _block(dropout_rate=0.1, attention_dropout_rate=0.2)
    for half in (block.row, block.column):
        assert (half.dropout_rate, half.attention_dropout_rate, half.drop_path_rate) == (
            0.1,
            0.2,
            0.0,
        )
        assert (half.norm_epsilon, half.gelu) == (1e-6, "tanh")
    again = AxialTransformerBlock.from_config(block.get_config())
    assert (again.dropout_rate, again.attention_dropout_rate) == (0.1, 0.2)


# The unit.


def _std_conv(x, kernel):
    kernel = (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    return x @ kernel[0, 0]


def _group_norm(x, p):
    """(H, W, C) in 32 groups."""
    grouped = x.reshape(*x.shape[:2], 32, -1)
    grouped = (grouped - grouped.mean(axis=(0, 1, 3), keepdims=True)) / np.sqrt(
        grouped.var(axis=(0, 1, 3), keepdims=True) + 1e-6
    )
    return grouped.reshape(x.shape) * p["gamma"] + p["beta"]


def _average(x):
    """2x2 windows; at an odd edge, of what there is."""
    rows, columns = (range(0, side, 2) for side in x.shape[:2])
    return np.stack([[x[i : i + 2, j : j + 2].mean(axis=(0, 1)) for j in columns] for i in rows])


@pytest.mark.parametrize(
    ("strides", "shape"),
    [(1, (3, 4, 128)), pytest.param(2, (4, 6, 16), marks=pytest.mark.once), (2, (3, 5, 16))],
)
def test_unit_equals_its_formula(strides, shape):
    unit, x = _built(AxialUnit(32, strides=strides, **UNIT), shape), _random(2, *shape)
    p = _weights(unit)
    expected = []
    for image in x.astype("float64"):
        y = np.maximum(_group_norm(_std_conv(image, p["conv1/kernel"]), _within(p, "gn1")), 0)
        y = np.stack([_attention(row, _within(p, "row"), 8)[0] for row in y])
        y = np.stack(
            [_attention(column, _within(p, "column"), 8)[0] for column in y.swapaxes(0, 1)]
        ).swapaxes(0, 1)
        y = np.maximum(_group_norm(_average(y) if strides == 2 else y, _within(p, "gn2")), 0)
        y = _group_norm(_std_conv(y, p["conv3/kernel"]), _within(p, "gn3"))
        shortcut = image
        if "conv_proj/kernel" in p:
            shortcut = _group_norm(
                _std_conv(image[::strides, ::strides], p["conv_proj/kernel"]), _within(p, "gn_proj")
            )
        expected.append(np.maximum(shortcut + y, 0))
    np.testing.assert_allclose(_numpy(unit(x)), np.stack(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.once
def test_unit_starts_as_its_shortcut():
    x = np.abs(_random(1, 3, 4, 128))
    np.testing.assert_allclose(_numpy(AxialUnit(32, strides=1, **UNIT)(x)), x, atol=1e-6)


def test_unit_has_tables_as_long_as_its_map():
    unit = _built(AxialUnit(32, strides=2, **UNIT), (3, 5, 16))
    assert tuple(unit.row.relative_embedding.shape) == (9, 4)
    assert tuple(unit.column.relative_embedding.shape) == (5, 4)
    assert isinstance(unit.row, MultiHeadDotProductAttention)


@pytest.mark.once
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: _block()(np.zeros((1, 7, 8))),
            r"Expected 6 tokens of a grid of \(2, 3\).*Received: 7.*class",
        ),
        (lambda: _block((2, None)), r"`grid` must be two positive integers.*\(2, None\)"),
        (lambda: _block((0, 3)), "`grid` must be two positive integers"),
        (lambda: _block(6), "`grid` must be two positive integers, rows and columns. Received: 6"),
        (lambda: AxialUnit(32, strides=3, **UNIT), "`strides` must be 1 or 2. Received: 3"),
        (lambda: AxialUnit(12, strides=1, **UNIT), "multiple of the 8 heads. Received: 12"),
        (
            lambda: AxialUnit(32, strides=1, **UNIT)(keras.Input((None, 4, 8))),
            "need a fixed image size. Received: a map of None x 4 cells",
        ),
        (
            lambda: _built(AxialUnit(32, strides=1, **UNIT), (3, 4, 16))(_random(1, 4, 4, 16)),
            "fixed|for 3 tokens",
        ),
    ],
)
def test_wrong_arguments_say_what_is_right(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_constants_of_a_checkpoint_have_no_default():
    with pytest.raises(TypeError, match="missing .* required keyword-only.*gelu"):
        AxialTransformerBlock(2, 8, grid=GRID)
