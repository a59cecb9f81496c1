"""Attention of the other families: registers, a distillation token, rotary positions."""

import keras
import numpy as np
import pytest
from tiny_families import NAMES, build, tiny_row

from keras_vit.analyze.attention import (
    attention_maps,
    attention_rollout,
    head_maps,
    summarize_attention,
)
from keras_vit.analyze.attention_arithmetic import mean_distance, rollout
from keras_vit.analyze.embeddings import position_similarity
from keras_vit.layers.tokens import count_prefix_tokens
from keras_vit.options import num_prefix_tokens

SIZE, GRID = (32, 48), (4, 6)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, *SIZE, 3)).astype(np.float32)


def _turn(x: np.ndarray, num_prefix: int) -> np.ndarray:
    """Rotates queries or keys (A, N, K) by the positions of a grid, pair by pair."""
    quarter = x.shape[-1] // 4
    turned = x.copy()
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            token = num_prefix + row * GRID[1] + column
            for i in range(2 * quarter):
                place = (row + 0.5) / GRID[0] if i < quarter else (column + 0.5) / GRID[1]
                period = 100 ** (2 * (i % quarter) / (2 * quarter))
                angle = 2 * np.pi * (2 * place - 1) / period
                a, b = x[:, token, i], x[:, token, i + 2 * quarter]
                turned[:, token, i] = a * np.cos(angle) - b * np.sin(angle)
                turned[:, token, i + 2 * quarter] = b * np.cos(angle) + a * np.sin(angle)
    return turned


def _weights_by_hand(model: keras.Model, tokens: np.ndarray, num_prefix: int, rotary: bool):
    """Computes softmax(q k^T / sqrt(K)) of the first block in float64."""
    block = model.get_layer("encoderblock_0")
    x = tokens.astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + block.norm_epsilon)
    x = x * np.asarray(block.attention_norm.gamma) + np.asarray(block.attention_norm.beta)

    def project(dense):
        rows = x @ np.asarray(dense.kernel) + (np.asarray(dense.bias) if dense.use_bias else 0)
        heads = rows.reshape(len(x), 2, -1).transpose(1, 0, 2)
        return _turn(heads, num_prefix) if rotary else heads

    queries, keys = project(block.attention.query), project(block.attention.key)
    logits = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", NAMES)
def test_attention_weights_are_those_of_the_equations(name):
    model = build(name, input_shape=(*SIZE, 3))
    num_prefix = num_prefix_tokens(tiny_row(name), None)
    assert count_prefix_tokens(model) == num_prefix
    first = keras.Model(model.input, _tokens_of_first_block(model))
    tokens = keras.ops.convert_to_numpy(first(IMAGES[:1]))[0]
    expected = _weights_by_hand(model, tokens, num_prefix, tiny_row(name).rotary)
    maps = attention_maps(model, IMAGES)
    assert maps.shape == (2, 2, 2, num_prefix + 24, num_prefix + 24)
    np.testing.assert_allclose(maps[0, 0], expected, atol=2e-6)


def _tokens_of_first_block(model: keras.Model) -> keras.KerasTensor:
    given = model.get_layer("encoderblock_0").input
    return given[0] if isinstance(given, list | tuple) else given


@pytest.mark.parametrize("name", ["DeiT_B16_distilled", "DINOv2_g14_reg4", "DINOv3_S16plus"])
def test_sums_leave_out_every_prefix_token(name):
    model = build(name, input_shape=(*SIZE, 3))
    maps = attention_maps(model, IMAGES)
    num_prefix = maps.shape[-1] - 24
    found = summarize_attention(model, IMAGES)
    by_hand = mean_distance(maps, GRID, (8, 8), num_prefix).mean(axis=1)
    np.testing.assert_allclose(found.distance_px, by_hand, rtol=1e-5)
    # A distilled DeiT has a head on its second token too.
    readers = slice(2) if "distilled" in name else slice(1)
    shares = np.stack([rollout(maps[:, image])[readers, num_prefix:].mean(0) for image in (0, 1)])
    heads = maps[..., readers, num_prefix:].mean(axis=-2).reshape(2, 2, 2, *GRID)
    np.testing.assert_allclose(head_maps(model, IMAGES), np.moveaxis(heads, 0, 1), atol=1e-5)
    expected = (shares / shares.sum(-1, keepdims=True)).reshape(2, *GRID)
    np.testing.assert_allclose(_scale(attention_rollout(model, IMAGES)), expected, rtol=1e-4)


def test_rotary_positions_are_not_called_absent():
    with pytest.raises(ValueError, match="has rotary positions: they rotate queries and keys"):
        position_similarity(build("DINOv3_S16plus", input_shape=(32, 32, 3)))


def _scale(maps: np.ndarray) -> np.ndarray:
    return maps / maps.sum((1, 2), keepdims=True)
