"""The examples in docstrings run, and print what they say."""

import dataclasses
import doctest
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(keras_vit.__path__, "keras_vit.")
    # `jax_step` is imported on JAX alone; it has no examples.
    if not info.ispkg and not info.name.endswith(("__main__", "jax_step"))
)
# Their examples take seconds: they export, train or evaluate. All of them together are a minute.
EXPENSIVE = (
    "analyze.attention",
    "analyze.attention_sites",
    "analyze.embeddings",
    "analyze.trend_plots",
    "data.fractals",
    "data.pipeline",
    "models.resnet",
    "verify",
    "evaluate.",
    "export.",
    "train.",
)
NAMES = {"dataclasses": dataclasses, "keras": keras, "keras_vit": keras_vit, "np": np}
NAMES |= {"RESNET_VARIANTS": RESNET_VARIANTS, "VIT_VARIANTS": VIT_VARIANTS}
NAMES |= {name: getattr(layers, name) for name in layers.__all__}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow if name.removeprefix("keras_vit.").startswith(EXPENSIVE) else (),
        )
        for name in MODULES
    ],
)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in finder.find(module, name, extraglobs=NAMES):
        if test.examples and test.name.split(".")[-1] not in keras_vit.list_models():
            runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("name", ["ViT_Ti16", "R_ViT_Ti16", "BiT_R50x1"])
def test_examples_of_the_front_door_run(name):
    """Their docstrings are made from one template, so three stand for all."""
    runner = doctest.DocTestRunner()
    text = getattr(keras_vit, name).__doc__
    runner.run(doctest.DocTestParser().get_doctest(text, dict(NAMES), name, None, None))
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("name", layers.__all__)
def test_every_layer_has_an_example(name):
    assert ">>>" in getattr(layers, name).__doc__
