"""Accuracy on images with several correct classes, or none: ImageNet ReaL, ObjectNet.

`imagenet_sets.py` reads these data sets.

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
    """Images with a set of correct classes each.

    Attributes:
        source: The images and the names of the classes. Its labels are ignored.
        right: Correct classes of each image. Images without correct classes are excluded.
        allowed: Classes that may be predicted; None for all. Outputs for other classes are ignored.
        is_complete: Whether these are all images of a published test set, so that published results
            are comparable.

    Raises:
        ValueError: If the number of sets differs from the number of images, a class is not in the
            source, or a correct class is not allowed.

    Example:
        >>> from keras_vit.data import sources
        >>> images = sources.arrays(np.zeros((2, 8, 8), "uint8"), np.zeros(2, int), ["cat", "dog", "bird"])
        >>> LabelSets(source=images, right=((0, 2), ())).num_counted
        1
    """

    source: Source
    right: tuple[tuple[int, ...], ...]
    allowed: tuple[int, ...] | None = None
    is_complete: bool = False

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
                f"{_list_some(unknown)}."
            )
        barred = sorted(used.difference(used if self.allowed is None else self.allowed))
        if barred:
            raise ValueError(
                f"All correct classes must be in `allowed`. Missing: {_list_some(barred)}."
            )

    @property
    def num_counted(self) -> int:
        """Number of images with at least one correct class."""
        return sum(map(bool, self.right))

    @property
    def counted(self) -> Source:
        """The images with at least one correct class.

        Raises:
            ValueError: If there are none.
        """
        if not self.num_counted:
            raise ValueError(
                f"No image of {self.source.name} has a correct class, so accuracy is undefined."
            )
        return self.source.subset(np.flatnonzero([bool(labels) for labels in self.right]))


def label_set_accuracy(
    model: keras.Model,
    sets: LabelSets,
    *,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    strict: bool = False,
    unreadable: Unreadable | None = None,
    progress: bool = True,
    prefix: str = "real",
) -> dict[str, float]:
    """Measures how often the prediction of a classifier is one of the correct classes.

    Images without a correct class are excluded, as by the authors of ReaL, and not read.

    Args:
        model: Classifier with one output, a logit or probability, for each class of `sets.source`.
        sets: The images and their correct classes.
        image_size, eval_crop, batch_size, devices, progress: As in
            `keras_vit.evaluate.outputs.outputs`.
        strict: Raises an error for an unreadable image, instead of skipping and counting it.
        unreadable: Collects the unreadable images of `sets.counted`; it has its own `strict`.
        prefix: Prefix of the names of the metrics, instead of "real".

    Returns:
        "real/top1" and "real/top5": shares of the evaluated images with a correct class among the
        first one and five predictions; "real/images": number of evaluated images; "real/excluded":
        number of images without a correct class; "real/unreadable": number of unreadable images.

    Raises:
        ValueError: If the model has other classes, outputs NaN, or no image can be evaluated.

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
    part, right = sets.counted, [labels for labels in sets.right if labels]
    given = outputs(
        model,
        part,
        image_size=image_size,
        eval_crop=eval_crop,
        batch_size=batch_size,
        devices=devices,
        unreadable=Unreadable(part, strict=strict) if unreadable is None else unreadable,
        progress=progress,
    )
    ranks = [best_ranks(out.values, [right[i] for i in out.indices], sets.allowed) for out in given]
    found = np.concatenate([np.zeros(0, np.int64), *ranks])
    if not found.size:
        raise ValueError(f"No image of {sets.source.name} could be read.")
    numbers = {
        "top1": float(np.mean(found < 1)),
        "top5": float(np.mean(found < 5)),
        "images": len(found),
        "excluded": len(sets.right) - len(right),
        "unreadable": len(right) - len(found),
    }
    return {f"{prefix}/{name}": number for name, number in numbers.items()}


def best_ranks(
    values: np.ndarray, right: Sequence[Iterable[int]], allowed: Iterable[int] | None = None
) -> np.ndarray:
    """Returns the best rank of a correct class in each row; 0 if the prediction is correct.

    Among equal values, the lowest class ranks first.

    Args:
        values: (n, Y), outputs of the classifier.
        right: Correct classes of each row.
        allowed: Classes that are ranked; None for all Y.

    Returns:
        (n,) int64. If no correct class is ranked, the number of ranked classes.

    Raises:
        ValueError: If a value is NaN.

    Example:
        >>> best_ranks(np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]]), [(0, 2), (0,)])
        array([1, 2])
    """
    if np.isnan(values).any():
        raise ValueError("The model outputs NaN. Check its weights.")
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
            f"{sets.source.name} has {num_classes:,} classes, so the model must output one value "
            "for each. It outputs for each image: "
            f"{', '.join(' x '.join(map(str, shape)) or '1' for shape in shapes)}. Use a model "
            "with these classes, in this order."
        )


def _list_some(labels: Sequence[int]) -> str:
    return ", ".join(map(str, labels[:10])) + (", ..." if len(labels) > 10 else "")
