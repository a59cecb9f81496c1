"""Classes of a test set in the order of the model: each image keeps its class, by name."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate.class_order import relabel, relabel_sets  # noqa: E402
from keras_vit.evaluate.imagenet_sets import by_wordnet_id, objectnet_classes  # noqa: E402
from keras_vit.evaluate.label_sets import LabelSets  # noqa: E402

pytestmark = pytest.mark.tensorflow


def images_of(names: list[str], labels: list[int]) -> sources.Source:
    pixels = np.zeros((len(labels), 2, 2), np.uint8)
    return sources.arrays(pixels, np.array(labels), names, name="mine")


def ids() -> list[str]:
    """The WordNet ids of ImageNet, which are sorted."""
    table = Path(__file__).parents[2] / "keras_vit" / "labels" / "imagenet2012.tsv"
    return [line.split("\t")[0] for line in table.read_text(encoding="utf-8").splitlines()]


def readable() -> tuple[str, ...]:
    return by_wordnet_id(images_of(["n01440764"], [0])).class_names


def labels_read(source: sources.Source) -> list[int]:
    return [int(source.read(index)[1]) for index in range(source.num_examples)]


def test_images_keep_their_class_by_its_name():
    found = relabel(
        images_of(["red", "green", "blue"], [0, 1, 2, 1]), ["blue", "pink", "green", "red"]
    )
    assert labels_read(found) == found.labels.tolist() == [3, 2, 0, 2]
    assert found.class_names == ("blue", "pink", "green", "red")


def test_numbers_are_names_before_they_are_imagenet_s():
    """An own model that was fine-tuned on folders 0 to 999, which are sorted as text."""
    names = sorted(map(str, range(1000)))
    found = relabel(images_of(["10", "100", "2"], [0, 1, 2]), names)
    assert [names[label] for label in found.labels] == ["10", "100", "2"]
    assert found.labels.tolist() != [10, 100, 2]


@pytest.mark.parametrize("order", ["its own", "reversed"])
def test_imagenet_s_classes_are_matched_in_other_words(order: str):
    step = -1 if order == "reversed" else 1
    given = {"ids": ids()[::step], "numbers": [*map(str, range(1000))][::step]}
    if order == "its own":
        given["readable"] = [*readable()]
    photos = {
        "ids": images_of(["n01443537", "n01440764"], [0, 1]),
        "numbers": images_of(["1", "0"], [0, 1]),
    }
    expected = [1, 0] if order == "its own" else [998, 999]
    for names in given.values():
        for source in photos.values():
            found = relabel(source, names)
            assert labels_read(found) == found.labels.tolist() == expected
            assert found.class_names == tuple(names)


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (["cat", "dog"], ["dog", "owl"]),
        (["n01440764"], [f"class {number}" for number in range(1000)]),
        (["0", "1"], [f"class {number}" for number in range(1000)]),
        (["007"], [*map(str, range(1000))]),
        (["n01440764"], [*reversed(readable())]),  # a name occurs twice, so the order is unknown
    ],
)
def test_classes_that_are_not_the_model_s_are_an_error(classes: list[str], names: list[str]):
    with pytest.raises(
        ValueError, match="of the . classes of mine are not among the .*move classes"
    ):
        relabel(images_of(classes, [0]), names)


def test_sets_of_correct_classes_are_put_in_the_order_of_the_model():
    chair = objectnet_classes()["chair"]
    imagenet = by_wordnet_id(images_of([ids()[7], ids()[423]], [0, 1]))
    sets = LabelSets(source=imagenet, right=((7,), chair), allowed=(7, *chair), is_complete=True)
    names = ids()[500:] + ids()[:500]
    found = relabel_sets(sets, names)
    assert [[names[label] for label in labels] for labels in found.right] == [
        [ids()[label] for label in labels] for labels in sets.right
    ]
    assert [names[label] for label in found.allowed] == [ids()[label] for label in sets.allowed]
    assert [names[label] for label in labels_read(found.source)] == [ids()[7], ids()[423]]
    assert found.source.class_names == tuple(names) and found.is_complete
    assert relabel_sets(sets, ids()) is relabel_sets(sets, readable()) is sets
    with pytest.raises(ValueError, match="mine has ImageNet's 1000 classes. .* are not: cat, dog"):
        relabel_sets(sets, ["cat", "dog"])
