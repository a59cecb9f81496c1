import dataclasses
from dataclasses import replace

import keras
import numpy as np
import pytest
from synthetic_checkpoint import reference_cases

from keras_vit.layers import AxialTransformerBlock, LayerNorm, MlpBlock
from keras_vit.models import embed_patches, encode_tokens, vision_transformer
from keras_vit.models.ends import pre_logits
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS


def _images(*shape):
    return np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")


def _randomize(model, scale=0.2):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(scale * rng.standard_normal(weight.shape))
    return model


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (2, 17, 16)),
        ({"classifier": "none"}, (2, 16, 16)),
        ({"classifier": "gap"}, (2, 16, 16)),
        ({"pooling": "token"}, (2, 16)),
        ({"pooling": "avg"}, (2, 16)),
        ({"pooling": "max", "classifier": "gap"}, (2, 16)),
        ({"pooling": "map", "classifier": "map"}, (2, 16)),
        ({"classes": 5}, (2, 5)),
        ({"classes": 5, "classifier": "gap"}, (2, 5)),
        ({"classes": 5, "classifier": "map"}, (2, 5)),
        ({"classes": 5, "representation_size": 7}, (2, 5)),
        ({"pooling": "token", "representation_size": 7}, (2, 7)),
    ],
)
def test_output_shapes(options, shape, tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), **options)
    assert model(_images(2, 32, 32, 3)).shape == shape
    assert model.output_shape == (None, *shape[1:])


@pytest.mark.parametrize(
    ("classifier", "read"),
    [
        ("token", lambda tokens: tokens[:, 0]),
        ("gap", lambda tokens: tokens.mean(axis=1)),
        ("token_gap", lambda tokens: np.hstack([tokens[:, 0], tokens[:, 1:].mean(axis=1)])),
    ],
    ids=["token", "gap", "token_gap"],
)
def test_the_head_reads_the_class_token_the_mean_or_both(classifier, read, tiny_vit):
    model = vision_transformer(
        tiny_vit,
        keras.Input((32, 32, 3)),
        classes=5,
        classifier=classifier,
        classifier_activation=None,
    )
    _randomize(model)
    images = _images(2, 32, 32, 3)
    encoder = keras.Model(model.input, model.get_layer("encoder_norm").output)
    kernel, bias = model.get_layer("predictions").get_weights()
    expected = read(encoder.predict_on_batch(images)) @ kernel + bias
    np.testing.assert_allclose(model.predict_on_batch(images), expected, atol=1e-5)


@pytest.mark.parametrize("placement", ["stem", "every_layer", "shared"])
@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos2d"])
def test_every_kind_of_position_at_every_place(kind, placement, tiny_vit):
    model = vision_transformer(
        tiny_vit, keras.Input((32, 16, 3)), position_embedding=kind, position_placement=placement
    )
    tables = {"stem": 1, "every_layer": 2, "shared": 1}[placement] * {
        "learned_1d": 1,
        "learned_2d": 3,
        "sincos2d": 0,
    }[kind]
    assert sum("posembed" in weight.path for weight in model.weights) == tables
    assert model(_images(2, 32, 16, 3)).shape == (2, 9, 16)


def test_a_shared_table_is_added_before_every_block(tiny_vit):
    """With blocks that do nothing, the tokens carry the table once per block."""
    options = {"classifier": "none", "position_embedding": "learned_1d"}
    outputs = {}
    for placement in ("stem", "shared"):
        model = vision_transformer(
            tiny_vit, keras.Input((32, 32, 3)), position_placement=placement, **options
        )
        for weight in model.weights:
            weight.assign(np.zeros(weight.shape))
        table = next(w for w in model.weights if "posembed" in w.path)
        table.assign(_images(*table.shape))
        inside = keras.Model(model.input, model.get_layer("encoder_norm").input)
        outputs[placement] = keras.ops.convert_to_numpy(inside(_images(1, 32, 32, 3)))
    np.testing.assert_allclose(outputs["shared"], tiny_vit.depth * outputs["stem"], rtol=1e-5)


def test_rectangles_and_open_sizes_agree(tiny_vit):
    fixed = _randomize(vision_transformer(tiny_vit, keras.Input((16, 40, 3)), classes=5))
    open_ = vision_transformer(
        tiny_vit, keras.Input((None, None, 3)), classes=5, position_grid=(2, 5)
    )
    open_.set_weights(fixed.get_weights())
    images = _images(2, 16, 40, 3)
    np.testing.assert_allclose(
        open_.predict(images, verbose=0), fixed.predict(images, verbose=0), atol=1e-5
    )
    assert open_.predict(_images(2, 48, 24, 3), verbose=0).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "expected"), [({}, "bicubic_offset"), ({"interpolation": "bicubic"}, "bicubic")]
)
def test_positions_are_resized_by_the_rule_of_the_row_unless_another_is_passed(
    options, expected, tiny_vit
):
    row = replace(tiny_vit, interpolation="bicubic_offset")
    model = vision_transformer(row, keras.Input((None, None, 3)), position_grid=(2, 2), **options)
    assert model.get_layer("posembed_input").interpolation == expected


@pytest.mark.parametrize("name", ["R_ViT_Ti16", "R50_ViT_B16"])
def test_a_hybrid_takes_rectangles_and_open_sizes(name):
    row = VIT_VARIANTS[name]
    stem = replace(row.stem, units=row.stem.units and (1, 1))
    row = replace(row, width=16, depth=1, num_heads=2, mlp_dim=32, stem=stem)
    fixed = _randomize(vision_transformer(row, keras.Input((64, 32, 3)), classes=5))
    grid = {"R_ViT_Ti16": (2, 1), "R50_ViT_B16": (8, 4)}[name]
    open_ = vision_transformer(row, keras.Input((None, None, 3)), classes=5, position_grid=grid)
    open_.set_weights(fixed.get_weights())
    images = _images(2, 64, 32, 3)
    np.testing.assert_allclose(
        open_.predict(images, verbose=0), fixed.predict(images, verbose=0), rtol=1e-3, atol=1e-4
    )


def test_the_head_starts_at_zero_and_its_bias_where_it_is_told(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=5, head_bias=-10.0)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(_images(2, 32, 32, 3))), -10)


def test_a_distillation_token_may_have_no_head_of_its_own(tiny_vit):
    row = replace(tiny_vit, distilled=True, distilled_head=False)
    model = vision_transformer(row, keras.Input((32, 32, 3)), classes=3)
    assert model.get_layer("encoder_norm").output.shape == (None, 2 + 16, 16)
    assert model.layers[-1].name == "predictions"
    assert model.layers[-1].input is model.get_layer("pooled").output


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_distilled_model_gives_the_softmax_of_the_mean_of_both_heads(policy, tiny_vit):
    """Each head reads its own token, and no score is rounded to 16 bits."""
    keras.config.set_dtype_policy(policy)
    model = vision_transformer(
        replace(tiny_vit, distilled=True),
        keras.Input((32, 32, 3)),
        classes=3,
        classifier_activation="softmax",
    )
    _randomize(model, scale=0.5)
    names = {"pooled": "predictions", "pooled_distillation": "predictions_distilled"}
    vectors = [model.get_layer(name).output for name in names]
    *vectors, found = (
        keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))
        for output in keras.Model(model.input, [*vectors, model.output])(_images(2, 32, 32, 3))
    )
    heads = [model.get_layer(name) for name in names.values()]
    logits = [
        x @ keras.ops.convert_to_numpy(head.kernel) + keras.ops.convert_to_numpy(head.bias)
        for x, head in zip(vectors, heads, strict=True)
    ]
    exponents = np.exp(np.mean(logits, axis=0))
    expected = exponents / exponents.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.once
def test_the_tanh_layer_of_pre_training_starts_with_unit_gain():
    """As flax's `nn.Dense`. In front of a head of zeros, zeros would never receive a gradient."""
    features = keras.Input((400,))
    layer = keras.Model(features, pre_logits(features, 100)).layers[-1]
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    assert np.std(kernel) == pytest.approx(400**-0.5, rel=0.02)


@pytest.mark.parametrize(
    ("fields", "classifier", "num_norms"),
    [({"norm_before_blocks": True}, "map", 5), ({"norm_after_pooling": True}, "gap", 3)],
    ids=str,
)
def test_norm_epsilon_and_gelu_reach_all_layers(fields, classifier, num_norms, tiny_vit):
    row = replace(tiny_vit, depth=1, **fields)
    options = {"norm_epsilon": 0.01, "gelu": "exact"}
    model = vision_transformer(
        row, keras.Input((32, 32, 3)), classes=3, classifier=classifier, **options
    )
    layers = list(model._flatten_layers())
    epsilons = [layer.epsilon for layer in layers if isinstance(layer, LayerNorm)]
    assert epsilons == [0.01] * num_norms
    assert {layer.gelu for layer in layers if isinstance(layer, MlpBlock)} == {"exact"}


def test_stochastic_depth_grows_linearly(tiny_vit):
    model = vision_transformer(
        replace(tiny_vit, depth=5), keras.Input((32, 32, 3)), stochastic_depth_rate=0.2
    )
    rates = [model.get_layer(f"encoderblock_{i}").drop_path_rate for i in range(5)]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.once)]
)
def test_the_head_is_in_float32_under_mixed_precision(policy, tiny_vit):
    keras.config.set_dtype_policy(policy)
    model = vision_transformer(
        tiny_vit, keras.Input((32, 32, 3)), classes=5, classifier_activation="softmax"
    )
    output = model(_images(2, 32, 32, 3))
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert (
        keras.backend.standardize_dtype(model.get_layer("encoder_norm").output.dtype)
        == policy.split("_")[1]
    )
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} == {
        "float32"
    }


def test_the_seams_compose_to_the_whole(tiny_vit):
    images = keras.Input((32, 32, 3))
    patches = embed_patches(images, tiny_vit)
    assert patches.shape == (None, 4, 4, 16)
    parts = keras.Model(images, encode_tokens(patches, tiny_vit))
    whole = vision_transformer(tiny_vit, keras.Input((32, 32, 3)))
    whole.set_weights(parts.get_weights())
    x = _images(2, 32, 32, 3)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(parts(x)), keras.ops.convert_to_numpy(whole(x))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"classifier": "cls"},
            "`classifier` must be one of .*'token', 'gap', 'map', 'token_gap', 'none'.*'cls'",
        ),
        ({"pooling": "mean"}, "`pooling` must be one of"),
        ({"pooling": "token", "classifier": "gap"}, "needs a class token"),
        ({"classes": 5, "classifier": "none"}, "returns tokens"),
        ({"representation_size": 5}, "needs one vector per image"),
        ({"position_embedding": "rope"}, "`position_embedding` must be one of"),
        ({"position_placement": "top"}, "`position_placement` must be one of"),
        ({"position_embedding": "none", "position_placement": "shared"}, "has none.*'shared'"),
    ],
)
def test_options_that_contradict_are_errors(options, message, tiny_vit):
    with pytest.raises(ValueError, match=message):
        vision_transformer(tiny_vit, keras.Input((32, 32, 3)), **options)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"axial": True, "layer_scale": True}, {}, "axial attention.* not support layer_scale"),
        ({"axial": True, "num_registers": 2}, {}, "does not support num_registers"),
        ({"axial": True, "mlp": "swiglu"}, {}, "does not support mlp"),
        ({"axial": True, "distilled": True}, {}, "does not support distilled"),
        ({"axial": True, "attention_bias": "none"}, {}, "does not support attention_bias"),
        ({"axial": True, "rotary": True}, {}, "does not support rotary"),
        ({"axial": True}, {"query_chunk": 4}, "does not support `query_chunk`"),
        ({"rotary": True}, {"position_embedding": "sincos2d"}, "has rotary positions"),
        ({"num_registers": 2}, {"position_placement": "shared"}, "tokens without a position"),
        ({"class_position": False}, {"position_placement": "every_layer"}, 'Use "stem"'),
        ({"rotary": True, "width": 18}, {}, "multiple of 4. Received: head_dim=9"),
    ],
)
def test_fields_of_a_row_that_contradict_are_errors(fields, options, message, tiny_vit):
    row = dataclasses.replace(tiny_vit, **fields)
    with pytest.raises(ValueError, match=message):
        vision_transformer(row, keras.Input((32, 32, 3)), **options)


def test_relative_positions_need_a_fixed_size(tiny_vit):
    with pytest.raises(ValueError, match="fixed image size"):
        vision_transformer(tiny_vit, keras.Input((None, None, 3)), position_embedding="relative")


def test_a_size_that_does_not_divide_names_its_neighbours():
    with pytest.raises(
        ValueError, match=r"Received: image_size=\(384, 384\), patch_size=14.*\(378, 378\) or"
    ):
        vision_transformer(VIT_VARIANTS["ViT_H14"], keras.Input((384, 384, 3)))


def test_the_reference_file_has_the_parameters_that_we_build():
    case = next(case for case in reference_cases("vit") if case["name"] == "ViT-Ti/16")
    assert (
        vision_transformer(VIT_VARIANTS["ViT_Ti16"], classes=1000).count_params()
        == case["parameters"]
    )


# Axial attention.


@pytest.fixture
def tiny_axial(tiny_vit):
    return replace(tiny_vit, axial=True)


@pytest.mark.parametrize(
    "position_embedding", ["learned_1d", "learned_2d", "sincos2d", "relative", "none"]
)
@pytest.mark.sampled(3)
def test_an_axial_vit_has_every_kind_of_position(position_embedding, tiny_axial):
    shape = (32, 48, 3)
    model = vision_transformer(
        tiny_axial, keras.Input(shape), classes=5, position_embedding=position_embedding
    )
    blocks = [layer for layer in model.layers if isinstance(layer, AxialTransformerBlock)]
    assert [block.grid for block in blocks] == [(4, 6)] * 2
    assert blocks[0].relative_positions is (position_embedding == "relative")
    assert model(_images(2, *shape)).shape == (2, 5)
    assert not any("cls" in weight.path for weight in model.weights)


def test_an_axial_vit_has_two_blocks_for_one_and_no_class_token(tiny_axial, tiny_vit):
    def count(row, **options):
        return vision_transformer(row, keras.Input((32, 32, 3)), **options).count_params()

    # Attention, MLP and two norms, once more in each of two blocks of 16 numbers a token.
    half = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 4 * 16
    assert count(tiny_axial) == count(tiny_vit, classifier="gap") + 2 * half


@pytest.mark.parametrize(
    ("classifier", "pooling"), [(None, None), ("gap", "max"), ("map", "map"), ("none", None)]
)
def test_an_axial_vit_pools_what_is_there(classifier, pooling, tiny_axial):
    model = vision_transformer(
        tiny_axial, keras.Input((32, 32, 3)), classifier=classifier, pooling=pooling
    )
    assert model.output_shape == ((None, 16, 16) if pooling is None else (None, 16))


@pytest.mark.once
def test_an_axial_vit_on_a_stem(tiny_axial):
    """A hybrid's grid is that of its stem's map; and an axial stem has eight heads, whatever the
    blocks have.
    """
    stem = replace(RESNET_VARIANTS["AxialResNet50"], units=(1, 1))
    model = vision_transformer(
        replace(tiny_axial, patch_size=2, stem=stem), keras.Input((32, 64, 3)), classes=5
    )
    assert model.get_layer("encoderblock_1").grid == (2, 4)
    assert model(_images(2, 32, 64, 3)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"classifier": "token"},
            'tiny attends along rows and columns.*class token is in neither.*"gap"`, "map" or',
        ),
        ({"shape": (None, None, 3)}, "tiny needs a fixed image size. Pass `input_shape`"),
        ({"shape": (None, 32, 3)}, "fixed image size"),
        ({"pooling": "token"}, "needs a class token"),
    ],
)
def test_what_an_axial_vit_cannot_have(options, message, tiny_axial):
    shape = options.get("shape", (32, 32, 3))
    options = {name: value for name, value in options.items() if name != "shape"}
    with pytest.raises(ValueError, match=message):
        vision_transformer(tiny_axial, keras.Input(shape), **options)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.once)]
)
def test_an_axial_vit_in_mixed_precision(policy, tiny_axial):
    keras.config.set_dtype_policy(policy)
    model = vision_transformer(tiny_axial, keras.Input((32, 32, 3)), classes=5)
    assert keras.backend.standardize_dtype(model.output.dtype) == "float32"
    scores = model.get_layer("encoderblock_0").attention_scores(
        keras.ops.zeros((1, 16, 16), policy.split("_")[1])
    )
    assert [keras.backend.standardize_dtype(half.dtype) for half in scores] == [
        policy.split("_")[1]
    ] * 2


def test_stochastic_depth_of_an_axial_vit_grows_linearly(tiny_axial):
    model = vision_transformer(
        replace(tiny_axial, depth=3), keras.Input((32, 32, 3)), stochastic_depth_rate=0.2
    )
    np.testing.assert_allclose(
        [model.get_layer(f"encoderblock_{i}").drop_path_rate for i in range(3)], [0, 0.1, 0.2]
    )


def test_an_axial_vit_saved_and_loaded_is_the_same(tiny_axial, tmp_path):
    model = _randomize(
        vision_transformer(tiny_axial, keras.Input((32, 48, 3)), classes=5, dropout_rate=0.1)
    )
    model.save(tmp_path / "model.keras")
    images = _images(2, 32, 48, 3)
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        again.predict(images, verbose=0), model.predict(images, verbose=0)
    )


def test_tokens_are_dropped_once_before_the_first_block(tiny_vit):
    model = vision_transformer(tiny_vit, keras.Input((32, 32, 3)), classes=3, dropout_rate=0.5)
    before = keras.Model(model.input, model.get_layer("encoderblock_0").input)
    images = np.random.default_rng(0).normal(size=(8, 32, 32, 3))
    tokens = keras.ops.convert_to_numpy(before(images, training=True))
    assert 0.4 < np.mean(tokens == 0) < 0.6
    assert not np.any(keras.ops.convert_to_numpy(before(images, training=False))[:, 1:] == 0)
