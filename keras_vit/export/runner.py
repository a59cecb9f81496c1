"""A script: runs an exported file on images, in a process that knows neither Keras nor this package.

    python -I runner.py REQUEST.json

`verdicts.py` writes the request and reads the answer. It stands alone, so that what it shows is true of the file and
not of the process that wrote it: an export that needs Python code of the model fails here.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_ABSENT = ("keras", "keras_vit")
_EXTRA_OF = {"ai_edge_litert": "tflite", "onnxruntime": "onnx", "openvino": "openvino"}
_NUM_THREADS = 2
_WARM_UP = 2  # turns that do not count

Run = Callable[[np.ndarray], np.ndarray]


def main(request: Path) -> None:
    """Reads {path, images, signature, batch_size, repeats, outputs}, writes the outputs and prints the latency."""
    for name in _ABSENT:
        sys.modules[name] = None  # importing it fails; TensorFlow would load Keras, and does without
    asked = json.loads(request.read_text(encoding="utf-8"))
    images = np.load(asked["images"])
    run = _opened(Path(asked["path"]), asked["signature"])
    parts = list(_batches(images, asked["batch_size"]))
    np.save(asked["outputs"], np.concatenate([np.asarray(run(part), np.float32) for part in parts]))
    turns = asked["repeats"] + _WARM_UP if asked["repeats"] else 0
    seconds = [_seconds(run, images[turn % len(images) :][:1]) for turn in range(turns)]
    print(json.dumps({"latency_ms": 1000 * float(np.median(seconds[_WARM_UP:])) if asked["repeats"] else None}))


def _batches(images: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (images[start : start + size] for start in range(0, len(images), size))


def _seconds(run: Run, images: np.ndarray) -> float:
    start = time.perf_counter()
    run(images)
    return time.perf_counter() - start


def _opened(path: Path, signature: str) -> Run:
    if (path / "saved_model.pb").is_file():
        return _saved_model(path, signature)
    kinds = {".tflite": _litert, ".onnx": _onnxruntime, ".xml": _openvino}
    if path.suffix not in kinds:
        raise ValueError(f"{path} is no SavedModel, and no file {', '.join(kinds)}.")
    return kinds[path.suffix](path)


def _saved_model(path: Path, signature: str) -> Run:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(_NUM_THREADS)
    loaded = tf.saved_model.load(str(path))  # whoever holds a signature alone loses the variables
    if signature not in loaded.signatures:
        raise ValueError(f"{path} has no signature {signature!r}, but {', '.join(loaded.signatures)}.")
    serve = loaded.signatures[signature]
    (name,) = serve.structured_input_signature[1]

    def run(images: np.ndarray) -> np.ndarray:
        assert loaded  # noqa: S101 - kept alive
        given = serve(**{name: tf.constant(images)})
        return next(given[key].numpy() for key in sorted(given) if given[key].dtype != tf.string)

    return run


def _litert(path: Path) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=_NUM_THREADS)
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    is_fixed = -1 not in taken["shape_signature"]

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


def _onnxruntime(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _NUM_THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return lambda images: session.run(None, {taken.name: images})[0]


def _openvino(path: Path) -> Run:
    import openvino

    # Left to itself it computes in bfloat16 where the processor can: 0.01 off.
    precise = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": _NUM_THREADS}
    compiled = openvino.Core().compile_model(str(path), "CPU", precise)
    return lambda images: compiled(images)[compiled.output(0)]


def _explained(error: Exception) -> str:
    extra = _EXTRA_OF.get((getattr(error, "name", None) or "").split(".")[0])
    hint = f' pip install "keras-vit[{extra}]"' if extra and isinstance(error, ImportError) else ""
    return f"{type(error).__name__}: {error}{hint}"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        print(json.dumps({"error": _explained(error)}), flush=True)
        os._exit(1)  # without the words of runtimes that are taken down half-way
