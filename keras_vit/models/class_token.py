"""Models that read only the class token: their last block skips the other tokens if possible.

The class token of the last block needs one query and one row of the MLP. The other tokens of this
block are 7 % of the products of a ViT-B/16. All tokens stay in the graph of the model, so models
built from its layers compute all of them, and gradients with respect to any token are correct.
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
    """A functional model that marks its last block if only its class token is read.

    `keras_vit.kernels.first_token_suffices` decides whether the block then computes only this
    token. The outputs equal those of `keras.Model(inputs, outputs)` up to rounding.

    Args:
        inputs, outputs, name: Arguments of `keras.Model`.

    Example:
        >>> trunk = keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token", input_shape=(32, 32, 3))
        >>> ClassTokenModel(trunk.input, keras.layers.Dense(3)(trunk.output)).output_shape
        (None, 3)
    """

    def call(self, inputs, training=None, mask=None):
        with read_at_first_token(block_read_at_class_token(self)):
            return super().call(inputs, training=training, mask=mask)


def block_read_at_class_token(model: keras.Model) -> TransformerBlock | None:
    """Returns the block of which a functional model reads only the class token, or None.

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
    """Returns the block that computes these tokens, if no other operation reads them.

    A layer normalization may follow the block.
    """
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
