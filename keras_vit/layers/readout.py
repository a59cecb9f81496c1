"""Which block of a running model is read at its first token alone."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_BLOCK: contextvars.ContextVar[keras.layers.Layer | None] = contextvars.ContextVar(
    "block", default=None
)


@contextlib.contextmanager
def read_at_first_token(block: keras.layers.Layer | None) -> Iterator[None]:
    """Tells a block, for as long as this lasts, that only the first token of its result is read.

    Example:
        >>> block = keras.layers.Identity()
        >>> with read_at_first_token(block):
        ...     is_read_at_first_token(block)
        True
        >>> is_read_at_first_token(block)
        False
    """
    token = _BLOCK.set(block)
    try:
        yield
    finally:
        _BLOCK.reset(token)


def is_read_at_first_token(block: keras.layers.Layer) -> bool:
    """Returns whether the model that is running reads nothing but the first token of this block."""
    return _BLOCK.get() is block
