"""Filters and positions, against NumPy by hand and against what was planted in the weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from scipy.linalg import subspace_angles

from keras_vit.analyze.embeddings import filter_components, has_positions, position_similarity
from keras_vit.models import resnet, vision_transformer
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant

pytestmark = pytest.mark.usefixtures("shallow")

SIDES = (24, 40)  # pixels: a grid of 3 by 5


@pytest.fixture
def build(tiny_vit: ViTVariant) -> Callable[..., keras.Model]:
    def build(
        variant: ViTVariant = tiny_vit, sides: tuple = SIDES, channels: int = 3, **options
    ) -> keras.Model:
        return vision_transformer(variant, keras.Input((*sides, channels)), classes=2, **options)

    return build


def set_filters(model: keras.Model, kernel: np.ndarray) -> None:
    model.get_layer("embedding").kernel.assign(kernel)


def by_hand(table: np.ndarray) -> np.ndarray:
    """(R, C, D) to cosines, one after the other."""
    rows, columns, _ = table.shape
    cosines = np.empty((rows, columns, rows, columns))
    for place in np.ndindex(cosines.shape):
        one, other = table[place[:2]], table[place[2:]]
        cosines[place] = one @ other / np.sqrt((one @ one) * (other @ other))
    return cosines


# Filters


def test_planted_components_are_found(build):
    """Filters that are mixtures of three patterns have three components, and no fourth."""
    random = np.random.default_rng(0)
    patterns = np.linalg.qr(random.normal(size=(192, 3)))[0].T
    amounts = random.normal(size=(16, 3)) * [5.0, 2.0, 1.0]
    model = build()
    set_filters(model, (amounts @ patterns + random.normal(size=192)).T.reshape(8, 8, 3, 16))
    found = filter_components(model, 8)
    assert found.components.shape == (8, 8, 8, 3) and found.explained.shape == (8,)
    assert subspace_angles(found.components[:3].reshape(3, -1).T, patterns.T).max() < 1e-5
    assert found.explained[:3].sum() == pytest.approx(1, abs=1e-9)
    assert (np.abs(found.explained[3:]) < 1e-10).all()
    amounts -= amounts.mean(axis=0)
    planted = np.linalg.eigvalsh(amounts.T @ amounts)[::-1]
    np.testing.assert_allclose(found.explained[:3], planted / planted.sum(), rtol=1e-5)


@pytest.mark.parametrize("patch_size", [8, 2])  # fewer filters than values, and more
def test_components_are_the_eigenvectors_of_the_covariance(
    build, tiny_vit: ViTVariant, patch_size: int
):
    model = build(replace(tiny_vit, patch_size=patch_size))
    kernel = keras.ops.convert_to_numpy(model.get_layer("embedding").kernel).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(kernel.reshape(-1, 16)))
    found = filter_components(model, 5)
    np.testing.assert_allclose(found.explained, values[::-1][:5] / values.sum(), rtol=1e-6)
    flat = found.components.reshape(5, -1)
    np.testing.assert_allclose(np.abs(np.sum(flat * vectors.T[::-1][:5], axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(flat @ flat.T, np.eye(5), atol=1e-12)


def test_neither_the_mean_of_the_filters_nor_their_sign_matters(build):
    model = build()
    kernel = keras.ops.convert_to_numpy(model.get_layer("embedding").kernel)
    before = filter_components(model, 3).components
    assert (before.reshape(3, -1).max(axis=1) == np.abs(before).reshape(3, -1).max(axis=1)).all()
    set_filters(model, 2.0 - kernel)
    np.testing.assert_allclose(filter_components(model, 3).components, before, atol=1e-5)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (15, 15), (28, 15)])
def test_there_are_no_more_components_than_filters_less_one(build, asked: int, given: int):
    assert len(filter_components(build(), asked).components) == given


def test_there_are_no_more_components_than_values_in_a_filter(build, tiny_vit: ViTVariant):
    model = build(replace(tiny_vit, patch_size=2), (4, 4), channels=1)
    assert filter_components(model).components.shape == (4, 2, 2, 1)


def test_filters_that_are_all_the_same_explain_nothing(build):
    model = build()
    set_filters(model, np.ones((8, 8, 3, 16)))
    assert (filter_components(model, 4).explained == 0).all()


@pytest.mark.parametrize("kind", ["hybrid", "resnet"])
def test_of_a_convolutional_stem_it_is_the_root_that_meets_the_image(tiny_resnet, kind: str):
    if kind == "hybrid":
        row = VIT_VARIANTS["R50_ViT_B16"]
        row = replace(row, width=16, depth=1, num_heads=2, mlp_dim=8, stem=tiny_resnet(row.stem))
        model = vision_transformer(row, keras.Input((32, 32, 3)), classes=2)
    else:
        model = resnet(
            tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]), keras.Input((32, 32, 3)), classes=2
        )
    found = filter_components(model, 6)
    assert found.components.shape == (6, 7, 7, 3)
    # What the root answers to a single bright pixel is its kernel, standardized or not.
    pixels = np.zeros((7, 7, 3, 13, 13, 3), np.float32)
    for row, column, channel in np.ndindex(7, 7, 3):
        pixels[row, column, channel, 3 + row, 3 + column, channel] = 1
    answers = model.get_layer("conv_root")(pixels.reshape(147, 13, 13, 3))
    filters = keras.ops.convert_to_numpy(answers)[:, 3, 3].T
    filters = filters - filters.mean(axis=0)
    variance = np.linalg.norm(filters @ found.components.reshape(6, -1).T, axis=0) ** 2
    np.testing.assert_allclose(variance / (filters**2).sum(), found.explained, rtol=1e-4)


def test_filters_of_a_model_in_a_model_and_from_a_file(build, tmp_path: Path):
    model = build()
    before = filter_components(model, 3).components
    outer = keras.Sequential([keras.layers.Rescaling(1.0), keras.Sequential([model])])
    outer.build((None, *SIDES, 3))
    outer.save(tmp_path / "model.keras")
    for other in (outer, keras.saving.load_model(tmp_path / "model.keras")):
        np.testing.assert_array_equal(filter_components(other, 3).components, before)


def test_filters_that_cannot_be_told_are_refused(build):
    model, plain = build(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    images = keras.Input((*SIDES, 3))
    several = keras.Model(images, [build(name=name)(images) for name in ("one", "other")])
    with pytest.raises(ValueError, match="no patch embedding and no root convolution"):
        filter_components(plain)
    with pytest.raises(
        ValueError, match="contains 2 models that read images. Pass one of these models"
    ):
        filter_components(several)
    with pytest.raises(ValueError, match="at least 1. Received: 0"):
        filter_components(model, 0)
    set_filters(model, np.full((8, 8, 3, 16), np.nan))
    with pytest.raises(ValueError, match="filters of tiny are not finite"):
        filter_components(model)


# Positions


@pytest.mark.parametrize("pooling", ["token", "gap"])
@pytest.mark.parametrize("placement", ["stem", "shared", "every_layer"])
def test_learned_positions_are_those_of_the_table(build, pooling: str, placement: str):
    model = build(classifier=pooling, position_placement=placement)
    name = {"stem": "posembed_input", "shared": "posembed_shared", "every_layer": "posembed_0"}[
        placement
    ]
    table = keras.ops.convert_to_numpy(model.get_layer(name).pos_embedding)[
        0, int(pooling == "token") :
    ]
    found = position_similarity(model)
    assert found.shape == (3, 5, 3, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand(table.reshape(3, 5, 16)), atol=1e-6)
    assert (np.einsum("rcrc->rc", found) == 1).all()
    np.testing.assert_array_equal(found, found.transpose(2, 3, 0, 1))


def test_learned_rows_and_columns_are_halves_of_each_embedding(build):
    model = build(position_embedding="learned_2d")
    layer = model.get_layer("posembed_input")
    by_row, by_column = (
        keras.ops.convert_to_numpy(each)[0]
        for each in (layer.row_embedding, layer.column_embedding)
    )
    table = np.array([[np.concatenate([row, column]) for column in by_column] for row in by_row])
    np.testing.assert_allclose(position_similarity(model), by_hand(table), atol=1e-6)


def test_with_equal_lengths_the_cosine_is_the_mean_of_those_of_row_and_column(build):
    model = build(position_embedding="learned_2d")
    layer = model.get_layer("posembed_input")
    halves = []
    for variable in (layer.row_embedding, layer.column_embedding):
        values = keras.ops.convert_to_numpy(variable)[0]
        halves.append(values / np.linalg.norm(values, axis=1, keepdims=True))
        variable.assign(halves[-1][None])
    of_rows, of_columns = (half @ half.T for half in halves)
    expected = (of_rows[:, None, :, None] + of_columns[None, :, None, :]) / 2
    np.testing.assert_allclose(position_similarity(model), expected, atol=1e-6)


def test_of_sines_and_cosines_only_the_offset_matters(build):
    """sin a sin b + cos a cos b = cos(a - b), summed over the wave numbers: nothing of a and b
    alone.
    """
    found = position_similarity(build(position_embedding="sincos2d"))
    waves = np.exp(-np.log(10_000.0) * np.arange(4) / 3)
    for row, column, other_row, other_column in np.ndindex(found.shape):
        down, across = other_row - row, other_column - column
        expected = (np.cos(down * waves).mean() + np.cos(across * waves).mean()) / 2
        assert found[row, column, other_row, other_column] == pytest.approx(expected, abs=1e-5)


def test_each_layer_has_positions_of_its_own(build):
    model = build(position_placement="every_layer")
    first, second = (position_similarity(model, layer=number) for number in (0, 1))
    np.testing.assert_array_equal(position_similarity(model), first)
    np.testing.assert_array_equal(position_similarity(model, layer="posembed_1"), second)
    assert np.abs(first - second).max() > 0.1


def test_an_embedding_of_zeros_is_like_nothing(build):
    model = build()
    table = model.get_layer("posembed_input").pos_embedding
    values = keras.ops.convert_to_numpy(table).copy()
    values[0, 1 + 7] = 0  # row 1, column 2
    table.assign(values)
    found = position_similarity(model)
    assert (found[1, 2] == 0).all() and (found[:, :, 1, 2] == 0).all() and found[0, 0, 0, 0] == 1


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_size_of_the_numbers_does_not_matter(build, scale: float):
    model = build()
    before = position_similarity(model)
    table = model.get_layer("posembed_input").pos_embedding
    table.assign(keras.ops.convert_to_numpy(table) * np.float32(scale))
    np.testing.assert_allclose(position_similarity(model), before, atol=1e-6)


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos2d"])
def test_the_precision_of_the_model_does_not_matter(build, kind: str):
    exact = build(position_embedding=kind)
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build(position_embedding=kind)
    model.set_weights(exact.get_weights())
    np.testing.assert_array_equal(position_similarity(model), position_similarity(exact))


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos2d"])
def test_positions_of_a_model_in_a_model_from_a_file_and_of_any_size(
    build, tmp_path: Path, kind: str
):
    options = {"position_embedding": kind, "position_placement": "every_layer"}
    model = build(sides=(None, None), position_grid=(2, 3), **options)
    before = position_similarity(model, layer=1)
    assert before.shape == (2, 3, 2, 3)
    outer = keras.Sequential([keras.Input((32, 32, 3)), model])
    outer.save(tmp_path / "model.keras")
    for other in (outer, keras.saving.load_model(tmp_path / "model.keras")):
        assert has_positions(other)
        np.testing.assert_array_equal(position_similarity(other, layer=1), before)


@pytest.mark.parametrize("kind", ["none", "relative", "resnet"])
def test_a_model_without_added_positions_says_what_it_has(build, tiny_resnet, kind: str):
    if kind == "resnet":
        row: ResNetVariant = tiny_resnet(RESNET_VARIANTS["ResNet50x1"])
        model = resnet(row, keras.Input((32, 32, 3)), classes=2)
    else:
        model = build(position_embedding=kind)
    assert not has_positions(model) and has_positions(build())
    message = {
        "none": "has no position embeddings. Pass a model with",
        "relative": "relative positions: each block embeds offsets .* attention distance",
        "resnet": "has no position embeddings",
    }
    with pytest.raises(ValueError, match=message[kind]):
        position_similarity(model)


@pytest.mark.parametrize("layer", [2, -1, "posembed_input", 0.5])
def test_a_layer_that_is_not_there_is_refused(build, layer):
    model = build(position_placement="every_layer")
    message = rf"in 2 layers: posembed_0, posembed_1. .* from 0 to 1. Received: {layer!r}"
    with pytest.raises(ValueError, match=message):
        position_similarity(model, layer=layer)


def test_positions_that_cannot_be_told_are_refused(build):
    images = keras.Input((*SIDES, 3))
    several = keras.Model(images, [build(name=name)(images) for name in ("one", "other")])
    with pytest.raises(
        ValueError, match="contains 2 models that add positions. Pass one of these models"
    ):
        position_similarity(several)
    model = build()
    table = model.get_layer("posembed_input").pos_embedding
    table.assign(np.full(table.shape, np.inf))
    with pytest.raises(ValueError, match="positions of tiny are not finite"):
        position_similarity(model)
