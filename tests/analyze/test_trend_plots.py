"""Pictures of how accuracy depends on something: what the pixels and the points say. How they look
is judged by eye.
"""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from keras_vit.analyze.trend_plots import (  # noqa: E402
    Point,
    draw_accuracy_against_compute,
    draw_accuracy_against_data,
    draw_means,
    draw_training_curve,
    published_compute,
)
from keras_vit.drawing import picture, write_beside  # noqa: E402

BLUE, ORANGE, GREEN = (0, 114, 178), (213, 94, 0), (0, 158, 115)
ODD = [
    "-v café",
    "🐱",
    "猫 cat",
    "a_{$x$}^2",
    "x" * 300,
    "line\nbreak",
    "$\\run %s$",
    "_hidden",
    "",
]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def of_color(found: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """(n, 2): rows and columns of the pixels of a color."""
    return np.argwhere(np.abs(found - color).max(axis=-1) < 8)


def curve(last: float, steps: int = 10) -> list[tuple[int, float]]:
    return [(step, last * step / steps) for step in range(1, steps + 1)]


# Training


def test_each_run_has_a_curve_in_each_panel(tmp_path: Path):
    runs = {
        name: {"validation/loss": curve(1), "train/accuracy": curve(0.5)}
        for name in ("token", "gap")
    }
    draw_training_curve(tmp_path / "t.png", runs, "Two heads")
    found = pixels(tmp_path / "t.png")
    for half in np.array_split(found, 2):
        assert min(len(of_color(half, color)) for color in (BLUE, ORANGE)) > 150
        assert len(of_color(half, GREEN)) == 0


def test_the_legend_has_the_last_values_and_training_is_dashed(tmp_path: Path, figures: list):
    metrics = {
        "train/loss": [(1, 2.5), (2, 1.25)],
        "validation/loss": [(1, 3.5), (2, 3.0)],
        "train/accuracy": [(1, 0.25), (2, 0.75)],
        "validation/accuracy": [(1, 0.125), (2, 0.5)],
    }
    draw_training_curve(tmp_path / "t.png", {"mine": metrics})
    found = [
        {line.get_label(): line.get_linestyle() for line in panel.get_lines()}
        for panel in figures[0].axes
    ]
    assert found == [
        {"mine, train: last 1.25": "--", "mine, validation: last 3": "-"},
        {"mine, train: last 75.0%": "--", "mine, validation: last 50.0%": "-"},
    ]


def test_only_losses_and_accuracies_are_drawn(tmp_path: Path):
    metrics = {"loss": curve(1), "train/learning_rate": curve(1), "validation/accuracy": []}
    draw_training_curve(tmp_path / "t.png", {"": metrics})
    assert pixels(tmp_path / "t.png").shape[0] == 600  # one panel


@pytest.mark.parametrize("points", [1, 200])
def test_runs_with_odd_names_and_values_are_drawn_without_a_warning(tmp_path: Path, points: int):
    values = [(step, math.nan if step % 7 == 3 else 0.5 * step) for step in range(points)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_training_curve(
            tmp_path / "t.png", {name: {"train/loss": values} for name in ODD}, ODD[4]
        )
    assert pixels(tmp_path / "t.png").shape[1] == 1950  # the legend has a place of its own


def test_a_run_without_a_curve_is_refused(tmp_path: Path):
    with pytest.raises(
        ValueError, match="ends in loss or accuracy. Received: train/images_per_second"
    ):
        draw_training_curve(tmp_path / "t.png", {"a": {"train/images_per_second": curve(1)}})
    with pytest.raises(ValueError, match="Received: nothing"):
        draw_training_curve(tmp_path / "t.png", {})


# Compute and data


def test_the_published_points_are_those_of_table_6():
    families = published_compute("average5")
    assert {name: len(points) for name, points in families.items()} == {
        "ViT": 6,
        "Hybrid": 5,
        "ResNet": 7,
    }
    assert families["ViT"][-1] == Point(4262, 95.82, families["ViT"][-1].deviation, "H/14", True)
    labels = [point.label for points in families.values() for point in points]
    assert (
        labels[2:5] == ["L/32", "L/16, 7 ep.", "L/16, 14 ep."]
        and "R50+B/32" in labels
        and "R152x2, 7 ep." in labels
    )
    assert len(set(labels)) == len(labels) == 18
    with pytest.raises(
        ValueError, match="Table 6 has no column vtab. It has imagenet, imagenet_real"
    ):
        published_compute("vtab")


def test_more_compute_is_farther_right_and_more_accuracy_higher(tmp_path: Path):
    """On a logarithmic axis 1, 10 and 100 are as far from each other as 50, 60 and 70 on a linear
    one.
    """
    points = [Point(10.0**power, 50 + 10 * power) for power in (2, 0, 1)]
    draw_accuracy_against_compute(tmp_path / "c.png", {"one": {"ViT": points}})
    found = of_color(pixels(tmp_path / "c.png")[:-90], BLUE)
    found = found[np.argsort(found[:, 1])]
    low, middle, high = (part.mean(axis=0) for part in np.array_split(found, 3))
    np.testing.assert_allclose(middle - low, high - middle, atol=2)
    assert high[1] - low[1] > 300 and low[0] - high[0] > 300


def test_a_published_point_is_hollow_and_ours_is_filled(tmp_path: Path):
    counts = []
    for is_published in (False, True):
        point = Point(5, 50, published=is_published)
        draw_accuracy_against_compute(tmp_path / "c.png", {"": {"ViT": [point]}})
        counts.append(len(of_color(pixels(tmp_path / "c.png")[:-90], BLUE)))
    assert counts[1] < 0.75 * counts[0]


def test_a_family_has_one_color_in_all_panels(tmp_path: Path):
    panels = {
        "a": {"ViT": [Point(1, 50), Point(2, 60)], "ResNet": [Point(1, 40)]},
        "b": {"ResNet": [Point(1, 40), Point(2, 50)]},
    }
    draw_accuracy_against_compute(tmp_path / "c.png", panels, joined=True)
    left, right = np.array_split(pixels(tmp_path / "c.png")[:-90], 2, axis=1)
    assert len(of_color(left, BLUE)) > 500 and len(of_color(right, BLUE)) == 0
    assert len(of_color(right, ORANGE)) > 500


def test_a_deviation_is_drawn_where_there_is_one(tmp_path: Path):
    heights = []
    for deviation in (math.nan, 0.0, 5.0):
        curves = {
            "ViT": [Point(1e6, 50, deviation), Point(3e6, 60)],
            "ResNet": [Point(1e6, 30, math.nan)],
        }
        draw_accuracy_against_data(tmp_path / "d.png", curves)
        found = of_color(pixels(tmp_path / "d.png")[:-90], BLUE)
        first = found[found[:, 1] < found[:, 1].min() + 20]
        heights.append(np.ptp(first[:, 0]))
    assert heights[2] > heights[0] + 50 and abs(heights[1] - heights[0]) < 12


@pytest.mark.parametrize(
    "values",
    [
        [40],
        pytest.param([1000, 1024], marks=pytest.mark.slow),
        pytest.param([1, 1e9], marks=pytest.mark.slow),
        list(range(1, 8)),
    ],
)
@pytest.mark.sampled(1)
def test_points_with_odd_names_and_sizes_are_drawn_without_a_warning(
    tmp_path: Path, values: list[float]
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves = {
            name: [Point(x, 50 + number, label=name) for x in values]
            for number, name in enumerate(ODD)
        }
        draw_accuracy_against_data(
            tmp_path / "d.png", curves, x_label="images of 猫", y_label="top-1, %"
        )
        draw_accuracy_against_compute(
            tmp_path / "c.png", dict.fromkeys(ODD[-2:], curves), joined=True
        )
    assert pixels(tmp_path / "d.png").shape[1] == 1050


def test_points_that_cannot_be_drawn_are_refused(tmp_path: Path):
    for draw in (
        draw_accuracy_against_data,
        lambda path, curves: draw_accuracy_against_compute(path, {"a": curves}),
    ):
        with pytest.raises(ValueError, match="There are no points"):
            draw(tmp_path / "p.png", {"ViT": []})
        for point in (
            Point(0, 50),
            Point(-1, 50),
            Point(math.nan, 50),
            Point(1, math.nan),
            Point(math.inf, 50),
        ):
            with pytest.raises(ValueError, match=f"logarithmic axis. Omit: .*ViT at {point.x}."):
                draw(tmp_path / "p.png", {"ViT": [Point(1, 50), point]})
    with pytest.raises(ValueError, match="There are no points"):
        draw_accuracy_against_compute(tmp_path / "p.png", {})
    assert list(tmp_path.iterdir()) == []


def test_labels_lie_neither_on_each_other_nor_on_points_nor_outside(tmp_path: Path):
    """The eighteen points of Table 6, the densest that is drawn."""
    points = [point for family in published_compute("imagenet").values() for point in family]
    places = [(point.x, point.accuracy) for point in points]
    with picture(tmp_path / "l.png", 6.3, 5.6) as figure:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xlim(30, 7000)
        axes.plot(*zip(*places, strict=True), "o")
        figure.draw_without_rendering()
        write_beside(axes, places, [point.label for point in points])
        boxes = [text.get_window_extent() for text in axes.texts]
        dots = axes.transData.transform(places)
        inside = [axes.bbox.contains(*corner) for box in boxes for corner in box.corners()]
    assert len(boxes) == 18 and all(inside)
    assert not [
        one for number, one in enumerate(boxes) for other in boxes[:number] if one.overlaps(other)
    ]
    assert not [box for box in boxes for dot in dots if box.padded(6).contains(*dot)]


# Means


def test_the_arms_stand_in_their_order_each_at_its_mean(tmp_path: Path):
    draw_means(tmp_path / "m.png", {"low": [10.0], "middle": [20.0], "high": [30.0]})
    found = of_color(pixels(tmp_path / "m.png"), BLUE)
    found = found[np.argsort(found[:, 0])]
    low, middle, high = (part.mean(axis=0) for part in np.array_split(found, 3))
    np.testing.assert_allclose(middle - low, high - middle, atol=2)
    assert high[1] - low[1] > 300 and high[0] - low[0] > 80


def test_the_deviation_is_that_of_a_sample(tmp_path: Path):
    """Of 40, 50 and 60 it is 10; an arm of one seed at the ends of that has the bar's ends above
    and below.
    """
    draw_means(tmp_path / "m.png", {"three": [40.0, 50.0, 60.0], "low": [40.0], "high": [60.0]})
    found = of_color(pixels(tmp_path / "m.png"), BLUE)
    three, low, high = (found[np.abs(found[:, 0] - row) < 20][:, 1] for row in _rows(found))
    assert three.min() == pytest.approx(low.mean(), abs=3) and three.max() == pytest.approx(
        high.mean(), abs=3
    )


def _rows(found: np.ndarray) -> list[float]:
    """The middle of each arm, from top to bottom."""
    rows = np.unique(found[:, 0])
    return [part.mean() for part in np.split(rows, np.nonzero(np.diff(rows) > 20)[0] + 1)]


def test_the_numbers_of_the_paper_stand_beside_on_an_axis_of_their_own(tmp_path: Path):
    arms = {"none": [10.0, 11.0], "learned_1d": [30.0, 31.0], "ours": [20.0]}
    draw_means(tmp_path / "m.png", arms, {"learned_1d": 64.206, "none": 61.382}, title="Positions")
    found = pixels(tmp_path / "m.png")
    ours, paper = of_color(found, BLUE), of_color(found, ORANGE)
    assert ours[:, 1].max() < paper[:, 1].min()
    rows = _rows(ours)
    assert len(rows) == 3 and len(_rows(paper)) == 2
    np.testing.assert_allclose(_rows(paper), rows[:2], atol=3)
    first, second = (paper[np.abs(paper[:, 0] - row) < 20][:, 1].mean() for row in rows[:2])
    assert first < second


def test_arms_with_odd_names_are_drawn_without_a_warning(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_means(tmp_path / "m.png", dict.fromkeys(ODD, [50.0]), {"🐱": 50.0}, title=ODD[4])
        draw_means(tmp_path / "n.png", {str(number): [number, number] for number in range(20)})
    assert pixels(tmp_path / "n.png").shape[0] > 1400


def test_arms_that_cannot_be_drawn_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="`arms` is empty"):
        draw_means(tmp_path / "m.png", {})
    with pytest.raises(ValueError, match="Without seeds: a; not finite: b, c; not arms: d"):
        draw_means(
            tmp_path / "m.png", {"a": [], "b": [math.nan], "c": [1.0]}, {"c": math.inf, "d": 1.0}
        )


# Files

DRAWN: dict[str, Callable[[Path], None]] = {
    "training": lambda path: draw_training_curve(path, {"a": {"loss": curve(1)}}),
    "compute": lambda path: draw_accuracy_against_compute(path, {"a": {"ViT": [Point(1, 50)]}}),
    "data": lambda path: draw_accuracy_against_data(path, {"ViT": [Point(1, 50)]}),
    "means": lambda path: draw_means(path, {"a": [1.0]}),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, draw: Callable[[Path], None]):
    with pytest.raises(
        FileNotFoundError, match="the folder .*missing does not exist. Create it first"
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
