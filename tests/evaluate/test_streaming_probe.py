"""The probe by batches: the optimum of the probe in memory, on either backend, in memory that does
not grow.
"""

import inspect
import json
import logging
import os
import sys
import tracemalloc
import warnings

import keras
import numpy as np
import pytest
import warm

pytest.importorskip("tensorflow")  # not for this module: its neighbours read data with it

from keras_vit.evaluate import labelled, probe  # noqa: E402
from keras_vit.evaluate.probe import linear_probe  # noqa: E402
from keras_vit.evaluate.streaming_probe import streaming_probe  # noqa: E402

# the package gives the function under this name
module = sys.modules["keras_vit.evaluate.streaming_probe"]


def clouds(num_classes=4, num_train=600, width=10):
    """Features that depend on one another, with scales and offsets of their own; float32."""
    draw = np.random.default_rng(0)
    centres, mixture = (
        draw.normal(size=(num_classes, width)),
        np.eye(width) + 0.2 * draw.normal(size=(width, width)),
    )
    scale, offset = np.exp(draw.normal(size=width)), 10 * draw.normal(size=width)
    labels, test_labels = np.arange(num_train) % num_classes, draw.integers(0, num_classes, 1000)
    train, test = (
        (
            (centres[these] + draw.normal(size=(len(these), width))) @ mixture * scale + offset
        ).astype(np.float32)
        for these in (labels, test_labels)
    )
    return train, labels, test, test_labels


def streamed(*arrays, num_steps=500, **options):
    return streaming_probe(*arrays, num_steps=num_steps, progress=False, **options)


def assert_same_optimum(found, expected, tolerance):
    assert np.abs(found.kernel - expected.kernel).max() < tolerance * np.abs(expected.kernel).max()
    assert np.abs(found.bias - expected.bias).max() < tolerance * np.abs(expected.bias).max()
    assert abs(found.accuracy - expected.accuracy) <= 0.005


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("regularization", [30.0, 1000.0])
@pytest.mark.sampled(2)
def test_the_optimum_is_that_of_the_probe_in_memory(num_classes, regularization):
    arrays = clouds(num_classes)
    found = streamed(*arrays, regularizations=(regularization,), num_steps=1000)
    assert found.converged
    assert_same_optimum(
        found, linear_probe(*arrays, regularizations=(regularization,)), tolerance=0.01
    )


def test_batches_smaller_than_the_training_set_lead_there_too(monkeypatch):
    monkeypatch.setattr(module, "_BATCH_SIZE", 100)
    arrays = clouds()
    found = streamed(*arrays, regularizations=(10.0,), num_steps=1000)
    assert_same_optimum(found, linear_probe(*arrays, regularizations=(10.0,)), tolerance=0.05)


@pytest.mark.slow
def test_handwritten_digits():
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    arrays = images[:1437], labels[:1437], images[1437:], labels[1437:]
    expected = linear_probe(*arrays, regularizations=(10.0, 1e3, 1e5))
    found = streamed(*arrays, regularizations=(10.0, 1e3, 1e5), num_steps=1000)
    assert found.scores().keys() == expected.scores().keys()
    assert found.regularization == expected.regularization == 10.0
    # the last ones were written by other people
    assert found.accuracy == pytest.approx(323 / 360, abs=1.5 / 360)
    for regularization, accuracy in expected.dev_accuracies.items():
        assert abs(found.dev_accuracies[regularization] - accuracy) <= 1.5 / 142


def test_heads_that_are_trained_together_do_not_know_of_each_other():
    arrays = clouds()
    examples = probe.checked(arrays, regularizations=(1.0,), dev_share=0.1, class_names=None)
    rows, options = np.arange(0, 600, 2), {"seed": 0, "num_steps": 100, "progress": False}
    together = module._fit_all(examples, rows, (1e4, 1e2, 1.0), **options)
    for regularization, found in zip((1e4, 1e2, 1.0), together, strict=True):
        (alone,) = module._fit_all(examples, rows, (regularization,), **options)
        np.testing.assert_allclose(found.kernel, alone.kernel, rtol=1e-3, atol=1e-6)


def test_by_default_there_are_about_as_many_steps_as_in_the_evaluation_of_dinov2():
    """DINOv2 takes 10 epochs of 1250 steps."""
    default = inspect.signature(streaming_probe).parameters["num_steps"].default
    assert default == pytest.approx(10 * 1250, rel=0.25)


def test_a_run_is_that_of_its_seed(monkeypatch):
    monkeypatch.setattr(module, "_BATCH_SIZE", 64)
    first, again, other = (
        streamed(*clouds(), seed=seed, regularizations=(1.0,), num_steps=20) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.kernel, again.kernel)
    assert np.abs(first.kernel - other.kernel).max() > 1e-6


def test_the_policy_of_the_process_does_not_matter():
    expected = streamed(*clouds(), regularizations=(1.0,), num_steps=20)
    keras.config.set_dtype_policy("mixed_float16")
    found = streamed(*clouds(), regularizations=(1.0,), num_steps=20)
    np.testing.assert_array_equal(found.kernel, expected.kernel)
    # which scales no losses
    assert type(module._make_heads(3, 2, np.ones(1), 10).optimizer) is keras.optimizers.Adam


@pytest.mark.slow  # two imports of Keras
def test_jax_finds_the_same():
    """In a process of its own: the backend is chosen when Keras is imported."""
    arrays = clouds()
    expected = streamed(*arrays, regularizations=(10.0,), num_steps=200)
    code = f"""
import json, sys
import numpy as np
sys.path[:0] = [{os.path.dirname(__file__)!r}, {os.path.dirname(os.path.dirname(__file__))!r}]
from test_streaming_probe import clouds, streamed
import keras
assert keras.backend.backend() == "jax"
print(json.dumps(streamed(*clouds(), regularizations=(10.0,), num_steps=200).kernel.tolist()))
"""
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = warm.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        np.array(json.loads(done.stdout)), expected.kernel, rtol=1e-3, atol=1e-5
    )


# --- reading
# ---------------------------------------------------------------------------------------------------------


class Recorder:
    """Features that remember which rows were asked for."""

    def __init__(self, values):
        self.values, self.asked = values, []

    def __getitem__(self, rows):
        self.asked.append(rows.tolist())
        return self.values[rows]


def reading(num_rows, num_steps, monkeypatch):
    """Batches of 8 of the rows from 3 on; each feature is the number of its row."""
    monkeypatch.setattr(module, "_BATCH_SIZE", 8)
    features, labels = Recorder(np.arange(40.0)[:, None]), np.arange(40)
    examples = probe.Examples(
        train_features=features,
        train_labels=labels,
        test_features=features,
        test_labels=labels,
        num_classes=40,
    )
    scaling = np.array([3.0]), np.array([2.0])
    return features, module._Batches(
        examples, np.arange(3, 3 + num_rows), scaling, seed=0, num_steps=num_steps
    )


def test_an_epoch_reads_every_row_once_and_in_ascending_order(monkeypatch):
    # 15 batches are 4 epochs, whose ends are within batches
    features, batches = reading(30, 15, monkeypatch)
    given = [batches[step] for step in range(len(batches))]
    assert len(given) == 15 and all(
        asked == sorted(asked) and len(asked) == 8 for asked in features.asked
    )
    assert all(
        (2 * inputs[:, 0] + 3 == labels).all() and inputs.dtype == np.float32
        for inputs, labels in given
    )
    assert (
        np.bincount(np.concatenate(features.asked), minlength=40).tolist()
        == [0] * 3 + [4] * 30 + [0] * 7
    )
    # any step can be asked for at any time
    np.testing.assert_array_equal(batches[7][1], given[7][1])


def test_every_epoch_has_an_order_of_its_own(monkeypatch):
    features, batches = reading(32, 12, monkeypatch)
    _ = [batches[step] for step in range(12)]
    firsts = [tuple(features.asked[step]) for step in (0, 4, 8)]
    assert len({*firsts, tuple(range(3, 11))}) == 4
    for epoch in range(3):
        assert sorted(np.concatenate(features.asked[4 * epoch : 4 * epoch + 4])) == list(
            range(3, 35)
        )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_training_set(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled, "_BLOCK", 2**18)
    peaks = {}
    for num_rows in (4_000, 16_000):
        written = np.lib.format.open_memmap(
            tmp_path / "features.npy", "w+", np.float32, (num_rows, 512)
        )
        labels = np.arange(num_rows) % 2
        written[:] = labels[:, None]
        del written
        features = np.load(tmp_path / "features.npy", mmap_mode="r")
        tracemalloc.start()
        assert (
            streamed(
                features, labels, features, labels, regularizations=(1.0, 10.0), num_steps=5
            ).accuracy
            == 1.0
        )
        peaks[num_rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    added, added_features = peaks[16_000] - peaks[4_000], 12_000 * 512 * 4
    assert added < 0.1 * added_features  # an index and a label for each row


# --- what is said
# ----------------------------------------------------------------------------------------------------


def test_too_few_steps_are_reported(caplog):
    with caplog.at_level(logging.WARNING, "absl"):
        assert not streamed(*clouds(), regularizations=(1.0,), num_steps=3).converged
    assert "at regularization 1, did not converge" in caplog.text


def test_bars_are_shown_if_asked_for(capsys):
    arrays = clouds(num_train=40)
    streaming_probe(*arrays, regularizations=(1.0, 10.0), num_steps=7)
    shown = capsys.readouterr().err
    assert (
        "2 regularizations: 100%" in shown and "regularization 10: 100%" in shown and "7/7" in shown
    )
    streamed(*arrays, regularizations=(1.0,), num_steps=7)
    assert "regularization" not in capsys.readouterr().err


def test_what_does_not_fit_is_refused():
    train, labels, test, test_labels = clouds()
    with pytest.raises(ValueError, match="`num_steps` must be at least 1. Received: 0"):
        streamed(train, labels, test, test_labels, num_steps=0)
    with pytest.raises(
        ValueError, match="`regularizations` must be different .* `test_labels` must be integers"
    ):
        streamed(train, labels, test, test_labels[:-1], regularizations=(0.0,))
    train[599, 3] = np.nan
    with pytest.raises(ValueError, match="Row 599 of `train_features`"):
        streamed(train, labels, test, test_labels)


@pytest.mark.parametrize(("slope", "converged"), [(0.9e-4, True), (1.1e-4, False)])
def test_a_fit_has_converged_where_scikit_learn_would_stop(monkeypatch, slope, converged):
    monkeypatch.setattr(module, "_compute_slope", lambda *_: slope)
    with warnings.catch_warnings(action="ignore"):
        found = streamed(*clouds(), regularizations=(1.0,), num_steps=3)
    assert found.converged is converged
