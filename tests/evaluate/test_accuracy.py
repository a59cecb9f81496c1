"""Accuracy: every image counted once, and every number as worked out by hand or by a plain loop."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from counting_processes import counted, start  # noqa: E402
from free_ports import free_ports  # noqa: E402

from keras_vit.data import sources  # noqa: E402
from keras_vit.evaluate.accuracy import Answers, accuracy, answer, judge, log_probabilities  # noqa: E402
from keras_vit.evaluate.outputs import outputs  # noqa: E402
from keras_vit.pixels import declare  # noqa: E402

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parent / "count_answers.py"


def classifier(num_classes: int = 7, size: int = 8, activation: str | None = None) -> keras.Model:
    pixels = keras.Input((size, size, 3))
    kernel = keras.initializers.RandomNormal(stddev=0.3, seed=1)
    head = keras.layers.Dense(
        num_classes, kernel_initializer=kernel, activation=activation, name="predictions"
    )
    model = keras.Model(pixels, head(keras.layers.Flatten()(pixels)))
    declare(model, "-1..1")
    return model


def noise(count: int, num_classes: int = 7) -> sources.Source:
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
    return sources.arrays(
        images, rng.integers(0, num_classes, count), list("abcdefghijk"[:num_classes]), name="noise"
    )


def by_hand(model: keras.Model, source: sources.Source) -> dict[str, float]:
    """One image at a time, in plain Python."""
    top1 = top5 = loss = 0.0
    for _, image, label in source.examples().as_numpy_iterator():
        logits = model.predict(image[None] / np.float32(127.5) - np.float32(1), verbose=0)[
            0
        ].astype(float)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        order = sorted(range(len(logits)), key=lambda number: -logits[number])
        top1 += order[0] == label
        top5 += label in order[:5]
        loss -= np.log(probabilities[label])
    total = source.num_examples
    return {
        "top1": top1 / total,
        "top5": top5 / total,
        "loss": loss / total,
        "images": total,
        "unreadable": 0,
    }


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 33]
)
def test_every_image_is_counted_once_for_any_batch(count: int):
    model, source = classifier(), noise(count)
    expected = by_hand(model, source)
    for batch_size in (1, 7, 128):
        found = accuracy(model, source, batch_size=batch_size)
        assert {name: found[name] for name in ("top1", "top5", "images", "unreadable")} == {
            name: expected[name] for name in ("top1", "top5", "images", "unreadable")
        }
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_a_softmax_gives_the_numbers_of_its_logits():
    logits, softmax = classifier(), classifier(activation="softmax")
    found, same = accuracy(logits, noise(20)), accuracy(softmax, noise(20))
    assert found == pytest.approx(same, rel=1e-5)


@pytest.fixture(scope="module")
def on_one_device() -> dict:
    return counted(start(SCRIPT, "one"))[0]


def check(found: dict, expected: dict) -> None:
    """Counts and shares to the bit; what is rounded, to float32's rounding."""
    for name, numbers in expected.items():
        exact = {key for key in numbers if key not in ("loss", "calibration_error", "feature_sum")}
        assert {key: found[name][key] for key in exact} == {key: numbers[key] for key in exact}
        assert found[name] == pytest.approx(numbers, rel=1e-5)


@pytest.mark.slow
def test_two_replicas_count_what_one_counts(on_one_device):
    # of 33, one cannot be read
    assert {numbers["images"] for numbers in on_one_device.values()} == {1, 3, 32}
    check(counted(start(SCRIPT, "mirrored"))[0], on_one_device)


@pytest.mark.slow
def test_each_of_two_workers_gets_all_the_answers(on_one_device):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    configs = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    for found in counted(
        *(start(SCRIPT, "multi_worker", TF_CONFIG=json.dumps(config)) for config in configs)
    ):
        check(found, on_one_device)


@pytest.mark.slow
def test_a_mesh_of_jax_counts_what_tensorflow_counts(on_one_device):
    flags = "--xla_force_host_platform_device_count=2"
    check(counted(start(SCRIPT, "mirrored", backend="jax", XLA_FLAGS=flags))[0], on_one_device)


LOGS = np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2], [0.25, 0.25, 0.5]])


def test_ranks_and_losses_are_those_worked_out_by_hand():
    answers, shares, ranks, losses = judge(LOGS, np.array([2, 2, 1, 1]))
    assert answers.tolist() == [0, 2, 0, 2]
    np.testing.assert_allclose(shares, [0.5, 0.8, 0.4, 0.5])
    # of equals, the lowest class comes first, as in the answers
    assert ranks.tolist() == [2, 0, 1, 2]
    np.testing.assert_allclose(losses, -np.log([0.2, 0.8, 0.4, 0.25]))


def answers_of(labels, answers, shares) -> Answers:
    labels, answers = np.array(labels), np.array(answers)
    return Answers(
        source=sources.arrays(np.zeros((len(labels), 2, 2), np.uint8), labels, ["x", "y", "z"]),
        indices=np.arange(len(labels)),
        labels=labels,
        answers=answers,
        shares=np.array(shares),
        ranks=(labels != answers).astype(int),
        losses=np.zeros(len(labels)),
    )


def test_confusion_and_classes_are_those_counted_by_hand():
    found = answers_of([0, 0, 0, 1, 1], [0, 0, 1, 0, 1], [0.5] * 5)
    assert found.confusion().tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(found.per_class(), [2 / 3, 1 / 2, np.nan])
    assert found.numbers()["mean_per_class"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.accuracy == 0.6


def test_the_calibration_error_is_the_one_worked_out_by_hand():
    # In halves: 0.4 and 0.5 are in the first (it ends at 0.5, with it), right once of two; 0.9 and
    # 1.0, both right.
    found = answers_of([0, 0, 0, 0], [0, 1, 0, 0], [0.4, 0.5, 0.9, 1.0])
    confidence, right, counts = found.calibration(2)
    np.testing.assert_allclose(confidence, [0.45, 0.95])
    np.testing.assert_allclose(right, [0.5, 1.0])
    assert counts.tolist() == [2, 2]
    assert found.calibration_error(2) == pytest.approx((2 * 0.05 + 2 * 0.05) / 4)


def test_the_calibration_error_is_that_of_fifteen_bins():
    """As in arXiv:1706.04599, section 5: 0.61 and 0.66 are in the bin that ends at 2/3."""
    found = answers_of([0, 0, 0], [0, 1, 0], [0.61, 0.66, 0.69])
    first, second = abs(1 / 2 - (0.61 + 0.66) / 2), abs(1 - 0.69)
    expected = (2 * first + second) / 3
    assert found.calibration_error() == pytest.approx(expected)
    assert found.numbers()["calibration_error"] == pytest.approx(expected)


def test_of_five_classes_top5_says_nothing_and_is_left_out():
    assert "top5" not in accuracy(classifier(5), noise(9, 5))
    assert "top5" in accuracy(classifier(6), noise(9, 6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcdefg":
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = np.random.default_rng(ord(name) + number).integers(0, 256, (9, 5, 3))
            keras.utils.save_img(tmp_path / name / f"{number}.png", pixels, scale=False)
    return tmp_path


def test_what_cannot_be_read_is_named_and_counted_unless_it_must_not_be(folder: Path):
    (folder / "c" / "1.png").write_bytes(b"no image")
    source = sources.image_folder(folder)
    found = answer(classifier(), source, batch_size=4)
    assert found.unreadable == (str(folder / "c" / "1.png"),)
    assert found.numbers()["images"] == 20 and found.numbers()["unreadable"] == 1
    assert 7 not in found.indices and found.confusion().sum(axis=1).tolist() == [
        3,
        3,
        2,
        3,
        3,
        3,
        3,
    ]
    with pytest.raises(ValueError, match=r"1\.png cannot be read: "):
        accuracy(classifier(), source, strict=True)


def test_a_source_without_a_readable_image_is_an_error(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="2 of the 2 images of .* could not be read"):
        accuracy(classifier(2), sources.image_folder(tmp_path))


def test_other_classes_than_those_of_the_source_are_an_error():
    with pytest.raises(ValueError, match="outputs 6 values for each image; noise has 7 classes"):
        accuracy(classifier(6), noise(3))


def test_a_model_that_gives_no_numbers_is_an_error():
    model = classifier()
    model.get_layer("predictions").set_weights([np.full((192, 7), np.nan), np.zeros(7)])
    with pytest.raises(ValueError, match="outputs NaN or infinity"):
        accuracy(model, noise(3))
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="outputs NaN or infinity: row 1 of a batch"):
            log_probabilities(model, np.array([[1.0, 2.0], [value, 0.0]]))


def test_every_option_reaches_the_outputs(monkeypatch):
    seen = []

    def none(*_, **named):
        seen.append(named)
        return iter(())

    monkeypatch.setattr(sys.modules[accuracy.__module__], "outputs", none)
    options = {
        "image_size": (8, 8),
        "eval_crop": "resize_shorter",
        "batch_size": 3,
        "devices": object(),
        "progress": False,
    }
    with pytest.raises(ValueError, match="No image of noise could be read"):
        accuracy(classifier(), noise(3), strict=True, **options)
    assert seen[0].pop("unreadable").strict and seen == [options]


def test_sigmoids_are_scores_and_their_loss_is_the_sum_over_the_classes():
    """The witness is Keras, whose binary cross-entropy is the mean over the classes."""
    model, source = classifier(activation="sigmoid"), noise(20)
    found = answer(model, source)
    given = np.concatenate([part.values for part in outputs(model, source)])
    np.testing.assert_array_equal(found.answers, given.argmax(axis=1))
    np.testing.assert_allclose(found.shares, given.max(axis=1), rtol=1e-6)
    right = np.eye(7)[found.labels]
    losses = 7 * keras.ops.convert_to_numpy(keras.losses.binary_crossentropy(right, given))
    np.testing.assert_allclose(found.losses, losses, rtol=1e-4)
    assert found.accuracy == np.mean(given.argmax(axis=1) == found.labels)


def test_saturated_sigmoids_have_a_finite_loss():
    logs = log_probabilities(classifier(2, activation="sigmoid"), np.array([[0.0, 1.0]]))
    losses = judge(logs, np.array([0]), independent=True)[3]
    # the least positive number of float32 takes the place of 0, in both classes
    assert losses == pytest.approx([-2 * np.log(2.0**-149)])


def test_a_single_output_is_an_error_that_says_how_to_give_two():
    with pytest.raises(
        ValueError, match=r"outputs one number for each image.*Concatenate\(\)\(\[1 - p, p\]\)"
    ):
        accuracy(classifier(num_classes=1, activation="sigmoid"), noise(3, num_classes=2))
    with pytest.raises(ValueError, match="outputs one number for each image"):
        log_probabilities(classifier(num_classes=1), np.zeros((1, 1)))


def test_another_activation_is_an_error_also_within_another_model():
    images = keras.Input((8, 8, 3))
    outer = keras.Model(images, classifier(activation="tanh")(images))
    with pytest.raises(ValueError, match="must output logits, a softmax or sigmoids.*ends in tanh"):
        log_probabilities(outer, np.zeros((1, 7)))


def test_pixels_reach_the_model_once_scaled():
    images = keras.Input((8, 8, 3))
    plain = keras.Model(images, keras.layers.Flatten()(images))
    with pytest.raises(
        ValueError, match="is unknown. Pass the range of its training with --pixels="
    ):
        next(outputs(plain, noise(3)))
    declare(plain, "-1..1")
    values = next(outputs(plain, noise(3))).values
    pixels = np.stack([image for _, image, _ in noise(3).examples().as_numpy_iterator()])
    np.testing.assert_allclose(values, (pixels / 127.5 - 1).reshape(3, -1), atol=2e-7)
    declare(plain, "0..1")
    np.testing.assert_allclose(
        next(outputs(plain, noise(3))).values, (pixels / 255.0).reshape(3, -1), atol=2e-7
    )
    images = keras.Input((8, 8, 3))
    for scale in (lambda x: keras.ops.divide(x, 255.0), keras.layers.Rescaling(1 / 255)):
        scaled = keras.Model(images, keras.layers.Flatten()(scale(images)))
        values = next(outputs(scaled, noise(3))).values
        np.testing.assert_allclose(values, (pixels / 255.0).reshape(3, -1), atol=2e-7)


@pytest.mark.parametrize(("shape", "size"), [((None, None, 3), (6, 10)), ((6, 10, 3), None)])
def test_images_may_be_rectangular_and_of_any_size(shape: tuple, size):
    images = keras.Input(shape)
    model = keras.Model(images, keras.layers.ZeroPadding2D(1)(images))
    declare(model, "-1..1")
    assert next(outputs(model, noise(3), image_size=size)).values.shape == (3, 8, 12, 3)


def test_a_size_that_the_model_does_not_take_is_an_error():
    with pytest.raises(ValueError, match="takes images of 8 x 8 pixels. Received: image_size=16"):
        next(outputs(classifier(), noise(3), image_size=16))
    images = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="of any size: pass `image_size`"):
        next(outputs(keras.Model(images, keras.layers.ReLU()(images)), noise(3)))
    with pytest.raises(ValueError, match="gives squares"):
        wide = keras.Input((6, 10, 3))
        next(
            outputs(
                keras.Model(wide, keras.layers.ReLU()(wide)), noise(3), eval_crop="resize_shorter"
            )
        )


@pytest.mark.parametrize("start", [0, 1, 10, 32, 33])
@pytest.mark.sampled(3)
def test_outputs_can_start_anywhere(start: int):
    parts = list(outputs(classifier(), noise(33), batch_size=8, start=start))
    assert [int(i) for part in parts for i in part.indices] == list(range(start, 33))
    whole = np.concatenate([part.values for part in outputs(classifier(), noise(33), batch_size=8)])
    if parts:
        np.testing.assert_allclose(
            np.concatenate([part.values for part in parts]), whole[start:], rtol=1e-5, atol=1e-6
        )


def test_a_softmax_counts_as_one_wherever_it_stands():
    logits = classifier()
    images, expected = (
        keras.Input((8, 8, 3)),
        accuracy(classifier(activation="softmax"), noise(20))["loss"],
    )
    layer = keras.Model(logits.input, keras.layers.Softmax()(logits.output))
    operation = keras.Model(logits.input, keras.ops.softmax(logits.output))
    outer = keras.Model(images, layer(images))
    declare(outer, "-1..1")
    for model in (layer, operation, outer):
        assert accuracy(model, noise(20))["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_model_that_is_rebuilt_in_place_is_not_asked_as_it_was():
    model = classifier()
    before = accuracy(model, noise(20))["loss"]
    head = model.get_layer("predictions")
    head.set_weights([2 * value for value in head.get_weights()])
    values = accuracy(model, noise(20))["loss"]
    head.enable_lora(2)
    head.lora_kernel_b.assign(np.random.default_rng(0).normal(size=head.lora_kernel_b.shape))
    assert len({before, values, accuracy(model, noise(20))["loss"]}) == 3
    expected = by_hand(model, noise(20))["loss"]
    assert accuracy(model, noise(20))["loss"] == pytest.approx(expected, rel=1e-5)


def test_an_image_without_a_label_is_an_error():
    source = noise(6)
    unlabelled = sources.Source(
        name="no labels",
        class_names=source.class_names,
        num_examples=6,
        read=lambda index: (source.read(index)[0], -keras.ops.ones((), "int64")),
        locate=source.locate,
    )
    with pytest.raises(ValueError, match=r"noise\[0\] has the label -1; the classes are 0 to 6"):
        accuracy(classifier(), unlabelled)
    with pytest.raises(ValueError, match="has the label -1"):
        accuracy(classifier(), unlabelled.relabelled(range(7), source.class_names))


def test_what_is_no_functional_model_of_images_is_an_error():
    with pytest.raises(ValueError, match="must be functional"):
        accuracy(
            keras.Sequential(
                [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(7)]
            ),
            noise(3),
        )
    grey = keras.Input((8, 8, 1))
    with pytest.raises(ValueError, match=r"must take images \(B, H, W, 3\)"):
        accuracy(keras.Model(grey, keras.layers.Dense(7)(keras.layers.Flatten()(grey))), noise(3))
