import sys

import numpy as np
import pytest

from keras_vit import quickstart

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


def test_digits_are_split_and_scaled():
    (train, train_labels), (test, test_labels) = quickstart.load_digits()
    assert train.shape == (1437, 8, 8) and test.shape == (360, 8, 8)
    assert (np.bincount(test_labels) >= 34).all()
    pixels = quickstart.pixels(test[:2], 32)
    assert pixels.shape == (2, 32, 32, 3)
    assert pixels.min() == -1 and pixels.max() <= 1


def test_a_short_run_leaves_every_artefact(tmp_path, capsys):
    (tmp_path / "output" / "saved_model").mkdir(parents=True)  # as after an earlier run
    (tmp_path / "output" / "vit_digits.npz").write_bytes(b"old")
    quickstart.main(str(tmp_path / "output"), pretrain_epochs=1, finetune_epochs=1)
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == [
        "attention.png",
        "digit.png",
        "saved_model",
        "vit_digits.npz",
    ]
    printed = capsys.readouterr().out
    assert "positions resized" in printed
    assert "off the Keras model" in printed


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install keras-vit\[quickstart\]"):
        quickstart.load_digits()


def test_an_output_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        quickstart.main(str(tmp_path / "file" / "output"))
