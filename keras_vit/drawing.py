"""The style of all pictures, and the one door to matplotlib's figures. What is drawn is the business of the callers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.writing import whole

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # told apart without seeing red or green
_STYLE = {
    "font.size": 11,
    "axes.titlesize": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
}


def check_can_draw() -> None:
    """Raises ImportError if nothing could be drawn: before a long run, not after it."""
    _matplotlib()


@contextmanager
def picture(path: Path, width: float, height: float, *, plain: bool = False) -> Iterator[Any]:
    """Gives a matplotlib figure; it is saved as a PNG, whole or not at all, when all has been drawn.

    Args:
        path: Of the PNG.
        width, height: In inches, of 150 pixels each.
        plain: Axes without the grid and with their frame, for images.

    Raises:
        ImportError: If matplotlib is absent; the message says what to install.

    Example:
        >>> with picture(Path("line.png"), 4, 3) as figure:
        ...     _ = figure.subplots().plot([1, 2])
        >>> Path("line.png").exists()
        True
    """
    new_figure, style = _matplotlib()
    with style({} if plain else _STYLE):
        figure = new_figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        with whole(path) as partial:
            figure.savefig(partial, format="png")


def draw_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Draws images side by side, one row below the other. The file appears whole or not at all.

    Args:
        path: Of the PNG.
        rows: Names to images, (B, H, W, 3) from 0 to 1.
    """
    count = len(next(iter(rows.values())))
    with picture(path, 1.5 * count + 1, 1.6 * len(rows), plain=True) as figure:
        lines = figure.subplots(len(rows), count, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
        for line, (name, images) in zip(lines, rows.items(), strict=True):
            line[0].set_ylabel(name)
            for panel, image in zip(line, images, strict=True):
                panel.imshow(image, interpolation="nearest")


def shortened(name: str, number: int, length: int) -> str:
    """Returns a class name that fits and can be drawn: without its middle, and without signs that the font lacks.

    Args:
        name: Of a class.
        number: Of the class, said where the name is not whole.
        length: In signs.

    Example:
        >>> shortened("a very long name of a class", 3, 16)
        'a very … a class'
    """
    words = " ".join(name.split())
    drawn = "".join(sign for sign in words if ord(sign) in _signs()).strip()
    if len(drawn) > length:
        return f"{drawn[: length - 9]}…{drawn[-8:]}"
    return drawn if drawn == words else f"{drawn} [class {number}]".strip()


_SIGNS: set[int] = set()


def _signs() -> set[int]:
    from matplotlib import font_manager

    if not _SIGNS:
        _SIGNS.update(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
    return _SIGNS


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure  # not pyplot, which asks for a screen and keeps its figures
    except ImportError as error:
        raise ImportError(f'A picture needs matplotlib: pip install "keras-vit[train]" ({error})') from error
    return Figure, rc_context
