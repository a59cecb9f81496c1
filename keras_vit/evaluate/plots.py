"""Figures of an evaluation: confusion matrix, errors, calibration."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.drawing import COLORS, picture, shortened

_MOST_NAMED = 120  # with more classes, the axes show numbers instead of names
_MOST_COUNTED = 25  # with more classes, counts do not fit into the cells
_COLUMNS = 4  # images per row


def draw_confusion(path: Path, counts: np.ndarray, class_names: Sequence[str]) -> None:
    """Draws the confusion matrix. The file is written atomically.

    Args:
        path: Path of the PNG.
        counts: (Y, Y) integers: images by true class (row) and predicted class (column).
        class_names: Names of the Y classes.
    """
    from matplotlib.colors import PowerNorm

    num_classes = len(class_names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(3.5 + 0.3 * num_classes, 5.5, 18))
    # The color bar on the right takes a tenth of the width.
    with picture(path, side, 0.9 * side, plain=True) as figure:
        axes = figure.subplots()
        # Square-root scale, so that a tenth of a class is visible.
        image = axes.imshow(
            shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest"
        )
        if num_classes <= _MOST_COUNTED:
            for row, column in np.argwhere(counts):
                color = "white" if shares[row, column] > 0.4 else "black"
                axes.text(
                    column,
                    row,
                    f"{counts[row, column]:,}",
                    ha="center",
                    va="center",
                    color=color,
                    fontsize=8,
                )
        if num_classes <= _MOST_NAMED:
            names = [shortened(name, number, 28) for number, name in enumerate(class_names)]
            size = float(np.clip(16 * 30 / num_classes, 4.5, 10))
            axes.set_xticks(range(num_classes), names, rotation=90, fontsize=size, parse_math=False)
            axes.set_yticks(range(num_classes), names, fontsize=size, parse_math=False)
        axes.set_xlabel(
            "predicted class" if num_classes <= _MOST_NAMED else "number of the predicted class"
        )
        axes.set_ylabel("true class" if num_classes <= _MOST_NAMED else "number of the true class")
        bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        bar.set_label("share of the images of the true class")


def draw_mistakes(
    path: Path,
    images: Sequence[np.ndarray],
    labels: Sequence[int],
    answers: Sequence[int],
    shares: Sequence[float],
    class_names: Sequence[str],
) -> None:
    """Draws images with their true and predicted classes. The file is written atomically.

    Args:
        path: Path of the PNG.
        images: (H, W, 3) uint8 of any size.
        labels: True class of each image.
        answers: Predicted class of each image.
        shares: Probability of each prediction.
        class_names: Names of all classes.
    """
    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    with picture(path, 3.0 * max(columns, 2), 3.4 * rows, plain=True) as figure:
        figure.get_layout_engine().set(h_pad=0.12)
        panels = figure.subplots(
            rows, columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []}
        ).ravel()
        for panel in panels:
            panel.spines[:].set_visible(False)
        for panel, image, label, answer, share in zip(
            panels, images, labels, answers, shares, strict=False
        ):
            panel.imshow(image)
            answered, true = (
                shortened(class_names[number], number, 24) for number in (answer, label)
            )
            panel.set_title(
                f"predicted: {answered}  {share:.0%}\ntrue: {true}", fontsize=9, parse_math=False
            )


def draw_calibration(
    path: Path, confidence: np.ndarray, accuracy: np.ndarray, counts: np.ndarray
) -> None:
    """Draws a reliability diagram and a histogram of confidence. The file is written atomically.

    Args:
        path: Path of the PNG.
        confidence: (bins,) mean probability of the predictions in each bin; NaN if it is empty.
        accuracy: (bins,) share of correct predictions in each bin; NaN if it is empty.
        counts: (bins,) number of predictions in each bin.
    """
    edges = np.linspace(0, 1, len(counts) + 1)
    with picture(path, 5.5, 6.5) as figure:
        upper, lower = figure.subplots(2, sharex=True, height_ratios=[3, 1])
        upper.plot(
            [0, 1], [0, 1], "--", color="#888888", linewidth=1.2, label="perfect calibration"
        )
        upper.bar(
            edges[:-1],
            np.nan_to_num(accuracy),
            width=1 / len(counts),
            align="edge",
            color=COLORS[0],
            alpha=0.35,
        )
        upper.plot(confidence, accuracy, "o", color=COLORS[0], label="this model")
        upper.set(ylim=(0, 1), xlim=(0, 1), ylabel="accuracy")
        upper.legend(loc="upper left")
        lower.bar(edges[:-1], counts, width=1 / len(counts), align="edge", color=COLORS[0])
        lower.set(xlabel="confidence: probability of the prediction", ylabel="images")
        lower.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        for axis in (upper.xaxis, upper.yaxis):
            axis.set_major_formatter(lambda share, _: f"{share:.0%}")
