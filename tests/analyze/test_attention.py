"""Attention: numbers worked out by hand, and the proof that the weights are those that the model
computes with.
"""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.analyze import attention
from keras_vit.analyze.attention import (
    AttentionSummary,
    attention_maps,
    attention_rollout,
    grid_of_model,
    has_attention,
    head_maps,
    patch_px_of_model,
    summarize_attention,
)
from keras_vit.analyze.attention_arithmetic import distances_px, mean_distance, rollout
from keras_vit.analyze.attention_model import AttentionReader, compiled_once
from keras_vit.analyze.attention_sites import find_attention
from keras_vit.layers import AxialTransformerBlock, TokenPooling, TransformerBlock
from keras_vit.variants import VIT_VARIANTS, ViTVariant

pytestmark = pytest.mark.usefixtures("shallow")

RNG = np.random.default_rng(0)
SIZE = (32, 48)  # of a tiny model: 4 x 6 patches
IMAGES = RNG.integers(0, 256, (5, *SIZE, 3)).astype(np.uint8)
PIXELS = IMAGES / np.float32(127.5) - np.float32(1)

Build = Callable[..., keras.Model]


@pytest.fixture
def build(tiny_vit) -> Build:
    """A tiny model with random weights; its attention is far from uniform."""

    def built(**options) -> keras.Model:
        model = keras_vit.application(tiny_vit)(
            weights=None, **{"input_shape": (*SIZE, 3), "classes": 3} | options
        )
        return sharpened(model)

    return built


def sharpened(model: keras.Model) -> keras.Model:
    draw = np.random.default_rng(1)
    for variable in model.variables:
        if "query/kernel" in variable.path or "key/kernel" in variable.path:
            variable.assign(3.0 * variable)
        if variable.path.endswith(("cls", "probe", "relative_embedding", "bias")):
            variable.assign(draw.normal(size=variable.shape).astype("float32"))
    return model


@pytest.fixture(scope="module")
def vit() -> keras.Model:
    """One for many tests: it is compiled once."""
    keras.utils.set_random_seed(0)
    row = replace(
        VIT_VARIANTS["ViT_Ti16"], patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32
    )
    return sharpened(keras_vit.application(row)(weights=None, input_shape=(*SIZE, 3), classes=3))


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def random_scores(*shape: int) -> np.ndarray:
    return softmax(3 * RNG.normal(size=(*shape, shape[-1])))


def numpy_of(tensor) -> np.ndarray:
    return keras.ops.convert_to_numpy(tensor)


# ── arithmetic ──


@pytest.mark.parametrize(
    ("grid", "patch_px", "expected"),
    [((14, 14), 16.0, 116.49), ((7, 7), 32.0, 115.50)],
)
def test_uniform_attention_reaches_as_far_as_was_worked_out(grid, patch_px: float, expected: float):
    """Of 224 pixels: the mean distance of two patches drawn at random."""
    length = grid[0] * grid[1]
    uniform = np.full((2, 3, length, length), 1 / length)
    found = mean_distance(uniform, grid, (patch_px, patch_px), 0)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, expected, atol=0.005)


def test_what_goes_to_the_class_token_goes_nowhere():
    """Rows and columns of prefix tokens are dropped, and the others not made to sum to 1 again."""
    uniform = np.full((1, 197, 197), 1 / 197)
    np.testing.assert_allclose(
        mean_distance(uniform, (14, 14), (16.0, 16.0), 1), 116.49 * 196 / 197, atol=0.005
    )
    only_to_the_class_token = np.zeros((1, 197, 197))
    only_to_the_class_token[..., 0] = 1
    assert mean_distance(only_to_the_class_token, (14, 14), (16.0, 16.0), 1).tolist() == [0.0]


def test_a_head_that_looks_at_itself_has_distance_0():
    assert mean_distance(np.eye(196)[None], (14, 14), (16.0, 16.0), 0).tolist() == [0.0]


def test_distances_are_those_of_the_centres():
    distances = distances_px((14, 14), (16.0, 16.0))
    assert (
        distances.max() == pytest.approx(np.hypot(13, 13) * 16)
        and round(distances.max(), 1) == 294.2
    )
    assert (distances == distances.T).all() and not distances.diagonal().any()
    places = [(row * 8.0, column * 10.0) for row in range(2) for column in range(3)]
    by_hand = [[np.hypot(a - c, b - d) for c, d in places] for a, b in places]
    np.testing.assert_allclose(distances_px((2, 3), (8.0, 10.0)), by_hand)


def test_the_mean_distance_of_a_grid_of_three_by_hand():
    scores = np.array([[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.1, 0.9, 0.0]]])
    np.testing.assert_allclose(
        mean_distance(scores, (1, 3), (99.0, 4.0), 0),
        [((0.25 * 4 + 0.25 * 8) + 0 + (0.1 * 8 + 0.9 * 4)) / 3],
    )


def test_weights_of_another_grid_are_refused():
    with pytest.raises(
        ValueError, match=r"must be \(..., 7, 7\): 1 prefix tokens and a grid of \(2, 3\)"
    ):
        mean_distance(np.zeros((1, 6, 6)), (2, 3), (16.0, 16.0), 1)


def test_the_rollout_of_two_layers_by_hand():
    first, second = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    # Half of each is the identity: [[1, 0], [1/4, 3/4]] first, then [[1/2, 1/2], [0, 1]] on its
    # left.
    expected = [[0.5 * 1 + 0.5 * 0.25, 0.5 * 0.75], [0.25, 0.75]]
    np.testing.assert_allclose(rollout(np.stack([first, second])[:, None]), expected)


def test_heads_are_averaged_and_rows_made_to_sum_to_1():
    weights = np.array([[[[0.2, 0.2], [0.0, 0.4]], [[0.4, 0.0], [0.0, 0.8]]]])  # their rows do not
    np.testing.assert_allclose(rollout(weights), [[1.3 / 1.4, 0.1 / 1.4], [0.0, 1.0]])


def test_the_rollout_of_identities_is_the_identity():
    np.testing.assert_allclose(
        rollout(np.tile(np.eye(5), (4, 2, 3, 1, 1))), np.tile(np.eye(5), (2, 1, 1))
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_rows_of_a_rollout_sum_to_1(dtype: str):
    scores = random_scores(12, 2, 3, 25).astype(dtype)
    found = rollout(scores)
    assert found.shape == (2, 25, 25) and found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-12)


def test_a_rollout_peaks_where_all_look():
    scores = np.full((6, 1, 2, 24, 24), 0.2 / 24)
    scores[..., 17] += 0.8
    assert (rollout(scores)[0].argmax(axis=-1) == 17)[np.arange(24) != 17].all()


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 1, 3, 4), (0, 1, 3, 3)])
def test_what_is_no_stack_of_layers_has_no_rollout(shape):
    with pytest.raises(ValueError, match="must be"):
        rollout(np.zeros(shape))


# ── the weights are those of the model ──


def shrunk(row: ViTVariant) -> ViTVariant:
    """With as many heads and the same kind of stem and patches, but narrow and shallow."""
    stem = row.stem and replace(row.stem, units=row.stem.units and (1, 1))
    return replace(row, width=4 * row.num_heads, mlp_dim=20, depth=2, stem=stem)


def halves(block) -> tuple[TransformerBlock, ...]:
    return (block.row, block.column) if isinstance(block, AxialTransformerBlock) else (block,)


def attended(block: TransformerBlock, x, scores: np.ndarray):
    """What a block gives, if these are its weights: nothing of it is asked for the weights."""
    values = numpy_of(block.attention.value(block.attention_norm(x)))
    batch, length, width = values.shape
    heads = values.reshape(batch, length, block.num_heads, -1)
    mixed = np.einsum("baqk,bkad->bqad", scores, heads).reshape(batch, length, width)
    x = x + block.attention.out(ops.convert_to_tensor(mixed))
    return x + block.mlp(block.mlp_norm(x))


@pytest.mark.parametrize(
    "name",
    [
        # One of each kind on JAX too.
        pytest.param(
            name,
            marks=()
            if name in ("ViT_Ti16", "ViT_B32", "R_ViT_Ti16")
            else pytest.mark.slow
            if name in ("R50_ViT_B16", "AxialViT_B32")
            else (pytest.mark.slow, pytest.mark.once),
        )
        for name in VIT_VARIANTS
    ],
)
def test_these_weights_reproduce_what_each_block_of_each_model_gives(name: str):
    row = shrunk(VIT_VARIANTS[name])
    side = row.total_stride
    model = keras_vit.application(row)(
        weights=None,
        input_shape=(2 * side, 3 * side, 3),
        classes=2,
        **{f"{kind}_rate": 0.5 for kind in ("dropout", "attention_dropout", "stochastic_depth")},
    )
    sharpened(model)
    images = RNG.uniform(-1, 1, (2, 2 * side, 3 * side, 3)).astype("float32")
    found, _ = AttentionReader(find_attention(model))(images)
    weights = iter(found)
    for index in range(2):
        block = model.get_layer(f"encoderblock_{index}")
        x = keras.Model(model.input, block.input)(images)
        expected, y = block(x), x
        for half in halves(block):
            scores = numpy_of(next(weights))
            np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-5)
            y = attended(half, y, scores)
        np.testing.assert_allclose(numpy_of(y), numpy_of(expected), atol=1e-5)
        assert np.abs(numpy_of(expected) - numpy_of(x)).max() > 0.1
    assert next(weights, None) is None
    assert grid_of_model(model) == (2, 3) and patch_px_of_model(model) == (side, side)


# ── sums over images, against the arithmetic on the weights ──


def by_hand(model: keras.Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distances (L, A) and what all tokens are at the end, (B, N, N), from the weights; and the
    weights.
    """
    maps, grid = attention_maps(model, images), grid_of_model(model, images.shape[1:3])
    num_prefix_tokens = maps.shape[-1] - grid[0] * grid[1]
    distances = mean_distance(
        maps, grid, patch_px_of_model(model, images.shape[1:3]), num_prefix_tokens
    )
    return distances.mean(axis=1), rollout(maps), maps


OPTIONS = {
    "class token": {},
    "mean": {"classifier": "gap"},
    "class token and mean": {"classifier": "token_gap"},
    "maximum": {"classifier": "gap", "include_top": False, "pooling": "max"},
    "all tokens": {"include_top": False},
    "all tokens, none of them for the class": {"include_top": False, "classifier": "none"},
    "mean beside a class token": {"include_top": False, "pooling": "avg"},
    "relative positions": {"position_embedding": "relative"},
    "a table before each layer": {
        "position_placement": "every_layer",
        "position_embedding": "learned_2d",
    },
    "before classes, a tanh layer": {"representation_size": 7},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_sums_in_the_graph_are_those_of_the_weights(build: Build, case: str):
    model = build(**OPTIONS[case])
    distances, tokens, maps = by_hand(model, PIXELS)
    num_prefix_tokens = 0 if OPTIONS[case].get("classifier") in ("gap", "none") else 1
    assert (
        maps.shape == (2, 5, 2, 24 + num_prefix_tokens, 24 + num_prefix_tokens)
        and maps.dtype == np.float32
    )
    reads_class_token = num_prefix_tokens and OPTIONS[case].get("pooling") != "avg"
    read = tokens[:, 0] if reads_class_token else tokens[:, num_prefix_tokens:].mean(axis=1)
    asked = maps[..., 0, :] if reads_class_token else maps[..., num_prefix_tokens:, :].mean(axis=-2)
    if case == "class token and mean":
        read = (read + tokens[:, 1:].mean(axis=1)) / 2
        asked = (asked + maps[..., 1:, :].mean(axis=-2)) / 2
    summary = summarize_attention(model, PIXELS, num_rollouts=3)
    assert isinstance(summary, AttentionSummary)
    assert (summary.layers, summary.num_images) == (("encoderblock_0", "encoderblock_1"), 5)
    assert (summary.grid, summary.patch_px) == ((4, 6), (8.0, 8.0))
    np.testing.assert_allclose(summary.distance_px, distances, rtol=1e-5)
    assert np.ptp(distances) > 0.5  # these models tell heads apart
    expected = read[:, num_prefix_tokens:].reshape(5, 4, 6)
    np.testing.assert_allclose(summary.rollouts, expected[:3], rtol=1e-4)
    found = attention_rollout(model, PIXELS)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found.dtype == np.float32 and found.min() >= 0
    heads = head_maps(model, PIXELS)
    assert heads.shape == (5, 2, 2, 4, 6) and heads.dtype == np.float32
    of_patches = asked[..., num_prefix_tokens:].reshape(2, 5, 2, 4, 6)
    np.testing.assert_allclose(heads, np.moveaxis(of_patches, 0, 1), atol=1e-5)


def test_attention_pooling_reads_tokens_in_its_own_shares(build: Build):
    model = build(classifier="map")
    _, tokens, maps = by_hand(model, PIXELS)
    pooling = model.get_layer("map_head")
    x = numpy_of(keras.Model(model.input, model.get_layer("encoder_norm").output)(PIXELS))
    query, key = (numpy_of(dense(each)) for dense, each in zip(
        (pooling.attention.query, pooling.attention.key), (pooling.probe, ops.convert_to_tensor(x)), strict=True
    ))  # fmt: skip
    query, key = query.reshape(1, 2, 8), key.reshape(5, 24, 2, 8)
    shares = softmax(np.einsum("oak,bnak->ban", query, key) / np.sqrt(8)).mean(axis=1)
    expected = np.einsum("bn,bnm->bm", shares, tokens).reshape(5, 4, 6)
    assert np.ptp(shares) > 0.02
    np.testing.assert_allclose(attention_rollout(model, PIXELS), expected, rtol=1e-4)
    heads = np.einsum("bn,lbanm->blam", shares, maps).reshape(5, 2, 2, 4, 6)
    np.testing.assert_allclose(head_maps(model, PIXELS), heads, atol=1e-5)


def test_halves_of_axial_blocks_are_layers(tiny_vit):
    model = sharpened(
        keras_vit.application(replace(tiny_vit, axial=True))(
            weights=None, input_shape=(*SIZE, 3), classes=3
        )
    )
    distances, tokens, maps = by_hand(model, PIXELS)
    row, column = (places[:, None] == places for places in np.divmod(np.arange(24), 6))
    assert not maps[::2, ..., ~row].any() and not maps[1::2, ..., ~column].any()
    summary = summarize_attention(model, PIXELS, num_rollouts=5)
    assert summary.layers == tuple(
        f"encoderblock_{i}/{half}" for i in (0, 1) for half in ("row", "column")
    )
    np.testing.assert_allclose(summary.distance_px, distances, rtol=1e-5)
    np.testing.assert_allclose(summary.rollouts, tokens.mean(axis=1).reshape(5, 4, 6), rtol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_sums_are_in_float32_where_the_model_is_not(build: Build, policy: str):
    keras.config.set_dtype_policy(policy)
    model = build(classifier="map")
    keras.config.set_dtype_policy("float32")
    distances, _, maps = by_hand(model, PIXELS)
    half = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}[policy]
    assert (
        maps.dtype == np.float32
        and (numpy_of(ops.cast(ops.cast(maps, half), "float32")) == maps).all()
    )
    summary = summarize_attention(model, PIXELS, num_rollouts=5)
    np.testing.assert_allclose(summary.distance_px, distances, rtol=1e-5)
    assert summary.rollouts.dtype == np.float32
    np.testing.assert_allclose(summary.rollouts.sum(axis=(1, 2)), 1, atol=0.01)


def test_a_model_from_a_file_gives_the_same(vit: keras.Model, tmp_path: Path):
    vit.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        attention_maps(again, IMAGES), attention_maps(vit, IMAGES), atol=1e-5
    )


@pytest.mark.tensorflow
def test_a_model_that_saves_memory_in_training_gives_the_same(build: Build):
    from keras_vit.train.remat import rematerialize

    model = build(classifier="map")
    found, expected = (
        summarize_attention(m, PIXELS, num_rollouts=5) for m in (rematerialize(model), model)
    )
    assert found.layers == ("encoderblock_0", "encoderblock_1")
    np.testing.assert_allclose(found.distance_px, expected.distance_px, rtol=1e-5)
    np.testing.assert_allclose(found.rollouts, expected.rollouts, rtol=1e-5)


# ── a planted patch ──


def looks_at_what_is_bright(build: Build, classifier: str) -> keras.Model:
    """Every token is a multiple of one vector, by the brightness of its patch, and every query asks
    for that vector.
    """
    model = build(classifier=classifier, position_embedding="none")
    bright = np.resize([1.0, -1.0], 16).astype("float32")
    kernel = model.get_layer("embedding").kernel
    kernel.assign(np.broadcast_to(bright, kernel.shape))
    for block in (model.get_layer(f"encoderblock_{index}") for index in (0, 1)):
        zeros = (block.attention.query.kernel, block.attention.out.kernel, block.mlp.dense_1.kernel)
        zeros += (block.attention.out.bias, block.mlp.dense_1.bias, block.attention.key.bias)
        for variable in zeros:
            variable.assign(np.zeros(variable.shape))
        block.attention.query.bias.assign(bright)
        block.attention.key.kernel.assign(np.eye(16))
    return model


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_the_map_peaks_at_what_the_model_looks_at(build: Build, classifier: str):
    model = looks_at_what_is_bright(build, classifier)
    images = np.zeros((24, *SIZE, 3), np.uint8)
    for place in range(24):
        row, column = divmod(place, 6)
        images[place, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 255
    found = attention_rollout(model, images).reshape(24, 24)
    assert found.argmax(axis=-1).tolist() == list(range(24))
    others = found[~np.eye(24, dtype=bool)]
    assert found.diagonal().min() > 5 * others.max()


# ── images from anywhere ──


def same(found: AttentionSummary, expected: AttentionSummary) -> None:
    assert found.num_images == expected.num_images
    np.testing.assert_allclose(found.distance_px, expected.distance_px, rtol=1e-5)
    np.testing.assert_allclose(found.rollouts, expected.rollouts, rtol=1e-5)


def test_batches_of_any_size_give_the_same(vit: keras.Model):
    expected = summarize_attention(vit, PIXELS, num_rollouts=4)
    same(summarize_attention(vit, PIXELS, batch_size=2, num_rollouts=4), expected)
    same(summarize_attention(vit, IMAGES, num_rollouts=4), expected)
    same(
        summarize_attention(vit, PIXELS.astype("float64"), batch_size=99, num_rollouts=4), expected
    )
    same(summarize_attention(vit, ops.convert_to_tensor(PIXELS), num_rollouts=4), expected)
    same(summarize_attention(vit, (PIXELS[i : i + 2] for i in (0, 2, 4)), num_rollouts=4), expected)
    same(summarize_attention(vit, [PIXELS[:1], PIXELS[:0], IMAGES[1:]], num_rollouts=4), expected)
    same(
        summarize_attention(vit, [(PIXELS[:3],), [PIXELS[3:], np.zeros(2)]], num_rollouts=4),
        expected,
    )
    maps = attention_maps(vit, PIXELS)
    np.testing.assert_allclose(attention_maps(vit, IMAGES, batch_size=2), maps, atol=1e-5)
    np.testing.assert_allclose(
        attention_rollout(vit, IMAGES, batch_size=2)[:4], expected.rollouts, rtol=1e-5
    )


def test_rows_that_only_fill_up_do_not_count(vit: keras.Model):
    expected = summarize_attention(vit, PIXELS[[0, 3, 4]], num_rollouts=9)
    labels, noise = np.zeros(3), np.full((1, *SIZE, 3), 0.7, "float32")
    batches = [
        (np.concatenate([noise, PIXELS[:1], noise]), labels, np.array([0.0, 1.0, 0.0])),
        (np.concatenate([noise] * 3), labels, np.zeros(3)),
        (np.concatenate([PIXELS[3:], noise]), labels, np.array([1.0, 0.5, 0.0])),
    ]
    same(summarize_attention(vit, batches, num_rollouts=9), expected)
    with pytest.raises(ValueError, match="no images, or all have weight 0"):
        summarize_attention(vit, batches[1:2])


@pytest.mark.tensorflow
def test_the_advice_for_data_sets_of_tensorflow_is_true(vit: keras.Model):
    import tensorflow as tf

    expected = summarize_attention(vit, IMAGES)
    labelled = tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(5)))
    with pytest.raises(ValueError, match=r"\(32, 48, 3\), \(\). Batch the data set"):
        summarize_attention(vit, labelled)
    same(summarize_attention(vit, labelled.batch(16)), expected)
    named = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "label": np.arange(5)}).batch(2)
    with pytest.raises(ValueError, match="dict with the keys"):
        summarize_attention(vit, named)
    same(
        summarize_attention(vit, named.map(lambda batch: (batch["image"], batch["label"]))),
        expected,
    )


@pytest.mark.tensorflow
def test_a_data_set_of_the_package_gives_the_same(vit: keras.Model):
    from keras_vit.data import sources
    from keras_vit.data.pipeline import evaluation_batches
    from keras_vit.data.transforms import to_uint8

    source = sources.arrays(IMAGES, np.zeros(5, int), name="noise")
    batches = evaluation_batches(source, [to_uint8], batch_size=3)
    same(
        summarize_attention(vit, batches, num_rollouts=5),
        summarize_attention(vit, IMAGES, num_rollouts=5),
    )


def test_memory_holds_one_batch_at_a_time(vit: keras.Model):
    alive = []

    def batches() -> Iterator[np.ndarray]:
        for _ in range(6):
            batch = np.array(PIXELS)
            alive.append(weakref.ref(batch))
            assert sum(reference() is not None for reference in alive) <= 2
            yield batch
            del batch

    assert summarize_attention(vit, batches()).num_images == 30
    assert summarize_attention(vit, PIXELS).rollouts.shape == (0, 4, 6)


def test_of_a_batch_that_is_done_nothing_is_left(vit: keras.Model, monkeypatch):
    alive = []

    def sums(*_) -> Iterator[tuple]:
        for _ in range(6):
            rollouts = np.ones((2, 24), np.float32)
            alive.append(weakref.ref(rollouts))
            assert sum(reference() is not None for reference in alive) <= 3
            yield SIZE, np.ones((2, 2, 2)), rollouts
            del rollouts

    monkeypatch.setattr(attention, "_iterate_sums", sums)
    summary = summarize_attention(vit, PIXELS, num_rollouts=1)
    assert summary.num_images == 12 and summary.rollouts.shape == (1, 4, 6)


def test_a_bar_appears_only_where_it_is_asked_for(vit: keras.Model, monkeypatch, capsys):
    monkeypatch.setattr(attention, "_SECONDS_BEFORE_BAR", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    summarize_attention(vit, PIXELS)
    assert not capsys.readouterr().err
    summarize_attention(vit, PIXELS, batch_size=2, progress=True)
    assert "0/5" in capsys.readouterr().err


# ── other models, other sizes ──


def test_distances_are_in_pixels_of_the_image_whatever_the_stem(tiny_vit):
    stem = replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1, 1))
    build = keras_vit.application(replace(tiny_vit, stem=stem, patch_size=1))
    # rounded up: cells of 8 pixels, the last one cut
    odd = build(weights=None, input_shape=(33, 41, 3), classes=2)
    assert grid_of_model(odd) == (5, 6) and patch_px_of_model(odd) == (8.0, 8.0)
    images = RNG.integers(0, 256, (2, 33, 41, 3)).astype(np.uint8)
    found = summarize_attention(odd, images)
    np.testing.assert_allclose(found.distance_px, by_hand(odd, images)[0], rtol=1e-5)
    assert (found.grid, found.patch_px) == ((5, 6), (8.0, 8.0))


@pytest.mark.parametrize(
    ("name", "size", "grid", "patch"),
    [
        ("R50_ViT_B16", (225, 384), (15, 24), 16.0),
        ("R50_ViT_L32", (224, 224), (7, 7), 32.0),
        ("R_ViT_Ti16", (64, 96), (2, 3), 32.0),
        ("ViT_H14", (28, 42), (2, 3), 14.0),
    ],
)
def test_grid_and_pixels_of_full_models(name: str, size, grid, patch: float):
    row = VIT_VARIANTS[name]
    images = keras.Input((*size, 3))
    model = keras_vit.application(replace(row, depth=1, width=row.num_heads, mlp_dim=4))(
        weights=None, input_tensor=images, include_top=False
    )
    assert grid_of_model(model) == grid and patch_px_of_model(model) == (patch, patch)


@pytest.mark.parametrize(
    "stem",
    [
        None,
        pytest.param(
            replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1, 1)), marks=pytest.mark.slow
        ),
    ],
)
def test_a_model_for_any_size_is_analysed_at_each(tiny_vit, stem):
    row = replace(tiny_vit, stem=stem, patch_size=1 if stem else 8)
    model = sharpened(
        keras_vit.application(row)(weights=None, input_shape=(None, None, 3), classes=2)
    )
    with pytest.raises(ValueError, match="any size: pass `image_size`"):
        grid_of_model(model)
    for size, grid in [((32, 48), (4, 6)), ((16, 24), (2, 3))]:
        assert grid_of_model(model, size) == grid and patch_px_of_model(model, size) == (8.0, 8.0)
        images = RNG.uniform(-1, 1, (3, *size, 3)).astype("float32")
        distances, tokens, _ = by_hand(model, images)
        found = summarize_attention(model, images, num_rollouts=3)
        assert found.grid == grid
        np.testing.assert_allclose(found.distance_px, distances, rtol=1e-5)
        np.testing.assert_allclose(found.rollouts, tokens[:, 0, 1:].reshape(3, *grid), rtol=1e-4)
    with pytest.raises(ValueError, match=r"of one size.*Received: \(32, 48\), then \(16, 24\)"):
        summarize_attention(model, [np.zeros((1, 32, 48, 3)), np.zeros((1, 16, 24, 3))])


def test_a_model_inside_another_is_found(vit: keras.Model):
    images = keras.Input((*SIZE, 3))
    outer = keras.Model(images, keras.layers.Dense(2)(vit(images / 127.5 - 1.0)))
    other = keras.Sequential([vit, keras.layers.Dense(2)])
    outermost = keras.Sequential([outer, keras.layers.Softmax()])
    expected = summarize_attention(vit, PIXELS, num_rollouts=5)
    for model, given in [
        (outer, IMAGES),
        (outer, IMAGES.astype("float32")),
        (other, PIXELS),
        (outermost, IMAGES),
    ]:
        assert has_attention(model) and grid_of_model(model) == (4, 6)
        same(summarize_attention(model, given, num_rollouts=5), expected)
    np.testing.assert_allclose(
        attention_maps(outer, IMAGES), attention_maps(vit, PIXELS), atol=1e-5
    )


@pytest.mark.tensorflow  # Keras's Rescaling needs it, on any backend
def test_a_layer_that_scales_pixels_is_known(vit: keras.Model):
    layers = [keras.Input((*SIZE, 3)), keras.layers.Rescaling(1 / 127.5, offset=-1.0), vit]
    found = summarize_attention(keras.Sequential(layers), IMAGES, num_rollouts=5)
    same(found, summarize_attention(vit, PIXELS, num_rollouts=5))


@pytest.mark.tensorflow
def test_a_layer_that_is_made_for_other_pixels_is_known(vit: keras.Model):
    layers = [keras.Input((*SIZE, 3)), keras.layers.Rescaling(2.0, offset=-1.0), vit]
    same(summarize_attention(keras.Sequential(layers), IMAGES), summarize_attention(vit, IMAGES))
    layers[1] = keras.layers.Rescaling(1.0)
    same(summarize_attention(keras.Sequential(layers), PIXELS), summarize_attention(vit, PIXELS))


@pytest.mark.tensorflow
def test_of_a_model_whose_pixels_cannot_be_known_floats_are_taken_as_they_are(vit: keras.Model):
    model = keras.Sequential(
        [keras.Input((*SIZE, 3)), keras.layers.Rescaling(1.7, offset=-0.8), vit]
    )
    with pytest.raises(ValueError, match="is unknown: declare it with `keras_vit.pixels.declare`"):
        summarize_attention(model, IMAGES)
    same(summarize_attention(model, PIXELS), summarize_attention(vit, 1.7 * PIXELS - 0.8))


def test_resized_images_are_measured_as_the_vit_sees_them(build: Build):
    images = keras.Input((64, 64, 3))
    vit = build(input_shape=None, input_tensor=keras.layers.Resizing(*SIZE)(images))
    assert grid_of_model(vit) == (4, 6) and patch_px_of_model(vit) == (8.0, 8.0)
    outer = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Resizing(*SIZE), build()])
    assert grid_of_model(outer, (100, 30)) == (4, 6) and patch_px_of_model(outer, (100, 30)) == (
        8.0,
        8.0,
    )


def test_a_model_that_scales_pixels_takes_them_from_0_to_255(build: Build):
    model = build(include_preprocessing=True)
    plain = keras.Model(model.get_layer("embedding").input, model.output)
    expected = attention_maps(plain, PIXELS)
    np.testing.assert_allclose(attention_maps(model, IMAGES), expected, atol=1e-5)
    np.testing.assert_allclose(attention_maps(model, IMAGES.astype("float32")), expected, atol=1e-5)
    with pytest.raises(ValueError, match="The model scales pixels itself: pass them from 0 to 255"):
        attention_maps(model, PIXELS)


def test_pixels_that_are_scaled_already_are_refused_by_a_model_that_scales_them(build: Build):
    model = build(include_preprocessing=True)
    with pytest.raises(ValueError, match=r"from 0 to 1, which seem .* pass `255 \* images`"):
        attention_maps(model, IMAGES / np.float32(255))
    for dark in (0 * IMAGES, IMAGES // 128):  # levels of black images
        attention_maps(model, dark.astype("float32"))


def test_pixels_from_minus_1_are_refused_by_a_model_that_takes_them_from_0(build: Build):
    model = build()
    keras_vit.pixels.declare(model, "0..1")
    with pytest.raises(ValueError, match=r"in \[0, 1\]. Received: pixels from -1 to .* / 2`"):
        attention_maps(model, PIXELS)
    scaled = (PIXELS + 1) / 2
    np.testing.assert_allclose(
        attention_maps(model, scaled), attention_maps(model, IMAGES), atol=1e-5
    )
    attention_maps(model, np.float32(1.2) * scaled - np.float32(0.1))  # as after resizing


def test_a_model_with_two_inside_must_be_told_which(build: Build):
    images = keras.Input((*SIZE, 3))
    first, second = build(name="first"), build(name="second")
    model = keras.Model(images, keras.layers.Add()([first(images), second(images)]), name="both")
    with pytest.raises(
        ValueError, match="both contains 2 calls of models with attention: first, second. Pass one"
    ):
        attention_maps(model, IMAGES)


def test_models_without_attention_are_refused_by_name(tiny_resnet):
    resnet = keras_vit.application(tiny_resnet(keras_vit.variants.RESNET_VARIANTS["BiT_R50x1"]))(
        weights=None, input_shape=(*SIZE, 3), classes=2
    )
    assert not has_attention(resnet) and not has_attention(
        keras.Sequential([keras.layers.Dense(2)])
    )
    for function in (attention_maps, attention_rollout, summarize_attention):
        with pytest.raises(ValueError, match="tiny contains no `TransformerBlock`"):
            function(resnet, IMAGES)
    with pytest.raises(ValueError, match="must be a Keras model. Received: 'ViT_B16'"):
        grid_of_model("ViT_B16")


def test_a_model_whose_graph_is_hidden_names_what_can_be_passed(build: Build):
    class Hidden(keras.Model):
        def __init__(self, vit: keras.Model):
            super().__init__(name="hidden")
            self.vit = vit

        def call(self, images):
            return self.vit(images)

    model = Hidden(build(name="inner"))
    assert not has_attention(model)
    with pytest.raises(
        ValueError, match="hidden is not a functional model.*Pass the model inside it: inner"
    ):
        summarize_attention(model, IMAGES)


# ── what is refused ──


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            PIXELS[0],
            r"shape \(B, H, W, C\), with \(H, W, C\) = \(32, 48, 3\).*For one image, pass `image\[None\]`",
        ),
        (PIXELS[:, :16], r"Received: the shape \(5, 16, 48, 3\). Resize them"),
        (PIXELS[..., :1], r"Received: the shape \(5, 32, 48, 1\)"),
        (IMAGES.astype("float32"), r"must be in \[-1, 1\]. Received: pixels from 0 to 255"),
        (IMAGES.astype("int64"), "must be uint8 from 0 to 255, or floats. Received: int64"),
        (np.where(PIXELS > 0.9, np.nan, PIXELS), "must be finite"),
        (PIXELS + np.inf, "must be finite"),
        (PIXELS[:0], "no images"),
        ([], "no images"),
        (
            [PIXELS[0]],
            r"Received: the shape \(32, 48, 3\).*for a data set of single images, `dataset.batch\(16\)`",
        ),
        (
            [(PIXELS, np.zeros(5), np.ones(4))],
            r"must be one weight for each image. Received: weights \(4,\) for 5 images",
        ),
        ("photos", "must be an array .* Received: str"),
        (None, "must be an array .* Received: NoneType"),
        ({"image": PIXELS}, "must be an array .* Received: dict"),
        (
            [{"id": [0] * 5, "image": PIXELS, "label": [0] * 5}],
            r"dict with the keys \['id', 'image', 'label'\]. Convert it, such as with "
            r"`dataset.map\(lambda batch: \(batch\['image'\], batch\['label'\]\)\)`",
        ),
        (
            [(PIXELS[0], np.int64(3))],
            r"a tuple of the shapes \(32, 48, 3\), \(\). Batch the data set: `dataset.batch\(16\)`",
        ),
        (
            [(PIXELS, np.zeros(5), np.ones(5), np.ones(5))],
            r"of the shapes \(5, 32, 48, 3\), \(5,\), \(5,\), \(5,\)\.$",
        ),
    ],
)
def test_what_are_no_images_for_the_model_are_refused(vit: keras.Model, images, message: str):
    with pytest.raises(ValueError, match=message):
        summarize_attention(vit, images)


def test_labels_of_batches_may_have_any_structure(vit: keras.Model):
    boxes = (np.zeros(5), np.zeros((5, 4)))
    expected = summarize_attention(vit, PIXELS).distance_px
    for labels in (boxes, {"boxes": boxes}, [[0], [1, 2], [], [3], [4]]):
        found = summarize_attention(vit, [(PIXELS, labels)]).distance_px
        np.testing.assert_array_equal(found, expected)


def test_batches_have_a_size_already(vit: keras.Model):
    with pytest.raises(ValueError, match="omit it for an iterable of batches. Received: 4"):
        summarize_attention(vit, iter([IMAGES]), batch_size=4)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1. Received: 0"):
        summarize_attention(vit, IMAGES, batch_size=0)
    for function in (attention_maps, attention_rollout):
        with pytest.raises(
            ValueError, match="must be one array .* Received: list. For batches, use `summarize"
        ):
            function(vit, [IMAGES])


def test_weights_that_do_not_fit_into_memory_are_refused_before_they_are_computed(
    vit: keras.Model, monkeypatch
):
    many = np.broadcast_to(IMAGES[:1], (10**10, *SIZE, 3))
    with pytest.raises(
        ValueError, match=r"100,000,000,000,000 bytes.*or use `summarize_attention`, which"
    ):
        attention_maps(vit, many)
    # 10,000 bytes for each image, and three times as much for each in a step.
    monkeypatch.setattr(attention, "_measure_free_bytes", lambda: 85_000.0)
    assert attention_maps(vit, IMAGES[:2]).nbytes == 20_000
    with pytest.raises(
        ValueError,
        match=r"take 30,000 bytes, 120,000 while they are computed, and 85,000 are free. Pass at "
        r"most 2 images at once, or use `summarize_attention`",
    ):
        attention_maps(vit, IMAGES[:3])
    assert attention_maps(vit, IMAGES, batch_size=1).nbytes == 50_000
    with pytest.raises(ValueError, match="Pass at most 5 images at once"):
        attention_maps(vit, np.tile(IMAGES, (2, 1, 1, 1)), batch_size=1)
    monkeypatch.setattr(attention, "_measure_free_bytes", lambda: 35_000.0)
    with pytest.raises(
        ValueError,
        match="Not even one image fits: pass smaller images, or use `summarize_attention`",
    ):
        attention_maps(vit, IMAGES[:1])
    assert head_maps(vit, IMAGES[:1]).shape == (1, 2, 2, 4, 6)


@pytest.mark.parametrize(
    ("limit", "free"), [("1000000\n", 1_000_000 - 900_000 + 600_000), ("max\n", None)]
)
def test_cached_files_of_a_container_are_free_memory(limit, free, tmp_path, monkeypatch):
    whole = attention._measure_free_bytes()
    monkeypatch.setattr(attention, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("900000\n")
    stat = "anon 200000\nfile 700000\ninactive_anon 1\nactive_file 100000\ninactive_file 600000\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert attention._measure_free_bytes() == (free or pytest.approx(whole, rel=0.9))


# ── the model stays as it is ──


def test_the_analysed_model_is_unchanged(build: Build):
    model = build(classifier="map")
    before = [(variable, numpy_of(variable)) for variable in model.variables]
    outputs, config = model.predict_on_batch(PIXELS), json.dumps(model.get_config(), default=str)
    calls = [(len(layer._inbound_nodes), len(layer._outbound_nodes)) for layer in model.operations]
    attributes = [sorted(vars(layer)) for layer in model.layers]
    summarize_attention(model, PIXELS, num_rollouts=2)
    attention_maps(model, PIXELS)
    assert all(now is then for now, (then, _) in zip(model.variables, before, strict=True))
    assert all((numpy_of(variable) == value).all() for variable, value in before)
    assert [
        (len(layer._inbound_nodes), len(layer._outbound_nodes)) for layer in model.operations
    ] == calls
    assert [sorted(vars(layer)) for layer in model.layers] == attributes
    assert json.dumps(model.get_config(), default=str) == config
    assert (model.predict_on_batch(PIXELS) == outputs).all()


def test_an_analysis_sees_new_weights_and_is_not_made_again(build: Build, monkeypatch):
    model, other = build(), build()
    expected = summarize_attention(other, PIXELS, num_rollouts=5)
    first = summarize_attention(model, PIXELS, num_rollouts=5)
    assert np.abs(first.distance_px - expected.distance_px).max() > 0.01
    monkeypatch.setattr(attention, "_make_sums_model", lambda *_: pytest.fail("made again"))
    model.set_weights(other.get_weights())
    same(summarize_attention(model, PIXELS, num_rollouts=5), expected)


def test_an_analysed_model_is_freed(build: Build):
    model = build()
    summarize_attention(model, PIXELS)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("classifier", "reads"),
    [
        ("token", ("class token",)),
        ("token_gap", ("class token", "patches")),
        ("gap", ("patches",)),
        ("map", ("patches",)),
    ],
)
def test_what_the_classifier_reads_is_found(build: Build, classifier: str, reads: tuple):
    sites = find_attention(build(classifier=classifier))
    assert sites.reads == reads and not sites.is_reading_assumed
    assert (sites.attention_pooling is not None) == (classifier == "map")


def test_a_pooling_outside_of_the_vit_is_found_and_an_unknown_one_is_an_assumption(build: Build):
    vit = build(include_top=False)
    assert find_attention(vit).reads == ("class token",)
    assert not find_attention(vit).is_reading_assumed  # it returns tokens
    images = keras.Input((*SIZE, 3))
    outer = keras.Model(images, TokenPooling("avg", 1)(vit(images)))
    assert find_attention(outer).reads == ("patches",)
    assert not find_attention(outer).is_reading_assumed
    pooled = keras.layers.GlobalAveragePooling1D()
    for model in (keras.Model(vit.input, pooled(vit.output)), keras.Sequential([vit, pooled])):
        assert find_attention(model).reads == ("class token",)
        assert find_attention(model).is_reading_assumed


def test_what_was_traced_is_kept_until_the_model_has_other_weights():
    images = keras.Input((4,))
    model = keras.Model(images, keras.layers.Dense(3)(images))
    made = [compiled_once(model, AttentionReader, SIZE, None, object) for _ in range(2)]
    assert made[0] is made[1]
    model.layers[-1].enable_lora(1)
    assert compiled_once(model, AttentionReader, SIZE, None, object) is not made[0]


def test_what_was_traced_is_made_again_for_another_range_of_pixels(build: Build):
    model, other = build(), build()
    other.set_weights(model.get_weights())
    keras_vit.pixels.declare(other, "0..1")
    for function in (attention_maps, attention_rollout, head_maps):
        before, expected = function(model, IMAGES), function(other, IMAGES)
        assert np.abs(before - expected).max() > 0.01
        declared = keras.Model(model.input, model.output)
        np.testing.assert_allclose(function(declared, IMAGES), before, atol=1e-5)
        keras_vit.pixels.declare(declared, "0..1")
        np.testing.assert_allclose(function(declared, IMAGES), expected, atol=1e-5)
        keras_vit.pixels.declare(declared, "-1..1")


def test_what_was_traced_is_made_again_for_other_dtypes_inside_a_model(vit: keras.Model):
    inner = keras.models.clone_model(vit)
    inner.set_weights(vit.get_weights())
    model = keras.Sequential([keras.Input((*SIZE, 3)), inner])
    in_float32 = attention_maps(model, PIXELS)
    np.testing.assert_allclose(in_float32, attention_maps(vit, PIXELS), atol=1e-5)
    for layer in inner._flatten_layers(include_self=False):
        if not isinstance(layer, keras.layers.InputLayer):
            layer.dtype_policy = "mixed_bfloat16"
    found = attention_maps(model, PIXELS)
    assert 0 < np.abs(found - in_float32).max() < 0.1
    assert (numpy_of(ops.cast(ops.cast(found, "bfloat16"), "float32")) == found).all()
