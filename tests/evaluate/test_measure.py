"""The command `evaluate`: which images are measured on in which order of classes, and what is said
of it.
"""

import csv
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from absl import flags  # noqa: E402

from keras_vit.commands import evaluate  # noqa: E402
from keras_vit.data import sources, transforms  # noqa: E402
from keras_vit.devices import DevicesConfig  # noqa: E402
from keras_vit.evaluate.crop import choose_crop
from keras_vit.evaluate.imagenet_sets import objectnet_classes  # noqa: E402
from keras_vit.evaluate.label_sets import LabelSets  # noqa: E402
from keras_vit.evaluate.measure import (
    _match_published,
    _shorten_names,
    find_test_set,
    measure,
    published_rows,
)  # noqa: E402

pytestmark = pytest.mark.tensorflow

COLORS = {"red": (250, 5, 5), "green": (5, 250, 5), "blue": (5, 5, 250)}


def save(path: Path, color: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, np.full((12, 9, 3), color), scale=False)


@pytest.fixture
def colors(tmp_path: Path) -> Path:
    """Three reds, two greens, one blue; one of the reds is called green."""
    for name, count in (("red", 3), ("green", 2), ("blue", 1)):
        for number in range(count):
            save(tmp_path / "colors" / name / f"{number}.png", COLORS[name])
    save(tmp_path / "colors" / "green" / "wrong.png", COLORS["red"])
    return tmp_path / "colors"


def model_of(path: Path, order: list[str], classes: int = 3) -> Path:
    """A saved model that says which colour is strongest, with its classes in the order that is
    given.
    """
    channels = {"red": 0, "green": 1, "blue": 2}
    kernel = np.zeros((3, classes), np.float32)
    for place, name in enumerate(order):
        kernel[channels[name], place] = 3.0
    images = keras.Input((8, 8, 3))
    head, centred = (
        keras.layers.Dense(classes, name="predictions"),
        keras.layers.Rescaling(1 / 127.5, offset=-1),
    )
    model = keras.Model(images, head(keras.layers.GlobalAveragePooling2D()(centred(images))))
    head.set_weights([kernel, np.zeros(classes, np.float32)])
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    return path


def test_a_report_in_the_folder_of_the_data_is_refused(colors: Path, tmp_path: Path):
    model = model_of(tmp_path / "model.keras", ["blue", "green", "red"])
    for output in (colors, colors / "report"):
        with pytest.raises(ValueError, match="inside the folder of the data, .* another `output`"):
            measure(model, colors, output=output)
    assert sorted(path.name for path in colors.iterdir()) == sorted(COLORS)


def test_it_counts_says_and_writes(colors: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    model = model_of(tmp_path / "model.keras", ["blue", "green", "red"])  # as the folders: by name
    (colors / "blue" / "broken.png").write_bytes(b"no image")
    (colors / "red" / "notes.txt").touch()
    (tmp_path / "report").mkdir()
    record = tmp_path / "report" / "unreadable.txt"
    record.write_text(f"{colors}/red/repaired.png\tof an earlier evaluation\n", encoding="utf-8")
    found = measure(model, colors, output=tmp_path / "report")
    assert found["top1"] == pytest.approx(6 / 7) and (found["images"], found["unreadable"]) == (
        7,
        1,
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "top-1 accuracy 85.71 %" in said and "unreadable 1" in said and "images 7" in said
    # Of the reds all are found, of the greens 2 of 3, and the blue one.
    assert f"mean per-class accuracy {100 * (1 + 2 / 3 + 1) / 3:.2f} %" in said
    assert found["calibration_error"] != pytest.approx(found["mean_per_class"], abs=0.01)
    assert f"expected calibration error {100 * found['calibration_error']:.2f} %" in said
    assert f"loss, nats {found['loss']:.4f}" in said
    assert json.loads((tmp_path / "report" / "results.json").read_text()) == found
    page = (tmp_path / "report" / "report.md").read_text()
    for text in (said, page.partition("## Skipped files")[2]):
        assert "broken.png" in text and "notes.txt" in text and "repaired.png" not in text
    assert "**Accuracy 85.71% on 7 images**" in page and "| green | 3 | 66.7% |" in page
    for picture in ("confusion.png", "calibration.png", "errors.png"):
        assert f"]({picture})" in page and (tmp_path / "report" / picture).stat().st_size > 5000
    with open(tmp_path / "report" / "answers.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["answer"] for row in rows if row["right"] == "0"] == ["red"] and len(rows) == 7


def test_the_classes_of_the_model_decide_the_order(
    colors: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """The folders are sorted by name; the model's classes are not."""
    model = model_of(tmp_path / "model" / "model.keras", ["red", "blue", "green"])
    assert measure(model, colors)["top1"] < 0.5  # nobody told
    (tmp_path / "model" / "classes.txt").write_text("red\nblue\ngreen\n", encoding="utf-8")
    assert measure(model, colors)["top1"] == pytest.approx(6 / 7)
    assert "unreadable" not in capsys.readouterr().out
    for image in (colors / "blue").iterdir():
        image.unlink()
    (colors / "blue").rmdir()  # a test set need not have every class
    assert measure(model, colors)["top1"] == pytest.approx(5 / 6)
    save(colors / "pink" / "1.png", (255, 150, 150))
    with pytest.raises(
        ValueError, match=r"1 of the 3 classes .* not among the 3 classes of the model: pink"
    ):
        measure(model, colors)


def test_the_order_is_said_when_it_is_not_known(
    colors: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    model = model_of(tmp_path / "model" / "model.keras", ["blue", "green", "red"])
    measure(model, colors, output=tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    words = "no classes.txt beside model.keras: the classes of the model were taken to be the "
    for text in (capsys.readouterr().out, page):
        assert f"{words}folders in alphabetical order." in text
    model.with_name("classes.txt").write_text("blue\ngreen\nred\n", encoding="utf-8")
    measure(model, colors, output=tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "classes.txt" not in capsys.readouterr().out + page


def test_classes_of_tensorflow_datasets_are_matched_by_name(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
):
    images = np.array(list(COLORS.values()), np.uint8)[:, None, None]
    data = sources.arrays(images, np.arange(3), [*COLORS], name="colors test")
    monkeypatch.setattr(sources, "tfds", lambda *_: data)
    model = model_of(tmp_path / "model.keras", ["blue", "green", "red"])
    assert measure(model, "tfds:colors:test")["top1"] == pytest.approx(1 / 3)
    assert "taken to be those of colors test, in its order." in capsys.readouterr().out
    model.with_name("classes.txt").write_text("blue\ngreen\nred\n", encoding="utf-8")
    assert measure(model, "tfds:colors:test")["top1"] == 1
    assert "classes.txt" not in capsys.readouterr().out
    model.with_name("classes.txt").write_text("blue\ngreen\nRed\n", encoding="utf-8")
    with pytest.raises(ValueError, match="1 of the 3 classes of colors test .* of the model: red"):
        measure(model, "tfds:colors:test")


def test_names_of_folders_are_found_in_the_file_of_one_line_for_each_class(
    colors: Path, tmp_path: Path
):
    odd = {"red": " red  wine", "green": "gr\néen", "blue": os.fsdecode(b"bl\xfce\t")}
    for name, folder in odd.items():
        (colors / name).rename(colors / folder)
    model = model_of(tmp_path / "model" / "model.keras", ["red", "blue", "green"])
    names = model.with_name("classes.txt")
    names.write_text(" red  wine\nbl\\udcfce\\t\ngr\\néen\n", encoding="utf-8")
    assert measure(model, colors)["top1"] == pytest.approx(6 / 7)
    names.write_text(" red  wine\ngr\\néen\ngr\\néen\n", encoding="utf-8")
    (colors / odd["blue"]).rename(tmp_path / "away")
    with pytest.raises(ValueError, match="contains a name of .* more than once: gr"):
        measure(model, colors)


def test_a_folder_with_a_test_set_is_measured_on_that(colors: Path, tmp_path: Path):
    (tmp_path / "data").mkdir()
    colors.rename(tmp_path / "data" / "test")
    for name, color in COLORS.items():
        save(tmp_path / "data" / "train" / name / "1.png", color)
    assert find_test_set(tmp_path / "data", 3).source.num_examples == 7


def test_wordnet_ids_and_numbers_are_imagenet_s_for_a_model_of_a_thousand(tmp_path: Path):
    for name in ("n01443537", "n01440764"):
        save(tmp_path / "ids" / name / "1.png", (1, 2, 3))
    assert find_test_set(tmp_path / "ids", 1000).source.labels.tolist() == [0, 1]
    # two classes like any others
    assert len(find_test_set(tmp_path / "ids", 2).source.class_names) == 2
    for name in ("10", "9"):
        save(tmp_path / "numbers" / name / "1.png", (1, 2, 3))
    found = find_test_set(tmp_path / "numbers", 1000)
    assert found.source.labels.tolist() == [10, 9] and "ImageNet's order" in found.assumed


def test_the_names_of_a_model_of_a_thousand_come_before_imagenet_s(tmp_path: Path):
    """Fine-tuned on folders 0 to 999, which are sorted as text."""
    for name in ("10", "9"):
        save(tmp_path / "numbers" / name / "1.png", (1, 2, 3))
    names = sorted(map(str, range(1000)))
    found = find_test_set(tmp_path / "numbers", 1000, names=names)
    assert [names[label] for label in found.source.labels] == ["10", "9"] and not found.assumed
    with pytest.raises(ValueError, match="not among the 1000 classes of the model: 10, 9"):
        find_test_set(tmp_path / "numbers", 1000, names=[f"my {name}" for name in names])
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.png", (1, 2, 3))
    (tmp_path / "real.json").write_text("[[10, 9]]")
    found = find_test_set(tmp_path / "val", 1000, names=names, real=tmp_path / "real.json")
    assert [names[label] for label in found.images.right[0]] == ["10", "9"]
    assert found.published == "imagenet_real" and not found.assumed


def test_real_labels_are_measured_with(tmp_path: Path, capsys: pytest.CaptureFixture):
    for number, color in enumerate(COLORS.values(), start=1):
        save(tmp_path / "val" / f"ILSVRC2012_val_{number:08}.png", color)
    (tmp_path / "real.json").write_text("[[0, 7], [2], []]")
    test = find_test_set(tmp_path / "val", 1000, real=tmp_path / "real.json")
    assert isinstance(test.images, LabelSets) and test.published == "imagenet_real"
    model = model_of(tmp_path / "ViT_B16.keras", ["red", "green", "blue"], classes=1000)
    found = measure(
        model, tmp_path / "val", real=tmp_path / "real.json", output=tmp_path / "report"
    )
    assert (found["real/top1"], found["real/images"], found["real/excluded"]) == (0.5, 2, 1)
    said = " ".join(capsys.readouterr().out.split())
    assert "top-1 accuracy 50.00 %" in said and "excluded, without a correct class 1" in said
    assert "pre-trained on imagenet21k 88.35 % (Table 5, 384 px)" in said
    assert "88.35 % (Table 5, 384 px)" in (tmp_path / "report" / "report.md").read_text()
    (tmp_path / "val" / "ILSVRC2012_val_00000003.png").unlink()
    assert find_test_set(tmp_path / "val", 1000, real=tmp_path / "real.json").published == ""
    # A damaged image is named; one that is not counted is not read.
    save(tmp_path / "val" / "ILSVRC2012_val_00000003.png", COLORS["red"])
    for number in (2, 3):
        (tmp_path / "val" / f"ILSVRC2012_val_{number:08}.png").write_bytes(b"no image")
    found = measure(
        model, tmp_path / "val", real=tmp_path / "real.json", output=tmp_path / "report"
    )
    assert (found["real/top1"], found["real/images"], found["real/unreadable"]) == (1.0, 1, 1)
    printed = capsys.readouterr().out.partition("Left out, 1: ")[2]
    skipped = (tmp_path / "report" / "report.md").read_text().partition("## Skipped files")[2]
    for text in (printed, skipped):
        assert "ILSVRC2012_val_00000002.png" in text and "00000003" not in text


def test_objectnet_names_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture):
    for name in (*objectnet_classes(), "air_freshener"):
        save(tmp_path / "images" / name / "1.png", COLORS["red"])
    assert find_test_set(tmp_path, 1000, is_objectnet=True).published == "objectnet"
    (tmp_path / "images" / "banana" / "2.png").write_bytes(b"no image")
    model = model_of(tmp_path / "model.keras", ["red"], classes=1000)
    found = measure(model, tmp_path, is_objectnet=True)
    assert (found["objectnet/images"], found["objectnet/unreadable"]) == (113, 1)
    assert "Left out, 1: cannot identify image file (1: 2.png)" in capsys.readouterr().out
    for number in (1, 2):
        (tmp_path / "images" / "banana" / f"{number}.png").unlink()
    (tmp_path / "images" / "banana").rmdir()
    assert find_test_set(tmp_path, 1000, is_objectnet=True).published == ""


def test_published_numbers_are_those_of_the_model_and_the_data():
    assert [
        row.accuracy for row in published_rows("ViT_L16", "pets", 384) if row.table == "Table 5"
    ] == [
        *(93.64, 94.73, 97.11),
    ]
    assert published_rows("ViT_Ti16", "pets", 384) == published_rows("ViT_L16", "", 384) == []


@pytest.mark.parametrize("text", ["tfds:cifar10", "tfds::test", "tfds:cifar10:"])
def test_a_data_set_of_tfds_is_named_with_its_split(text: str):
    with pytest.raises(ValueError, match="must have the form tfds:NAME:SPLIT"):
        find_test_set(text, 10)


def test_the_number_of_classes_must_fit(colors: Path, tmp_path: Path):
    model = model_of(tmp_path / "model.keras", ["red"], classes=5)
    with pytest.raises(ValueError, match="outputs 5 values for each image; .*colors has 3 classes"):
        measure(model, colors)


def test_with_strict_what_cannot_be_read_ends_it(colors: Path, tmp_path: Path):
    model = model_of(tmp_path / "model.keras", ["blue", "green", "red"])
    (colors / "blue" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken\.png cannot be read: "):
        measure(model, colors, strict=True)


def test_an_empty_folder_is_an_error(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no photos .*one folder for each class"):
        measure(model_of(tmp_path / "model.keras", ["red"]), tmp_path / "empty")


def test_a_test_set_may_have_one_class_and_lie_beside_nothing(tmp_path: Path):
    (tmp_path / "m").mkdir()
    model = model_of(tmp_path / "m" / "model.keras", ["red", "green", "blue"])
    (tmp_path / "m" / "classes.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    save(tmp_path / "data" / "val" / "green" / "1.png", COLORS["green"])
    assert measure(model, tmp_path / "data")["top1"] == 1.0


def test_published_numbers_need_the_whole_test_set(tmp_path: Path):
    for name in ("cat", "dog"):
        save(tmp_path / "pets" / name / "1.png", (1, 2, 3))
    assert find_test_set(tmp_path / "pets", 2).published == ""


@pytest.mark.parametrize(
    # As TensorFlow Datasets counts the splits that the papers measure on.
    ("dataset", "count"),
    [
        ("imagenet", 50_000),
        ("cifar10", 10_000),
        ("cifar100", 10_000),
        ("pets", 3669),
        ("flowers102", 6149),
    ],
)
def test_the_test_sets_of_the_papers_are_known_by_their_size(dataset: str, count: int):
    for number, published in ((count, dataset), (count - 1, ""), (count + 1, "")):
        source = sources.arrays(np.zeros((number, 1, 1), np.uint8), np.zeros(number, int), ["one"])
        assert _match_published(source, dataset).published == published
    assert _match_published(source, "").published == ""


@pytest.mark.parametrize(
    ("name", "count", "dataset"),
    [
        ("imagenet2012", 50_000, "imagenet"),
        ("cifar10", 10_000, "cifar10"),
        ("cifar100:3.0.2", 10_000, "cifar100"),
        ("oxford_iiit_pet", 3669, "pets"),
        ("oxford_flowers102", 6149, "flowers102"),
        ("mnist", 10_000, ""),
    ],
)
def test_data_sets_of_tfds_are_put_beside_their_own_published_results(
    name: str, count: int, dataset: str, monkeypatch
):
    whole = sources.arrays(np.zeros((count, 1, 1), np.uint8), np.zeros(count, int), ["one"])
    monkeypatch.setattr(sources, "tfds", lambda *_: whole)
    assert find_test_set(f"tfds:{name}:test", 10).published == dataset


def test_a_central_crop_does_not_see_the_border(tmp_path: Path):
    for name, frame in (("red", "green"), ("green", "red")):
        image = np.full((40, 60, 3), COLORS[frame])
        image[10:30, 20:40] = COLORS[name]
        path = tmp_path / "framed" / name / "0.png"
        path.parent.mkdir(parents=True)
        keras.utils.save_img(path, image, scale=False)
    model = model_of(tmp_path / "model.keras", ["green", "red"], classes=2)
    assert measure(model, tmp_path / "framed")["top1"] == 0
    assert measure(model, tmp_path / "framed", eval_crop="central:0.5")["top1"] == 1


def test_the_published_crop_is_that_of_the_weights(colors: Path, tmp_path: Path):
    assert choose_crop("published", "DeiT_B16", "in1k") == "central:0.9"
    assert choose_crop("resize_crop", "DeiT_B16", "in1k") == "resize_crop"
    model = model_of(tmp_path / "model.keras", ["red", "green", "blue"])
    for name, weights in ((model, None), ("ViT_B16", None), ("ViT_B16", "none")):
        with pytest.raises(ValueError, match="No published evaluation of .* is known. Choose"):
            measure(name, colors, weights=weights, eval_crop="published")
    with pytest.raises(ValueError, match="Received: 'middle'"):
        measure(model, colors, eval_crop="middle")


def test_the_help_names_every_crop():
    values = flags.FlagValues()
    evaluate.define(values)
    for policy in (*transforms._EVAL_CROPS, "central:SHARE", "published"):
        assert f" {policy}: " in values["crop"].help


def test_contradictions_are_refused(colors: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="Choose one test set"):
        find_test_set(colors, 1000, real="real.json", is_objectnet=True)
    with pytest.raises(ValueError, match="omit `precision`"):
        measure(tmp_path / "model.keras", colors, devices=DevicesConfig(precision="mixed_bfloat16"))


class Seen(Exception):
    """Ends an evaluation before anything is computed."""


def test_the_model_is_built_as_asked_and_its_class_names_lie_beside_the_weights(
    colors: Path, tmp_path: Path, monkeypatch
):
    weights = tmp_path / "mine" / "weights.npz"
    weights.parent.mkdir()
    weights.touch()
    (weights.parent / "classes.txt").write_text("red\ngreen\nblue\n")
    network = keras.models.load_model(model_of(tmp_path / "m.keras", ["red", "green", "blue"]))
    built = []
    module = sys.modules[measure.__module__]
    monkeypatch.setattr(module.classifier, "build", lambda *all_: built.append(all_) or network)
    found = measure("ViT_Ti16", colors, weights=weights, image_size=(8, 8), pixels="0..1")
    assert built == [("ViT_Ti16", weights, (8, 8), "0..1")]
    assert found["top1"] == pytest.approx(6 / 7)
    seen = []

    def answer(*_, **named):
        seen.append(named)
        raise Seen

    monkeypatch.setattr(module, "answer", answer)
    monkeypatch.setattr(module, "choose_crop", lambda *all_: "|".join(map(str, all_)))
    options = {"image_size": (8, 8), "batch_size": 3}
    with pytest.raises(Seen):
        measure("DeiT_B16", colors, weights=weights, eval_crop="published", strict=True, **options)
    named = seen[0]
    assert named.pop("devices").num_replicas and named.pop("unreadable").strict
    assert named == {**options, "eval_crop": f"published|DeiT_B16|{weights}"}


def test_label_sets_are_measured_as_asked(tmp_path: Path, monkeypatch):
    network = keras.models.load_model(model_of(tmp_path / "m.keras", ["red", "green", "blue"]))
    module, seen = sys.modules[measure.__module__], []

    def label_set_accuracy(*_, **named):
        seen.append(named)
        raise Seen

    images = sources.arrays(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(1, int), ["a", "b", "c"])
    sets = LabelSets(source=images.subset([0, 0]), right=((), (0,)))
    monkeypatch.setattr(module.classifier, "build", lambda *_: network)
    monkeypatch.setattr(module.classifier, "names_for", lambda *_: ())
    monkeypatch.setattr(module, "find_test_set", lambda *_, **__: module.TestSet(images=sets))
    monkeypatch.setattr(module, "label_set_accuracy", label_set_accuracy)
    options = {"eval_crop": "resize_shorter", "batch_size": 3, "image_size": (8, 8)}
    for is_objectnet, prefix in ((False, "real"), (True, "objectnet")):
        with pytest.raises(Seen):
            measure("ViT_Ti16", "x", strict=True, is_objectnet=is_objectnet, **options)
        named = seen.pop()
        assert named.pop("devices").num_replicas
        unreadable = named.pop("unreadable")
        assert unreadable.strict and unreadable.source.num_examples == 1  # the counted one
        assert named == {**options, "prefix": prefix}


def test_counts_of_zero_are_left_out_of_a_table_and_an_accuracy_of_zero_is_not():
    numbers = {"real/accuracy": 0.0, "real/excluded": 0, "unreadable": 0}
    assert _shorten_names(numbers) == {"accuracy": 0.0}
    assert _shorten_names({**numbers, "unreadable": 2})["unreadable"] == 2
