"""Duplicates: copies are found whatever was done to them, nothing else is, and the search misses no
pair of hashes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.fft

tf = pytest.importorskip("tensorflow")

from keras_vit.data import duplicates  # noqa: E402
from keras_vit.data.duplicates import DuplicateReport, drop_duplicates, find_duplicates, near_hashes  # noqa: E402
from keras_vit.data.sources import Source  # noqa: E402


def _source(images: list[bytes] | np.ndarray, name: str = "pictures") -> Source:
    def read(index):
        return tf.constant(images)[index], index

    locate = f"{name}[{{}}]".format
    return Source(
        name=name, class_names=("any",), num_examples=len(images), read=read, locate=locate
    )


def _fields(num_images: int, seed: int, height: int = 64, width: int = 80) -> np.ndarray:
    """Smooth random fields in colour: like photographs, they have more to them the coarser one
    looks.
    """
    random = np.random.default_rng(seed)
    images = np.zeros((num_images, height, width, 3))
    for side in (3, 5, 9, 17):
        waves = random.normal(0, 60 / np.sqrt(side), (num_images, side, side, 3)).astype(np.float32)
        images += tf.image.resize(waves, (height, width), method="bicubic").numpy()
    return np.clip(images + 120, 0, 255).astype(np.uint8)


def _jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    return tf.io.encode_jpeg(image, quality=quality).numpy()


def _resized(image: np.ndarray, factor: float) -> np.ndarray:
    size = [round(side * factor) for side in image.shape[:2]]
    return (
        np.clip(tf.image.resize(image, size, method="bicubic", antialias=True), 0, 255)
        .round()
        .astype(np.uint8)
    )


def _brightened(image: np.ndarray) -> np.ndarray:
    return np.clip(image * 1.1 + 10, 0, 255).astype(np.uint8)


COPIES: dict[str, Callable[[np.ndarray], bytes]] = {
    "identical": _jpeg,
    "quality 30": lambda image: _jpeg(image, 30),
    "quality 60": lambda image: _jpeg(image, 60),
    "PNG": lambda image: tf.io.encode_png(image).numpy(),
    "half size": lambda image: _jpeg(_resized(image, 0.5)),
    "double size": lambda image: _jpeg(_resized(image, 2)),
    "mirrored": lambda image: _jpeg(image[:, ::-1]),
    "brightened": lambda image: _jpeg(_brightened(image)),
    "all at once": lambda image: _jpeg(_resized(_brightened(image[:, ::-1]), 0.7), 40),
}
MIRRORED = ("mirrored", "all at once")


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.sampled(4)
def test_every_kind_of_copy_is_found_and_nothing_else(kind: str):
    tests, others = _fields(10, seed=1), _fields(10, seed=2)
    train = _source([*map(_jpeg, others), *map(COPIES[kind], tests)])
    report = find_duplicates(train, _source([*map(_jpeg, tests)]), progress=False)
    assert [pair[:2] for pair in report.pairs] == [(10 + index, index) for index in range(10)]
    assert {pair.mirrored for pair in report.pairs} == {kind in MIRRORED}
    assert report.train_indices == tuple(range(10, 20))
    assert report.unreadable == ()


def test_pairs_are_within_the_limits_that_are_asked_for():
    """Noise with other noise on it differs in a few bits and a few hundredths of similarity."""
    random = np.random.default_rng(0)
    tests = random.integers(0, 256, (10, 32, 32, 3))
    train = np.clip(tests + random.normal(0, 20, tests.shape), 0, 255)
    train, test = _source(train.astype(np.uint8)), _source(tests.astype(np.uint8))

    def find(**limits: float) -> tuple:
        options = {"max_distance": 15, "min_similarity": 0.5, **limits}
        return find_duplicates(train, test, progress=False, **options).pairs

    pairs = find()
    distance = int(np.median([pair.distance for pair in pairs]))
    similarity = float(np.median([pair.similarity for pair in pairs]))
    near, alike = find(max_distance=distance), find(min_similarity=similarity)
    assert near == tuple(pair for pair in pairs if pair.distance <= distance)
    assert alike == tuple(pair for pair in pairs if pair.similarity >= similarity)
    assert len(pairs) == 10 > len(near) > 0 and len(alike) == 5


def test_no_two_of_many_different_images_match():
    train, test = (
        _source(_fields(400, seed=3, height=32, width=32)),
        _source(_fields(200, seed=4, height=32, width=32)),
    )
    assert find_duplicates(train, test, progress=False).pairs == ()


def test_images_in_memory_match_encoded_ones():
    images = _fields(3, seed=5)
    encoded = _source([tf.io.encode_png(image).numpy() for image in images[::-1]])
    report = find_duplicates(_source(images), encoded, progress=False)
    assert [(*pair[:3], round(pair.similarity, 6)) for pair in report.pairs] == [
        (0, 2, 0, 1),
        (1, 1, 0, 1),
        (2, 0, 0, 1),
    ]


def test_what_is_alike_but_not_the_same_stays():
    sky = np.broadcast_to(
        np.linspace(150, 220, 64)[:, None, None] * [0.5, 0.8, 1], (64, 64, 3)
    ).astype(np.uint8)
    scenes = np.stack([sky] * 2)
    scenes[0, 30:36, 12:40] = 60  # two objects, each alone in the same blue sky
    scenes[1, 28:40, 30:38] = 70
    assert (
        find_duplicates(
            _source(scenes[:1]), _source(scenes[1:]), max_distance=15, progress=False
        ).pairs
        == ()
    )


# --- hashes and their search
# -----------------------------------------------------------------------------------------


def test_the_hash_is_the_signs_of_the_cosine_transform():
    images = tf.image.resize(_fields(20, seed=6), (32, 32), method="area").numpy()
    hashes = duplicates._hash(images)
    grey = images @ np.array([0.299, 0.587, 0.114])
    for hashed, pixels in zip(hashes, (grey, grey[:, :, ::-1]), strict=True):
        expected = scipy.fft.dctn(pixels, axes=(1, 2), norm="ortho")[:, :8, :8].reshape(20, 64)
        bits = np.unpackbits(hashed[:, None].view(np.uint8), axis=-1)
        assert hashed.dtype == np.uint64
        assert not bits[:, 0].any()
        certain = np.abs(expected) > 2
        certain[:, 0] = False
        assert certain.sum() > 1000
        np.testing.assert_array_equal(bits[certain], expected[certain] > 0)


def _random_hashes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return random.integers(0, 2**64, 300, np.uint64), random.integers(0, 2**64, 200, np.uint64)


def _crowded_hashes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Around few centres, so that many pairs are near, and some equal."""
    centres = random.integers(0, 2**64, 3, np.uint64)
    return tuple(
        random.choice(centres, count) ^ _flips(random, count, range(10)) for count in (300, 200)
    )


def _spread_hashes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One against many that differ from it in few bits, as evenly over the four bands as can be."""
    places = [
        [16 * (bit % 4) + random.integers(4) + 4 * (bit // 4) for bit in range(count)]
        for count in range(17)
    ]
    others = [sum(1 << int(place) for place in some) for some in places * 5]
    return np.zeros(1, np.uint64), np.array(others, np.uint64)


def _one_band_hashes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """They agree in three bands of four and differ in one, each in its own."""
    bands = np.uint64(16) * random.integers(0, 4, (2, 150)).astype(np.uint64)
    return tuple(random.integers(0, 2**16, (2, 150)).astype(np.uint64) << bands)


def _flips(random: np.random.Generator, count: int, num_bits: range) -> np.ndarray:
    return np.array(
        [
            sum(1 << int(bit) for bit in random.permutation(64)[: random.choice(num_bits)])
            for _ in range(count)
        ],
        np.uint64,
    )


@pytest.mark.parametrize("max_distance", [0, 1, 3, 4, 6, 8, 11, 15])
@pytest.mark.parametrize(
    "kind", [_random_hashes, _crowded_hashes, _spread_hashes, _one_band_hashes]
)
def test_the_search_finds_what_comparing_all_with_all_finds(kind: Callable, max_distance: int):
    hashes, others = kind(np.random.default_rng(max_distance))
    distances = np.array([[int(one ^ other).bit_count() for other in others] for one in hashes])
    rows, columns = np.nonzero(distances <= max_distance)
    found = near_hashes(hashes, others, max_distance)
    for values, expected in zip(found, (rows, columns, distances[rows, columns]), strict=True):
        assert values.dtype == np.int64
        np.testing.assert_array_equal(values, expected)


def test_a_long_search_goes_in_parts(monkeypatch: pytest.MonkeyPatch):
    hashes, others = _crowded_hashes(np.random.default_rng(1))
    expected = near_hashes(hashes, others, 8)
    monkeypatch.setattr(duplicates, "_PROBES_AT_ONCE", 7)
    np.testing.assert_array_equal(near_hashes(hashes, others, 8), expected)


@pytest.mark.parametrize(("num_hashes", "num_others"), [(0, 2), (2, 0), (0, 0)])
def test_nothing_is_near_nothing(num_hashes: int, num_others: int):
    found = near_hashes(np.zeros(num_hashes, np.uint64), np.zeros(num_others, np.uint64), 8)
    assert [len(values) for values in found] == [0, 0, 0]


# --- pixels
# ----------------------------------------------------------------------------------------------------------


def test_similarity_is_the_correlation_where_images_are_rich_and_equally_bright():
    images = np.random.default_rng(0).normal(0, 50, (2, 16, 16, 3))
    images = np.stack([images[0], 0.8 * images[0] + 0.6 * images[1]])
    images += 120 - images.mean(axis=(1, 2), keepdims=True)
    expected = np.corrcoef(images.reshape(2, -1))[0, 1]
    assert duplicates.similarities(images[:1], images[1:]) == pytest.approx([expected], abs=2e-3)


def test_flat_images_are_alike_if_their_colours_are():
    flat = (
        np.zeros((5, 16, 16, 3))
        + np.array([[200, 10, 10], [199, 11, 10], [10, 10, 200], [0] * 3, [255] * 3])[:, None, None]
    )
    similarity = duplicates.similarities(flat[:1].repeat(5, axis=0), flat)
    assert similarity[0] == pytest.approx(1)
    assert similarity[1] > duplicates.MIN_SIMILARITY
    assert (similarity[2:] < 0.1).all()


def test_flat_images_match_those_of_their_colour():
    colours = np.array(
        [[0] * 3, [255] * 3, [128] * 3, [200, 30, 30], [30, 30, 200], [30, 140, 30]], np.uint8
    )
    train = _source(np.broadcast_to(colours[:, None, None], (6, 40, 30, 3)))
    test = _source(np.broadcast_to(colours[:3, None, None], (3, 64, 64, 3)))
    report = find_duplicates(train, test, progress=False)
    assert [pair[:2] for pair in report.pairs] == [(0, 0), (1, 1), (2, 2)]


def test_crowds_of_equal_images_are_found_without_comparing_all_with_all():
    flat, other = np.full((150, 8, 8, 3), 90, np.uint8), _fields(2, seed=7, height=8, width=8)
    train, test = _source(np.concatenate([flat, other])), _source(np.concatenate([flat, other[:1]]))
    report = find_duplicates(train, test, progress=False)
    assert report.train_indices == (*range(150), 150)
    assert len(report.pairs) == 150 * 64 + 1
    assert report.num_crowded == 150
    assert (
        "For 150 training images only the nearest 64 candidates were compared." in report.markdown()
    )


def test_the_nearest_of_a_crowd_are_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duplicates, "_MAX_CANDIDATES", 2)
    test = duplicates._Groups(
        _source([b""] * 4), np.array([[7, 3, 0, 1]] * 2, np.uint64), np.array([True] * 4)
    )
    train = duplicates._Groups(
        _source([b""] * 2), np.array([[0, 0]], np.uint64), np.array([True] * 2)
    )
    pairs, num_crowded = duplicates._find_candidates(train, test, 8)
    assert pairs.T.tolist() == [[0, 2, 0, 0], [0, 2, 1, 0], [1, 2, 0, 0], [1, 2, 1, 0]]
    assert num_crowded == 2


# --- what cannot be read
# ---------------------------------------------------------------------------------------------


def test_unreadable_images_are_named_and_the_others_searched():
    good = _jpeg(_fields(1, seed=8)[0])
    report = find_duplicates(
        _source([good[:300], b"", good], "train"),
        _source([good, b"no image"], "test"),
        progress=False,
    )
    assert report.unreadable == ("train[0]", "train[1]", "test[1]")
    assert [pair[:2] for pair in report.pairs] == [(2, 0)]
    assert (
        "3 images could not be read and were not compared:\n\n- train[0]\n- train[1]\n"
        in report.markdown(limit=2)
    )


def test_missing_files_are_unreadable(tmp_path: Path):
    paths = [str(tmp_path / "there.jpg"), str(tmp_path / "gone.jpg")]
    Path(paths[0]).write_bytes(_jpeg(_fields(1, seed=9)[0]))

    def read(index):
        return tf.io.read_file(tf.constant(paths)[index]), index

    files = Source(
        name="files", class_names=("any",), num_examples=2, read=read, locate=paths.__getitem__
    )
    report = find_duplicates(files, files, progress=False)
    assert report.unreadable == (paths[1], paths[1])
    assert report.train_indices == (0,)


def test_nothing_readable_is_a_report_too():
    report = find_duplicates(_source([b"no image"]), _source([b"nor this"], "test"), progress=False)
    assert (report.pairs, report.unreadable) == ((), ("pictures[0]", "test[0]"))


# --- report and picture
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched() -> tuple[Source, Source, DuplicateReport]:
    """Three copies, from equal to hardly alike."""
    images = _fields(4, seed=10, height=48, width=48)
    copies = [images[0], _resized(images[1], 2)[:, ::-1], _brightened(images[2])]
    train = _source([tf.io.encode_png(image).numpy() for image in [images[3], *copies]], "a|train")
    test = _source([*map(_jpeg, images[:3])], "test")
    return train, test, find_duplicates(train, test, progress=False)


def test_the_report_counts_and_lists_the_doubtful_first(searched):
    *_, report = searched
    text = report.markdown(limit=2)
    assert text.startswith(
        "# Images of test in a|train\n\n3 of 4 (75.00%) training images match 3 of 3 (100.00%) test"
    )
    assert "3 pairs, at most 8 bits apart, similarity at least 0.94." in text
    least = min(pair.similarity for pair in report.pairs)
    assert f"| 1 | a\\|train[3] | test[2] | 0 | {least:.3f} |  |" in text
    assert "\n1 more pairs, all at least as similar.\n" in text
    assert "| a\\|train[2] | test[1] | 0 | " in report.markdown()
    assert "more pairs" not in report.markdown()


def test_a_report_of_nothing_says_so(searched):
    empty = replace(searched[2], pairs=())
    assert (
        "0 of 4 (0.00%) training images match 0 of 3 (0.00%) test images: 0 pairs"
        in empty.markdown()
    )
    assert "|--" not in empty.markdown()


def test_the_picture_shows_pairs_side_by_side_and_turns_mirrored_ones(
    searched, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    train, test, report = searched
    path = tmp_path / "pairs.png"
    report.write_contact_sheet("~/pairs.png", train, test)
    picture = tf.io.decode_png(tf.io.read_file(str(path))).numpy().astype(int)
    assert picture.shape == (100, 5 * 196, 3)
    assert (picture[:, 3 * 196 :] == 255).all()
    for number, pair in enumerate(report.doubtful_first()):
        left, right = (picture[:96, number * 196 + side * 96 :][:, :96] for side in (0, 1))
        # One of the three is brighter by a tenth and ten grey levels; different images are 50 apart
        # and more.
        assert np.abs(left - right).mean() < (40 if pair.train_index == 3 else 10)
        assert left.std() > 10


def test_the_picture_has_as_many_lines_as_it_needs(searched, tmp_path: Path):
    train, test, report = searched
    many = replace(report, pairs=report.pairs * 4)
    for limit, num_lines in ((5, 1), (6, 2), (50, 3)):
        many.write_contact_sheet(tmp_path / "pairs.png", train, test, limit)
        assert tf.io.decode_png(tf.io.read_file(str(tmp_path / "pairs.png"))).shape == (
            100 * num_lines,
            980,
            3,
        )


def test_duplicates_are_dropped(searched):
    train, _, report = searched
    kept = drop_duplicates(train, report)
    assert kept.num_examples == 1
    assert kept.read(tf.constant(0, tf.int64))[0] == train.read(tf.constant(0, tf.int64))[0]


def test_bars_are_shown_only_if_wanted(capsys: pytest.CaptureFixture):
    images = _source(_fields(1, seed=11), "some pictures")
    find_duplicates(images, images, progress=False)
    assert capsys.readouterr().err == ""
    find_duplicates(images, images)
    assert "some pictures: 100%" in capsys.readouterr().err


# --- errors
# ----------------------------------------------------------------------------------------------------------


def test_all_wrong_arguments_are_named_at_once():
    empty, images = _source([], "nothing"), _source(_fields(1, seed=12))
    with pytest.raises(
        ValueError,
        match="nothing has no examples; nothing has no examples; max_distance=16, expected .*",
    ):
        find_duplicates(empty, empty, max_distance=16)
    with pytest.raises(
        ValueError,
        match="max_distance=-1, expected an integer from 0 to 15; min_similarity=1, expected",
    ):
        find_duplicates(images, images, max_distance=-1, min_similarity=1)


def test_a_report_about_other_sources_is_refused(searched, tmp_path: Path):
    train, test, report = searched
    with pytest.raises(
        ValueError,
        match=r"about \[\('a\|train', 4\)\] \(name, examples\). Received: \[\('test', 3\)\]",
    ):
        drop_duplicates(test, report)
    with pytest.raises(ValueError, match="Pass the sources that were searched"):
        report.write_contact_sheet(tmp_path / "pairs.png", test, train)


def test_a_picture_of_nothing_is_refused(searched, tmp_path: Path):
    train, test, report = searched
    with pytest.raises(ValueError, match="no pair to draw: the report has 3 pairs, and limit=0"):
        report.write_contact_sheet(tmp_path / "pairs.png", train, test, limit=0)
