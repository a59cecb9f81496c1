"""A process that runs one exported file, or the model itself, for as long as it is asked to. See benchmark_runtimes.py.

    python -m rivals.runtime_worker RUNTIME PATH IMAGES.npy THREADS     # from the folder of this one's

It answers in lines of JSON. First {"outputs": what it gave for 4 of the images} or {"absent": why}; then to
"turn BATCH_SIZE SECONDS" on standard input {"seconds": [one for each call], "peak_mb": ...}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
SHOWN = 4


def _keras(path: Path, num_threads: int) -> Run:
    import keras

    import keras_vit  # noqa: F401 - its layers are registered

    return keras.saving.load_model(path, compile=False).predict_on_batch


def _saved_model(path: Path, num_threads: int) -> Run:
    sys.modules["keras"] = None  # a server has none
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    predict = loaded.signatures["predict"]
    (name,) = predict.structured_input_signature[1]
    return lambda images: loaded and next(iter(predict(**{name: tf.constant(images)}).values())).numpy()


def _litert(path: Path, num_threads: int) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=num_threads)
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(images: np.ndarray) -> np.ndarray:
        if tuple(interpreter.get_input_details()[0]["shape"]) != images.shape:
            interpreter.resize_tensor_input(taken["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(given["index"])

    return run


def _onnx(path: Path, num_threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def _openvino(path: Path, num_threads: int, precision: str = "f32") -> Run:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda images: compiled(images)[compiled.output(0)]


def _openvino_bfloat16(path: Path, num_threads: int) -> Run:
    return _openvino(path, num_threads, "bf16")


RUNTIMES = {
    "keras": _keras,
    "saved_model": _saved_model,
    "litert": _litert,
    "onnx": _onnx,
    "openvino": _openvino,
    "openvino_bfloat16": _openvino_bfloat16,
}


def main(runtime: str, path: str, images_file: str, threads: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what runtimes print is not an answer
    from rivals.memory import peak_megabytes

    images = np.load(images_file)
    try:
        run = RUNTIMES[runtime](Path(path), int(threads))
        outputs = np.asarray(run(images[:SHOWN]), np.float64)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), file=answers)
        return
    print(json.dumps({"outputs": outputs.tolist()}), file=answers)
    for line in sys.stdin:
        _, batch_size, least = line.split()
        part = images[: int(batch_size)]
        run(part)  # the first of its size prepares
        seconds: list[float] = []
        while sum(seconds) < float(least) or not seconds:
            start = time.perf_counter()
            run(part)
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "peak_mb": peak_megabytes()}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
