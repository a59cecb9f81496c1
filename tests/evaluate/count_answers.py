"""Run as a script by test_accuracy.py: counts over the devices that are named, prints one line of
JSON.

python count_answers.py KIND
"""

import json
import os
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_vit.data import sources  # noqa: E402
from keras_vit.devices import DevicesConfig, connect  # noqa: E402
from keras_vit.evaluate.accuracy import accuracy  # noqa: E402
from keras_vit.evaluate.features import extract  # noqa: E402
from keras_vit.models import vision_transformer  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402

NAMES = ("one", "three", "two")


def folder_of(count: int, folder: Path) -> sources.Source:
    """Of 33 images one cannot be read."""
    draws = np.random.default_rng(count)
    for name in NAMES[: min(count, 3)]:
        (folder / name).mkdir(parents=True)
    for number in range(count):
        path = folder / NAMES[number % 3] / f"{number:02}.png"
        keras.utils.save_img(path, draws.integers(0, 256, (16, 16, 3)), scale=False)
        if number == 20:
            path.write_bytes(b"no image")
    return replace(sources.image_folder(folder), class_names=NAMES)  # of one image too


kind, changes = (
    sys.argv[1],
    {"patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32},
)
if kind == "mirrored" and keras.backend.backend() == "tensorflow":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = connect(DevicesConfig(kind=kind, names=("CPU:0", "CPU:1") if kind == "mirrored" else ()))
found = {}
# fewer images than devices; as many batches as images; batches that end in a part; one batch
for count, batch_sizes in ((1, (7,)), (3, (1,)), (33, (1, 7, 128))):
    with devices.scope():
        row = replace(VIT_VARIANTS["ViT_Ti16"], name="tiny", **changes)
        model = vision_transformer(row, keras.Input((16, 16, 3)), classes=3)
        weights = np.random.default_rng(0)
        for variable in model.trainable_variables:
            variable.assign(weights.normal(size=variable.shape) * 0.3)
    with tempfile.TemporaryDirectory() as folder:
        source = folder_of(count, Path(folder))
        for batch_size in batch_sizes:
            options = {"batch_size": batch_size, "devices": devices, "progress": False}
            features = extract(model, source, **options)
            numbers = accuracy(model, source, **options)
            assert len(features.indices) == numbers["images"]
            numbers["feature_sum"] = float(np.abs(features.values.astype("float64")).sum())
            found[f"{count} by {batch_size}"] = numbers
print("counted:", json.dumps(found), flush=True)
