"""The model of an export, and its image size."""

import pytest

from keras_vit.export import subject

pytestmark = pytest.mark.tensorflow


def test_a_size_must_be_that_of_the_model_along_each_axis():
    assert subject._check_size((32, 64), None) == (32, 64)
    for built in ((32, 64), (32, None), (None, 64), (None, None)):
        assert subject._check_size(built, (32, 64)) == (32, 64)
    for built in ((32, 64), (32, None), (None, 64)):
        with pytest.raises(ValueError, match=r"Received: image_size=\(64, 32\)"):
            subject._check_size(built, (64, 32))
