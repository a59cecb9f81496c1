"""What an exported model can be asked, after it was saved and loaded again. The witness is the
Keras model.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.analyze import attention_maps
from keras_vit.data.transforms import eval_crop
from keras_vit.export.metadata import labels_of
from keras_vit.export.signatures import _load_class_names, output_name, signatures
from keras_vit.pixels import declare
from keras_vit.variants import FAMILY_VARIANTS, RESNET_VARIANTS, VIT_VARIANTS

pytestmark = pytest.mark.tensorflow

SIZE = (32, 48)
CLASSES = 7
NAMES = ["tench", "goldfish", "great white shark", "été", "a  b", "ß", "last"]
RNG = np.random.default_rng(0)
LEVELS = RNG.integers(0, 256, (3, *SIZE, 3)).astype(np.uint8)
PIXELS = LEVELS / np.float32(127.5) - np.float32(1)

Build = Callable[..., keras.Model]
Ask = Callable[..., dict[str, np.ndarray]]


def png(levels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()


def with_answers(model: keras.Model) -> keras.Model:
    """A new head is all zeros: every class would be the best."""
    if "predictions" in [layer.name for layer in model.layers]:
        kernel, bias = model.get_layer("predictions").weights
        kernel.assign(RNG.normal(0, 0.3, kernel.shape))
        bias.assign(RNG.normal(0, 0.3, bias.shape))
    return model


def asking(functions: Mapping[str, Callable], specs: Mapping[str, tf.TensorSpec]) -> Ask:
    def ask(name: str, given) -> dict[str, np.ndarray]:
        outputs = functions[name](**{specs[name].name: tf.constant(given, specs[name].dtype)})
        return {key: values.numpy() for key, values in outputs.items()}

    return ask


def class_file(folder: Path, names: list[str] = NAMES) -> Path:
    file = folder / "classes.txt"
    file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return file


def build_tiny(row, **options) -> keras.Model:
    given = {
        "input_shape": (*SIZE, 3),
        "classes": CLASSES,
        "classifier_activation": None,
        **options,
    }
    return with_answers(keras_vit.application(row)(weights=None, **given))


@pytest.fixture
def build(tiny_vit) -> Build:
    return lambda row=tiny_vit, **options: build_tiny(row, **options)


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Ask]:
    """Gives a function that asks the signatures of a model, which are not saved: that takes a
    while.
    """

    def trace(model: keras.Model, names: list[str] = NAMES, **options) -> Ask:
        file = class_file(tmp_path, names)
        _, asked = signatures(model, **{"image_size": SIZE, "class_file": file, **options})
        return asking(
            asked, {name: function.input_signature[0] for name, function in asked.items()}
        )

    return trace


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, Ask, Path]:
    """A classifier; what asks it after it was saved and loaded; where it is."""
    folder = tmp_path_factory.mktemp("saved")
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_dim=32,
    )
    model = build_tiny(row)
    file = class_file(folder)
    holder, asked = signatures(model, image_size=SIZE, class_file=file, attention=True, top=3)
    tf.saved_model.save(holder, str(folder / "model"), signatures=asked)
    file.unlink()  # what it needs is in the folder
    loaded = tf.saved_model.load(str(folder / "model"))
    inputs = {
        name: function.structured_input_signature[1] for name, function in loaded.signatures.items()
    }
    model.loaded = loaded  # whoever holds the signatures alone loses the variables
    specs = {name: next(iter(given.values())) for name, given in inputs.items()}
    return model, asking(loaded.signatures, specs), folder / "model"


def close(given: np.ndarray, expected) -> None:
    expected = keras.ops.convert_to_numpy(expected)
    assert given.dtype == np.float32 and given.shape == expected.shape
    np.testing.assert_allclose(given, expected, atol=1e-5)


# ── a classifier ──


def test_every_signature_gives_what_the_model_gives(saved):
    model, ask, _ = saved
    expected = keras.ops.convert_to_numpy(model(PIXELS))
    assert np.ptp(expected, axis=0).max() > 0.01  # images have different answers
    close(ask("predict", PIXELS)["logits"], expected)
    close(ask("predict_uint8", LEVELS)["logits"], expected)
    close(ask("attention", PIXELS)["attention"], np.moveaxis(attention_maps(model, PIXELS), 0, 1))
    features = ask("features", PIXELS)
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)(PIXELS)
    close(features["tokens"], tokens)
    close(features["pre_logits"], tokens[:, 0])
    assert features["tokens"].shape == (3, 1 + 4 * 6, 16)


def test_files_have_names_scores_and_a_status(saved):
    model, ask, _ = saved
    answer = ask("serving_default", [png(LEVELS[0]), b"junk", png(LEVELS[1]), b""])
    assert answer["status"].tolist() == [b"ok", b"unsupported", b"ok", b"empty"]
    logits = keras.ops.convert_to_numpy(model(PIXELS[:2]))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1)[:, :3]
    assert answer["class_ids"].dtype == np.int32
    assert answer["class_ids"].tolist() == [best[0].tolist(), [-1] * 3, best[1].tolist(), [-1] * 3]
    close(answer["scores"][[0, 2]], np.take_along_axis(probabilities, best, axis=1))
    names = [[NAMES[index].encode() for index in row] for row in best]
    assert answer["labels"].tolist() == [names[0], [b""] * 3, names[1], [b""] * 3]
    assert not answer["scores"][[1, 3]].any()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_may_have_any_size(saved, count: int):
    _, ask, _ = saved
    assert ask("predict", PIXELS[:count])["logits"].shape == (count, CLASSES)
    assert ask("predict_uint8", LEVELS[:count])["logits"].shape == (count, CLASSES)
    assert ask("features", PIXELS[:count])["tokens"].shape == (count, 25, 16)
    assert ask("attention", PIXELS[:count])["attention"].shape == (count, 2, 2, 25, 25)
    answer = ask("serving_default", [png(image) for image in LEVELS[:count]])
    assert {name: values.shape for name, values in answer.items()} == {
        "labels": (count, 3),
        "scores": (count, 3),
        "class_ids": (count, 3),
        "status": (count,),
    }


def test_no_python_is_left_in_the_graph(saved):
    graph = (saved[2] / "saved_model.pb").read_bytes()
    assert b"PyFunc" not in graph and b"PyCall" not in graph
    assert b"DecodeJpeg" in graph  # it would be seen


def test_each_variable_is_there_once(saved):
    model, _, folder = saved
    stored = tf.train.list_variables(str(folder / "variables" / "variables"))
    sizes = [np.prod(shape) for name, shape in stored if "VARIABLE_VALUE" in name]
    assert sum(sizes) == model.count_params()


def test_no_more_classes_are_named_than_there_are(build: Build, traced):
    answer = traced(build(), top=99)("serving_default", [png(LEVELS[0])])
    assert sorted(answer["class_ids"][0]) == [*range(CLASSES)]
    np.testing.assert_allclose(answer["scores"].sum(), 1, atol=1e-6)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_of_the_model_are_scores_as_they_are(build: Build, traced, activation: str):
    model = build(classifier_activation=activation)
    ask = traced(model)
    expected = keras.ops.convert_to_numpy(model(PIXELS))
    close(ask("predict", PIXELS)["probabilities"], expected)
    close(ask("serving_default", [png(LEVELS[0])])["scores"][0], np.sort(expected[0])[::-1][:5])


def test_heads_of_imagenet_21k_have_one_sigmoid_for_each_class(build: Build, traced):
    model = build(classes=21843)
    answer = traced(model, names=[str(index) for index in range(21843)])(
        "serving_default", [png(LEVELS[0])]
    )
    logits = np.sort(keras.ops.convert_to_numpy(model(PIXELS))[0])[::-1][:5]
    close(answer["scores"][0], 1 / (1 + np.exp(-logits)))


def test_files_are_cropped_and_limited_as_was_asked(build: Build, traced):
    """Of a wide photo a square in the middle is left. A file with more pixels is not read."""
    model = build(input_shape=(32, 32, 3))
    ask = traced(
        model, image_size=(32, 32), eval_crop="resize_shorter", max_pixels=37 * 60, top=CLASSES
    )
    wide = RNG.integers(0, 256, (37, 60, 3)).astype(np.uint8)
    answer = ask("serving_default", [png(wide), png(np.pad(wide, ((0, 0), (0, 1), (0, 0))))])
    assert answer["status"].tolist() == [b"ok", b"too_large"]
    cropped = wide
    for transform in eval_crop("resize_shorter", (32, 32)):
        cropped = transform(cropped, tf.constant([0, 0]))
    logits = model(np.asarray(cropped, np.float32)[None] / 127.5 - 1)
    scores = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
    close(answer["scores"][0], np.sort(scores)[::-1])


# ── other models ──


def test_a_model_without_a_head_gives_features_for_files(build: Build, traced):
    model = build(include_top=False, pooling="token")
    ask = traced(model)
    expected = keras.ops.convert_to_numpy(model(PIXELS))
    close(ask("predict", PIXELS)["features"], expected)
    answer = ask("serving_default", [b"", png(LEVELS[2])])
    assert answer["status"].tolist() == [b"empty", b"ok"] and {*answer} == {"features", "status"}
    close(answer["features"][1], expected[2])
    assert not answer["features"][0].any()


def test_a_model_that_gives_tokens_has_no_pre_logits(build: Build, traced):
    model = build(include_top=False)
    answer = traced(model)("features", PIXELS)
    assert {*answer} == {"tokens"}
    close(answer["tokens"], model(PIXELS))


@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1"])
def test_the_tokens_of_a_resnet_are_its_map(
    build: Build, traced, tiny_resnet, tmp_path: Path, name: str
):
    model = build(tiny_resnet(RESNET_VARIANTS[name]))
    answer = traced(model)("features", PIXELS)
    close(answer["pre_logits"], answer["tokens"].mean(axis=(1, 2)))
    close(
        answer["pre_logits"] @ model.get_layer("predictions").kernel.numpy(),
        model(PIXELS) - model.weights[-1],
    )
    with pytest.raises(ValueError, match="no attention between patches"):
        signatures(model, image_size=SIZE, class_file=class_file(tmp_path), attention=True)


@pytest.mark.slow
def test_a_hybrid_and_attention_pooling_are_exported_too(build: Build, traced, tiny_vit):
    stem = replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1, 1))
    model = build(replace(tiny_vit, stem=stem, patch_size=1), classifier="map")
    ask = traced(model, attention=True)
    close(ask("predict_uint8", LEVELS)["logits"], model(PIXELS))
    assert ask("features", PIXELS)["pre_logits"].shape == (3, 16)
    # oneDNN gives convolutions of no images the shape of their input.
    assert ask("predict_uint8", LEVELS[:0])["logits"].shape == (0, CLASSES)
    assert (
        ask("features", PIXELS[:0])["tokens"].shape[0] == 0
        and ask("attention", PIXELS[:0])["attention"].shape[0] == 0
    )
    assert ask("serving_default", [])["labels"].shape == (0, 5)


def test_a_model_that_scales_pixels_is_given_levels(build: Build, traced):
    model = build(include_preprocessing=True)
    ask = traced(model)
    expected = keras.ops.convert_to_numpy(model(LEVELS.astype("float32")))
    close(ask("predict", LEVELS)["logits"], expected)
    close(ask("predict_uint8", LEVELS)["logits"], expected)
    assert ask("serving_default", [png(LEVELS[0])])["class_ids"][0, 0] == expected[0].argmax()


# ── other sizes ──


def test_on_request_images_of_any_size_are_resized_in_the_graph(build: Build, traced):
    model = build()
    ask = traced(model, any_size=True, attention=True)
    large = RNG.integers(0, 256, (2, 50, 41, 3)).astype(np.uint8)
    floats = RNG.uniform(-1, 1, (2, 50, 41, 3)).astype("float32")
    resized = keras.ops.image.resize(floats, SIZE, interpolation="bilinear", antialias=False)
    close(ask("predict", floats)["logits"], model(resized))
    assert ask("attention", floats)["attention"].shape == (2, 1, 2, 25, 25)
    close(ask("predict", PIXELS)["logits"], model(PIXELS))
    # A picture has the same answer as its file.
    logits = ask("predict_uint8", large)["logits"]
    answer = ask("serving_default", [png(image) for image in large])
    close(
        answer["scores"],
        np.sort(keras.ops.convert_to_numpy(keras.ops.softmax(logits)))[:, ::-1][:, :5],
    )


def test_a_model_of_any_size_stays_one(build: Build, traced):
    model = build(input_shape=(None, None, 3))
    ask = traced(model, attention=True)
    for height, width in [(32, 48), (16, 24)]:
        images = RNG.uniform(-1, 1, (2, height, width, 3)).astype("float32")
        close(ask("predict", images)["logits"], model(images))
        assert ask("features", images)["tokens"].shape == (2, 1 + height * width // 64, 16)
        assert ask("attention", images)["attention"].shape[-1] == 1 + height * width // 64
    answer = ask("serving_default", [png(np.zeros((99, 7, 3), np.uint8)), png(LEVELS[0])])
    assert answer["status"].tolist() == [b"ok"] * 2
    assert answer["class_ids"][1, 0] == keras.ops.convert_to_numpy(model(PIXELS))[0].argmax()


# ── what a model is, and what it is not ──


def test_the_end_of_a_model_is_known(build: Build):
    logits = build()
    assert output_name(logits) == "logits"
    assert output_name(build(classifier_activation="softmax")) == "probabilities"
    assert output_name(build(include_top=False, pooling="avg")) == "features"
    assert (
        output_name(keras.Model(logits.input, keras.layers.Softmax()(logits.output)))
        == "probabilities"
    )
    assert (
        output_name(keras.Model(logits.input, keras.ops.softmax(logits.output))) == "probabilities"
    )
    assert (
        output_name(keras.Model(logits.input, keras.ops.sigmoid(logits.output))) == "probabilities"
    )
    assert (
        output_name(keras.Model(logits.input, logits.get_layer("predictions").input)) == "features"
    )


def test_the_mean_of_two_classifiers_is_served_as_it_is(build: Build, traced):
    """A softmax of probabilities would make them all alike."""
    one, other = (build(classifier_activation="softmax", name=name) for name in "ab")
    images = keras.Input(one.input_shape[1:])
    model = keras.Model(images, keras.layers.Average()([one(images), other(images)]))
    declare(model, "-1..1")
    expected = np.sort(keras.ops.convert_to_numpy(model(PIXELS))[0])[::-1][:5]
    close(traced(model)("serving_default", [png(LEVELS[0])])["scores"][0], expected)


def test_a_model_with_another_end_is_refused(build: Build):
    with pytest.raises(ValueError, match="must output logits, a softmax or sigmoids.*ends in tanh"):
        output_name(build(classifier_activation="tanh"))


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_number_for_each_image_is_refused_as_by_other_commands(build: Build, activation):
    features = build(include_top=False, pooling="avg")
    one = keras.layers.Dense(1, activation, dtype="float32")
    images = keras.Input(features.input_shape[1:])
    nested = keras.Model(images, one(features(images)))
    for model in (nested, keras.Sequential([features, keras.layers.Dropout(0.1), one])):
        with pytest.raises(ValueError, match=r"one number for each image.*Concatenate\(\)"):
            output_name(model)
    score = nested.output
    pair = [1 - score, score] if activation else [0 * score, score]
    both = keras.Model(images, keras.layers.Concatenate()(pair))
    assert output_name(both) == ("probabilities" if activation else "logits")


def test_a_head_needs_names(build: Build):
    with pytest.raises(ValueError, match="The model has a head: pass `class_file`"):
        signatures(build(), image_size=SIZE)


def test_a_graph_reads_whatever_names_the_classes_were_given(tmp_path: Path):
    labels = labels_of(4, ["cat", "", " \u2028", "d\udce9"])
    (tmp_path / "classes.txt").write_text("\n".join([*labels, ""]), encoding="utf-8")
    read = _load_class_names(tmp_path / "classes.txt").lookup(tf.range(4, dtype=tf.int64)).numpy()
    assert [name.decode() for name in read] == labels == ["cat", "class 1", "class 2", "d\\udce9"]


def test_a_model_that_normalizes_behind_the_pooling_gives_its_tokens(build: Build, traced):
    """Those of the last block, as of a fine-tuned MAE; their mean, normalized, is read by the head."""
    row = replace(
        FAMILY_VARIANTS["MAE_B16"],
        **{"patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32},
    )
    model = build(row)
    answer = traced(model)("features", PIXELS)
    assert answer["tokens"].shape == (3, 1 + 4 * 6, 16)
    mean = answer["tokens"][:, 1:].mean(axis=1)
    close(answer["pre_logits"], model.get_layer("pooled_norm")(mean))
    without = build(row, include_top=False, pooling="avg")
    assert {*traced(without)("features", PIXELS)} == {"pre_logits", "tokens"}
