"""A process that starts as an app would: imports, builds a ViT, restores it, answers one image, takes one step.

    python -m rivals.startup_worker RIVAL MODEL FILE     # from the folder of this one's; writes FILE where it is absent

Prints seconds of each phase as JSON, or {"absent": why}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
STARTED = time.perf_counter()
CLASSES = 1000


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


def keras_vit(model_name: str, file: Path, watch: Watch) -> None:
    import keras

    import keras_vit as package
    from keras_vit.train.learner import make_learner
    from keras_vit.train.optimizers import OptimizerConfig, make_optimizer

    watch.ends("import")
    if not file.exists():
        model = getattr(package, model_name)(weights=None, classifier_activation=None)
        head = model.get_layer("predictions").kernel
        head.assign(keras.random.normal(head.shape, stddev=0.02))  # a head of zeros is refused
        package.save_checkpoint(model, file)
        watch.resumes()
    keras.backend.clear_session()
    model = getattr(package, model_name)(weights=str(file), classifier_activation=None)
    watch.ends("build and restore")
    _answer_and_train(
        model, lambda: make_learner(model, make_optimizer(OptimizerConfig(), model, 100), batch_rows=1), watch, [1.0]
    )


def keras_hub(model_name: str, file: Path, watch: Watch) -> None:
    import keras
    import keras_hub as package

    from rivals.cells import SHAPES

    watch.ends("import")

    def build() -> keras.Model:
        shape = SHAPES[model_name]
        backbone = package.models.ViTBackbone(
            image_shape=(224, 224, 3),
            patch_size=16,
            num_layers=shape.depth,
            num_heads=shape.num_heads,
            hidden_dim=shape.width,
            mlp_dim=shape.mlp_dim,
        )
        return package.models.ViTImageClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None)

    if not file.exists():
        build().save_weights(file)
        keras.backend.clear_session()
        watch.resumes()
    model = build()
    model.load_weights(file)
    watch.ends("build and restore")

    def learner() -> keras.Model:
        model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    _answer_and_train(model, learner, watch)


def _answer_and_train(model, learner: Callable, watch: Watch, *weights: list[float]) -> None:
    import numpy as np

    image = np.zeros((1, 224, 224, 3), "float32")
    watch.resumes()
    model.predict_on_batch(image)
    watch.ends("first answer")
    learner().train_on_batch(image, np.zeros(1, "int64"), *(np.array(each, "float32") for each in weights))
    watch.ends("first step")


def timm(model_name: str, file: Path, watch: Watch) -> None:
    import timm as package
    import torch

    from rivals.cells import SHAPES

    watch.ends("import")
    name = SHAPES[model_name].timm
    if not file.exists():
        torch.save(package.create_model(name).state_dict(), file)
        watch.resumes()
    model = package.create_model(name, checkpoint_path=str(file)).eval()
    watch.ends("build and restore")
    image = torch.zeros(1, 3, 224, 224)
    with torch.inference_mode():
        model(image)
    watch.ends("first answer")
    optimizer = torch.optim.Adam(model.train().parameters(), 1e-3)
    torch.nn.functional.cross_entropy(model(image), torch.zeros(1, dtype=torch.int64)).backward()
    optimizer.step()
    watch.ends("first step")


STARTS = {"keras_vit": (keras_vit, "npz"), "keras-hub": (keras_hub, "weights.h5"), "timm": (timm, "pth")}


def main(rival: str, model_name: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start, suffix = STARTS[rival]
    watch = Watch()
    try:
        start(model_name, Path(folder, f"{rival}_{model_name}.{suffix}"), watch)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), file=answers)
        return
    print(json.dumps(watch.seconds), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
