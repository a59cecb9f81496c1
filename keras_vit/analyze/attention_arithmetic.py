"""Mean attention distance and attention rollout, computed from arrays of attention weights.

Source: arXiv:2010.11929, appendix D.7 and D.8; attention rollout: arXiv:2005.00928.
"""

import numpy as np


def distances_px(grid: tuple[int, int], patch_px: tuple[float, float]) -> np.ndarray:
    """Returns the distances between patch centres, (R * C, R * C) in pixels, in raster order.

    Args:
        grid: (R, C), rows and columns of patches.
        patch_px: Height and width of a patch in pixels.

    Example:
        >>> distances_px((1, 3), (16.0, 16.0))
        array([[ 0., 16., 32.],
               [16.,  0., 16.],
               [32., 16.,  0.]])
    """
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    down, across = rows * float(patch_px[0]), columns * float(patch_px[1])
    return np.hypot(down[:, None] - down, across[:, None] - across)


def mean_distance(
    scores: np.ndarray, grid: tuple[int, int], patch_px: tuple[float, float], num_prefix_tokens: int
) -> np.ndarray:
    """Returns the mean attention distance of each head, in pixels.

    The distance from a query patch to each key patch is weighted by attention, summed over the keys
    and averaged over the queries. The paper compares it to the receptive field of a CNN. Rows and
    columns of prefix tokens are removed, and the remaining weights are not normalized again:
    attention to the class token counts as distance 0.

    Args:
        scores: (..., A, N, N) attention weights, queries before keys, N = T + R * C.
        grid: (R, C), rows and columns of patches.
        patch_px: Height and width of a patch in pixels.
        num_prefix_tokens: T, number of tokens before the patches.

    Returns:
        (..., A) in pixels.

    Raises:
        ValueError: If the number of tokens is not T + R * C.

    Example:
        >>> uniform = np.full((12, 196, 196), 1 / 196)
        >>> mean_distance(uniform, (14, 14), (16.0, 16.0), 0)[0].round(2)
        np.float64(116.49)

    Source: arXiv:2010.11929, D.7; the form is that of the first author's code, posted at
    google-research/vision_transformer.
    """
    scores, length = np.asarray(scores), num_prefix_tokens + grid[0] * grid[1]
    if scores.shape[-2:] != (length, length):
        raise ValueError(
            f"`scores` must be (..., {length}, {length}): {num_prefix_tokens} prefix tokens and a "
            f"grid of {grid}. Received: {scores.shape}."
        )
    patches = scores[..., num_prefix_tokens:, num_prefix_tokens:]
    return np.einsum("...qk,qk->...", patches, distances_px(grid, patch_px)) / patches.shape[-1]


def rollout(scores: np.ndarray) -> np.ndarray:
    """Returns the attention rollout: the share of each input token in each output token.

    In each layer the heads are averaged, the identity is added for the residual connection, and the
    rows are normalized to sum to 1. The rollout is the product of the layers, with the last layer
    on the left.

    Args:
        scores: (L, ..., A, N, N) attention weights, first layer first, queries before keys.

    Returns:
        (..., N, N): one row for each output token; rows sum to 1.

    Raises:
        ValueError: If there are fewer than 4 axes, or the last two have different lengths.

    Example:
        >>> rollout(np.array([[[[0.5, 0.5], [0.0, 1.0]]]]))
        array([[0.75, 0.25],
               [0.  , 1.  ]])

    Source: arXiv:2005.00928; arXiv:2010.11929, D.8. The identity is added according to the first
    author, at google-research/vision_transformer.
    """
    scores = np.asarray(scores)
    if scores.ndim < 4 or scores.shape[-1] != scores.shape[-2] or not len(scores):
        raise ValueError(
            f"`scores` must be (L, ..., A, N, N), L at least 1. Received: {scores.shape}."
        )
    mixing = scores.mean(axis=-3, dtype=np.float64) + np.eye(scores.shape[-1])
    mixing /= mixing.sum(axis=-1, keepdims=True)
    product = mixing[0]
    for layer in mixing[1:]:
        product = layer @ product
    return product
