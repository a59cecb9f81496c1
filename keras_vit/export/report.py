"""Reports on exported files: a table, a Markdown page, a CSV file and a plot.

`verdicts.py` measures the numbers.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.drawing import COLORS, MARKS, check_can_draw, drawable, picture, write_beside
from keras_vit.export.verdicts import Verdict
from keras_vit.writing import cell, table, write_csv, write_text

_NUMBERS = (
    "size_bytes",
    "num_images",
    "top1_agreement",
    "max_error",
    "mean_error",
    "latency_ms",
    "accuracy",
)
_HEADER = (
    "file",
    "size, MB",
    "images",
    "top-1 agreement",
    "max error",
    "mean error",
    "latency, ms",
    "accuracy",
)


def write_report(
    folder: Path,
    verdicts: Sequence[Verdict],
    *,
    title: str,
    images_name: str,
    doubts: Sequence[str] = (),
) -> None:
    """Writes `report.md` and `report.csv`, and `report.png` if matplotlib is installed.

    Each file is written atomically.

    Args:
        folder: An existing folder.
        verdicts: One for each file, all measured on the same images.
        title: Title of the report.
        images_name: Description of the images.
        doubts: Sentences that state why these images are weak evidence.

    Raises:
        ValueError: If there are no verdicts, or they were measured on different numbers of images.

    Example:
        >>> numbers = {"num_images": 500, "max_error": 0.12, "mean_error": 0.016, "accuracy": 0.6425}
        >>> small = Verdict(name="int8.tflite", size_bytes=452_000, top1_agreement=0.992, latency_ms=0.61, **numbers)
        >>> write_report(Path("."), [small], title="A small ViT", images_name="CIFAR-10, test")
        >>> Path("report.csv").read_text().splitlines()[1]
        'int8.tflite,452000,500,0.992,0.12,0.016,0.61,0.6425'
    """
    _check(verdicts)
    page = [
        f"# {cell(title)}",
        table(_choose_header(verdicts), _make_rows(verdicts)),
        _describe_method(verdicts, images_name),
        *doubts,
    ]
    _write_csv(folder / "report.csv", verdicts)
    if _can_draw():
        draw_trade(folder / "report.png", verdicts, title)
        page.append("![Agreement and latency against size](report.png)")
    write_text(folder / "report.md", "\n\n".join(page) + "\n")


def text_table(verdicts: Sequence[Verdict]) -> str:
    """Returns the table of the report for a terminal, with numbers aligned to the right.

    Raises:
        ValueError: If there are no verdicts, or they were measured on different numbers of images.

    Example:
        >>> numbers = {"num_images": 500, "max_error": 0.12, "mean_error": 0.016, "accuracy": None}
        >>> small = Verdict(name="int8.tflite", size_bytes=452_000, top1_agreement=0.992, latency_ms=0.61, **numbers)
        >>> print(text_table([small]))
        file          size, MB   images   top-1 agreement   max error   mean error   latency, ms
        int8.tflite      0.452      500            99.20%        0.12        0.016          0.61
    """
    _check(verdicts)
    lines = [_choose_header(verdicts), *_make_rows(verdicts)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [words[0].ljust(widths[0]), *map(str.rjust, words[1:], widths[1:])] for words in lines
    ]
    return "\n".join("   ".join(words).rstrip() for words in aligned)


def draw_trade(path: Path, verdicts: Sequence[Verdict], title: str) -> None:
    """Plots agreement and latency against file size.

    Args:
        path: Path of the PNG, which is written atomically.
        verdicts: One for each file, at least one. Latencies that were not measured are omitted.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is absent.
    """
    agreements = [100 * verdict.top1_agreement for verdict in verdicts]
    latencies = [verdict.latency_ms for verdict in verdicts]
    columns = [agreements, latencies] if any(map(math.isfinite, latencies)) else [agreements]
    with picture(path, 5.5 * len(columns), 4.6) as figure:
        figure.get_layout_engine().set(wspace=0.06)
        figure.suptitle(
            drawable(title, 45 * len(columns)),
            x=0.01,
            ha="left",
            fontweight="bold",
            parse_math=False,
        )
        panels = figure.subplots(1, len(columns), squeeze=False)[0]
        points = [
            _draw_points(panel, values, verdicts)
            for panel, values in zip(panels, columns, strict=True)
        ]
        _finish_agreement(panels[0], min(agreements))
        for panel in panels[1:]:
            panel.set(
                ylim=(0, 1.15 * panel.get_ylim()[1]), ylabel="latency of one image, milliseconds"
            )
        figure.draw_without_rendering()
        for panel, named in zip(panels, points, strict=True):
            write_beside(panel, list(named.values()), list(named))


def _draw_points(
    panel: Any, values: Sequence[float], verdicts: Sequence[Verdict]
) -> dict[str, tuple[float, float]]:
    """Draws the files with a finite value, and returns their coordinates."""
    named = {}
    for number, (value, verdict) in enumerate(zip(values, verdicts, strict=True)):
        if math.isfinite(value):
            color, mark = COLORS[number % len(COLORS)], MARKS[number % len(MARKS)]
            panel.plot(_to_megabytes(verdict), value, mark, color=color, markersize=9)
            named[verdict.name] = (_to_megabytes(verdict), value)
    panel.set(xlim=(0, 1.25 * max(map(_to_megabytes, verdicts))), xlabel="file size, MB")
    return named


def _finish_agreement(panel: Any, lowest: float) -> None:
    """Labels the axis and sets its limits, from the lowest value to 100 %."""
    # The axis spans at least one point, so that a hundredth of a percent looks small.
    lowest = min(lowest, 99.0)
    margin = 0.12 * (100 - lowest)
    panel.set(ylim=(lowest - margin, 100 + margin), ylabel="top-1 agreement with the model")
    panel.yaxis.set_major_formatter(lambda share, _: f"{share:.4g}%" if share < 100.001 else "")


def _can_draw() -> bool:
    try:
        check_can_draw()
    except ImportError:
        return False
    return True


def _check(verdicts: Sequence[Verdict]) -> None:
    counts = sorted({verdict.num_images for verdict in verdicts})
    if len(counts) != 1:
        raise ValueError(
            f"All verdicts of a table must be measured on the same images. Received: "
            f"{len(verdicts)} verdicts, on {counts} images."
        )


def _choose_header(verdicts: Sequence[Verdict]) -> list[str]:
    return list(_HEADER if _has_accuracy(verdicts) else _HEADER[:-1])


def _make_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    rows = []
    for verdict in verdicts:
        latency = f"{verdict.latency_ms:.3g}" if math.isfinite(verdict.latency_ms) else "-"
        row = [
            " ".join(verdict.name.split()),
            _format_three_digits(_to_megabytes(verdict)),
            f"{verdict.num_images:,}",
        ]
        row += [
            f"{verdict.top1_agreement:.2%}",
            f"{verdict.max_error:.2g}",
            f"{verdict.mean_error:.2g}",
            latency,
        ]
        if _has_accuracy(verdicts):
            row.append("-" if verdict.accuracy is None else f"{verdict.accuracy:.2%}")
        rows.append(row)
    return rows


def _has_accuracy(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.accuracy is not None for verdict in verdicts)


def _describe_method(verdicts: Sequence[Verdict], images_name: str) -> str:
    count = verdicts[0].num_images
    sentences = [
        f"Each file and the model ran on the same {count:,} images: {cell(images_name)}. One image "
        f"is {100 / count:.2g} percentage points. Top-1 agreement is the share of images for which "
        f"both have the same highest output. Errors are absolute differences of the outputs.",
        "Latency is the median time for one image, on two threads, in a process that imports "
        "neither Keras nor this package."
        if any(math.isfinite(verdict.latency_ms) for verdict in verdicts)
        else "",
        "Accuracy is the share of images that the file classifies correctly."
        if _has_accuracy(verdicts)
        else "",
    ]
    return " ".join(filter(None, sentences))


def _write_csv(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Writes one row per verdict; numbers that were not measured are empty."""
    rows = []
    for verdict in verdicts:
        numbers = [getattr(verdict, name) for name in _NUMBERS]
        rows.append(
            [verdict.name, *("" if n is None or not math.isfinite(n) else n for n in numbers)]
        )
    write_csv(path, ["file", *_NUMBERS], rows)


def _to_megabytes(verdict: Verdict) -> float:
    return verdict.size_bytes / 1e6


def _format_three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
