"""Rematerialization: blocks store only their inputs and recompute the rest for the gradient."""

import keras

from keras_vit.layers import AxialTransformerBlock, AxialUnit, BiTUnit, StemUnit, TransformerBlock
from keras_vit.layers.remat import Remat

BLOCKS = (TransformerBlock, AxialTransformerBlock, BiTUnit, StemUnit, AxialUnit)


def rematerialize(model: keras.Model) -> keras.Model:
    """Returns a model whose blocks are wrapped in `Remat`. Both models share all variables.

    Example:
        >>> import keras_vit
        >>> model = keras_vit.ViT_Ti16(weights=None, classes=10)
        >>> rematerialize(model).count_params() == model.count_params()
        True
    """
    return keras.models.clone_model(
        model, clone_function=lambda layer: Remat(layer) if isinstance(layer, BLOCKS) else layer
    )
