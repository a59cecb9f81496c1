"""The class token computed alone is the one among all tokens, and what nobody reads is not
computed.
"""

import gc
import math
import weakref

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from keras_vit.models import vision_transformer  # noqa: E402
from keras_vit.models.class_token import ClassTokenModel, block_read_at_class_token  # noqa: E402
from keras_vit.models.ends import replace_head  # noqa: E402
from keras_vit.train.remat import rematerialize  # noqa: E402

pytestmark = pytest.mark.tensorflow

SIZE, TOKENS, BATCH = (16, 24), 7, 3  # of patches of 8 x 8, and the class token
IMAGES = np.random.default_rng(0).normal(size=(BATCH, *SIZE, 3)).astype("float32")


def build(row, **options) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = vision_transformer(row, keras.Input((*SIZE, 3)), classes=5, **options)
    draws = np.random.default_rng(1)
    model.set_weights(
        [weight + 0.3 * draws.normal(size=weight.shape) for weight in model.get_weights()]
    )
    return model


def reading_all(model: keras.Model, **more) -> keras.Model:
    """The same with a head that takes the class token from all, as anybody would who knows of no
    other way.
    """
    tokens = model.get_layer("encoder_norm").output
    return keras.Model(
        model.input, {"logits": model.get_layer("predictions")(tokens[:, 0]), **more}
    )


def products_of_images(graph) -> int:
    """Multiply-adds, for one image, of the products that the graph's results depend on."""
    alive, found = set(), [tensor.op for tensor in graph.outputs]
    while found:
        operation = found.pop()
        if operation not in alive:
            alive.add(operation)
            found += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    total = 0
    for operation in alive:
        if operation.type in ("MatMul", "BatchMatMulV2"):
            turned = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            total += operation.inputs[0].shape[-2 if turned else -1] * math.prod(
                operation.outputs[0].shape
            )
        elif operation.type == "Einsum":
            axes = operation.get_attr("equation").decode().split("->")[0].split(",")
            shapes = [
                dict(zip(names, x.shape, strict=True))
                for names, x in zip(axes, operation.inputs, strict=True)
            ]
            total += math.prod((shapes[0] | shapes[1]).values())
    return total // BATCH


def gradients(model: keras.Model):
    """The function of all gradients of a training step, and their values."""

    @tf.function
    def compute(images):
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs
            loss = tf.reduce_sum(tf.sin(tf.cast(logits, tf.float32)))
        return tape.gradient(loss, [weight.value for weight in model.trainable_weights])

    return compute.get_concrete_function(tf.constant(IMAGES)), compute(tf.constant(IMAGES))


def saved(row, dense: int, attention: int) -> int:
    """By hand: the last block's queries, what the heads give and the MLP, and its attention, for
    all tokens but one.

    Args:
        row: Of the model.
        dense, attention: How often each product of the forward pass is made, in a like form, until
            all is done.
    """
    of_rows = 2 * row.width**2 + 2 * row.width * row.mlp_dim
    return (TOKENS - 1) * (dense * of_rows + attention * TOKENS * row.width)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, "float32"),
        ({"query_chunk": 3}, "float32"),
        ({"representation_size": 6}, "float64"),
        ({"gelu": "exact"}, "mixed_bfloat16"),
        *(
            pytest.param(options, policy, marks=pytest.mark.slow)
            for options in ({}, {"query_chunk": 3}, {"gelu": "exact"})
            for policy in ("float32", "float64", "mixed_bfloat16")
        ),
    ],
    ids=str,
)
def test_predict_gives_what_a_model_gives_that_reads_all(tiny_vit, options, policy):
    keras.config.set_dtype_policy(policy)
    model = build(tiny_vit, **options)
    expected = keras.ops.convert_to_numpy(model(IMAGES))  # without a graph
    found = model.predict_on_batch(IMAGES)
    tolerance = {"float32": 1e-5, "float64": 1e-6, "mixed_bfloat16": 0.05}[policy] * np.abs(
        expected
    ).max()
    np.testing.assert_allclose(found, expected, atol=tolerance)
    tokens = keras.Model(model.input, [model.output, model.get_layer("encoder_norm").output])
    again, all_tokens = tokens.predict_on_batch(IMAGES)
    assert all_tokens.shape == (BATCH, TOKENS, 16)
    np.testing.assert_allclose(again, found, atol=tolerance)  # the one from among all tokens


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("lora", "query"), ("lora", "key"), ("int8", "key"), ("int8", "out")),
        *(pytest.param("lora", name, marks=pytest.mark.slow) for name in ("value", "out")),
        *(pytest.param("int8", name, marks=pytest.mark.slow) for name in ("query", "value")),
    ],
)
def test_adapted_and_quantized_products_are_used_as_they_are(tiny_vit, kind, name):
    model = build(tiny_vit)
    dense = getattr(model.get_layer("encoderblock_1").attention, name)
    if kind == "int8":
        dense.quantize("int8")
    else:
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(np.random.default_rng(2).normal(size=dense.lora_kernel_b.shape))
    expected = keras.ops.convert_to_numpy(model(IMAGES))
    np.testing.assert_allclose(
        model.predict_on_batch(IMAGES), expected, atol=1e-5 * np.abs(expected).max()
    )


def test_predict_computes_of_the_last_block_what_is_read(tiny_vit):
    counts = {}
    for name, model in {"alone": build(tiny_vit), "all": reading_all(build(tiny_vit))}.items():
        model.predict_on_batch(IMAGES)
        graph = model.predict_function.get_concrete_function([(tf.constant(IMAGES),)]).graph
        counts[name] = products_of_images(graph)
    width = tiny_vit.width
    # all of them, for one row through each kernel
    of_keys_and_values = 2 * TOKENS * width**2 - 2 * width**2
    # tokens are longer than a head's part of them
    in_attention = -2 * TOKENS * width * (tiny_vit.num_heads - 1)
    expected = saved(tiny_vit, dense=1, attention=2) + of_keys_and_values + in_attention
    assert counts["all"] - counts["alone"] == expected > 0


@pytest.mark.parametrize(
    "options", [{}, {"query_chunk": 3}, {"attention_dropout_rate": 1e-12}], ids=str
)
@pytest.mark.sampled(1)
def test_training_gives_the_gradients_of_a_model_that_reads_all(tiny_vit, options):
    model = build(tiny_vit, **options)
    (graph, found), (whole, expected) = gradients(model), gradients(reading_all(model))
    assert len(found) == len(expected) == len(model.trainable_weights)
    largest = max(np.abs(values).max() for values in expected)
    for weight, one, other in zip(model.trainable_weights, found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=4e-6 * largest, err_msg=weight.path)
    difference = products_of_images(whole) - products_of_images(graph)
    # forward, and twice back; of an attention the logits once more, and twice two gradients
    if not options:
        assert difference == saved(tiny_vit, dense=3, attention=2 + 5)
    else:
        assert (difference > 0) == ("query_chunk" in options)


@pytest.mark.parametrize(
    "options",
    [{"dropout_rate": 0.5}, {"attention_dropout_rate": 0.5}, {"stochastic_depth_rate": 0.5}],
    ids=str,
)
def test_what_is_drawn_is_drawn_for_all_tokens(tiny_vit, options):
    """Else a seed would give other numbers than it gave."""
    model = build(tiny_vit, **options)
    states = [variable for variable in model.non_trainable_variables if "seed" in variable.path]
    start, found = [state.numpy() for state in states], []
    for each in (model, reading_all(model)):
        for state, value in zip(states, start, strict=True):
            state.assign(value)
        outputs = tf.function(each)(tf.constant(IMAGES), training=True)
        found.append(outputs["logits"] if isinstance(outputs, dict) else outputs)
    np.testing.assert_array_equal(*found)


def test_relative_positions_and_other_poolings_read_all(tiny_vit):
    for options in (
        {"position_embedding": "relative"},
        {"classifier": "gap"},
        {"classifier": "map"},
    ):
        model = build(tiny_vit, **options)
        expected = keras.ops.convert_to_numpy(model(IMAGES))
        np.testing.assert_allclose(
            model.predict_on_batch(IMAGES), expected, atol=1e-5 * np.abs(expected).max()
        )


def test_a_graph_that_is_traced_elsewhere_holds_the_plain_model(tiny_vit):
    """What is saved, exported or counted is the model as it is drawn."""
    model = build(tiny_vit)
    graphs = [
        tf.function(each).get_concrete_function(tf.constant(IMAGES)).graph
        for each in (model, reading_all(model))
    ]
    assert products_of_images(graphs[0]) == products_of_images(graphs[1])


def test_nothing_is_held_longer_than_its_graph(tiny_vit):
    model = build(tiny_vit)
    model.predict_on_batch(IMAGES)
    graph = weakref.ref(
        model.predict_function.get_concrete_function([(tf.constant(IMAGES),)]).graph
    )
    assert graph() is not None
    del model
    keras.backend.clear_session()
    gc.collect()
    assert graph() is None


def test_the_class_token_is_computed_alone_after_saving_cloning_and_nesting(tiny_vit, tmp_path):
    model = build(tiny_vit)
    model.save(tmp_path / "model.keras")
    images = keras.Input((*SIZE, 3))
    copies = [
        keras.models.load_model(tmp_path / "model.keras"),
        keras.models.clone_model(model),
        rematerialize(model),
    ]
    for copy in (*copies, replace_head(model, 3)):
        assert block_read_at_class_token(copy).name == "encoderblock_1"
    nested = keras.Model(images, keras.layers.Softmax()(model(images)))
    nested.predict_on_batch(IMAGES)
    model.predict_on_batch(IMAGES)
    counts = [
        products_of_images(
            each.predict_function.get_concrete_function([(tf.constant(IMAGES),)]).graph
        )
        for each in (model, nested)
    ]
    assert counts[0] == counts[1]


def test_a_block_that_somebody_else_reads_computes_all_tokens(tiny_vit):
    model = build(tiny_vit)
    tokens = model.get_layer("encoderblock_1").output
    assert block_read_at_class_token(ClassTokenModel(model.input, [model.output, tokens])) is None
    assert (
        block_read_at_class_token(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
        is None
    )
