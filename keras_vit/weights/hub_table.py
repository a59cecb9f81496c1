"""The table of other families' files on the Hugging Face Hub: one line per repository.

`catalog.py` makes rows of it. Tags follow timm's: the data set of the pre-training, then
`_ft_in1k` or `_in1k` for a classifier of ImageNet on top. Listed sizes are of the weights file.

Sources (facts only): model cards of the repositories; timm 1.0.31 `vision_transformer.py`,
`deit.py`, `eva.py` (names, licences); READMEs of facebookresearch/deit and dinov2 (accuracies).
"""

from typing import NamedTuple

_DEIT = "facebookresearch/deit README"
_DINOV2 = "arXiv:2304.07193, Table 4"


class HubFile(NamedTuple):
    """A repository with the weights of one model.

    Attributes:
        model: Public name of the model.
        tag: Value of `weights=` that selects it.
        repository: Owner and name.
        classes: Outputs of the head, or None if it has none.
        image_size: Side of the training images in pixels, which the position table belongs to.
        accuracy: Published top-1 accuracy on ImageNet in percent, or None.
        accuracy_source: Publication of `accuracy`.
        is_gated: Whether its owner grants access one by one.
    """

    model: str
    tag: str
    repository: str
    classes: int | None = None
    image_size: int = 224
    accuracy: float | None = None
    accuracy_source: str | None = None
    is_gated: bool = False


def _make_dinov2(size: str, name: str, linear: float) -> tuple[HubFile, ...]:
    model = f"DINOv2_{size}14"
    return (
        HubFile(model, "lvd142m", f"facebook/dinov2-{name}", image_size=518),
        HubFile(
            model,
            "lvd142m_in1k",
            f"facebook/dinov2-{name}-imagenet1k-1-layer",
            classes=1000,
            image_size=518,
            accuracy=linear,
            accuracy_source=_DINOV2,
        ),
        HubFile(
            f"{model}_reg4",
            "lvd142m",
            f"facebook/dinov2-with-registers-{name}",
            image_size=518,
        ),
    )


def _make_dinov3(size: str) -> HubFile:
    repository = f"facebook/dinov3-vit{size.lower()}-pretrain-lvd1689m"
    return HubFile(f"DINOv3_{size}", "lvd1689m", repository, is_gated=True)


def _make_deit(size: str, name: str, accuracy: float, distilled: float) -> tuple[HubFile, ...]:
    return (
        HubFile(
            f"DeiT_{size}16",
            "in1k",
            f"facebook/deit-{name}-patch16-224",
            classes=1000,
            accuracy=accuracy,
            accuracy_source=_DEIT,
        ),
        HubFile(
            f"DeiT_{size}16_distilled",
            "in1k",
            f"facebook/deit-{name}-distilled-patch16-224",
            classes=1000,
            accuracy=distilled,
            accuracy_source=_DEIT,
        ),
    )


def _make_deit3(size: str, name: str) -> tuple[HubFile, ...]:
    return tuple(
        HubFile(f"DeiT3_{size}", tag, f"timm/deit3_{name}_224.fb_{tag}", classes=1000)
        for tag in ("in1k", "in22k_ft_in1k")
    )


FILES: tuple[HubFile, ...] = (
    *(
        HubFile(f"DINO_{size}", "in1k", f"facebook/dino-vit{size.lower()}")
        for size in ("S16", "S8", "B16", "B8")
    ),
    HubFile("MAE_B16", "in1k", "facebook/vit-mae-base"),
    HubFile("MAE_L16", "in1k", "facebook/vit-mae-large"),
    HubFile("MAE_H14", "in1k", "facebook/vit-mae-huge"),
    HubFile("IJEPA_H14", "in1k", "facebook/ijepa_vith14_1k"),
    HubFile("IJEPA_H14", "in22k", "facebook/ijepa_vith14_22k"),
    HubFile("IJEPA_H16", "in1k", "facebook/ijepa_vith16_1k", image_size=448),
    HubFile("IJEPA_G16", "in22k", "facebook/ijepa_vitg16_22k"),
    *_make_deit("Ti", "tiny", 72.2, 74.5),
    *_make_deit("S", "small", 79.9, 81.2),
    *_make_deit("B", "base", 81.8, 83.4),
    *_make_deit3("S16", "small_patch16"),
    *_make_deit3("M16", "medium_patch16"),
    *_make_deit3("B16", "base_patch16"),
    *_make_deit3("L16", "large_patch16"),
    *_make_deit3("H14", "huge_patch14"),
    HubFile("CLIP_B32", "openai", "openai/clip-vit-base-patch32", classes=512),
    HubFile("CLIP_B16", "openai", "openai/clip-vit-base-patch16", classes=512),
    HubFile("CLIP_L14", "openai", "openai/clip-vit-large-patch14", classes=768),
    HubFile(
        "CLIP_L14",
        "openai_336",
        "openai/clip-vit-large-patch14-336",
        classes=768,
        image_size=336,
    ),
    HubFile("CLIP_H14", "laion2b", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", classes=1024),
    HubFile("CLIP_g14", "laion2b", "laion/CLIP-ViT-g-14-laion2B-s12B-b42K", classes=1024),
    HubFile("CLIP_bigG14", "laion2b", "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", classes=1280),
    HubFile("SigLIP_B16", "webli", "google/siglip-base-patch16-224"),
    HubFile("SigLIP_B16", "v2_webli", "google/siglip2-base-patch16-224"),
    HubFile("SigLIP_L16", "webli", "google/siglip-large-patch16-256", image_size=256),
    HubFile("SigLIP_L16", "v2_webli", "google/siglip2-large-patch16-256", image_size=256),
    HubFile("SigLIP_So400m14", "webli", "google/siglip-so400m-patch14-224"),
    # 27 patches of 14 pixels; trained on 384 pixels, of which the convolution left out 6.
    HubFile("SigLIP_So400m14", "webli_384", "google/siglip-so400m-patch14-384", image_size=378),
    HubFile("SigLIP_So400m14", "v2_webli", "google/siglip2-so400m-patch14-224"),
    HubFile("SigLIP_So400m16", "v2_webli", "google/siglip2-so400m-patch16-256", image_size=256),
    HubFile("SigLIP_gopt16", "v2_webli", "google/siglip2-giant-opt-patch16-256", image_size=256),
    *_make_dinov2("S", "small", 81.1),
    *_make_dinov2("B", "base", 84.5),
    *_make_dinov2("L", "large", 86.3),
    *_make_dinov2("g", "giant", 86.5),
    HubFile("TIPSv2_B14", "webli", "timm/vit_base_patch14_reg1_tipsv2.webli", image_size=448),
    HubFile("TIPSv2_L14", "webli", "timm/vit_large_patch14_reg1_tipsv2.webli", image_size=448),
    HubFile(
        "TIPSv2_So400m14", "webli", "timm/vit_so400m_patch14_reg1_tipsv2.webli", image_size=448
    ),
    HubFile("TIPSv2_g14", "webli", "timm/vit_giant_patch14_reg1_tipsv2.webli", image_size=448),
    *map(_make_dinov3, ("S16", "S16plus", "B16", "L16", "H16plus", "7B16")),
)
