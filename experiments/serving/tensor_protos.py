"""Messages of TensorFlow Serving without TensorFlow.

`tensorflow_serving.apis` needs of TensorFlow nothing but generated message classes, yet importing
one of these would run `tensorflow/__init__.py` first: 11 s on two busy cores, against 0.3 s for the
messages alone. So an empty module stands in for the package and says where its parts are. Where
TensorFlow has been imported already, it is used; where it has not, the process cannot import it any
more, and a client does not want to.
"""

import importlib.util
import math
import sys
import types
from collections.abc import Sequence

import numpy as np


def _stand_in() -> None:
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


_stand_in()
from tensorflow.core.framework import types_pb2  # noqa: E402
from tensorflow.core.framework.tensor_pb2 import TensorProto  # noqa: E402
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse  # noqa: E402

# The field of a TensorProto that holds the numbers of a type, and the type in `tensor_content`:
# little-endian.
_FIELDS = {
    types_pb2.DT_FLOAT: ("float_val", "<f4"),
    types_pb2.DT_INT32: ("int_val", "<i4"),
    types_pb2.DT_INT64: ("int64_val", "<i8"),
}


def predict_request(model: str, label: str, files: Sequence[bytes]) -> PredictRequest:
    """Returns the request that asks the default signature of a model about files.

    Args:
        model: Its name in `models.config`.
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

    Servers write numbers either one by one or, with `--enable_serialization_as_tensor_content`, as
    raw bytes.

    Raises:
        ValueError: If the tensor is of another type, or not complete.
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
            f"A tensor of type {types_pb2.DataType.Name(tensor.dtype)} is none that the client "
            f"reads."
        )
    if values.size != math.prod(shape):
        raise ValueError(f"A tensor of shape {shape} came with {values.size} values.")
    return values.reshape(shape).tolist()
