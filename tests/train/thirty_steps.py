"""Run as a script by test_learner.py: thirty steps of a small ViT somewhere, then losses and
weights as an .npz.

    python thirty_steps.py OUTPUT.npz MODE [NUM_DEVICES]

MODE: one, mirrored, multi_worker, accumulation, remat. Other processes of the run do not write.
"""

import os
import sys

OUTPUT, MODE = sys.argv[1:3]
NUM_DEVICES = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ON_JAX = os.environ["KERAS_BACKEND"] == "jax"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if ON_JAX:
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={NUM_DEVICES}"
    )

from dataclasses import replace  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_vit.data import pipeline, sources, transforms  # noqa: E402
from keras_vit.devices import DevicesConfig, connect  # noqa: E402
from keras_vit.models import vision_transformer  # noqa: E402
from keras_vit.train.learner import make_learner  # noqa: E402
from keras_vit.train.optimizers import OptimizerConfig, make_optimizer  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402
from keras_vit.weights.restore import named_variables  # noqa: E402

STEPS, BATCH_SIZE = 30, 16


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(
            [float(np.ravel(logs[name])[0]) for name in ("loss", "accuracy", "gradient_norm")]
        )


if MODE == "mirrored" and not ON_JAX:
    virtual = [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], virtual)
kind = MODE if MODE in ("mirrored", "multi_worker") else "one"
names = tuple(f"CPU:{i}" for i in range(NUM_DEVICES)) if MODE == "mirrored" else ()
precision = os.environ.get("PRECISION", "float32")
devices = connect(DevicesConfig(kind=kind, names=names, precision=precision))

changes = {"name": "tiny", "patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
row = replace(VIT_VARIANTS["ViT_Ti16"], **changes)
images = np.random.RandomState(0).randint(0, 256, (100, 32, 32, 3)).astype("uint8")
source = sources.arrays(images, np.arange(100) % 10)
draws = np.random.RandomState(3)
dropout_rate = float(os.environ.get("DROPOUT", 0))
share = pipeline.Share(
    rows=BATCH_SIZE,
    num_workers=devices.num_workers,
    worker_index=devices.worker_index,
    num_parts=devices.local_parts,
)
with devices.scope():
    model = vision_transformer(row, keras.Input((32, 32, 3)), classes=10, dropout_rate=dropout_rate)
    for name, variable in named_variables(model.layers).items():
        variable.assign(draws.normal(size=variable.shape) * 0.2 + name.endswith("/gamma"))
    config = OptimizerConfig(
        name="adamw", learning_rate=1e-2, weight_decay=0.1, warmup_steps=5, average_momentum=0.9
    )
    optimizer = make_optimizer(config, model, STEPS, loss_scaling=precision == "mixed_float16")
    learner = make_learner(
        model,
        optimizer,
        batch_rows=BATCH_SIZE,
        clip_norm=1.0,
        accumulation_steps=4 if MODE == "accumulation" else 1,
        remat=MODE == "remat",
        num_replicas=devices.num_replicas,
        num_workers=devices.num_workers,
    )
    batches = pipeline.training_batches(
        source,
        [transforms.flip_left_right],
        batch_size=BATCH_SIZE,
        seed=1,
        share=share,
        mixup_alpha=0.4,
    )
    losses = Losses()
    learner.fit(
        devices.distribute(batches),
        steps_per_epoch=STEPS,
        epochs=1,
        verbose=0,
        shuffle=False,
        callbacks=[losses],
    )
if devices.is_chief:
    values = {
        name: keras.ops.convert_to_numpy(v.value)
        for name, v in named_variables(model.layers).items()
    }
    values |= {
        f"average {i}": keras.ops.convert_to_numpy(v.value)
        for i, v in enumerate(optimizer.averages)
    }
    np.savez(OUTPUT, losses=np.array(losses.values), **values)
