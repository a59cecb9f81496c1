"""The signatures of an exported model.

| signature | inputs | outputs |
|---|---|---|
| serving_default | image_bytes (B,) string: JPEG or PNG | labels, scores, class_ids (B, k), status (B,) |
| predict | images (B, H, W, 3) float32, as the model takes them | logits (B, Y) |
| predict_uint8 | images (B, H, W, 3) uint8 from 0 to 255 | logits (B, Y) |
| features | as predict | pre_logits (B, D), tokens (B, T + N, D); for a ResNet, its feature map |
| attention | as predict | attention (B, L, A, N, N) |

T counts the tokens before the patches: class token, distillation token and registers. Tokens are
those after the last normalization; of a model that normalizes behind the pooling, such as a
fine-tuned MAE, those of the last block.

B may be 0. If the model ends in softmax or sigmoid, the output is named probabilities instead of
logits. If it has no head, the output is named features, and serving_default returns features and
status. All numbers are float32.
"""

from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from keras_vit.analyze.attention_model import AttentionMaps
from keras_vit.analyze.attention_sites import find_attention
from keras_vit.evaluate.features import feature_model
from keras_vit.evaluate.heads import gives_classes, outputs_of, why_no_classes
from keras_vit.export.image_bytes import MAX_PIXELS, read_images
from keras_vit.layers import TokenPooling
from keras_vit.pixels import pixels_of

Signatures = dict[str, Callable[..., dict[str, tf.Tensor]]]


def signatures(
    model: keras.Model,
    *,
    image_size: tuple[int, int],
    class_file: Path | None = None,
    eval_crop: str = "resize",
    top: int = 5,
    attention: bool = False,
    any_size: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> tuple[tf.Module, Signatures]:
    """Returns the module that holds the variables, and the signatures, for `tf.saved_model.save`.

    Args:
        model: Functional model with one input (B, H, W, 3) and one output.
        image_size: (height, width) in pixels to which files are resized. Must be the size of the
            model, unless the model takes any size.
        class_file: Class names, one per line; not needed without a head.
        eval_crop: Policy by which files are resized and cropped, as in
            `keras_vit.data.transforms.eval_crop`.
        top: Maximum number of classes that serving_default returns.
        attention: Whether to add a signature for the attention weights.
        any_size: Whether to accept images of all sizes, which are resized to `image_size`
            bilinearly, without antialiasing.
        max_pixels: As in `keras_vit.export.image_bytes.read_images`.

    Raises:
        ValueError: If `attention` is true and the model has none, or an argument does not fit.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), include_top=False, pooling="token")
        >>> holder, asked = signatures(model, image_size=(32, 32))
        >>> asked["predict"](tf.zeros((2, 32, 32, 3)))["features"].shape
        TensorShape([2, 192])
    """
    holder = tf.Module()
    holder.model_variables = [variable.value for variable in model.variables]
    kind = output_name(model, 0 if class_file is None else class_file.read_bytes().count(b"\n"))
    if kind != "features":
        holder.class_names = _load_class_names(class_file)
    taken = _Images(model, image_size, any_size)

    def predict(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return _answer_any_batch(
            lambda some: {kind: _to_float32(model(some, training=False))}, taken.resize(images)
        )

    def predict_uint8(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return predict(taken.scale(taken.resize(images)))

    def answer_files(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        images, status = read_images(
            image_bytes, image_size, eval_crop=eval_crop, max_pixels=max_pixels
        )
        (outputs,) = predict(taken.scale(images)).values()
        if kind == "features":
            return {"features": _mask_unreadable(status, outputs, 0.0), "status": status}
        return {
            **_rank_classes(_compute_scores(outputs, model), top, status, holder.class_names),
            "status": status,
        }

    asked = {
        "serving_default": _with_signature(
            answer_files, tf.TensorSpec([None], tf.string, "image_bytes")
        ),
        "predict": _with_signature(predict, taken.spec(tf.float32)),
        "predict_uint8": _with_signature(predict_uint8, taken.spec(tf.uint8)),
        "features": _with_signature(_make_features(model, taken), taken.spec(tf.float32)),
    }
    if attention:
        asked["attention"] = _with_signature(_make_attention(model, taken), taken.spec(tf.float32))
    return holder, asked


def output_name(model: keras.Model, num_names: int = 0) -> str:
    """Returns the name of a model's output: "logits", "probabilities", or "features" without a head.

    Args:
        model, num_names: As in `keras_vit.evaluate.heads.gives_classes`.

    Raises:
        ValueError: As `keras_vit.evaluate.heads.outputs_of`, or if it outputs one number for each
            image, such as a sigmoid for two classes.

    Example:
        >>> output_name(keras_vit.ViT_Ti16(weights=None, classifier_activation=None))
        'logits'
        >>> output_name(keras_vit.ViT_Ti16(weights=None, include_top=False))
        'features'
    """
    if tuple(model.outputs[0].shape[1:]) == (1,):  # as in all other commands
        raise ValueError(why_no_classes(model))
    if not gives_classes(model, num_names):
        return "features"
    return "logits" if "logits" in outputs_of(model) else "probabilities"


class _Images:
    """Conversion of images to the size and range that a model takes."""

    def __init__(self, model: keras.Model, image_size: tuple[int, int], any_size: bool):
        self.shape = (None, None) if any_size else tuple(model.inputs[0].shape[1:3])
        self.resized = tuple(image_size) if any_size else None
        self.pixels = pixels_of(model)

    def spec(self, dtype: tf.DType) -> tf.TensorSpec:
        return tf.TensorSpec([None, *self.shape, 3], dtype, "images")

    def resize(self, images: tf.Tensor) -> tf.Tensor:
        return images if self.resized is None else tf.image.resize(images, self.resized)

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Converts levels from 0 to 255 to the range that the model takes."""
        return self.pixels.from_levels(tf.cast(images, tf.float32))


def _load_class_names(file: Path | None) -> tf.lookup.StaticHashTable:
    """Returns a table from class numbers to names; unknown numbers are named "".

    The table reads its file each time the model is loaded.
    """
    if file is None:
        raise ValueError(
            "The model has a head: pass `class_file`, the names of its classes, one per line."
        )
    lines = tf.lookup.TextFileInitializer(
        str(file),
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
    )
    return tf.lookup.StaticHashTable(lines, default_value="")


def _compute_scores(outputs: tf.Tensor, model: keras.Model) -> tf.Tensor:
    scores = {"logits": tf.nn.softmax, "sigmoid logits": tf.sigmoid}
    return scores.get(outputs_of(model), tf.identity)(outputs)


def _rank_classes(
    scores: tf.Tensor, top: int, status: tf.Tensor, class_names: tf.lookup.StaticHashTable
) -> dict[str, tf.Tensor]:
    """Returns the best classes of each image; unreadable images have class -1, no name and score 0."""
    # The score is not NaN, since JSON has no NaN.
    best = tf.math.top_k(scores, min(top, scores.shape[-1]))
    class_ids = _mask_unreadable(status, best.indices, -1)
    labels = class_names.lookup(tf.cast(class_ids, tf.int64))
    return {
        "labels": labels,
        "scores": _mask_unreadable(status, best.values, 0.0),
        "class_ids": class_ids,
    }


def _mask_unreadable(status: tf.Tensor, values: tf.Tensor, otherwise: float) -> tf.Tensor:
    is_ok = tf.reshape(status == "ok", [-1, *[1] * (values.shape.rank - 1)])
    return tf.where(is_ok, values, tf.cast(otherwise, values.dtype))


def _make_features(
    model: keras.Model, taken: _Images
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    named = {
        "pre_logits": feature_model(model, "pre_logits").outputs[0],
        "tokens": _find_tokens(model),
    }
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    # Without pooling, `pre_logits` are the tokens.
    if len(named) == 2 and len(named["pre_logits"].shape) != 2:
        del named["pre_logits"]
    reader = keras.Model(model.inputs[0], list(named.values()))

    def read(images: tf.Tensor) -> dict[str, tf.Tensor]:
        given = keras.tree.flatten(reader(images, training=False))
        return {name: _to_float32(values) for name, values in zip(named, given, strict=True)}

    return lambda images: _answer_any_batch(read, taken.resize(images))


def _find_tokens(model: keras.Model) -> keras.KerasTensor | None:
    """Returns all tokens after the last normalization, or after the last block if it is normalized
    behind the pooling; for a ResNet, its feature map.
    """
    layers = {layer.name: layer for layer in model.layers}
    if "encoder_norm" in layers:
        return layers["encoder_norm"].output
    pools = [layer.input for layer in model.layers if isinstance(layer, TokenPooling)]
    pools += [layers[name].input for name in ("avg_pool", "max_pool") if name in layers]
    not_pooled = model.outputs[:1] if len(model.outputs[0].shape) > 2 else []
    return next(iter([*pools, *not_pooled]), None)


def _make_attention(
    model: keras.Model, taken: _Images
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    maps = AttentionMaps(find_attention(model))

    def attention(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return _answer_any_batch(
            lambda some: {"attention": maps(some, training=False)}, taken.resize(images)
        )

    return attention


def _answer_any_batch(
    answer: Callable[[tf.Tensor], dict[str, tf.Tensor]], images: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Calls `answer` on a batch that may be empty."""
    count = tf.shape(images)[0]
    # oneDNN returns a wrong shape for convolutions of an empty batch: pad it with one blank image.
    # Batches that are not empty are not copied.
    some = tf.pad(images, [[0, tf.cast(count == 0, tf.int32)], [0, 0], [0, 0], [0, 0]])
    answers = answer(tf.ensure_shape(some, images.shape))
    return {name: values[:count] for name, values in answers.items()}


def _to_float32(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32)


def _with_signature(answer: Callable, spec: tf.TensorSpec) -> Callable[..., dict[str, tf.Tensor]]:
    return tf.function(answer, input_signature=[spec], autograph=False)
