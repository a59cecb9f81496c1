"""The closed forms against what TensorFlow and JAX count of models that are built."""

import math
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_vit import cost
from keras_vit.models import vision_transformer
from keras_vit.models.resnet import resnet
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ViTVariant
from keras_vit.variants import VARIANTS as ROWS

needs_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="asks XLA: runs in the other half of `make test`"
)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def build(row, size, **options) -> keras.Model:
    images = keras.Input((*size, 3))
    if not isinstance(row, ViTVariant):
        return resnet(row, images, classes=10)
    options = {"classes": None if options.get("classifier") == "none" else 10} | options
    return vision_transformer(row, images, **options)


# A row for each option that only some families have.
FAMILY_OPTIONS: tuple[dict, ...] = (
    {"class_token": True, "classifier": "gap"},
    {"class_position": False},
    {"distilled": True},
    {"distilled": True, "class_position": False, "classifier": "token_gap"},
    {"num_registers": 3},
    {"num_registers": 2, "classifier": "gap"},
    {"norm_before_blocks": True},
    {"layer_scale": True},
    {"mlp": "swiglu"},
    {"mlp": "swiglu", "classifier": "map"},
    {"gelu": "quick"},
    {"attention_bias": "no_key"},
    {"attention_bias": "none", "classifier": "map"},
    {"patch_bias": False, "projection": 7},
    {"rotary": True, "num_registers": 4},
    {"norm_after_pooling": True, "classifier": "gap", "class_token": True},
    {"norm_after_pooling": True, "classifier": "token_gap"},
    {"classifier": "token_gap"},
    {"classifier": "none", "distilled": False},
    {"pixel_mean": (0.4, 0.5, 0.6)},
)


def shallow(name: str, **changes):
    """A row of full width with one block, and two units in each of two stages."""
    row = replace(ROWS[name], **changes)
    if not isinstance(row, ViTVariant):
        return replace(row, units=(2, 2))
    return replace(
        row, depth=1, stem=row.stem and replace(row.stem, units=row.stem.units and (2, 1))
    )


# --- parameters
# ------------------------------------------------------------------------------------------------------


# What a class token adds, what each pooling adds, and every kind and place of positions.
OPTIONS = (
    {},
    {"classifier": "gap", "representation_size": 24},
    {"classifier": "map", "position_embedding": "learned_2d"},
    {"classifier": "none", "position_embedding": "sincos2d", "position_placement": "shared"},
    {"position_embedding": "relative"},
    {"classifier": "gap", "position_embedding": "none"},
    {"position_placement": "every_layer"},
    {"position_embedding": "learned_2d", "position_placement": "every_layer"},
    {"position_embedding": "learned_2d", "position_placement": "shared"},
)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "options"),
    [("ViT_Ti16", options) for options in OPTIONS]
    + [
        ("AxialViT_B16", OPTIONS[4]),
        ("AxialViT_B16", OPTIONS[6]),
        ("R50_ViT_B32", OPTIONS[4]),
        ("R_ViT_Ti16", OPTIONS[2]),
        ("R26_ViT_S32", OPTIONS[1]),
    ],
)
def test_parameters_are_those_of_the_model(name, options):
    row = replace(VIT_VARIANTS[name], width=32, depth=2, num_heads=4, mlp_dim=40)
    row = replace(row, stem=row.stem and replace(row.stem, units=row.stem.units and (1, 2)))
    size = (64, 96)
    classes = None if options.get("classifier") == "none" else 10
    expected = build(row, size, **options).count_params()
    assert cost.parameters(row, image_size=size, classes=classes, **options) == expected


@pytest.mark.once
@pytest.mark.parametrize("changes", FAMILY_OPTIONS, ids=str)
def test_parameters_of_every_option_of_a_row_are_those_of_the_model(changes):
    row = replace(VIT_VARIANTS["ViT_Ti16"], width=32, depth=2, num_heads=4, mlp_dim=40, **changes)
    classes = None if row.classifier == "none" else 10
    expected = build(row, (64, 96), classes=classes).count_params()
    assert cost.parameters(row, image_size=(64, 96), classes=classes) == expected


@pytest.mark.once
@pytest.mark.parametrize("name", ["ResNet50x1", "BiT_R50x1", "AxialResNet50"])
@pytest.mark.parametrize("size", [(32, 64), (45, 130), (7, 1)])
def test_parameters_of_a_trunk_are_those_of_the_model(name, size):
    row = replace(RESNET_VARIANTS[name], units=(2, 1, 1))
    assert cost.parameters(row, image_size=size, classes=10) == build(row, size).count_params()


@pytest.mark.once
def test_an_axial_stem_has_parameters_that_follow_the_image():
    row = shallow("R50_ViT_B32")
    row = replace(row, stem=replace(row.stem, axial=True))
    for size in ((64, 96), (33, 72)):
        found = cost.parameters(row, image_size=size, classes=10, position_embedding="none")
        assert found == build(row, size, position_embedding="none").count_params()


# --- what TensorFlow counts
# ------------------------------------------------------------------------------------------


def frozen_graph(model: keras.Model, size: tuple[int, int]):
    """One image's forward pass as TensorFlow traces it, with the weights as constants."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    traced = tf.function(lambda images: model(images)).get_concrete_function(
        tf.TensorSpec((1, *size, 3))
    )
    return convert_variables_to_constants_v2(traced).graph


def profiled_flops(graph) -> dict[str, int]:
    """FLOPs by type of operation, as TensorFlow's profiler counts them."""
    import tensorflow as tf

    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation() | {"output": "none"}
    node, found = tf.compat.v1.profiler.profile(graph, cmd="op", options=options), {}
    while node.children:  # this view is a chain
        node = node.children[0]
        found[node.name] = node.float_ops
    return found


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "size", "options", "everything"),
    [
        slow("ViT_B16", (224, 224), {}, 0.99),
        ("ViT_Ti16", (96, 160), {"position_embedding": "relative", "classifier": "map"}, 0.97),
        ("R50_ViT_B16", (97, 64), {"representation_size": 24}, 0.97),
        ("BiT_R50x1", (224, 224), {}, 0.95),
        slow("ResNet50x1", (65, 96), {}, 0.8),
        ("AxialViT_B16", (96, 160), {}, 0.98),
        ("CLIP_B16", (96, 160), {}, 0.99),
        ("DINOv3_S16plus", (96, 160), {}, 0.99),
        ("DeiT_S16_distilled", (96, 160), {}, 0.99),
        slow("MAE_B16", (96, 160), {"classifier": "token_gap"}, 0.99),
        slow("AxialResNet50", (65, 96), {}, 0.8),
    ],
)
@pytest.mark.sampled(3)
def test_products_are_exactly_those_that_tensorflow_counts(name, size, options, everything):
    """Matrix products and convolutions by type of operation; then how much of all that the profiler
    counts they are.

    The rest is norms, softmax, GELU, biases, and the standardization of kernels, which weighs more
    the smaller the image. The profiler knows no `Einsum`; there is none in the graph.
    """
    row = shallow(name)
    graph = frozen_graph(build(row, size, **options), size)
    assert "Einsum" not in {operation.type for operation in graph.get_operations()}
    flops = profiled_flops(graph)
    products = sum(flops.get(kind, 0) for kind in ("MatMul", "BatchMatMulV2", "Conv2D"))
    assert 2 * cost.macs(row, size, classes=10, **options) == products
    assert everything < products / sum(flops.values()) < 1


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "changes"),
    [
        ("ViT_S16", 224, {}),
        ("ViT_S16", 384, {}),
        ("R26_ViT_S32", 224, {}),
        ("BiT_R50x1", 224, {}),
        ("AxialViT_B16", 224, {"depth": 2}),  # all twelve take 8 GB
    ],
)
def test_all_that_tensorflow_counts_of_a_whole_model_is_within_two_and_a_half_percent(
    name, size, changes
):
    row = replace(ROWS[name], **changes)
    flops = sum(profiled_flops(frozen_graph(build(row, (size, size)), (size, size))).values())
    ratio = 2 * cost.macs(row, (size, size), classes=10) / flops
    print(f"{name} at {size}: 2 * macs / profiler = {ratio:.4f}")
    assert 0.975 < ratio < 1


# Operations whose output is their input under another shape.
_ALIASES = ("Reshape", "Identity", "StopGradient", "Squeeze", "ExpandDims")


def peak_bytes(graph) -> int:
    """The largest sum of tensors that depend on the image, each alive from its operation to its
    last use.
    """
    buffers, steps = {}, []
    for operation in graph.get_operations():
        inputs = [buffers[tensor.name] for tensor in operation.inputs if tensor.name in buffers]
        if operation.type != "Placeholder" and not inputs:
            continue
        for tensor in operation.outputs:
            buffers[tensor.name] = inputs[0] if operation.type in _ALIASES else tensor
        steps.append(
            {
                tensor.name: tensor
                for tensor in (*inputs, *(buffers[t.name] for t in operation.outputs))
            }
        )
    last = {name: index for index, step in enumerate(steps) for name in step}
    alive, peak = {}, 0
    for index, step in enumerate(steps):
        alive |= {
            name: math.prod(tensor.shape.as_list()) * tensor.dtype.size
            for name, tensor in step.items()
        }
        peak = max(peak, sum(alive.values()))
        alive = {name: size for name, size in alive.items() if last[name] > index}
    return peak


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "size", "options", "dtype"),
    [
        ("ViT_Ti16", (224, 224), {}, "float32"),
        slow("ViT_Ti16", (384, 320), {}, "float32"),
        ("ViT_Ti16", (384, 320), {}, "bfloat16"),
        slow(
            "ViT_S32",
            (224, 224),
            {"classifier": "map", "position_embedding": "learned_2d"},
            "float32",
        ),
        ("ViT_S32", (224, 224), {"classifier": "gap"}, "bfloat16"),
        ("ViT_Ti16", (96, 160), {"position_embedding": "relative"}, "float32"),
        slow("ViT_Ti16", (96, 160), {"position_embedding": "relative"}, "bfloat16"),
        slow("R50_ViT_B16", (97, 64), {}, "float32"),
        slow("R_ViT_Ti16", (96, 64), {"classifier": "gap"}, "bfloat16"),
        slow("ResNet50x1", (224, 224), {}, "float32"),
        slow("ResNet50x1", (45, 130), {}, "bfloat16"),
        slow("BiT_R50x1", (45, 130), {}, "float32"),
        ("BiT_R50x1", (64, 96), {}, "bfloat16"),
        slow("AxialViT_B16", (384, 160), {"position_embedding": "relative"}, "float32"),
        ("AxialResNet50", (97, 64), {}, "float32"),
        ("CLIP_B16", (96, 160), {}, "float32"),
        ("DINOv3_S16plus", (96, 160), {}, "bfloat16"),
        ("DINOv3_S16plus", (96, 160), {}, "float32"),
        ("DINOv3_S16", (224, 224), {}, "float32"),
        slow("DINOv2_S14_reg4", (98, 112), {}, "float32"),
        slow("DeiT_S16_distilled", (96, 160), {}, "bfloat16"),
        slow("MAE_B16", (96, 160), {}, "float32"),
    ],
)
@pytest.mark.sampled(4)
def test_peak_memory_is_that_of_the_tensors_alive_in_the_graph(name, size, options, dtype):
    if dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    row = shallow(name)
    measured = peak_bytes(frozen_graph(build(row, size, **options), size))
    # Group norms keep a few numbers per image, and float16 casts some of them.
    assert cost.activation_bytes(row, size, dtype=dtype, **options) == pytest.approx(
        measured, rel=0.005
    )


@pytest.mark.tensorflow
def test_peak_memory_of_the_exact_gelu():
    row = shallow("ViT_Ti16", gelu="exact")
    measured = peak_bytes(frozen_graph(build(row, (96, 64)), (96, 64)))
    assert cost.activation_bytes(row, (96, 64)) == pytest.approx(measured, rel=0.005)


# --- what JAX counts
# -------------------------------------------------------------------------------------------------


def as_function(model: keras.Model):
    """The model as a function of weights and images; its weights."""
    trainable = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]

    def forward(trainable, images):
        return model.stateless_call(trainable, others, images, training=True)[0]

    return forward, trainable


@needs_jax
@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("ViT_B16", (96, 96), {}),
        ("ViT_Ti16", (96, 160), {"position_embedding": "relative"}),
        ("ResNet50x1", (224, 224), {}),
        ("BiT_R50x1", (224, 224), {}),
        slow("AxialViT_B16", (96, 160), {}),
    ],
)
def test_xla_counts_no_products_on_padding(name, size, options):
    import jax

    row = shallow(name)
    forward, weights = as_function(build(row, size, **options))
    lowered = jax.jit(forward).lower(weights, jax.ShapeDtypeStruct((1, *size, 3), "float32"))
    flops = lowered.cost_analysis()["flops"]
    assert 0.95 < 2 * cost.macs(row, size, classes=10, count_padding=False, **options) / flops < 1


@needs_jax
@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("ViT_Ti16", (96, 64), {}),
        slow("ViT_Ti16", (96, 160), {"position_embedding": "relative", "classifier": "gap"}),
        slow("ViT_S16", (32, 64), {"classifier": "map", "position_embedding": "learned_2d"}),
        slow("AxialViT_B32", (96, 160), {}),
        slow("R26_ViT_S32", (64, 96), {}),
        slow("ResNet50x1", (33, 64), {}),
        slow("AxialResNet50", (33, 64), {}),
        ("BiT_R50x1", (33, 64), {}),
        slow("CLIP_B16", (96, 64), {}),
        ("DINOv3_S16plus", (96, 64), {}),
        slow("DINOv2_S14_reg4", (98, 56), {}),
        slow("DeiT_S16_distilled", (96, 64), {}),
        slow("MAE_B16", (96, 64), {}),
        slow("SigLIP_B16", (96, 64), {}),
    ],
)
def test_training_keeps_what_jax_keeps_for_the_gradient(name, size, options):
    """Arrays that belong to the images; ReLU's gradient also names arrays of nothing but zeros,
    which XLA removes.
    """
    import jax

    row, batch = shallow(name), 23  # no other size in the model is a multiple of it
    model, generator = build(row, size, **options), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.1 * generator.standard_normal(weight.shape).astype("float32"))
    forward, weights = as_function(model)

    @jax.jit
    def residuals(weights, images):
        return jax.tree.leaves(jax.vjp(lambda weights: forward(weights, images), weights)[1])

    images = generator.standard_normal((batch, *size, 3)).astype("float32")
    kept = [np.asarray(array) for array in residuals(weights, images)]
    kept = [
        array
        for array in kept
        if array.ndim > 1 and array.shape[0] % batch == 0 and array.min() < array.max()
    ]
    # what a group norm keeps of each channel
    kept = [array for array in kept if array.shape[1:3] != (1, 1)]
    measured = sum(array.nbytes for array in kept) / batch
    # We leave out what norms and the softmax keep per token or group.
    assert 0.98 < cost.activation_bytes(row, size, training=True, **options) / measured <= 1
