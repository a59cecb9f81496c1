"""A script that runs an exported file on images, without Keras and this package.

    python -I runner.py REQUEST.json

`verdicts.py` writes the request and reads the answer. The script runs in a separate process, so an
export that needs Python code of the model fails here. Other scripts that run files without Keras
load this file by its path and call `opened`.
"""

import contextlib
import functools
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_ABSENT = ("keras", "keras_vit")
_EXTRA_OF = {"ai_edge_litert": "tflite", "onnxruntime": "onnx", "openvino": "openvino"}
NUM_THREADS = 2
_WARM_UP = 2  # runs that are not timed

Run = Callable[[np.ndarray], np.ndarray]


def main(request: Path) -> None:
    """Runs the file of a request, writes its outputs and prints its latency.

    Args:
        request: JSON file with path, images, signature, batch_size, repeats and outputs.
    """
    for name in _ABSENT:
        # Imports of these packages fail. TensorFlow imports Keras if it can, and works without.
        sys.modules[name] = None
    asked = json.loads(request.read_text(encoding="utf-8"))
    images = np.load(asked["images"])
    run = opened(Path(asked["path"]), asked["signature"])
    parts = list(_split(images, asked["batch_size"]))
    outputs = io.BytesIO()  # writing it tells why it fails, `np.save` to a file does not
    np.save(outputs, np.concatenate([np.asarray(run(part), np.float32) for part in parts]))
    Path(asked["outputs"]).write_bytes(outputs.getbuffer())
    turns = asked["repeats"] + _WARM_UP if asked["repeats"] else 0
    seconds = [_measure_seconds(run, images[turn % len(images) :][:1]) for turn in range(turns)]
    print(
        json.dumps(
            {
                "latency_ms": 1000 * float(np.median(seconds[_WARM_UP:]))
                if asked["repeats"]
                else None
            }
        )
    )


def _split(images: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (images[start : start + size] for start in range(0, len(images), size))


def _measure_seconds(run: Run, images: np.ndarray) -> float:
    start = time.perf_counter()
    run(images)
    return time.perf_counter() - start


def opened(
    path: Path, signature: str, *, num_threads: int = NUM_THREADS, openvino_precision: str = "f32"
) -> Run:
    """Returns a function that runs a file on images (B, H, W, 3) and returns (B, classes).

    Args:
        path: Folder of a SavedModel, or a file of LiteRT, ONNX or OpenVINO.
        signature: Signature of a SavedModel.
        num_threads: Threads of the runtime. TensorFlow uses the value of the first call.
        openvino_precision: "f32" or "bf16". Without it, OpenVINO computes in bfloat16 if the
            processor supports it, with differences of 0.01.

    Raises:
        ValueError: If the file is of another kind, or has no such signature.
        ImportError: If the runtime is not installed.
    """
    if (path / "saved_model.pb").is_file():
        return _open_saved_model(path, signature, num_threads)
    kinds = {
        ".tflite": _open_litert,
        ".onnx": _open_onnx,
        ".xml": functools.partial(_open_openvino, openvino_precision),
    }
    if path.suffix not in kinds:
        raise ValueError(
            f"{path} cannot be run: expected a SavedModel or a file {', '.join(kinds)}."
        )
    return kinds[path.suffix](path, num_threads)


def _open_saved_model(path: Path, signature: str, num_threads: int) -> Run:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    loaded = tf.saved_model.load(str(path))
    if signature not in loaded.signatures:
        raise ValueError(
            f"{path} has no signature {signature!r}. It has {', '.join(loaded.signatures)}."
        )
    serve = loaded.signatures[signature]
    (name,) = serve.structured_input_signature[1]

    def run(images: np.ndarray) -> np.ndarray:
        assert loaded  # noqa: S101 - a signature does not keep the variables alive
        given = serve(**{name: tf.constant(images)})
        return next(given[key].numpy() for key in sorted(given) if given[key].dtype != tf.string)

    return run


def _open_litert(path: Path, num_threads: int) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=num_threads)
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    is_fixed = -1 not in taken["shape_signature"]
    interpreter.allocate_tensors()

    def run_batch(images: np.ndarray) -> np.ndarray:
        if tuple(interpreter.get_input_details()[0]["shape"]) != images.shape:
            interpreter.resize_tensor_input(taken["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(given["index"])

    def one_by_one(images: np.ndarray) -> np.ndarray:
        return np.concatenate([run_batch(image[None]) for image in images])

    return one_by_one if is_fixed else run_batch


def _open_onnx(path: Path, num_threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return lambda images: session.run(None, {taken.name: images})[0]


def _open_openvino(precision: str, path: Path, num_threads: int) -> Run:
    with unreported():
        import openvino

    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda images: compiled(images)[compiled.output(0)]


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """Disables the usage reports of OpenVINO, in this process and in those it starts.

    By default, OpenVINO reports imports and conversions over the network.
    """
    # OpenVINO does not report from CI. It reads the variable once, when it is imported.
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


def _find_extra(error: Exception) -> str | None:
    """Returns the extra of keras_vit that installs a missing runtime."""
    absent = (getattr(error, "name", None) or "").split(".")[0]
    return _EXTRA_OF.get(absent) if isinstance(error, ImportError) else None


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        print(
            json.dumps({"error": f"{type(error).__name__}: {error}", "extra": _find_extra(error)}),
            flush=True,
        )
        os._exit(1)  # without the messages that runtimes print when they are torn down
