"""Where weights are found: tags, files, URLs."""

import pytest

from keras_vit.weights import source


@pytest.mark.once
def test_a_folder_with_the_name_of_a_tag_does_not_hide_the_tag(tmp_path, monkeypatch):
    (tmp_path / "imagenet/val").mkdir(parents=True)
    (tmp_path / "ViT-B_16.npz").touch()
    monkeypatch.chdir(tmp_path)
    assert source.find("ViT_B16", "imagenet").is_tag
    assert source.find("DINOv2_B14", "imagenet").is_tag
    for path in ("./imagenet", tmp_path / "imagenet", "ViT-B_16.npz", "hf://google/vit"):
        assert not source.find("ViT_B16", path).is_tag
    # A model that has no such tag, and a model of the user's
    assert not source.find("ViT_H14", "imagenet").is_tag
    assert not source.find("mine", "imagenet").is_tag
