"""The table of models: one frozen row per architecture, each with its source.

A row contains the numbers that distinguish a model, and the constants that it shares with the
published checkpoints of its family. These constants have no default anywhere else.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

_TABLE_1 = "arXiv:2010.11929, Table 1"
_DEIT = "arXiv:2012.12877 (DeiT), Table 1; arXiv:2106.10270 (AugReg), Table 1"
_AUGREG = (
    "arXiv:2106.10270 (AugReg), Table 1; google-research/vision_transformer, configs/models.py"
)
_HYBRID = "arXiv:2010.11929, sections 3.1 and 4.1"
_BIT = "arXiv:1912.11370 (BiT), section 3.3; github.com/google-research/big_transfer"
_AXIAL = "arXiv:2010.11929, D.6"
_SIGLIP = "arXiv:2303.15343 (SigLIP), arXiv:2502.14786 (SigLIP 2); big_vision, models/vit.py"
_DINO = "arXiv:2104.14294 (DINO), Table 1; github.com/facebookresearch/dino"
_MAE = "arXiv:2111.06377 (MAE), appendix A; github.com/facebookresearch/mae"
_IJEPA = "arXiv:2301.08243 (I-JEPA), appendix A; github.com/facebookresearch/ijepa"
_DISTILLED = "arXiv:2012.12877 (DeiT), section 4; github.com/facebookresearch/deit"
_DEIT3 = "arXiv:2204.07118 (DeiT III), Table 1; github.com/facebookresearch/deit"
_CLIP = "arXiv:2103.00020 (CLIP), Table 20; github.com/openai/CLIP"
_OPENCLIP = "arXiv:2212.07143 (OpenCLIP), section 3; github.com/mlfoundations/open_clip"
_DINOV2 = "arXiv:2304.07193 (DINOv2), Table 17; github.com/facebookresearch/dinov2"
_REGISTERS = "arXiv:2309.16588 (registers), section 2; github.com/facebookresearch/dinov2"
_TIPS = "arXiv:2604.12012 (TIPSv2); timm 1.0.31, vision_transformer.py"
_DINOV3 = "arXiv:2508.10104 (DINOv3), Table 3; github.com/facebookresearch/dinov3"
_BASELINE = "arXiv:2010.11929, Table 6 (post-activation; google-research/big_vision, models/bit.py)"

Gelu = Literal["tanh", "exact", "quick"]
Mlp = Literal["gelu", "swiglu"]
AttentionBias = Literal["all", "no_key", "none"]
Interpolation = Literal[
    "bilinear", "bilinear_half_pixel", "bicubic", "bicubic_offset", "bicubic_antialias"
]
Classifier = Literal["token", "gap", "map", "token_gap", "none"]
Rgb = tuple[float, float, float]
_Fields = dict[str, Any]

# Attention heads of each attention inside an axial residual unit, as in arXiv:2003.07853
# (Axial-DeepLab).
AXIAL_HEADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetVariant:
    """A ResNet with group normalization and weight standardization.

    Attributes:
        name: Public name, or the name of the stem inside a hybrid.
        units: Residual units in each stage; empty for the root alone.
        width_factor: Multiplies the base width of 64 channels.
        preactivation: True for ResNet-v2 units (BiT), False for ResNet-v1.5 units (hybrids).
        norm_epsilon: Added to the variance by group normalization.
        std_epsilon: Added to the standard deviation of a kernel by weight standardization.
        variance_epsilon: Added to the variance of a kernel instead, under the square root.
        source: Source of the numbers.
        axial: Whether each 3 x 3 convolution is replaced by attention along rows, then along
            columns.
    """

    name: str
    units: tuple[int, ...]
    width_factor: int
    preactivation: bool
    norm_epsilon: float
    std_epsilon: float
    variance_epsilon: float
    source: str
    axial: bool = False

    @property
    def width(self) -> int:
        """Channels of the root."""
        return 64 * self.width_factor

    @property
    def out_channels(self) -> int:
        """Channels of the last stage, or of the root if there are no stages."""
        return self.width * 2 ** (len(self.units) + 1) if self.units else self.width

    @property
    def num_halvings(self) -> int:
        """Number of strided steps from the image to the last feature map; each halves the map and
        rounds up.
        """
        return 2 + max(len(self.units) - 1, 0)

    @property
    def total_stride(self) -> int:
        """Pixels per cell of the last feature map, along each axis."""
        return 2**self.num_halvings


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTVariant:
    """A Vision Transformer, with or without a convolutional stem.

    Attributes:
        name: Public name.
        patch_size: Side of a square patch: in pixels, or in cells of the stem's feature map.
        width: Size of a token (the paper's D).
        depth: Number of transformer blocks.
        num_heads: Attention heads per block.
        mlp_dim: Hidden size of the MLP.
        stem: The ResNet trunk of a hybrid, or None.
        norm_epsilon: Added to the variance by layer normalization.
        gelu: The form of GELU that the published checkpoints were trained with: "tanh", "exact", or
            "quick", x * sigmoid(1.702 x).
        torch_gelu: The form that timm and Hugging Face compute, if it is another.
        source: Source of the numbers.
        axial: Whether each block consists of two: attention and MLP along the rows of the grid,
            then along its columns.
        classifier: Default input of the classifier, see `models.vit.vision_transformer`.
        class_token: Whether the encoder has a class token although the classifier does not read it.
        class_position: Whether the class token has a row in the position table.
        distilled: Whether there is a distillation token.
        distilled_head: Whether the distillation token has a separate classifier. The scores are the
            mean of both. Weights that were fine-tuned without a teacher have none.
        num_registers: Learned tokens between the class token and the patches, without positions.
        norm_before_blocks: Whether tokens are normalized before the first block.
        layer_scale: Whether a learned vector scales each residual branch.
        mlp: "gelu", two dense layers, or "swiglu", with a third one as a gate.
        attention_bias: Which of query, key and value have biases: "all", "no_key" or "none".
        patch_bias: Whether the patch embedding has a bias.
        rotary: Whether attention rotates queries and keys by their positions, instead of a
            position table.
        norm_after_pooling: Whether the final norm is applied to the mean of the patches.
        projection: Outputs of a final layer without a bias, the image embedding of CLIP; None for a
            classifier.
        interpolation: How a position table of these checkpoints is resampled, see
            `keras_vit.grid.interpolation_matrix`.
        pixel_mean, pixel_std: Mean and standard deviation of the pixels, from 0 to 1, by which the
            checkpoints expect images to be normalized.
        image_size: Side of the images for which the position table was trained, in pixels.
        crop: Side of the central crop of the published evaluation, as a share of the shorter side
            of the image; None if the whole image is resized to a square.
        licence: Licence of the published weights.
    """

    name: str
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    stem: ResNetVariant | None
    norm_epsilon: float
    gelu: Gelu
    source: str
    torch_gelu: Gelu | None = None
    axial: bool = False
    classifier: Classifier = "token"
    class_token: bool = False
    class_position: bool = True
    distilled: bool = False
    distilled_head: bool = True
    num_registers: int = 0
    norm_before_blocks: bool = False
    layer_scale: bool = False
    mlp: Mlp = "gelu"
    attention_bias: AttentionBias = "all"
    patch_bias: bool = True
    rotary: bool = False
    norm_after_pooling: bool = False
    projection: int | None = None
    interpolation: Interpolation = "bilinear"
    pixel_mean: Rgb = (0.5, 0.5, 0.5)
    pixel_std: Rgb = (0.5, 0.5, 0.5)
    image_size: int = 224
    crop: float | None = None
    licence: str = "Apache-2.0"

    @property
    def crop_in_words(self) -> str:
        """The crop of the published evaluation, for reports."""
        if self.crop is None:
            return "the whole image resized to a square"
        return f"central crop of {self.crop:.3g} of the shorter side"

    @property
    def total_stride(self) -> int:
        """Pixels per token along each axis."""
        return self.patch_size * (self.stem.total_stride if self.stem else 1)


def _postactivation(
    name: str, units: tuple[int, ...], width_factor: int, source: str, axial: bool = False
) -> ResNetVariant:
    return ResNetVariant(
        name=name,
        units=units,
        width_factor=width_factor,
        preactivation=False,
        norm_epsilon=1e-6,
        std_epsilon=1e-5,
        variance_epsilon=0.0,
        source=source,
        axial=axial,
    )


def _preactivation(name: str, units: tuple[int, ...], width_factor: int) -> ResNetVariant:
    return ResNetVariant(
        name=name,
        units=units,
        width_factor=width_factor,
        preactivation=True,
        norm_epsilon=1e-5,
        std_epsilon=0.0,
        variance_epsilon=1e-10,
        source=_BIT,
    )


# (width, depth, heads, MLP width) of each size.
_SIZES = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}
# Sizes of other families, some under a name of the paper.
_MORE_SIZES = {
    "M": (512, 12, 8, 2048),
    "So400m": (1152, 27, 16, 4304),
    "g": (1408, 40, 16, 6144),
    "bigG": (1664, 48, 16, 8192),
    "gopt": (1536, 40, 16, 6144),
    "g_swiglu": (1536, 40, 24, 4096),
    "S_plus": (384, 12, 6, 1536),
    "H_plus": (1280, 32, 20, 5120),
    "7B": (4096, 40, 32, 8192),
}

_R = _postactivation("R", (), 1, _AUGREG)
_R26 = _postactivation("R26", (2, 2, 2, 2), 1, _AUGREG)
_R50_32 = _postactivation("R50", (3, 4, 6, 3), 1, _HYBRID)
_R50_16 = _postactivation("R50", (3, 4, 9), 1, _HYBRID)


def _vit(
    name: str,
    size: str,
    patch_size: int,
    source: str,
    stem: ResNetVariant | None = None,
    axial: bool = False,
) -> ViTVariant:
    width, depth, num_heads, mlp_dim = _SIZES[size]
    return ViTVariant(
        name=name,
        patch_size=patch_size,
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        stem=stem,
        norm_epsilon=1e-6,
        gelu="tanh",
        torch_gelu="exact",
        source=source,
        axial=axial,
    )


def _family(name: str, size: str, patch_size: int, **fields: Any) -> ViTVariant:
    """Makes a row of another family, by default with the exact GELU and an epsilon of 1e-6."""
    width, depth, num_heads, mlp_dim = (_SIZES | _MORE_SIZES)[size]
    return ViTVariant(
        name=name,
        patch_size=patch_size,
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        stem=None,
        **{"norm_epsilon": 1e-6, "gelu": "exact", **fields},
    )


_VIT_ROWS = (
    _vit("ViT_Ti16", "Ti", 16, _DEIT),
    _vit("ViT_S32", "S", 32, _DEIT),
    _vit("ViT_S16", "S", 16, _DEIT),
    _vit("ViT_B32", "B", 32, _TABLE_1),
    _vit("ViT_B16", "B", 16, _TABLE_1),
    _vit("ViT_B8", "B", 8, _AUGREG),
    _vit("ViT_L32", "L", 32, _TABLE_1),
    _vit("ViT_L16", "L", 16, _TABLE_1),
    _vit("ViT_H14", "H", 14, _TABLE_1),
    # "/16" is Google's name; the root strides by 4 and the patches by 8, so a token covers 32
    # pixels.
    _vit("R_ViT_Ti16", "Ti", 8, _AUGREG, stem=_R),
    _vit("R26_ViT_S32", "S", 1, _AUGREG, stem=_R26),
    _vit("R26_ViT_B32", "B", 1, _AUGREG, stem=_R26),
    _vit("R50_ViT_B32", "B", 1, _HYBRID, stem=_R50_32),
    _vit("R50_ViT_B16", "B", 1, _HYBRID, stem=_R50_16),
    _vit("R50_ViT_L32", "L", 1, _HYBRID, stem=_R50_32),
    _vit("R50_ViT_L16", "L", 1, _HYBRID, stem=_R50_16),
    _vit("AxialViT_B32", "B", 32, _AXIAL, axial=True),
    _vit("AxialViT_B16", "B", 16, _AXIAL, axial=True),
)

_IMAGENET_PIXELS: _Fields = {
    "pixel_mean": (0.485, 0.456, 0.406),
    "pixel_std": (0.229, 0.224, 0.225),
}
_CLIP_PIXELS: _Fields = {
    "pixel_mean": (0.48145466, 0.4578275, 0.40821073),
    "pixel_std": (0.26862954, 0.26130258, 0.27577711),
}
_NON_COMMERCIAL = "CC-BY-NC-4.0"

_siglip = partial(_family, gelu="tanh", classifier="map")
_dino = partial(
    _family,
    source=_DINO,
    class_token=True,
    interpolation="bicubic_offset",
    crop=0.875,
    **_IMAGENET_PIXELS,
)
_mae = partial(
    _family,
    source=_MAE,
    classifier="gap",
    class_token=True,
    norm_after_pooling=True,
    interpolation="bicubic",
    crop=0.875,
    licence=_NON_COMMERCIAL,
    **_IMAGENET_PIXELS,
)
_ijepa = partial(
    _family,
    source=_IJEPA,
    classifier="gap",
    interpolation="bicubic",
    licence=_NON_COMMERCIAL,
    **_IMAGENET_PIXELS,
)
_deit = partial(
    _family,
    source=_DISTILLED,
    class_token=True,
    interpolation="bicubic",
    crop=0.9,
    **_IMAGENET_PIXELS,
)
_deit3 = partial(
    _family,
    source=_DEIT3,
    class_token=True,
    class_position=False,
    layer_scale=True,
    interpolation="bicubic",
    crop=1.0,
    **_IMAGENET_PIXELS,
)
_clip = partial(
    _family,
    norm_epsilon=1e-5,
    class_token=True,
    norm_before_blocks=True,
    patch_bias=False,
    interpolation="bicubic_antialias",
    crop=1.0,
    licence="MIT",
    **_CLIP_PIXELS,
)
_dinov2 = partial(
    _family,
    class_token=True,
    layer_scale=True,
    image_size=518,
    crop=0.875,
    **_IMAGENET_PIXELS,
)
_tips = partial(
    _dinov2,
    source=_TIPS,
    class_position=False,
    num_registers=1,
    interpolation="bicubic_antialias",
    image_size=448,
    crop=None,
    pixel_mean=(0.0, 0.0, 0.0),
    pixel_std=(1.0, 1.0, 1.0),
)
_dinov3 = partial(
    _family,
    source=_DINOV3,
    norm_epsilon=1e-5,
    class_token=True,
    num_registers=4,
    layer_scale=True,
    attention_bias="no_key",
    rotary=True,
    image_size=256,
    crop=0.875,
    licence="DINOv3 License",
    **_IMAGENET_PIXELS,
)
_DINOV2_SIZES = (
    ("S14", "S", "gelu"),
    ("B14", "B", "gelu"),
    ("L14", "L", "gelu"),
    ("g14", "g_swiglu", "swiglu"),
)

_FAMILY_ROWS = (
    _siglip("SigLIP_B16", "B", 16, source=_SIGLIP),
    _siglip("SigLIP_L16", "L", 16, source=_SIGLIP, image_size=256),
    _siglip("SigLIP_So400m14", "So400m", 14, source=_SIGLIP),
    _siglip("SigLIP_So400m16", "So400m", 16, source=_SIGLIP, image_size=256),
    _siglip("SigLIP_gopt16", "gopt", 16, source=_SIGLIP, image_size=256),
    _dino("DINO_S16", "S", 16),
    _dino("DINO_S8", "S", 8),
    _dino("DINO_B16", "B", 16),
    _dino("DINO_B8", "B", 8),
    _mae("MAE_B16", "B", 16),
    _mae("MAE_L16", "L", 16),
    _mae("MAE_H14", "H", 14),
    _ijepa("IJEPA_H14", "H", 14),
    _ijepa("IJEPA_H16", "H", 16, image_size=448),
    _ijepa("IJEPA_G16", "g", 16),
    _deit("DeiT_Ti16", "Ti", 16),
    _deit("DeiT_S16", "S", 16),
    _deit("DeiT_B16", "B", 16),
    _deit("DeiT_Ti16_distilled", "Ti", 16, distilled=True),
    _deit("DeiT_S16_distilled", "S", 16, distilled=True),
    _deit("DeiT_B16_distilled", "B", 16, distilled=True),
    _deit3("DeiT3_S16", "S", 16),
    _deit3("DeiT3_M16", "M", 16),
    _deit3("DeiT3_B16", "B", 16),
    _deit3("DeiT3_L16", "L", 16),
    _deit3("DeiT3_H14", "H", 14),
    _clip("CLIP_B32", "B", 32, source=_CLIP, gelu="quick", projection=512),
    _clip("CLIP_B16", "B", 16, source=_CLIP, gelu="quick", projection=512),
    _clip("CLIP_L14", "L", 14, source=_CLIP, gelu="quick", projection=768),
    _clip("CLIP_H14", "H", 14, source=_OPENCLIP, projection=1024),
    _clip("CLIP_g14", "g", 14, source=_OPENCLIP, projection=1024),
    _clip("CLIP_bigG14", "bigG", 14, source=_OPENCLIP, projection=1280),
    *(
        _dinov2(f"DINOv2_{name}", size, 14, source=_DINOV2, mlp=mlp, interpolation="bicubic_offset")
        for name, size, mlp in _DINOV2_SIZES
    ),
    *(
        _dinov2(
            f"DINOv2_{name}_reg4",
            size,
            14,
            source=_REGISTERS,
            mlp=mlp,
            num_registers=4,
            interpolation="bicubic_antialias",
        )
        for name, size, mlp in _DINOV2_SIZES
    ),
    _tips("TIPSv2_B14", "B", 14),
    _tips("TIPSv2_L14", "L", 14),
    _tips("TIPSv2_So400m14", "So400m", 14),
    _tips("TIPSv2_g14", "g_swiglu", 14, mlp="swiglu"),
    _dinov3("DINOv3_S16", "S", 16),
    _dinov3("DINOv3_S16plus", "S_plus", 16, mlp="swiglu"),
    _dinov3("DINOv3_B16", "B", 16),
    _dinov3("DINOv3_L16", "L", 16),
    _dinov3("DINOv3_H16plus", "H_plus", 16, mlp="swiglu"),
    _dinov3("DINOv3_7B16", "7B", 16, mlp="swiglu", attention_bias="none"),
)

_RESNET_ROWS = (
    _preactivation("BiT_R50x1", (3, 4, 6, 3), 1),
    _preactivation("BiT_R50x3", (3, 4, 6, 3), 3),
    _preactivation("BiT_R101x1", (3, 4, 23, 3), 1),
    _preactivation("BiT_R101x3", (3, 4, 23, 3), 3),
    _preactivation("BiT_R152x2", (3, 8, 36, 3), 2),
    _preactivation("BiT_R152x4", (3, 8, 36, 3), 4),
    _postactivation("ResNet50x1", (3, 4, 6, 3), 1, _BASELINE),
    _postactivation("ResNet50x2", (3, 4, 6, 3), 2, _BASELINE),
    _postactivation("ResNet101x1", (3, 4, 23, 3), 1, _BASELINE),
    _postactivation("ResNet152x1", (3, 8, 36, 3), 1, _BASELINE),
    _postactivation("ResNet152x2", (3, 8, 36, 3), 2, _BASELINE),
    _postactivation("ResNet200x3", (3, 24, 36, 3), 3, _BASELINE),
    _postactivation("AxialResNet50", (3, 4, 6, 3), 1, _AXIAL, axial=True),
)

# The paper's ViTs and hybrids, and the other families of plain ViTs.
VIT_VARIANTS: dict[str, ViTVariant] = {row.name: row for row in _VIT_ROWS}
FAMILY_VARIANTS: dict[str, ViTVariant] = {row.name: row for row in _FAMILY_ROWS}
RESNET_VARIANTS: dict[str, ResNetVariant] = {row.name: row for row in _RESNET_ROWS}
VARIANTS: dict[str, ViTVariant | ResNetVariant] = {
    **VIT_VARIANTS,
    **RESNET_VARIANTS,
    **FAMILY_VARIANTS,
}
