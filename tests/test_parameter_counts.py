"""The front doors of the table: their exact numbers of parameters, and the arguments that
`keras.applications` has.
"""

import dataclasses
import inspect
import math

import keras
import pytest
from published_counts import PARAMETERS, RIVALS
from torch_peers import import_timm

import keras_vit
from keras_vit import cost
from keras_vit.variants import FAMILY_VARIANTS
from keras_vit.variants import VARIANTS as ROWS

CONVENTION = [
    ("include_top", True),
    ("weights", "imagenet"),
    ("input_tensor", None),
    ("input_shape", None),
    ("pooling", None),
    ("classes", 1000),
    ("classifier_activation", "softmax"),
]

ONE_OF_EACH = [
    *("ViT_Ti16", "R_ViT_Ti16", "AxialViT_B32", "BiT_R50x1", "ResNet50x1", "AxialResNet50"),
    *("SigLIP_B16", "MAE_B16", "DeiT_Ti16_distilled", "DeiT3_S16", "CLIP_B32"),
    *("DINOv2_S14_reg4", "DINOv3_S16plus"),
]


def default_classes(name: str) -> int:
    return inspect.signature(getattr(keras_vit, name)).parameters["classes"].default


def test_every_row_is_counted():
    assert PARAMETERS.keys() == ROWS.keys() == set(keras_vit.list_models())


def test_counts_by_formula():
    assert PARAMETERS == {
        name: cost.parameters(row, classes=default_classes(name)) for name, row in ROWS.items()
    }


@pytest.mark.once
@pytest.mark.parametrize("name", RIVALS)
def test_counts_of_the_same_models_elsewhere(name):
    timm = import_timm()
    import torch

    row, rival = FAMILY_VARIANTS[name], RIVALS[name]
    with torch.device("meta"):
        if rival.endswith("Model") or rival.endswith("Projection"):
            model, extra = build_in_transformers(row, rival)
        else:
            # timm's head of MAE reads the class token unless it is asked for the mean.
            pooling = {"global_pool": "avg"} if row.norm_after_pooling else {}
            model, extra = timm.create_model(rival, num_classes=1000, **pooling), 0
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert PARAMETERS[name] == counted + extra


def build_in_transformers(row, rival: str):
    """The model, and the parameters by which ours has more: a head, and no mask token."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": row.width,
        "num_hidden_layers": row.depth,
        "num_attention_heads": row.num_heads,
        "image_size": row.image_size,
        "patch_size": row.patch_size,
    }
    if rival.startswith("CLIP"):
        config = transformers.CLIPVisionConfig(
            intermediate_size=row.mlp_dim, projection_dim=row.projection, **sizes
        )
        return transformers.CLIPVisionModelWithProjection(config), 0
    config = transformers.Dinov2WithRegistersConfig(
        num_register_tokens=row.num_registers, use_swiglu_ffn=row.mlp == "swiglu", **sizes
    )
    return getattr(transformers, rival)(config), 1000 * (row.width + 1) - row.width


def test_every_family_is_counted_elsewhere():
    assert RIVALS.keys() == FAMILY_VARIANTS.keys()


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="runs in the JAX half: it builds without numbers there"
)
@pytest.mark.parametrize(
    "names", [ONE_OF_EACH, pytest.param(sorted(PARAMETERS), marks=pytest.mark.slow)]
)
def test_exact_parameter_counts(names: list[str]):
    import jax

    counts = {}

    def build(name: str) -> None:
        counts[name] = getattr(keras_vit, name)(weights=None).count_params()

    for name in names:
        jax.eval_shape(lambda name=name: build(name))
    assert counts == {name: PARAMETERS[name] for name in names}


@pytest.mark.once
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_signature_is_that_of_keras_applications(name):
    parameters = list(inspect.signature(getattr(keras_vit, name)).parameters.values())
    expected = dict(CONVENTION)
    if name.startswith("CLIP"):  # the head is a projection, not a classifier
        expected |= {"classes": ROWS[name].projection, "classifier_activation": None}
    assert {p.name: p.default for p in parameters[:7]} == expected
    assert [p.name for p in parameters[:7]] == [*expected]
    assert (parameters[7].name, parameters[7].default) == ("name", name.lower())
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[8:])
    assert parameters[8].name == "include_preprocessing"


@pytest.mark.once
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_docstring_names_the_model_and_its_size(name):
    function = getattr(keras_vit, name)
    assert function.__name__ == name
    assert f"{PARAMETERS[name]:,} parameters" in function.__doc__
    assert "{" not in function.__doc__


@pytest.mark.parametrize("classifier", ["token", "gap", "map", "token_gap"])
def test_a_norm_after_the_pooling_is_counted_where_it_is_built(classifier: str):
    tiny = {"name": "tiny", "depth": 1, "width": 32, "num_heads": 2, "mlp_dim": 64}
    row = dataclasses.replace(ROWS["MAE_B16"], **tiny)
    images = keras.Input((32, 48, 3))
    model = keras_vit.models.vision_transformer(row, images, classes=5, classifier=classifier)
    counted = cost.parameters(row, image_size=(32, 48), classes=5, classifier=classifier)
    assert counted == sum(math.prod(variable.shape) for variable in model.trainable_variables)
