"""Layer normalization and softmax for `predict` with TensorFlow on a processor: they pass memory
less often.

TensorFlow has oneDNN's layer normalization as an operation, but only its own optimizer of graphs
puts it in, for a form of graph that Keras no longer writes. It is not public, and no other runtime
knows it. Its softmax of bfloat16 computes in float32 inside where it is oneDNN's, and not
elsewhere. So both are used where nothing is ever saved, in the functions of Keras's `predict`, once
they have been seen to be right here.
"""

import functools

import tensorflow as tf

from keras_vit.kernels.tensorflow.training import compiles, standardize, wide_dtype

# Keras's functions of `predict` and `predict_on_batch`; with XLA, which has no such operation, one
# lies inside.
_PREDICTING = ("one_step_on_data_distributed", "multi_step_on_data")


def has_one_pass_norm(x: tf.Tensor) -> bool:
    """Whether `one_pass_norm` can normalize these tokens, where this is asked."""
    return (
        predicts()
        and compiles()
        and x.shape.rank in (2, 3)
        and _norm_works(x.dtype)
        and _norm_works(wide_dtype(x))
    )


def has_narrow_softmax(logits: tf.Tensor) -> bool:
    """Whether `tf.nn.softmax` of these bfloat16 logits is as that of float32, rounded once, where
    this is asked.
    """
    return logits.dtype == tf.bfloat16 and predicts() and compiles() and _softmax_works()


def one_pass_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """See `choice.layer_norm`: inside it computes in float32, and rounds once where weights are as
    x.
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
    """See `choice.layer_norm`; of plain operations, which may be saved. `gamma` and `beta` are
    float32 or wider.
    """
    mean, inverse, normal = standardize(x, epsilon)
    # of two products in a row TensorFlow's graphs choose the order: so the first is a quotient
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
    """Whether the graph that is being made is one of Keras's functions of `predict`."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return getattr(graph, "name", "") in _PREDICTING


@functools.cache
def _norm_works(dtype: tf.DType) -> bool:
    """Whether this TensorFlow, on this processor, has the operation for such numbers, and it is
    right.
    """

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
    """In bfloat16 alone, the sum of 1024 like numbers would be wrong by far more than they are
    rounded.
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
