"""What a model attends to: its attention weights, how far they reach in pixels, and attention
rollout.

The weights of many images are summed in the graph, a batch at a time, and never leave it.

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
from keras_vit.analyze.attention_model import AttentionMaps, AttentionSums, compiled_once, computed
from keras_vit.analyze.attention_sites import Sites, blocks_of, find_attention
from keras_vit.analyze.batches import Taken, batches_of, check_shape, is_array

_BYTES_OF_A_STEP, _MOST_IMAGES = 64e6, 32  # the attention weights of one layer
_SECONDS_BEFORE_BAR = 2  # what takes less needs no bar
_UNKNOWN_FREE_BYTES = 8e9  # where the system does not say


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSummary:
    """How a model attends, over many images.

    Attributes:
        layers: Names of the L blocks; each half of an axial block is a layer.
        distance_px: (L, A) mean attention distance of each head in pixels, over all images.
        rollouts: (n, R, C) float32, of the first images, as many as were asked for; see
            `attention_rollout`.
        grid: (R, C), rows and columns of patches.
        patch_px: Height and width of a patch in pixels.
        num_images: Over which the mean is taken.
    """

    layers: tuple[str, ...]
    distance_px: np.ndarray
    rollouts: np.ndarray
    grid: tuple[int, int]
    patch_px: tuple[float, float]
    num_images: int


def has_attention(model: keras.Model) -> bool:
    """Returns whether there are encoder blocks in a model, or in one inside it.

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
        model: With attention, and a `PatchEmbedding`.
        image_size: (height, width) in pixels; default: that of the model.

    Raises:
        ValueError: If the model has no patches, or takes no images of that size.

    Example:
        >>> grid_of_model(keras_vit.R_ViT_Ti16(weights=None, input_shape=(224, 384, 3)))
        (7, 12)
    """
    sites = find_attention(model)
    return sites.grid(_image_size(sites, image_size))


def patch_px_of_model(
    model: keras.Model, image_size: tuple[int, int] | None = None
) -> tuple[float, float]:
    """Returns the height and width of a patch in pixels: of the image that the first layer of ViT
    or stem is given.

    Args, Raises: As of `grid_of_model`.

    Example:
        >>> patch_px_of_model(keras_vit.R_ViT_Ti16(weights=None, input_shape=(224, 384, 3)))
        (32.0, 32.0)
    """
    sites = find_attention(model)
    return sites.patch_px(_image_size(sites, image_size))


def attention_maps(
    model: keras.Model, images: np.ndarray, *, batch_size: int | None = None
) -> np.ndarray:
    """Returns all attention weights of a few images; of many, `summarize_attention` returns means.

    Args:
        model: A ViT or a hybrid, or a functional model with one inside.
        images: (B, H, W, C), uint8, or float as the model takes them: in [-1, 1], unless it scales
            pixels itself.
        batch_size: Images of a step; default: as many as are quick.

    Returns:
        (L, B, A, N, N) float32, queries before keys; rows sum to 1. Each half of an axial block is
        a layer, the rows before the columns.

    Raises:
        ValueError: If the model has no attention, the images are not such images, or the weights
            would not fit into the memory that is free.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
        >>> attention_maps(model, np.zeros((2, 32, 32, 3), "uint8")).shape
        (12, 2, 3, 5, 5)
    """
    sites = find_attention(model)
    _check_array(images)
    check_shape(images.shape, _taken(sites))
    image_size = (images.shape[1], images.shape[2])
    num_layers, *of_a_layer = sites.scores_shape(image_size)
    shape = (num_layers, len(images), *of_a_layer)
    _check_memory(shape)
    rows = (
        max(1, _default_rows(sites, image_size) // num_layers) if batch_size is None else batch_size
    )
    maps, done = np.empty(shape, np.float32), 0
    compiled = compiled_once(model, AttentionMaps, image_size, lambda: AttentionMaps(sites))
    for batch in batches_of(images, lambda _: rows, _taken(sites)):
        weights = computed(compiled, batch.images, min(rows, len(images)))
        maps[:, done : done + len(weights)] = np.moveaxis(weights, 1, 0)
        done += len(weights)
    return maps


def attention_rollout(
    model: keras.Model, images: np.ndarray, *, batch_size: int | None = None
) -> np.ndarray:
    """Returns how much of each patch flows into what the classifier reads, if attention and
    residuals mix tokens.

    The class token's row of `rollout`, over the patches; with "gap", the mean of the rows of the
    patches; with "map", the rows of all tokens in the shares of the pooling's own attention (mean
    over its heads). For the maximum, of which each number comes from another patch, and for a model
    that returns tokens without a class token, the mean as well.

    Args:
        model, images, batch_size: As of `attention_maps`.

    Returns:
        (B, R, C) float32, at least 0; the sum is 1 less what stays in the class token. To show it
        over a photo, divide by the maximum.

    Raises:
        ValueError: If the model has no attention or no grid of patches, or the images are not such
            images.

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


def summarize_attention(
    model: keras.Model,
    images: Any,
    *,
    batch_size: int | None = None,
    num_rollouts: int = 0,
    progress: bool = False,
) -> AttentionSummary:
    """Returns how a model attends, over any number of images and in one pass over them.

    Of each batch only a distance for each head and a rollout leave the graph, so memory does not
    grow with the images.

    Args:
        model: A ViT or a hybrid, or a functional model with one inside.
        images: (B, H, W, C), as of `attention_maps`; or an iterable of such batches, or of tuples
            (images, labels, weights), such as a `tf.data.Dataset`: an image of weight 0 only fills
            up, and does not count.
        batch_size: Images of a step, if `images` is an array; default: as many as are quick.
        num_rollouts: Of how many images to keep the rollout, from the first.
        progress: Show a bar on a terminal if it takes more than a moment.

    Raises:
        ValueError: If the model has no attention or no grid of patches, the images are not such
            images or of several sizes, or there are none.

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
            f"An iterable brings its own batches: leave out `batch_size`. Received: {batch_size}."
        )
    total, kept, num_images, image_size = np.zeros(1), [np.zeros(0, np.float32)], 0, (0, 0)
    with _bar(len(images) if is_array(images) else None, progress) as bar:
        for size, distances, rollouts in _sums(model, sites, images, batch_size):
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


def _sums(
    model: keras.Model, sites: Sites, images: Any, batch_size: int | None
) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Yields of each batch the size of its images, distances (n, L, A), and rollouts (n, R * C)."""
    compiled, rows = None, 0
    batch_rows = (
        functools.partial(_default_rows, sites) if batch_size is None else lambda _: batch_size
    )
    for batch in batches_of(images, batch_rows, _taken(sites)):
        image_size = batch.images.shape[1:3]
        if compiled is None:
            make = functools.partial(_sums_model, sites, image_size)
            compiled = compiled_once(model, AttentionSums, image_size, make)
        rows = max(rows, len(batch.images))
        distances, rollouts = computed(compiled, batch.images, rows)
        yield image_size, distances[batch.kept], rollouts[batch.kept]


def _sums_model(sites: Sites, image_size: tuple[int, int]) -> AttentionSums:
    distances = distances_px(sites.grid(image_size), sites.patch_px(image_size))
    return AttentionSums(sites, distances, sites.scores_shape(image_size)[-1] - len(distances))


def _taken(sites: Sites) -> Taken:
    return Taken(sites.image_shape, sites.pixels)


def _default_rows(sites: Sites, image_size: tuple[int, int]) -> int:
    return int(
        np.clip(
            _BYTES_OF_A_STEP // (4 * math.prod(sites.scores_shape(image_size)[1:])), 1, _MOST_IMAGES
        )
    )


def _image_size(sites: Sites, image_size: tuple[int, int] | None) -> tuple[int, int]:
    *size, channels = sites.image_shape
    size = tuple(size) if image_size is None else tuple(image_size)
    if None in size:
        raise ValueError(
            "The model takes images of any size: pass `image_size`, (height, width) in pixels."
        )
    check_shape((1, *size, channels), _taken(sites))
    return size


def _check_array(images: Any) -> None:
    if not is_array(images):
        raise ValueError(
            f"`images` must be one array (B, H, W, C). Received: {type(images).__name__}. Batches "
            f"are for "
            "`summarize_attention`."
        )


def _check_memory(shape: tuple[int, ...]) -> None:
    needed, free = 4 * math.prod(shape), _free_bytes()
    if needed > free:
        raise ValueError(
            f"The attention weights of {shape[1]:,} images, float32 of the shape {shape}, take "
            f"{needed:,} bytes, and "
            f"{int(free):,} are free: at most {int(free // (needed / shape[1])):,} images at once. "
            "`summarize_attention` takes any number, and gives their distances and rollouts."
        )


def _free_bytes() -> float:
    """Memory that a new array may take, of the machine and of the container."""
    try:
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        free = 1024.0 * int(available[1]) if available else _UNKNOWN_FREE_BYTES
    except OSError:
        return _UNKNOWN_FREE_BYTES
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit.exists() and (text := limit.read_text().strip()).isdecimal():
        free = min(free, int(text) - int(used.read_text()))
    return free


def _bar(total: int | None, progress: bool) -> Any:
    from tqdm import tqdm

    hidden = None if progress else True  # None: shown on a terminal alone
    return tqdm(total=total, unit="image", disable=hidden, delay=_SECONDS_BEFORE_BAR, leave=False)
