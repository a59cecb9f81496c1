"""The engine of renaming, on a table made up for the purpose."""

import numpy as np
import pytest

from keras_vit.weights.renaming import (
    Leaf,
    find_unknown_canonical,
    find_unknown_theirs,
    gather,
    join_sorted,
    make_rules,
    read,
    split_numbers,
    write,
)

LEAVES = {
    "plain": (Leaf(".w", "/kernel"), Leaf(".b", "/bias")),
    "turned": (Leaf(".w", "/kernel", (2, 2), lambda x, _: x.T, lambda x: x.T),),
    "heads": (
        Leaf(
            ".w",
            "/kernel",
            (1, 2),
            lambda x, num_heads: x.reshape(num_heads, -1),
            lambda x: x.reshape(-1),
        ),
    ),
}
RULES = make_rules(
    (
        ("blocks.{}.one", "encoderblock_{}/first", "plain"),
        ("turned", "sideways", "turned"),
        ("blocks.{}.both", "encoderblock_{}", "heads", ("/left", "/right")),
    ),
    LEAVES,
    offset=1,
)


def vector(*values):
    return np.array(values, "float32")


def test_reading_renames_and_shifts_the_block_number():
    assert list(read({"blocks.0.one.w": vector(1)}, RULES, 1)) == ["encoderblock_1/first/kernel"]


def test_writing_renames_and_shifts_the_block_number_back():
    assert list(write({"encoderblock_1/first/bias": vector(1)}, RULES)) == ["blocks.0.one.b"]


def test_prefix_stands_before_their_names():
    rules = make_rules((("one", "first", "plain"),), LEAVES, prefix="model.")
    assert list(read({"model.one.b": vector(1)}, rules, 1)) == ["first/bias"]


def test_reading_splits_a_fused_array_in_order():
    arrays = read({"blocks.2.both.w": vector(1, 2, 3, 4)}, RULES, num_heads=2)
    np.testing.assert_array_equal(arrays["encoderblock_3/left/kernel"], [[1], [2]])
    np.testing.assert_array_equal(arrays["encoderblock_3/right/kernel"], [[3], [4]])


def test_writing_joins_a_fused_array_whatever_the_order_of_its_parts():
    right, left = np.array([[3], [4]]), np.array([[1], [2]])
    arrays = write(
        {"encoderblock_3/right/kernel": right, "encoderblock_3/left/kernel": left}, RULES
    )
    np.testing.assert_array_equal(arrays["blocks.2.both.w"], [1, 2, 3, 4])


def test_reading_copies_nothing():
    fused = vector(1, 2, 3, 4)
    assert all(
        np.shares_memory(x, fused) for x in read({"blocks.0.both.w": fused}, RULES, 2).values()
    )


def test_unknown_names_pass_both_ways():
    arrays = {"elsewhere/kernel": vector(1)}
    assert read(arrays, RULES, 1) == write(arrays, RULES) == arrays


def test_unknown_names_are_told():
    assert find_unknown_theirs(["blocks.0.one.w", "blocks.0.two.w"], RULES) == ["blocks.0.two.w"]
    assert find_unknown_canonical(["sideways/kernel", "sideways/bias"], RULES) == ["sideways/bias"]


def test_numbers_are_taken_as_they_are_spelt():
    # Otherwise `unit1` and `unit01` would end up under one name, or one would come back as the
    # other.
    rules = make_rules((("unit{}", "unit{:02d}", "plain"),), LEAVES)
    assert find_unknown_canonical(
        ["unit01/bias", "unit1/bias", "unit11/bias", "unit011/bias"], rules
    ) == [
        "unit1/bias",
        "unit011/bias",
    ]


def test_wrong_ranks_are_all_reported():
    arrays = {
        "turned.w": vector(1),
        "blocks.4.both.w": np.zeros((2, 2)),
        "blocks.5.both.w": vector(1, 2),
    }
    with pytest.raises(
        ValueError, match=r"blocks\.4\.both\.w \(2, 2\) \(expected 1 axes\), turned\.w \(1,\)"
    ):
        read(arrays, RULES, 1)


def test_writing_a_wrong_rank_is_refused():
    with pytest.raises(ValueError, match=r"sideways/kernel \(1,\) \(expected 2 axes\)"):
        write({"sideways/kernel": vector(1)}, RULES)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"num_heads=3: blocks\.0\.both\.w \(8,\)"):
        read({"blocks.0.both.w": np.zeros(8)}, RULES, num_heads=3)


def test_fused_array_that_does_not_split_is_refused():
    with pytest.raises(ValueError, match=r"blocks\.0\.both\.w \(5,\) .*equal division"):
        read({"blocks.0.both.w": np.zeros(5)}, RULES, num_heads=1)


def test_missing_part_of_a_fused_array_is_refused():
    with pytest.raises(ValueError, match=r"blocks\.0\.both\.w \(1 of 2 parts\)"):
        write({"encoderblock_1/left/kernel": np.zeros((1, 1))}, RULES)


def test_two_arrays_under_one_name_are_refused():
    entries = [("a", "c", vector(1)), ("b", "c", vector(2)), ("d", "d", vector(3))]
    with pytest.raises(ValueError, match=r"get the same name: c \(from a, b\)\. "):
        gather(entries)


def test_reading_refuses_two_arrays_under_one_name():
    with pytest.raises(ValueError, match=r"sideways/kernel \(from sideways/kernel, turned\.w\)"):
        read({"turned.w": np.zeros((1, 1)), "sideways/kernel": np.zeros((1, 1))}, RULES, 1)


@pytest.mark.parametrize(
    ("name", "template", "numbers"),
    [
        (
            "Transformer/encoderblock_11/LayerNorm_0/bias",
            "Transformer/encoderblock_{}/LayerNorm_0/bias",
            ("11",),
        ),
        ("Transformer/posembed_3/pos_embedding", "Transformer/posembed_{}/pos_embedding", ("3",)),
        ("block4/unit03/conv2/kernel", "block{}/unit{}/conv2/kernel", ("4", "03")),
        ("block4_unit3/gn1/gamma", "block{}_unit{}/gn1/gamma", ("4", "3")),
        ("stages.0.blocks.12.conv1.weight", "stages.{}.blocks.{}.conv1.weight", ("0", "12")),
        ("encoder.layer.7.output.dense.bias", "encoder.layer.{}.output.dense.bias", ("7",)),
        ("layers.7.mlp.fc1.bias", "layers.{}.mlp.fc1.bias", ("7",)),
        ("map_head/mlp/dense_1/bias", "map_head/mlp/dense_1/bias", ()),
    ],
)
def test_only_numbers_of_blocks_and_units_are_split_off(name, template, numbers):
    assert split_numbers(name) == (template, numbers)


def test_long_lists_are_cut():
    assert join_sorted("dcba", limit=3) == "a, b, c and 1 more"
    assert join_sorted(["b", "a"]) == "a, b"
