"""Constants that files of weights do not contain, from the code that was published with them. With
a wrong one a model is slightly wrong, and no file tells.
"""

import pytest

from keras_vit.variants import FAMILY_VARIANTS, VARIANTS, VIT_VARIANTS

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("model", "epsilon", "gelu", "crop"),
    [
        # vision_transformer: flax's LayerNorm and `nn.gelu`
        ("ViT_B16", 1e-6, "tanh", None),
        ("R50_ViT_B16", 1e-6, "tanh", None),
        # `partial(nn.LayerNorm, eps=1e-6)` and `nn.GELU` of deit, dino, mae, dinov2
        ("DeiT_B16", 1e-6, "exact", 0.9),
        ("DeiT3_B16", 1e-6, "exact", 1.0),
        ("DINO_S16", 1e-6, "exact", 0.875),
        ("MAE_B16", 1e-6, "exact", 0.875),
        ("IJEPA_H14", 1e-6, "exact", None),
        ("DINOv2_B14", 1e-6, "exact", 0.875),
        # dinov3: "layernormbf16", eps=1e-5
        ("DINOv3_S16", 1e-5, "exact", 0.875),
        # clip: PyTorch's default; `QuickGELU`
        ("CLIP_B16", 1e-5, "quick", 1.0),
        # big_vision
        ("SigLIP_B16", 1e-6, "tanh", None),
    ],
)
def test_a_row_has_the_constants_of_its_family(model, epsilon, gelu, crop):
    row = VARIANTS[model]
    assert (row.norm_epsilon, row.gelu, row.crop) == (epsilon, gelu, crop)


@pytest.mark.parametrize(
    ("model", "norm", "standardization"),
    [
        # big_vision bit.py: group normalization 1e-5; weights: 1e-10 inside of the root
        ("BiT_R50x1", 1e-5, (0.0, 1e-10)),
        # vision_transformer models_resnet.py: group normalization of flax; weights: 1e-5 outside
        ("ResNet50x1", 1e-6, (1e-5, 0.0)),
    ],
)
def test_a_resnet_has_the_constants_of_its_code(model, norm, standardization):
    row = VARIANTS[model]
    assert row.norm_epsilon == norm
    assert (row.std_epsilon, row.variance_epsilon) == standardization


@pytest.mark.parametrize(
    ("model", "mean", "deviation"),
    [
        # vision_transformer and big_vision: pixels from -1 to 1
        ("ViT_B16", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("SigLIP_B16", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        # `transforms.Normalize` of dino, deit, mae, ijepa, dinov2, dinov3
        *(
            (model, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
            for model in (
                *("DINO_S16", "DeiT_B16", "DeiT3_B16", "MAE_B16", "IJEPA_H14"),
                *("DINOv2_B14", "DINOv2_B14_reg4", "DINOv3_S16"),
            )
        ),
        # clip.py, `_transform`
        (
            "CLIP_B16",
            (0.48145466, 0.4578275, 0.40821073),
            (0.26862954, 0.26130258, 0.27577711),
        ),
        # tips: IMAGE_MEAN and IMAGE_STD, pixels from 0 to 1
        ("TIPSv2_B14", (0, 0, 0), (1, 1, 1)),
    ],
)
def test_a_row_has_the_pixels_of_its_family(model, mean, deviation):
    row = VARIANTS[model]
    assert (row.pixel_mean, row.pixel_std) == (mean, deviation)


# `head_width` of open_clip's configs; width and heads of the paper's Table 1 (H), of big_vision
# (So400m, g-opt), and of Table 3 of DINOv3.
HEAD_WIDTHS = {
    **dict.fromkeys(("ViT_H14", "MAE_H14", "IJEPA_H14", "IJEPA_H16", "DeiT3_H14", "CLIP_H14"), 80),
    **dict.fromkeys(("SigLIP_So400m14", "SigLIP_So400m16", "TIPSv2_So400m14"), 72),
    **dict.fromkeys(("IJEPA_G16", "CLIP_g14"), 88),
    "SigLIP_gopt16": 96,
    "CLIP_bigG14": 104,
    "DINOv3_7B16": 128,
}


@pytest.mark.parametrize("model", [*VIT_VARIANTS, *FAMILY_VARIANTS])
def test_heads_have_64_numbers_but_in_the_largest_models(model):
    """The number of heads changes no shape of the weights, so no file tells."""
    row = VARIANTS[model]
    assert row.width == row.num_heads * HEAD_WIDTHS.get(model, 64)


def test_openai_alone_trained_with_the_quick_gelu():
    quick = {name for name, row in FAMILY_VARIANTS.items() if row.gelu == "quick"}
    assert quick == {name for name, row in VARIANTS.items() if "openai/CLIP" in row.source}
    assert len(quick) == 3


def test_other_packages_compute_the_exact_gelu_in_models_of_google():
    """timm's default is `nn.GELU`, and Hugging Face's `hidden_act` is "gelu"."""
    assert {row.torch_gelu for row in VIT_VARIANTS.values()} == {"exact"}


# Licences of weights by the repository that published them. All others have Apache-2.0.
LICENCES = {
    "facebookresearch/mae": "CC-BY-NC-4.0",
    "facebookresearch/ijepa": "CC-BY-NC-4.0",
    "facebookresearch/dinov3": "DINOv3 License",
    "openai/CLIP": "MIT",
    "mlfoundations/open_clip": "MIT",
}


@pytest.mark.parametrize("model", FAMILY_VARIANTS)
def test_a_row_has_the_licence_of_its_repository(model):
    row = FAMILY_VARIANTS[model]
    repository = row.source.partition("github.com/")[2]
    assert row.licence == LICENCES.get(repository, "Apache-2.0")
