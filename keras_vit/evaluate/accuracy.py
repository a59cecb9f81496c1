"""Accuracy, loss and calibration of a classifier, exact over all images of a source.

`scorecard.py` creates tables, files and figures from these numbers.
"""

from dataclasses import dataclass

import keras
import numpy as np

from keras_vit.data.reading import Unreadable
from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.evaluate.heads import add_up, gives_classes, outputs_of, why_no_classes
from keras_vit.evaluate.outputs import outputs
from keras_vit.graph import has_graph

CALIBRATION_BINS = 15  # arXiv:1706.04599, section 5


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Predictions of a classifier for n images, one row for each readable image.

    Attributes:
        source: The images.
        indices: (n,) int64, indices of the images in the source.
        labels: (n,) int64, true classes.
        answers: (n,) int64, predicted classes; the lowest class if several have the highest
            probability.
        shares: (n,) float64, probability of the predicted class.
        ranks: (n,) int64, number of classes that rank above the true class; 0 if the prediction is
            correct.
        losses: (n,) float64, cross-entropies in nats.
        unreadable: Places of unreadable images; with several workers, those read by this worker.
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
        """Share of the images with a correct prediction."""
        return self.top(1)

    def top(self, count: int) -> float:
        """Returns the share of the images whose true class is among the `count` most likely."""
        return float(np.mean(self.ranks < count))

    def confusion(self) -> np.ndarray:
        """Returns (Y, Y) counts by true class (row) and predicted class (column)."""
        num_classes = len(self.source.class_names)
        pairs = np.bincount(self.labels * num_classes + self.answers, minlength=num_classes**2)
        return pairs.reshape(num_classes, num_classes)

    def per_class(self) -> np.ndarray:
        """Returns (Y,) float64, the accuracy on each class; NaN for classes without images."""
        found = np.bincount(self.labels, minlength=len(self.source.class_names))
        right = np.bincount(self.labels[self.ranks == 0], minlength=len(found))
        return np.divide(right, found, out=np.full(len(found), np.nan), where=found > 0)

    def calibration(
        self, bins: int = CALIBRATION_BINS
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns confidence and accuracy of the predictions, by bins of confidence.

        Args:
            bins: Number of equal bins of (0, 1]. A prediction of probability p is in the bin with
                lower end < p <= upper end.

        Returns:
            (bins,) mean probability, (bins,) accuracy, both NaN for empty bins; and (bins,) counts.
        """
        place = np.clip(np.ceil(self.shares * bins).astype(int) - 1, 0, bins - 1)
        counts = np.bincount(place, minlength=bins)

        def mean(values: np.ndarray) -> np.ndarray:
            sums = np.bincount(place, values, minlength=bins)
            return np.divide(sums, counts, out=np.full(bins, np.nan), where=counts > 0)

        return mean(self.shares), mean((self.ranks == 0).astype(float)), counts

    def calibration_error(self, bins: int = CALIBRATION_BINS) -> float:
        """Returns the expected calibration error: the mean difference of confidence and accuracy.

        Source: arXiv:1706.04599, eq. 5.
        """
        confidence, accuracy, counts = self.calibration(bins)
        return float(np.nansum(counts * np.abs(confidence - accuracy)) / counts.sum())

    def numbers(self) -> dict[str, float]:
        """Returns all metrics by name."""
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
    """Measures the accuracy of a classifier on a source.

    Every image counts once, for any batch size and any number of devices.

    Args:
        model: Classifier with logits, a softmax or sigmoids. Pixels are scaled to the range of
            `keras_vit.pixels.pixels_of`.
        source: Images with the classes of the model, in the same order.
        image_size, eval_crop, batch_size, devices, progress: As in
            `keras_vit.evaluate.outputs.outputs`.
        strict: Raises an error for an unreadable image, instead of skipping and counting it.

    Returns:
        "top1" and, with more than five classes, "top5": shares of the images; "loss": mean
        cross-entropy in nats, of sigmoids the sum over the classes; "mean_per_class": mean of the
        accuracies of the classes; "calibration_error": expected calibration error in 15 bins;
        "images": number of evaluated images; "unreadable": number of unreadable images.

    Raises:
        ValueError: If the model has other classes than the source, outputs NaN, or no image can be
            read.

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
    """Returns the predictions of a classifier for every image of a source.

    Arguments and errors are those of `accuracy`.
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
                    *judge(
                        log_probabilities(model, part.values),
                        part.labels,
                        independent="sigmoid" in outputs_of(model),
                    ),
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
    logs: np.ndarray, labels: np.ndarray, *, independent: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compares probabilities with labels.

    Args:
        logs: (n, Y) float64, logarithms of probabilities.
        labels: (n,) integers.
        independent: Whether each class has a probability of its own, from a sigmoid. The loss is
            then the sum of the binary cross-entropies, as in training.

    Returns:
        Predictions, their probabilities, ranks of the labels and losses, (n,) each; as in
        `Answers`.

    Example:
        >>> judge(np.log([[0.2, 0.5, 0.3]]), np.array([2]))[2]
        array([1])
    """
    rows = np.arange(len(labels))
    answers, right = logs.argmax(axis=1), logs[rows, labels][:, None]
    # Among equal probabilities, the lowest class comes first, as in argmax.
    before = np.arange(logs.shape[1]) < labels[:, None]
    ranks = ((logs > right) | ((logs == right) & before)).sum(axis=1)
    losses = -right[:, 0]
    if independent:
        absent = np.log(np.maximum(-np.expm1(logs), _LEAST))
        losses -= absent.sum(axis=1) - absent[rows, labels]
    return answers, np.exp(logs[rows, answers]), ranks, losses


def log_probabilities(model: keras.Model, values: np.ndarray) -> np.ndarray:
    """Converts the outputs of a classifier to logarithms of the scores of its classes, (n, Y) float64.

    Scores are probabilities that add up to 1, or an independent probability for each class, see
    `keras_vit.evaluate.heads.outputs_of`. All commands use them.

    Raises:
        ValueError: If a value is NaN or infinite, or the model ends in another activation.
    """
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise ValueError(
            f"The model outputs NaN or infinity: row {row} of a batch is {values[row][:5]}... "
            f"Check its weights."
        )
    if values.shape[1] < 2:
        raise ValueError(why_no_classes(model))
    kind = outputs_of(model)
    if kind == "sigmoid logits":
        return -np.logaddexp(0, -values)
    # A model without a graph may end in a softmax of its own.
    if kind != "logits" or (not has_graph(model) and add_up(values)):
        # For logits of similar size, a softmax in float32 keeps six digits. Probabilities that it
        # rounds to 0 count as 1e-45.
        return np.log(np.maximum(values, _LEAST))
    values = values - values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


_LEAST = np.finfo(np.float32).smallest_subnormal


def _check_labels(source: Source, indices: np.ndarray, labels: np.ndarray) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(source.class_names)))
    if wrong.size:
        place, label, last = (
            source.locate(int(indices[wrong[0]])),
            labels[wrong[0]],
            len(source.class_names) - 1,
        )
        raise ValueError(
            f"{place} has the label {label}; the classes are 0 to {last}. If the split has no "
            f"labels, use another one."
        )


def _check_classes(model: keras.Model, source: Source) -> None:
    shape, num_classes = model.outputs[0].shape[1:], len(source.class_names)
    if not gives_classes(model, num_classes):
        raise ValueError(why_no_classes(model))
    if shape != (num_classes,):
        raise ValueError(
            f"The model outputs {' x '.join(map(str, shape))} values for each image; "
            f"{source.name} has {num_classes} classes. Both must have the same classes, in the "
            f"same order."
        )
