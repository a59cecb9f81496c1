"""A validated model with its image size, class names and reference outputs."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.metadata import labels_of
from keras_vit.export.signatures import output_name
from keras_vit.export.verdicts import check_finite
from keras_vit.graph import precisions_of
from keras_vit.pixels import pixels_of

_BATCH = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model that can be exported.

    Attributes:
        model: Functional model with one input (B, H, W, 3) and one output.
        image_size: (height, width) in pixels of the images that the export takes.
        labels: Names of its classes; empty if it has no head.
    """

    model: keras.Model
    image_size: tuple[int, int]
    labels: Sequence[str]

    @property
    def output(self) -> str:
        """Name of the output, as in `keras_vit.export.signatures.output_name`."""
        return output_name(self.model, len(self.labels))

    def inputs(self, pixels: np.ndarray) -> np.ndarray:
        """Converts (n, H, W, 3) uint8 to the range of pixels that the model takes."""
        return pixels_of(self.model).from_levels(pixels.astype(np.float32))

    def answers(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the outputs of the model in float32, computed on the CPU.

        Raises:
            ValueError: If an output is NaN or infinite. Nothing could be compared with it, and
                converters crash on such weights.
        """
        inputs = self.inputs(pixels)
        # GPUs may round products to fewer digits.
        with tf.device("CPU:0"):
            parts = [
                self.model(inputs[i : i + _BATCH], training=False)
                for i in range(0, len(inputs), _BATCH)
            ]
        answers = np.concatenate([keras.ops.convert_to_numpy(part) for part in parts]).astype(
            np.float32
        )
        check_finite(answers)
        return answers


def subject_of(
    model: keras.Model,
    image_size: int | tuple[int, int] | None = None,
    class_names: Sequence[str] = (),
) -> Subject:
    """Checks that a model can be exported.

    Args:
        model: The model.
        image_size: Side in pixels, or (height, width). Required if the model takes any size.
        class_names: Names in the order of the classes. Default: see
            `keras_vit.export.metadata.labels_of`.

    Raises:
        ValueError: If the model cannot be exported, takes images of another size, or has another
            number of classes.

    Example:
        >>> subject = subject_of(keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=2), None, ["a", "b"])
        >>> subject.image_size, subject.answers(np.zeros((3, 32, 48, 3), np.uint8)).shape
        ((32, 48), (3, 2))
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Export needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow. Received: "
            f"{keras.backend.backend()}."
        )
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][3] != 3 or len(model.outputs) != 1:
        raise ValueError(
            "The model must be functional, with one input of images (B, H, W, 3) and one output. "
            f"Received: inputs of shape {shapes}."
        )
    size = _check_size(shapes[0][1:3], image_size)
    if output_name(model, len(class_names)) != "features":
        return Subject(
            model=model, image_size=size, labels=labels_of(model.outputs[0].shape[-1], class_names)
        )
    if len(class_names):
        raise ValueError(
            f"{model.name} has no head, so it has no classes. Received: {len(class_names)} names."
        )
    return Subject(model=model, image_size=size, labels=[])


def check_float32(model: keras.Model) -> None:
    """Raises a ValueError if a layer of the model computes in another precision."""
    precisions = precisions_of(model) - {"float32"}
    if precisions:
        raise ValueError(
            f"The model must compute in float32. Received: layers that compute in "
            f"{', '.join(sorted(precisions))}. "
            "Build it under `keras.config.set_dtype_policy('float32')` and give it the same "
            "weights with `set_weights`."
        )


def _check_size(shape: tuple, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    height, width = shape
    if image_size is None:
        if height is None or width is None:
            raise ValueError(
                "The model takes images of any size: pass `image_size`, in pixels, to choose the "
                "size of the export."
            )
        return height, width
    size = (int(image_size),) * 2 if isinstance(image_size, numbers.Integral) else tuple(image_size)
    if len(size) != 2 or min(size) < 1 or size != (height or size[0], width or size[1]):
        raise ValueError(
            f"The model takes images of {height} x {width} pixels. Received: "
            f"image_size={image_size}."
        )
    return size
