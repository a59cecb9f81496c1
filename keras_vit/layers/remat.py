"""Rematerialization of a block: its intermediate results are recomputed for the gradient.

Keras's `RematScope` fails in a TensorFlow graph (keyword arguments), and draws other dropout masks
in the second computation. Here a block is called as a pure function of its weights, its seeds and
its input.
"""

import contextvars
from functools import partial
from typing import Any

import keras


class Remat(keras.layers.Layer):
    """Calls a block and recomputes it for the gradient, with the same dropout masks.

    Args:
        block: A built layer, which owns the variables.

    Example:
        >>> from keras_vit.layers import MlpBlock
        >>> block = MlpBlock(32, gelu="tanh")
        >>> block.build((None, 4, 16))
        >>> keras.ops.shape(Remat(block)(keras.ops.zeros((2, 4, 16))))
        (2, 4, 16)
    """

    def __init__(self, block: keras.layers.Layer):
        super().__init__(name=f"remat_{block.name}", dtype=block.dtype_policy)
        self.block = block
        self.built = True

    def compute_output_shape(self, x_shape: tuple, rotation_shape: tuple | None = None) -> tuple:
        return self.block.compute_output_shape(x_shape)

    def call(self, x: Any, rotation: Any = None, training: bool | None = None) -> Any:
        # Only blocks with rotary positions have a second argument.
        more = () if rotation is None else (rotation,)
        if not training:
            return self.block(x, *more, training=training)
        trainable, others = self.block.trainable_variables, self.block.non_trainable_variables
        other_values = [
            variable.value * 1 for variable in others
        ]  # copies: seeds are updated below

        def pure(x: Any, *values: Any) -> Any:
            y, new_values = self.block.stateless_call(
                list(values), other_values, x, *more, training=True
            )
            return (y, *new_values)

        context = contextvars.copy_context()  # the recomputation needs the mark of `readout.py`
        y, *new_values = keras.remat(partial(context.run, pure))(
            x, *(variable.value for variable in trainable)
        )
        for variable, value in zip(others, new_values, strict=True):
            if variable.path.endswith("seed_generator_state"):  # other variables are frozen weights
                variable.assign(value)
        return y
