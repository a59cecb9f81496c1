"""Closed forms against published figures, and against counts made another way."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic_checkpoint
from published_counts import PARAMETERS

from keras_vit import cost
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights import witness

ROWS = VIT_VARIANTS | RESNET_VARIANTS


def size_of(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def test_every_row_is_tested():
    assert PARAMETERS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_published_count(name):
    assert cost.parameters(ROWS[name]) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_sum_over_array_shapes(name):
    assert cost.parameters(ROWS[name]) == size_of(synthetic_checkpoint.array_shapes(ROWS[name]))
    assert cost.parameters(ROWS[name], classes=None) == size_of(
        synthetic_checkpoint.array_shapes(ROWS[name], classes=None)
    )


@pytest.mark.parametrize("name", ["ViT_B16", "R26_ViT_S32"])
@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_parameters_follow_every_option(name, classifier):
    options = {"image_size": (96, 160), "classes": 7, "representation_size": 24, "classifier": classifier}
    shapes = synthetic_checkpoint.array_shapes(ROWS[name], **options)
    assert cost.parameters(ROWS[name], **options) == size_of(shapes)


def test_parameters_of_the_pretraining_head_equal_the_published_count():
    # 307M in Table 1 is ViT-L/32 with its tanh layer.
    assert cost.parameters(VIT_VARIANTS["ViT_L32"], representation_size=1024) == 307_585_000


@pytest.mark.parametrize(("name", "kernel"), [("ViT_B16", 256 * 768), ("BiT_R50x1", 49 * 64), ("R_ViT_Ti16", 49 * 64)])
def test_one_more_image_channel_widens_the_first_kernel_only(name, kernel):
    assert cost.parameters(ROWS[name], channels=4) - cost.parameters(ROWS[name]) == kernel


@pytest.mark.parametrize(
    ("name", "image_size", "expected"),
    [
        ("ViT_B16", (224, 224), 197),
        ("ViT_B16", (384, 384), 577),
        ("ViT_B32", (224, 224), 50),
        ("ViT_H14", (518, 518), 1370),
        ("ViT_S16", (32, 64), 9),
        ("R50_ViT_B16", (224, 224), 197),
        ("R_ViT_Ti16", (384, 384), 145),
        # 225 halves to 113, 57, 29, 15.
        ("R50_ViT_B16", (225, 224), 15 * 14 + 1),
    ],
)
def test_tokens(name, image_size, expected):
    assert cost.tokens(VIT_VARIANTS[name], image_size) == expected


def test_tokens_without_a_class_token():
    assert cost.tokens(VIT_VARIANTS["ViT_B16"], classifier="gap") == 196


def test_tokens_of_a_size_that_patches_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"must be a multiple of 14\. Received: image_size=\(384, 384\)"):
        cost.tokens(VIT_VARIANTS["ViT_H14"], (384, 384))


def test_tokens_of_a_resnet_are_refused():
    with pytest.raises(ValueError, match="A ResNet has no tokens"):
        cost.tokens(RESNET_VARIANTS["BiT_R50x1"], (224, 224))


def test_unknown_classifier_is_refused():
    with pytest.raises(ValueError, match='must be "token", "gap" or "map". Received: classifier=\'cls\''):
        cost.parameters(VIT_VARIANTS["ViT_B16"], classifier="cls")


@pytest.mark.parametrize("count", [cost.parameters, cost.macs])
def test_transformer_options_of_a_resnet_are_refused(count):
    with pytest.raises(ValueError, match="neither a `representation_size` nor a `classifier`"):
        count(RESNET_VARIANTS["BiT_R50x1"], classifier="gap")


@pytest.mark.parametrize(
    ("name", "size", "giga"),
    [
        ("ViT_B32", 224, 4.41),
        ("ViT_B16", 224, 17.56),
        ("ViT_L32", 224, 15.38),
        ("ViT_L16", 224, 61.55),
        ("ViT_H14", 224, 167.29),
        ("ViT_B16", 384, 55.5),
        ("ViT_L16", 384, 191),
    ],
)
def test_macs_without_a_head_equal_the_stated_figures(name, size, giga):
    digits = len(str(giga).partition(".")[2])
    assert round(cost.macs(VIT_VARIANTS[name], (size, size), classes=None) / 1e9, digits or None) == giga


def test_macs_of_one_block_by_hand():
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, mlp_dim=6, num_heads=2, patch_size=2)
    # Two patches and a class token: per block 3 * (4 * 16 + 2 * 24) + 2 * 9 * 4.
    per_block = cost.macs(replace(tiny, depth=3), (2, 4)) - cost.macs(replace(tiny, depth=2), (2, 4))
    assert per_block == 408


def test_macs_of_the_embedding_and_the_head_by_hand():
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, depth=0, patch_size=2)
    assert cost.macs(tiny, (2, 4), classes=5, representation_size=3) == 2 * 12 * 4 + 4 * 3 + 3 * 5


def test_macs_of_attention_pooling_by_hand():
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, mlp_dim=6, depth=0, patch_size=2)
    pooling = cost.macs(tiny, (2, 4), classifier="map") - cost.macs(tiny, (2, 4), classifier="gap")
    # Query and output of one token, keys and values of two, scores and sums over two, the MLP of one.
    assert pooling == 2 * 16 + 2 * 2 * 16 + 2 * 2 * 4 + 2 * 4 * 6


@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1", "R26_ViT_S32", "R_ViT_Ti16"])
def test_convolutions_cost_what_the_witness_computes(name, monkeypatch):
    counted = []

    def counting(x, kernel, *args, **kwargs):
        y = convolve(x, kernel, *args, **kwargs)
        counted.append(y.size * kernel[..., 0].size)
        return y

    convolve = witness.convolve
    monkeypatch.setattr(witness, "convolve", counting)
    variant, size = ROWS[name], (45, 64)
    if name in VIT_VARIANTS:
        variant, size = replace(variant, depth=1), (61, 64)
    arrays = {
        key: np.zeros(shape, np.float32)
        for key, shape in synthetic_checkpoint.array_shapes(variant, image_size=size, classes=None).items()
    }
    witness.forward(arrays, np.zeros((1, *size, 3)), variant)
    blocks = 0
    if name in VIT_VARIANTS:
        blocks = cost.macs(variant, size, classes=None) - cost.macs(replace(variant, depth=0), size, classes=None)
    assert cost.macs(variant, size, classes=None) == sum(counted) + blocks


def test_macs_include_the_head_of_a_resnet():
    row = RESNET_VARIANTS["ResNet50x2"]
    assert cost.macs(row, classes=10) - cost.macs(row, classes=None) == 40_960


def test_flops_are_twice_the_macs():
    assert cost.flops(21) == 42


@pytest.mark.parametrize(
    ("name", "epochs", "exaflops"),
    [
        ("ViT_B32", 7, 56.1),
        ("ViT_B16", 7, 223.5),
        ("ViT_L32", 7, 195.7),
        ("ViT_L16", 7, 783.4),
        ("ViT_L16", 14, 1566.8),
        ("ViT_H14", 14, 4258),
        ("R50_ViT_B16", 7, 274.1),
        ("R50_ViT_L16", 14, 1668.2),
    ],
)
def test_training_compute_reproduces_the_analysis_of_table_6(name, epochs, exaflops):
    images = epochs * 303_021_387
    assert cost.training_exaflops(cost.macs(VIT_VARIANTS[name]), images) == pytest.approx(exaflops, rel=4e-4)


@pytest.mark.parametrize(
    ("name", "epochs", "exaflops"),
    [
        ("ResNet50x1", 7, 50),
        ("ResNet50x2", 7, 199),
        ("ResNet101x1", 7, 96),
        ("ResNet152x1", 7, 141),
        ("ResNet152x2", 7, 563),
        ("ResNet200x3", 14, 3306),
    ],
)
def test_training_compute_of_resnets_is_just_above_table_6(name, epochs, exaflops):
    ratio = cost.training_exaflops(cost.macs(RESNET_VARIANTS[name]), epochs * 303_021_387) / exaflops
    assert 1.03 < ratio < 1.045


def test_weight_bytes_of_each_type():
    assert [cost.weight_bytes(10, dtype) for dtype in ("float32", "bfloat16", "float16", "int8")] == [40, 20, 20, 10]


def test_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="`dtype` must be one of .* Received: dtype='float8'"):
        cost.weight_bytes(10, "float8")


def test_activation_peak_of_few_tokens_is_the_mlp():
    # 50 tokens of 768, and the hidden layer of 3072 twice.
    assert cost.activation_bytes(VIT_VARIANTS["ViT_B32"]) == 4 * (50 * 768 + 2 * 50 * 3072)


def test_activation_peak_of_many_tokens_is_the_softmax():
    expected = 2 * (4 * 577 * 768 + 2 * 12 * 577**2)
    assert cost.activation_bytes(VIT_VARIANTS["ViT_B16"], (384, 384), dtype="bfloat16") == expected


def test_activation_peak_of_a_resnet_is_its_first_stage():
    # Three maps of 56 x 56 x 256, more than the root's image and two maps of 112 x 112 x 64.
    assert cost.activation_bytes(RESNET_VARIANTS["BiT_R50x1"]) == 4 * 3 * 56 * 56 * 256


def test_activation_peak_of_a_hybrid_is_that_of_its_stem():
    row = VIT_VARIANTS["R50_ViT_B32"]
    assert row.stem is not None
    assert cost.activation_bytes(row) == cost.activation_bytes(row.stem)


def test_cost_imports_nothing_from_the_package():
    tree = ast.parse(Path(cost.__file__).read_text())
    assert not [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "keras" in str(node.module)
    ]
