"""What all pictures share."""

from pathlib import Path

import numpy as np
import pytest

from keras_vit import drawing
from keras_vit.drawing import smoothed


def test_smoothing_is_the_mean_of_what_is_finite_nearby():
    values = np.arange(100.0)
    values[50] = np.nan
    smooth = smoothed(values)
    assert smooth[10] == 10.0  # of 8 to 12
    assert smooth[0] == 1.0  # of 0, 1, 2
    assert smooth[49] == (47 + 48 + 49 + 51) / 4
    assert np.isnan(smooth[50]) and np.isfinite(np.delete(smooth, 50)).all()


def test_a_loss_that_falls_far_has_an_axis_of_logarithms_and_an_accuracy_has_percents():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    scales = {}
    for kind, values in (
        ("loss", [31.0, 1.0]),
        ("loss", [29.0, 1.0]),
        ("loss", [31.0, 0.0]),
        ("accuracy", [0.9, 0.01]),
    ):
        panel = figure.add_subplot()
        drawing._finish_panel(panel, kind, values)
        scales[kind, *values] = panel.get_yscale()
    assert [*scales.values()] == ["log", "linear", "linear", "linear"]
    assert panel.yaxis.get_major_formatter()(0.125) == "12.5%"


def test_the_path_of_a_figure_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("HOME", str(tmp_path))
    with drawing.picture(Path("~/line.png"), 1, 1) as figure:
        figure.subplots().plot([1, 2])
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")
