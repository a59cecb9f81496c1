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
    quickstart.main(str(tmp_path / "output"), pretrain_epochs=1, finetune_epochs=1)  # again, over its own output


@pytest.mark.slow
def test_the_full_run_recognizes_digits(tmp_path, monkeypatch):
    scores = []
    monkeypatch.setattr(
        quickstart, "accuracy", lambda model, x, y: scores.append(np.mean(model.predict(x, verbose=0).argmax(1) == y))
    )
    quickstart.main(str(tmp_path))
    low, resized, tuned = scores
    assert low > 0.93
    assert 0.3 < resized < low  # the trunk is recognizably the same, before fine-tuning
    assert tuned > 0.93


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install keras-vit\[quickstart\]"):
        quickstart.load_digits()


def test_an_output_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        quickstart.main(str(tmp_path / "file" / "output"))
