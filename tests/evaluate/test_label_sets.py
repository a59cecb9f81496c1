"""Several right classes for an image, or none: against counts by hand and the formula of ReaL's
authors.
"""

import dataclasses
import importlib

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.data import sources  # noqa: E402
from keras_vit.data.reading import Unreadable  # noqa: E402
from keras_vit.evaluate.label_sets import LabelSets, best_ranks, label_set_accuracy  # noqa: E402

pytestmark = pytest.mark.tensorflow

NAMES = [f"class {number}" for number in range(20)]


def images_of(shades: list[int]) -> sources.Source:
    images = np.tile(np.array(shades, np.uint8)[:, None, None], (1, 8, 8))
    return sources.arrays(images, np.zeros(len(shades), int), NAMES, name="shades")


def nearest_shade(num_classes: int = 20) -> keras.Model:
    """Prefers the class whose number is nearest to the shade p: -(p - c)² is p·2c - c² but for what
    all c share.
    """
    pixels = keras.Input((8, 8, 3))
    levels = keras.layers.Rescaling(127.5, 127.5)(pixels)
    dense = keras.layers.Dense(num_classes)
    model = keras.Model(pixels, dense(keras.layers.GlobalAveragePooling2D()(levels)))
    classes = np.arange(num_classes)
    # the three channels are equal
    dense.set_weights([np.outer([1, 0, 0], 2 * classes), -(classes**2)])
    return model


SHADES = [3, 12, 5, 9, 18, 0]
RIGHT = ((3,), (4, 12), (), (7, 19), (1, 2), ())


def test_an_image_is_counted_by_its_set_and_left_out_without_one():
    found = label_set_accuracy(
        nearest_shade(), LabelSets(source=images_of(SHADES), right=RIGHT), batch_size=3
    )
    # 3 and 12 are right at once; 7 is among the five nearest to 9; 1 and 2 are far from 18.
    assert found == {
        "real/top1": 2 / 4,
        "real/top5": 3 / 4,
        "real/images": 4,
        "real/excluded": 2,
        "real/unreadable": 0,
    }


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_top_1_is_what_the_authors_of_real_compute(batch_size):
    generator = np.random.default_rng(0)
    shades = generator.integers(0, 20, 37).tolist()
    right = tuple(
        tuple(generator.choice(20, size=generator.integers(0, 9), replace=False).tolist())
        for _ in range(37)
    )
    found = label_set_accuracy(
        nearest_shade(),
        LabelSets(source=images_of(shades), right=right),
        batch_size=batch_size,
        prefix="x",
    )
    # google-research/reassessed-imagenet, README.md, with the shade for the prediction.
    is_correct = [prediction in right[i] for i, prediction in enumerate(shades) if right[i]]
    assert found["x/top1"] == pytest.approx(np.mean(is_correct))
    assert (found["x/images"], found["x/excluded"]) == (len(is_correct), 37 - len(is_correct))
    assert found["x/top1"] <= found["x/top5"] <= 1


def test_only_allowed_classes_are_answers():
    sets = LabelSets(source=images_of([3, 3]), right=((5,), (0,)), allowed=(0, 5, 6))
    found = label_set_accuracy(nearest_shade(), sets, prefix="part")
    assert (found["part/top1"], found["part/top5"]) == (0.5, 1.0)
    found = label_set_accuracy(
        nearest_shade(), LabelSets(source=sets.source, right=sets.right), prefix="all"
    )
    assert (found["all/top1"], found["all/top5"]) == (0.0, 0.5)


def test_ranks_are_those_of_a_list_sorted_by_hand():
    values = np.array([[0.0, 3.0, 1.0, 2.0]] * 4 + [[5.0, 5.0, 7.0, 5.0]] * 3)
    right = [(1,), (0, 2), (3, 0), (), (0,), (1,), (3, 1)]
    assert best_ranks(values, right).tolist() == [0, 2, 1, 4, 1, 2, 2]
    # Without class 1: 3, 2, 0. Without class 1: 2, 0, 3.
    assert best_ranks(values, right, allowed=(3, 0, 2)).tolist() == [3, 1, 0, 3, 1, 3, 2]


def test_ranks_do_not_depend_on_scale_or_on_how_rows_are_put_together():
    values = np.random.default_rng(1).normal(size=(30, 50)).astype("float32")
    right = [(row, row + 7) for row in range(30)]
    ranks = best_ranks(values, right)
    assert (best_ranks(np.exp(values / 3), right) == ranks).all()
    assert [
        best_ranks(values[row : row + 1], right[row : row + 1])[0] for row in range(30)
    ] == ranks.tolist()
    alone = np.array([best_ranks(values, [(labels[side],) for labels in right]) for side in (0, 1)])
    assert (alone.min(axis=0) == ranks).all()


def test_of_many_equal_values_the_lowest_class_comes_first():
    values = np.random.default_rng(2).integers(0, 4, (20, 1000)).astype("float32")
    right = [(50 * row + 3,) for row in range(20)]
    by_hand = [
        sum(
            other > row[label] or (other == row[label] and place < label)
            for place, other in enumerate(row)
        )
        for row, (label,) in zip(values, right, strict=True)
    ]
    assert best_ranks(values, right).tolist() == by_hand


def test_ranks_of_nan_are_refused():
    with pytest.raises(ValueError, match="The model outputs NaN"):
        best_ranks(np.array([[0.0, np.nan]]), [(0,)])


def test_an_unreadable_image_is_left_out_and_counted(tmp_path):
    (tmp_path / "class 0").mkdir()
    for number, shade in enumerate([2, 3, 4]):
        keras.utils.save_img(
            tmp_path / "class 0" / f"{number}.png", np.full((8, 8, 3), shade), scale=False
        )
    (tmp_path / "class 0" / "1.png").write_bytes(b"no image")
    folder = sources.image_folder(tmp_path)
    sets = LabelSets(
        source=dataclasses.replace(folder, class_names=tuple(NAMES)), right=((2,), (3,), (3,))
    )
    found = label_set_accuracy(nearest_shade(), sets)
    assert (found["real/top1"], found["real/images"], found["real/unreadable"]) == (0.5, 2, 1)
    with pytest.raises(ValueError, match=r"1\.png cannot be read: cannot identify image file"):
        label_set_accuracy(nearest_shade(), sets, strict=True)
    unreadable = Unreadable(sets.counted)
    assert label_set_accuracy(nearest_shade(), sets, unreadable=unreadable) == found
    assert unreadable.places == [str(tmp_path / "class 0" / "1.png")]


def test_a_model_with_other_classes_is_refused():
    sets = LabelSets(source=images_of([1]), right=((1,),))
    with pytest.raises(
        ValueError, match="shades has 20 classes, .* It outputs for each image: 10. Use"
    ):
        label_set_accuracy(nearest_shade(10), sets)
    pixels = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="It outputs for each image: 8 x 8 x 3"):
        label_set_accuracy(keras.Model(pixels, keras.layers.Activation("relu")(pixels)), sets)


def test_there_must_be_something_to_measure():
    with pytest.raises(ValueError, match="No image of shades has a correct class"):
        label_set_accuracy(nearest_shade(), LabelSets(source=images_of([1, 2]), right=((), ())))


@pytest.mark.parametrize(
    ("right", "allowed", "message"),
    [
        (((1,),), None, "shades has 2 images. Received: 1 sets"),
        (((1,), (20, -1)), None, "are 0 to 19. Received: -1, 20"),
        (((1,), ()), (1, 99), "are 0 to 19. Received: 99"),
        (((1,), (2, 3)), (1, 3), "must be in `allowed`. Missing: 2"),
    ],
)
def test_sets_that_do_not_fit_are_refused(right, allowed, message):
    with pytest.raises(ValueError, match=message):
        LabelSets(source=images_of([1, 2]), right=right, allowed=allowed)


# The package has functions of these names.
accuracy, label_sets = (
    importlib.import_module(f"keras_vit.evaluate.{name}") for name in ("accuracy", "label_sets")
)


class Seen(Exception):
    """Ends a measurement before anything is computed."""


@pytest.mark.parametrize("measure", [accuracy.accuracy, label_set_accuracy])
def test_images_are_read_as_asked(measure, monkeypatch):
    seen = []

    def outputs(*_, **named):
        seen.append(named)
        raise Seen

    for module in (accuracy, label_sets):
        monkeypatch.setattr(module, "outputs", outputs)
    images = images_of(SHADES)
    data = images if measure is accuracy.accuracy else LabelSets(source=images, right=RIGHT)
    options = {"image_size": 16, "eval_crop": "resize_shorter", "batch_size": 3}
    with pytest.raises(Seen):
        measure(nearest_shade(), data, strict=True, progress=False, **options)
    named = seen[0]
    assert named["unreadable"].strict
    assert {**options, "progress": False}.items() <= named.items()
