"""VTAB's tasks: their labels by hand, and their examples from small data sets that the real
builders' formats lay down.

In the small data sets every image shows a number, its code, from which all else about it follows.
"""

import io
import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

from keras_vit.data.reading import read_pixels  # noqa: E402
from keras_vit.data.sources import Source  # noqa: E402
from keras_vit.data.transforms import decode  # noqa: E402
from keras_vit.evaluate.vtab_tasks import TASKS, is_prepared, task_sources  # noqa: E402
from keras_vit.paper import VTAB_GROUPS, vtab_scores  # noqa: E402

pytestmark = pytest.mark.tensorflow

# Table 9 of arXiv:2010.11929: its columns, with the number of classes as VTAB's tests have it
# (task_adaptation, data/).
COLUMNS = {
    "Caltech101": 102,
    "CIFAR-100": 100,
    "DTD": 47,
    "Flowers102": 102,
    "Pets": 37,
    "Sun397": 397,
    "SVHN": 10,
    "Camelyon": 2,
    "EuroSAT": 10,
    "Resisc45": 45,
    "Retinopathy": 5,
    "Clevr-Count": 8,
    "Clevr-Dist": 6,
    "DMLab": 6,
    "dSpr-Loc": 16,
    "dSpr-Ori": 16,
    "KITTI-Dist": 4,
    "sNORB-Azim": 18,
    "sNORB-Elev": 9,
}


def test_the_tasks_are_the_columns_of_table_9():
    assert {task.title: task.num_classes for task in TASKS.values()} == COLUMNS
    assert [task.title for task in TASKS.values()] == list(COLUMNS)
    assert (
        list(TASKS)
        == [task.name for task in TASKS.values()]
        == list(vtab_scores("ViT_H14", "jft300m"))
    )
    groups = [task.group for task in TASKS.values()]
    assert groups == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8
    assert all(TASKS[name].group == group for group, names in VTAB_GROUPS.items() for name in names)


def test_flips_and_crops_are_off_where_bit_turns_them_off():
    """Appendix F of arXiv:1912.11370."""
    without_flip = {"dSpr-Ori", "sNORB-Azim", "dSpr-Loc"}
    without_crop = {"Clevr-Count", "Clevr-Dist", "DMLab", "KITTI-Dist", "dSpr-Loc"}
    assert {task.title for task in TASKS.values() if not task.flip} == without_flip
    assert {task.title for task in TASKS.values() if not task.crop} == without_crop


# The places of the 800, the 200 and the test set in their splits: VTAB's formulas in whole numbers,
# with the sizes that its tests state; those of Caltech101 also with one image fewer, as later
# versions have it.
PLACES = {
    "caltech101": ({"train": 3060, "test": 6084}, "train 2754-2954", "test 0-6084"),
    "caltech101 3.0.1": ({"train": 3059, "test": 6085}, "train 2753-2953", "test 0-6085"),
    "cifar100": ({"train": 50_000, "test": 10_000}, "train 45000-45200", "test 0-10000"),
    "dtd": ({"train": 1880, "validation": 1880, "test": 1880}, "validation 0-200", "test 0-1880"),
    "flowers102": (
        {"train": 1020, "validation": 1020, "test": 6149},
        "validation 0-200",
        "test 0-6149",
    ),
    "pets": ({"train": 3680, "test": 3669}, "train 2944-3144", "test 0-3669"),
    "sun397": (
        {"train": 76_128, "validation": 10_875, "test": 21_750},
        "validation 0-200",
        "test 0-21750",
    ),
    "svhn": ({"train": 73_257, "test": 26_032}, "train 65931-66131", "test 0-26032"),
    "patch_camelyon": (
        {"train": 262_144, "validation": 32_768, "test": 32_768},
        "validation 0-200",
        "test 0-32768",
    ),
    "eurosat": ({"train": 27_000}, "train 16200-16400", "train 21600-27000"),
    "resisc45": ({"train": 31_500}, "train 18900-19100", "train 25200-31500"),
    "diabetic_retinopathy": (
        {"train": 35_126, "validation": 10_906, "test": 42_670},
        "validation 0-200",
        "test 0-42670",
    ),
    "clevr_count": (
        {"train": 70_000, "validation": 15_000},
        "train 63000-63200",
        "validation 0-15000",
    ),
    "clevr_distance": (
        {"train": 70_000, "validation": 15_000},
        "train 63000-63200",
        "validation 0-15000",
    ),
    "dmlab": (
        {"train": 65_550, "validation": 22_628, "test": 22_735},
        "validation 0-200",
        "test 0-22735",
    ),
    "dsprites_location": ({"train": 737_280}, "train 589824-590024", "train 663552-737280"),
    "dsprites_orientation": ({"train": 737_280}, "train 589824-590024", "train 663552-737280"),
    "kitti_distance": (
        {"train": 6347, "validation": 423, "test": 711},
        "validation 0-200",
        "test 0-711",
    ),
    "smallnorb_azimuth": ({"train": 24_300, "test": 24_300}, "test 0-200", "test 12150-24300"),
    "smallnorb_elevation": ({"train": 24_300, "test": 24_300}, "test 0-200", "test 12150-24300"),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_splits_are_those_of_vtab(name):
    sizes, validation, test = PLACES[name]
    task = TASKS[name.split()[0]]
    assert places(task.train, sizes) == ("train", 0, 800)
    split, start, end = places(task.validation, sizes)
    assert end - start >= 200
    assert f"{split} {start}-{start + 200}" == validation
    assert "{} {}-{}".format(*places(task.test, sizes)) == test


def test_every_task_has_its_places_tested():
    assert {name.split()[0] for name in PLACES} == set(TASKS)


def places(split: str, sizes: dict[str, int]) -> tuple[str, int, int]:
    infos = {name: SimpleNamespace(num_examples=size) for name, size in sizes.items()}
    (found,) = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    return (
        found.splitname,
        found.from_ or 0,
        sizes[found.splitname] if found.to is None else found.to,
    )


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_tensorflow_datasets_has_what_a_task_asks_for(task, tmp_path):
    builder = tfds.builder(task.dataset, data_dir=tmp_path)
    features = builder.info.features
    assert isinstance(features["image"], tfds.features.Image)
    assert bool(task.manual) == bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
    if task.manual:
        address = next(word for word in task.manual.split() if word.startswith("https://")).rstrip(
            ","
        )
        assert address in builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    values = {
        "smallnorb_azimuth": ("label_azimuth", 18),
        "smallnorb_elevation": ("label_elevation", 9),
    }
    values |= {
        "dsprites_location": ("label_x_position", 32),
        "dsprites_orientation": ("label_orientation", 40),
    }
    if "objects" not in features:
        key, count = values.get(task.name, ("label", task.num_classes))
        assert features[key].num_classes == count
    assert len(task.class_names) in (0, task.num_classes)
    # Grey pictures are read as such, the others in colour; dSprites' pixels are 0 and 1.
    assert task.pixel_scale == (255 if task.name.startswith("dsprites") else 1)


def test_vehicles_are_the_first_three_types_of_kitti(tmp_path):
    kinds = tfds.builder("kitti:3.*.*", data_dir=tmp_path).info.features["objects"]["type"]
    assert kinds.names[:3] == ["Car", "Van", "Truck"] and kinds.num_classes == 8


GIVEN = [name for name, task in TASKS.items() if task.group != "structured"] + ["dmlab"]


@pytest.mark.parametrize("name", GIVEN)
def test_a_label_that_the_data_set_has_is_taken_as_it_is(name):
    last = TASKS[name].num_classes - 1
    example = {
        "label": tf.constant(last, tf.int64),
        "coarse_label": tf.constant(0),
        "species": tf.constant(1),
    }
    assert label_of(name, example) == last


def label_of(name: str, example: dict) -> int:
    label = TASKS[name].label(example)
    assert label.shape == () and label.dtype == tf.int64
    return int(label)


def scene(distances: list[float]) -> dict:
    coordinates = [[240.0, 160.0, distance] for distance in distances]
    return {
        "objects": {
            "size": tf.constant([number % 2 for number in range(len(distances))], tf.int64),
            "pixel_coords": tf.constant(coordinates, tf.float32),
        }
    }


@pytest.mark.parametrize(("count", "label"), [(3, 0), (4, 1), (9, 6), (10, 7)])
def test_objects_are_counted_from_three(count, label):
    assert label_of("clevr_count", scene([9.0] * count)) == label


@pytest.mark.parametrize(
    ("nearest", "label"),
    [
        (7.5, 0),
        (8.0, 0),
        (8.001, 1),
        (8.5, 1),
        (8.501, 2),
        (9.0, 2),
        (9.001, 3),
        (9.5, 3),
        (9.501, 4),
        (10.0, 4),
    ]
    + [(10.001, 5), (14.0, 5)],
)
def test_the_nearest_object_decides_and_a_threshold_belongs_to_the_nearer_side(nearest, label):
    assert label_of("clevr_distance", scene([nearest + 2, nearest, nearest + 1])) == label


def street(objects: list[tuple[int, float]]) -> dict:
    """Objects as (type, metres ahead); they stand 30 m to the side and 1 m down."""
    return {
        "objects": {
            "type": tf.constant([kind for kind, _ in objects], tf.int64),
            "location": tf.reshape(
                tf.constant([[30.0, 1.0, ahead] for _, ahead in objects], tf.float32), (-1, 3)
            ),
        }
    }


CAR, VAN, TRUCK, PEDESTRIAN, TRAM = 0, 1, 2, 3, 6


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([(CAR, 8.0)], 0),
        ([(CAR, 8.001)], 1),
        ([(VAN, 20.0)], 1),
        ([(TRUCK, 20.001)], 2),
        ([(TRUCK, 150.0)], 2),
        ([(CAR, -2.0)], 0),
        ([(PEDESTRIAN, 2.0), (CAR, 30.0), (VAN, 12.0), (TRAM, 3.0)], 1),
        ([(PEDESTRIAN, 2.0), (TRAM, 3.0)], 3),
        ([], 3),
    ],
)
def test_the_nearest_vehicle_decides(objects, label):
    assert label_of("kitti_distance", street(objects)) == label
    names = ("up to 8 m", "8 to 20 m", "beyond 20 m", "no vehicle")
    assert TASKS["kitti_distance"].class_names == names


def test_positions_are_grouped_by_two_and_orientations_by_three_and_two():
    places_ = [
        label_of("dsprites_location", {"label_x_position": tf.constant(x, tf.int64)})
        for x in range(32)
    ]
    assert places_ == np.repeat(range(16), 2).tolist()
    turns = [
        label_of("dsprites_orientation", {"label_orientation": tf.constant(o, tf.int64)})
        for o in range(40)
    ]
    assert turns == np.repeat(range(16), [3, 2] * 8).tolist()


def test_views_of_small_norb_are_labels_as_they_are():
    view = {"label_azimuth": tf.constant(17, tf.int64), "label_elevation": tf.constant(8, tf.int64)}
    assert (
        label_of("smallnorb_azimuth", view) == 17
        and TASKS["smallnorb_azimuth"].class_names[17] == "340°"
    )
    assert (
        label_of("smallnorb_elevation", view) == 8
        and TASKS["smallnorb_elevation"].class_names[8] == "70°"
    )


NUM_CODES = 240


def png(code: int, channels: int = 3) -> bytes:
    return tf.io.encode_png(np.full((4, 4, channels), code, np.uint8)).numpy()


def sprite(code: int) -> bytes:
    """Pixels of 0 and 1: the code as a binary number."""
    pixels = np.zeros((64, 64, 1), np.uint8)
    pixels[0, :8, 0] = [code >> bit & 1 for bit in range(8)]
    return tf.io.encode_png(pixels).numpy()


def clevr(code: int) -> dict:
    distances = [7.6 + code % 6 / 2 + number for number in range(3 + code % 8)]
    kinds = {"color": "red", "material": "metal", "shape": "cube", "size": "large", "rotation": 0.0}
    spot = {"3d_coords": [0.0, 0.0, 7.0]}
    return {
        "image": png(code),
        "file_name": str(code),
        "objects": [
            {**kinds, **spot, "pixel_coords": [7.0, 7.0, distance]}
            for distance in reversed(distances)
        ],
        "question_answer": [{"question": "How many?", "answer": "Some."}],
    }


def kitti(code: int) -> dict:
    traffic = ([("Car", 5.0)], [("Van", 15.0)], [("Truck", 40.0)], [])[code % 4]
    walkers = [] if code % 8 == 7 else [("Pedestrian", 1.0)]  # code 7: an empty street
    box = tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
    rest = {
        "truncated": 0.0,
        "occluded": 0,
        "alpha": 0.0,
        "bbox": box,
        "dimensions": [1.0] * 3,
        "rotation_y": 0.0,
    }
    objects = [
        {**rest, "type": kind, "location": [0.0, 0.0, ahead]} for kind, ahead in walkers + traffic
    ]
    return {"image": png(code), "image/file_name": str(code), "objects": objects}


def dsprites(code: int) -> dict:
    values = {
        f"value_{key}": 0.0 for key in ("shape", "scale", "orientation", "x_position", "y_position")
    }
    labels = {"label_shape": 0, "label_scale": 0, "label_y_position": 0}
    return {
        **values,
        **labels,
        "image": sprite(code),
        "label_orientation": code % 40,
        "label_x_position": code % 32,
        "id": str(code),
    }


def smallnorb(code: int) -> dict:
    return {
        "image": png(code, channels=1),
        "image2": png(255, channels=1),
        "label_category": 0,
        "instance": 0,
        "label_lighting": 0,
        "label_elevation": code % 9,
        "label_azimuth": code % 18,
        "id": str(code),
    }


# Name, version (not always the one that the library prepares today), configuration, an example,
# sizes of the splits.
SMALL = (
    (
        "caltech101",
        "3.0.2",
        None,
        lambda code: labelled(code, 102, "image/file_name"),
        {"train": 2100, "test": 30},
    ),
    ("eurosat", "2.0.0", "rgb", lambda code: labelled(code, 10, "filename"), {"train": 1400}),
    ("clevr", "3.1.0", None, clevr, {"train": 2100, "validation": 30}),
    ("kitti", "3.1.0", None, kitti, {"train": 810, "validation": 210, "test": 30}),
    ("dsprites", "2.1.0", None, dsprites, {"train": 2100}),
    ("smallnorb", "2.1.0", None, smallnorb, {"train": 810, "test": 420}),
)


def labelled(code: int, num_classes: int, name_key: str) -> dict:
    return {"image": png(code), "label": code % num_classes, name_key: str(code)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small data sets, laid down by the library in the features of its own builders."""
    path = tmp_path_factory.mktemp("tfds")
    for name, version, config, example_of, sizes in SMALL:
        lay_down(
            path, name, version, config, [example_of(code) for code in range(NUM_CODES)], sizes
        )
    return path


def lay_down(
    path, name: str, version: str, config: str | None, examples: list[dict], sizes: dict[str, int]
) -> None:
    real = tfds.builder_cls(name)
    with tfds.core.registered.skip_registration():

        class Small(real):
            VERSION = tfds.core.Version(version)
            SUPPORTED_VERSIONS = []

            def _split_generators(self, dl_manager):
                return {split: self._generate_examples(size) for split, size in sizes.items()}

            def _generate_examples(self, size) -> Iterator[tuple[int, dict]]:
                for number in range(size):
                    yield number, fresh(examples[number % NUM_CODES])

    Small.name = real.name
    Small(data_dir=path, config=config).download_and_prepare(file_format="tfrecord")


def fresh(example: dict) -> dict:
    """Files are read once."""
    return {
        key: io.BytesIO(value) if isinstance(value, bytes) else value
        for key, value in example.items()
    }


def code_in(image: np.ndarray) -> int:
    assert image.shape in ((4, 4, 3), (64, 64, 3)) and image.dtype == np.uint8
    assert (image == image[..., :1]).all()
    if image.shape[0] == 4:
        return int(image[0, 0, 0])
    assert set(np.unique(image)) <= {0, 255}
    return sum(1 << bit for bit in range(8) if image[0, bit, 0] == 255)


def read_all(source: Source) -> list[tuple[int, int]]:
    """(code, label) of every example."""
    examples = source.examples().map(
        lambda index, image, label: (decode(image, tf.constant([0, 0])), label)
    )
    return [(code_in(image), int(label)) for image, label in examples.as_numpy_iterator()]


THIRDS_AND_HALVES = np.repeat(range(16), [3, 2] * 8)
# Task to the sizes of its test set in the small data sets, and to the label by the code.
SMALL_TASKS: dict[str, tuple[int, Callable[[int], int]]] = {
    "caltech101": (30, lambda code: code % 102),
    "eurosat": (280, lambda code: code % 10),
    "clevr_count": (30, lambda code: code % 8),
    "clevr_distance": (30, lambda code: code % 6),
    "dsprites_location": (210, lambda code: code % 32 // 2),
    "dsprites_orientation": (210, lambda code: THIRDS_AND_HALVES[code % 40]),
    "kitti_distance": (30, lambda code: code % 4),
    "smallnorb_azimuth": (210, lambda code: code % 18),
    "smallnorb_elevation": (210, lambda code: code % 9),
}


@pytest.mark.parametrize("name", SMALL_TASKS)
@pytest.mark.sampled(5)
def test_a_task_is_read_from_the_disk(name, folder):
    num_test, label_of_code = SMALL_TASKS[name]
    task = TASKS[name]
    found = task_sources(task, folder)
    parts = (found.train, found.validation, found.train_and_validation, found.test)
    assert [part.num_examples for part in parts] == [800, 200, 1000, num_test]
    assert all(len(part.class_names) == task.num_classes for part in parts)
    train, validation, both, test = (
        [part.locate(index) for index in range(part.num_examples)] for part in parts
    )
    assert both == train + validation
    assert not set(train) & set(validation) and not set(both) & set(test)
    examples = read_all(found.train_and_validation.subset(range(0, 1000, 37)))
    last = tf.constant(num_test - 1, tf.int64)
    examples.append((code_in(read_pixels(found.test, num_test - 1)), int(found.test.read(last)[1])))
    assert [label for _, label in examples] == [label_of_code(code) for code, _ in examples]
    assert len({code for code, _ in examples}) > 14


@pytest.mark.parametrize(
    ("name", "validation"),
    [
        ("caltech101", "train[1890:2090]"),
        ("eurosat", "train[840:1040]"),
        ("kitti_distance", "validation[:200]"),
    ],
)
def test_the_two_hundred_are_those_that_tensorflow_datasets_counts_out(name, validation, folder):
    task = TASKS[name]
    skip = {"image": tfds.decode.SkipDecoding()}
    theirs = tfds.builder(task.dataset, data_dir=folder).as_dataset(split=validation, decoders=skip)
    ours = task_sources(task, folder).validation
    found = [image for _, image, _ in ours.examples().as_numpy_iterator()]
    assert found == [example["image"] for example in theirs.as_numpy_iterator()]


def test_of_a_pair_in_small_norb_the_first_image_is_read_in_three_channels(folder):
    image = read_pixels(task_sources(TASKS["smallnorb_elevation"], folder).test, 0)
    assert image.shape == (4, 4, 3) and image.max() < 255


def test_what_is_on_the_disk_is_found_in_any_version_that_will_do(folder, tmp_path):
    on_disk = {"caltech101", "eurosat"} | {
        name for name in TASKS if name.startswith(("clevr", "dspr", "kitti", "small"))
    }
    assert {name for name, task in TASKS.items() if is_prepared(task, folder)} == on_disk
    assert not any(is_prepared(task, tmp_path) for task in TASKS.values())
    # dSprites 2.1.0 and KITTI 3.1.0 lie there, and the library would look for 2.0.0 and 3.3.0.
    assert not is_prepared(replace(TASKS["dsprites_location"], dataset="dsprites"), folder)
    assert not is_prepared(replace(TASKS["kitti_distance"], dataset="kitti"), folder)


def test_data_that_are_fetched_by_hand_are_said_to_be(tmp_path, monkeypatch):
    def no_network(host, *_):
        raise socket.gaierror(-2, f"Name or service not known: {host}")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"no": "*"})
    message = r"(?s)The data of Retinopathy are missing\. .* cannot be prepared here.* manual download\. .*kaggle\.com"
    with pytest.raises(ValueError, match=message):
        task_sources(TASKS["diabetic_retinopathy"], tmp_path)
    with pytest.raises(ValueError, match="The data of SVHN are missing.*copy the folder.$"):
        task_sources(TASKS["svhn"], tmp_path)


def test_another_data_set_under_the_same_name_is_refused(folder):
    with pytest.raises(
        ValueError,
        match="EuroSAT has 12 classes, but eurosat/rgb.* has 10. It may be another data set",
    ):
        task_sources(replace(TASKS["eurosat"], num_classes=12), folder)
    with pytest.raises(ValueError, match="EuroSAT has 9 classes, but eurosat/rgb.* has 10"):
        task_sources(replace(TASKS["eurosat"], num_classes=9), folder)


def test_too_small_a_data_set_is_refused(folder):
    with pytest.raises(ValueError, match=r"has no split 'train\[:8000\].*train \(1400\)"):
        task_sources(replace(TASKS["eurosat"], train="train[:8000]"), folder)
    with pytest.raises(ValueError, match="has the examples 0 to 13. Received: 0 to 199"):
        task_sources(replace(TASKS["eurosat"], validation="train[98%:99%]"), folder)
