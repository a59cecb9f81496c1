"""The gradient with respect to any token of any layer, on every backend, in training and in
inference.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.models import vision_transformer
from keras_vit.models.class_token import ClassTokenModel

SIZE, BATCH = (16, 24), 2
IMAGES = np.random.default_rng(0).normal(size=(BATCH, *SIZE, 3)).astype("float32")
# of the logits in the loss
WEIGHTS = np.random.default_rng(1).normal(size=(BATCH, 5)).astype("float32")
LAYERS = [  # the last block is the one that may compute its first token alone
    "encoderblock_1",
    "encoder_norm",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("posembed_input", "encoderblock_0", "pooled")
    ),
]


@pytest.fixture
def model(tiny_vit) -> keras.Model:
    model = vision_transformer(tiny_vit, keras.Input((*SIZE, 3)), classes=5)
    draws = np.random.default_rng(2)
    model.set_weights(
        [weight + 0.3 * draws.normal(size=weight.shape) for weight in model.get_weights()]
    )
    return model


def loss_of(model: keras.Model, x, training: bool):
    return ops.sum(model(x, training=training) * WEIGHTS)


def gradient(model: keras.Model, x: np.ndarray, training: bool) -> np.ndarray:
    """Of `loss_of`, in a compiled function."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.jit(jax.grad(lambda x: loss_of(model, x, training)))(x))
    import tensorflow as tf

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(model, x, training)
        return tape.gradient(loss, x)

    return compute(tf.constant(x)).numpy()


def expected(model: keras.Model, x: np.ndarray) -> np.ndarray:
    """By central differences along every axis, in inference, which draws nothing."""
    step, flat = 1e-2, x.reshape(-1)
    shifted = np.repeat(x[None], 2 * flat.size, axis=0).reshape(2, flat.size, -1)
    shifted[0, range(flat.size), range(flat.size)] += step
    shifted[1, range(flat.size), range(flat.size)] -= step
    logits = model.predict(shifted.reshape(-1, *x.shape[1:]), batch_size=512, verbose=0)
    losses = (logits.reshape(2, flat.size, BATCH, -1) * WEIGHTS).sum((-2, -1))
    return ((losses[0] - losses[1]) / (2 * step)).reshape(x.shape)


@pytest.mark.parametrize("make", [keras.Model, ClassTokenModel], ids=lambda make: make.__name__)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_tokens_of_a_layer(model, layer, make):
    tokens = keras.Model(model.input, model.get_layer(layer).output).predict(IMAGES, verbose=0)
    rest = make(model.get_layer(layer).output, model.output)
    wanted = expected(keras.Model(rest.input, rest.output), tokens)
    for training in (False, True):
        found = gradient(rest, tokens, training)
        np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


@pytest.mark.tensorflow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_tokens_that_are_read_beside_the_classes(model, layer, training):
    """As Grad-CAM reads them: a tape that records both must connect one to the other."""
    import tensorflow as tf

    both = ClassTokenModel(model.input, [model.get_layer(layer).output, model.output])

    @tf.function
    def compute(images):
        with tf.GradientTape() as tape:
            tokens, logits = both(images, training=training)
            loss = tf.reduce_sum(logits * WEIGHTS)
        return tokens, tape.gradient(loss, tokens)

    tokens, found = compute(tf.constant(IMAGES))
    rest = keras.Model(model.get_layer(layer).output, model.output)
    np.testing.assert_allclose(found, gradient(rest, tokens.numpy(), False), atol=1e-5)
