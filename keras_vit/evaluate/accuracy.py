"""How often a classifier is right, and how sure it is: exact over every image of a source, whatever
the batch.

What lives here: the answers, and numbers made of them. Tables, files and pictures are made in
    `scorecard.py`.
"""

from dataclasses import dataclass

import keras
import numpy as np

from keras_vit.data.reading import Unreadable
from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.evaluate.heads import last_activation, why_no_classes
from keras_vit.evaluate.outputs import outputs

_ADDS_UP = 1e-2  # how far from 1 probabilities may add up to, in 16 bits
CALIBRATION_BINS = 15  # arXiv:1706.04599, section 5


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a classifier says of n images, one row for each image that could be read.

    Attributes:
        source: Where the images are.
        indices: (n,) int64, of the images in the source.
        labels: (n,) int64, their classes.
        answers: (n,) int64, the classes that the model gives the highest probability; of equals,
            the lowest class.
        shares: (n,) float64, that probability.
        ranks: (n,) int64, how many classes the model prefers to the right one: 0 where it is right.
        losses: (n,) float64, cross-entropies in nats.
        unreadable: Places of images that could not be read; over several workers, those that this
            one met.
    """

    source: Source
    indices: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    shares: np.ndarray
    ranks: np.ndarray
    losses: np.ndarray
    unreadable: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of the images whose answer is right."""
        return self.top(1)

    def top(self, count: int) -> float:
        """Returns the share of the images whose class is among the `count` that the model
        prefers.
        """
        return float(np.mean(self.ranks < count))

    def confusion(self) -> np.ndarray:
        """Returns (Y, Y) counts: images of the class of the row that were taken for that of the
        column.
        """
        num_classes = len(self.source.class_names)
        pairs = np.bincount(self.labels * num_classes + self.answers, minlength=num_classes**2)
        return pairs.reshape(num_classes, num_classes)

    def per_class(self) -> np.ndarray:
        """Returns (Y,) float64: of the images of each class, the share that is named correctly; NaN
        where none are.
        """
        found = np.bincount(self.labels, minlength=len(self.source.class_names))
        right = np.bincount(self.labels[self.ranks == 0], minlength=len(found))
        return np.divide(right, found, out=np.full(len(found), np.nan), where=found > 0)

    def calibration(
        self, bins: int = CALIBRATION_BINS
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns how sure the model is, and how often right, by how sure it is.

        Args:
            bins: Equal parts of (0, 1]; an answer of probability p is in the part with lower end <
                p <= upper end.

        Returns:
            (bins,) mean probability, (bins,) share that is right (both NaN where there are no
            answers), (bins,) counts.
        """
        place = np.clip(np.ceil(self.shares * bins).astype(int) - 1, 0, bins - 1)
        counts = np.bincount(place, minlength=bins)

        def mean(values: np.ndarray) -> np.ndarray:
            sums = np.bincount(place, values, minlength=bins)
            return np.divide(sums, counts, out=np.full(bins, np.nan), where=counts > 0)

        return mean(self.shares), mean((self.ranks == 0).astype(float)), counts

    def calibration_error(self, bins: int = CALIBRATION_BINS) -> float:
        """Returns the expected calibration error: the mean distance between how sure and how often
        right.

        Source: arXiv:1706.04599, eq. 5.
        """
        confidence, accuracy, counts = self.calibration(bins)
        return float(np.nansum(counts * np.abs(confidence - accuracy)) / counts.sum())

    def numbers(self) -> dict[str, float]:
        """Returns everything that is one number, by name."""
        top = {
            f"top{count}": self.top(count)
            for count in (1, 5)
            if count == 1 or count < len(self.source.class_names)
        }
        return {
            **top,
            "loss": float(np.mean(self.losses)),
            "mean_per_class": float(np.nanmean(self.per_class())),
            "calibration_error": self.calibration_error(),
            "images": len(self.indices),
            "unreadable": self.source.num_examples - len(self.indices),
        }


def accuracy(
    model: keras.Model,
    source: Source,
    *,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    strict: bool = False,
    progress: bool = True,
) -> dict[str, float]:
    """Returns how often a classifier is right on a source.

    Every image is counted once, for any size of the batch and any number of devices.

    Args:
        model: Gives logits, or probabilities of a softmax, of pixels as
            `keras_vit.pixels.pixels_of` says.
        source: Images with the classes of the model, in its order.
        image_size, eval_crop, batch_size, devices, progress: As in
            `keras_vit.evaluate.outputs.outputs`.
        strict: An image that cannot be read is an error, instead of being left out and counted.

    Returns:
        "top1", "top5" (of more than five classes): shares of the images; "loss": mean cross-entropy
        in nats; "mean_per_class": mean of the classes' accuracies; "calibration_error": in 15 bins;
        "images": how many were counted; "unreadable": how many could not be.

    Raises:
        ValueError: If the model does not have the classes of the source, gives NaN, or no image
            could be read.

    Example:
        >>> from keras_vit.data import sources
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> found = accuracy(model, sources.digits("test"))
        >>> found["images"], round(found["loss"], 4)
        (360, 2.3026)
    """
    unreadable = Unreadable(source, strict=strict)
    options = {
        "image_size": image_size,
        "eval_crop": eval_crop,
        "batch_size": batch_size,
        "devices": devices,
    }
    return answer(model, source, unreadable=unreadable, progress=progress, **options).numbers()


def answer(
    model: keras.Model,
    source: Source,
    *,
    image_size: int | tuple[int, int] | None = None,
    eval_crop: str = "resize",
    batch_size: int | None = None,
    devices: Devices | None = None,
    unreadable: Unreadable | None = None,
    progress: bool = True,
) -> Answers:
    """Asks a classifier about every image of a source. Arguments and errors are those of
    `accuracy`.
    """
    _check_classes(model, source)
    unreadable = Unreadable(source) if unreadable is None else unreadable
    given = outputs(
        model,
        source,
        image_size=image_size,
        eval_crop=eval_crop,
        batch_size=batch_size,
        devices=devices,
        unreadable=unreadable,
        progress=progress,
    )
    columns = []
    for part in given:
        if len(part.indices):
            _check_labels(source, part.indices, part.labels)
            columns.append(
                (
                    part.indices,
                    part.labels,
                    *judge(log_probabilities(model, part.values), part.labels),
                )
            )
    if not columns:
        raise ValueError(f"No image of {source.name} could be read.")
    names = ("indices", "labels", "answers", "shares", "ranks", "losses")
    joined = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Answers(
        source=source, unreadable=tuple(unreadable.places), **dict(zip(names, joined, strict=True))
    )


def judge(
    logs: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compares probabilities with labels.

    Args:
        logs: (n, Y) float64, logarithms of probabilities.
        labels: (n,) integers.

    Returns:
        (n,) each: answers, their probabilities, ranks of the labels, losses; as in `Answers`.

    Example:
        >>> judge(np.log([[0.2, 0.5, 0.3]]), np.array([2]))[2]
        array([1])
    """
    rows = np.arange(len(labels))
    answers, right = logs.argmax(axis=1), logs[rows, labels][:, None]
    # of equals the lowest class comes first, as in argmax
    before = np.arange(logs.shape[1]) < labels[:, None]
    ranks = ((logs > right) | ((logs == right) & before)).sum(axis=1)
    return answers, np.exp(logs[rows, answers]), ranks, -right[:, 0]


def log_probabilities(model: keras.Model, values: np.ndarray) -> np.ndarray:
    """Returns (n, Y) float64 logarithms of probabilities from what a classifier gives: logits, or
    its softmax.

    Raises:
        ValueError: If a value is NaN or infinite, or the model ends in something else than logits
            or a softmax.
    """
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise ValueError(
            f"The model gives NaN or infinity: row {row} of a batch is {values[row][:5]}... Are "
            f"its weights whole?"
        )
    if values.shape[1] < 2:
        raise ValueError(why_no_classes(model))
    activation = last_activation(model)
    # A softmax may also be a layer or an operation of its own, or stand in a model within the
    # model.
    adds_up = values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() < _ADDS_UP
    if activation == "softmax" or adds_up:
        # Of logits close to each other, a softmax in float32 keeps six digits; what it rounds to 0
        # counts as 1e-45.
        return np.log(np.maximum(values, np.finfo(np.float32).smallest_subnormal))
    if activation != "linear":
        raise ValueError(
            f"The model must end in logits or a softmax, since each image has one class. "
            f"{model.name} ends in "
            f"{activation}. Build it with `classifier_activation=None`, or a head of yours with "
            f"`activation=None`."
        )
    values = values - values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def _check_labels(source: Source, indices: np.ndarray, labels: np.ndarray) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(source.class_names)))
    if wrong.size:
        place, label, last = (
            source.locate(int(indices[wrong[0]])),
            labels[wrong[0]],
            len(source.class_names) - 1,
        )
        raise ValueError(
            f"{place} has the label {label}, and classes are 0 to {last}. Is it a split without "
            f"labels?"
        )


def _check_classes(model: keras.Model, source: Source) -> None:
    shape, num_classes = model.outputs[0].shape[1:], len(source.class_names)
    if shape == (1,) and num_classes > 1:
        raise ValueError(why_no_classes(model))
    if shape != (num_classes,):
        raise ValueError(
            f"The model gives {' x '.join(map(str, shape))} values for each image, and "
            f"{source.name} has {num_classes} "
            "classes. They must be the same classes, in the same order."
        )
