"""Preprocessing and postprocessing: scaling of pixels, names of classes.

Class names are those of WordNet, from files in `keras_vit/labels`.

Source: keras-team/keras, keras/src/applications/imagenet_utils.py (behaviour and messages).
"""

import functools
import importlib.resources
import re
from typing import Any

import keras
import numpy as np
from keras.applications import imagenet_utils


def preprocess_input(x: Any, data_format: str | None = None) -> Any:
    """Scales pixels from [0, 255] to [-1, 1]: x / 127.5 - 1.

    As in `keras.applications`, a float NumPy array is changed in place; integers are copied.

    Example:
        >>> keras_vit.preprocess_input(np.array([[[[0, 51, 255]]]], "uint8")).tolist()
        [[[[-1.0, -0.6000000238418579, 1.0]]]]
    """
    return imagenet_utils.preprocess_input(x, data_format=data_format, mode="tf")


_LABELS = {1000: "imagenet2012.tsv", 21843: "imagenet21k.tsv"}


def decode_predictions(preds: Any, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Returns the classes with the highest scores of each row, with their names. Works offline.

    Args:
        preds: (B, 1000) or (B, 21843) scores.
        top: Number of classes to return.

    Returns:
        For each row `top` tuples (WordNet id, name, score), highest first.

    Raises:
        ValueError: If `preds` has another shape.

    Example:
        >>> keras_vit.decode_predictions(np.eye(1, 1000), top=1)
        [[('n01440764', 'tench', 1.0)]]
    """
    preds = np.asarray(keras.ops.convert_to_numpy(preds))
    if preds.ndim != 2 or preds.shape[1] not in _LABELS:
        raise ValueError(
            "`decode_predictions` expects a batch of predictions (i.e. a 2D array of shape "
            f"(samples, 1000) or (samples, 21843)). Received array with shape: {preds.shape}"
        )
    labels = _load_labels(preds.shape[1])
    best = np.argsort(-preds, axis=1, kind="stable")[:, :top]
    return [
        [(*labels[i], float(row[i])) for i in indices]
        for row, indices in zip(preds, best, strict=True)
    ]


def class_names(num_classes: int) -> list[str]:
    """Returns the names of the 1000 classes of ILSVRC 2012, or of the 21,843 classes of
    ImageNet-21k; an empty list for other numbers.

    Example:
        >>> class_names(1000)[:2], class_names(7)
        (['tench', 'goldfish'], [])
    """
    return [name for _, name in _load_labels(num_classes)] if num_classes in _LABELS else []


def is_wordnet_id(name: str) -> bool:
    """Returns whether a name has the form of a WordNet id of ImageNet.

    Example:
        >>> is_wordnet_id("n01440764"), is_wordnet_id("nine")
        (True, False)
    """
    return re.fullmatch(r"n\d{8}", name) is not None


@functools.cache
def _load_labels(classes: int) -> list[tuple[str, str]]:
    """Returns (WordNet id, first lemma) of each class."""
    text = (
        importlib.resources.files("keras_vit")
        .joinpath("labels", _LABELS[classes])
        .read_text("utf-8")
    )
    return [tuple(line.split("\t")) for line in text.splitlines()]
