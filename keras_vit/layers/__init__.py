"""The Keras layers of the models. Each can be built, tested and saved alone."""

from keras_vit.layers.axial import AxialTransformerBlock, AxialUnit
from keras_vit.layers.masking import KeepTokens, RandomMask, RestoreTokens
from keras_vit.layers.norm import GroupNorm, LayerNorm
from keras_vit.layers.patches import PadToPatches, PatchEmbedding, PatchExtract
from keras_vit.layers.pixels import PatchNormalization, PixelNormalization
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.resnet import BiTMaxPool, BiTUnit, StdConv2D, StemUnit
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.scale import LayerScale
from keras_vit.layers.tokens import ClassToken, MaskTokens, Registers
from keras_vit.layers.transformer import (
    MlpBlock,
    MultiHeadDotProductAttention,
    SwiGluBlock,
    TransformerBlock,
)

__all__ = [
    "AddPositionEmbs",
    "AttentionPooling",
    "AxialTransformerBlock",
    "AxialUnit",
    "BiTMaxPool",
    "BiTUnit",
    "ClassToken",
    "GroupNorm",
    "KeepTokens",
    "LayerNorm",
    "LayerScale",
    "MaskTokens",
    "MlpBlock",
    "MultiHeadDotProductAttention",
    "PadToPatches",
    "PatchEmbedding",
    "PatchExtract",
    "PatchNormalization",
    "PixelNormalization",
    "RandomMask",
    "Registers",
    "RestoreTokens",
    "RotaryPositions",
    "StdConv2D",
    "StemUnit",
    "SwiGluBlock",
    "TokenPooling",
    "TransformerBlock",
]
