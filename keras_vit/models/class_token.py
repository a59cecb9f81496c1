"""Models that read the class token alone: their last block computes no other token where that
changes nothing.

The class token of the last block needs one query and one row of the MLP; the rest is 7 % of the
products of a ViT-B/16. All tokens stay in the graph of the model: a model that is made of its
layers computes them, and gradients with respect to any of them are right.
"""

from typing import Any

import keras

from keras_vit.graph import calls_of, maker_of
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.pooling import TokenPooling
from keras_vit.layers.readout import read_at_first_token
from keras_vit.layers.remat import Remat
from keras_vit.layers.transformer import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassTokenModel(keras.Model):
    """A functional model that tells its last block when nothing but the class token is read.

    What the block makes of it is the business of `keras_vit.kernels.first_token_suffices`. The
    outputs are those of `keras.Model(inputs, outputs)` up to rounding.

    Args:
        inputs, outputs, name: As of `keras.Model`.

    Example:
        >>> trunk = keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token", input_shape=(32, 32, 3))
        >>> ClassTokenModel(trunk.input, keras.layers.Dense(3)(trunk.output)).output_shape
        (None, 3)
    """

    def call(self, inputs, training=None, mask=None):
        with read_at_first_token(block_read_at_class_token(self)):
            return super().call(inputs, training=training, mask=mask)


def block_read_at_class_token(model: keras.Model) -> TransformerBlock | None:
    """Returns the block of whose result only the class token reaches the outputs of a functional
    model, or None.

    Example:
        >>> block_read_at_class_token(keras_vit.ViT_Ti16(weights=None)).name
        'encoderblock_11'
        >>> block_read_at_class_token(keras_vit.ViT_Ti16(weights=None, classifier="gap"))
    """
    calls = calls_of(model)
    reads = [id(tensor) for call in calls for tensor in call.input_tensors] + [
        id(tensor) for tensor in model.outputs
    ]
    for call in calls:
        if isinstance(call.operation, TokenPooling) and call.operation.mode == "token":
            return _find_block_before(call.input_tensors[0], reads)
    return None


def _find_block_before(tokens: keras.KerasTensor, reads: list[int]) -> TransformerBlock | None:
    """The block that these tokens come from, normalized or not, if nobody else reads them."""
    while reads.count(id(tokens)) == 1:
        call = maker_of(tokens)
        operation: Any = (
            call.operation.block if isinstance(call.operation, Remat) else call.operation
        )
        if isinstance(operation, TransformerBlock):
            return operation
        if not isinstance(operation, LayerNorm):
            return None
        tokens = call.input_tensors[0]
    return None
