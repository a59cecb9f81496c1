"""The table of repositories on the Hugging Face Hub, and the warnings before a download."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest

import keras_vit
from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS
from keras_vit.weights import catalog, hub, source
from keras_vit.weights.hub_table import FILES

pytestmark = pytest.mark.once


def test_each_repository_is_of_a_model_whose_patches_tile_its_images():
    assert {file.model for file in FILES} <= FAMILY_VARIANTS.keys()
    for file in FILES:
        variant = FAMILY_VARIANTS[file.model]
        assert file.image_size % variant.patch_size == 0, file
        if variant.projection is not None:
            assert file.classes == variant.projection, file


def test_tags_and_repositories_are_unique():
    assert len({(file.model, file.tag) for file in FILES}) == len(FILES)
    assert len({file.repository for file in FILES}) == len(FILES)


def test_the_data_set_of_a_tag_is_that_in_the_name_of_its_repository():
    for file in FILES:
        found = re.findall(r"in(\d+k)", file.tag)
        named = re.findall(r"(?:_|in|net)(\d+k)", file.repository)
        # The names of DINO, MAE and DeiT have none: those were trained on ImageNet-1k.
        assert found == named or (not named and found == ["1k"]), file


def test_larger_and_distilled_models_are_more_accurate():
    """Within DeiT and within DINOv2, which were trained with one recipe each."""
    found = {file.model: file.accuracy for file in FILES if file.accuracy is not None}
    for size in ("Ti", "S", "B"):
        assert found[f"DeiT_{size}16_distilled"] > found[f"DeiT_{size}16"]
    for family in ("DeiT_{}16", "DeiT_{}16_distilled", "DINOv2_{}14"):
        ordered = [found.get(family.format(size)) for size in ("Ti", "S", "B", "L", "g")]
        known = [accuracy for accuracy in ordered if accuracy is not None]
        assert len(known) >= 3 and known == sorted(set(known))


def test_every_family_has_a_published_file():
    assert {file.model for file in FILES} == FAMILY_VARIANTS.keys()


def test_imagenet_is_the_classifier_of_a_family():
    assert catalog.lookup("DeiT3_B16", "imagenet").file.endswith("fb_in22k_ft_in1k")
    assert catalog.lookup("DINOv2_B14", "imagenet").file.endswith("-imagenet1k-1-layer")
    with pytest.raises(ValueError, match="Valid tags: in1k"):
        catalog.lookup("MAE_B16", "imagenet")


def test_an_address_on_the_hub_is_found_at_any_revision():
    address = "hf://facebook/dinov3-vits16-pretrain-lvd1689m"
    for text in (address, f"{address}@0123abc"):
        row = catalog.by_file_name(text)
        assert (row.model, row.licence, row.is_gated) == ("DINOv3_S16", "DINOv3 License", True)
    assert catalog.by_file_name("hf://somebody/else") is None


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A folder in place of each repository; the addresses that were asked for."""
    asked = []
    tiny = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 24}
    row = replace(FAMILY_VARIANTS["MAE_B16"], **tiny)
    folder = tmp_path / "repository"
    # Before fine-tuning, a file of MAE has the arrays of a plain ViT.
    pretrained = keras_vit.application(replace(VIT_VARIANTS["ViT_B16"], **tiny))(
        weights=None, include_top=False, input_shape=(224, 224, 3)
    )
    keras_vit.save_checkpoint(pretrained, folder)
    monkeypatch.setattr(hub, "fetch", lambda address: (asked.append(address), folder)[1])
    return row, pretrained, asked


def test_a_tag_loads_its_repository_and_says_its_licence_before(served, caplog):
    row, pretrained, asked = served
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = keras_vit.application(row)(weights="in1k", include_top=False, pooling="avg")
    assert asked == ["hf://facebook/vit-mae-base"]
    assert "facebook/vit-mae-base is published under CC-BY-NC-4.0" in caplog.text
    kernel = model.get_layer("encoderblock_0").mlp.dense_0.kernel
    expected = pretrained.get_layer("encoderblock_0").mlp.dense_0.kernel
    np.testing.assert_array_equal(kernel, expected)


def test_a_revision_is_passed_on(served):
    row, _, asked = served
    keras_vit.application(row)(weights="hf://facebook/vit-mae-base@v2", include_top=False)
    assert asked == ["hf://facebook/vit-mae-base@v2"]


def test_a_gated_repository_says_so(monkeypatch, caplog):
    def refuse(address):
        raise PermissionError("gated")

    monkeypatch.setattr(hub, "fetch", refuse)
    found = source.find("DINOv3_S16", "lvd1689m")
    with caplog.at_level(logging.WARNING, logger="absl"), pytest.raises(PermissionError):
        source.load(found)
    assert "DINOv3 License, and its owner grants access on request" in caplog.text


def test_a_repository_without_a_head_is_refused_before_the_download(served):
    row, _, asked = served
    with pytest.raises(ValueError, match="no classification head. Use `include_top=False`"):
        keras_vit.application(row)(weights="in1k")
    assert not asked
