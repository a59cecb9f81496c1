"""Figures of attention, filters and position embeddings of one model.

`trend_plots.py` contains the figures of accuracy against steps, compute, data and ablations.

Source: arXiv:2010.11929, Figures 6, 7, 10, 11 and 14.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.drawing import drawable, picture

_PAIRS = 3  # pairs of a photo and its overlay per row
_SMALLEST_PX = 224  # smaller photos are enlarged to this side before the overlay
_TILES = 7  # filters per row, as in the paper
_MOST_TILES = 16  # tiles per side in a figure of similarities; larger grids are subsampled
_MOST_SMALL_TILES = 8  # the same, with more than three panels
_LABEL_SPACE = 1.3  # distance of the labels of tiles, relative to the longest one


def overlay(photo: np.ndarray, attention: np.ndarray) -> np.ndarray:
    """Returns a photo with its brightness scaled by attention.

    This is the rendering of the paper: the map is resized to the photo (Lanczos), blurred
    (Gaussian, as wide as a patch) and scaled from 0 to 1, so the position with the least attention
    is black. A constant map does not change the photo.

    Args:
        photo: (H, W, 3) uint8, or float in [-1, 1]; (H, W) or (H, W, 1) for grey.
        attention: (R, C) at least 0, over the whole photo.

    Returns:
        (H, W, 3) float from 0 to 1.

    Raises:
        ValueError: If a shape differs, or a value is NaN, infinite or out of range.

    Example:
        >>> attention = np.zeros((2, 2))
        >>> attention[0, 1] = 0.5
        >>> lit = overlay(np.full((80, 80, 3), 255, np.uint8), attention)
        >>> lit[0, -1].round(2), lit[-1, 0].round(2)
        (array([1., 1., 1.]), array([0., 0., 0.]))

    Source: arXiv:2010.11929 Figure 6; github.com/google-research/vision_transformer issue 27 for
    the rendering.
    """
    pixels, attention = _check_photo(photo), _check_maps(attention, 2, "a map (R, C)")
    down, across = (
        _make_smoothing(old, new)
        for old, new in zip(attention.shape, pixels.shape[:2], strict=True)
    )
    light = down @ (attention / (attention.max() or 1.0)) @ across.T
    spread = np.ptp(light)
    return pixels if spread < 1e-9 else pixels * ((light - light.min()) / spread)[:, :, None]


def draw_overlays(
    path: Path, photos: Sequence[np.ndarray], maps: Sequence[np.ndarray], titles: Sequence[str]
) -> None:
    """Draws photos next to their overlays, as in Figures 6 and 14. The file is written atomically.

    Args:
        path: Path of the PNG.
        photos: (H, W, 3) uint8, or float in [-1, 1], or grey; each of any size.
        maps: (R, C) for each photo, as from `attention_rollout`: at least 0, over the whole photo.
        titles: Title of each photo; it may contain line breaks.

    Raises:
        ValueError: If there are no photos, the numbers of photos, maps and titles differ, or a
            photo or map is invalid.
    """
    if not len(photos) or not len(photos) == len(maps) == len(titles):
        raise ValueError(
            f"There must be at least one photo, and a map and a title for each. Received: "
            f"{len(photos)} photos, {len(maps)} maps, {len(titles)} titles."
        )
    pairs = [_make_pair(photo, attention) for photo, attention in zip(photos, maps, strict=True)]
    columns = min(_PAIRS, len(pairs))
    rows = [pairs[start : start + columns] for start in range(0, len(pairs), columns)]
    width = 3.3 if columns > 1 else 4.4
    heights = [
        width * float(np.clip(max(pair.shape[0] / pair.shape[1] for pair in row), 0.15, 1.2))
        for row in rows
    ]
    above = 0.15 + 0.17 * max(len(title.splitlines()) for title in titles)
    with picture(path, width * columns, sum(heights) + above * len(rows), plain=True) as figure:
        panels = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights).ravel()
        for panel in panels:
            panel.set_axis_off()
            panel.set_anchor("N")
        for panel, pair, title in zip(panels, pairs, titles, strict=False):
            panel.imshow(pair)
            _set_title(panel, title, size=9, length=44)


def _make_pair(photo: np.ndarray, attention: np.ndarray) -> np.ndarray:
    """Returns one image of the photo, a gap and the overlay."""
    pixels = _check_photo(photo)
    # Enlarge small photos, so that the overlay is smooth.
    times = -(-_SMALLEST_PX // max(pixels.shape[:2]))
    pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
    gap = np.ones((pixels.shape[0], max(1, pixels.shape[1] // 50), 3))
    pair = np.concatenate([pixels, gap, overlay(pixels * 2 - 1, attention)], axis=1)
    return (255 * pair).round().astype(np.uint8)


def draw_head_maps(path: Path, photo: np.ndarray, maps: np.ndarray, title: str = "") -> None:
    """Draws one map for each layer and head, next to the photo. The file is written atomically.

    Each map is scaled to its own maximum, so maps show the distribution of attention and not its
    amount.

    Args:
        path: Path of the PNG.
        photo: (H, W, 3) uint8, or float in [-1, 1], or grey.
        maps: (L, A, R, C) at least 0, such as the attention of the class token to the patches.
        title: Title of the figure.

    Raises:
        ValueError: If the photo or the maps are invalid.
    """
    pixels, maps = _check_photo(photo), _check_maps(maps, 4, "maps (L, A, R, C)")
    most = maps.max(axis=(2, 3), keepdims=True)
    tiles = maps / np.where(most > 0, most, 1.0)
    mosaic, side = (
        _make_mosaic(tiles, _choose_gaps(tiles.shape)),
        0.5 if tiles.shape[1] <= 12 else 0.4,
    )
    width, height = (
        side * count for count in (tiles.shape[1], tiles.shape[0] * tiles.shape[2] / tiles.shape[3])
    )
    with picture(path, width + 3.6, max(height, 2.0) + 1.0, plain=True) as figure:
        figure.get_layout_engine().set(h_pad=0.12)
        left, right = figure.subplots(1, 2, width_ratios=[2.4, width + 0.6])
        left.imshow(pixels)
        left.set_axis_off()
        left.set_anchor("N")
        right.set_anchor("N")
        right.imshow(mosaic, cmap="inferno", vmin=0, vmax=1, interpolation="nearest")
        _number_tiles(right, tiles.shape, x_label="head", y_label="layer")
        _set_title(right, title, size=11, length=90)
        _thin_labels(figure, [right])


def draw_filters(path: Path, components: np.ndarray, explained: np.ndarray | None = None) -> None:
    """Draws filters as RGB tiles, as in Figure 7, left. The file is written atomically.

    Each tile is scaled from its minimum to its maximum.

    Args:
        path: Path of the PNG.
        components: (K, P, P, 3), as from `filter_components`, or one channel for grey.
        explained: (K,) from 0 to 1, the explained variance that is written below each tile.

    Raises:
        ValueError: If a shape differs, or a value is NaN or infinite.
    """
    tiles = np.asarray(components, np.float64)
    if (
        tiles.ndim != 4
        or not tiles.size
        or tiles.shape[3] not in (1, 3)
        or not np.isfinite(tiles).all()
    ):
        raise ValueError(
            f"Filters must be finite numbers of shape (K, P, P, 3). Received: the shape {tiles.shape}."
        )
    if explained is not None and np.shape(explained) != tiles.shape[:1]:
        raise ValueError(
            f"`explained` must have one value for each of {len(tiles)} filters. Received: "
            f"{explained}."
        )
    least, most = (choose(axis=(1, 2, 3), keepdims=True) for choose in (tiles.min, tiles.max))
    tiles = np.where(most > least, (tiles - least) / np.where(most > least, most - least, 1.0), 0.5)
    tiles = np.broadcast_to(tiles, (*tiles.shape[:3], 3))
    columns = min(_TILES, len(tiles))
    rows = -(-len(tiles) // columns)
    padded = np.concatenate([tiles, np.ones((rows * columns - len(tiles), *tiles.shape[1:]))])
    side = tiles.shape[2]
    gaps = max(1, round((0.08 if explained is None else 0.25) * side)), max(1, round(0.08 * side))
    mosaic = _make_mosaic(padded.reshape(rows, columns, *tiles.shape[1:]), gaps, paper=1.0)
    width = max(0.95 * columns, 1.9)
    with picture(
        path, width, width * mosaic.shape[0] / mosaic.shape[1] + 0.3, plain=True
    ) as figure:
        panel = figure.subplots()
        panel.imshow(mosaic, interpolation="nearest")
        panel.set_axis_off()
        panel.autoscale(False)
        for number in range(len(tiles)):
            row, column = divmod(number, columns)
            top, left = row * (side + gaps[0]) - 0.5, column * (side + gaps[1]) - 0.5
            bottom, right = top + side, left + side
            outline = [left, right, right, left, left], [top, top, bottom, bottom, top]
            panel.plot(*outline, color="#888888", linewidth=0.6, clip_on=False)
            if explained is not None:
                style: dict[str, Any] = {
                    "textcoords": "offset points",
                    "ha": "center",
                    "va": "top",
                    "fontsize": 8,
                }
                panel.annotate(
                    f"{explained[number]:.1%}", ((left + right) / 2, bottom), (0, -2), **style
                )


def draw_similarity(path: Path, similarities: Mapping[str, np.ndarray]) -> None:
    """Draws the similarity of position embeddings, as in Figure 7, centre, and Figure 10.

    Each patch has a tile, with its similarity to all patches. Grids with more than 16 rows or
    columns (8, with more than three panels) are subsampled: only every second, third, ... patch has
    a tile. The file is written atomically.

    Args:
        path: Path of the PNG.
        similarities: Maps the title of each panel to (R, C, R, C) from -1 to 1, as from
            `position_similarity`.

    Raises:
        ValueError: If there are no similarities, a shape differs, or a value is not from -1 to 1.
    """
    if not similarities:
        raise ValueError("`similarities` is empty. Pass at least one panel.")
    columns, side, most = (
        (len(similarities), 4.6, _MOST_TILES)
        if len(similarities) <= 3
        else (4, 3.2, _MOST_SMALL_TILES)
    )
    shown = {title: _subsample(values, most) for title, values in similarities.items()}
    rows = -(-len(shown) // columns)
    height = side * max(
        min(2.0, tiles.shape[0] * tiles.shape[2] / tiles.shape[1] / tiles.shape[3])
        for tiles, _ in shown.values()
    )
    with picture(path, side * columns + 0.9, max(height + 0.4, 2.2) * rows, plain=True) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        for panel, (title, (tiles, numbers)) in zip(panels, shown.items(), strict=False):
            image = panel.imshow(
                _make_mosaic(tiles, _choose_gaps(tiles.shape)),
                cmap="viridis",
                vmin=-1,
                vmax=1,
                interpolation="nearest",
            )
            _number_tiles(panel, tiles.shape, "input patch column", "input patch row", numbers)
            _set_title(panel, title, size=11, length=44)
        bar = figure.colorbar(
            image, ax=panels.tolist(), shrink=0.8 if rows == 1 else 0.5, aspect=25, pad=0.02
        )
        bar.set_label("cosine similarity")
        _thin_labels(figure, panels[: len(shown)])


def _subsample(values: np.ndarray, most: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Returns the tiles that are drawn, and the rows and columns of their patches."""
    values = np.asarray(values, np.float64)
    if values.ndim != 4 or not values.size or values.shape[:2] != values.shape[2:]:
        raise ValueError(
            f"Similarities must have the shape (R, C, R, C). Received: {values.shape}."
        )
    if not (np.abs(values) < 1 + 1e-5).all():
        raise ValueError(
            "Similarities are cosines, from -1 to 1. Received: a value out of this range, or NaN."
        )
    steps = [-(-side // most) for side in values.shape[:2]]
    rows, columns = (
        np.arange((side - 1) % step // 2, side, step)
        for side, step in zip(values.shape, steps, strict=False)
    )
    return values[np.ix_(rows, columns)], (rows, columns)


def draw_distance(
    path: Path, distance_px: np.ndarray, title: str = "", *, uniform_px: float | None = None
) -> None:
    """Draws the mean attention distance of each head against depth: Figures 7, right, and 11.

    The heads of a layer are sorted and colored by their rank. A line connects the means. The file
    is written atomically.

    Args:
        path: Path of the PNG.
        distance_px: (L, A) mean attention distance, in pixels.
        title: Title of the figure.
        uniform_px: Mean distance of a head that attends to all tokens equally, drawn as a line.

    Raises:
        ValueError: If the shape differs, or a value is negative, NaN or infinite.
    """
    distances = np.sort(_check_maps(distance_px, 2, "distances (L, A)"), axis=1)
    depth, heads = distances.shape
    layers = np.arange(1, depth + 1)
    with picture(path, 6.2, 4.8) as figure:
        axes = figure.subplots()
        axes.plot(
            layers,
            distances.mean(axis=1),
            color="#888888",
            linewidth=1.4,
            zorder=1,
            label="mean of the heads",
        )
        places, ranks = np.repeat(layers, heads), np.tile(np.arange(heads), depth)
        style: dict[str, Any] = {
            "cmap": "viridis",
            "vmax": max(heads * 1.1, 1),
            "edgecolors": "white",
            "linewidths": 0.5,
        }
        axes.scatter(
            places,
            distances.ravel(),
            s=38,
            c=ranks,
            zorder=2,
            label="one head, colored by rank",
            **style,
        )
        axes.set(xlabel="network depth (layer)", ylabel="mean attention distance (pixels)")
        if uniform_px is not None:
            axes.axhline(
                uniform_px, color="#888888", linestyle=":", zorder=0, label="uniform attention"
            )
        # heads that differ little would cover each other on an axis from 0
        least, most = float(distances.min()), max(float(distances.max()), 1e-3)
        bottom = 0.0 if least <= most / 2 else least - 0.2 * (most - least) - 0.01 * most
        axes.set(xlim=(0.4, depth + 0.6), ylim=(bottom, most + 0.08 * (most - bottom)))
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        figure.legend(loc="outside lower center", ncols=2)
        _set_title(axes, title, size=12, length=60)


def _check_photo(photo: np.ndarray) -> np.ndarray:
    """Checks a photo and converts it to (H, W, 3) float from 0 to 1."""
    photo = np.asarray(photo)
    photo = photo[:, :, None] if photo.ndim == 2 else photo
    if photo.ndim != 3 or photo.shape[2] not in (1, 3) or not photo.size:
        raise ValueError(
            f"A photo must have the shape (H, W, 3), or (H, W) for grey. Received: the shape "
            f"{photo.shape}."
        )
    if photo.dtype == np.uint8:
        return np.repeat(photo, 3 // photo.shape[2], axis=2) / 255.0
    # Values slightly above 1 are allowed, since resizing with sharpening overshoots.
    if not (np.abs(photo) < 1.5).all():
        raise ValueError("Float photos must be in [-1, 1]. Pass photos from 0 to 255 as uint8.")
    return np.repeat(np.clip(photo / 2 + 0.5, 0.0, 1.0), 3 // photo.shape[2], axis=2)


def _check_maps(values: np.ndarray, rank: int, what: str) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if (
        values.ndim != rank
        or not values.size
        or not np.isfinite(values).all()
        or (values < 0).any()
    ):
        raise ValueError(f"Expected {what}, finite and at least 0. Received: {_describe(values)}.")
    return values


def _describe(values: np.ndarray) -> str:
    return f"the shape {values.shape}" + (
        f", from {values.min():.3g} to {values.max():.3g}" if values.size else ""
    )


def _make_smoothing(old: int, new: int) -> np.ndarray:
    """Returns the (new, old) matrix that resizes (Lanczos) and blurs (Gaussian, one old value wide)."""
    # Edges are handled as in Pillow: the kernel is truncated when resizing, and the last value is
    # repeated when blurring.
    ratio = old / new
    distance = ((np.arange(new)[:, None] + 0.5) * ratio - 0.5 - np.arange(old)) / max(ratio, 1.0)
    resize = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    resize /= resize.sum(axis=1, keepdims=True)
    margin = -(-3 * new // old)
    inside = np.clip(np.arange(-margin, new + margin), 0, new - 1)
    blur = np.exp(
        -0.5 * ((np.arange(new)[:, None] - np.arange(-margin, new + margin)) * ratio) ** 2
    )
    return (blur / blur.sum(axis=1, keepdims=True)) @ resize[inside]


def _choose_gaps(tiles_shape: Sequence[int]) -> tuple[int, int]:
    gap = max(1, min(tiles_shape[2:]) // 8)
    return gap, gap


def _make_mosaic(tiles: np.ndarray, gaps: tuple[int, int], paper: float = math.nan) -> np.ndarray:
    """Joins tiles (rows, columns, R, C, ...) to one image, with gaps of the value `paper`."""
    rows, columns, height, width, *rest = tiles.shape
    image = np.full((rows, height + gaps[0], columns, width + gaps[1], *rest), paper)
    image[:, :height, :, :width] = np.moveaxis(tiles, 1, 2)
    return image.reshape(rows * (height + gaps[0]), columns * (width + gaps[1]), *rest)[
        : -gaps[0], : -gaps[1]
    ]


def _number_tiles(
    panel: Any,
    tiles_shape: Sequence[int],
    x_label: str,
    y_label: str,
    numbers: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Labels the rows and columns of a mosaic from 1, or with the given numbers plus 1."""
    rows, columns, height, width = tiles_shape
    gap, _ = _choose_gaps(tiles_shape)
    down, across = (np.arange(rows), np.arange(columns)) if numbers is None else numbers
    panel.set_yticks(np.arange(rows) * (height + gap) + (height - 1) / 2, down + 1)
    panel.set_xticks(np.arange(columns) * (width + gap) + (width - 1) / 2, across + 1)
    panel.set(xlabel=x_label, ylabel=y_label)
    panel.tick_params(length=0, labelsize=8)
    panel.spines[:].set_visible(False)


def _thin_labels(figure: Any, panels: Sequence[Any]) -> None:
    """Keeps every k-th label of the rows and of the columns of mosaics, so that labels do not touch.

    Call it when the figure is complete: it measures the labels.
    """
    figure.draw_without_rendering()
    for panel in panels:
        for axis, low, high in ((panel.xaxis, "x0", "x1"), (panel.yaxis, "y0", "y1")):
            labels = axis.get_ticklabels()
            boxes = [label.get_window_extent() for label in labels]
            centers = [(getattr(box, low) + getattr(box, high)) / 2 for box in boxes]
            longest = max(getattr(box, high) - getattr(box, low) for box in boxes)
            distance = min(np.abs(np.diff(centers)), default=longest * _LABEL_SPACE)
            step = math.ceil(_LABEL_SPACE * longest / distance) if distance else len(labels)
            texts = [label.get_text() for label in labels]
            axis.set_ticks(axis.get_ticklocs()[::step], texts[::step])


def _set_title(panel: Any, title: str, *, size: int, length: int) -> None:
    lines = [drawable(line, length) for line in title.strip().splitlines()[:3]]
    if any(lines):
        panel.set_title("\n".join(lines), fontsize=size, parse_math=False)
