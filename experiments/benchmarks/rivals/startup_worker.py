"""A process of `startup.py` that imports a package, builds and restores a ViT, predicts one image,
and takes one training step.

    python -m rivals.startup_worker RIVAL MODEL FOLDER     # in the folder benchmarks/

FOLDER holds the file to restore, which the first process writes. Prints the seconds of each phase
as JSON, or {"absent": the reason}.
"""

import json
import os
import sys
import time
from pathlib import Path

from rivals.cells import Absent, Cell

STARTED = time.perf_counter()


class Watch:
    """Records the seconds of each phase."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = STARTED

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def resume(self) -> None:
        """Excludes the time since the last phase, which was preparation."""
        self._last = time.perf_counter()


def keras_vit(cell: Cell, file: Path, watch: Watch) -> None:
    import keras

    import keras_vit as package
    from rivals import on_keras

    watch.end("import")
    if not file.exists():
        model = on_keras.build_ours(cell)
        head = model.get_layer("predictions").kernel
        # `save_checkpoint` refuses a head of zeros
        head.assign(keras.random.normal(head.shape, stddev=0.02))
        package.save_checkpoint(model, file)
        keras.backend.clear_session()
        watch.resume()
    model = on_keras.build_ours(cell, weights=str(file))
    watch.end("build and restore")
    _answer_and_train("keras_vit", model, cell, watch)


def keras_hub(cell: Cell, file: Path, watch: Watch) -> None:
    import keras
    import keras_hub  # noqa: F401 - the import is timed

    from rivals import on_keras

    watch.end("import")
    if not file.exists():
        on_keras.build_keras_hub(cell).save_weights(file)
        keras.backend.clear_session()
        watch.resume()
    model = on_keras.build_keras_hub(cell)
    model.load_weights(file)
    watch.end("build and restore")
    _answer_and_train("keras-hub", model, cell, watch)


def _answer_and_train(rival: str, model, cell: Cell, watch: Watch) -> None:
    import numpy as np

    from rivals import on_keras

    image = np.zeros((1, cell.image_size, cell.image_size, 3), "float32")
    model.predict_on_batch(image)
    watch.end("first answer")
    on_keras.make_trainer(rival, model, cell)(image, np.zeros(1, "int64"))
    watch.end("first step")


def timm(cell: Cell, file: Path, watch: Watch) -> None:
    import timm  # noqa: F401 - the import is timed
    import torch

    from rivals import on_torch

    watch.end("import")
    if not file.exists():
        torch.save(on_torch.build_timm(cell).state_dict(), file)
        watch.resume()
    model = on_torch.build_timm(cell, checkpoint=str(file)).eval()
    watch.end("build and restore")
    image = torch.zeros(1, 3, cell.image_size, cell.image_size)
    with torch.inference_mode():
        model(image)
    watch.end("first answer")
    on_torch.make_trainer(model, cell)(image, torch.zeros(1, dtype=torch.int64))
    watch.end("first step")


STARTS = {
    "keras_vit": (keras_vit, "npz"),
    "keras-hub": (keras_hub, "weights.h5"),
    "timm": (timm, "pth"),
}


def main(rival: str, model_name: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start, suffix = STARTS[rival]
    watch = Watch()
    try:
        cell = Cell(model_name, 224, 1, "float32", "adamw")
        start(cell, Path(folder, f"{rival}_{model_name}.{suffix}"), watch)
    except (Absent, ImportError) as error:
        print(json.dumps({"absent": str(error)}), file=answers)
        return
    print(json.dumps(watch.seconds), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
