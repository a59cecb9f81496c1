"""The hash of what a model computes besides its weights: the same for the same model, however often
and wherever it is made.
"""

import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit.evaluate.config_hash import config_sha256  # noqa: E402

pytestmark = pytest.mark.tensorflow

BUILD = """
import keras

def build(path=None, factor=2.0):
    images, inside = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(1 / 255)(images) * factor - 0.5
    x = keras.Model(inside, keras.layers.Dense(4, "gelu")(inside))(x)
    x = keras.Sequential([keras.layers.Dense(4), keras.layers.ReLU()])(x)
    x = keras.ops.concatenate([x[:, :4], x[:, 4:]], axis=2)
    x = keras.layers.TimeDistributed(keras.Sequential([keras.layers.Dense(2)]))(x)
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Dropout(0.1)(x))
    return keras.Model(images, keras.layers.Dense(3, activation="softmax")(pooled))
"""
names: dict = {}
exec(BUILD, names)
build = names["build"]


def test_a_model_built_or_loaded_again_anywhere_has_the_same_hash(tmp_path: Path):
    first, second = build(), build()
    automatic = [{layer.name for layer in model.layers} for model in (first, second)]
    assert not automatic[0] & automatic[1]
    assert config_sha256(first) == config_sha256(second)
    first.save(tmp_path / "model.keras")
    loaded = [keras.models.load_model(tmp_path / "model.keras") for _ in range(2)]
    assert len({config_sha256(model) for model in loaded}) == 1
    code = (
        f"{BUILD}\nimport sys\nfrom keras_vit.evaluate.config_hash import config_sha256\n"
        "keras.layers.Softmax(), keras.layers.Dense(1)  # counts names up\n"
        "print(config_sha256(build()), config_sha256(keras.models.load_model(sys.argv[1])))"
    )
    done = warm.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )
    assert done.stdout.split() == [config_sha256(first), config_sha256(loaded[0])], done.stderr


def test_constants_and_connections_of_operations_count():
    def join(order: tuple[int, int]) -> keras.Model:
        images = keras.Input((8, 8, 3))
        parts = [keras.layers.Dense(2)(images), keras.layers.Dense(2)(images)]
        return keras.Model(images, keras.ops.subtract(*(parts[place] for place in order)))

    found = [config_sha256(build()), config_sha256(build(factor=2.5))]
    found += [config_sha256(join(order)) for order in ((0, 1), (0, 0))]
    assert len(set(found)) == 4


def test_what_matters_in_training_alone_does_not_count():
    images = keras.Input((8, 8, 3))

    def model(**options) -> keras.Model:
        return keras.Model(images, keras.layers.Dense(2, **options)(images))

    plain = config_sha256(model())
    other = model(kernel_initializer="zeros", kernel_regularizer="l2", bias_constraint="non_neg")
    other.trainable = False
    assert config_sha256(other) == plain != config_sha256(model(activation="relu"))


def test_layers_without_a_config_and_arrays_in_a_config_end_nothing():
    class Own(keras.layers.Layer):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def call(self, x):
            return self.function(x)

    class Table(keras.layers.Layer):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def call(self, x):
            return x + keras.ops.convert_to_tensor(self.table, "float32")

        def get_config(self):
            return {**super().get_config(), "table": self.table, 3: {1, 2}}

    images = keras.Input((8, 8, 3))
    found = [
        config_sha256(keras.Model(images, layer(images)))
        for layer in (Own(abs), Own(abs), Table(np.arange(3)), Table(np.arange(3) * 2))
    ]
    assert found[0] == found[1] and len(set(found)) == 3


@pytest.mark.parametrize(
    "changed",
    [{"classifier": "gap"}, {"classifier_activation": None}, {"include_preprocessing": True}],
)
def test_options_of_models_of_this_package_count(changed: dict, shallow):
    options = {"weights": None, "input_shape": (32, 32, 3)}
    first, again = (config_sha256(keras_vit.ViT_Ti16(**options)) for _ in range(2))
    assert first == again != config_sha256(keras_vit.ViT_Ti16(**options, **changed))
