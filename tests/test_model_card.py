"""Model cards: each states what the tables contain, and nothing else."""

import re

import pytest

from keras_vit import cost, paper
from keras_vit.model_card import format_model_card
from keras_vit.variants import VARIANTS
from keras_vit.weights import catalog

SECTIONS = [
    "Origin",
    "Licence",
    "Training data",
    "Pixels",
    "Published numbers",
    "Cost",
    "Known limits",
    "Citation",
]
# By hand, from the list of tags in `catalog.py`, of every tag.
DATA = {
    "augreg_in21k": "ImageNet-21k",
    "augreg_in21k_ft_in1k_224": "ImageNet-21k, then fine-tuned on ImageNet",
    "augreg_in21k_ft_in1k_384": "ImageNet-21k, then fine-tuned on ImageNet",
    "imagenet21k": "ImageNet-21k",
    "imagenet21k+imagenet2012": "ImageNet-21k, then fine-tuned on ImageNet",
    "imagenet21k+imagenet2012_224": "ImageNet-21k, then fine-tuned on ImageNet",
    "sam": "ImageNet",
    "bit_s": "ImageNet",
    "bit_m": "ImageNet-21k",
    "bit_m_imagenet": "ImageNet-21k, then fine-tuned on ImageNet",
    "in1k": "ImageNet",
    "in22k": "ImageNet-22k",
    "in22k_ft_in1k": "ImageNet-22k, then fine-tuned on ImageNet",
    "lvd142m": "LVD-142M",
    "lvd142m_in1k": "LVD-142M; the linear head on ImageNet",
    "lvd1689m": "LVD-1689M",
    "laion2b": "LAION-2B",
    "webli": "WebLI",
    "webli_384": "WebLI",
    "v2_webli": "WebLI",
    **dict.fromkeys(
        (
            "bit_distilled_224",
            "bit_distilled_160",
            "bit_teacher_224",
            "bit_teacher_384",
            "openai",
            "openai_336",
        ),
        "not stated in the tables of this package",
    ),
}
pytestmark = pytest.mark.once


def sections(card: str) -> dict[str, str]:
    _, *parts = re.split(r"^## ", card, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each table, without header and rule, split into cells."""
    found = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split(" | ")] for line in each.splitlines()[2:]]
        for each in found
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_card_is_complete_and_names_every_file(name: str):
    card = format_model_card(name)
    assert card.startswith(f"# {name}\n")
    found = sections(card)
    assert list(found) == SECTIONS and all(found.values())
    files = {
        row.url: row
        for row in map(lambda tag: catalog.lookup(name, tag), catalog.list_weights(name))
    }
    listed = tables(found["Origin"])
    assert [cells[1] for cells in (listed[0] if listed else [])] == list(files)
    data = tables(found["Training data"])
    assert {cells[0].strip("`"): cells[1] for cells in (data[0] if data else [])} == {
        row.tag: DATA[row.tag] for row in files.values()
    }
    assert all(row.licence in found["Licence"] for row in files.values())
    assert VARIANTS[name].source in found["Origin"]
    assert "None" not in card.replace("weights=None", "") and "nan" not in card.split()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_rows_of_each_table_have_as_many_cells_as_its_header(name: str):
    lines = [line for line in format_model_card(name).splitlines() if line.startswith("|")]
    blocks = re.split(r"(?=^[^|\n])", format_model_card(name), flags=re.MULTILINE)
    widths = [
        {line.count(" | ") for line in block.splitlines() if line.startswith("|")}
        for block in blocks
    ]
    assert lines and all(len(each) <= 1 for each in widths)


def test_every_tag_of_the_catalog_has_its_training_data_here():
    aliases = {"imagenet"}
    tags = {tag for name in VARIANTS for tag in catalog.list_weights(name)}
    assert tags - aliases == DATA.keys()


def test_numbers_have_their_sources():
    found = sections(format_model_card("ViT_B16"))["Published numbers"]
    of_files, of_paper = tables(found)
    assert ["`imagenet21k+imagenet2012`", "384", "83.97", "arXiv:2010.11929, Table 5"] in of_files
    five = [
        row for row in of_paper if row[:2] == ["imagenet21k", "imagenet"] and row[6] == "Table 5"
    ]
    assert five == [
        ["imagenet21k", "imagenet", "top-1", "83.97", "384", "fine-tuned", "Table 5", "-"]
    ]
    assert "no file that was pre-trained on JFT-300M" in found
    assert "not measurements of this package" in found


def test_numbers_that_the_paper_does_not_print_are_left_out():
    hidden = [row for row in paper.published(model="ViT_L16") if row.dataset == "average5"]
    found = sections(format_model_card("ViT_L16"))["Published numbers"]
    assert hidden and "average5" not in found
    assert "| 87.76 ± 0.03 |" in found  # Table 2
    assert "vtab/" not in found and "| vtab |" in found


def test_no_published_weights_are_of_jft():
    assert not [tag for name in VARIANTS for tag in catalog.list_weights(name) if "jft" in tag]


def test_licences_that_restrict_are_named():
    assert sections(format_model_card("MAE_B16"))["Licence"] == (
        "The published weights: CC-BY-NC-4.0. This licence excludes commercial use."
    )
    dinov3 = sections(format_model_card("DINOv3_B16"))["Licence"]
    assert dinov3.startswith("The published weights: DINOv3 License.")
    assert "on request" in dinov3
    assert sections(format_model_card("ViT_B16"))["Licence"] == "The published weights: Apache-2.0."


def test_limits_are_those_of_the_files():
    limits = sections(format_model_card("ViT_B16"))["Known limits"]
    assert "- The head of `imagenet21k` is all zeros." in limits
    assert "multiples of 16 pixels" in limits
    limits = sections(format_model_card("DINOv3_S16"))["Known limits"]
    assert "`lvd1689m`: no head" in limits and "position embeddings" not in limits
    assert "multiples of 32 pixels" in sections(format_model_card("R26_ViT_S32"))["Known limits"]
    limits = sections(format_model_card("ResNet50x1"))["Known limits"]
    assert "No weights are published" in limits and "multiples of" not in limits


def test_another_gelu_of_torch_is_a_limit_of_google_s_files_alone():
    said = "trained with the tanh GELU; timm and Hugging Face compute the exact one."
    for name in ("ViT_B16", "R26_ViT_S32"):
        assert said in sections(format_model_card(name))["Known limits"]
    for name in ("DINO_S16", "SigLIP_B16", "CLIP_B16", "BiT_R50x1"):
        assert "GELU" not in sections(format_model_card(name))["Known limits"]


def test_pixels_of_other_families_are_normalized_inside():
    assert "0.485, 0.456, 0.406" in sections(format_model_card("DINO_S16"))["Pixels"]
    assert "normalizes" not in sections(format_model_card("ViT_B16"))["Pixels"]


def test_the_cost_is_that_of_the_size_and_the_head():
    cost = sections(format_model_card("ViT_B16", (384, 384), classes=None))["Cost"]
    # 85,798,656 at 224 pixels, and 577 - 197 rows more in the position table.
    parameters = 85_798_656 + 380 * 768
    assert f"| {parameters:,} |" in cost
    assert f"| weights in float32 | {4 * parameters / 2**20:.1f} MiB |" in cost
    assert "without a head, at 384 x 384 pixels" in cost
    assert "with 512 outputs" in sections(format_model_card("CLIP_B16"))["Cost"]
    assert "with 10 outputs" in sections(format_model_card("CLIP_B16", classes=10))["Cost"]


def test_the_card_has_the_numbers_of_the_cost_module():
    row, size = VARIANTS["ViT_B16"], (384, 384)
    found = sections(format_model_card("ViT_B16", size, classes=None))["Cost"]
    forward, stored = (
        cost.activation_bytes(row, size, training=training) / 2**20 for training in (False, True)
    )
    assert stored > 5 * forward
    macs = cost.macs(row, size, classes=None) / 1e9
    for words, value in (
        ("multiply-adds, forward, per image", f"{macs:,.2f} G"),
        ("activations, forward, one image, float32", f"{forward:,.1f} MiB"),
        ("activations stored for the gradient, per image, float32", f"{stored:,.1f} MiB"),
        ("tokens", "577"),
    ):
        assert f"| {words} | {value} |" in found


def test_the_papers_to_cite_are_links():
    found = sections(format_model_card("DeiT_B16"))["Citation"]
    assert "[arXiv:2012.12877](https://arxiv.org/abs/2012.12877)" in found
    assert "2106.10270" in sections(format_model_card("ViT_L16"))["Citation"]  # AugReg files


def test_an_unknown_model_names_its_neighbours():
    with pytest.raises(ValueError, match="Did you mean ViT_B16"):
        format_model_card("vit_b16")


def test_a_size_that_patches_do_not_tile_names_the_nearest():
    with pytest.raises(ValueError, match=r"Use \(224, 224\) or \(240, 240\)"):
        format_model_card("ViT_B16", (225, 225))
