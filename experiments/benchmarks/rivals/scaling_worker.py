"""A process of `scaling.py` that trains as one of several workers, or on simulated devices.

    python -m rivals.scaling_worker KIND MODEL IMAGE_SIZE BATCH_SIZE STEPS CORE

It prints the median seconds per step. CORE is the number of the CPU core to use; -1 uses all.
"""

import os
import statistics
import sys
import time


def main(kind: str, model: str, *numbers: str) -> None:
    image_size, batch_size, num_steps, core = map(int, numbers)
    if core >= 0:
        os.sched_setaffinity(0, {core})  # before TensorFlow counts the cores
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit
    from keras_vit.devices import DevicesConfig, connect
    from keras_vit.train.learner import make_learner
    from keras_vit.train.optimizers import OptimizerConfig, make_optimizer

    devices = connect(DevicesConfig(kind=kind))
    with devices.scope():
        network = getattr(keras_vit, model)(
            weights=None, input_shape=(image_size, image_size, 3), classifier_activation=None
        )
        config = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1)
        learner = make_learner(
            network,
            make_optimizer(config, network, 1000),
            batch_rows=batch_size * devices.num_workers,
            num_replicas=devices.num_replicas,
            num_workers=devices.num_workers,
        )
    draws = np.random.default_rng(0)
    images = draws.uniform(-1, 1, (batch_size, image_size, image_size, 3)).astype("float32")
    batch = (images, draws.integers(0, 1000, batch_size), np.ones(batch_size, "float32"))
    batches = devices.distribute(tf.data.Dataset.from_tensors(batch).repeat())
    watch = _Watch(keras)
    learner.fit(
        batches,
        steps_per_epoch=num_steps + 2,
        epochs=1,
        verbose=0,
        shuffle=False,
        callbacks=[watch.callback],
    )
    print(statistics.median(watch.seconds[2:]))


class _Watch:
    """Records the seconds of each step of `fit`."""

    def __init__(self, keras):
        self.seconds: list[float] = []
        self.callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs=None: self._begin(),
            on_train_batch_end=lambda batch, logs=None: self._end(),
        )

    def _begin(self) -> None:
        self._start = time.perf_counter()

    def _end(self) -> None:
        self.seconds.append(time.perf_counter() - self._start)


if __name__ == "__main__":
    main(*sys.argv[1:])
