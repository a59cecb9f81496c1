"""Start-up of keras_vit beside KerasHub's ViT of the same size: build and restore, in one interleaved run.

    python experiments/benchmark_startup.py --repeats=9

Every figure is a median over repeats in which the contestants take turns, so that a busy machine hurts both
alike; read the ratio, not the seconds. Without KerasHub (`pip install keras-vit[benchmark]`) its rows are
left out and named.

Source of the rival: keras-team/keras-hub, `ViTBackbone`.
"""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from absl import app, flags

import keras_vit

_MEASURE = flags.DEFINE_multi_enum("measure", ["build", "restore"], ["build", "restore"], "What to measure.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Turns that each contestant takes.", lower_bound=1)

Contestants = dict[str, Callable[[], object]]


def main(_argv: list[str]) -> None:
    has_rival = importlib.util.find_spec("keras_hub") is not None
    print(f"Keras {keras.__version__} on {keras.backend.backend()}, {_REPEATS.value} turns each, medians\n")
    if not has_rival:
        print("KerasHub is not installed: its rows are missing. `pip install keras-vit[benchmark]`\n")
    print("| measured | contestant | median | fastest | ratio to ours |\n|---|---|---|---|---|")
    if "build" in _MEASURE.value:
        contestants: Contestants = {"keras_vit": _ours}
        if has_rival:
            contestants["keras_hub"] = _rival
        _report("build ViT-B/16, seconds", _race(contestants))
    if "restore" in _MEASURE.value:
        _report("read a 330 MB npz, seconds", _race(_restorers()))


def _ours() -> keras.Model:
    return keras_vit.ViT_B16(weights=None, include_top=False, input_shape=(224, 224, 3))


def _rival() -> keras.Model:
    import keras_hub

    return keras_hub.models.ViTBackbone(
        image_shape=(224, 224, 3), patch_size=16, num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072
    )


def _restorers() -> Contestants:
    """Reading every array with NumPy, against restoring them into a model that is built already."""
    from keras_vit.weights import source
    from keras_vit.weights.restore import restore

    path = Path(tempfile.mkdtemp()) / "ViT-B_16-224.npz"
    model = keras_vit.ViT_B16(weights=None, input_shape=(224, 224, 3))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(0.02 * rng.standard_normal(weight.shape, dtype=np.float32))
    keras_vit.save_checkpoint(model, path)

    def read() -> None:
        with np.load(path) as arrays:
            for name in arrays.files:
                arrays[name]

    def ours() -> None:
        restore(model.layers, source.load(source.find("ViT_B16", path)).arrays)

    return {"keras_vit restore": ours, "numpy.load of all arrays": read}


def _race(contestants: Contestants) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(_REPEATS.value + 1):
        # Every other turn the other way round: whoever comes second finds a warmer machine.
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            contestants[name]()
            if turn:  # the first turn compiles
                seconds[name].append(time.perf_counter() - start)
    return seconds


def _report(title: str, figures: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    reference = next(iter(medians.values()))
    for name, values in figures.items():
        ratio = medians[name] / reference
        print(f"| {title} | {name} | {medians[name]:.3g} | {min(values):.3g} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
