"""What all pictures share."""

import numpy as np

from keras_vit.drawing import smoothed


def test_smoothing_is_the_mean_of_what_is_finite_nearby():
    values = np.arange(100.0)
    values[50] = np.nan
    smooth = smoothed(values)
    assert smooth[10] == 10.0  # of 8 to 12
    assert smooth[0] == 1.0  # of 0, 1, 2
    assert smooth[49] == (47 + 48 + 49 + 51) / 4
    assert np.isnan(smooth[50]) and np.isfinite(np.delete(smooth, 50)).all()
