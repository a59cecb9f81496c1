"""Complete models with random weights."""

from keras_vit.models.resnet import resnet
from keras_vit.models.vit import embed_patches, encode_tokens, vision_transformer

__all__ = ["embed_patches", "encode_tokens", "resnet", "vision_transformer"]
