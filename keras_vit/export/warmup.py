"""Warm-up requests, which TensorFlow Serving replays before it reports that it is ready.

Without them, the first callers wait while the graph is initialized. The server reads the requests
from a file with a fixed name in the SavedModel: a TFRecord file with one `PredictionLog` in each
record. Only six fields of this message are needed, so this module encodes them itself instead of
depending on tensorflow-serving-api.

Source: tensorflow/serving, apis/{prediction_log,predict,model}.proto (field numbers) and
servables/tensorflow/saved_model_warmup_util.h (path of the file).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

FILE = "assets.extra/tf_serving_warmup_requests"
BATCH_SIZES = (1, 4)  # the first batch larger than one is slow too

# Field numbers. PredictionLog.predict_log.request is a PredictRequest; each entry of a map has a
# key and a value.
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
    """Writes requests for each signature and batch size into the folder of a SavedModel.

    Args:
        folder: Folder of one version.
        model_name: Name of the model on the server.
        signatures: Functions with an `input_signature` of one tensor, as returned by
            `keras_vit.export.signatures`.
        image_size: (height, width) in pixels.
        jpeg: JPEG bytes for the signature that takes files.

    Returns:
        The path of the file.
    """
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, function in signatures.items():
            (spec,) = function.input_signature
            for tensor in _make_inputs(spec, image_size, jpeg):
                writer.write(prediction_log(model_name, name, {spec.name: tensor}))
    return path


def _make_inputs(spec: tf.TensorSpec, image_size: tuple[int, int], jpeg: bytes) -> Iterator[Any]:
    """Yields one batch of each size."""
    for count in BATCH_SIZES:
        if spec.dtype == tf.string:
            yield tf.make_tensor_proto([jpeg] * count, tf.string)
        else:
            # A constant tensor is stored as one number.
            grey = 128 if spec.dtype == tf.uint8 else 0
            yield tf.make_tensor_proto(grey, spec.dtype, shape=[count, *image_size, 3])


def prediction_log(model_name: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Encodes one request as a `PredictionLog`.

    Args:
        model_name: Name of the model on the server.
        signature: Name of the signature.
        inputs: Maps each input name to its `TensorProto`.

    Example:
        >>> prediction_log("vit", "predict", {"images": tf.make_tensor_proto(1.0)})[:9]
        b'2(\\n&\\n\\x0e\\n\\x03v'
    """
    spec = _encode_field(_NAME, model_name.encode()) + _encode_field(
        _SIGNATURE_NAME, signature.encode()
    )
    request = _encode_field(_MODEL_SPEC, spec)
    for name, tensor in sorted(inputs.items()):
        request += _encode_field(
            _INPUTS,
            _encode_field(_KEY, name.encode()) + _encode_field(_VALUE, tensor.SerializeToString()),
        )
    return _encode_field(_PREDICT_LOG, _encode_field(_REQUEST, request))


def _encode_field(number: int, content: bytes) -> bytes:
    """Encodes a field of bytes: its number with wire type 2, its length, its content."""
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
    """Encodes 7 bits per byte, lowest first; the eighth bit is set if more bytes follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
