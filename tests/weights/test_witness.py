"""The witness against the published implementations' figures, and its pieces against hand
computation.
"""

import ast
import math
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import synthetic_checkpoint

from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights import array_names, witness

QKV = ("query", "key", "value")
TABLE = "Transformer/posembed_input/pos_embedding"
TINY = replace(VIT_VARIANTS["ViT_Ti16"], patch_size=8, width=32, depth=2, num_heads=2, mlp_dim=64)
STEM = replace(RESNET_VARIANTS["ResNet50x1"], units=(1, 2))
TINY_HYBRID = replace(TINY, patch_size=1, stem=STEM)
TINY_BIT = replace(RESNET_VARIANTS["BiT_R50x1"], units=(1, 2))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tiny_arrays(variant=TINY, image_size=32, classes=5, **options):
    return synthetic_checkpoint.checkpoint(
        variant, image_size=image_size, classes=classes, **options
    )


def dense_arrays(name: str, kernel: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{name}/kernel": kernel, f"{name}/bias": bias}


def attention_arrays(width: int = 6, num_heads: int = 2) -> dict[str, np.ndarray]:
    size = width // num_heads
    arrays: dict[str, np.ndarray] = {}
    for seed, part in enumerate(("query", "key", "value")):
        arrays |= dense_arrays(
            part, random(width, num_heads, size, seed=seed), random(num_heads, size, seed=seed + 9)
        )
    return arrays | dense_arrays(
        "out", random(num_heads, size, width, seed=3), random(width, seed=4)
    )


# Against the published implementations.


def with_table_resized(
    arrays: dict[str, np.ndarray], rows: int, columns: int
) -> dict[str, np.ndarray]:
    """What the published fine-tuning code does: the class token's row aside, a corner-aligned
    linear zoom.
    """
    table = arrays[TABLE][0]
    side = math.isqrt(len(table) - 1)
    grid = table[1:].reshape(side, side, -1)
    grid = scipy.ndimage.zoom(grid, (rows / side, columns / side, 1), order=1)
    return arrays | {TABLE: np.concatenate([table[:1], grid.reshape(rows * columns, -1)])[None]}


def reference_logits(case: dict) -> np.ndarray:
    variant = (VIT_VARIANTS | RESNET_VARIANTS)[case["variant"]]
    options = {"image_size": case["checkpoint_size"], "classes": case["classes"]}
    if "patch_size" in case:
        variant = replace(variant, patch_size=case["patch_size"])
        options |= {key: case[key] for key in ("representation_size", "classifier")}
    arrays = synthetic_checkpoint.checkpoint(variant, **options)
    assert len(arrays) == case["arrays"]
    assert sum(array.size for array in arrays.values()) == case["parameters"]
    size = case["image_size"]
    if case["checkpoint_size"] != size:
        arrays = with_table_resized(arrays, size // variant.patch_size, size // variant.patch_size)
    return witness.forward(arrays, synthetic_checkpoint.synthetic_images(size, size), variant)[
        "logits"
    ]


CASES = synthetic_checkpoint.reference_cases("vit") + synthetic_checkpoint.reference_cases("bit")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=pytest.mark.slow if case["name"] in synthetic_checkpoint.LARGE else ()
        )
        for case in CASES
    ],
    ids=lambda case: case["name"],
)
def test_logits_equal_those_of_the_published_implementation(case):
    logits = reference_logits(case)
    expected = np.array(case["logits_first8"])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[:, :8], expected, rtol=0, atol=5e-5 * np.abs(expected).max())
    np.testing.assert_allclose(np.linalg.norm(logits, axis=1), case["logits_norm"], rtol=5e-6)
    assert logits.argmax(axis=1).tolist() == case["argmax"]


# What `forward` returns, reads and refuses.


def test_activations_of_a_vit_come_in_order_with_their_shapes():
    outputs = witness.forward(
        tiny_arrays(representation_size=7),
        synthetic_checkpoint.synthetic_images(32, 32, batch=3),
        TINY,
    )
    assert {name: output.shape for name, output in outputs.items()} == {
        "embedding": (3, 16, 32),
        "posembed_input": (3, 17, 32),
        "encoderblock_0": (3, 17, 32),
        "encoderblock_1": (3, 17, 32),
        "encoder_norm": (3, 17, 32),
        "pre_logits": (3, 7),
        "logits": (3, 5),
    }
    assert [*outputs][0] == "embedding" and [*outputs][-1] == "logits"
    assert all(output.dtype == np.float32 for output in outputs.values())


def test_activations_of_a_hybrid_begin_with_its_stem():
    images = synthetic_checkpoint.synthetic_images(30, 48)
    outputs = witness.forward(tiny_arrays(TINY_HYBRID, (30, 48)), images, TINY_HYBRID)
    assert [*outputs][:4] == ["root", "block1", "block2", "embedding"]
    # 30 halves to 15, 8, 4; 48 to 24, 12, 6.
    assert outputs["root"].shape == (2, 8, 12, 64)
    assert outputs["block2"].shape == (2, 4, 6, 512)
    assert outputs["embedding"].shape == (2, 24, 32)


@pytest.mark.parametrize(
    ("variant", "last"),
    [(STEM, ["pre_logits", "logits"]), (TINY_BIT, ["norm_pre_head", "pre_logits", "logits"])],
)
def test_activations_of_a_resnet_end_with_its_head(variant, last):
    outputs = witness.forward(
        tiny_arrays(variant), synthetic_checkpoint.synthetic_images(32, 32), variant
    )
    assert [*outputs] == ["root", "block1", "block2", *last]
    assert outputs["pre_logits"].shape == (2, 512)


def test_a_headless_checkpoint_ends_with_the_encoder_norm():
    outputs = witness.forward(
        tiny_arrays(classes=None), synthetic_checkpoint.synthetic_images(32, 32), TINY
    )
    assert [*outputs][-1] == "encoder_norm"


def test_global_average_pooling_averages_all_tokens():
    arrays = tiny_arrays(classifier="gap")
    outputs = witness.forward(arrays, synthetic_checkpoint.synthetic_images(32, 32), TINY)
    expected = outputs["encoder_norm"].mean(axis=1) @ arrays["head/kernel"] + arrays["head/bias"]
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-6)


def test_attention_pooling_with_no_preference_averages_the_values():
    arrays = tiny_arrays(classifier="map")
    scope = "MAPHead_0/MultiHeadDotProductAttention_0/"
    for leaf in ("query/kernel", "query/bias"):
        arrays[scope + leaf] = np.zeros_like(arrays[scope + leaf])
    arrays["MAPHead_0/MlpBlock_0/Dense_1/kernel"] *= 0.0
    outputs = witness.forward(arrays, synthetic_checkpoint.synthetic_images(32, 32), TINY)
    mean = outputs["encoder_norm"].mean(axis=1)
    value = mean @ arrays[scope + "value/kernel"].reshape(32, 32) + arrays[
        scope + "value/bias"
    ].reshape(32)
    found = value @ arrays[scope + "out/kernel"].reshape(32, 32) + arrays[scope + "out/bias"]
    np.testing.assert_allclose(
        outputs["map_head"],
        found + arrays["MAPHead_0/MlpBlock_0/Dense_1/bias"],
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        (TINY, {"representation_size": 6}),
        (TINY, {"classifier": "map"}),
        # of what the others are of
        pytest.param(TINY_HYBRID, {"classifier": "gap"}, marks=pytest.mark.slow),
        (STEM, {}),
        (TINY_BIT, {}),
    ],
    ids=["token", "map", "hybrid", "post-activation", "pre-activation"],
)
def test_every_array_changes_the_logits(variant, options):
    arrays = tiny_arrays(variant, **options)
    images = synthetic_checkpoint.synthetic_images(32, 32, batch=1)
    logits = witness.forward(arrays, images, variant)["logits"]
    # A key bias adds one number to all scores of a query, which softmax ignores.
    for name in (name for name in arrays if not name.endswith("key/bias")):
        changed = arrays | {name: arrays[name] + 0.3 * random(*arrays[name].shape, seed=1)}
        assert np.abs(witness.forward(changed, images, variant)["logits"] - logits).max() > 1e-6, (
            name
        )


def test_missing_and_unused_arrays_are_all_listed_in_one_error():
    arrays = tiny_arrays()
    del arrays["head/bias"], arrays["embedding/kernel"]
    arrays["pre_fc/kernel"] = arrays["Adam/step"] = np.zeros(1)
    message = (
        r"Missing \(2\): embedding/kernel, head/bias\. Unused \(2\): Adam/step, pre_fc/kernel\."
    )
    with pytest.raises(ValueError, match=message):
        witness.forward(arrays, synthetic_checkpoint.synthetic_images(32, 32), TINY)


def test_a_class_token_beside_attention_pooling_is_unused():
    arrays = tiny_arrays(classifier="map") | {"cls": np.zeros((1, 1, 32))}
    with pytest.raises(ValueError, match=r"Unused \(1\): cls\."):
        witness.forward(arrays, synthetic_checkpoint.synthetic_images(32, 32), TINY)


@pytest.mark.parametrize("size", [(32, 40), (33, 32), (16, 32)])
def test_images_that_do_not_fit_the_position_table_are_refused(size):
    with pytest.raises(ValueError, match="exactly the 16 patches of the position table"):
        witness.forward(tiny_arrays(), synthetic_checkpoint.synthetic_images(*size), TINY)


@pytest.mark.parametrize("change", [{"patch_size": 4}, {"num_heads": 4}])
def test_another_patch_size_or_number_of_heads_is_refused(change):
    variant = replace(TINY, **change)
    with pytest.raises(ValueError, match="not those of ViT_Ti16, which has patches of"):
        witness.forward(tiny_arrays(), synthetic_checkpoint.synthetic_images(32, 32), variant)


@pytest.mark.parametrize(
    "images", [np.zeros((32, 32, 3)), np.zeros((1, 32, 32, 1)), np.zeros((1, 32, 32, 3), np.uint8)]
)
def test_images_of_the_wrong_rank_channels_or_type_are_refused(images):
    with pytest.raises(ValueError, match=r"`images` must have shape \(B, H, W, 3\)"):
        witness.forward(tiny_arrays(), images, TINY)


def test_gelu_form_can_be_given_and_changes_the_logits():
    arrays, images = tiny_arrays(), synthetic_checkpoint.synthetic_images(32, 32)
    difference = (
        witness.forward(arrays, images, TINY, gelu="exact")["logits"]
        - witness.forward(arrays, images, TINY)["logits"]
    )
    assert 1e-6 < np.abs(difference).max() < 1e-2


def test_gelu_form_is_refused_for_a_resnet():
    with pytest.raises(ValueError, match="`gelu` must be None for a ResNet"):
        witness.forward(
            tiny_arrays(STEM), synthetic_checkpoint.synthetic_images(32, 32), STEM, gelu="tanh"
        )


def test_unknown_gelu_form_is_refused():
    with pytest.raises(ValueError, match='must be "tanh", "exact" or "quick"'):
        witness.gelu(np.zeros(1), "erf")


@pytest.mark.parametrize("variant", [TINY, STEM])
def test_norm_epsilon_can_be_given(variant):
    arrays, images = tiny_arrays(variant), synthetic_checkpoint.synthetic_images(32, 32)
    row = witness.forward(arrays, images, variant)["logits"]
    assert np.array_equal(
        witness.forward(arrays, images, variant, norm_epsilon=1e-6)["logits"], row
    )
    assert not np.allclose(
        witness.forward(arrays, images, variant, norm_epsilon=0.5)["logits"], row
    )


def test_the_witness_imports_numpy_the_standard_library_and_the_variants_alone():
    imported = set()
    for module in (witness, array_names):
        tree = ast.parse(Path(module.__file__).read_text())
        imported |= {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        imported |= {
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
    imported -= {array_names.__name__}
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == {
        "numpy",
        "keras_vit.variants",
    }


# The pieces.


def test_erf_equals_the_standard_library():
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, 1e-9, 5.0, -5.0, 30.0]])
    np.testing.assert_allclose(witness.erf(x), [math.erf(value) for value in x], rtol=0, atol=1e-11)


def test_exact_gelu_is_x_times_the_normal_distribution():
    assert witness.gelu(np.array([1.0, -2.0]), "exact") == pytest.approx(
        [0.8413447461, -0.0455002639], abs=1e-9
    )


def test_tanh_gelu_differs_from_the_exact_form_in_the_fourth_digit():
    assert witness.gelu(np.array([1.0, -2.0]), "tanh") == pytest.approx(
        [0.8411919906, -0.0454023059], abs=1e-9
    )


def test_softmax_rows_sum_to_one_even_for_huge_scores():
    rows = witness.softmax(
        np.array([[1e4, 1e4, -1e4], [0.0, math.log(2.0), math.log(5.0)]], np.float32)
    )
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.0], [0.125, 0.25, 0.625]], rtol=1e-6)


def test_attention_to_a_single_token_returns_its_projected_value():
    x, p = random(2, 1, 6, seed=5), attention_arrays()
    value = x @ p["value/kernel"].reshape(6, 6) + p["value/bias"].reshape(6)
    expected = value @ p["out/kernel"].reshape(6, 6) + p["out/bias"]
    np.testing.assert_allclose(witness.attention(x, x, p), expected, rtol=1e-5, atol=1e-6)


def test_attention_equals_equations_5_to_8_head_by_head():
    x, p = random(1, 4, 6, seed=5).astype(np.float64), attention_arrays()
    expected = np.array(p["out/bias"], np.float64)
    for head in range(2):
        q, k, v = (
            x[0] @ p[f"{part}/kernel"][:, head] + p[f"{part}/bias"][head]
            for part in ("query", "key", "value")
        )
        weights = np.exp(q @ k.T / math.sqrt(3))
        expected = (
            expected + (weights / weights.sum(axis=1, keepdims=True)) @ v @ p["out/kernel"][head]
        )
    np.testing.assert_allclose(witness.attention(x, x, p)[0], expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_of_a_row_computed_by_hand():
    p = {"scale": np.array([1.0, 2.0, 3.0]), "bias": np.array([0.0, 0.5, 0.0])}
    # Mean 2, variance 6; epsilon 3 makes the divisor exactly 3.
    np.testing.assert_allclose(
        witness.layer_norm(np.array([[5.0, 2.0, -1.0]]), p, 3.0), [[1.0, 0.5, -3.0]]
    )


def test_layer_norm_keeps_its_digits_far_from_zero():
    p = {"scale": np.ones(2, np.float32), "bias": np.zeros(2, np.float32)}
    x = np.array([[4096.0, 4096.5]], np.float32)
    np.testing.assert_allclose(witness.layer_norm(x, p, 1e-6), [[-1.0, 1.0]], rtol=1e-4)


def test_group_norm_normalizes_neighbouring_channels_together():
    x = np.array([1.0, 3.0, 10.0, 30.0]).reshape(1, 1, 1, 4)
    p = {"scale": np.ones(4), "bias": np.array([0.0, 0.0, 0.0, 1.0])}
    assert witness.group_norm(x, p, 0.0, groups=2).ravel().tolist() == [-1.0, 1.0, -1.0, 2.0]


def test_standardized_kernel_has_mean_zero_and_deviation_one_per_output():
    kernel = witness.standardize(3.0 + 7.0 * random(3, 3, 8, 5), 0.0, 0.0)
    np.testing.assert_allclose(kernel.mean(axis=(0, 1, 2)), 0.0, atol=1e-6)
    np.testing.assert_allclose(kernel.std(axis=(0, 1, 2)), 1.0, rtol=1e-5)


def test_each_epsilon_of_standardization_has_its_own_place():
    kernel = np.array([-2.0, 2.0]).reshape(2, 1, 1, 1)
    assert witness.standardize(kernel, 2.0, 0.0).ravel().tolist() == [-0.5, 0.5]
    assert witness.standardize(kernel, 0.0, 12.0).ravel().tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("length", "size", "stride", "expected"),
    [
        (224, 7, 2, (2, 3)),
        (112, 3, 2, (0, 1)),
        (7, 3, 2, (1, 1)),
        (7, 3, 1, (1, 1)),
        (8, 1, 2, (0, 0)),
    ],
)
def test_same_padding_puts_the_odd_row_after(length, size, stride, expected):
    assert witness.same_padding(length, size, stride) == expected


@pytest.mark.parametrize("padding", [0, "same"])
def test_convolution_equals_scipy_channel_by_channel(padding):
    x, kernel = random(1, 7, 6, 2), random(3, 3, 2, 4, seed=1)
    mode = "same" if padding == "same" else "valid"
    expected = np.stack(
        [
            sum(scipy.signal.correlate2d(x[0, ..., i], kernel[..., i, o], mode) for i in range(2))
            for o in range(4)
        ],
        -1,
    )
    np.testing.assert_allclose(
        witness.convolve(x, kernel, padding=padding)[0], expected, rtol=1e-4, atol=1e-5
    )


def test_strided_convolution_skips_rows_and_columns():
    x, kernel = random(2, 8, 8, 3), random(3, 3, 3, 4, seed=1)
    dense = witness.convolve(np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0))), kernel)
    np.testing.assert_allclose(
        witness.convolve(x, kernel, 2, "same"), dense[:, ::2, ::2], rtol=1e-5, atol=1e-5
    )


def test_convolution_with_patch_stride_is_a_matrix_product_of_patches():
    x, kernel = random(1, 4, 6, 3), random(2, 2, 3, 5, seed=1)
    patches = x.reshape(1, 2, 2, 3, 2, 3).swapaxes(2, 3).reshape(1, 2, 3, 12)
    np.testing.assert_allclose(
        witness.convolve(x, kernel, 2), patches @ kernel.reshape(12, 5), rtol=1e-5, atol=1e-5
    )


def test_max_pool_of_a_negative_map_depends_on_what_surrounds_it():
    x = -np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    assert witness.max_pool(x, 3, 2, 1).ravel().tolist() == [-1.0, -2.0, -4.0, -5.0]
    assert witness.max_pool(x, 3, 2, 1, fill=0.0).ravel().tolist() == [0.0, 0.0, 0.0, 0.0]


# Axial attention. The Keras layers have a hand computation of their own, in
# tests/layers/test_axial.py.

TINY_AXIAL = replace(TINY, axial=True)
TINY_AXIAL_RESNET = replace(RESNET_VARIANTS["AxialResNet50"], units=(1, 2))


def test_axial_block_is_a_block_on_every_row_then_on_every_column():
    arrays, x = tiny_arrays(TINY_AXIAL, (16, 24)), random(2, 6, 32)
    scope = "Transformer/encoderblock_0/"
    halves = [
        {
            name.removeprefix(scope + half): array
            for name, array in arrays.items()
            if name.startswith(scope + half)
        }
        for half in ("row/", "column/")
    ]
    places, expected = np.arange(6).reshape(2, 3), x.copy()
    for half, lines in zip(halves, (places, places.T), strict=True):
        for line in lines:
            expected[:, line] = witness.transformer_block(expected[:, line], half, TINY)
    p = {
        name.removeprefix(scope): array for name, array in arrays.items() if name.startswith(scope)
    }
    received = witness.axial_block(x, p, TINY_AXIAL, (2, 3))
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


def test_relative_positions_are_keys_of_the_offset():
    p, x = attention_arrays(), random(1, 4, 6, seed=7)
    p["relative_embedding"] = random(7, 3, seed=8)
    query, key, value = (
        np.einsum("nd,dak->ank", x[0], p[f"{n}/kernel"]) + p[f"{n}/bias"][:, None] for n in QKV
    )
    logits = np.empty((2, 4, 4))
    for head in range(2):
        for i in range(4):
            for j in range(4):
                logits[head, i, j] = (
                    query[head, i]
                    @ (key[head, j] + p["relative_embedding"][i - j + 3])
                    / math.sqrt(3)
                )
    found = witness.softmax(logits) @ value
    expected = np.einsum("ank,akd->nd", found, p["out/kernel"]) + p["out/bias"]
    np.testing.assert_allclose(witness.attention(x, x, p)[0], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="for 4 tokens along an axis. Received: 5"):
        witness.attention(random(1, 5, 6), random(1, 5, 6), p)


@pytest.mark.parametrize(("size", "cells"), [((32, 48), (4, 6)), ((36, 52), (5, 7))])
def test_activations_of_an_axial_resnet(size, cells):
    """Attention sees the map before the stride, and an odd edge is averaged over what there is."""
    arrays = tiny_arrays(TINY_AXIAL_RESNET, size)
    assert len(arrays["block2/unit2/row/relative_embedding"]) == 2 * cells[1] - 1
    outputs = witness.forward(
        arrays, synthetic_checkpoint.synthetic_images(*size), TINY_AXIAL_RESNET
    )
    assert outputs["block2"].shape == (2, *cells, 512) and outputs["logits"].shape == (2, 5)


def test_a_stride_is_the_mean_of_what_lies_in_the_window():
    p = {
        f"{axis}/{name}": x for axis in ("row", "column") for name, x in attention_arrays().items()
    }
    x, same = random(1, 3, 5, 6), witness.axial_attention(random(1, 3, 5, 6), p, stride=1)
    received = witness.axial_attention(x, p, stride=2)
    assert received.shape == (1, 2, 3, 6)
    np.testing.assert_allclose(received[0, 0, 0], same[0, :2, :2].mean(axis=(0, 1)), rtol=1e-5)
    np.testing.assert_allclose(received[0, 1, 2], same[0, 2, 4], rtol=1e-5)


@pytest.mark.parametrize(
    ("variant", "size"),
    [(TINY_AXIAL, (16, 40)), pytest.param(TINY_AXIAL_RESNET, (36, 52), marks=pytest.mark.slow)],
)
def test_axial_models_equal_the_witness(variant, size):
    import keras_vit.models
    from keras_vit.weights import variables
    from keras_vit.weights.restore import restore

    build = (
        keras_vit.models.vision_transformer if variant is TINY_AXIAL else keras_vit.models.resnet
    )
    images = synthetic_checkpoint.synthetic_images(*size)
    model = build(variant, keras.Input((*size, 3)), classes=5)
    arrays = tiny_arrays(variant, size)
    restore(model.layers, variables.to_keras(arrays))
    expected = witness.forward(arrays, images, variant)["logits"]
    np.testing.assert_allclose(
        model.predict(images, verbose=0), expected, atol=2e-5 * np.abs(expected).max()
    )


def test_axial_arrays_are_of_an_axial_model():
    arrays = tiny_arrays(TINY_AXIAL)
    images = synthetic_checkpoint.synthetic_images(32, 32)
    with pytest.raises(
        ValueError, match=r"of ViT_Ti16. Missing \(32\): Transformer/encoderblock_0/LayerNorm_0"
    ):
        witness.forward(arrays, images, TINY)
    with pytest.raises(ValueError, match=r"Missing \(0\): none. Unused \(1\): cls"):
        witness.forward(arrays | {"cls": random(1, 1, 32)}, images, TINY_AXIAL)
