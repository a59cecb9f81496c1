"""The words of `info`; the numbers have their own tests."""

import pytest

from keras_vit import info
from keras_vit.variants import VARIANTS
from keras_vit.weights import catalog

NAMES = [*VARIANTS]


def facts(card: str) -> dict[str, str]:
    """The part of a card before its table, by label."""
    lines = card.split("\n\n")[0].splitlines()[1:]
    return {label: text for label, text in (line.strip().split(maxsplit=1) for line in lines)}


def test_the_table_has_one_line_for_each_model():
    assert [line.split()[0] for line in info.models_table().splitlines()[3:]] == NAMES


def test_the_table_has_the_numbers_of_a_model():
    line = next(line for line in info.models_table().splitlines() if line.startswith("ViT_H14"))
    assert line.split() == ["ViT_H14", "632,045,800", "167.3", "2411", "257", "1"]


def test_the_projection_of_clip_is_counted_unless_another_number_of_classes_is_given():
    """By hand: the outputs times the width, without biases."""
    lines = {line.split()[0]: line.split() for line in info.models_table().splitlines()[3:]}
    without = facts(info.model_card("CLIP_B16", classes=None))["parameters"]
    trunk = int(without.removesuffix(" without a head").replace(",", ""))
    assert lines["CLIP_B16"][1] == f"{trunk + 768 * 512:,}"
    card = info.model_card("CLIP_B16")
    assert facts(card)["parameters"] == f"{trunk + 768 * 512:,} with 512 outputs"
    assert "classes" not in card
    ten = [info.model_card("CLIP_B16", classes=10), info.models_table(classes=10)]
    assert facts(ten[0])["parameters"] == f"{trunk + 768 * 10:,} with 10 classes"
    assert f" {trunk + 768 * 10:,} " in ten[1]
    assert "pixels, with 10 classes;" in ten[1].splitlines()[0]
    assert "with 1,000 classes (CLIP: with the outputs of its projection);" in info.models_table()


def test_the_table_leaves_out_what_a_size_does_not_allow():
    lines = {
        line.split()[0]: line.split()[1:] for line in info.models_table((240, 240)).splitlines()[3:]
    }
    assert lines["ViT_S32"][:4] == ["-"] * 4
    assert lines["ViT_S16"][3] == "226"


def test_the_columns_are_aligned():
    lines = info.models_table().splitlines()[2:]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_a_card_with_all_its_weights(name: str):
    card = info.model_card(name)
    assert card.splitlines()[0] == name
    assert [tag for tag in catalog.list_weights(name) if f"\n  {tag} " not in card] == []


def test_a_card_has_the_numbers_of_the_model():
    found = facts(info.model_card("ViT_B16", (224, 384), classes=10))
    assert found["grid"] == "14 x 24 patches"
    assert found["tokens"] == "337: 336 patches and the class token"
    parameters = 86_567_656 + (337 - 197) * 768 - 990 * 769
    assert found["parameters"] == f"{parameters:,} with 10 classes"
    assert found["weights"].startswith(f"{parameters * 4 / 2**20:.1f} MiB in float32")
    assert found["source"] == "arXiv:2010.11929, Table 1"


def test_a_multiply_add_is_two_operations():
    # 17.6 G of ViT-B/16, as in arXiv:2106.10270 and timm.
    found = facts(info.model_card("ViT_B16"))
    macs, flops = (float(found[name].split()[0]) for name in ("MACs", "FLOPs"))
    assert macs == pytest.approx(17.6, abs=0.05)
    assert flops == pytest.approx(2 * macs, abs=0.02)


@pytest.mark.parametrize(
    ("name", "side", "stride"),
    [("R50_ViT_L16", 14, 16), ("R26_ViT_S32", 7, 32), ("R_ViT_Ti16", 7, 32)],
)
def test_the_patches_of_a_hybrid_are_cells_of_its_stem(name: str, side: int, stride: int):
    found = facts(info.model_card(name))
    assert found["grid"] == f"{side} x {side} patches"
    assert found["tokens"] == f"{side**2 + 1}: {side**2} patches and the class token"
    assert found["patch"].endswith(" cells of the stem")
    size = int(found["patch"].split()[0]) * int(found["stem"].split()[-2])
    assert size == stride == 224 // side


def test_a_model_without_a_head_has_fewer_parameters():
    assert (
        facts(info.model_card("ViT_B16", classes=None))["parameters"] == "85,798,656 without a head"
    )


@pytest.mark.parametrize("name", ["BiT_R50x1", "ResNet50x1"])
def test_a_residual_network_halves_the_map_five_times_and_rounds_up(name: str):
    # 250, 125, 63, 32, 16, 8 and 290, 145, 73, 37, 19, 10
    found = facts(info.model_card(name, (250, 290)))
    assert found["last"].split() == "map 8 x 10 cells, 2048 channels".split()


def test_a_residual_network_shows_its_last_map_instead_of_tokens():
    found = facts(info.model_card("BiT_R50x3", (480, 480)))
    assert found["last"] == "map      15 x 15 cells, 6144 channels"
    assert "tokens" not in found


def test_an_axial_card_has_halves_and_no_class_token():
    found = facts(info.model_card("AxialViT_B16", (224, 384)))
    assert found["tokens"] == "336: 336 patches and no class token"
    assert found["encoder"].startswith(
        "12 blocks, each along the rows, then along the columns, width 768"
    )
    assert "pre-training" not in found
    assert facts(info.model_card("AxialResNet50"))["attention"].startswith("8 heads along the rows")
    assert "attention" not in facts(info.model_card("ResNet50x1"))


def test_a_card_has_the_memory_of_both_passes():
    found = facts(info.model_card("ViT_B16"))
    assert found["activations"].startswith(
        "9.8 MiB in float32: peak of the forward pass of one image"
    )
    assert found["training"].startswith("294.3 MiB in float32: activations stored for the gradient")


def test_pretraining_stands_beside_the_printed_number():
    lines = [
        line.split(maxsplit=1)[1]
        for line in info.model_card("R50_ViT_L16").splitlines()
        if "exaFLOPs" in line
    ]
    assert lines == [
        "832.8 exaFLOPs for 7 epochs of JFT-300M; Table 6: 859 exaFLOPs are printed; "
        "half of the 1668 of 14 epochs is 834",
        "1,665.6 exaFLOPs for 14 epochs of JFT-300M; Table 6: 1,668",
    ]
    assert facts(info.model_card("ViT_B16"))["pre-training"].startswith(
        "223.7 exaFLOPs for 7 epochs"
    )
    # It is that of the paper, whatever size is asked for.
    assert facts(info.model_card("ViT_B16", (384, 384)))["pre-training"].startswith(
        "223.7 exaFLOPs"
    )
    assert "pre-training" not in facts(info.model_card("ViT_S16"))


def test_weights_come_with_resolution_accuracy_and_warnings():
    lines = {
        line.split()[0]: line
        for line in info.model_card("ViT_B16").splitlines()
        if line.startswith("  ")
    }
    assert lines["imagenet21k+imagenet2012"].split()[:5] == [
        "imagenet21k+imagenet2012",
        "384",
        "1,000",
        "83.97",
        "331",
    ]
    assert "head all zeros; tanh layer" in lines["imagenet21k"]
    assert lines["imagenet"].endswith("alias of augreg_in21k_ft_in1k_224")


def test_a_model_that_nobody_published_says_so():
    assert info.model_card("ResNet50x1").endswith(
        "No published weights: use weights=None, a file or a URL."
    )


def test_a_size_that_patches_do_not_tile_names_the_nearest():
    with pytest.raises(ValueError, match=r"Use \(224, 224\) or \(240, 240\)"):
        info.model_card("ViT_B16", (225, 225))


def test_an_unknown_model_names_its_neighbours():
    with pytest.raises(ValueError, match="Did you mean ViT_B16"):
        info.model_card("vit_b16")


def test_the_card_of_another_family_says_what_its_files_expect():
    found = facts(info.model_card("DINOv3_S16plus"))
    assert found["options"] == "layer scale, rotary positions, no bias of the keys"
    assert found["numerics"] == "layer norm epsilon 1e-05, SwiGLU"
    assert found["tokens"] == "261: 256 patches and the class token, 4 registers"
    assert found["pixels"].endswith(
        "mean 0.485, 0.456, 0.406; deviation 0.229, 0.224, 0.225, of 0 to 1"
    )
    assert found["licence"].startswith("DINOv3 License") and "positions" not in found
    assert "gated" in info.model_card("DINOv3_S16plus").splitlines()[-1]
    assert facts(info.model_card("MAE_B16"))["licence"].startswith("CC-BY-NC-4.0")
    assert facts(info.model_card("DINOv2_B14"))["image"] == "518 x 518 pixels"
    assert "licence" not in facts(info.model_card("ViT_B16"))
