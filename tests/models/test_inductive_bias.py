"""What a model takes for granted about images: which places it tells apart, and which shifts it
does not see.

Source: arXiv:2010.11929, section 3.1 ("Inductive bias") and D.4.
"""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import cost
from keras_vit.layers import PatchEmbedding
from keras_vit.models import vision_transformer
from keras_vit.models.resnet import resnet_trunk
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

# Three rows and five columns: what mixes the two up is found out.
ROWS, COLUMNS, PATCH = 3, 5, 8
NUM_PATCHES = ROWS * COLUMNS
ORDER = np.random.default_rng(7).permutation(NUM_PATCHES)

TABLES = ("learned_1d", "learned_2d", "sincos2d")
PLACEMENTS = ("stem", "every_layer", "shared")
KINDS = [(kind, placement) for kind in TABLES for placement in PLACEMENTS] + [("relative", "stem")]
POOLINGS = {"token": "token", "gap": "avg", "map": "map"}
ONE_QUICK = [
    "token",
    *(pytest.param(classifier, marks=pytest.mark.slow) for classifier in ("gap", "map")),
]


def images(rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    return (
        np.random.default_rng(0)
        .uniform(-1, 1, (2, rows * PATCH, columns * PATCH, 3))
        .astype("float32")
    )


def permuted(pictures: np.ndarray, order: np.ndarray = ORDER) -> np.ndarray:
    """The same patches in another order: patch i of the result is patch order[i]."""
    patches = pictures.reshape(-1, ROWS, PATCH, COLUMNS, PATCH, 3).swapaxes(2, 3)
    shuffled = patches.reshape(-1, NUM_PATCHES, PATCH, PATCH, 3)[:, order]
    return (
        shuffled.reshape(-1, ROWS, COLUMNS, PATCH, PATCH, 3).swapaxes(2, 3).reshape(pictures.shape)
    )


def randomized(model: keras.Model) -> keras.Model:
    """Every weight far from zero, the position tables and the class token too."""
    generator = np.random.default_rng(1)
    for weight in model.weights:
        centre = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(centre + 0.3 * generator.standard_normal(weight.shape))
    return model


def build(row, **options) -> keras.Model:
    return randomized(
        vision_transformer(row, keras.Input((ROWS * PATCH, COLUMNS * PATCH, 3)), **options)
    )


def outputs(model: keras.Model, pictures: np.ndarray) -> np.ndarray:
    return ops.convert_to_numpy(model(pictures))


# --- which places a model tells apart
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("classifier", POOLINGS)
def test_without_positions_an_image_is_a_bag_of_patches(classifier, tiny_vit):
    model = build(
        tiny_vit, classifier=classifier, pooling=POOLINGS[classifier], position_embedding="none"
    )
    straight, mixed = outputs(model, images()), outputs(model, permuted(images()))
    assert np.abs(straight[0] - straight[1]).max() > 0.1  # it does tell images apart
    np.testing.assert_allclose(mixed, straight, atol=1e-5)


def test_without_positions_tokens_move_with_their_patches(tiny_vit):
    model = build(tiny_vit, classifier="none", position_embedding="none")
    straight, mixed = outputs(model, images()), outputs(model, permuted(images()))
    np.testing.assert_allclose(mixed, straight[:, ORDER], atol=1e-5)
    assert np.abs(mixed - straight).max() > 0.1


@pytest.mark.once
@pytest.mark.parametrize(("kind", "placement"), KINDS)
@pytest.mark.parametrize("classifier", ONE_QUICK)
def test_with_positions_the_order_of_patches_counts(kind, placement, classifier, tiny_vit):
    model = build(
        tiny_vit,
        classifier=classifier,
        pooling=POOLINGS[classifier],
        position_embedding=kind,
        position_placement=placement,
    )
    assert np.abs(outputs(model, permuted(images())) - outputs(model, images())).max() > 1e-2


@pytest.mark.once
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("classifier", ONE_QUICK)
def test_patches_that_move_with_their_positions_change_nothing(placement, classifier, tiny_vit):
    options = {
        "classifier": classifier,
        "pooling": POOLINGS[classifier],
        "position_placement": placement,
    }
    model, other = build(tiny_vit, **options), build(tiny_vit, **options)
    num_prefix_tokens = int(classifier == "token")
    rows = np.concatenate([np.arange(num_prefix_tokens), num_prefix_tokens + ORDER])
    tables = [weight for weight in other.weights if "posembed" in weight.path]
    assert len(tables) == (tiny_vit.depth if placement == "every_layer" else 1)
    for table in tables:
        table.assign(ops.convert_to_numpy(table)[:, rows])
    straight = outputs(model, images())
    np.testing.assert_allclose(outputs(other, permuted(images())), straight, atol=1e-5)
    assert np.abs(outputs(other, images()) - straight).max() > 1e-2


def test_two_learned_axes_move_with_rows_and_with_columns_only(tiny_vit):
    """A permutation of rows and one of columns is one of the table's own; any other is not."""
    by_row, by_column = np.array([2, 0, 1]), np.array([1, 4, 0, 2, 3])
    order = (by_row[:, None] * COLUMNS + by_column[None, :]).ravel()
    model, other = (
        build(tiny_vit, pooling="token", position_embedding="learned_2d") for _ in range(2)
    )
    table = other.get_layer("posembed_input")
    table.row_embedding.assign(ops.convert_to_numpy(table.row_embedding)[:, by_row])
    table.column_embedding.assign(ops.convert_to_numpy(table.column_embedding)[:, by_column])
    straight = outputs(model, images())
    np.testing.assert_allclose(outputs(other, permuted(images(), order)), straight, atol=1e-5)
    assert np.abs(outputs(other, permuted(images())) - straight).max() > 1e-2


def test_axial_attention_without_positions_knows_rows_and_columns(tiny_vit):
    """It does not see rows or columns change places, but it sees a patch leave its row."""
    model = build(replace(tiny_vit, axial=True), pooling="avg", position_embedding="none")
    by_row, by_column = np.array([2, 0, 1]), np.array([1, 4, 0, 2, 3])
    lines = (by_row[:, None] * COLUMNS + by_column[None, :]).ravel()
    straight = outputs(model, images())
    np.testing.assert_allclose(outputs(model, permuted(images(), lines)), straight, atol=1e-5)
    assert np.abs(outputs(model, permuted(images())) - straight).max() > 1e-2


# --- what places cost
# ------------------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("classifier", ["token", "gap"])
@pytest.mark.parametrize(
    ("kind", "placement", "with_token", "without"),
    [
        # 16 numbers a token, two blocks of two heads of 8; 15 patches on 3 rows and 5 columns.
        ("none", "stem", 0, 0),
        ("sincos2d", "every_layer", 0, 0),
        ("learned_1d", "stem", 16 * 16, 15 * 16),
        ("learned_1d", "shared", 16 * 16, 15 * 16),
        ("learned_1d", "every_layer", 2 * 16 * 16, 2 * 15 * 16),
        ("learned_2d", "stem", 3 * 8 + 5 * 8 + 16, 3 * 8 + 5 * 8),
        ("learned_2d", "shared", 3 * 8 + 5 * 8 + 16, 3 * 8 + 5 * 8),
        ("learned_2d", "every_layer", 2 * (3 * 8 + 5 * 8 + 16), 2 * (3 * 8 + 5 * 8)),
        ("relative", "stem", 2 * 31 * 8, 2 * 29 * 8),
    ],
)
def test_parameters_of_every_kind_and_place(
    kind, placement, with_token, without, classifier, tiny_vit
):
    options = {
        "classifier": classifier,
        "position_embedding": kind,
        "position_placement": placement,
    }
    size = ROWS * PATCH, COLUMNS * PATCH
    plain = vision_transformer(
        tiny_vit, keras.Input((*size, 3)), classifier=classifier, position_embedding="none"
    )
    found = vision_transformer(tiny_vit, keras.Input((*size, 3)), **options).count_params()
    assert found - plain.count_params() == (with_token if classifier == "token" else without)
    assert cost.parameters(tiny_vit, image_size=size, classes=None, **options) == found


def test_positions_of_the_papers_ablation():
    """Table 8: ViT-B/16 at 224 pixels, 196 patches and a class token."""
    row = VIT_VARIANTS["ViT_B16"]
    none = cost.parameters(row, position_embedding="none")
    options = [
        ("learned_1d", "stem"),
        ("learned_1d", "every_layer"),
        ("learned_2d", "stem"),
        ("relative", "stem"),
    ]
    found = [
        cost.parameters(row, position_embedding=kind, position_placement=placement) - none
        for kind, placement in options
    ]
    assert found == [197 * 768, 12 * 197 * 768, 2 * 14 * 384 + 768, 12 * 393 * 64]


# --- which shifts a stem does not see
# --------------------------------------------------------------------------------


def test_patches_shift_by_whole_patches_alone():
    layer = PatchEmbedding(PATCH, 16, flatten=False)
    wide = images(rows=4, columns=6)
    layer.build(wide.shape)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(2).standard_normal(weight.shape))
    tokens = ops.convert_to_numpy(layer(wide))
    whole = ops.convert_to_numpy(layer(np.roll(wide, (PATCH, 2 * PATCH), axis=(1, 2))))
    np.testing.assert_allclose(whole, np.roll(tokens, (1, 2), axis=(1, 2)), atol=1e-4)
    part = ops.convert_to_numpy(layer(np.roll(wide, PATCH // 2, axis=2)))
    distance = np.abs(part[:, :, None] - tokens[:, :, :, None]).max(axis=-1)
    # it is nobody's shift: no token comes out as any token of its row did
    assert distance.min() > 0.1


@pytest.mark.once
@pytest.mark.parametrize("name", ["ResNet50x1", "BiT_R50x1"])
def test_convolutions_shift_by_the_stride_away_from_the_borders(name, tiny_resnet):
    """Group normalization sees the whole map. So a picture on an empty ground moves, and all of it
    stays inside.
    """
    row = tiny_resnet(RESNET_VARIANTS[name])
    assert row.total_stride == 8
    pictures = keras.Input((128, 160, 3))
    model = randomized(keras.Model(pictures, resnet_trunk(pictures, row)))
    ground = np.zeros((1, 128, 160, 3), "float32")
    ground[:, 48:80, 48:80] = np.random.default_rng(3).uniform(-1, 1, (1, 32, 32, 3))
    before = outputs(model, ground)
    inside = (slice(None), slice(4, 12), slice(4, 14))

    def moved(rows: int, columns: int) -> np.ndarray:
        return outputs(model, np.roll(ground, (rows, columns), axis=(1, 2)))

    whole = moved(8, 16)
    scale = np.abs(before).max()
    np.testing.assert_allclose(
        whole[inside], np.roll(before, (1, 2), axis=(1, 2))[inside], atol=1e-4 * scale
    )
    assert np.abs(whole - before)[inside].max() > 0.05 * scale
    part = moved(0, 4)
    differences = [
        np.abs(part - np.roll(before, columns, axis=2))[inside].max() for columns in (0, 1)
    ]
    assert min(differences) > 0.01 * scale
