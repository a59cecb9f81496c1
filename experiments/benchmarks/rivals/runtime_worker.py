"""A process of `runtimes.py` that runs one exported file, or the model itself.

    python -m rivals.runtime_worker RUNTIME PATH IMAGES.npy THREADS     # in the folder benchmarks/

It answers in lines of JSON: first {"outputs": the outputs of 4 images} or {"absent": the reason};
then, for each line "turn BATCH_SIZE SECONDS" on standard input, {"seconds": [of each call],
"peak_mb": ...}.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
SHOWN = 4


def _load(runtime: str, path: Path, num_threads: int) -> Run:
    if runtime == "keras":
        import keras

        import keras_vit  # noqa: F401 - registers its layers

        return keras.saving.load_model(path, compile=False).predict_on_batch
    sys.modules["keras"] = None  # a server has no Keras
    runner = _import_runner()
    precision = "bf16" if runtime == "openvino bfloat16" else "f32"
    return runner.opened(path, "predict", num_threads=num_threads, openvino_precision=precision)


def _import_runner() -> ModuleType:
    """Imports the module that runs files without its package, which would import Keras."""
    package = Path(importlib.util.find_spec("keras_vit").origin).parent
    spec = importlib.util.spec_from_file_location("runner", package / "export" / "runner.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(runtime: str, path: str, images_file: str, threads: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps the prints of runtimes out of the answers
    from rivals.memory import peak_megabytes

    images = np.load(images_file)
    try:
        run = _load(runtime, Path(path), int(threads))
        outputs = np.asarray(run(images[:SHOWN]), np.float64)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), file=answers)
        return
    print(json.dumps({"outputs": outputs.tolist()}), file=answers)
    for line in sys.stdin:
        _, batch_size, least = line.split()
        part = images[: int(batch_size)]
        run(part)  # warm-up for this batch size
        seconds: list[float] = []
        while sum(seconds) < float(least) or not seconds:
            start = time.perf_counter()
            run(part)
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "peak_mb": peak_megabytes()}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
