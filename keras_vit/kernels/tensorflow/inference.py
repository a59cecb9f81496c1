"""Layer normalization and softmax for `predict` on a CPU, with fewer passes over memory.

TensorFlow has oneDNN's layer normalization as a private operation. Its graph optimizer inserts it
only for graphs that Keras no longer writes, and other runtimes do not have it. The softmax of
bfloat16 computes in float32 internally if it is oneDNN's, and not otherwise. Therefore both are
used only in graphs that are never saved, those of Keras's `predict`, and only after a test of their
results in this process.
"""

import functools

import tensorflow as tf

from keras_vit.kernels.tensorflow.training import compiles, standardize, wide_dtype

# Names of Keras's traced functions for `predict` and `predict_on_batch`. With XLA, which does not
# have these operations, the name is that of an inner function.
_PREDICTING = ("one_step_on_data_distributed", "multi_step_on_data")


def has_one_pass_norm(x: tf.Tensor) -> bool:
    """Returns whether `one_pass_norm` supports these tokens in the current graph."""
    return (
        predicts()
        and compiles()
        and x.shape.rank in (2, 3)
        and _norm_works(x.dtype)
        and _norm_works(wide_dtype(x))
    )


def has_narrow_softmax(logits: tf.Tensor) -> bool:
    """Returns whether `tf.nn.softmax` computes bfloat16 logits in float32 in the current graph."""
    return logits.dtype == tf.bfloat16 and predicts() and compiles() and _softmax_works()


def one_pass_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Computes `choice.layer_norm` in float32 internally.

    The result is rounded once if the weights have the dtype of x.
    """
    if x.dtype == gamma.dtype:
        return _apply_onednn_norm(x, gamma, beta, epsilon)
    wide = wide_dtype(x)
    return tf.cast(
        _apply_onednn_norm(tf.cast(x, wide), tf.cast(gamma, wide), tf.cast(beta, wide), epsilon),
        x.dtype,
    )


def plain_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, *, reproducible: bool = False
) -> tf.Tensor:
    """Computes `choice.layer_norm` with plain operations, which can be saved.

    `gamma` and `beta` are float32 or wider.
    """
    mean, inverse, normal = standardize(x, epsilon)
    # TensorFlow's graph optimizer may reorder two successive products, so the first is a division.
    if reproducible:
        normal = (tf.cast(x, gamma.dtype) - mean) / tf.math.reciprocal(inverse)
    return tf.cast(normal * gamma + beta, x.dtype)


def _apply_onednn_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    graph = tf.compat.v1.get_default_graph()
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    attributes = {
        "T": tf.compat.v1.AttrValue(type=x.dtype.as_datatype_enum),
        "epsilon": tf.compat.v1.AttrValue(f=epsilon),
    }
    normal = graph.create_op(
        "_MklLayerNorm", [x, gamma, beta], [x.dtype], attrs=attributes, name="layer_norm"
    )
    normal.outputs[0].set_shape(x.shape)
    return normal.outputs[0]


def predicts() -> bool:
    """Returns whether the current graph is that of Keras's `predict`."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return getattr(graph, "name", "") in _PREDICTING


@functools.cache
def _norm_works(dtype: tf.DType) -> bool:
    """Returns whether the operation exists here for this dtype, and its results are correct."""

    @tf.function(autograph=False)
    def compute_both(
        tokens: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        _, _, normal = standardize(tokens, 1e-6)
        return tf.cast(_apply_onednn_norm(tokens, gamma, beta, 1e-6), normal.dtype), 2 * normal + 1

    try:
        with tf.init_scope():
            tokens = tf.reshape(tf.range(48, dtype=tf.float32) ** 1.5 / 16, (3, 16))
            given, expected = compute_both(
                *(tf.cast(x, dtype) for x in (tokens, tf.fill([16], 2), tf.fill([16], 1)))
            )
            return bool(tf.reduce_all(tf.abs(given - expected) < 0.02))
    except (ValueError, tf.errors.OpError):
        return False


@functools.cache
def _softmax_works() -> bool:
    """Returns whether the softmax of bfloat16 computes in float32 internally.

    If it does not, the error of a sum of 1024 similar numbers is much larger than the rounding.
    """

    @tf.function(autograph=False)
    def compute_both(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(tf.nn.softmax(logits), tf.float32), tf.nn.softmax(
            tf.cast(logits, tf.float32)
        )

    with tf.init_scope():
        logits = tf.sin(tf.reshape(tf.range(4096, dtype=tf.float32), (1, 1, 4, 1024)))
        given, expected = compute_both(tf.cast(logits, tf.bfloat16))
        return bool(tf.reduce_all(tf.abs(given / expected - 1) <= 2**-8))
