"""Our names and the canonical ones: every row there and back."""

import numpy as np
import pytest
from numbered_arrays import (
    VARIANTS,
    assert_each_number_once,
    assert_same,
    heads_of,
    numbered,
    shapes_of,
    tiny,
    values,
)

from keras_vit.weights.dialects import from_canonical, to_canonical
from keras_vit.weights.variables import from_keras, to_keras


@pytest.mark.parametrize("name", VARIANTS)
def test_ours_and_back_is_the_identity(name):
    arrays = numbered(name)
    ours = to_keras(arrays)
    assert len(ours) == len(arrays)
    assert_each_number_once(ours, arrays)
    assert not any(
        path.startswith(("Transformer", "root_block", "norm-pre")) or "/unit" in path
        for path in ours
    )
    assert_same(from_keras(ours, heads_of(name)), arrays)


def test_our_names_of_a_vit():
    block = "encoderblock_0/"
    assert shapes_of(to_keras(tiny(representation_size=7))) == {
        "embedding/kernel": (8, 8, 3, 6),
        "embedding/bias": (6,),
        "class_token/cls": (1, 1, 6),
        "posembed_input/pos_embedding": (1, 5, 6),
        f"{block}attention_norm/gamma": (6,),
        f"{block}attention_norm/beta": (6,),
        f"{block}attention/query/kernel": (6, 6),
        f"{block}attention/query/bias": (6,),
        f"{block}attention/key/kernel": (6, 6),
        f"{block}attention/key/bias": (6,),
        f"{block}attention/value/kernel": (6, 6),
        f"{block}attention/value/bias": (6,),
        f"{block}attention/out/kernel": (6, 6),
        f"{block}attention/out/bias": (6,),
        f"{block}mlp_norm/gamma": (6,),
        f"{block}mlp_norm/beta": (6,),
        f"{block}mlp/dense_0/kernel": (6, 10),
        f"{block}mlp/dense_0/bias": (10,),
        f"{block}mlp/dense_1/kernel": (10, 6),
        f"{block}mlp/dense_1/bias": (6,),
        "encoder_norm/gamma": (6,),
        "encoder_norm/beta": (6,),
        "pre_logits/kernel": (6, 7),
        "pre_logits/bias": (7,),
        "predictions/kernel": (7, 5),
        "predictions/bias": (5,),
    }


def test_our_names_of_attention_pooling():
    ours = to_keras(tiny(classifier="map"))
    assert {
        path for path in ours if path.startswith("map_head/") and "/attention/" not in path
    } == {
        "map_head/probe",
        "map_head/mlp_norm/gamma",
        "map_head/mlp_norm/beta",
        "map_head/mlp/dense_0/kernel",
        "map_head/mlp/dense_0/bias",
        "map_head/mlp/dense_1/kernel",
        "map_head/mlp/dense_1/bias",
    }
    assert ours["map_head/attention/out/kernel"].shape == (6, 6)


def test_our_names_of_a_hybrid():
    ours = to_keras(numbered("R50_ViT_B16"))
    assert {
        path
        for path in ours
        if path.startswith(("conv_root", "gn_root", "block1_unit1/", "block3_unit9/"))
    } == {
        "conv_root/kernel",
        "gn_root/gamma",
        "gn_root/beta",
        *(f"block{unit}/conv{i}/kernel" for unit in ("1_unit1", "3_unit9") for i in (1, 2, 3)),
        *(
            f"block{unit}/gn{i}/{v}"
            for unit in ("1_unit1", "3_unit9")
            for i in (1, 2, 3)
            for v in ("gamma", "beta")
        ),
        "block1_unit1/conv_proj/kernel",
        "block1_unit1/gn_proj/gamma",
        "block1_unit1/gn_proj/beta",
    }


def test_our_names_of_bit():
    ours = to_keras(numbered("BiT_R101x1"))
    assert {
        "conv_root/kernel",
        "norm_pre_head/gamma",
        "block3_unit23/gn1/beta",
        "predictions/kernel",
    } <= set(ours)
    assert not any(path.startswith(("gn_root", "root_block")) for path in ours)


@pytest.mark.parametrize(
    ("canonical", "ours"),
    [
        ("Transformer/posembed_input/row_embedding", "posembed_input/row_embedding"),
        ("Transformer/posembed_input/column_embedding", "posembed_input/column_embedding"),
        ("Transformer/posembed_input/prefix_embedding", "posembed_input/prefix_embedding"),
        ("Transformer/posembed_11/pos_embedding", "posembed_11/pos_embedding"),
        ("Transformer/posembed_3/column_embedding", "posembed_3/column_embedding"),
        (
            "Transformer/encoderblock_2/MultiHeadDotProductAttention_0/relative_embedding",
            "encoderblock_2/attention/relative_embedding",
        ),
    ],
)
def test_extensions_have_names_of_ours_and_of_google(canonical, ours):
    arrays = {canonical: values((3, 2))}
    assert_same(to_keras(arrays), {ours: arrays[canonical]})
    assert_same(from_keras({ours: arrays[canonical]}, 2), arrays)
    assert_same(to_canonical(from_canonical(arrays, "google")), arrays)


def test_unknown_names_pass_to_our_side():
    strange = {"decoder/kernel": values((2, 2))}
    assert_same(to_keras(tiny() | strange), to_keras(tiny()) | strange)


def test_unknown_names_of_ours_are_refused():
    with pytest.raises(
        ValueError,
        match=r"cannot be stored in a checkpoint: adapter/kernel, block1_unit01/conv1/kernel\. ",
    ):
        from_keras(
            to_keras(tiny())
            | {"adapter/kernel": values((1,)), "block1_unit01/conv1/kernel": values((1,))},
            2,
        )


def test_our_attention_needs_the_head_count():
    with pytest.raises(ValueError, match="`num_heads` must be an integer"):
        from_keras(to_keras(tiny()), None)


def test_our_names_of_axial_models():
    """Each half of a block has all that a block has; each attention of a unit has its table."""
    arrays = numbered("AxialViT_B32")
    ours = to_keras(arrays)
    assert sum(path.startswith("encoderblock_11/row/") for path in ours) == 16
    assert {path.replace("/column/", "/row/") for path in ours if "/column/" in path} == {
        path for path in ours if "/row/" in path
    }
    assert_same(
        {path: ours[path] for path in ours if path.startswith("encoderblock_3/row/mlp/dense_0/")},
        {
            f"encoderblock_3/row/mlp/dense_0/{x}": arrays[
                f"Transformer/encoderblock_3/row/MlpBlock_0/Dense_0/{x}"
            ]
            for x in ("kernel", "bias")
        },
    )
    units = numbered("AxialResNet50")
    ours = to_keras(units)
    query = ours["block4_unit3/column/query/kernel"]
    np.testing.assert_array_equal(
        units["block4/unit3/column/query/kernel"][:, 7, 0], query[:, 7 * query.shape[1] // 8]
    )
    assert "block1_unit1/row/relative_embedding" in ours and "block1_unit1/conv2/kernel" not in ours


def test_axial_names_are_those_of_files_of_ours():
    arrays = numbered("AxialViT_B32")
    assert "Transformer/encoderblock_3/row/LayerNorm_0/scale" in from_canonical(arrays, "google")
    assert_same(to_canonical(from_canonical(arrays, "google"), 12), arrays)


def test_the_heads_of_a_unit_are_not_those_of_the_model():
    """An axial unit has eight heads whatever the model around it has."""
    ours = {
        "block1_unit1/row/query/kernel": values((16, 16)),
        "encoderblock_0/attention/query/kernel": values((6, 6)),
    }
    arrays = from_keras(ours, 3)
    assert {name: x.shape for name, x in arrays.items()} == {
        "block1/unit1/row/query/kernel": (16, 8, 2),
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel": (6, 3, 2),
    }
    assert_same(to_keras(arrays), ours)
    assert_same(to_canonical(arrays, 3), arrays)
