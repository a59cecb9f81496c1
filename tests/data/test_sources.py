"""Sources: the same examples on every machine, and errors that say what to do."""

import io
import os
import shutil
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from keras_vit.data import reading, sources  # noqa: E402
from keras_vit.data.fractals import find_systems, render  # noqa: E402

pytestmark = pytest.mark.tensorflow


def image(number: int, side: int = 8) -> np.ndarray:
    return np.random.RandomState(number).randint(0, 256, (side, side, 3)).astype("uint8")


def write_images(folder: Path, count: int, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        tf.io.write_file(str(folder / f"{number:03}.png"), tf.io.encode_png(image(number)))


def read(source: sources.Source, index: int) -> tuple[np.ndarray, int]:
    encoded, label = source.read(tf.constant(index, tf.int64))
    decoded = tf.io.decode_image(encoded) if encoded.dtype == tf.string else encoded
    return decoded.numpy(), int(label)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    write_images(tmp_path / "zebra", 2)
    write_images(tmp_path / "ant", 3, first=10)
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "ant" / ".hidden.png").write_text("no image")
    (tmp_path / ".cache").mkdir()
    source = sources.image_folder(tmp_path)
    assert source.class_names == ("ant", "zebra")
    assert source.num_examples == 5
    assert [os.path.basename(source.locate(index)) for index in range(5)] == [
        "010.png",
        "011.png",
        "012.png",
        "000.png",
        "001.png",
    ]
    for index, (number, label) in enumerate([(10, 0), (11, 0), (12, 0), (0, 1), (1, 1)]):
        found, found_label = read(source, index)
        assert (found == image(number)).all() and found_label == label


def test_a_test_folder_takes_the_classes_of_the_training_folder(tmp_path):
    write_images(tmp_path / "test" / "b", 1)
    write_images(tmp_path / "test" / "a", 1)
    assert read(sources.image_folder(tmp_path / "test", class_names=("b", "a")), 0)[1] == 0
    part = sources.image_folder(tmp_path / "test", class_names=("a", "c"))
    assert part.class_names == ("a", "c") and part.labels.tolist() == [0]
    assert [(left.path.name, left.reason) for left in part.left_out] == [
        ("b", "not a class of the training set, 1 photos")
    ]
    with pytest.raises(
        ValueError,
        match="has no photos .* of the classes c, d. Expected: .* Left out, 2: not a class",
    ):
        sources.image_folder(tmp_path / "test", class_names=("c", "d"))


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        sources.image_folder(tmp_path / "absent")
    with pytest.raises(ValueError, match="has no photos .* Expected: .*/<class>/"):
        sources.image_folder(tmp_path)
    write_images(tmp_path / "full", 1)
    (tmp_path / "empty").mkdir()
    found = sources.image_folder(tmp_path)
    assert found.class_names == ("full",)
    assert found.left_out == ((tmp_path / "empty", "a class folder without photos"),)


def test_arrays_are_examples():
    images = np.stack([image(0), image(1)])
    source = sources.arrays(images, np.array([1, 0]), class_names=("no", "yes"))
    assert (read(source, 0)[0] == images[0]).all() and read(source, 0)[1] == 1
    assert source.locate(1) == "arrays[1]"
    grey = sources.arrays(images[..., 0], np.array([0, 1]))
    assert (read(grey, 1)[0] == images[1, ..., :1]).all() and read(grey, 1)[0].shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (np.zeros((2, 8, 8, 3), "float32"), [0, 1], None, "must be uint8"),
        (np.zeros((2, 8, 8, 2), "uint8"), [0, 1], None, "must be uint8 of shape"),
        (np.zeros((2, 8, 8), "uint8"), [0, 1, 2], None, "`labels` must be 2 integers"),
        (np.zeros((2, 8, 8), "uint8"), [0.0, 1.0], None, "`labels` must be 2 integers"),
        (
            np.zeros((2, 8, 8), "uint8"),
            [0, 2],
            ("a", "b"),
            "Labels must be 0 to 1. Received: 0 to 2",
        ),
        (
            np.zeros((2, 8, 8), "uint8"),
            [-1, 1],
            ("a", "b"),
            "Labels must be 0 to 1. Received: -1 to 1",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, names, message):
    with pytest.raises(ValueError, match=message):
        sources.arrays(images, np.array(labels), class_names=names)


def test_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    train, test = sources.digits("train"), sources.digits("test")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    found, label = read(test, 5)
    assert label == labels[1442]
    np.testing.assert_allclose(found[..., 0], images[1442].reshape(8, 8) * 255 / 16, atol=0.5)
    with pytest.raises(ValueError, match='must be "train" or "test"'):
        sources.digits("validation")


def test_subsets_are_renumbered():
    whole = sources.arrays(np.stack([image(i) for i in range(6)]), np.arange(6))
    part = whole.subset([4, 1]).subset([1])
    assert part.num_examples == 1 and read(part, 0)[1] == 1 and part.locate(0) == "arrays[1]"
    rest = whole.without([0, 2, 2, 5])
    assert [read(rest, index)[1] for index in range(rest.num_examples)] == [1, 3, 4]
    with pytest.raises(ValueError, match="No example of arrays would remain"):
        whole.without(range(6))
    with pytest.raises(ValueError, match="has the examples 0 to 5"):
        whole.subset([6])
    with pytest.raises(ValueError, match="Received: -1 to 2"):
        whole.subset([-1, 2])


def test_fractals_are_labelled_by_their_system():
    source = sources.fractals(4, images_per_class=3, image_size=16, seed=1)
    assert source.num_examples == 12 and len(source.class_names) == 4
    found, label = read(source, 7)
    assert found.shape == (16, 16, 3) and found.dtype == np.uint8 and label == 3
    assert [int(label) for _, _, label in source.examples()] == [index % 4 for index in range(12)]


def test_systems_and_instances_of_fractals_follow_the_seed_of_the_source():
    source = sources.fractals(2, images_per_class=2, image_size=8, seed=1)
    expected, label = render(find_systems(2, seed=1), 3, seed=1, image_size=8)
    found, found_label = read(source, 3)
    np.testing.assert_array_equal(found, expected)
    assert found_label == label


def test_fractals_of_another_size_are_other_data():
    contents = {
        sources.fractals(2, images_per_class=2, image_size=size).content() for size in (8, 9)
    }
    assert len(contents) == 2


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A data set of TensorFlow Datasets, written to disk by its own writer: 7 training and 3 test
    images. A process registers its name once, so it is made once in a process.
    """
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")

    class Shapes(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
                "label": tfds.features.ClassLabel(names=["disc", "square"]),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, 7), "test": self._generate_examples(7, 10)}

        def _generate_examples(self, first, last):
            for number in range(first, last):
                yield number, {"image": image(number), "label": number % 2}

    Shapes(data_dir=folder).download_and_prepare(file_format="tfrecord")
    return folder


def numbers(source: sources.Source) -> set[int]:
    found = [read(source, index) for index in range(source.num_examples)]
    which = [next(n for n in range(10) if (image(n) == pixels).all()) for pixels, _ in found]
    assert all(label == n % 2 for n, (_, label) in zip(which, found, strict=True))
    return set(which)


def test_any_split_of_tensorflow_datasets(built):
    whole = sources.tfds("shapes", "train", data_dir=built)
    assert whole.class_names == ("disc", "square") and whole.num_examples == 7
    assert numbers(whole) == set(range(7))
    first = sources.tfds("shapes", "train[:4]", data_dir=built)
    rest = sources.tfds("shapes", "train[4:]", data_dir=built)
    assert numbers(first) | numbers(rest) == set(range(7)) and not numbers(first) & numbers(rest)
    assert len(numbers(sources.tfds("shapes", "train[:50%]+test", data_dir=built))) in (6, 7)
    assert whole.locate(0).endswith(" at byte 12")


@pytest.mark.parametrize("kind", ["image_folder", "subset", "tfds"])
def test_a_moved_or_copied_folder_is_the_same_data(built, tmp_path, monkeypatch, kind):
    if kind == "tfds":
        shutil.copytree(built, tmp_path / "here")
    else:
        write_images(tmp_path / "here" / "ant", 2)
        write_images(tmp_path / "here" / "zebra", 2, first=10)

    def sha256(folder: str | Path) -> str:
        if kind == "tfds":
            return sources.tfds("shapes", "train", data_dir=folder).sha256()
        source = sources.image_folder(folder)
        return (source.subset([3, 0]) if kind == "subset" else source).sha256()

    there = sha256(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "elsewhere" / "deep")  # keeps the times
    assert sha256(tmp_path / "elsewhere" / "deep") == there
    monkeypatch.chdir(tmp_path / "here")
    assert sha256(".") == there
    monkeypatch.chdir(tmp_path)
    assert sha256("here/") == there
    read_files = "*train.tfrecord*" if kind == "tfds" else "*.png"
    os.utime(min(Path("here").rglob(read_files)), (0, 0))
    assert sha256("here") != there


def test_a_renamed_photo_or_class_is_other_data(tmp_path):
    write_images(tmp_path / "here" / "ant", 2)
    hashes = [sources.image_folder(tmp_path / "here").sha256()]
    (tmp_path / "here" / "ant" / "001.png").rename(tmp_path / "here" / "ant" / "002.png")
    hashes.append(sources.image_folder(tmp_path / "here").sha256())
    (tmp_path / "here" / "ant").rename(tmp_path / "here" / "bee")
    hashes.append(sources.image_folder(tmp_path / "here").sha256())
    assert len(set(hashes)) == 3


def test_a_file_of_another_size_is_other_data_whatever_its_time(tmp_path):
    """Copies may keep the time: `cp -p`, `rsync -t`."""
    write_images(tmp_path / "ant", 1)
    path, hashes = tmp_path / "ant" / "000.png", set()
    for content in (path.read_bytes(), path.read_bytes()[:-1]):
        path.write_bytes(content)
        os.utime(path, (0, 0))
        hashes.add(sources.image_folder(tmp_path).sha256())
    assert len(hashes) == 2


def test_the_examples_are_those_that_tensorflow_datasets_reads(built):
    tfds = pytest.importorskip("tensorflow_datasets")
    theirs = tfds.builder("shapes", data_dir=built).as_dataset(split="train[2:6]")
    ours = sources.tfds("shapes", "train[2:6]", data_dir=built)
    for index, example in enumerate(theirs):
        found, found_label = read(ours, index)
        assert (found == example["image"].numpy()).all() and found_label == int(example["label"])


def test_a_label_that_is_worked_out(built):
    def count_letters(facts):
        return tf.strings.length(tf.gather(["disc", "square"], facts["label"])) - 4

    names = ("four", "five", "six")
    ours = sources.tfds("shapes", "train", data_dir=built, label=count_letters, class_names=names)
    plain = sources.tfds("shapes", "train", data_dir=built)
    assert ours.class_names == names
    found = [read(ours, index) for index in range(7)]
    for index, (pixels, label) in enumerate(found):
        given, given_label = read(plain, index)
        assert (pixels == given).all() and label == 2 * given_label
    assert ours.read(tf.constant(0, tf.int64))[1].dtype == tf.int64
    assert sources.tfds("shapes", "train", data_dir=built, label=count_letters).class_names == (
        "disc",
        "square",
    )


def test_a_label_gets_no_image_and_no_image_is_decoded(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "image": tfds.features.Image(),
        "mask": tfds.features.Image(),
        "size": tfds.features.Scalar(np.int64),
    }

    class Masked(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield (
                0,
                {"image": io.BytesIO(b"not an image"), "mask": io.BytesIO(b"nor this"), "size": 3},
            )

    Masked(data_dir=tmp_path).download_and_prepare(file_format="tfrecord")
    seen = []

    def size_of(facts):
        seen.append(sorted(facts))
        return facts["size"]

    source = sources.tfds(
        "masked", "train", data_dir=tmp_path, label=size_of, class_names=[*map(str, range(4))]
    )
    image, label = source.read(tf.constant(0, tf.int64))
    assert image.numpy() == b"not an image" and label == 3 and seen == [["size"]]
    for options in ({}, {"label": size_of}, {"class_names": ("a", "b")}):
        with pytest.raises(ValueError, match="masked has no label. Features: image, mask, size"):
            sources.tfds("masked", "train", data_dir=tmp_path, **options)


def test_an_unknown_name_or_split_is_said(built):
    with pytest.raises(
        ValueError, match="TensorFlow Datasets has no 'cifar11'. Did you mean cifar10"
    ):
        sources.tfds("cifar11", "train", data_dir=built)
    with pytest.raises(ValueError, match="has no split 'validation'. Splits: "):
        sources.tfds("shapes", "validation", data_dir=built)


@pytest.mark.parametrize("proxies", [{}, {"no": "localhost"}])  # of the second none is a proxy
def test_a_data_set_that_is_not_there_fails_at_once_offline(tmp_path, monkeypatch, proxies):
    tfds = pytest.importorskip("tensorflow_datasets")

    def no_network(host, *_):
        raise socket.gaierror(-2, f"Name or service not known: {host}")

    def prepare(self, **_):
        pytest.fail("It would have tried for minutes.")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(urllib.request, "getproxies", lambda: proxies)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
    with pytest.raises(
        ValueError,
        match="(?s)mnist is not in .* and cannot be prepared here: gaierror.*copy the folder",
    ):
        sources.tfds("mnist", "train", data_dir=tmp_path)


@pytest.mark.parametrize("lost", [1, 5])
def test_a_record_file_that_is_cut_short_is_named(built, lost):
    path = next(Path(built).rglob("*train*.tfrecord*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    try:
        with pytest.raises(ValueError, match="is truncated at byte"):
            sources.tfds("shapes", "train", data_dir=built)
    finally:
        path.write_bytes(whole)


def test_a_split_is_the_same_every_time_and_loses_nothing():
    first, rest = sources.digits("train").split(0.1)
    places = [part.locate(index) for part in (first, rest) for index in range(part.num_examples)]
    assert (first.num_examples, len(set(places))) == (144, 1437)
    again, _ = sources.digits("train").split(0.1)
    assert [again.locate(index) for index in range(144)] == places[:144]
    other, _ = sources.digits("train").split(0.1, seed=1)
    assert [other.locate(index) for index in range(144)] != places[:144]
    with pytest.raises(ValueError, match="No example of digits train would remain"):
        sources.digits("train").split(0.0)


def test_a_split_by_class_leaves_some_of_each_on_both_sides():
    labels = np.repeat([0, 1, 2], [40, 2, 15])
    source = sources.arrays(np.zeros((57, 4, 4), np.uint8), labels, name="all")
    part, rest = source.split_by_class(0.1)
    assert np.bincount(part.labels).tolist() == [4, 1, 2]
    assert np.bincount(rest.labels).tolist() == [36, 1, 13]
    places = [s.locate(index) for s in (part, rest) for index in range(s.num_examples)]
    assert sorted(places) == sorted(f"all[{index}]" for index in range(57))
    assert [
        int(part.read(tf.constant(index, tf.int64))[1]) for index in range(7)
    ] == part.labels.tolist()
    part, rest = source.split_by_class(0.99)
    assert np.bincount(rest.labels).tolist() == [1, 1, 1]
    part, _ = source.split_by_class(0.1)
    again, other = source.split_by_class(0.1), source.split_by_class(0.1, seed=1)
    assert [again[0].locate(i) for i in range(7)] == [part.locate(i) for i in range(7)]
    assert [other[0].locate(i) for i in range(7)] != [part.locate(i) for i in range(7)]


def test_the_image_of_a_class_of_one_is_learned_from():
    source = sources.arrays(
        np.zeros((4, 4, 4), np.uint8), np.array([0, 3, 0, 1]), ["many", "one", "none", "other"]
    )
    measured, learned = source.split_by_class(0.1)
    assert measured.labels.tolist() == [0] and sorted(learned.labels.tolist()) == [0, 1, 3]
    with pytest.raises(
        ValueError, match="No class of arrays has more than one image, so none can be held out"
    ):
        source.subset([0, 1]).split_by_class(0.1)
    unknown = sources.fractals(2, images_per_class=4)
    with pytest.raises(ValueError, match="The labels of .* are not known before reading it"):
        unknown.split_by_class(0.1)


def test_labels_are_known_without_reading(tmp_path):
    write_images(tmp_path / "a", 2)
    write_images(tmp_path / "b", 1)
    assert sources.image_folder(tmp_path).labels.tolist() == [0, 0, 1]
    assert sources.image_folder(tmp_path).subset([2, 0]).labels.tolist() == [1, 0]


def test_pixels_are_read_as_they_are(tmp_path):
    write_images(tmp_path / "a", 1, first=7)
    assert (reading.read_pixels(sources.image_folder(tmp_path), 0) == image(7)).all()
