"""The front doors of the table: their exact numbers of parameters, and the arguments that
`keras.applications` has.
"""

import inspect

import keras
import pytest
from published_counts import PARAMETERS

import keras_vit
from keras_vit import cost
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

ROWS = VIT_VARIANTS | RESNET_VARIANTS
CONVENTION = [
    ("include_top", True),
    ("weights", "imagenet"),
    ("input_tensor", None),
    ("input_shape", None),
    ("pooling", None),
    ("classes", 1000),
    ("classifier_activation", "softmax"),
]

ONE_OF_EACH = ["ViT_Ti16", "R_ViT_Ti16", "AxialViT_B32", "BiT_R50x1", "ResNet50x1", "AxialResNet50"]


def test_every_row_is_counted():
    assert PARAMETERS.keys() == ROWS.keys() == set(keras_vit.list_models())


def test_counts_by_formula():
    assert PARAMETERS == {name: cost.parameters(row) for name, row in ROWS.items()}


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
        counts[name] = getattr(keras_vit, name)(
            weights=None, input_shape=(224, 224, 3)
        ).count_params()

    for name in names:
        jax.eval_shape(lambda name=name: build(name))
    assert counts == {name: PARAMETERS[name] for name in names}


@pytest.mark.once
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_signature_is_that_of_keras_applications(name):
    parameters = list(inspect.signature(getattr(keras_vit, name)).parameters.values())
    assert [(p.name, p.default) for p in parameters[:7]] == CONVENTION
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
