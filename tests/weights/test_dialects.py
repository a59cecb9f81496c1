"""Foreign vocabularies and ours: every row there and back, and the arithmetic that a renaming must
keep.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from numbered_arrays import (
    BLOCK,
    POSITIONS,
    VARIANTS,
    assert_each_number_once,
    assert_same,
    heads_of,
    numbered,
    shapes_of,
    tiny,
    values,
)
from synthetic_checkpoint import array_shapes

from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights.dialects import detect, from_canonical, to_canonical
from keras_vit.weights.variables import from_keras, to_keras

# Axial attention is in no vocabulary but ours; Hugging Face's ViT has a plain patch embedding.
TIMM_ROWS = [name for name, row in VARIANTS.items() if not row.axial]
HUGGINGFACE_ROWS = [
    name for name in TIMM_ROWS if name in VIT_VARIANTS and VARIANTS[name].stem is None
]
EVERY_ROW = [("google", name) for name in VARIANTS] + [("timm", name) for name in TIMM_ROWS]
EVERY_ROW += [("huggingface", name) for name in HUGGINGFACE_ROWS]


# --- every row of the tables, every dialect that can express it


@pytest.mark.parametrize(("dialect", "name"), EVERY_ROW)
def test_there_and_back_is_the_identity(dialect, name):
    arrays = numbered(name)
    foreign = from_canonical(arrays, dialect)
    assert detect(foreign) == dialect
    assert_same(to_canonical(foreign, heads_of(name)), arrays)


@pytest.mark.parametrize(("dialect", "name"), EVERY_ROW)
def test_each_number_is_written_once(dialect, name):
    arrays = numbered(name)
    assert_each_number_once(from_canonical(arrays, dialect), arrays)


@pytest.mark.parametrize("name", TIMM_ROWS)
def test_all_vocabularies_meet(name):
    # ours -> canonical -> timm -> canonical -> google -> canonical -> ours
    ours = to_keras(numbered(name))
    arrays = from_keras(ours, heads_of(name))
    for dialect in ("timm", "google"):
        arrays = to_canonical(from_canonical(arrays, dialect), heads_of(name))
    assert_same(to_keras(arrays), ours)


def test_every_row_is_tested():
    assert {name for dialect, name in EVERY_ROW if dialect == "google"} == set(VARIANTS)
    for name in set(VARIANTS) - set(TIMM_ROWS):
        with pytest.raises(ValueError, match="timm cannot express.*column/.*Use google"):
            from_canonical(numbered(name), "timm")
    for name in set(VARIANTS) - set(HUGGINGFACE_ROWS):
        with pytest.raises(ValueError, match="huggingface cannot express"):
            from_canonical(numbered(name), "huggingface")


@pytest.mark.parametrize(
    "options", [{"classifier": "gap"}, {"classifier": "map"}, {"classes": None}]
)
@pytest.mark.parametrize("dialect", ["google", "timm"])
def test_other_heads_there_and_back(dialect, options):
    arrays = tiny(**options)
    assert_same(to_canonical(from_canonical(arrays, dialect), 2), arrays)
    assert_same(from_keras(to_keras(arrays), 2), arrays)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dialect", ["google", "timm", "huggingface"])
def test_order_of_the_names_does_not_matter(dialect, seed):
    arrays = tiny()
    names = list(arrays)
    random.Random(seed).shuffle(names)
    mixed = {name: arrays[name] for name in names}
    foreign = from_canonical(arrays, dialect)
    assert_same(from_canonical(mixed, dialect), foreign)
    assert_same(to_keras(mixed), to_keras(arrays))
    assert_same(to_canonical({name: foreign[name] for name in sorted(foreign)}, 2), arrays)


@pytest.mark.parametrize("dialect", ["google", "timm", "huggingface"])
def test_reading_copies_nothing(dialect):
    foreign = from_canonical(tiny(), dialect)
    received = to_keras(to_canonical(foreign, 2))
    assert all(
        any(np.shares_memory(x, source) for source in foreign.values()) for x in received.values()
    )


@pytest.mark.parametrize("dialect", ["google", "timm", "huggingface"])
def test_input_is_not_modified(dialect):
    arrays = tiny()
    foreign = from_canonical(arrays, dialect)
    copies = {name: x.copy() for name, x in foreign.items()}
    to_canonical(foreign, 2)
    assert_same(foreign, copies)
    assert_same(arrays, tiny())


# --- names and shapes, written out


def test_timm_vit():
    assert shapes_of(from_canonical(tiny(), "timm")) == {
        "cls_token": (1, 1, 6),
        "pos_embed": (1, 5, 6),
        "patch_embed.proj.weight": (6, 3, 8, 8),
        "patch_embed.proj.bias": (6,),
        "blocks.0.norm1.weight": (6,),
        "blocks.0.norm1.bias": (6,),
        "blocks.0.attn.qkv.weight": (18, 6),
        "blocks.0.attn.qkv.bias": (18,),
        "blocks.0.attn.proj.weight": (6, 6),
        "blocks.0.attn.proj.bias": (6,),
        "blocks.0.norm2.weight": (6,),
        "blocks.0.norm2.bias": (6,),
        "blocks.0.mlp.fc1.weight": (10, 6),
        "blocks.0.mlp.fc1.bias": (10,),
        "blocks.0.mlp.fc2.weight": (6, 10),
        "blocks.0.mlp.fc2.bias": (6,),
        "norm.weight": (6,),
        "norm.bias": (6,),
        "head.weight": (5, 6),
        "head.bias": (5,),
    }


def test_timm_attention_pooling():
    shapes = shapes_of(from_canonical(tiny(classifier="map"), "timm"))
    assert {name: shape for name, shape in shapes.items() if name.startswith("attn_pool")} == {
        "attn_pool.latent": (1, 1, 6),
        "attn_pool.q.weight": (6, 6),
        "attn_pool.q.bias": (6,),
        "attn_pool.kv.weight": (12, 6),
        "attn_pool.kv.bias": (12,),
        "attn_pool.proj.weight": (6, 6),
        "attn_pool.proj.bias": (6,),
        "attn_pool.norm.weight": (6,),
        "attn_pool.norm.bias": (6,),
        "attn_pool.mlp.fc1.weight": (10, 6),
        "attn_pool.mlp.fc1.bias": (10,),
        "attn_pool.mlp.fc2.weight": (6, 10),
        "attn_pool.mlp.fc2.bias": (6,),
    }


def test_timm_hybrid():
    shapes = shapes_of(from_canonical(numbered("R26_ViT_S32"), "timm"))
    unit = "patch_embed.backbone.stages.0.blocks.0."
    assert {
        name: shape
        for name, shape in shapes.items()
        if name.startswith((unit, "patch_embed.backbone.stem"))
    } == {
        "patch_embed.backbone.stem.conv.weight": (4, 3, 7, 7),
        "patch_embed.backbone.stem.norm.weight": (4,),
        "patch_embed.backbone.stem.norm.bias": (4,),
        f"{unit}conv1.weight": (4, 4, 1, 1),
        f"{unit}norm1.weight": (4,),
        f"{unit}norm1.bias": (4,),
        f"{unit}conv2.weight": (4, 4, 3, 3),
        f"{unit}norm2.weight": (4,),
        f"{unit}norm2.bias": (4,),
        f"{unit}conv3.weight": (16, 4, 1, 1),
        f"{unit}norm3.weight": (16,),
        f"{unit}norm3.bias": (16,),
        f"{unit}downsample.conv.weight": (16, 4, 1, 1),
        f"{unit}downsample.norm.weight": (16,),
        f"{unit}downsample.norm.bias": (16,),
    }
    assert "patch_embed.backbone.stages.3.blocks.1.conv3.weight" in shapes
    assert shapes["patch_embed.proj.weight"] == (24, 128, 1, 1)


def test_timm_root_without_units():
    shapes = shapes_of(from_canonical(numbered("R_ViT_Ti16"), "timm"))
    assert {name: shape for name, shape in shapes.items() if "backbone" in name} == {
        "patch_embed.backbone.conv.weight": (4, 3, 7, 7),
        "patch_embed.backbone.norm.weight": (4,),
        "patch_embed.backbone.norm.bias": (4,),
    }


def test_timm_bit():
    shapes = shapes_of(from_canonical(numbered("BiT_R50x1"), "timm"))
    assert {name: shape for name, shape in shapes.items() if "stages" not in name} == {
        "stem.conv.weight": (2, 3, 7, 7),
        "norm.weight": (64,),
        "norm.bias": (64,),
        "head.fc.weight": (5, 64, 1, 1),
        "head.fc.bias": (5,),
    }
    assert shapes["stages.3.blocks.0.downsample.conv.weight"] == (64, 32, 1, 1)
    assert "stages.0.blocks.0.downsample.norm.weight" not in shapes


def test_timm_postactivation_resnet():
    shapes = shapes_of(from_canonical(numbered("ResNet50x1"), "timm"))
    assert {name for name in shapes if "stages" not in name} == {
        "stem.conv.weight", "stem.norm.weight", "stem.norm.bias", "head.fc.weight", "head.fc.bias"
    }  # fmt: skip
    assert shapes["stages.0.blocks.0.downsample.norm.weight"] == (8,)


def test_huggingface_classifier():
    layer = "vit.encoder.layer.0."
    assert shapes_of(from_canonical(tiny(), "huggingface")) == {
        "vit.embeddings.cls_token": (1, 1, 6),
        "vit.embeddings.position_embeddings": (1, 5, 6),
        "vit.embeddings.patch_embeddings.projection.weight": (6, 3, 8, 8),
        "vit.embeddings.patch_embeddings.projection.bias": (6,),
        f"{layer}layernorm_before.weight": (6,),
        f"{layer}layernorm_before.bias": (6,),
        f"{layer}attention.attention.query.weight": (6, 6),
        f"{layer}attention.attention.query.bias": (6,),
        f"{layer}attention.attention.key.weight": (6, 6),
        f"{layer}attention.attention.key.bias": (6,),
        f"{layer}attention.attention.value.weight": (6, 6),
        f"{layer}attention.attention.value.bias": (6,),
        f"{layer}attention.output.dense.weight": (6, 6),
        f"{layer}attention.output.dense.bias": (6,),
        f"{layer}layernorm_after.weight": (6,),
        f"{layer}layernorm_after.bias": (6,),
        f"{layer}intermediate.dense.weight": (10, 6),
        f"{layer}intermediate.dense.bias": (10,),
        f"{layer}output.dense.weight": (6, 10),
        f"{layer}output.dense.bias": (6,),
        "vit.layernorm.weight": (6,),
        "vit.layernorm.bias": (6,),
        "classifier.weight": (5, 6),
        "classifier.bias": (5,),
    }


def test_huggingface_base_model_has_a_pooler_and_no_prefix():
    arrays = tiny(classes=None, representation_size=6)
    foreign = from_canonical(arrays, "huggingface")
    assert {"embeddings.cls_token", "layernorm.bias", "pooler.dense.weight"} <= set(foreign)
    np.testing.assert_array_equal(foreign["pooler.dense.weight"], arrays["pre_logits/kernel"].T)
    assert_same(to_canonical(foreign, 2), arrays)


def test_huggingface_base_model_with_prefix_is_read():
    foreign = from_canonical(tiny(classes=None), "huggingface")
    assert_same(
        to_canonical({f"vit.{name}": x for name, x in foreign.items()}, 2), tiny(classes=None)
    )


def test_huggingface_state_dict_is_read():
    today = {
        "encoder.layer.0.": "layers.0.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }
    state = {}
    for name, x in from_canonical(tiny(), "huggingface").items():
        for classic, new in today.items():
            name = name.replace(classic, new)
        state[name] = x
    assert "vit.layers.0.attention.o_proj.bias" in state and "vit.layers.0.mlp.fc2.bias" in state
    assert_same(to_canonical(state, 2), tiny())


# --- the numbers: the same attention, computed from both vocabularies


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def attention(query_ANK, key_ANK, value_ANK):
    weights = softmax(query_ANK @ key_ANK.swapaxes(1, 2) / np.sqrt(query_ANK.shape[-1]))
    return weights @ value_ANK


def canonical_attention(arrays, prefix, x_MD, context_ND):
    def project(x, part):
        kernel, bias = arrays[f"{prefix}/{part}/kernel"], arrays[f"{prefix}/{part}/bias"]
        return np.einsum("nd,dak->ank", x, kernel) + bias[:, None]

    y_AMK = attention(
        project(x_MD, "query"), project(context_ND, "key"), project(context_ND, "value")
    )
    return (
        np.einsum("amk,akd->md", y_AMK, arrays[f"{prefix}/out/kernel"])
        + arrays[f"{prefix}/out/bias"]
    )


def torch_linear(arrays, name, x):
    return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]


def test_timm_attention_computes_the_same():
    arrays, x = tiny(), values((5, 6), seed=99)
    foreign = from_canonical(arrays, "timm")
    # As timm: rows of qkv are (3, heads, head size).
    qkv_3ANK = (
        torch_linear(foreign, "blocks.0.attn.qkv", x).reshape(5, 3, 2, 3).transpose(1, 2, 0, 3)
    )
    y = attention(*qkv_3ANK).transpose(1, 0, 2).reshape(5, 6)
    expected = torch_linear(foreign, "blocks.0.attn.proj", y)
    received = canonical_attention(arrays, f"{BLOCK}/MultiHeadDotProductAttention_0", x, x)
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


def test_huggingface_attention_computes_the_same():
    arrays, x = tiny(), values((5, 6), seed=99)
    foreign = from_canonical(arrays, "huggingface")
    layer = "vit.encoder.layer.0.attention"
    parts = [
        torch_linear(foreign, f"{layer}.attention.{part}", x) for part in ("query", "key", "value")
    ]
    y = (
        attention(*(part.reshape(5, 2, 3).transpose(1, 0, 2) for part in parts))
        .transpose(1, 0, 2)
        .reshape(5, 6)
    )
    expected = torch_linear(foreign, f"{layer}.output.dense", y)
    received = canonical_attention(arrays, f"{BLOCK}/MultiHeadDotProductAttention_0", x, x)
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


def test_timm_attention_pooling_computes_the_same():
    arrays, x = tiny(classifier="map"), values((4, 6), seed=99)
    foreign = from_canonical(arrays, "timm")
    query_A1K = (
        torch_linear(foreign, "attn_pool.q", foreign["attn_pool.latent"][0])
        .reshape(1, 2, 3)
        .swapaxes(0, 1)
    )
    kv_2ANK = torch_linear(foreign, "attn_pool.kv", x).reshape(4, 2, 2, 3).transpose(1, 2, 0, 3)
    expected = torch_linear(
        foreign, "attn_pool.proj", attention(query_A1K, *kv_2ANK).swapaxes(0, 1).reshape(1, 6)
    )
    probe = arrays["MAPHead_0/probe"][0]
    received = canonical_attention(arrays, "MAPHead_0/MultiHeadDotProductAttention_0", probe, x)
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


def test_our_flat_attention_computes_the_same():
    arrays, x = tiny(), values((5, 6), seed=99)
    ours = {
        path.removeprefix("encoderblock_0/attention/"): y for path, y in to_keras(arrays).items()
    }
    parts = [
        x @ ours[f"{part}/kernel"] + ours[f"{part}/bias"] for part in ("query", "key", "value")
    ]
    y = (
        attention(*(part.reshape(5, 2, 3).transpose(1, 0, 2) for part in parts))
        .transpose(1, 0, 2)
        .reshape(5, 6)
    )
    received = canonical_attention(arrays, f"{BLOCK}/MultiHeadDotProductAttention_0", x, x)
    np.testing.assert_allclose(
        received, y @ ours["out/kernel"] + ours["out/bias"], rtol=1e-5, atol=1e-5
    )


def test_timm_convolution_computes_the_same():
    arrays = tiny()
    foreign = from_canonical(arrays, "timm")
    patch_HWC = values((8, 8, 3), seed=99)
    # A patch is one application of the kernel: PyTorch sums over channel, row, column.
    expected = np.einsum(
        "ihw,ihw->", patch_HWC.transpose(2, 0, 1), foreign["patch_embed.proj.weight"][4]
    )
    received = np.einsum("hwi,hwio->o", patch_HWC, arrays["embedding/kernel"])[4]
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_timm_mlp_and_head_compute_the_same():
    arrays, x = tiny(), values((3, 6), seed=99)
    foreign = from_canonical(arrays, "timm")
    for module, name in (("blocks.0.mlp.fc1", f"{BLOCK}/MlpBlock_0/Dense_0"), ("head", "head")):
        received = x @ arrays[f"{name}/kernel"] + arrays[f"{name}/bias"]
        np.testing.assert_allclose(received, torch_linear(foreign, module, x), rtol=1e-5, atol=1e-5)


# --- what is not in the names: heads, class rows


@pytest.mark.parametrize("dialect", ["timm", "huggingface"])
@pytest.mark.parametrize("name", HUGGINGFACE_ROWS)
def test_heads_are_found_by_width_and_depth(dialect, name):
    row = VIT_VARIANTS[name]
    shapes = array_shapes(replace(row, mlp_dim=1, patch_size=1), image_size=14)
    arrays = {
        key: np.broadcast_to(np.float32(0), shape)
        for key, shape in shapes.items()
        if "query" in key
    }
    # Queries alone tell, so nothing large is joined.
    names = {
        "timm": "blocks.{}.attn.qkv",
        "huggingface": "encoder.layer.{}.attention.attention.query",
    }
    rows = 3 if dialect == "timm" else 1
    foreign = {
        names[dialect].format(i) + ".weight": np.broadcast_to(
            np.float32(0), (rows * row.width, row.width)
        )
        for i in range(row.depth)
    }
    received = to_canonical(foreign)
    assert {key: received[key].shape for key in arrays if key.endswith("kernel")} == {
        key: x.shape for key, x in arrays.items() if key.endswith("kernel")
    }


def test_unknown_width_and_depth_need_the_head_count():
    with pytest.raises(ValueError, match=r"has none for width=6, depth=1\. Pass `num_heads`"):
        to_canonical(from_canonical(tiny(), "timm"))


def test_attention_pooling_alone_needs_the_head_count():
    with pytest.raises(ValueError, match=r"width=None, depth=0\. Pass `num_heads`"):
        to_canonical({"attn_pool.q.weight": values((6, 6))})


@pytest.mark.parametrize("num_heads", [0, 4])
def test_heads_that_do_not_divide_are_refused(num_heads):
    with pytest.raises(
        ValueError, match=rf"num_heads={num_heads}: blocks\.0\.attn\.proj\.weight \(6, 6\)"
    ):
        to_canonical(from_canonical(tiny(), "timm"), num_heads)


def test_heads_of_a_google_file_are_compared():
    assert_same(to_canonical(tiny(), 2), tiny())
    with pytest.raises(ValueError, match=r"has \[2\] attention heads\. Received: num_heads=3"):
        to_canonical(tiny(), 3)


def flexible(rows):
    """timm's FlexiViT: a class token, and a table without a row for it."""
    foreign = from_canonical(tiny(), "timm")
    return foreign | {"pos_embed": values((1, rows, 6))}


def test_table_that_may_lack_a_class_row_is_ambiguous():
    with pytest.raises(
        ValueError, match=r"the 9 rows of pos_embed are a square grid, .* grid of 8\. Pass `grid`"
    ):
        to_canonical(flexible(9), 2)


def test_table_without_class_row_gets_a_row_of_zeros():
    foreign = flexible(9)
    table = to_canonical(foreign, 2, grid=(3, 3))[POSITIONS]
    assert table.shape == (1, 10, 6) and table.dtype == np.float32
    np.testing.assert_array_equal(table[:, 0], 0)
    np.testing.assert_array_equal(table[:, 1:], foreign["pos_embed"])


def test_table_with_class_row_stays_when_the_grid_says_so():
    foreign = flexible(9)
    np.testing.assert_array_equal(
        to_canonical(foreign, 2, grid=(2, 4))[POSITIONS], foreign["pos_embed"]
    )


@pytest.mark.parametrize("dialect", ["google", "timm", "huggingface"])
def test_grid_that_does_not_fit_the_table_is_refused(dialect):
    with pytest.raises(ValueError, match=r"must have 7 rows for the grid \(2, 3\)\. Received: 5"):
        to_canonical(from_canonical(tiny(), dialect), 2, grid=(2, 3))


# --- detection


@pytest.mark.parametrize(
    ("names", "dialect"),
    [
        (["opt/target/Transformer/encoder_norm/bias"], "google"),
        (["resnet/block1/unit01/a/group_norm/beta"], "google"),
        (["cls_token", "blocks.0.norm1.weight"], "timm"),
        (["patch_embed.backbone.conv.weight"], "timm"),
        (["stem.conv.weight", "stages.0.blocks.0.conv1.weight"], "timm"),
        (["vit.embeddings.cls_token"], "huggingface"),
        (["encoder.layer.0.layernorm_before.bias"], "huggingface"),
        (["vit.layers.0.attention.q_proj.weight"], "huggingface"),
    ],
)
def test_dialects_are_detected(names, dialect):
    assert detect(["head.bias", *names]) == dialect


def test_nobodys_names_are_listed():
    with pytest.raises(
        ValueError,
        match=r"Matching: none\. Received 2 names: model\.layer1\.bias, model\.layer1\.weight",
    ):
        detect({"model.layer1.weight": 0, "model.layer1.bias": 0})


def test_names_of_two_dialects_are_refused():
    with pytest.raises(ValueError, match="Matching: google and timm"):
        detect(["Transformer/encoder_norm/bias", "blocks.0.norm1.bias"])


# --- what passes, what is refused


@pytest.mark.parametrize("dialect", ["google", "timm", "huggingface"])
def test_unknown_names_pass_when_reading(dialect):
    strange = {"strange.weight" if dialect != "google" else "strange/kernel": values((2, 2))}
    assert_same(to_canonical(from_canonical(tiny(), dialect) | strange, 2), tiny() | strange)


def test_old_tanh_layer_of_timm_is_read():
    arrays = tiny(representation_size=7)
    foreign = from_canonical(
        {name: x for name, x in arrays.items() if "pre_logits" not in name}, "timm"
    )
    foreign |= {
        "pre_logits.fc.weight": arrays["pre_logits/kernel"].T,
        "pre_logits.fc.bias": arrays["pre_logits/bias"],
    }
    assert_same(to_canonical(foreign, 2), arrays)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("blocks.0.attn.q_norm.weight", "normalized queries and keys"),
        ("attn_pool.pos_embed", "positions inside the attention pooling"),
    ],
)
def test_other_computations_of_timm_are_refused(name, reason):
    with pytest.raises(ValueError, match=reason):
        to_canonical(from_canonical(tiny(), "timm") | {name: values((6,))}, 2)


def test_huggingface_classifier_beside_a_pooler_is_refused():
    pooler = {"vit.pooler.dense.weight": values((6, 6)), "vit.pooler.dense.bias": values((6,))}
    with pytest.raises(ValueError, match="a classifier and a pooler"):
        to_canonical(from_canonical(tiny(), "huggingface") | pooler, 2)


def test_all_reasons_are_given_at_once():
    foreign = from_canonical(tiny(), "timm") | {
        "blocks.0.attn.k_norm.weight": values((6,)),
        "attn_pool.pos_embed": values((6,)),
    }
    with pytest.raises(ValueError, match=r"k_norm\.weight.*attn_pool\.pos_embed"):
        to_canonical(foreign, 2)


def test_timm_cannot_have_a_tanh_layer():
    with pytest.raises(
        ValueError,
        match=r"timm cannot express .*: pre_logits/bias, pre_logits/kernel\. Use google or huggingface\.",
    ):
        from_canonical(tiny(classes=None, representation_size=6), "timm")


@pytest.mark.parametrize("dialect", ["timm", "huggingface"])
@pytest.mark.parametrize(
    "name",
    [
        "Transformer/posembed_input/row_embedding",
        "Transformer/posembed_0/pos_embedding",
        f"{BLOCK}/MultiHeadDotProductAttention_0/relative_embedding",
    ],
)
def test_our_extensions_fit_only_google(dialect, name):
    with pytest.raises(
        ValueError, match=rf"{dialect} cannot express this checkpoint: {name}\. Use google\."
    ):
        from_canonical(tiny() | {name: values((2, 6))}, dialect)


def test_huggingface_cannot_have_a_head_behind_a_tanh_layer():
    with pytest.raises(
        ValueError,
        match=r"huggingface cannot .*: pre_logits/kernel beside head/kernel.*Use google\.",
    ):
        from_canonical(tiny(representation_size=6), "huggingface")


def test_huggingface_cannot_do_without_positions():
    arrays = {name: x for name, x in tiny(classifier="gap").items() if name != POSITIONS}
    with pytest.raises(ValueError, match=rf"{POSITIONS} is missing, .*Use google or timm\."):
        from_canonical(arrays, "huggingface")


def test_huggingface_cannot_have_a_head_behind_attention_pooling():
    with pytest.raises(ValueError, match=r"MAPHead_0/probe beside head.*\. Use google or timm\."):
        from_canonical(tiny(classifier="map"), "huggingface")


def test_timm_has_a_head_for_each_of_two_tokens():
    distilled = tiny() | {"dist": values((1, 1, 6))}
    with pytest.raises(ValueError, match="head/kernel without head_dist/kernel beside a distill"):
        from_canonical(distilled, "timm")


def test_unknown_dialect_is_refused():
    with pytest.raises(
        ValueError,
        match="`dialect` must be one of google, timm, huggingface, openclip. Received: keras",
    ):
        from_canonical(tiny(), "keras")


def test_timm_cannot_have_a_part_of_a_fused_array():
    arrays = tiny()
    del arrays[f"{BLOCK}/MultiHeadDotProductAttention_0/key/bias"]
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.qkv\.bias \(2 of 3 parts\)"):
        from_canonical(arrays, "timm")
