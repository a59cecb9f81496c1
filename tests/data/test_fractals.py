"""Pictures that follow from their number alone, lie on the attractor, and show their category by
shape.
"""

import importlib
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
# By name, not by a statement at the top: where TensorFlow is out of reach, the line above has ended
# the import.
fractals = importlib.import_module("keras_vit.data.fractals")

pytestmark = pytest.mark.tensorflow

GASKET = fractals.Systems(
    maps=np.float32(
        [[[[0.5, 0, x], [0, 0.5, y]] for x, y in ((0, 0), (0.5, 0), (0, 0.5), (9, 9))]]
    ),
    probabilities=np.float32(
        [[1 / 3, 1 / 3, 1 / 3, 0]]
    ),  # the last map is padding: a point that took it would stand out
)
# A point is on it if the binary digits of x and y are nowhere both 1.
ON_GASKET = (np.arange(64)[:, None] & np.arange(64)) == 0
MIRRORS = [
    (slice(None, None, down), slice(None, None, right)) for down in (1, -1) for right in (1, -1)
]


@pytest.fixture(scope="module")
def systems():
    return fractals.find_systems(8, seed=3)


@pytest.fixture
def unvaried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance is its category as it stands and fills the image; only the mirror image and
    colours are drawn.
    """
    for name, value in (
        ("WEIGHT_SPREAD", 0),
        ("LARGEST_TURN", 0),
        ("SMALLEST_SCALE", 1),
        ("LARGEST_SCALE", 1),
    ):
        monkeypatch.setattr(fractals, name, value)


def _draw(
    systems, indices, parallel_calls: int = 2, image_size: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    examples = tf.data.Dataset.from_tensor_slices(np.int64(indices)).map(
        lambda index: fractals.render(systems, index, seed=5, image_size=image_size),
        num_parallel_calls=parallel_calls,
    )
    images, labels = zip(*examples.as_numpy_iterator(), strict=True)
    return np.stack(images), np.stack(labels)


def _figure(image: np.ndarray) -> np.ndarray:
    """Where the image is not of the colour of most of its edge."""
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    colors, counts = np.unique(edge, axis=0, return_counts=True)
    return (image != colors[counts.argmax()]).any(-1)


def _thick(mask: np.ndarray) -> np.ndarray:
    padded = np.pad(mask, 1)
    rows, columns = mask.shape
    return np.any(
        [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)], axis=0
    )


def test_the_same_seed_finds_the_same_systems_and_more_classes_come_after_them():
    few, many = fractals.find_systems(5, seed=0), fractals.find_systems(150, seed=0)
    assert many.maps.shape == (150, 8, 2, 3) and many.maps.dtype == np.float32
    assert len(np.unique(many.maps.reshape(150, -1), axis=0)) == 150
    np.testing.assert_array_equal(few.maps, many.maps[:5])
    np.testing.assert_array_equal(few.probabilities, many.probabilities[:5])
    assert not np.array_equal(few.maps, fractals.find_systems(5, seed=1).maps)


def test_systems_have_two_to_eight_maps_all_of_them_in_use():
    systems = fractals.find_systems(100, seed=0)
    num_maps = (systems.probabilities > 0).sum(1)
    assert set(num_maps) == set(range(2, 9))
    np.testing.assert_allclose(systems.probabilities.sum(1), 1, rtol=1e-6)
    # A map must own at least one of the slots the draws are made from.
    assert systems.probabilities[systems.probabilities > 0].min() > 2 / fractals._NUM_SLOTS


def test_every_system_is_contractive_and_so_is_its_most_extreme_instance():
    linear = fractals.find_systems(100, seed=0).maps[..., :2]
    assert np.linalg.norm(linear, ord=2, axis=(-2, -1)).max() <= fractals.LARGEST_STRETCH + 1e-6
    for signs in np.ndindex(2, 2, 2, 2):
        weights = 1 + fractals.WEIGHT_SPREAD * (2 * np.reshape(signs, (2, 2)) - 1)
        assert np.linalg.norm(linear * weights, ord=2, axis=(-2, -1)).max() < 1


def test_every_picture_shows_a_figure():
    images, _ = _draw(fractals.find_systems(100, seed=0), range(200))
    shares = np.array([_figure(image).mean() for image in images])
    assert 0.04 < shares.min() and shares.max() < 0.75


def test_labels_count_through_the_categories(systems):
    images, labels = _draw(systems, [0, 7, 8, 21, 8 * 10**12 + 3], image_size=8)
    assert images.shape == (5, 8, 8, 3) and images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 7, 0, 5, 3]


def test_a_picture_is_the_same_whatever_is_drawn_beside_it(systems):
    one_by_one, _ = _draw(systems, range(40), parallel_calls=1)
    for parallel_calls in (2, tf.data.AUTOTUNE):
        np.testing.assert_array_equal(_draw(systems, range(40), parallel_calls)[0], one_by_one)
    np.testing.assert_array_equal(_draw(systems, range(39, -1, -1))[0], one_by_one[::-1])
    for index in (0, 17, 39):
        image, label = fractals.render(systems, index, seed=5, image_size=64)
        np.testing.assert_array_equal(image, one_by_one[index])
        assert label == index % 8


def test_another_index_or_another_seed_is_another_picture(systems):
    pictures = [
        fractals.render(systems, index, seed=seed, image_size=32)[0]
        for index, seed in ((0, 0), (8, 0), (0, 1))
    ]
    assert len({picture.numpy().tobytes() for picture in pictures}) == 3


def _missed(figure: np.ndarray) -> list[float]:
    """The share of the gasket that a figure leaves out, in each of its mirror images."""
    return [(ON_GASKET[mirror] & ~figure).sum() / ON_GASKET.sum() for mirror in MIRRORS]


def test_sierpinskis_gasket_is_where_arithmetic_puts_it_in_all_four_mirror_images(unvaried):
    figures = [_figure(image) for image in _draw(GASKET, range(24))[0]]
    missed = np.array([_missed(figure) for figure in figures])
    assert missed.min(axis=1).max() < 0.02
    # of 24, one of the four mirror images is missed once in 250
    assert set(missed.argmin(axis=1)) == {0, 1, 2, 3}
    # A point may cross the border of its pixel, never the holes: they are half of the square and
    # more.
    holes = ~_thick(ON_GASKET)
    assert holes.mean() > 0.5
    for figure, mirror in zip(figures, missed.argmin(axis=1), strict=True):
        assert not (figure & holes[MIRRORS[mirror]]).any()


def test_an_instance_varies_the_parameters_of_the_maps(unvaried, monkeypatch):
    """Neither turned nor scaled, the gasket is distorted."""
    monkeypatch.setattr(fractals, "WEIGHT_SPREAD", 0.1)
    for image in _draw(GASKET, range(4))[0]:
        assert min(_missed(_figure(image))) > 0.1


def test_an_instance_is_turned_to_either_side(monkeypatch):
    angles = []

    def record(points, angle, mirror, turn=fractals._turn):
        angles.append(float(angle[0]))
        return turn(points, angle, mirror)

    monkeypatch.setattr(fractals, "_turn", record)
    for index in range(16):
        fractals.render(GASKET, index, seed=5, image_size=8)
    assert -fractals.LARGEST_TURN <= min(angles) < 0 < max(angles) <= fractals.LARGEST_TURN
    assert max(map(abs, angles)) > fractals.LARGEST_TURN / 2


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_figure_has_room_along_each_of_its_sides(place):
    wide = tf.constant([[3.0, 7.0, 5.0], [-1.0, 0.0, 1.0]])  # 4 by 2
    placed = fractals._place(wide, scale=tf.constant([0.5]), place=tf.fill([2], place)).numpy()
    start = place * np.array([0.5, 0.75])
    np.testing.assert_allclose(placed.min(1), start, atol=1e-6)
    np.testing.assert_allclose(placed.max(1), start + [0.5, 0.25], atol=1e-6)


def test_what_is_drawn_lies_on_the_attractor(unvaried, systems):
    """Against one long chain in plain NumPy. Either may miss what the other just reaches, hence the
    pixel of room.
    """
    images, _ = _draw(systems, range(8))
    for image, maps, probabilities in zip(images, systems.maps, systems.probabilities, strict=True):
        figure, expected = _cropped(_figure(image)), _cropped(_attractor(maps, probabilities))
        shares = [
            min(
                (figure & _thick(other)).sum() / figure.sum(),
                (other & _thick(figure)).sum() / other.sum(),
            )
            for other in (_fitted(expected[mirror], figure.shape) for mirror in MIRRORS)
        ]
        assert max(shares) > 0.97


def _attractor(maps: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    generator = np.random.default_rng(0)
    point, points = np.zeros(2), []
    for choice in generator.choice(
        len(maps), size=20000, p=probabilities / probabilities.sum(dtype=np.float64)
    ):
        point = maps[choice, :, :2] @ point + maps[choice, :, 2]
        points.append(point)
    points = np.array(points[100:])
    extents = np.ptp(points, axis=0)
    columns, rows = np.minimum((points - points.min(0)) / extents.max() * 64, 63).astype(int).T
    mask = np.zeros((64, 64), bool)
    mask[rows, columns] = True
    return mask


def _cropped(mask: np.ndarray) -> np.ndarray:
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _fitted(mask: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Cut or continued with emptiness, where the two boxes differ by a pixel."""
    rows, columns = shape
    return np.pad(mask, ((0, rows), (0, columns)))[:rows, :columns]


def _share_right(features: np.ndarray, labels: np.ndarray) -> float:
    """Of the second half, by the nearest example of the first half."""
    half = len(labels) // 2
    distances = ((features[half:, None] - features[None, :half]) ** 2).sum(-1)
    return float((labels[:half][distances.argmin(1)] == labels[half:]).mean())


def test_the_shape_gives_away_the_category_and_the_colour_does_not(systems):
    images, labels = _draw(systems, range(8 * 60))
    figures = np.stack([_figure(image) for image in images]).astype(float)
    shapes = figures.reshape(-1, 16, 4, 16, 4).mean((2, 4)).reshape(len(images), -1)
    colors = (images * figures[..., None]).sum((1, 2)) / figures.sum((1, 2))[:, None]
    # By chance: 0.125.
    assert _share_right(shapes, labels) > 0.6
    assert _share_right(colors, labels) < 0.25


def test_a_contact_sheet_has_a_row_for_each_category(systems):
    sheet = fractals.contact_sheet(
        systems, seed=5, image_size=16, num_categories=3, num_instances=2
    )
    assert sheet.shape == (48, 32, 3) and sheet.dtype == np.uint8
    np.testing.assert_array_equal(sheet[32:48, 16:32], _draw(systems, [8 + 2], image_size=16)[0][0])


@pytest.mark.parametrize("folder", ["{}", "~"])
def test_a_contact_sheet_is_written_as_a_png(systems, folder, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "sheet.png"
    layout = {"image_size": 16, "num_categories": 2, "num_instances": 3}
    place = f"{folder.format(tmp_path)}/sheet.png"
    fractals.write_contact_sheet(place, systems, seed=5, **layout)
    written = tf.io.decode_png(path.read_bytes()).numpy()
    np.testing.assert_array_equal(written, fractals.contact_sheet(systems, seed=5, **layout))


def test_a_contact_sheet_that_cannot_be_written_is_refused(systems, tmp_path: Path):
    layout = {"image_size": 8, "num_categories": 1, "num_instances": 1}
    with pytest.raises(
        ValueError, match="Cannot write '.*missing/sheet.png': No such file.*writable folder"
    ):
        fractals.write_contact_sheet(tmp_path / "missing" / "sheet.png", systems, seed=0, **layout)
    with pytest.raises(ValueError, match="Is a directory"):
        fractals.write_contact_sheet(tmp_path, systems, seed=0, **layout)


def test_impossible_requests_are_refused(systems):
    with pytest.raises(
        ValueError, match="num_classes >= 1 and seed >= 0. Received: num_classes=0, seed=-1"
    ):
        fractals.find_systems(0, seed=-1)
    with pytest.raises(ValueError, match="image_size >= 8. Received: image_size=7"):
        fractals.render(systems, 0, seed=0, image_size=7)
    with pytest.raises(
        ValueError,
        match="from 1 to 8, .* num_instances >= 1. Received: num_categories=9, num_inst.*=0",
    ):
        fractals.contact_sheet(systems, seed=0, num_categories=9, num_instances=0)
