"""Tracing, which takes most of the time of short runs: no function of the package is converted by
AutoGraph, and no signature of an export is traced twice.
"""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf  # noqa: E402
from PIL import Image  # noqa: E402
from tensorflow.python.autograph.pyct import transpiler  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit import export  # noqa: E402
from keras_vit.data import duplicates, pipeline, sources, transforms  # noqa: E402
from keras_vit.data.randaugment import rand_augment  # noqa: E402
from keras_vit.export import image_bytes  # noqa: E402

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def converted(monkeypatch) -> list[str]:
    """Names of the functions that AutoGraph converts, those of its cache included."""
    found = []
    convert = transpiler.PyToPy.transform_function

    def record(self, function, context):
        found.append(f"{function.__module__}.{function.__qualname__}")
        return convert(self, function, context)

    monkeypatch.setattr(transpiler.PyToPy, "transform_function", record)
    return found


@pytest.fixture
def photos(tmp_path):
    for number, kind in enumerate(("daisy", "tulip")):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(6):
            pixels = np.random.default_rng(6 * number + i).integers(0, 256, (40, 48, 3), "uint8")
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{i}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def model(tiny_vit):
    return keras_vit.application(tiny_vit)(weights=None, input_shape=(32, 32, 3), classes=2)


def of_the_package(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("keras_vit")]


def test_what_is_converted_is_seen(converted):
    tf.data.Dataset.range(1).map(lambda index: index + pipeline.padded_rows(4, 2))
    assert of_the_package(converted) == ["keras_vit.data.pipeline.padded_rows"]


def test_no_batch_is_of_converted_functions(converted, photos):
    source = sources.image_folder(photos)
    crop = [transforms.inception_crop(32), transforms.flip_left_right, transforms.to_uint8]
    chosen = [*crop, rand_augment(2, 10.0), transforms.scale_to(-1, 1)]
    options = {"batch_size": 4, "share": pipeline.Share(rows=4, num_parts=2)}
    training = pipeline.training_batches(
        source, chosen, seed=0, mixup_alpha=0.2, noise_length=3, stamp=lambda: 0, **options
    )
    evaluation = pipeline.evaluation_batches(source, [transforms.resize(32)], **options)
    assert len(next(iter(training))) == len(next(iter(evaluation))) == 3
    assert len(list(source.examples())) == source.num_examples
    assert duplicates.find_duplicates(source, source)
    assert of_the_package(converted) == []


def test_no_step_and_no_export_is_of_converted_functions(converted, photos, model, tmp_path):
    done = keras_vit.finetune(model, photos, tmp_path / "run", steps=2)
    export.saved_model(done.model, tmp_path / "flowers")
    export.tflite(done.model, tmp_path / "flowers.tflite")
    assert of_the_package(converted) == []


def test_a_transform_that_branches_on_an_image_is_a_tf_function(photos):
    source = sources.image_folder(photos)

    def darken(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if tf.reduce_mean(image) > 0:
            return image / 2
        return image

    def first(transform):
        chosen = [transforms.resize(32), transform]
        return next(iter(pipeline.evaluation_batches(source, chosen, batch_size=2)))[0]

    np.testing.assert_array_equal(2 * first(tf.function(darken)), first(lambda image, seed: image))
    with pytest.raises(TypeError, match="tf.function"):
        first(darken)


def test_each_signature_is_traced_once(monkeypatch, model, tmp_path):
    traced = []
    read = image_bytes._classify
    monkeypatch.setattr(image_bytes, "_classify", lambda *given: traced.append(1) or read(*given))
    export.saved_model(model, tmp_path / "tiny")
    assert len(traced) == 1
