"""Messages of TensorFlow Serving without TensorFlow.

`tensorflow_serving.apis` uses only generated message classes of TensorFlow, but importing one of
them runs `tensorflow/__init__.py`: 11 s on two busy cores, instead of 0.3 s for the messages alone.
So this module registers an empty package `tensorflow` with the path of its submodules, unless
TensorFlow is already imported. Afterwards the process cannot import TensorFlow, which a client does
not need.
"""

import importlib.util
import math
import sys
import types
from collections.abc import Sequence

import numpy as np


def _register_stub() -> None:
    if "tensorflow" in sys.modules:
        return
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.submodule_search_locations is None:
        raise ImportError(
            "gRPC needs more packages: pip install grpcio tensorflow tensorflow-serving-api"
        )
    package = types.ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["tensorflow"] = package


_register_stub()
from tensorflow.core.framework import types_pb2  # noqa: E402
from tensorflow.core.framework.tensor_pb2 import TensorProto  # noqa: E402
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse  # noqa: E402

# For each type, the field of a TensorProto with its numbers, and its little-endian form in
# `tensor_content`.
_FIELDS = {
    types_pb2.DT_FLOAT: ("float_val", "<f4"),
    types_pb2.DT_INT32: ("int_val", "<i4"),
    types_pb2.DT_INT64: ("int64_val", "<i8"),
}


def predict_request(model: str, label: str, files: Sequence[bytes]) -> PredictRequest:
    """Returns a request for the default signature of a model.

    Args:
        model: Name of the model in `models.config`.
        label: A version label such as "stable"; "" for the newest version.
        files: Bytes of JPEG or PNG files.
    """
    request = PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    if label:
        request.model_spec.version_label = label
    tensor = request.inputs["image_bytes"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add().size = len(files)
    tensor.string_val.extend(files)
    return request


def columns_of(response: PredictResponse) -> dict[str, list]:
    """Returns the outputs of a response as nested lists of Python values."""
    return {name: to_list(tensor) for name, tensor in response.outputs.items()}


def to_list(tensor: TensorProto) -> list:
    """Returns a tensor of strings, float32, int32 or int64 as a nested list.

    Servers write numbers one by one or, with `--enable_serialization_as_tensor_content`, as raw
    bytes.

    Raises:
        ValueError: If the tensor has another type, or is incomplete.
    """
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype == types_pb2.DT_STRING:
        values = np.array([text.decode(errors="replace") for text in tensor.string_val], object)
    elif tensor.dtype in _FIELDS:
        field, kind = _FIELDS[tensor.dtype]
        raw = tensor.tensor_content
        values = np.frombuffer(raw, kind) if raw else np.array(getattr(tensor, field), kind)
    else:
        raise ValueError(
            f"The client does not support tensors of type {types_pb2.DataType.Name(tensor.dtype)}."
        )
    if values.size != math.prod(shape):
        raise ValueError(f"A tensor of shape {shape} has {values.size} values.")
    return values.reshape(shape).tolist()
