"""A process that measures one rival on one cell.

    python -m rivals.worker RIVAL CELL     # CELL as JSON; in the folder benchmarks/

It answers in lines of JSON: first {"ready_s": seconds until the first step was finished} or
{"absent": the reason}; then, for each line "turn SECONDS" on standard input, {"images_per_s": ...,
"peak_mb": ...}, and for each line "limit" {"gflop_per_s": the speed of a matrix product}.
"""

import importlib
import importlib.util
import json
import os
import sys
import time
from typing import Any

LIMIT_SIZE = 4096


def main(rival: str, cell_text: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps the prints of libraries out of the answers
    started = time.perf_counter()
    from rivals.cells import NEEDS, Absent, Cell
    from rivals.memory import peak_megabytes

    def answer(**found: Any) -> None:
        print(json.dumps(found), file=answers)

    cell = Cell.from_json(cell_text)
    framework = "flax" if rival == "flax" else "torch" if "torch" in NEEDS[rival] else "keras"
    if framework == "keras" and os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        import_tensorflow_alone()
    try:
        module = importlib.import_module(f"rivals.on_{framework}")
        step = module.make_step(rival, cell)
        step()
    except (Absent, ImportError) as error:
        answer(absent=str(error))
        return
    answer(ready_s=time.perf_counter() - started)
    step()
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "limit":
            seconds = module.time_product(cell.precision, LIMIT_SIZE)
            answer(gflop_per_s=2 * LIMIT_SIZE**3 / seconds / 1e9)
            continue
        num_steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < float(arguments[0]) or not num_steps:
            step()
            num_steps += 1
        rate = num_steps * cell.batch_size / (time.perf_counter() - start)
        answer(images_per_s=rate, peak_mb=peak_megabytes())


def import_tensorflow_alone() -> None:
    """Imports TensorFlow without JAX, which it would import if it is installed: 110 MB that it
    never uses.
    """
    if importlib.util.find_spec("tensorflow") and "jax" not in sys.modules:
        sys.modules["jax"] = None  # lets `import jax` fail
        importlib.import_module("tensorflow")
        del sys.modules["jax"]


if __name__ == "__main__":
    main(*sys.argv[1:])
