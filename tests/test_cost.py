"""Closed forms against published figures, and against counts made another way."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic_checkpoint
from published_counts import PARAMETERS

from keras_vit import cost, paper
from keras_vit.cost.parts import Convolution
from keras_vit.cost.rows import map_size
from keras_vit.variants import RESNET_VARIANTS, VARIANTS, VIT_VARIANTS
from keras_vit.weights import witness

ROWS = VARIANTS


def outputs_of(name: str) -> int:
    """Outputs of the head that the published counts are of."""
    return getattr(ROWS[name], "projection", None) or 1000


def size_of(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def test_every_row_is_tested():
    assert PARAMETERS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_published_count(name):
    assert cost.parameters(ROWS[name], classes=outputs_of(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_sum_over_array_shapes(name):
    assert cost.parameters(ROWS[name]) == size_of(synthetic_checkpoint.array_shapes(ROWS[name]))
    assert cost.parameters(ROWS[name], classes=None) == size_of(
        synthetic_checkpoint.array_shapes(ROWS[name], classes=None)
    )


@pytest.mark.parametrize("name", ["ViT_B16", "R26_ViT_S32"])
@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_parameters_follow_every_option(name, classifier):
    options = {
        "image_size": (96, 160),
        "classes": 7,
        "representation_size": 24,
        "classifier": classifier,
    }
    shapes = synthetic_checkpoint.array_shapes(ROWS[name], **options)
    assert cost.parameters(ROWS[name], **options) == size_of(shapes)


def test_parameters_of_the_pretraining_head_equal_the_published_count():
    # 307M in Table 1 is ViT-L/32 with its tanh layer.
    assert cost.parameters(VIT_VARIANTS["ViT_L32"], representation_size=1024) == 307_585_000


@pytest.mark.parametrize(
    ("name", "kernel"), [("ViT_B16", 256 * 768), ("BiT_R50x1", 49 * 64), ("R_ViT_Ti16", 49 * 64)]
)
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
    with pytest.raises(
        ValueError, match=r"must be a multiple of 14.*\. Received: image_size=\(384, 384\)"
    ):
        cost.tokens(VIT_VARIANTS["ViT_H14"], (384, 384))


def test_tokens_of_a_resnet_are_refused():
    with pytest.raises(ValueError, match="A ResNet has no tokens"):
        cost.tokens(RESNET_VARIANTS["BiT_R50x1"], (224, 224))


def test_unknown_classifier_is_refused():
    with pytest.raises(
        ValueError,
        match=r"must be one of \('token', 'gap', 'map', 'token_gap', 'none'\). Received: classifier='cls'",
    ):
        cost.parameters(VIT_VARIANTS["ViT_B16"], classifier="cls")


@pytest.mark.parametrize("count", [cost.parameters, cost.macs])
@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            "BiT_R50x1",
            {"classifier": "gap"},
            "neither a `representation_size` nor a `classifier`.*classifier='gap'",
        ),
        (
            "ResNet50x1",
            {"representation_size": 8},
            "neither a `representation_size`.*representation_size=8",
        ),
        (
            "BiT_R50x1",
            {"position_embedding": "none"},
            "A ResNet has no options for position embeddings",
        ),
        (
            "ViT_B16",
            {"position_embedding": "rope"},
            r"`position_embedding` must be one of .*'none'\).*'rope'",
        ),
        (
            "ViT_B16",
            {"classifier": "none"},
            "returns tokens and has no head. Received: classes=1000",
        ),
        (
            "ViT_B16",
            {"classifier": "none", "classes": None, "representation_size": 8},
            "has no head.*_size=8",
        ),
        ("AxialViT_B16", {"classifier": "token"}, "Axial attention has no class token"),
        (
            "ViT_B16",
            {"image_size": (0, 224)},
            r"multiple of 16.*\. Received: image_size=\(0, 224\)",
        ),
        (
            "R50_ViT_B16",
            {"image_size": (224, -16)},
            r"multiple of 16.*\. Received: image_size=\(224, -16\)",
        ),
    ],
)
def test_what_no_model_can_be_built_with_is_refused(count, row, options, message):
    with pytest.raises(ValueError, match=message):
        count(ROWS[row], **options)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("ViT_B16", {"position_placement": "top"}, "`position_placement` must be"),
        (
            "ViT_B16",
            {"position_embedding": "none", "position_placement": "shared"},
            "has none.*'shared'",
        ),
        (
            "ViT_B16",
            {"position_embedding": "relative", "position_placement": "every_layer"},
            "has none",
        ),
        (
            "ResNet50x1",
            {"position_placement": "shared"},
            "no options for position embeddings.*'shared'",
        ),
    ],
)
def test_a_place_without_a_table_is_refused(row, options, message):
    with pytest.raises(ValueError, match=message):
        cost.parameters(ROWS[row], **options)


def test_an_axial_trunk_is_post_activation():
    with pytest.raises(ValueError, match="Axial units are post-activation"):
        cost.parameters(replace(RESNET_VARIANTS["AxialResNet50"], preactivation=True))


def test_what_reads_tokens_alone_has_no_parameters():
    row = VIT_VARIANTS["ViT_B16"]
    none, gap, token = (
        cost.parameters(row, classes=None, classifier=classifier)
        for classifier in ("none", "gap", "token")
    )
    assert none == gap == token - 2 * 768  # the class token and its position


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
    assert (
        round(cost.macs(VIT_VARIANTS[name], (size, size), classes=None) / 1e9, digits or None)
        == giga
    )


@pytest.mark.parametrize(("mlp", "kernels"), [("gelu", 2), ("swiglu", 3)])
def test_macs_of_one_block_by_hand(mlp, kernels):
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, mlp_dim=6, num_heads=2, patch_size=2, mlp=mlp)
    # Two patches and a class token: four projections of 4 x 4, an MLP of kernels of 4 x 6, scores
    # and sums over three tokens.
    per_block = cost.macs(replace(tiny, depth=3), (2, 4)) - cost.macs(
        replace(tiny, depth=2), (2, 4)
    )
    assert per_block == 3 * (4 * 16 + kernels * 24) + 2 * 9 * 4


def test_macs_of_the_embedding_and_the_head_by_hand():
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, depth=0, patch_size=2)
    assert cost.macs(tiny, (2, 4), classes=5, representation_size=3) == 2 * 12 * 4 + 4 * 3 + 3 * 5


def test_macs_of_attention_pooling_by_hand():
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=4, mlp_dim=6, depth=0, patch_size=2)
    pooling = cost.macs(tiny, (2, 4), classifier="map") - cost.macs(tiny, (2, 4), classifier="gap")
    # Query and output of one token, keys and values of two, scores and sums over two, the MLP of
    # one.
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
        for key, shape in synthetic_checkpoint.array_shapes(
            variant, image_size=size, classes=None
        ).items()
    }
    witness.forward(arrays, np.zeros((1, *size, 3)), variant)
    blocks = 0
    if name in VIT_VARIANTS:
        blocks = cost.macs(variant, size, classes=None) - cost.macs(
            replace(variant, depth=0), size, classes=None
        )
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
    assert cost.training_exaflops(cost.macs(VIT_VARIANTS[name]), images) == pytest.approx(
        exaflops, rel=4e-4
    )


# Table 6 as printed, and how far from it we are. Its last digit is worth 1.8 % for 55 and 2 % for
# 50.
TOLERANCES = {
    **dict.fromkeys(("ViT_B16", "ViT_L32", "ViT_L16", "ViT_H14"), 0.0015),
    **dict.fromkeys(("R50_ViT_B32", "R50_ViT_B16", "R50_ViT_L32", "R50_ViT_L16"), 0.005),
    **dict.fromkeys(
        ("ResNet50x2", "ResNet101x1", "ResNet152x1", "ResNet152x2", "ResNet200x3"), 0.007
    ),
    **dict.fromkeys(("ResNet50x1", "ViT_B32"), 0.025),
}


def test_pretraining_compute_reproduces_every_row_of_table_6_but_one():
    rows = paper.published(table="Table 6", dataset="imagenet")
    assert {row.model for row in rows} == TOLERANCES.keys()
    off = {}
    for row in rows:
        found = cost.pretraining_exaflops(ROWS[row.model], epochs=row.epochs)
        if found != pytest.approx(row.exaflops, rel=TOLERANCES[row.model]):
            off[row.model, row.epochs] = row.exaflops, round(found)
    assert off == {("R50_ViT_L16", 7): (859, 833)}  # half of the 1668 of 14 epochs is 834


def test_pretraining_compute_by_hand():
    # B/32: 49 patches, 50 tokens, 12 blocks; the tanh layer and the classes of JFT-300M.
    macs = 49 * 3072 * 768 + 12 * (50 * 12 * 768**2 + 2 * 50**2 * 768) + 768 * 768 + 768 * 18_291
    expected = 6 * macs * 7 * 303_021_387 / 1e18
    assert cost.pretraining_exaflops(VIT_VARIANTS["ViT_B32"], epochs=7) == pytest.approx(
        expected, rel=1e-12
    )
    half = cost.pretraining_exaflops(VIT_VARIANTS["ViT_B32"], epochs=3.5)
    assert half == pytest.approx(expected / 2, rel=1e-12)


def test_pretraining_on_other_data_at_another_size():
    row = VIT_VARIANTS["ViT_S16"]
    per_image = cost.macs(row, (160, 192), classes=1000, representation_size=384)
    expected = 6 * per_image * 300 * 1_281_167 / 1e18
    found = cost.pretraining_exaflops(
        row, epochs=300, images=1_281_167, classes=1000, image_size=(160, 192)
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_pretrained_resnet_has_no_tanh_layer():
    row = RESNET_VARIANTS["ResNet50x1"]
    macs = cost.macs(row, classes=18_291, count_padding=False)
    assert (
        cost.pretraining_exaflops(row, epochs=7)
        == cost.training_exaflops(macs, 1) * 303_021_387 * 7
    )


@pytest.mark.parametrize(
    ("length", "size", "stride", "is_centred", "taps"),
    [
        (5, 3, 1, False, 2 + 3 + 3 + 3 + 2),
        (4, 3, 2, False, 3 + 2),  # "same" pads the end first
        (4, 3, 2, True, 2 + 3),  # BiT pads both ends
        (5, 3, 2, False, 2 + 3 + 2),
        (8, 7, 2, False, 5 + 7 + 6 + 4),
        (8, 7, 2, True, 4 + 6 + 7 + 5),
        (1, 7, 2, False, 1),
        (2, 3, 1, False, 2 + 2),
        (6, 1, 2, False, 3),
    ],
)
def test_products_on_padding_by_hand(length, size, stride, is_centred, taps):
    convolution = Convolution("conv", size, 2, 5, (length, 4), stride, is_centred)
    across = (
        Convolution("conv", size, 1, 1, (4, 4), stride, is_centred).macs(count_padding=False) ** 0.5
    )
    assert convolution.macs(count_padding=False) == taps * round(across) * 2 * 5
    assert (
        convolution.macs() == math.ceil(length / stride) * math.ceil(4 / stride) * size**2 * 2 * 5
    )


def test_the_share_of_padding_fades_with_the_size_of_the_image():
    row, size = RESNET_VARIANTS["ResNet50x1"], (32 * 512, 32 * 512)
    assert cost.macs(row, size, count_padding=False) / cost.macs(row, size) == pytest.approx(
        1, abs=2e-3
    )
    assert cost.macs(row, (32, 32), count_padding=False) / cost.macs(row, (32, 32)) < 0.81


@pytest.mark.parametrize("name", ["AxialViT_B16", "AxialViT_B32"])
def test_axial_macs_by_hand(name):
    row = VIT_VARIANTS[name]
    rows, columns = 96 // row.patch_size, 160 // row.patch_size
    # Twice the projections and MLPs of a block; scores along one axis, then along the other; no
    # class token.
    block = rows * columns * (2 * 12 * 768**2 + 2 * 768 * (rows + columns))
    expected = rows * columns * 3 * row.patch_size**2 * 768 + 12 * block + 768 * 1000
    assert cost.macs(row, (96, 160)) == expected
    assert cost.macs(row, (96, 160), position_embedding="relative") - expected == (
        12 * rows * columns * 768 * (2 * rows - 1 + 2 * columns - 1)
    )


def test_an_axial_resnet_costs_more_than_it_saves():
    axial, plain = RESNET_VARIANTS["AxialResNet50"], RESNET_VARIANTS["ResNet50x1"]
    # Stage, side of the map before the stride, after it, units of that kind.
    kinds = [
        (64, 56, 56, 3),
        (128, 56, 28, 1),
        (128, 28, 28, 3),
        (256, 28, 14, 1),
        (256, 14, 14, 5),
    ]
    kinds += [(512, 14, 7, 1), (512, 7, 7, 2)]
    more = sum(
        units
        * (
            2 * before**2 * (4 * f * f + 2 * before * f + (2 * before - 1) * f)
            - after**2 * 9 * f * f
        )
        for f, before, after, units in kinds
    )
    assert cost.macs(axial) - cost.macs(plain) == more > 0


def test_relative_positions_by_hand():
    row = replace(VIT_VARIANTS["ViT_Ti16"], width=4, mlp_dim=6, num_heads=2, patch_size=2, depth=3)
    # Two patches and a class token: five offsets of two numbers; each of three queries of width 4
    # meets them all.
    none, relative = (
        (
            cost.parameters(row, image_size=(2, 4), position_embedding=kind),
            cost.macs(row, (2, 4), position_embedding=kind),
        )
        for kind in ("none", "relative")
    )
    assert (relative[0] - none[0], relative[1] - none[1]) == (3 * 5 * 2, 3 * 3 * 5 * 4)


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos2d", "none"])
def test_positions_that_are_added_cost_no_products(kind):
    row = VIT_VARIANTS["ViT_B16"]
    assert cost.macs(row, position_embedding=kind) == cost.macs(row)


def test_weight_bytes_of_each_type():
    assert [
        cost.weight_bytes(10, dtype) for dtype in ("float32", "bfloat16", "float16", "int8")
    ] == [40, 20, 20, 10]


def test_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="`dtype` must be one of .* Received: dtype='float8'"):
        cost.weight_bytes(10, "float8")


def test_activation_peak_of_few_tokens_is_the_mlp():
    # 50 tokens of 768, and four tensors of the hidden layer's 3072: the tanh form of GELU, three in
    # its exact form.
    row = VIT_VARIANTS["ViT_B32"]
    assert cost.activation_bytes(row) == 4 * 50 * (768 + 4 * 3072)
    assert cost.activation_bytes(replace(row, gelu="exact")) == 4 * 50 * (768 + 3 * 3072)
    # With a gate: the gate, its sigmoid, the product of both, and what that multiplies. The input is
    # still needed.
    assert cost.activation_bytes(replace(row, mlp="swiglu")) == 4 * 50 * (2 * 768 + 4 * 3072)


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
def test_activation_peak_of_many_tokens_is_the_softmax(dtype, itemsize):
    # Twelve heads of 577 x 577 scores, before and after, in float32 at least; two tensors of
    # tokens.
    expected = max(itemsize, 4) * 2 * 12 * 577**2 + itemsize * 2 * 577 * 768
    assert cost.activation_bytes(VIT_VARIANTS["ViT_B16"], (384, 384), dtype=dtype) == expected


def test_activation_peak_of_a_resnet_is_its_first_stage():
    # Three maps of 56 x 56 x 256, more than the root's image and two maps of 112 x 112 x 64.
    assert cost.activation_bytes(RESNET_VARIANTS["BiT_R50x1"]) == 4 * 3 * 56 * 56 * 256


def test_activation_peak_of_a_narrow_resnet_is_a_norm_in_float32():
    # The map of 56 x 56 x 256 itself, in float32, its squared differences and the means of its
    # rows.
    found = cost.activation_bytes(RESNET_VARIANTS["BiT_R50x1"], dtype="bfloat16")
    assert found == (2 + 4 + 4) * 56 * 56 * 256 + 4 * 56 * 256


def test_activation_peak_of_a_hybrid_is_that_of_its_stem():
    row = VIT_VARIANTS["R50_ViT_B32"]
    assert row.stem is not None
    assert cost.activation_bytes(row) == cost.activation_bytes(row.stem)


def test_training_keeps_what_every_block_needs():
    row = VIT_VARIANTS["ViT_B16"]
    one, two = (cost.activation_bytes(replace(row, depth=depth), training=True) for depth in (1, 2))
    # Two norms of three, the inputs of q, k, v, their outputs, of the projection, of the MLP; GELU;
    # scores twice.
    assert two - one == 4 * (197 * (2 * 3 + 1 + 3 + 1 + 1) * 768 + 197 * 6 * 3072 + 2 * 12 * 197**2)
    assert cost.activation_bytes(row, training=True) > 12 * (two - one)


def test_training_keeps_what_a_unit_of_a_resnet_needs():
    row = RESNET_VARIANTS["ResNet50x1"]
    root, unit = (
        cost.activation_bytes(replace(row, units=units), training=True) for units in ((), (1,))
    )
    # The inputs of three convolutions, 64 channels each; two tensors for each norm, also that of the
    # projection; a byte for each input of a ReLU.
    outputs = 64 + 64 + 256
    assert unit - root == 56 * 56 * (4 * 3 * 64 + 4 * 2 * (outputs + 256) + outputs)


def test_half_precision_keeps_norms_and_softmax_in_float32():
    row = VIT_VARIANTS["ViT_B16"]
    full, half = (
        cost.activation_bytes(row, training=True, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    in_float32 = 4 * (25 * 3 * 197 * 768 + 12 * 2 * 12 * 197**2)
    assert half - in_float32 == (full - in_float32) / 2


def test_activations_of_options_that_contradict_are_refused():
    with pytest.raises(ValueError, match="Axial attention has no class token"):
        cost.activation_bytes(VIT_VARIANTS["AxialViT_B16"], classifier="token")
    with pytest.raises(ValueError, match="must be a multiple of 16"):
        cost.activation_bytes(VIT_VARIANTS["ViT_B16"], (225, 224), training=True)


def test_cost_needs_no_framework():
    files = sorted(Path(cost.__file__).parent.glob("*.py"))
    assert len(files) == 6
    for file in files:
        imports = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        modules = {
            name
            for node in imports
            for name in (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
        }
        facts = {
            "keras_vit.options",
            "keras_vit.variants",
            *(f"keras_vit.cost.{other.stem}" for other in files),
        }
        assert modules <= {"math", "collections.abc", "typing"} | facts


def test_a_stem_rounds_sides_up_as_its_strides_do():
    assert map_size(VIT_VARIANTS["R50_ViT_B16"], (50, 34)) == (4, 3)
    assert map_size(VIT_VARIANTS["ViT_B16"], (50, 34)) == (50, 34)
