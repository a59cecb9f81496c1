"""Means over the steps since the last row of metrics."""

import numpy as np

from keras_vit.train.window import Window


def step(loss: float, norm: float = 1.0, examples: float = 8.0) -> dict[str, float]:
    return {"loss": loss, "accuracy": loss / 10, "gradient_norm": norm, "examples": examples}


def test_means_are_those_of_the_steps_and_taken_once():
    window = Window()
    for number, loss in enumerate([1.0, 2.0, 6.0]):
        window.add(step(loss, norm=number), seconds=0.5)
    means = window.take_means()
    assert means.metrics == {"train/loss": 3.0, "train/accuracy": 0.3, "train/gradient_norm": 1.0}
    assert (means.steps, means.seconds) == (3, 1.5)
    assert window.rows() == []


def test_a_batch_without_a_readable_image_has_no_loss():
    window = Window()
    window.add(step(4.0), seconds=1.0)
    window.add(step(0.0, norm=0.0, examples=0.0), seconds=1.0)
    means = window.take_means()
    assert (
        means.metrics == {"train/loss": 4.0, "train/accuracy": 0.4, "train/gradient_norm": 1.0}
        and means.steps == 2
    )
    window.add(step(0.0, examples=0.0), seconds=1.0)
    assert window.take_means().metrics == {}


def test_a_window_goes_through_a_checkpoint_bit_for_bit():
    draws, whole = np.random.default_rng(0), Window()
    steps = [step(*draws.normal(size=2) ** 2) for _ in range(7)]
    steps[2]["gradient_norm"] = np.inf
    for values in steps:
        whole.add(values, seconds=0.1)
    resumed = Window()
    for place, values in enumerate(steps):
        if place == 4:
            resumed = Window(resumed.rows())
        resumed.add(values, seconds=0.1)
    assert resumed.take_means() == whole.take_means()
