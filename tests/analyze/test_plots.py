"""Pictures of what is inside a model: what the pixels say. How they look is judged by eye."""

import itertools
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from keras_vit.analyze import plots  # noqa: E402
from keras_vit.analyze.plots import (  # noqa: E402
    draw_distance,
    draw_filters,
    draw_head_maps,
    draw_overlays,
    draw_similarity,
    overlay,
)

ODD = [
    "-v café",
    "🐱",
    "猫 cat",
    "a_{$x$}^2",
    "x" * 300,
    "line\nbreak\n\nand another",
    "$\\run %s$",
    "",
]
WHITE = np.full((60, 90, 3), 255, np.uint8)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


def hot(rows: int, columns: int, row: int, column: int) -> np.ndarray:
    attention = np.zeros((rows, columns))
    attention[row, column] = 0.01  # of attention, which is spread over many patches
    return attention


def cosines(rows: int, columns: int) -> np.ndarray:
    """Of sines and cosines, as smooth as those of a trained model."""
    places = np.stack(np.mgrid[:rows, :columns], axis=-1).reshape(-1, 2, 1) * [1.0, 0.4, 0.1]
    table = np.concatenate([np.sin(places), np.cos(places)], axis=-1).reshape(rows * columns, -1)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return (table @ table.T).reshape(rows, columns, rows, columns)


# Overlays


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 5), (3, 0), (3, 5), (1, 4)])
def test_an_overlay_is_bright_at_the_hot_patch_and_dark_far_from_it(row: int, column: int):
    lit = overlay(np.full((80, 120, 3), 255, np.uint8), hot(4, 6, row, column))
    assert lit.shape == (80, 120, 3) and lit.min() == 0 and lit.max() == 1
    assert lit[20 * row + 10, 20 * column + 10].min() > 0.6
    where = np.unravel_index(lit[..., 0].argmax(), (80, 120))
    assert (where[0] // 20, where[1] // 20) == (row, column)
    far_row, far_column = (79 if row < 2 else 0), (119 if column < 3 else 0)
    assert lit[far_row, far_column].max() < 0.02


def test_an_overlay_is_the_photo_times_the_map():
    random = np.random.default_rng(0)
    photo, attention = random.integers(1, 256, (32, 48, 3), dtype=np.uint8), random.random((2, 3))
    light = overlay(np.full((32, 48, 3), 255, np.uint8), attention)
    np.testing.assert_allclose(overlay(photo, attention), light * photo / 255, atol=1e-12)
    np.testing.assert_allclose(
        overlay(photo, 1e-6 * attention), overlay(photo, attention), atol=1e-9
    )


@pytest.mark.parametrize(("rows", "columns"), [(14, 14), (3, 7), (1, 300)])
def test_the_map_is_resized_as_by_pillow_and_blurred_as_by_scipy(rows: int, columns: int):
    attention = np.random.default_rng(1).random((rows, columns)).astype(np.float32)
    resized = np.asarray(Image.fromarray(attention).resize((112, 224), Image.LANCZOS), np.float64)
    expected = gaussian_filter(resized, (224 / rows, 112 / columns), mode="nearest", truncate=3)
    expected = (expected - expected.min()) / np.ptp(expected)
    found = overlay(np.full((224, 112), 255, np.uint8), attention)[..., 0]
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 196])
def test_a_map_that_is_the_same_everywhere_leaves_the_photo(value: float):
    photo = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    np.testing.assert_allclose(overlay(photo, np.full((14, 14), value)), photo / 255)


def test_photos_may_be_floats_grey_and_tiny():
    attention = hot(2, 2, 0, 0)
    grey = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)
    rgb = overlay(np.repeat(grey[..., None], 3, axis=2), attention)
    np.testing.assert_array_equal(overlay(grey, attention), rgb)
    np.testing.assert_array_equal(overlay(grey[..., None], attention), rgb)
    np.testing.assert_allclose(overlay(grey / 127.5 - 1, attention), rgb, atol=1e-12)
    assert overlay(np.zeros((1, 1, 3), np.uint8), attention).shape == (1, 1, 3)


def test_more_patches_than_pixels_are_averaged():
    lit = overlay(np.full((8, 8), 255, np.uint8), hot(64, 64, 60, 4))[..., 0]
    assert np.unravel_index(lit.argmax(), lit.shape) == (7, 0)


def test_each_photo_stands_beside_its_overlay(tmp_path: Path):
    """Upright and not mirrored: the hot patch is at the top right, and only there is the right half
    bright.
    """
    colors = [(200, 10, 30), (10, 200, 30), (30, 10, 200), (200, 200, 10)]
    photos = [np.full((224, 224, 3), color, np.uint8) for color in colors]
    draw_overlays(tmp_path / "o.png", photos, [hot(14, 14, 1, 12)] * 4, ["a"] * 4)
    found = pixels(tmp_path / "o.png")
    for color in colors:
        rows, columns = np.nonzero((found == color).all(axis=-1))
        top, left = rows.min(), columns.min()
        side = np.ptp(rows) + 1
        assert len(rows) > 0.9 * side**2 and side > 150  # the photo itself
        overlaid = found[top : top + side, left + int(1.05 * side) : left + int(2.05 * side)].sum(
            axis=2
        )
        row, column = np.unravel_index(overlaid.argmax(), overlaid.shape)
        assert row < 0.25 * side and column > 0.7 * side
        assert overlaid[-side // 4 :, : side // 2].max() < 30


@pytest.mark.parametrize(("height", "width"), [(60, 90), (90, 60), (37, 37)])
def test_rectangles_keep_their_aspect(tmp_path: Path, height: int, width: int):
    photo = np.full((height, width, 3), (255, 0, 0), np.uint8)
    draw_overlays(tmp_path / "o.png", [photo], [hot(3, 4, 1, 1)], ["one"])
    red = (pixels(tmp_path / "o.png") == [255, 0, 0]).all(axis=-1)
    rows, columns = np.nonzero(red[:, : red.shape[1] // 2])
    assert (np.ptp(columns) + 1) / (np.ptp(rows) + 1) == pytest.approx(width / height, rel=0.03)


def test_overlays_of_odd_titles_and_sizes_are_drawn_without_a_warning(tmp_path: Path):
    photos = [WHITE, WHITE[:1], WHITE[:, :1], WHITE[:, :, 0], WHITE / 255, WHITE, WHITE, WHITE]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_overlays(tmp_path / "o.png", photos, [hot(14, 14, 3, 3)] * 8, ODD)
    assert {path.name for path in tmp_path.iterdir()} == {"o.png"}


def test_photos_that_cannot_be_drawn_are_refused(tmp_path: Path):
    one = hot(2, 2, 0, 0)
    with pytest.raises(ValueError, match="Received: 0 photos, 0 maps, 0 titles"):
        draw_overlays(tmp_path / "o.png", [], [], [])
    with pytest.raises(ValueError, match="Received: 2 photos, 1 maps, 2 titles"):
        draw_overlays(tmp_path / "o.png", [WHITE] * 2, [one], ["a", "b"])
    for photo, message in [
        (WHITE.astype(np.float32), r"in \[-1, 1\]. Pass photos from 0 to 255 as uint8"),
        (np.full((2, 2, 3), np.nan), r"in \[-1, 1\]"),
        (WHITE[None], r"\(H, W, 3\).*Received: the shape \(1, 60, 90, 3\)"),
        (WHITE[..., :2], r"\(H, W, 3\)"),
        (WHITE[:0], r"\(H, W, 3\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            draw_overlays(tmp_path / "o.png", [photo], [one], ["a"])
    for attention in (-one, one[0], one * np.nan, one[:0]):
        with pytest.raises(ValueError, match=r"Expected a map \(R, C\), finite and at least 0"):
            draw_overlays(tmp_path / "o.png", [WHITE], [attention], ["a"])
    assert list(tmp_path.iterdir()) == []


# Heads


def test_every_head_of_every_layer_has_its_map(tmp_path: Path):
    """In the map of a layer and a head one patch is the hottest, however hot: it is found there,
    row by row.
    """
    layers, heads, rows, columns = 2, 3, 4, 5
    maps = np.full((layers, heads, rows, columns), 1e-6)
    places = {(layer, head): (layer + 2, head + 1) for layer, head in np.ndindex(layers, heads)}
    for (layer, head), place in places.items():
        maps[(layer, head, *place)] = 10.0 ** (-layer - head)
    draw_head_maps(tmp_path / "h.png", np.full((8, 8, 3), 255, np.uint8), maps, "heads")
    found = pixels(tmp_path / "h.png")
    dark, bright = (
        (np.abs(found - color).max(axis=-1) < 6) for color in ([0, 0, 4], [252, 255, 164])
    )
    dark[:, : np.nonzero(dark.sum(axis=0) > 60)[0].min()] = False  # the labels on the left aside
    tiles = dark | bright
    left, right = np.nonzero(tiles.sum(axis=0) > 60)[0][[0, -1]]
    top = np.nonzero(tiles.sum(axis=1) > 60)[0][0]
    cell = (right - left + 1) / (heads * (columns + 1) - 1)
    for (layer, head), place in places.items():
        for other in np.ndindex(rows, columns):
            y = int(top + cell * (layer * (rows + 1) + other[0] + 0.5))
            x = int(left + cell * (head * (columns + 1) + other[1] + 0.5))
            assert (bright[y, x], dark[y, x]) == (
                (True, False) if other == place else (False, True)
            )


def test_layers_are_numbered_downwards_and_heads_to_the_right(tmp_path: Path, figures: list):
    draw_head_maps(tmp_path / "h.png", WHITE, np.zeros((2, 3, 4, 4)))
    _, panel = figures[0].axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("head", "layer")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2", "3"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["1", "2"]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 16, 7, 7), (24, 1, 14, 7), (12, 3, 37, 37)])
def test_heads_of_any_number_are_drawn(tmp_path: Path, shape: tuple[int, ...]):
    draw_head_maps(tmp_path / "h.png", WHITE, np.zeros(shape), ODD[4])
    assert min(pixels(tmp_path / "h.png").shape[:2]) > 300


def test_heads_of_another_shape_are_refused(tmp_path: Path):
    with pytest.raises(
        ValueError,
        match=r"maps \(L, A, R, C\), finite and at least 0. Received: the shape \(2, 3, 4\)",
    ):
        draw_head_maps(tmp_path / "h.png", WHITE, np.ones((2, 3, 4)))


# Filters


def test_each_filter_is_scaled_from_black_to_white(tmp_path: Path):
    """A filter whose left half is low, whatever its range, is drawn as black beside white; a
    constant one is grey.
    """
    tile = np.where(np.arange(8) < 4, -1.0, 3.0)[None, :, None] * np.ones((8, 8, 3))
    draw_filters(tmp_path / "f.png", np.stack([1e-3 * tile, 1e3 * tile, 0 * tile]))
    found = pixels(tmp_path / "f.png")
    middle = found[found.shape[0] // 2].mean(axis=1)
    runs = np.split(middle, np.nonzero(np.diff(middle))[0] + 1)
    wide = [(run[0], len(run)) for run in runs if len(run) > 30]
    assert [value for value, _ in wide] == [0, 255, 0, 255, pytest.approx(127.5, abs=0.6)]
    assert wide[4][1] == pytest.approx(2 * wide[0][1], abs=4)


def test_filters_keep_their_colors_and_are_upright(tmp_path: Path):
    tile = np.zeros((8, 8, 3))
    tile[:4, :, 0] = 1  # red above, black below
    draw_filters(tmp_path / "f.png", tile[None])
    found = pixels(tmp_path / "f.png")
    height, width = found.shape[:2]
    assert found[height // 4, width // 2].tolist() == [255, 0, 0]
    assert found[3 * height // 4, width // 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("count", "side", "channels"), [(1, 1, 3), (28, 32, 3), (30, 7, 1)])
def test_filters_of_any_number_are_drawn(tmp_path: Path, count: int, side: int, channels: int):
    components = np.random.default_rng(0).normal(size=(count, side, side, channels))
    draw_filters(tmp_path / "f.png", components)
    plain = pixels(tmp_path / "f.png").shape
    draw_filters(tmp_path / "f.png", components, np.full(count, 1 / count))
    assert pixels(tmp_path / "f.png").shape[0] > plain[0] or count == 1
    assert plain[1] == (285 if count == 1 else 997)


def test_what_is_no_filter_is_refused(tmp_path: Path):
    for components in (
        np.ones((2, 4, 4)),
        np.ones((2, 4, 4, 5)),
        np.full((1, 2, 2, 3), np.nan),
        np.ones((0, 4, 4, 3)),
    ):
        with pytest.raises(ValueError, match=r"must be finite numbers of shape \(K, P, P, 3\)"):
            draw_filters(tmp_path / "f.png", components)
    with pytest.raises(ValueError, match="one value for each of 2 filters"):
        draw_filters(tmp_path / "f.png", np.ones((2, 4, 4, 3)), np.ones(3))


# Similarity


def test_the_tile_of_a_patch_shows_its_similarities(tmp_path: Path):
    """Only the patch itself is similar: the bright cell walks through the tiles, along its row,
    then down.
    """
    rows, columns = 2, 4
    similarity = np.eye(rows * columns).reshape(rows, columns, rows, columns) * 2 - 1
    draw_similarity(tmp_path / "s.png", {"eye": similarity})
    found = pixels(tmp_path / "s.png")
    found = found[:, :705]  # the color bar aside
    dark, bright = (
        (np.abs(found - color).max(axis=-1) < 6) for color in ([68, 1, 84], [253, 231, 37])
    )
    tiles = dark | bright
    top, left = (np.nonzero(tiles.any(axis=axis))[0].min() for axis in (1, 0))
    cell = (np.ptp(np.nonzero(tiles.any(axis=0))[0]) + 1) / (columns * (columns + 1) - 1)
    for row, column in np.ndindex(rows, columns):
        for other in np.ndindex(rows, columns):
            y = top + cell * (row * (rows + 1) + other[0] + 0.5)
            x = left + cell * (column * (columns + 1) + other[1] + 0.5)
            assert bright[int(y), int(x)] == (other == (row, column))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_similarities_stand_side_by_side(tmp_path: Path, count: int):
    draw_similarity(
        tmp_path / "s.png", {f"{number} {ODD[4]}": cosines(3, 3) for number in range(count)}
    )
    height, width = pixels(tmp_path / "s.png").shape[:2]
    assert width == {1: 825, 2: 1515, 5: 2055}[count] and height == {1: 750, 2: 750, 5: 1080}[count]


@pytest.mark.parametrize("grid", [(37, 37), (1, 1), (40, 3), (24, 24)])
def test_grids_of_any_size_are_drawn(tmp_path: Path, grid: tuple[int, int]):
    draw_similarity(tmp_path / "s.png", {"": cosines(*grid)})
    assert (tmp_path / "s.png").stat().st_size < 600_000


def test_what_is_no_similarity_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="`similarities` is empty"):
        draw_similarity(tmp_path / "s.png", {})
    for wrong in (np.ones((2, 2)), np.ones((2, 3, 3, 2)), np.ones((0, 2, 0, 2))):
        with pytest.raises(ValueError, match=r"must have the shape \(R, C, R, C\)"):
            draw_similarity(tmp_path / "s.png", {"a": wrong})
    for value in (np.nan, 1.5):
        with pytest.raises(ValueError, match="are cosines, from -1 to 1"):
            draw_similarity(tmp_path / "s.png", {"a": np.full((2, 2, 2, 2), value)})


# Distance


def test_a_head_that_looks_farther_stands_higher(tmp_path: Path):
    """One head in each of three layers, at 0, 50 and 100 pixels: from the lower left to the upper
    right.
    """
    draw_distance(tmp_path / "d.png", np.array([[0.0], [50.0], [100.0]]), "three")
    found = pixels(tmp_path / "d.png")[:-70]  # the legend aside
    rows, columns = (np.abs(found - [68, 1, 84]).max(axis=-1) < 6).nonzero()
    third = np.array_split(np.argsort(columns), 3)
    heights = [rows[part].mean() for part in third]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=4)
    assert heights[0] - heights[2] > 300


def test_an_axis_of_distances_starts_at_0_if_they_differ_much(tmp_path: Path, monkeypatch):
    ends = []

    def note(axes, *_, **__):
        ends.append((axes.get_ylim(), [line.get_ydata()[0] for line in axes.get_lines()[1:]]))

    monkeypatch.setattr("keras_vit.analyze.plots._set_title", note)
    draw_distance(tmp_path / "d.png", np.array([[10.0, 20.0], [60.0, 100.0]]))
    draw_distance(tmp_path / "d.png", np.array([[14.0, 15.0], [16.0, 17.0]]), uniform_px=16.5)
    draw_distance(tmp_path / "d.png", np.full((2, 2), 16.5), uniform_px=16.5)
    (low, high), lines = ends[0]
    assert low == 0 and high > 100 and lines == []
    (low, high), lines = ends[1]
    assert 12 < low < 14 and 17 < high < 18 and lines == [16.5]  # the one of uniform attention
    (low, high), _ = ends[2]
    assert low < 16.5 < high


@pytest.mark.parametrize("shape", [(1, 1), (24, 16), (2, 3)])
def test_distances_of_any_number_are_drawn(tmp_path: Path, shape: tuple[int, int]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_distance(tmp_path / "d.png", np.zeros(shape), ODD[0])
    assert pixels(tmp_path / "d.png").shape == (720, 930, 3)


def test_what_is_no_distance_is_refused(tmp_path: Path):
    for wrong in (np.ones(3), -np.ones((2, 2)), np.full((2, 2), np.nan), np.ones((0, 3))):
        with pytest.raises(ValueError, match=r"distances \(L, A\), finite and at least 0"):
            draw_distance(tmp_path / "d.png", wrong)


# Files

DRAWN: dict[str, Callable[[Path], None]] = {
    "overlays": lambda path: draw_overlays(path, [WHITE], [hot(2, 2, 0, 0)], ["a"]),
    "heads": lambda path: draw_head_maps(path, WHITE, np.ones((1, 1, 2, 2))),
    "filters": lambda path: draw_filters(path, np.ones((1, 2, 2, 3))),
    "similarity": lambda path: draw_similarity(path, {"a": cosines(2, 2)}),
    "distance": lambda path: draw_distance(path, np.ones((2, 2))),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, draw: Callable[[Path], None]):
    with pytest.raises(
        FileNotFoundError, match="figure p.png: the folder .*missing does not exist. Create it"
    ):
        draw(tmp_path / "missing" / "p.png")


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_new_picture_takes_the_place_of_the_old_and_leaves_nothing_else(
    tmp_path: Path, draw: Callable[[Path], None]
):
    (tmp_path / "p.png").write_text("old")
    draw(tmp_path / "p.png")
    assert pixels(tmp_path / "p.png").std() > 0
    assert {path.name for path in tmp_path.iterdir()} == {"p.png"}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """The figures that are drawn, as matplotlib has them."""
    kept, picture = [], plots.picture

    @contextmanager
    def keep(*arguments, **options):
        with picture(*arguments, **options) as figure:
            kept.append(figure)
            yield figure

    monkeypatch.setattr(plots, "picture", keep)
    return kept


@pytest.mark.parametrize(
    ("layers", "rows", "columns", "are_all"), [(24, 1, 14, False), (12, 14, 14, True)]
)
def test_labels_of_flat_tiles_do_not_touch(
    tmp_path: Path, figures: list, layers: int, rows: int, columns: int, are_all: bool
):
    draw_head_maps(tmp_path / "h.png", WHITE, np.ones((layers, 3, rows, columns)))
    [figure] = figures
    panel = figure.axes[1]
    labels = numbered_labels(panel.yaxis)
    assert len(labels) == layers if are_all else 1 < len(labels) < layers
    assert len(numbered_labels(panel.xaxis)) == 3
    # Each label is in the middle of the row that it names.
    height = rows + max(1, min(rows, columns) // 8)
    for number, place in labels.items():
        assert place == (number - 1) * height + (rows - 1) / 2


@pytest.mark.parametrize("shape", [(2, 60), (60, 2)])
def test_labels_of_similarities_do_not_touch(tmp_path: Path, figures: list, shape):
    draw_similarity(tmp_path / "s.png", {"one": cosines(*shape), "two": cosines(*shape)})
    for panel in figures[0].axes[:2]:
        labels = numbered_labels(panel.yaxis), numbered_labels(panel.xaxis)
        assert all(labels) and min(map(len, labels)) < 3


def numbered_labels(axis) -> dict[int, float]:
    """The numbers on an axis and their places; none of them covers another."""
    axis.figure.draw_without_rendering()
    labels = axis.get_ticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    return {
        int(label.get_text()): float(place)
        for label, place in zip(labels, axis.get_ticklocs(), strict=True)
    }
