"""Run as a script by test_devices.py: evaluates on every number of images and batch size, prints
one line of JSON.

python count_examples.py KIND
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from dataclasses import replace  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_vit.data import pipeline, sources  # noqa: E402
from keras_vit.devices import DevicesConfig, connect  # noqa: E402
from keras_vit.models import vision_transformer  # noqa: E402
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402

devices = connect(DevicesConfig(kind=sys.argv[1]))
changes = {"name": "tiny", "patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
draws = np.random.RandomState(0)
images = draws.randint(0, 256, (10_000, 16, 16, 3)).astype("uint8")
labels = draws.randint(0, 10, 10_000)
with devices.scope():
    row = replace(VIT_VARIANTS["ViT_Ti16"], **changes)
    model = vision_transformer(row, keras.Input((16, 16, 3)), classes=10)
    for variable in model.trainable_variables:
        variable.assign(draws.normal(size=variable.shape) * 0.3)
    optimizer = make_optimizer(OptimizerConfig(), model, 1)
    replicas = {"num_replicas": devices.num_replicas, "num_workers": devices.num_workers}
    learner = make_learner(model, optimizer, batch_rows=2, **replicas)
found = {}
for count, batch_size in [
    (1, 1),
    (1, 7),
    (3, 7),
    (3, 128),
    (33, 1),
    (33, 7),
    (33, 128),
    (10_000, 128),
]:
    source = sources.arrays(images[:count], labels[:count], class_names=list(map(str, range(10))))
    rows = pipeline.padded_rows(min(batch_size, count), devices.num_replicas)
    share = pipeline.Share(
        rows=rows,
        num_workers=devices.num_workers,
        worker_index=devices.worker_index,
        num_parts=devices.local_parts,
    )
    batches = pipeline.evaluation_batches(source, [], batch_size=batch_size, share=share)
    steps = int(batches.cardinality()) // devices.local_parts
    logs = learner.evaluate(devices.distribute(batches), steps=steps, verbose=0, return_dict=True)
    found[f"{count} by {batch_size}"] = {
        name: float(np.ravel(value)[0]) for name, value in logs.items()
    }
print("counted:", json.dumps(found), flush=True)
