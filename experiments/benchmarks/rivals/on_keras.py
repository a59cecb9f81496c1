"""Models in Keras: ours, KerasHub's and vit-keras's, each used as by its users: `predict_on_batch`,
`compile`.
"""

import time
from collections.abc import Callable

import keras
import numpy as np

from rivals.cells import PATCH_SIZE, QUERY_CHUNK, Absent, Cell

NUM_CLASSES = 1000


def make_step(rival: str, cell: Cell) -> Callable[[], object]:
    """Returns a function that computes one batch and waits until it is finished.

    Raises:
        Absent: If the rival lacks the model or the option to save memory.
    """
    # in inference the weights are bfloat16 too
    sixteen = "mixed_bfloat16" if cell.trains else "bfloat16"
    keras.config.set_dtype_policy(sixteen if cell.precision == "bfloat16" else "float32")
    if cell.saving and rival != "keras_vit":
        raise Absent("it has no such option")
    build = {"keras_vit": build_ours, "keras-hub": build_keras_hub, "vit-keras": _build_vit_keras}
    model = build[rival](cell)
    draws = np.random.default_rng(0)
    images = draws.uniform(-1, 1, (cell.batch_size, cell.image_size, cell.image_size, 3)).astype(
        "float32"
    )
    if not cell.trains:
        return lambda: model.predict_on_batch(images)
    labels = draws.integers(0, NUM_CLASSES, cell.batch_size)
    train = make_trainer(rival, model, cell)
    return lambda: train(images, labels)


def build_ours(cell: Cell, weights: str | None = None) -> keras.Model:
    import keras_vit

    options = {"input_shape": (cell.image_size, cell.image_size, 3), "classifier_activation": None}
    if cell.saving == "query_chunk":
        options["query_chunk"] = QUERY_CHUNK
    return getattr(keras_vit, cell.model)(weights=weights, **options)


def build_keras_hub(cell: Cell) -> keras.Model:
    import keras_hub

    if cell.shape.is_hybrid:
        raise Absent("it has no hybrids")
    shape = cell.shape
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(cell.image_size, cell.image_size, 3),
        patch_size=PATCH_SIZE,
        num_layers=shape.depth,
        num_heads=shape.num_heads,
        hidden_dim=shape.width,
        mlp_dim=shape.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=NUM_CLASSES, preprocessor=None
    )


def _build_vit_keras(cell: Cell) -> keras.Model:
    from vit_keras import vit

    if cell.shape.vit_keras is None:
        raise Absent("it has no model of this size")
    build = getattr(vit, cell.shape.vit_keras)
    return build(
        image_size=cell.image_size,
        pretrained=False,
        pretrained_top=False,
        classes=NUM_CLASSES,
        activation="linear",
    )


def make_trainer(
    rival: str, model: keras.Model, cell: Cell
) -> Callable[[np.ndarray, np.ndarray], object]:
    """Returns a function that trains on one batch of images and labels, (B,)."""
    if rival == "keras_vit":
        learner = _make_learner(model, cell)
        weights = np.ones(cell.batch_size, "float32")
        return lambda images, labels: learner.train_on_batch(images, labels, weights)
    optimizer = (
        keras.optimizers.AdamW(1e-3, weight_decay=0.1)
        if cell.task == "adamw"
        else keras.optimizers.SGD(1e-3, 0.9)
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.train_on_batch


def _make_learner(model: keras.Model, cell: Cell) -> keras.Model:
    from keras_vit.train.learner import make_learner
    from keras_vit.train.optimizers import OptimizerConfig, make_optimizer

    name = "adamw" if cell.task == "adamw" else "momentum"
    config = OptimizerConfig(
        name=name, learning_rate=1e-3, weight_decay=0.1 if name == "adamw" else 0.0
    )
    optimizer = make_optimizer(config, model, 10_000)
    return make_learner(model, optimizer, batch_rows=cell.batch_size, remat=cell.saving == "remat")


def time_product(precision: str, size: int) -> float:
    """Returns the seconds that a product of two square matrices takes."""
    matrix = keras.ops.cast(keras.random.normal((size, size), seed=0), precision)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        product = tf.function(tf.matmul)
    else:
        import jax

        product = jax.jit(jax.numpy.matmul)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        float(product(matrix, matrix)[0, 0])
        seconds.append(time.perf_counter() - start)
    return min(seconds)
