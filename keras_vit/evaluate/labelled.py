"""Checks of features and labels for few-shot and linear evaluation.

Each check yields messages, so that one error can report all problems.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

_BLOCK = 2**21  # numbers per block: 16 MiB in float64


def refuse(*problems: str) -> None:
    """Raises a ValueError with all problems, if there are any."""
    if problems:
        raise ValueError(" ".join(problems))


def wrong_arrays(
    prefix: str, features: np.ndarray, labels: np.ndarray, width: int | None = None
) -> Iterator[str]:
    """Yields the problems with shapes and dtypes of features and labels.

    Args:
        prefix: Prefix of their names: "train_" or "test_".
        features: (N, D) numbers.
        labels: (N,) integers.
        width: D, if known.
    """
    fits = features.ndim == 2 and features.size and width in (None, features.shape[1])
    if not fits or features.dtype.kind not in "fiu":
        yield (
            f"`{prefix}features` must be numbers of shape (examples, {width or 'width'}) and not "
            f"empty. Received: {features.dtype} of shape {features.shape}."
        )
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
        yield (
            f"`{prefix}labels` must be integers of shape {features.shape[:1]}, one for each row of "
            f"`{prefix}features`. Received: {labels.dtype} of shape {labels.shape}."
        )


def check_finite(name: str, features: np.ndarray, rows: np.ndarray) -> None:
    """Raises a ValueError for the first of these rows with a value that is NaN or infinite."""
    for block in blocks(rows, features.shape[1]):
        finite = np.isfinite(features[block]).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"Row {block[finite.argmin()]} of `{name}` has values that are NaN or infinite. "
                "Remove it, or check the model that computed it."
            )


def blocks(rows: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Splits rows into blocks that fit into memory.

    Example:
        >>> [len(block) for block in blocks(np.arange(5), width=2**20)]
        [2, 2, 1]
    """
    size = max(1, _BLOCK // width)
    return (rows[start : start + size] for start in range(0, len(rows), size))


def count_repeated(train: np.ndarray, test: np.ndarray) -> int:
    """Counts the rows of `test` that equal a row of `train` in every bit.

    Equal features are probably those of the same image. The count is a lower bound: a batch of
    another size may round differently.

    Args:
        train: (N, ...) numbers, in memory or in a file.
        test: (M, ...) numbers of the same shape and dtype.

    Example:
        >>> count_repeated(np.eye(3), np.array([[0.0, 1, 0], [0, 1, 1], [0, 1, 0]]))
        2
    """
    digests = [*_digest_rows(test)]
    met = {*digests}.intersection(_digest_rows(train))
    return sum(digest in met for digest in digests)


def _digest_rows(features: np.ndarray) -> Iterator[bytes]:
    for rows in blocks(np.arange(len(features)), max(1, int(np.prod(features.shape[1:])))):
        for row in features[rows[0] : rows[-1] + 1]:
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def listed(values: Iterable) -> str:
    """Returns the first ten values as text, and the number of others.

    Example:
        >>> listed([1, 2.0, "cat"])
        '1, 2, cat'
    """
    words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return (
        ", ".join(words[:10]) + (f" and {len(words) - 10:,} more" if len(words) > 10 else "")
        or "none"
    )
