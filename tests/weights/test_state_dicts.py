"""Training checkpoints of PyTorch: the weights that are read, and the warning about other weights."""

from pathlib import Path

import keras
import numpy as np
import pytest
from torch_files import save

import keras_vit
from keras_vit.weights import dialects, files, state_dicts


def _make_weights(value):
    return {"norm.weight": np.full(3, value, "float32"), "head.bias": np.full(2, value, "float32")}


PLAIN, AVERAGED = _make_weights(1), _make_weights(2)
METRIC = np.array(71.0, "float32")
OPTIMIZER = {"state": {0: {"step": np.array(3.0), "exp_avg": np.zeros(3, "float32")}}}


@pytest.fixture
def warned(monkeypatch):
    """The warnings, as text."""
    said = []
    monkeypatch.setattr(
        state_dicts.logging, "warning", lambda text, *values: said.append(text % values)
    )
    return said


def _read(tmp_path, content):
    save(tmp_path / "last.pth", content)
    return files.read(tmp_path / "last.pth").arrays


def _check(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.once
@pytest.mark.parametrize("plain", ["state_dict", "model", "module"])
@pytest.mark.parametrize("averaged", ["state_dict_ema", "model_ema", "ema"])
def test_averaged_weights_are_preferred_and_a_warning_says_so(tmp_path, plain, averaged, warned):
    _check(_read(tmp_path, {"epoch": 3, plain: PLAIN, averaged: AVERAGED}), AVERAGED)
    (warning,) = warned
    assert f"those under '{averaged}' are read, not '{plain}'" in warning


@pytest.mark.once
@pytest.mark.parametrize("averaged", ["state_dict_ema", "model_ema", "ema"])
def test_averaged_weights_alone_need_no_warning(tmp_path, averaged, warned):
    _check(_read(tmp_path, {"step": 3, averaged: AVERAGED, "model": None}), AVERAGED)
    _check(_read(tmp_path, {"model": PLAIN, averaged: None}), PLAIN)
    assert not warned


@pytest.mark.once
@pytest.mark.parametrize(
    "order",
    [
        ["state_dict_ema", "model_ema", "state_dict"],
        ["model_ema", "state_dict", "model"],
        ["state_dict", "module", "model"],
        ["model", "teacher"],
        ["state_dict_ema", "teacher"],
        ["teacher", "encoder"],
        ["target_encoder", "encoder"],
    ],
)
def test_the_order_is_that_of_timm(tmp_path, order):
    weights = {key: _make_weights(number) for number, key in enumerate(order)}
    _check(_read(tmp_path, dict(reversed(weights.items()))), weights[order[0]])


@pytest.mark.once
def test_the_published_set_of_two_needs_no_warning(tmp_path, warned):
    _check(_read(tmp_path, {"student": PLAIN, "teacher": AVERAGED}), AVERAGED)
    _check(_read(tmp_path, {"encoder": PLAIN, "target_encoder": AVERAGED}), AVERAGED)
    assert not warned
    _check(_read(tmp_path, {"model": PLAIN, "teacher": AVERAGED}), PLAIN)
    assert "those under 'model' are read, not 'teacher'" in warned[0]


@pytest.mark.once
def test_averages_without_names_are_not_read_and_a_warning_says_so(tmp_path, warned):
    """Those of `torch_ema` are a list; those of MMEngine are the weights of the last step."""
    _check(_read(tmp_path, {"model": PLAIN, "ema": {"decay": 0.9, "shadow": [1]}}), PLAIN)
    _check(_read(tmp_path, {"state_dict": PLAIN, "ema_state_dict": AVERAGED}), PLAIN)
    assert "those under 'model' are read, not 'ema'" in warned[0]
    assert "those under 'state_dict' are read, not 'ema_state_dict'" in warned[1]


@pytest.mark.once
@pytest.mark.parametrize("key", ["state_dict", "model", "module", "model_ema", "teacher"])
def test_metrics_may_be_tensors(tmp_path, key):
    """Such as the accuracy of the examples of PyTorch for ImageNet."""
    content = {"epoch": 3, "arch": "vit", key: PLAIN, "best_acc1": METRIC, "optimizer": OPTIMIZER}
    _check(_read(tmp_path, content), PLAIN)


@pytest.mark.once
@pytest.mark.parametrize("extra", [{}, {"best_acc1": METRIC}], ids=["", "metric"])
def test_a_state_dict_inside_of_another_key(tmp_path, extra, warned):
    _check(_read(tmp_path, {"model": {"state_dict": PLAIN, "cfg": "x"}, **extra}), PLAIN)
    _check(_read(tmp_path, {"teacher": {"module": PLAIN, "step": METRIC}, **extra}), PLAIN)
    assert not warned
    inside = {"model": {"state_dict": PLAIN, "state_dict_ema": AVERAGED}, **extra}
    _check(_read(tmp_path, inside), AVERAGED)
    assert len(warned) == 1


@pytest.mark.once
def test_modules_with_the_name_of_a_key_are_no_places(tmp_path):
    flat = {"model.norm.bias": np.ones(3, "float32"), "model.head.bias": np.ones(2, "float32")}
    _check(_read(tmp_path, flat), flat)
    nested = {"cls_token": np.ones(3, "float32"), "encoder": {"norm": {"bias": np.ones(3)}}}
    expected = {"cls_token": nested["cls_token"], "encoder.norm.bias": np.ones(3)}
    _check(_read(tmp_path, nested), expected)
    _check(_read(tmp_path, {"model": nested}), expected)


@pytest.mark.once
def test_nested_averages_alone_are_read(tmp_path, warned):
    nested = {"norm": {"bias": np.ones(3, "float32")}}
    _check(_read(tmp_path, {"ema": nested}), {"norm.bias": np.ones(3)})
    assert not warned
    _check(_read(tmp_path, {"ema": {"decay": METRIC}, "model": nested}), {"norm.bias": np.ones(3)})
    assert len(warned) == 1


@pytest.mark.once
def test_keys_without_tensors_are_no_places(tmp_path):
    _check(_read(tmp_path, {"model": {"width": 192}, "teacher": PLAIN}), PLAIN)
    with pytest.raises(ValueError, match="it holds no state dict, only model, ema"):
        _read(tmp_path, {"model": {"width": 192}, "ema": {"decay": 0.9}})


@pytest.mark.once
def test_dictionaries_that_contain_themselves_come_to_an_end():
    content: dict = {"a": {}}
    content["model"] = content["a"]["state_dict"] = content
    assert state_dicts.find_weights(Path("x.pth"), content, np.ndarray) is content


def test_a_model_is_loaded_with_its_averaged_weights(tiny_vit, tmp_path, warned):
    """Of the checkpoint of a training with timm, whose metric is a tensor."""
    build = keras_vit.application(tiny_vit)
    model = build(weights=None, input_shape=(32, 32, 3), classes=5)
    for weight in model.weights:
        weight.assign(keras.random.normal(weight.shape))
    keras_vit.save_checkpoint(model, tmp_path / "averaged.safetensors")
    averaged = files.read(tmp_path / "averaged.safetensors").arrays
    plain = {f"module.{name}": np.zeros_like(array) for name, array in averaged.items()}
    content = {"state_dict": plain, "state_dict_ema": averaged, "metric": METRIC}
    save(tmp_path / "last.pth", content | {"optimizer": OPTIMIZER})
    again = build(weights=tmp_path / "last.pth", classes=5)
    for before, after in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(before, after, err_msg=before.path)
    assert dialects.detect(averaged) == "timm" and len(warned) == 1
