"""A script: runs signatures of a SavedModel through TensorFlow's C API, without Keras or
TensorFlow's Python.

    python -I c_api.py REQUEST.pickle

TensorFlow Serving loads models by the same C++ code. `test_c_api.py` writes the request and reads
the answer:

    {"folder": str, "answers": str, "runs": [{"inputs": {"op:0": array}, "outputs": {name: "op:0"}}]}
"""

import ctypes
import importlib.util
import pickle
import sys
from pathlib import Path

import numpy as np

STRING = 7
DTYPES = {1: np.float32, 3: np.int32, 4: np.uint8, 9: np.int64}
STRING_BYTES = 24  # of a TF_TString

Pointer = ctypes.c_void_p


class Output(ctypes.Structure):
    """TF_Output: an output of an operation of a graph."""

    _fields_ = [("operation", Pointer), ("index", ctypes.c_int)]


def library() -> ctypes.CDLL:
    """The C++ library beside the Python package, which is found but not imported."""
    (folder,) = importlib.util.find_spec("tensorflow").submodule_search_locations
    tf = ctypes.CDLL(str(Path(folder, "libtensorflow_cc.so.2")))
    for name in (
        *(
            "TF_NewStatus",
            "TF_NewGraph",
            "TF_NewSessionOptions",
            "TF_LoadSessionFromSavedModel",
            "TF_AllocateTensor",
        ),
        *("TF_GraphOperationByName", "TF_TensorData", "TF_StringGetDataPointer"),
    ):
        getattr(tf, name).restype = Pointer
    for name in ("TF_Dim", "TF_StringGetSize", "TF_TensorByteSize"):
        getattr(tf, name).restype = ctypes.c_int64
    tf.TF_Message.restype = ctypes.c_char_p
    return tf


class Session:
    """A SavedModel that is loaded, and its variables and tables with it."""

    def __init__(self, folder: str):
        self.tf = library()
        self.status = Pointer(self.tf.TF_NewStatus())
        self.graph = Pointer(self.tf.TF_NewGraph())
        options = Pointer(self.tf.TF_NewSessionOptions())
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = Pointer(
            self.tf.TF_LoadSessionFromSavedModel(
                options, None, folder.encode(), tags, 1, self.graph, None, self.status
            )
        )
        self.check()

    def check(self) -> None:
        if self.tf.TF_GetCode(self.status):
            raise RuntimeError(self.tf.TF_Message(self.status).decode(errors="replace"))

    def run(self, inputs: dict[str, np.ndarray], outputs: dict[str, str]) -> dict[str, np.ndarray]:
        given = (Output * len(inputs))(*map(self.output, inputs))
        asked = (Output * len(outputs))(*map(self.output, outputs.values()))
        tensors = (Pointer * len(inputs))(*map(self.tensor, inputs.values()))
        answers = (Pointer * len(outputs))()
        self.tf.TF_SessionRun(
            *(self.session, None, given, tensors, len(inputs), asked, answers, len(outputs)),
            *(None, 0, None, self.status),
        )
        self.check()
        found = {
            name: self.array(Pointer(answer)) for name, answer in zip(outputs, answers, strict=True)
        }
        for tensor in [*tensors, *answers]:
            self.tf.TF_DeleteTensor(Pointer(tensor))
        return found

    def output(self, name: str) -> Output:
        operation, index = name.split(":")
        found = self.tf.TF_GraphOperationByName(self.graph, operation.encode())
        if not found:
            raise RuntimeError(f"There is no operation {operation}.")
        return Output(found, int(index))

    def tensor(self, array: np.ndarray) -> int:
        """A new tensor; bytes in an array of objects become strings."""
        is_string = array.dtype == object
        dtype = (
            STRING
            if is_string
            else next(key for key, value in DTYPES.items() if value == array.dtype)
        )
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        num_bytes = array.size * STRING_BYTES if is_string else array.nbytes
        tensor = self.tf.TF_AllocateTensor(dtype, shape, array.ndim, ctypes.c_size_t(num_bytes))
        data = self.tf.TF_TensorData(Pointer(tensor))
        if not is_string:
            ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, num_bytes)
        else:
            for place, content in enumerate(array.flat):
                string = Pointer(data + place * STRING_BYTES)
                self.tf.TF_StringInit(string)
                self.tf.TF_StringCopy(string, content, ctypes.c_size_t(len(content)))
        return tensor

    def array(self, tensor: Pointer) -> np.ndarray:
        dtype = self.tf.TF_TensorType(tensor)
        shape = [self.tf.TF_Dim(tensor, axis) for axis in range(self.tf.TF_NumDims(tensor))]
        data, size = self.tf.TF_TensorData(tensor), int(np.prod(shape))
        if dtype != STRING:
            content = ctypes.string_at(data, self.tf.TF_TensorByteSize(tensor)) if size else b""
            return np.frombuffer(content, DTYPES[dtype]).reshape(shape)
        strings = [Pointer(data + place * STRING_BYTES) for place in range(size)]
        contents = [
            ctypes.string_at(
                self.tf.TF_StringGetDataPointer(string), self.tf.TF_StringGetSize(string)
            )
            for string in strings
        ]
        return np.array(contents, object).reshape(shape)


if __name__ == "__main__":
    request = pickle.loads(Path(sys.argv[1]).read_bytes())
    session = Session(request["folder"])
    answers = [session.run(run["inputs"], run["outputs"]) for run in request["runs"]]
    present = {"keras", "keras_vit", "tensorflow"} & {*sys.modules}
    if present:
        sys.exit(f"{present} must not be loaded.")
    Path(request["answers"]).write_bytes(pickle.dumps(answers))
