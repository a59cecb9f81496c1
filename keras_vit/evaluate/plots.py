"""Pictures of what a model gets right and wrong. Draws what it is given, computes nothing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.drawing import COLORS, picture, shortened

_MOST_NAMED = 120  # classes whose names can be read along an axis; more are numbered
_MOST_COUNTED = 25  # classes whose counts fit into the cells
_COLUMNS = 4  # of a gallery


def draw_confusion(path: Path, counts: np.ndarray, class_names: Sequence[str]) -> None:
    """Draws which class is taken for which. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        counts: (Y, Y) integers: images of the class of the row that were taken for that of the
            column.
        class_names: Y of them.
    """
    from matplotlib.colors import PowerNorm

    num_classes = len(class_names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(3.5 + 0.3 * num_classes, 5.5, 18))
    # the bar on the right takes the tenth
    with picture(path, side, 0.9 * side, plain=True) as figure:
        axes = figure.subplots()
        # The square root: a tenth of a class that goes astray should be seen.
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
            "taken for" if num_classes <= _MOST_NAMED else "taken for, number of the class"
        )
        axes.set_ylabel("class" if num_classes <= _MOST_NAMED else "number of the class")
        bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        bar.set_label("share of the images of the class")


def draw_mistakes(
    path: Path,
    images: Sequence[np.ndarray],
    labels: Sequence[int],
    answers: Sequence[int],
    shares: Sequence[float],
    class_names: Sequence[str],
) -> None:
    """Draws images, each with its class and what it was taken for. The file appears whole or not at
    all.

    Args:
        path: Of the PNG.
        images: (H, W, 3) uint8 of any size.
        labels: The class of each.
        answers: The class that each was taken for.
        shares: The probability that each answer was given.
        class_names: Of all classes.
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
                f"taken for {answered}  {share:.0%}\nis {true}", fontsize=9, parse_math=False
            )


def draw_calibration(
    path: Path, confidence: np.ndarray, accuracy: np.ndarray, counts: np.ndarray
) -> None:
    """Draws how often the model is right against how sure it is, and how many answers there are of
    each kind.

    The file appears whole or not at all.

    Args:
        path: Of the PNG.
        confidence: (bins,) mean probability of the answers in a bin; NaN where there are none.
        accuracy: (bins,) share of them that is right; NaN where there are none.
        counts: (bins,) how many.
    """
    edges = np.linspace(0, 1, len(counts) + 1)
    with picture(path, 5.5, 6.5) as figure:
        upper, lower = figure.subplots(2, sharex=True, height_ratios=[3, 1])
        upper.plot(
            [0, 1], [0, 1], "--", color="#888888", linewidth=1.2, label="as sure as it is right"
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
        upper.set(ylim=(0, 1), xlim=(0, 1), ylabel="share of the answers that are right")
        upper.legend(loc="upper left")
        lower.bar(edges[:-1], counts, width=1 / len(counts), align="edge", color=COLORS[0])
        lower.set(xlabel="probability that the model gives its answer", ylabel="answers")
        lower.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
        for axis in (upper.xaxis, upper.yaxis):
            axis.set_major_formatter(lambda share, _: f"{share:.0%}")
