"""Attention weights, mean attention distance and attention rollout of a model.

Source: arXiv:2010.11929, appendix D.7 and D.8, Figures 6, 7, 11 and 14; attention rollout:
arXiv:2005.00928.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.analyze.attention_arithmetic import distances_px
from keras_vit.analyze.attention_model import (
    AttentionMaps,
    AttentionSums,
    HeadMaps,
    compiled_once,
    computed,
)
from keras_vit.analyze.attention_sites import Sites, blocks_of, find_attention
from keras_vit.analyze.batches import Taken, batches_of, check_shape, is_array

_BYTES_OF_A_STEP, _MOST_IMAGES = 64e6, 32  # the attention weights of one layer
# Attention weights in memory during a step, besides the result, as a multiple of those of the step.
# Measured for one image: 4.2 times the result in all.
_COPIES_IN_A_STEP = 3
_SECONDS_BEFORE_BAR = 2  # shorter analyses show no progress bar
_UNKNOWN_FREE_BYTES = 8e9  # assumed if the system does not report it
_CGROUP = Path("/sys/fs/cgroup")  # limits of a container


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSummary:
    """Attention of a model over many images.

    Attributes:
        layers: Names of the L blocks; each half of an axial block is a layer.
        distance_px: (L, A) mean attention distance of each head in pixels, over all images.
        rollouts: (n, R, C) float32, rollouts of the first n images; see `attention_rollout`.
        grid: (R, C), rows and columns of patches.
        patch_px: Height and width of a patch in pixels.
        num_images: Number of images in the mean.
    """

    layers: tuple[str, ...]
    distance_px: np.ndarray
    rollouts: np.ndarray
    grid: tuple[int, int]
    patch_px: tuple[float, float]
    num_images: int


def has_attention(model: keras.Model) -> bool:
    """Returns whether a model, or a model inside it, contains encoder blocks.

    Example:
        >>> has_attention(keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3)))
        True
        >>> has_attention(keras_vit.ResNet50x1(weights=None, input_shape=(32, 32, 3)))
        False
    """
    return bool(blocks_of(model))


def grid_of_model(model: keras.Model, image_size: tuple[int, int] | None = None) -> tuple[int, int]:
    """Returns the (rows, columns) of patches that a model cuts images into.

    Args:
        model: A model with attention and one `PatchEmbedding`.
        image_size: (height, width) in pixels; default: that of the model.

    Raises:
        ValueError: If the model has no patches, or does not take images of that size.

    Example:
        >>> grid_of_model(keras_vit.R_ViT_Ti16(weights=None, input_shape=(224, 384, 3)))
        (7, 12)
    """
    sites = find_attention(model)
    return sites.grid(_check_image_size(sites, image_size))


def patch_px_of_model(
    model: keras.Model, image_size: tuple[int, int] | None = None
) -> tuple[float, float]:
    """Returns the height and width of a patch, in pixels of the input of the ViT or its stem.

    Args, Raises: As in `grid_of_model`.

    Example:
        >>> patch_px_of_model(keras_vit.R_ViT_Ti16(weights=None, input_shape=(224, 384, 3)))
        (32.0, 32.0)
    """
    sites = find_attention(model)
    return sites.patch_px(_check_image_size(sites, image_size))


def attention_maps(
    model: keras.Model, images: np.ndarray, *, batch_size: int | None = None
) -> np.ndarray:
    """Returns all attention weights of a few images. For many images, use `summarize_attention`.

    Args:
        model: A ViT or a hybrid, or a functional model that contains one.
        images: (B, H, W, C), uint8, or float in the range of the model: [-1, 1], unless it scales
            pixels itself.
        batch_size: Images per step. Default: chosen for speed.

    Returns:
        (L, B, A, N, N) float32, queries before keys; rows sum to 1. Each half of an axial block is
        a layer, row attention before column attention.

    Raises:
        ValueError: If the model has no attention, the images are of another kind, or the weights do
            not fit into the free memory.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> attention_maps(model, np.zeros((2, 32, 32, 3), "uint8")).shape
        (12, 2, 3, 5, 5)
    """
    sites, image_size = _find_sites(model, images)
    num_layers, *of_a_layer = sites.scores_shape(image_size)
    shape = (num_layers, len(images), *of_a_layer)
    rows = (
        max(1, _choose_batch_size(sites, image_size) // num_layers)
        if batch_size is None
        else batch_size
    )
    _check_memory(shape, rows)
    maps, done = np.empty(shape, np.float32), 0
    compiled = compiled_once(
        model, AttentionMaps, image_size, sites.pixels, lambda: AttentionMaps(sites)
    )
    for batch in batches_of(images, lambda _: rows, _describe_input(sites)):
        weights = computed(compiled, batch.images, min(rows, len(images)))
        maps[:, done : done + len(weights)] = np.moveaxis(weights, 1, 0)
        done += len(weights)
    return maps


def attention_rollout(
    model: keras.Model, images: np.ndarray, *, batch_size: int | None = None
) -> np.ndarray:
    """Returns the attention rollout: the share of each patch in the input of the classifier.

    It is the mean of the rows of `rollout` of those tokens that the classifier reads, over the
    patches:

    - class token: its row; in a distilled DeiT, the mean of its row and that of the distillation
      token
    - mean or maximum of the patches: the mean of their rows
    - class token and mean of the patches: the mean of these two
    - attention pooling: all rows, weighted by the attention of the pooling, averaged over its heads

    Without a pooling of this package, the class token is taken, or the mean of the patches if there
    is none.

    Args:
        model, images, batch_size: As in `attention_maps`.

    Returns:
        (B, R, C) float32, at least 0. The sum is 1 minus the share of the tokens before the
        patches. To show it over a photo, divide by the maximum.

    Raises:
        ValueError: If the model has no attention or no grid of patches, or the images are of
            another kind.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3))
        >>> attention_rollout(model, np.zeros((2, 32, 48, 3), "uint8")).shape
        (2, 2, 3)

    Source: arXiv:2010.11929, D.8, Figures 6 and 14; arXiv:2005.00928.
    """
    _check_array(images)
    return summarize_attention(
        model, images, batch_size=batch_size, num_rollouts=len(images)
    ).rollouts


def head_maps(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Returns the attention of each head to the patches, from what the classifier reads.

    It is the mean of rows of `attention_maps`, weighted as in `attention_rollout`: for a class
    token, its row. The weights are reduced in the graph, one batch at a time, so those of large
    images need not fit into memory for all images at once.

    Args:
        model, images: As in `attention_maps`.

    Returns:
        (B, L, A, R, C) float32, at least 0. The sum over the patches is 1 minus the attention to
        the tokens before them.

    Raises:
        ValueError: As in `attention_rollout`.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3))
        >>> head_maps(model, np.zeros((2, 32, 48, 3), "uint8")).shape
        (2, 12, 3, 2, 3)
    """
    sites, image_size = _find_sites(model, images)
    grid, rows = sites.grid(image_size), _choose_batch_size(sites, image_size)

    def make() -> HeadMaps:
        shares = sites.shares(image_size)
        return HeadMaps(sites, shares, len(shares) - math.prod(grid))

    compiled = compiled_once(model, HeadMaps, image_size, sites.pixels, make)
    maps = [np.zeros(0, np.float32)]
    for batch in batches_of(images, lambda _: rows, _describe_input(sites)):
        maps.append(computed(compiled, batch.images, min(rows, len(images))).ravel())
    shape = (len(images), *sites.scores_shape(image_size)[:2], *grid)
    return np.concatenate(maps).reshape(shape)


def summarize_attention(
    model: keras.Model,
    images: Any,
    *,
    batch_size: int | None = None,
    num_rollouts: int = 0,
    progress: bool = False,
) -> AttentionSummary:
    """Returns mean attention distances and rollouts over any number of images, in one pass.

    The attention weights are reduced in the graph, one batch at a time, so memory does not grow
    with the number of images.

    Args:
        model: A ViT or a hybrid, or a functional model that contains one.
        images: (B, H, W, C), as in `attention_maps`; or an iterable of such batches, or of tuples
            (images, labels, weights), such as a `tf.data.Dataset`. Images of weight 0 are ignored.
        batch_size: Images per step, if `images` is an array. Default: chosen for speed.
        num_rollouts: Number of images, from the first, whose rollouts are returned.
        progress: Shows a progress bar on a terminal if the analysis takes more than 2 s.

    Raises:
        ValueError: If the model has no attention or no grid of patches, or the images are of
            another kind, differ in size, or are none.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> summary = summarize_attention(model, np.zeros((5, 32, 32, 3), "uint8"))
        >>> summary.distance_px.shape, summary.grid, summary.num_images
        ((12, 3), (2, 2), 5)

    Source: arXiv:2010.11929, D.7, Figures 7 and 11.
    """
    sites = find_attention(model)
    if batch_size is not None and not is_array(images):
        raise ValueError(
            f"`batch_size` applies only to arrays: omit it for an iterable of batches. Received: "
            f"{batch_size}."
        )
    total, kept, num_images, image_size = np.zeros(1), [np.zeros(0, np.float32)], 0, (0, 0)
    with _make_bar(len(images) if is_array(images) else None, progress) as bar:
        for size, distances, rollouts in _iterate_sums(model, sites, images, batch_size):
            image_size = size
            total = total + distances.sum(axis=0, dtype=np.float64)
            if num_images < num_rollouts:
                kept.append(rollouts[: num_rollouts - num_images].ravel())
            num_images += len(distances)
            bar.update(len(distances))
    if not num_images:
        raise ValueError("There are no images, or all have weight 0.")
    grid = sites.grid(image_size)
    return AttentionSummary(
        layers=sites.layers,
        distance_px=total / num_images,
        rollouts=np.concatenate(kept).reshape(-1, *grid),
        grid=grid,
        patch_px=sites.patch_px(image_size),
        num_images=num_images,
    )


def _iterate_sums(
    model: keras.Model, sites: Sites, images: Any, batch_size: int | None
) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Yields for each batch: image size, distances (n, L, A), rollouts (n, R * C)."""
    compiled, rows = None, 0
    batch_rows = (
        functools.partial(_choose_batch_size, sites) if batch_size is None else lambda _: batch_size
    )
    for batch in batches_of(images, batch_rows, _describe_input(sites)):
        image_size = batch.images.shape[1:3]
        if compiled is None:
            make = functools.partial(_make_sums_model, sites, image_size)
            compiled = compiled_once(model, AttentionSums, image_size, sites.pixels, make)
        rows = max(rows, len(batch.images))
        distances, rollouts = computed(compiled, batch.images, rows)
        yield image_size, distances[batch.kept], rollouts[batch.kept]


def _make_sums_model(sites: Sites, image_size: tuple[int, int]) -> AttentionSums:
    distances = distances_px(sites.grid(image_size), sites.patch_px(image_size))
    return AttentionSums(sites, distances, sites.shares(image_size))


def _describe_input(sites: Sites) -> Taken:
    return Taken(sites.image_shape, sites.pixels)


def _choose_batch_size(sites: Sites, image_size: tuple[int, int]) -> int:
    return int(
        np.clip(
            _BYTES_OF_A_STEP // (4 * math.prod(sites.scores_shape(image_size)[1:])), 1, _MOST_IMAGES
        )
    )


def _check_image_size(sites: Sites, image_size: tuple[int, int] | None) -> tuple[int, int]:
    *size, channels = sites.image_shape
    size = tuple(size) if image_size is None else tuple(image_size)
    if None in size:
        raise ValueError(
            "The model takes images of any size: pass `image_size`, (height, width) in pixels."
        )
    check_shape((1, *size, channels), _describe_input(sites))
    return size


def _find_sites(model: keras.Model, images: np.ndarray) -> tuple[Sites, tuple[int, int]]:
    """Returns the attention layers of a model and the (height, width) of checked images."""
    sites = find_attention(model)
    _check_array(images)
    check_shape(images.shape, _describe_input(sites))
    return sites, (images.shape[1], images.shape[2])


def _check_array(images: Any) -> None:
    if not is_array(images):
        raise ValueError(
            f"`images` must be one array (B, H, W, C). Received: {type(images).__name__}. For "
            "batches, use `summarize_attention`."
        )


def _check_memory(shape: tuple[int, ...], rows: int) -> None:
    """Raises ValueError if maps (L, B, A, N, N) do not fit, computed with `rows` images per step."""
    count, bytes_of_one = shape[1], 4 * math.prod(shape) // max(1, shape[1])
    in_a_step = _COPIES_IN_A_STEP * min(rows, count)
    needed, free = (count + in_a_step) * bytes_of_one, _measure_free_bytes()
    if needed <= free:
        return
    fitting = int(free // bytes_of_one)
    most = max(fitting - _COPIES_IN_A_STEP * rows, min(rows, fitting // (1 + _COPIES_IN_A_STEP)))
    advice = (
        f"Pass at most {most:,} images at once, or use"
        if most > 0
        else "Not even one image fits: pass smaller images, or use"
    )
    raise ValueError(
        f"The attention weights of {count:,} images, float32 of the shape {shape}, take "
        f"{count * bytes_of_one:,} bytes, {needed:,} while they are computed, and {int(free):,} are "
        f"free. {advice} `summarize_attention`, which returns distances and rollouts of any number."
    )


def _measure_free_bytes() -> float:
    """Returns the free memory of the machine, or of the container if it has less."""
    try:
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        free = 1024.0 * int(available[1]) if available else _UNKNOWN_FREE_BYTES
    except OSError:
        return _UNKNOWN_FREE_BYTES
    try:
        limit, used, parts = (
            (_CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current", "stat")
        )
    except OSError:
        return free
    # pages of files that were read or written, which the kernel drops as soon as it needs them
    cached = re.search(r"^inactive_file (\d+)$", parts, re.MULTILINE)
    if limit.isdecimal():
        free = min(free, int(limit) - int(used) + (int(cached[1]) if cached else 0))
    return free


def _make_bar(total: int | None, progress: bool) -> Any:
    from tqdm import tqdm

    hidden = None if progress else True  # None: shown only on a terminal
    return tqdm(total=total, unit="image", disable=hidden, delay=_SECONDS_BEFORE_BAR, leave=False)
