"""A process that starts as an app would: imports, builds a ViT, restores it, answers one image,
takes one step.

    python -m rivals.startup_worker RIVAL MODEL FOLDER     # from the folder of this one's

The file that is restored lies in FOLDER, and is written where it does not.

Prints seconds of each phase as JSON, or {"absent": why}.
"""

import json
import os
import sys
import time
from pathlib import Path

from rivals.cells import Absent, Cell

STARTED = time.perf_counter()


class Watch:
    """Seconds by phase."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = STARTED

    def ends(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def resumes(self) -> None:
        """What was between was preparation."""
        self._last = time.perf_counter()


def keras_vit(cell: Cell, file: Path, watch: Watch) -> None:
    import keras

    import keras_vit as package
    from rivals import on_keras

    watch.ends("import")
    if not file.exists():
        model = on_keras.our_model(cell)
        head = model.get_layer("predictions").kernel
        head.assign(keras.random.normal(head.shape, stddev=0.02))  # a head of zeros is refused
        package.save_checkpoint(model, file)
        keras.backend.clear_session()
        watch.resumes()
    model = on_keras.our_model(cell, weights=str(file))
    watch.ends("build and restore")
    _answer_and_train("keras_vit", model, cell, watch)


def keras_hub(cell: Cell, file: Path, watch: Watch) -> None:
    import keras
    import keras_hub  # noqa: F401 - what is timed

    from rivals import on_keras

    watch.ends("import")
    if not file.exists():
        on_keras.keras_hub_model(cell).save_weights(file)
        keras.backend.clear_session()
        watch.resumes()
    model = on_keras.keras_hub_model(cell)
    model.load_weights(file)
    watch.ends("build and restore")
    _answer_and_train("keras-hub", model, cell, watch)


def _answer_and_train(rival: str, model, cell: Cell, watch: Watch) -> None:
    import numpy as np

    from rivals import on_keras

    image = np.zeros((1, cell.image_size, cell.image_size, 3), "float32")
    model.predict_on_batch(image)
    watch.ends("first answer")
    on_keras.trainer(rival, model, cell)(image, np.zeros(1, "int64"))
    watch.ends("first step")


def timm(cell: Cell, file: Path, watch: Watch) -> None:
    import timm  # noqa: F401 - what is timed
    import torch

    from rivals import on_torch

    watch.ends("import")
    if not file.exists():
        torch.save(on_torch.timm_model(cell).state_dict(), file)
        watch.resumes()
    model = on_torch.timm_model(cell, checkpoint=str(file)).eval()
    watch.ends("build and restore")
    image = torch.zeros(1, 3, cell.image_size, cell.image_size)
    with torch.inference_mode():
        model(image)
    watch.ends("first answer")
    on_torch.trainer(model, cell)(image, torch.zeros(1, dtype=torch.int64))
    watch.ends("first step")


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
