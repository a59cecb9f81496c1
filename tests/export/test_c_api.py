"""Every signature through TensorFlow's C API, in a process without Keras and without TensorFlow's
Python.

TensorFlow Serving loads and runs a model with the same C++ code.
"""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_vit
from keras_vit.analyze import attention_maps
from keras_vit.export.signatures import signatures
from keras_vit.variants import VIT_VARIANTS

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).with_name("c_api.py")
SIZE = (32, 48)
RNG = np.random.default_rng(0)
LEVELS = RNG.integers(0, 256, (3, *SIZE, 3)).astype(np.uint8)
PIXELS = LEVELS / np.float32(127.5) - np.float32(1)
NAMES = ["tench", "goldfish", "été", "a b", "ß", "six", "last"]
FILES = [
    tf.io.encode_png(LEVELS[0]).numpy(),
    b"",
    b"\xff\xd8\xff\xe0",
    tf.io.encode_png(LEVELS[1]).numpy(),
    b"junk",
]


def build() -> keras.Model:
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
    )
    model = keras_vit.application(row)(
        weights=None, input_shape=(*SIZE, 3), classes=len(NAMES), classifier_activation=None
    )
    kernel = model.get_layer("predictions").kernel
    kernel.assign(RNG.normal(0, 0.3, kernel.shape))
    return model


def answers_of(folder: Path, asked: list[tuple[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """What the signatures give, in a process of their own."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    known = saved.meta_graphs[0].signature_def
    runs = []
    for name, given in asked:
        (taken,) = known[name].inputs.values()
        outputs = {key: tensor.name for key, tensor in known[name].outputs.items()}
        runs.append({"inputs": {taken.name: given}, "outputs": outputs})
    request, answers = folder.parent / "request.pickle", folder.parent / "answers.pickle"
    request.write_bytes(
        pickle.dumps({"folder": str(folder), "answers": str(answers), "runs": runs})
    )
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(request)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return pickle.loads(answers.read_bytes())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, Path]:
    folder, model = tmp_path_factory.mktemp("c_api"), build()
    file = folder / "classes.txt"
    file.write_text("\n".join([*NAMES, ""]), encoding="utf-8")
    holder, asked = signatures(model, image_size=SIZE, class_file=file, attention=True)
    tf.saved_model.save(holder, str(folder / "model"), signatures=asked)
    file.unlink()
    return model, folder / "model"


def test_every_signature_gives_what_the_model_gives(exported):
    model, folder = exported
    asked = {
        "serving_default": np.array(FILES, object),
        "predict": PIXELS,
        "predict_uint8": LEVELS,
        "features": PIXELS,
        "attention": PIXELS,
    }
    assert {*tf.saved_model.load(str(folder)).signatures} == {*asked}
    files, floats, levels, features, attention = answers_of(folder, [*asked.items()])
    logits = keras.ops.convert_to_numpy(model(PIXELS))
    np.testing.assert_allclose(floats["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(levels["logits"], logits, atol=1e-5)
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)(PIXELS)
    np.testing.assert_allclose(features["tokens"], tokens, atol=1e-5)
    np.testing.assert_allclose(features["pre_logits"], tokens[:, 0], atol=1e-5)
    expected = np.moveaxis(attention_maps(model, PIXELS), 0, 1)
    np.testing.assert_allclose(attention["attention"], expected, atol=1e-5)

    probabilities = np.exp(logits[:2]) / np.exp(logits[:2]).sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1)[:, :5]
    assert files["status"].tolist() == [b"ok", b"empty", b"damaged", b"ok", b"unsupported"]
    assert (
        files["class_ids"][[0, 3]].tolist() == best.tolist()
        and (files["class_ids"][[1, 2, 4]] == -1).all()
    )
    assert files["labels"][[0, 3]].tolist() == [
        [NAMES[index].encode() for index in row] for row in best
    ]
    np.testing.assert_allclose(
        files["scores"][[0, 3]], np.take_along_axis(probabilities, best, axis=1), atol=1e-5
    )


def test_a_batch_may_be_empty_or_hold_one(exported):
    _, folder = exported
    cases = [
        (name, given[:count])
        for count in (0, 1)
        for name, given in [
            ("serving_default", np.array(FILES, object)),
            ("predict", PIXELS),
            ("predict_uint8", LEVELS),
            ("features", PIXELS),
            ("attention", PIXELS),
        ]
    ]
    for (_, given), answer in zip(cases, answers_of(folder, cases), strict=True):
        assert all(len(values) == len(given) for values in answer.values())
