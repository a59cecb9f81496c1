"""The Keras layers of the models. Each can be built, tested and saved alone."""

from keras_vit.layers.axial import AxialTransformerBlock, AxialUnit
from keras_vit.layers.norm import GroupNorm, LayerNorm
from keras_vit.layers.patches import PadToPatches, PatchEmbedding, PatchExtract
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.resnet import BiTMaxPool, BiTUnit, StdConv2D, StemUnit
from keras_vit.layers.tokens import ClassToken, MaskTokens
from keras_vit.layers.transformer import MlpBlock, MultiHeadDotProductAttention, TransformerBlock

__all__ = [
    "AddPositionEmbs",
    "AttentionPooling",
    "AxialTransformerBlock",
    "AxialUnit",
    "BiTMaxPool",
    "BiTUnit",
    "ClassToken",
    "GroupNorm",
    "LayerNorm",
    "MaskTokens",
    "MlpBlock",
    "MultiHeadDotProductAttention",
    "PadToPatches",
    "PatchEmbedding",
    "PatchExtract",
    "StdConv2D",
    "StemUnit",
    "TokenPooling",
    "TransformerBlock",
]
