"""Every layout in which Google published, from files made by hand; and recognition by shapes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from synthetic_checkpoint import array_shapes

from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights.layouts import family, identify, is_google, to_canonical, to_published

VARIANTS = VIT_VARIANTS | RESNET_VARIANTS
POSITIONS = "Transformer/posembed_input/pos_embedding"

# One block as published: name before linen, canonical name, shape. Width 6, 2 heads, MLP 8.
BLOCK = (
    ("LayerNorm_0/scale", "LayerNorm_0/scale", (6,)),
    ("LayerNorm_0/bias", "LayerNorm_0/bias", (6,)),
    (
        "MultiHeadDotProductAttention_1/query/kernel",
        "MultiHeadDotProductAttention_0/query/kernel",
        (6, 2, 3),
    ),
    (
        "MultiHeadDotProductAttention_1/query/bias",
        "MultiHeadDotProductAttention_0/query/bias",
        (2, 3),
    ),
    (
        "MultiHeadDotProductAttention_1/key/kernel",
        "MultiHeadDotProductAttention_0/key/kernel",
        (6, 2, 3),
    ),
    ("MultiHeadDotProductAttention_1/key/bias", "MultiHeadDotProductAttention_0/key/bias", (2, 3)),
    (
        "MultiHeadDotProductAttention_1/value/kernel",
        "MultiHeadDotProductAttention_0/value/kernel",
        (6, 2, 3),
    ),
    (
        "MultiHeadDotProductAttention_1/value/bias",
        "MultiHeadDotProductAttention_0/value/bias",
        (2, 3),
    ),
    (
        "MultiHeadDotProductAttention_1/out/kernel",
        "MultiHeadDotProductAttention_0/out/kernel",
        (2, 3, 6),
    ),
    ("MultiHeadDotProductAttention_1/out/bias", "MultiHeadDotProductAttention_0/out/bias", (6,)),
    ("LayerNorm_2/scale", "LayerNorm_1/scale", (6,)),
    ("LayerNorm_2/bias", "LayerNorm_1/bias", (6,)),
    ("MlpBlock_3/Dense_0/kernel", "MlpBlock_0/Dense_0/kernel", (6, 8)),
    ("MlpBlock_3/Dense_0/bias", "MlpBlock_0/Dense_0/bias", (8,)),
    ("MlpBlock_3/Dense_1/kernel", "MlpBlock_0/Dense_1/kernel", (8, 6)),
    ("MlpBlock_3/Dense_1/bias", "MlpBlock_0/Dense_1/bias", (6,)),
)
ENDS = {
    "cls": (1, 1, 6),
    "embedding/kernel": (2, 2, 3, 6),
    "embedding/bias": (6,),
    POSITIONS: (1, 5, 6),
    "Transformer/encoder_norm/scale": (6,),
    "Transformer/encoder_norm/bias": (6,),
    "pre_logits/kernel": (6, 6),
    "pre_logits/bias": (6,),
    "head/kernel": (6, 4),
    "head/bias": (4,),
}
# One unit of BiT as published, and what it is called now. Two groups of channels, 4 in and 8 out.
BIT = (
    ("resnet/root_block/standardized_conv2d/kernel", "root_block/conv_root/kernel", (7, 7, 3, 4)),
    ("resnet/block1/unit01/a/group_norm/gamma", "block1/unit01/gn1/scale", (4,)),
    ("resnet/block1/unit01/a/group_norm/beta", "block1/unit01/gn1/bias", (4,)),
    (
        "resnet/block1/unit01/a/standardized_conv2d/kernel",
        "block1/unit01/conv1/kernel",
        (1, 1, 4, 2),
    ),
    (
        "resnet/block1/unit01/a/proj/standardized_conv2d/kernel",
        "block1/unit01/conv_proj/kernel",
        (1, 1, 4, 8),
    ),
    ("resnet/block1/unit01/b/group_norm/gamma", "block1/unit01/gn2/scale", (2,)),
    ("resnet/block1/unit01/b/group_norm/beta", "block1/unit01/gn2/bias", (2,)),
    (
        "resnet/block1/unit01/b/standardized_conv2d/kernel",
        "block1/unit01/conv2/kernel",
        (3, 3, 2, 2),
    ),
    ("resnet/block1/unit01/c/group_norm/gamma", "block1/unit01/gn3/scale", (2,)),
    ("resnet/block1/unit01/c/group_norm/beta", "block1/unit01/gn3/bias", (2,)),
    (
        "resnet/block1/unit01/c/standardized_conv2d/kernel",
        "block1/unit01/conv3/kernel",
        (1, 1, 2, 8),
    ),
    ("resnet/group_norm/gamma", "norm-pre-head/scale", (8,)),
    ("resnet/group_norm/beta", "norm-pre-head/bias", (8,)),
    ("resnet/head/conv2d/bias", "head/bias", (4,)),
)


def values(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def before_linen(depth=2):
    """A small ViT as the published files spell it."""
    file = {name: values(shape, seed) for seed, (name, shape) in enumerate(ENDS.items())}
    for i in range(depth):
        for seed, (name, _, shape) in enumerate(BLOCK):
            file[f"Transformer/encoderblock_{i}/{name}"] = values(shape, 100 * i + seed)
    return file


def linen(depth=2):
    """The same arrays under the names of today."""
    today = {}
    for name, x in before_linen(depth).items():
        for old, new, _ in BLOCK:
            name = name.replace(old, new) if name.endswith(f"/{old}") else name
        today[name] = x
    return today


def bit():
    """A BiT of one unit as published, and the same arrays under the names of today."""
    file = {old: values(shape, seed) for seed, (old, _, shape) in enumerate(BIT)}
    today = {new: file[old] for old, new, _ in BIT}
    kernel = values((8, 4))
    return file | {"resnet/head/conv2d/kernel": kernel.reshape(1, 1, 8, 4)}, today | {
        "head/kernel": kernel
    }


def assert_same(received, expected):
    assert sorted(received) == sorted(expected)
    for name, x in expected.items():
        assert received[name].dtype == x.dtype, name
        np.testing.assert_array_equal(received[name], x, err_msg=name, strict=True)


def small(row):
    """Shapes of a row with all widths divided by sixteen."""
    shapes = array_shapes(row, classes=16 * 5)
    return {
        name: shape if name == POSITIONS else tuple(n // 16 if n >= 64 else n for n in shape)
        for name, shape in shapes.items()
    }


# --- the layouts


def test_counters_before_linen():
    assert_same(to_canonical(before_linen()), linen())


def test_linen_counters_are_canonical():
    assert_same(to_canonical(linen()), linen())


def test_optimizer_checkpoint_loses_wrapper_and_slots():
    file = {f"opt/target/{name}": x for name, x in before_linen().items()}
    file |= {f"opt/state/param_states/{name}/momentum": x for name, x in before_linen().items()}
    assert_same(to_canonical(file | {"opt/state/step": np.array(20_000)}), linen())


def test_optimizer_state_beside_bare_names_is_dropped():
    assert_same(to_canonical(linen() | {"opt/state/step": np.array(7)}), linen())


def test_training_checkpoint_of_big_vision_loses_wrapper_slots_and_timers():
    file = {f"params/{name}": x for name, x in linen().items()}
    file |= {f"opt/0/mu/{name}": x for name, x in linen().items()}
    assert_same(
        to_canonical(file | {"opt/0/count": np.array(3), "chrono/accum_train_time": np.array(1.5)}),
        linen(),
    )


def test_image_tower_loses_its_text_tower():
    file = {f"params/img/{name}": x for name, x in linen().items()}
    file |= {
        "params/txt/Embed_0/embedding": values((9, 6)),
        "params/t": values((1,)),
        "params/b": values((1,)),
    }
    assert_same(to_canonical(file), linen())


@pytest.mark.parametrize(
    "wrapper", ["params/", "params/img/", "opt/target/params/", "params/opt/target/"]
)
def test_wrappers_wrap_any_layout(wrapper):
    assert_same(to_canonical({wrapper + name: x for name, x in before_linen().items()}), linen())
    published_bit, today = bit()
    assert_same(to_canonical({wrapper + name: x for name, x in published_bit.items()}), today)


@pytest.mark.parametrize("position", [0, 1], ids=["before linen", "linen"])
def test_stacked_blocks_are_split_along_the_first_axis(position):
    blocks = {
        f"Transformer/encoderblock/{row[position]}": np.stack(
            [linen()[f"Transformer/encoderblock_{i}/{row[1]}"] for i in range(2)]
        )
        for row in BLOCK
    }
    ends = {name: x for name, x in linen().items() if "encoderblock" not in name}
    assert_same(to_canonical(blocks | ends), linen())


def test_root_position_table_gets_a_row_of_zeros_for_the_class_token():
    file = linen()
    table = file.pop(POSITIONS)
    received = to_canonical(file | {"pos_embedding": table[:, 1:]})[POSITIONS]
    assert received.shape == (1, 5, 6) and received.dtype == np.float32
    np.testing.assert_array_equal(received[:, 0], np.zeros((1, 6)))
    np.testing.assert_array_equal(received[:, 1:], table[:, 1:])


def test_root_position_table_without_class_token_stays():
    table = values((1, 4, 6))
    assert_same(to_canonical({"pos_embedding": table}), {POSITIONS: table})


def test_position_table_in_the_encoder_stays_whole():
    table = values((1, 5, 6))
    file = {"Transformer/pos_embedding": table, "cls": values((1, 1, 6))}
    np.testing.assert_array_equal(to_canonical(file)[POSITIONS], table)


@pytest.mark.parametrize(
    "norm", ["gn_root", "block1/unit1/gn3", "block1/unit1/gn_proj", "norm-pre-head"]
)
def test_group_norms_of_four_axes_become_vectors(norm):
    vector = values((8,))
    assert_same(
        to_canonical({f"{norm}/scale": vector.reshape(1, 1, 1, 8)}), {f"{norm}/scale": vector}
    )


def test_hybrid_names_are_canonical():
    file = {
        "conv_root/kernel": values((7, 7, 3, 4)),
        "block1/unit2/conv1/kernel": values((1, 1, 8, 2)),
    }
    assert_same(to_canonical(file), file)


def test_published_bit():
    file, today = bit()
    assert_same(to_canonical(file), today)


def test_numbered_convolutions_of_bit():
    file, today = bit()
    numbered = {
        name.replace("standardized_conv2d", f"standardized_conv2d_{number}"): x
        for number, (name, x) in enumerate(file.items())
    }
    assert_same(to_canonical(numbered), today)


def test_bit_of_big_vision():
    _, today = bit()
    file = {
        name: x.reshape(1, 1, 1, -1) if "gn" in name or "norm" in name else x
        for name, x in today.items()
    }
    assert_same(to_canonical(file), today)


def test_attention_pooling_has_no_counters_to_change():
    file = {
        "MAPHead_0/LayerNorm_0/scale": values((6,)),
        "MAPHead_0/MlpBlock_0/Dense_0/bias": values((8,)),
    }
    assert_same(to_canonical(file), file)
    assert_same(to_published(file), file)


# --- what holds for all of them


@pytest.mark.parametrize("seed", range(3))
def test_order_of_the_file_does_not_matter(seed):
    for file in (
        before_linen(),
        bit()[0],
        {f"opt/target/{name}": x for name, x in linen().items()},
    ):
        names = list(file)
        random.Random(seed).shuffle(names)
        assert_same(to_canonical({name: file[name] for name in names}), to_canonical(file))


def test_input_is_not_modified():
    file = {f"params/{name}": x for name, x in before_linen().items()} | {
        "opt/0/count": np.array(3)
    }
    copies = {name: x.copy() for name, x in file.items()}
    to_canonical(file)
    to_published(linen())
    assert_same(file, copies)


@pytest.mark.parametrize("file", [before_linen(), bit()[0]], ids=["ViT", "BiT"])
def test_nothing_is_copied(file):
    assert all(
        any(np.shares_memory(x, source) for source in file.values())
        for x in to_canonical(file).values()
    )
    assert all(
        any(np.shares_memory(x, source) for source in file.values())
        for x in to_published(to_canonical(file)).values()
    )


def test_stacked_blocks_are_views():
    stacked = values((2, 6))
    received = to_canonical({"Transformer/encoderblock/LayerNorm_0/bias": stacked})
    assert all(np.shares_memory(x, stacked) for x in received.values())


def test_unknown_names_pass_unchanged():
    file = {
        "resnet/block1/unit01/d/standardized_conv2d_3/kernel": values((1,)),
        "extra/thing": values((2,)),
    }
    assert_same(to_canonical(linen() | file), linen() | file)
    assert_same(to_published(file), file)


@pytest.mark.parametrize("file", [before_linen(), bit()[0]], ids=["ViT", "BiT"])
def test_published_files_come_back_as_they_were(file):
    assert_same(to_published(to_canonical(file)), file)


@pytest.mark.parametrize("name", VARIANTS)
def test_canonical_arrays_come_back_as_they_were(name):
    arrays = {
        key: values(shape, seed) for seed, (key, shape) in enumerate(small(VARIANTS[name]).items())
    }
    spelt = to_published(arrays)
    assert len(spelt) == len(arrays)
    assert_same(to_canonical(spelt), arrays)


# --- what is refused


def test_mixed_counters_are_refused():
    file = linen()
    block = "Transformer/encoderblock_1/"
    file[f"{block}MlpBlock_3/Dense_0/bias"] = file.pop(f"{block}MlpBlock_0/Dense_0/bias")
    with pytest.raises(
        ValueError,
        match=r"numbered in both ways: Transformer/encoderblock_1/LayerNorm_1, .*encoderblock_1/MlpB",
    ):
        to_canonical(file)


def test_blocks_may_differ_in_their_counters():
    file = {
        f"Transformer/encoderblock_{i}/{row[i]}": values(row[2]) for i in (0, 1) for row in BLOCK
    }
    assert len(to_canonical(file)) == 2 * len(BLOCK)


def test_two_arrays_for_one_name_are_refused():
    file, _ = bit()
    name = "resnet/root_block/standardized_conv2d"
    with pytest.raises(
        ValueError, match=rf"root_block/conv_root/kernel \(from {name}/kernel, {name}_5/kernel\)"
    ):
        to_canonical(file | {f"{name}_5/kernel": file[f"{name}/kernel"]})


def test_two_position_tables_are_refused():
    with pytest.raises(ValueError, match=f"{POSITIONS} .from {POSITIONS}, pos_embedding"):
        to_canonical(linen() | {"pos_embedding": values((1, 4, 6))})


def test_wrapped_and_bare_names_together_are_refused():
    with pytest.raises(ValueError, match=r"head/bias \(from head/bias, params/head/bias\)"):
        to_canonical({"head/bias": values((4,)), "params/head/bias": values((4,))})


@pytest.mark.parametrize("shape", [(3, 6), ()])
def test_stacked_blocks_of_unequal_depth_are_refused(shape):
    stack = "Transformer/encoderblock/LayerNorm_0"
    with pytest.raises(
        ValueError,
        match=rf"leading axis.*{stack}/bias \(2, 6\), {stack}/scale \({'3, 6' if shape else ''}\)",
    ):
        to_canonical({f"{stack}/bias": np.zeros((2, 6)), f"{stack}/scale": np.zeros(shape)})


def test_root_position_table_on_a_grid_is_refused():
    with pytest.raises(
        ValueError, match=r"`pos_embedding` must have the shape \(1, N, D\). Received: \(2, 2, 6\)"
    ):
        to_canonical({"pos_embedding": values((2, 2, 6)), "cls": values((1, 1, 6))})


# --- recognition


@pytest.mark.parametrize(
    "name",
    [
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias",
        "opt/target/Transformer/encoder_norm/bias",
        "params/img/Transformer/encoderblock/LayerNorm_0/bias",
        "resnet/block1/unit01/a/group_norm/beta",
        "root_block/conv_root/kernel",
        "block1/unit1/conv1/kernel",
    ],
)
def test_google_names_are_recognized(name):
    assert is_google(["something", name])


@pytest.mark.parametrize(
    "name",
    [
        "blocks.0.norm1.weight",
        "encoderblock_0/attention/query/kernel",
        "block1_unit1/gn1/gamma",
        "resnet.stem",
    ],
)
def test_other_names_are_not_taken_for_google(name):
    assert not is_google([name])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_row_is_identified_by_its_shapes(name):
    arrays = {
        key: np.broadcast_to(np.float32(0), shape)
        for key, shape in array_shapes(VARIANTS[name]).items()
    }
    assert identify(arrays) == name


@pytest.mark.parametrize(
    "options",
    [
        {"classifier": "gap"},
        {"classifier": "map"},
        {"representation_size": 768},
        {"classes": None},
        {"image_size": (384, 256)},
    ],
)
def test_head_and_image_size_play_no_part_in_identification(options):
    shapes = array_shapes(VIT_VARIANTS["ViT_B16"], **options)
    assert (
        identify({key: np.broadcast_to(np.float32(0), shape) for key, shape in shapes.items()})
        == "ViT_B16"
    )


def test_unknown_vit_is_described_with_its_nearest_rows():
    row = replace(VIT_VARIANTS["ViT_B16"], depth=3)
    arrays = {
        key: np.broadcast_to(np.float32(0), shape) for key, shape in array_shapes(row).items()
    }
    with pytest.raises(
        ValueError,
        match=r"width=768, depth=3, num_heads=12, mlp_dim=3072.*Nearest rows: ViT_B16 \(width",
    ):
        identify(arrays)


def test_unknown_resnet_is_described_with_its_nearest_rows():
    row = replace(RESNET_VARIANTS["BiT_R50x1"], units=(3, 4, 6, 4))
    arrays = {
        key: np.broadcast_to(np.float32(0), shape) for key, shape in array_shapes(row).items()
    }
    with pytest.raises(
        ValueError,
        match=r"units=\(3, 4, 6, 4\), width=64, preactivation=True.*Nearest rows: BiT_R50x1",
    ):
        identify(arrays)


def test_what_is_no_model_is_not_identified():
    with pytest.raises(ValueError, match="width=None, depth=0"):
        identify({})


@pytest.mark.parametrize("name", VARIANTS)
def test_every_row_is_of_one_family(name):
    row = VARIANTS[name]
    if name in RESNET_VARIANTS:
        expected = "bit" if row.preactivation else "resnet"
    else:
        expected = "vit" if row.stem is None else "hybrid" if row.stem.units else "stem"
    assert family(array_shapes(row)) == expected
