"""Requests that TensorFlow Serving replays before it says that it is ready: else the first callers
wait for it.

The server reads them from a file of a fixed name beside the model. Its format, a `PredictionLog` in
each record of a
TFRecord file, is written here by hand: what is needed of it are six fields, and the package that
has the rest, tensorflow-serving-api, is one more for whoever exports.

Source: tensorflow/serving, apis/{prediction_log,predict,model}.proto (the numbers of the fields)
and servables/tensorflow/saved_model_warmup_util.h (the place of the file).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

FILE = "assets.extra/tf_serving_warmup_requests"
BATCH_SIZES = (1, 4)  # the first call of any size but one is slow, too

# Numbers of fields: PredictionLog.predict_log.request is a PredictRequest, and an entry of a map
# has a key and a value.
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_NAME, _SIGNATURE_NAME = 1, 3
_KEY, _VALUE = 1, 2


def write_warmup(
    folder: str | os.PathLike,
    model_name: str,
    signatures: Mapping[str, Callable],
    *,
    image_size: tuple[int, int],
    jpeg: bytes,
) -> Path:
    """Writes requests for every signature, in batches of 1 and of more, into the folder of a
    SavedModel.

    Args:
        folder: Of one version.
        model_name: By which the server knows the model.
        signatures: Functions with an `input_signature` of one tensor, as
            `keras_vit.export.signatures` gives them.
        image_size: (height, width) in pixels.
        jpeg: A photograph for the signature that takes files.

    Returns:
        The path of the file.
    """
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, function in signatures.items():
            (spec,) = function.input_signature
            for tensor in _inputs(spec, image_size, jpeg):
                writer.write(prediction_log(model_name, name, {spec.name: tensor}))
    return path


def _inputs(spec: tf.TensorSpec, image_size: tuple[int, int], jpeg: bytes) -> Iterator[Any]:
    """A batch of each size. Of images one number is written, which stands for all: grey ones do."""
    for count in BATCH_SIZES:
        if spec.dtype == tf.string:
            yield tf.make_tensor_proto([jpeg] * count, tf.string)
        else:
            grey = 128 if spec.dtype == tf.uint8 else 0
            yield tf.make_tensor_proto(grey, spec.dtype, shape=[count, *image_size, 3])


def prediction_log(model_name: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Returns a `PredictionLog` of one request, as bytes.

    Args:
        model_name: By which the server knows the model.
        signature: Name of the signature.
        inputs: Name to `TensorProto`.

    Example:
        >>> prediction_log("vit", "predict", {"images": tf.make_tensor_proto(1.0)})[:9]
        b'2(\\n&\\n\\x0e\\n\\x03v'
    """
    spec = _field(_NAME, model_name.encode()) + _field(_SIGNATURE_NAME, signature.encode())
    request = _field(_MODEL_SPEC, spec)
    for name, tensor in sorted(inputs.items()):
        request += _field(
            _INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, tensor.SerializeToString())
        )
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes: its number with wire type 2, its length, itself."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
