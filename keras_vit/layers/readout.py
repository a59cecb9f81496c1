"""The block of a running model of which only the first token is read."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_BLOCK: contextvars.ContextVar[keras.layers.Layer | None] = contextvars.ContextVar(
    "block", default=None
)


@contextlib.contextmanager
def read_at_first_token(block: keras.layers.Layer | None) -> Iterator[None]:
    """Marks a block, inside the context, as one of which only the first token is read.

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
    """Returns whether the running model reads only the first token of this block."""
    return _BLOCK.get() is block
