"""ImageNet's other test sets: small folders laid out as the published ones, with classes known by
name and number.
"""

import dataclasses
import functools
import json
import logging
from pathlib import Path

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit.data import sources  # noqa: E402
from keras_vit.data.reading import read_pixels  # noqa: E402
from keras_vit.evaluate.imagenet_sets import (  # noqa: E402
    by_wordnet_id,
    imagenet_folder,
    imagenet_real,
    imagenet_real_tfds,
    imagenet_v2,
    objectnet,
    objectnet_classes,
)
from keras_vit.evaluate.label_sets import label_set_accuracy  # noqa: E402

pytestmark = pytest.mark.tensorflow


def write_image(path: Path, label: int = 0, *, border: int = 0) -> None:
    """An image of 8 x 8 pixels whose colour says what `nearest_colour` takes it for, in a red
    border.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((8 + 2 * border, 8 + 2 * border, 3), (255, 0, 0))
    pixels[border : border + 8, border : border + 8] = (label % 256, label // 256, 0)
    # As PNG whatever the suffix: of a JPEG, colours would be off by one.
    keras.utils.save_img(path, pixels, scale=False, file_format="png")


def nearest_colour() -> keras.Model:
    """Prefers the class c nearest to p = red + 256 green: -(p - c)² is p·2c - c² but for what all c
    share.
    """
    pixels = keras.Input((8, 8, 3))
    dense = keras.layers.Dense(1000)
    levels = keras.layers.Rescaling(127.5, 127.5)(pixels)
    model = keras.Model(pixels, dense(keras.layers.GlobalAveragePooling2D()(levels)))
    classes = np.arange(1000)
    dense.set_weights([np.outer([1, 256, 0], 2 * classes), -(classes**2)])
    return model


def labels_read(source: sources.Source) -> list[int]:
    return [
        int(source.read(tf.constant(index, tf.int64))[1]) for index in range(source.num_examples)
    ]


@functools.cache
def all_names() -> list[str]:
    return [row[0][1] for row in keras_vit.decode_predictions(np.eye(1000), top=1)]


# ReaL: what the toy model answers, and what is right.
ANSWERS = [3, 20, 55, 9, 900]
REAL = [[3], [400, 20], [], [7, 999], [30, 31, 32]]


def write_real(root: Path, form: str) -> tuple[Path, Path]:
    for number, answer in enumerate(ANSWERS, 1):
        name = f"ILSVRC2012_val_{number:08}.JPEG"
        if form == "huggingface":
            name = f"ILSVRC2012_val_{number:08}_n0144076{number}.JPEG"
        folder = f"n{20 - number:08}" if form == "folders" else ""  # so that their order is another
        write_image(root / "val" / folder / name, answer)
    (root / "val" / "notes.txt").write_text("no image")
    (root / "real.json").write_text(json.dumps(REAL))
    return root / "val", root / "real.json"


@pytest.mark.parametrize("form", ["flat", "folders", "huggingface"])
def test_real_labels_go_by_the_number_in_the_name(tmp_path, form):
    sets = imagenet_real(*write_real(tmp_path, form))
    assert sets.right == ((3,), (400, 20), (), (7, 999), (30, 31, 32))
    places = [Path(sets.source.locate(index)).name[:23] for index in range(5)]
    assert places == [f"ILSVRC2012_val_{number:08}" for number in range(1, 6)]
    assert [read_pixels(sets.source, index)[0, 0, :2].tolist() for index in (1, 4)] == [
        [20, 0],
        [132, 3],
    ]
    assert list(sets.source.class_names) == all_names()


def test_moved_validation_images_are_the_same_data(tmp_path):
    images, labels = write_real(tmp_path / "here", "folders")
    there = imagenet_real(images, labels).source.sha256()
    moved = images.rename(tmp_path / "moved")
    assert imagenet_real(moved, labels).source.sha256() == there


def test_real_accuracy_is_the_one_worked_out_by_hand(tmp_path):
    sets = imagenet_real(*write_real(tmp_path, "flat"))
    # Of 3, 20, 9 and 900 two are right at once; 7 is among the five nearest to 9; 55 belongs to an
    # empty set.
    assert label_set_accuracy(nearest_colour(), sets, batch_size=2) == {
        "real/top1": 2 / 4,
        "real/top5": 3 / 4,
        "real/images": 4,
        "real/excluded": 1,
        "real/unreadable": 0,
    }


def test_a_part_of_the_validation_images_is_measured_and_said(tmp_path):
    images, labels = write_real(tmp_path, "flat")
    assert "of 5" not in imagenet_real(images, labels).source.name
    (images / "ILSVRC2012_val_00000001.JPEG").unlink()
    (images / "ILSVRC2012_val_00000004.JPEG").unlink()
    sets = imagenet_real(str(images), str(labels))
    assert sets.right == ((400, 20), (), (30, 31, 32))
    assert sets.source.name.endswith("(3 of 5 images)")
    assert label_set_accuracy(nearest_colour(), sets)["real/top1"] == 1 / 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[1], [2",
            r"real\.json is not JSON .*Expected the real\.json of google-research/reassessed-imagenet",
        ),
        ('{"1": [1]}', "contains a dict. Expected .* a list of lists of classes, 0 to 999"),
        ("[1, 2, 3]", r"Entry 1 of .*real\.json is 1\. Expected"),
        ("[[1], [2], [0.5]]", r"Entry 3 of .*real\.json is \[0\.5\]"),
        ("[[1], [true]]", r"Entry 2 of .*real\.json is \[True\]"),
        ("[[1], [], [999, 1000]]", r"Entry 3 of .*real\.json is \[999, 1000\]"),
        ("[[-1]]", r"Entry 1 of .*real\.json is \[-1\]"),
        (
            "[[1], [2], [3]]",
            r"has 3 lists, for the images 1 to 3, but .* contains ILSVRC2012_val_00000004\.JPEG, ",
        ),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, text, message):
    images, labels = write_real(tmp_path, "flat")
    labels.write_text(text)
    with pytest.raises(ValueError, match=message):
        imagenet_real(images, labels)


def test_what_is_wrong_with_the_validation_images_is_said(tmp_path):
    images, labels = write_real(tmp_path, "folders")
    with pytest.raises(
        ValueError, match=r"There is no file .*absent\.json\. Expected the real\.json"
    ):
        imagenet_real(images, tmp_path / "absent.json")
    with pytest.raises(
        ValueError, match=r"There is no folder .*absent\. Expected .*ILSVRC2012_val_00000001\.JPEG"
    ):
        imagenet_real(tmp_path / "absent", labels)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=".*empty contains no images. Expected"):
        imagenet_real(tmp_path / "empty", labels)
    write_image(images / "n1" / "ILSVRC2012_val_00000002.jpg")
    with pytest.raises(ValueError, match="are the same image of ImageNet. Remove one"):
        imagenet_real(images, labels)
    write_image(images / "n1" / "ILSVRC2012_val_2.JPEG")
    write_image(images / "n01440764_1.JPEG")
    with pytest.raises(
        ValueError,
        match=r"2 of the 8 images in .* have no number in their names: n01440764_1\.JPEG, ",
    ):
        imagenet_real(images, labels)
    write_image(tmp_path / "zero" / "ILSVRC2012_val_00000000.JPEG")
    with pytest.raises(
        ValueError, match=r"for the images 1 to 5, but .* contains ILSVRC2012_val_00000000\.JPEG"
    ):
        imagenet_real(tmp_path / "zero", labels)


@pytest.fixture
def real_in_tfds(tmp_path, monkeypatch) -> Path:
    """The data set imagenet2012_real with five images, written by TensorFlow Datasets itself."""
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder("imagenet2012_real", data_dir=tmp_path, try_gcs=False)

    def examples():
        for number, (answer, labels) in enumerate(zip(ANSWERS, REAL, strict=True), 1):
            name = f"ILSVRC2012_val_{number:08}.JPEG"
            image = np.full((8, 8, 3), answer % 256, np.uint8)
            yield (
                name,
                {"image": image, "original_label": answer, "real_label": labels, "file_name": name},
            )

    monkeypatch.setattr(builder, "_split_generators", lambda _: {"validation": examples()})
    builder.download_and_prepare(file_format="tfrecord")
    return tmp_path


def test_real_labels_of_tensorflow_datasets_stay_with_their_images(real_in_tfds):
    sets = imagenet_real_tfds(data_dir=real_in_tfds)
    originals = labels_read(sets.source)
    assert dict(zip(originals, sets.right, strict=True)) == dict(
        zip(ANSWERS, map(tuple, REAL), strict=True)
    )
    shades = [read_pixels(sets.source, index)[4, 4, 0] for index in range(5)]
    np.testing.assert_allclose(shades, [label % 256 for label in originals], atol=1)
    assert list(sets.source.class_names) == all_names()
    part = imagenet_real_tfds("validation[1:3]", data_dir=real_in_tfds)
    assert part.right == sets.right[1:3] and labels_read(part.source) == originals[1:3]
    assert sets.is_complete and not part.is_complete
    with pytest.raises(
        ValueError, match="imagenet2012_real.* has no split 'test'. Splits: validation"
    ):
        imagenet_real_tfds("test", data_dir=real_in_tfds)


def test_the_folders_of_v2_are_numbers_and_no_words(tmp_path, caplog):
    for label in (999, 2, 10, 0, 100):
        write_image(tmp_path / str(label) / "0af3.jpeg", label)
    write_image(tmp_path / "10" / "1b.jpeg", 10)
    with caplog.at_level(logging.WARNING, "absl"):
        source = imagenet_v2(tmp_path)
    assert f"{tmp_path} has 5 of the 1,000 classes of ImageNet v2." in caplog.text
    found = {Path(source.locate(index)).parent.name: source.labels[index] for index in range(6)}
    assert found == {"0": 0, "2": 2, "10": 10, "100": 100, "999": 999}
    assert labels_read(source) == source.labels.tolist()
    assert list(source.class_names) == all_names()
    assert sorted(source.subset([0, 1]).labels.tolist()) == sorted(
        labels_read(source.subset([0, 1]))
    )


@pytest.mark.parametrize("name", ["1000", "n01440764", "007", "-1", "tench"])
def test_other_folders_are_none_of_v2(tmp_path, name):
    write_image(tmp_path / "0" / "0.jpeg")
    write_image(tmp_path / name / "0.jpeg")
    with pytest.raises(
        ValueError, match=f"folders named 0 to 999. .* has others: {name}. .*`imagenet_folder`"
    ):
        imagenet_v2(tmp_path)


def test_folders_of_v2_must_have_images(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        imagenet_v2(tmp_path / "absent")
    with pytest.raises(ValueError, match="has no photos"):
        imagenet_v2(tmp_path)
    (tmp_path / "7").mkdir()
    with pytest.raises(
        ValueError, match="has no photos .* Left out, 1: a class folder without photos .1: 7"
    ):
        imagenet_v2(tmp_path)


def test_wordnet_ids_become_imagenets_classes(tmp_path):
    places = {"n15075141": 999, "n02012849": 134, "n03126707": 517, "n01440764": 0}
    for wordnet_id in places:
        write_image(tmp_path / wordnet_id / f"{wordnet_id}_1.JPEG")
    source = imagenet_folder(tmp_path)
    found = {
        Path(source.locate(index)).parent.name: label
        for index, label in enumerate(labels_read(source))
    }
    assert found == places and sorted(source.labels) == sorted(places.values())
    assert [source.class_names[label] for label in (0, 134, 517, 999)] == [
        "tench",
        "crane",
        "crane",
        "toilet_tissue",
    ]
    assert len(source.class_names) == 1000


def test_wordnet_ids_of_a_source_in_another_order_find_their_classes():
    source = sources.arrays(
        np.zeros((3, 8, 8), np.uint8), np.array([1, 0, 1]), ["n15075141", "n01443537"]
    )
    found = by_wordnet_id(source)
    assert labels_read(found) == found.labels.tolist() == [1, 999, 1]


def test_labels_that_are_known_when_read_stay_so():
    source = sources.fractals(2, images_per_class=2, image_size=8)
    source = dataclasses.replace(source, class_names=("n15075141", "n01443537"))
    found = by_wordnet_id(source)
    assert found.labels is None and labels_read(found) == [999, 1, 999, 1]


def test_unknown_wordnet_ids_are_named(tmp_path):
    # The first is of ImageNet-21k.
    for name in ("n00004475", "n01440764", "cat"):
        write_image(tmp_path / name / "1.png")
    with pytest.raises(
        ValueError,
        match="2 of the 3 classes of .* not among ImageNet's 1000 WordNet ids: cat, n00004475",
    ):
        imagenet_folder(tmp_path)


def test_objectnet_shares_113_classes_with_imagenet():
    """The figures are those of abarbu/objectnet-template-tensorflow,
    imagenet_pytorch_id_to_objectnet_id.json.
    """
    classes = objectnet_classes()
    labels = [label for group in classes.values() for label in group]
    assert len(classes) == 113
    assert len(labels) == len(set(labels)) == 125 and sum(labels) == 85300
    assert min(labels) == 409 and max(labels) == 999
    several = {folder: group for folder, group in classes.items() if len(group) > 1}
    assert several == {
        "alarm_clock": (409, 530),
        "bicycle": (444, 671),
        "chair": (423, 559, 765),
        "helmet": (518, 560),
        "pen": (418, 563, 749),
        "skirt": (601, 655, 689),
        "still_camera": (732, 759),
        "tie": (457, 906),
        "wheel": (479, 694),
    }


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        # ObjectNet's own mappings/objectnet_to_imagenet_1k.json and folder_to_objectnet_label.json.
        ("full_sized_towel", ["bath_towel"]),
        ("hand_towel_or_rag", ["dishrag"]),
        ("drying_rack_for_dishes", ["plate_rack"]),
        ("coffee_french_press", ["espresso_maker"]),
        ("dress_shoe_men", ["Loafer"]),
        ("pop_can", ["pop_bottle"]),
        ("monitor", ["monitor"]),
        ("t-shirt", ["jersey"]),
        ("tv", ["television"]),
        ("watch", ["digital_watch"]),
        ("winter_glove", ["mitten"]),
        ("orange", ["orange"]),
        ("tie", ["bow_tie", "Windsor_tie"]),
        ("still_camera", ["Polaroid_camera", "reflex_camera"]),
        ("pen", ["ballpoint", "fountain_pen", "quill"]),
    ],
)
def test_classes_of_objectnet_have_their_names_in_imagenet(folder, names):
    assert [all_names()[label] for label in objectnet_classes()[folder]] == names


def write_objectnet(root: Path) -> Path:
    write_image(root / "images" / "chair" / "a.png", 765, border=2)  # a rocking chair: right
    # football_helmet; 559, folding_chair, is near
    write_image(root / "images" / "chair" / "b.png", 560, border=2)
    write_image(root / "images" / "banana" / "c.png", 10, border=2)
    write_image(root / "images" / "air_freshener" / "d.png", 954, border=2)  # not in ImageNet
    return root


@pytest.mark.parametrize("inside", ["", "images"])
def test_objectnet_is_measured_without_its_border_and_its_other_classes(tmp_path, inside):
    sets = objectnet(write_objectnet(tmp_path) / inside)
    assert [Path(sets.source.locate(index)).name for index in range(3)] == [
        "c.png",
        "a.png",
        "b.png",
    ]
    assert sets.right == ((954,), (423, 559, 765), (423, 559, 765)) and sets.allowed is None
    assert labels_read(sets.source) == [954, 423, 423] and len(sets.source.class_names) == 1000
    pixels = read_pixels(sets.source, 1)
    assert pixels.shape == (8, 8, 3) and (pixels == (765 % 256, 765 // 256, 0)).all()
    found = label_set_accuracy(nearest_colour(), sets, prefix="objectnet")
    assert found == {
        "objectnet/top1": 1 / 3,
        "objectnet/top5": 2 / 3,
        "objectnet/images": 3,
        "objectnet/excluded": 0,
        "objectnet/unreadable": 0,
    }


def test_answers_can_be_limited_to_the_shared_classes(tmp_path):
    # jackfruit, which ObjectNet does not have
    write_image(tmp_path / "banana" / "1.png", 955, border=2)
    assert label_set_accuracy(nearest_colour(), objectnet(tmp_path))["real/top1"] == 0
    sets = objectnet(tmp_path, shared_only=True)
    assert len(sets.allowed) == 125
    assert label_set_accuracy(nearest_colour(), sets)["real/top1"] == 1


def test_what_is_wrong_with_objectnet_is_said(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        objectnet(tmp_path / "absent")
    with pytest.raises(ValueError, match="has no photos"):
        objectnet(tmp_path)
    write_image(tmp_path / "n01440764" / "1.png")
    with pytest.raises(
        ValueError, match="none of the 113 classes .* such as alarm_clock, .* Received: n01440764"
    ):
        objectnet(tmp_path)
