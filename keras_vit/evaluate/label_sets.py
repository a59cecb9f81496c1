"""Accuracy where an image has several right classes, or none: ImageNet ReaL, ObjectNet.

What lives here: the sets and the metric. Where the sets come from is the business of
    `imagenet_sets.py`.

Source: arXiv:2006.07159 section 3 and google-research/reassessed-imagenet, README.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from keras_vit.data.reading import Unreadable
from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.evaluate.outputs import outputs


@dataclass(frozen=True, kw_only=True)
class LabelSets:
    """Images, and for each of them the classes that are right.

    Attributes:
        source: Where the images are, and the names of the classes. The labels that it has itself
            are not looked at.
        right: For each image its right classes. An image without any is not counted.
        allowed: The classes that an answer may be; None for all. The model's outputs for the others
            are not looked at.

    Raises:
        ValueError: If there are more sets than images or fewer, or a class is not among those of
            the source, or a right one not among those allowed.

    Example:
        >>> from keras_vit.data import sources
        >>> images = sources.arrays(np.zeros((2, 8, 8), "uint8"), np.zeros(2, int), ["cat", "dog", "bird"])
        >>> LabelSets(source=images, right=((0, 2), ())).num_counted
        1
    """

    source: Source
    right: tuple[tuple[int, ...], ...]
    allowed: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "right", tuple(tuple(int(label) for label in labels) for labels in self.right)
        )
        if len(self.right) != self.source.num_examples:
            raise ValueError(
                f"{self.source.name} has {self.source.num_examples} images. "
                f"Received: {len(self.right)} sets of classes."
            )
        num_classes, used = (
            len(self.source.class_names),
            {label for labels in self.right for label in labels},
        )
        unknown = sorted(
            label for label in used.union(self.allowed or ()) if not 0 <= label < num_classes
        )
        if unknown:
            raise ValueError(
                f"The classes of {self.source.name} are 0 to {num_classes - 1}. Received: "
                f"{_some(unknown)}."
            )
        barred = sorted(used.difference(used if self.allowed is None else self.allowed))
        if barred:
            raise ValueError(
                f"Classes that are right must be among those allowed. Missing there: "
                f"{_some(barred)}."
            )

    @property
    def num_counted(self) -> int:
        """Images with at least one right class."""
        return sum(map(bool, self.right))


def label_set_accuracy(
    model: keras.Model,
    sets: LabelSets,
    *,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    strict: bool = False,
    progress: bool = True,
    prefix: str = "real",
) -> dict[str, float]:
    """Returns how often an answer of a classifier is one of the right ones.

    Images without a right class are excluded, as the authors of ReaL do: they are not even read.

    Args:
        model: Gives one value for each class of `sets.source`, logits or probabilities; of pixels
            in [-1, 1].
        sets: The images and their right classes.
        image_size, eval_crop, batch_size, devices, progress: As in
            `keras_vit.evaluate.outputs.outputs`.
        strict: An image that cannot be read is an error, instead of being left out and counted.
        prefix: Of the names of the numbers.

    Returns:
        "real/top1", "real/top5": shares of the counted images with a right class among the first,
        and the first five answers; "real/images": how many were counted; "real/excluded": how many
        have no right class; "real/unreadable": how many could not be read. For another `prefix`
        than "real", that.

    Raises:
        ValueError: If the model has other classes, gives NaN, or no image is left to be counted.

    Example:
        >>> from keras_vit.data import sources
        >>> images = sources.arrays(np.zeros((3, 32, 32), "uint8"), np.zeros(3, int), ["cat", "dog", "bird"])
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=3)
        >>> label_set_accuracy(model, LabelSets(source=images, right=((0,), (1, 2), ())))
        {'real/top1': 0.5, 'real/top5': 1.0, 'real/images': 2, 'real/excluded': 1,
        'real/unreadable': 0}

    Source: google-research/reassessed-imagenet, README.md; its example code is top-1.
    """
    _check_classes(model, sets)
    if not sets.num_counted:
        raise ValueError(
            f"No image of {sets.source.name} has a right class: there is nothing to measure."
        )
    counted = np.flatnonzero([bool(labels) for labels in sets.right])
    part = sets.source.subset(counted)
    given = outputs(
        model,
        part,
        image_size=image_size,
        eval_crop=eval_crop,
        batch_size=batch_size,
        devices=devices,
        unreadable=Unreadable(part, strict=strict),
        progress=progress,
    )
    ranks = [
        best_ranks(out.values, [sets.right[i] for i in counted[out.indices]], sets.allowed)
        for out in given
    ]
    found = np.concatenate([np.zeros(0, np.int64), *ranks])
    if not found.size:
        raise ValueError(f"No image of {sets.source.name} could be read.")
    numbers = {
        "top1": float(np.mean(found < 1)),
        "top5": float(np.mean(found < 5)),
        "images": len(found),
        "excluded": len(sets.right) - len(counted),
        "unreadable": len(counted) - len(found),
    }
    return {f"{prefix}/{name}": number for name, number in numbers.items()}


def best_ranks(
    values: np.ndarray, right: Sequence[Iterable[int]], allowed: Iterable[int] | None = None
) -> np.ndarray:
    """Returns how many classes a classifier prefers to the right one that it likes best: 0 where
    its answer is right.

    Of classes with equal values the lowest comes first.

    Args:
        values: (n, Y), what the classifier gives.
        right: For each row its right classes.
        allowed: The classes that count; None for all Y.

    Returns:
        (n,) int64. Where no right class counts, the number of those that do.

    Raises:
        ValueError: If a value is NaN.

    Example:
        >>> best_ranks(np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]]), [(0, 2), (0,)])
        array([1, 2])
    """
    if np.isnan(values).any():
        raise ValueError("The model gives NaN. Are its weights whole?")
    is_right = np.zeros(values.shape, bool)
    for row, labels in zip(is_right, right, strict=True):
        row[list(labels)] = True
    if allowed is not None:
        classes = np.unique(list(allowed))
        values, is_right = values[:, classes], is_right[:, classes]
    order = np.argsort(-values, axis=1, kind="stable")
    found = np.take_along_axis(is_right, order, axis=1)
    return np.where(found.any(axis=1), found.argmax(axis=1), found.shape[1])


def _check_classes(model: keras.Model, sets: LabelSets) -> None:
    shapes, num_classes = (
        [output.shape[1:] for output in model.outputs],
        len(sets.source.class_names),
    )
    if shapes != [(num_classes,)]:
        raise ValueError(
            f"{sets.source.name} is about {num_classes:,} classes: one value is needed for each. "
            f"The model gives, for "
            f"each image: {', '.join(' x '.join(map(str, shape)) or '1' for shape in shapes)}. "
            f"Take a model with these "
            "classes, in this order."
        )


def _some(labels: Sequence[int]) -> str:
    return ", ".join(map(str, labels[:10])) + (", ..." if len(labels) > 10 else "")
