"""Checks of features: rows of the test set that are in the training set."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.evaluate import labelled  # noqa: E402
from keras_vit.evaluate.labelled import count_repeated  # noqa: E402

pytestmark = pytest.mark.once


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("block", [4, 2**21])
def test_equal_rows_are_counted_for_any_shape_and_size_of_blocks(
    monkeypatch, tmp_path, shape: tuple[int, ...], block: int
):
    monkeypatch.setattr(labelled, "_BLOCK", block)
    draws = np.random.default_rng(0)
    train = draws.integers(0, 20, (40, *shape)).astype(np.float32)
    test = draws.integers(0, 40, (30, *shape)).astype(np.float32)
    test[[3, 5, 29]] = train[[39, 0, 7]]
    equal = (test[:, None] == train[None]).reshape(30, 40, -1).all(axis=2).any(axis=1).sum()
    assert 0 < equal < 30
    np.save(tmp_path / "train.npy", train)
    assert count_repeated(np.load(tmp_path / "train.npy", mmap_mode="r"), test) == equal
    close = np.nextafter(test, np.float32(99))
    assert count_repeated(train, close) == 0
