"""What an exported model says of itself."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import metadata
from keras_vit.export.examples import Examples
from keras_vit.export.metadata import describe, labels_of, read_facts, variables_sha256, write_facts

JUDGED = Examples(images=np.zeros((2, 32, 48, 3), np.float32), labels=None, name="two")


def _model(**options) -> keras.Model:
    return keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), classes=3, **options)


def test_the_facts_are_ready_for_json_and_say_what_goes_in():
    facts = json.loads(
        json.dumps(
            describe(
                _model(),
                accepted={"max_error": 1e-4},
                judged=JUDGED,
                eval_crop="resize_shorter",
                identity={"weights": "mine.npz"},
            )
        )
    )
    assert facts["weights"] == "mine.npz" and facts["accepted"] == {"max_error": 1e-4}
    assert facts["input"]["image_size"] == [32, 48]
    assert facts["input"]["range"] == [-1, 1]
    assert "8/7" in facts["input"]["resize_in_words"]
    assert describe(_model(include_preprocessing=True), accepted={}, judged=JUDGED)["input"][
        "range"
    ] == [0, 255]


def test_the_hash_is_that_of_the_weights_and_of_nothing_else():
    model, other = _model(), _model()
    assert variables_sha256(model) != variables_sha256(other)
    other.set_weights(model.get_weights())
    assert variables_sha256(model) == variables_sha256(other)
    last = other.weights[-1]
    last.assign(np.nextafter(keras.ops.convert_to_numpy(last), np.float32(1)))
    assert variables_sha256(model) != variables_sha256(other)


def test_names_of_classes():
    assert labels_of(2, ["a\ncat", "my  dog"]) == [r"a\ncat", "my  dog"]  # a name is one line
    assert labels_of(1000)[281] == "tabby"
    assert labels_of(2) == ["class 0", "class 1"]
    with pytest.raises(ValueError, match="has 2 classes. Received: 3 names"):
        labels_of(2, ["a", "b", "c"])


def test_blank_names_become_numbers_and_what_is_no_text_becomes_escapes():
    assert labels_of(3, ["", " \t", "dog"]) == ["class 0", "class 1", "dog"]
    assert labels_of(3, ["a\udce9", "b\u2028c", "d\x1be"]) == ["a\\udce9", "b\\u2028c", "d\\x1be"]


def test_a_path_that_is_no_utf_8_comes_back_from_the_facts(tmp_path: Path):
    facts = describe(
        _model(),
        accepted={"max_error": 1.0},
        judged=JUDGED,
        identity={"judged_on": "photos\udce9\u2028"},
    )
    write_facts(tmp_path, facts)
    assert read_facts(tmp_path / "model.onnx")["judged_on"] == "photos\udce9\u2028"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None])
def test_only_finite_numbers_are_numbers(value):
    assert not metadata._is_number(value)
    assert metadata._is_number(1) and metadata._is_number(0.5)
