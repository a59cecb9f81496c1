"""Requests that TensorFlow Serving replays. The witness is the package with its messages,
tensorflow-serving-api.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.signatures import signatures
from keras_vit.export.warmup import prediction_log, write_warmup

pytestmark = pytest.mark.tensorflow

SIZE = (32, 48)
JPEG = tf.io.encode_jpeg(
    np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)
).numpy()


@pytest.fixture(scope="module")
def messages():
    return pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")


@pytest.mark.parametrize(
    ("signature", "name", "value"),
    [
        (
            "predict",
            "images",
            np.linspace(-1, 1, 2 * 32 * 48 * 3, dtype=np.float32).reshape(2, *SIZE, 3),
        ),
        ("predict_uint8", "images", np.full((4, *SIZE, 3), 128, np.uint8)),
        ("serving_default", "image_bytes", [JPEG, b""]),
        ("x" * 300, "été", 1.0),
        ("x" * 127, "y" * 128, 1.0),
    ],
)
def test_a_request_is_written_as_the_package_writes_it(messages, signature: str, name: str, value):
    tensor = tf.make_tensor_proto(value)
    log = messages.PredictionLog()
    log.predict_log.request.model_spec.name = "vit"
    log.predict_log.request.model_spec.signature_name = signature
    log.predict_log.request.inputs[name].CopyFrom(tensor)
    assert prediction_log("vit", signature, {name: tensor}) == log.SerializeToString(
        deterministic=True
    )


def test_several_inputs_stand_in_the_order_of_their_names(messages):
    inputs = {"b": tf.make_tensor_proto(2), "a": tf.make_tensor_proto([b"1"])}
    log = messages.PredictionLog.FromString(prediction_log("vit", "both", inputs))
    assert {
        name: tf.make_ndarray(value).tolist()
        for name, value in log.predict_log.request.inputs.items()
    } == {
        "a": [b"1"],
        "b": 2,
    }


def test_every_signature_is_asked_for_one_image_and_for_more(messages, tiny_vit, tmp_path: Path):
    model = keras_vit.application(tiny_vit)(
        weights=None, input_shape=(*SIZE, 3), include_top=False, pooling="avg"
    )
    _, asked = signatures(model, image_size=SIZE, attention=True)
    path = write_warmup(tmp_path, "vit", asked, image_size=SIZE, jpeg=JPEG)
    assert path == tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    assert path.stat().st_size < 30_000 + 6 * len(JPEG)  # images are not written out

    replayed = {}
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        request = messages.PredictionLog.FromString(record).predict_log.request
        ((name, tensor),) = request.inputs.items()
        assert request.model_spec.name == "vit"
        given = tf.constant(tf.make_ndarray(tensor))
        outputs = asked[request.model_spec.signature_name](**{name: given})
        replayed.setdefault(request.model_spec.signature_name, []).append(len(given))
        assert all(len(values) == len(given) for values in outputs.values())
        if request.model_spec.signature_name == "serving_default":
            assert set(outputs["status"].numpy()) == {b"ok"}
    assert replayed == {name: [1, 4] for name in asked} and len(asked) == 5
