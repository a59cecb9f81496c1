"""The table of models: one frozen row per architecture, each with its source.

What lives here: the numbers that tell one model from another, and the constants that a model
must share with the published checkpoints of its family (they have no default anywhere else).
What does not: anything that is computed from them (`cost/`) or built from them (`models/`).
"""

from dataclasses import dataclass
from typing import Literal

_TABLE_1 = "arXiv:2010.11929, Table 1"
_DEIT = "arXiv:2012.12877 (DeiT), Table 1; arXiv:2106.10270 (AugReg), Table 1"
_AUGREG = (
    "arXiv:2106.10270 (AugReg), Table 1; google-research/vision_transformer, configs/models.py"
)
_HYBRID = "arXiv:2010.11929, sections 3.1 and 4.1"
_BIT = "arXiv:1912.11370 (BiT), section 3.3; github.com/google-research/big_transfer"
_AXIAL = "arXiv:2010.11929, D.6"
_BASELINE = "arXiv:2010.11929, Table 6 (post-activation; google-research/big_vision, models/bit.py)"

Gelu = Literal["tanh", "exact"]

# Attention heads of each attention inside an axial residual unit, as in arXiv:2003.07853
# (Axial-DeepLab).
AXIAL_HEADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetVariant:
    """A ResNet with group normalization and weight standardization.

    Attributes:
        name: Public name, or the name of the stem inside a hybrid.
        units: Residual units in each stage. Empty: the root alone.
        width_factor: Multiplies the base width of 64 channels.
        preactivation: True for ResNet-v2 units (BiT), False for ResNet-v1.5 units (hybrids).
        norm_epsilon: Added to the variance by group normalization.
        std_epsilon: Added to the standard deviation of a kernel by weight standardization.
        variance_epsilon: Added to the variance of a kernel instead, under the square root.
        source: Where the numbers come from.
        axial: Whether attention along rows, then along columns, stands in place of each 3 x 3
            convolution.
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
        """Channels of the last stage; of the root when there is no stage."""
        return self.width * 2 ** (len(self.units) + 1) if self.units else self.width

    @property
    def num_halvings(self) -> int:
        """Strided steps from the image to the last feature map; each halves the map and rounds
        up.
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
        gelu: The form of GELU that the published checkpoints were trained with.
        source: Where the numbers come from.
        axial: Whether each block is two: attention and MLP along the rows of the grid, then along
            its columns.
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
    axial: bool = False

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
        source=source,
        axial=axial,
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

VIT_VARIANTS: dict[str, ViTVariant] = {row.name: row for row in _VIT_ROWS}
RESNET_VARIANTS: dict[str, ResNetVariant] = {row.name: row for row in _RESNET_ROWS}
VARIANTS: dict[str, ViTVariant | ResNetVariant] = {**VIT_VARIANTS, **RESNET_VARIANTS}
