"""Transforms of an image: decoding, cropping, resizing, flipping, scaling; mixup of a batch.

A transform is a function `(image, seed) -> image`, and a pipeline is a list of them. `image` is an
encoded file (a scalar string) or pixels (H, W, 3) from 0 to 255; each transform accepts both.
`seed` is an int32 tensor of shape (2,), see `order.py`. Random transforms draw only from it, so
their results do not depend on the number of threads or on interruptions; other transforms ignore
it. `randaugment.py` contains further transforms.

Pipelines are traced without AutoGraph, which would take half of the time. A transform that branches
on an image uses `tf.cond`, or is decorated with `tf.function`.

Resizing returns float32, as in the released ViT code. big_vision truncates to uint8 after each
resize, which darkens an image by half a level; `to_uint8` rounds instead.

Source: arXiv:2010.11929 section 4.1 and appendix B.1.1; arXiv:1912.11370 section 3.3;
    google-research/big_vision, pp/ops_image.py and utils.get_mixup.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.decoding import crop, decode_file, decode_window

Transform = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def decode(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Decodes a file to upright pixels, and converts grey pixels to three channels.

    It reads all formats of `keras_vit.photos.FORMATS`, see `decoding.py`.

    Returns:
        (H, W, 3): uint8 for a file, otherwise the dtype of the input.

    Raises:
        ValueError: If pixels do not have one or three channels.

    Example:
        >>> decode(tf.io.encode_png(tf.zeros((2, 3, 1), tf.uint8)), tf.constant([0, 0])).shape
        TensorShape([2, 3, 3])
    """
    image = tf.convert_to_tensor(image)
    if image.dtype != tf.string:
        return _to_three_channels(image)
    return decode_file(image)


def _to_three_channels(image: tf.Tensor) -> tf.Tensor:
    if image.shape.rank == 2:
        image = image[..., tf.newaxis]
    if image.shape.rank != 3 or image.shape[-1] not in (1, 3):
        raise ValueError(
            f"An image must have the shape (H, W), (H, W, 1) or (H, W, 3). Received: {image.shape}."
        )
    return tf.tile(image, (1, 1, 3)) if image.shape[-1] == 1 else image


def inception_crop(
    size: int,
    *,
    area: tuple[float, float] = (0.05, 1.0),
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    antialias: bool = False,
) -> Transform:
    """Returns a transform that crops a random part of the image and resizes it to a square.

    Only this part of a JPEG is decoded. If no part within the limits is found, as in an image of
    one row, the whole image is used.

    Args:
        size: Side of the result, in pixels.
        area: Smallest and largest share of the image area.
        aspect_ratio: Smallest and largest width / height of the part.
        antialias: If False, as published, resizing interpolates between the nearest pixels. If
            True, it averages over all pixels, like Pillow and PyTorch, which takes most of the time
            of the pipeline.

    Example:
        >>> inception_crop(224)(tf.zeros((500, 333, 3), tf.uint8), tf.constant([0, 1])).shape
        TensorShape([224, 224, 3])

    Source: arXiv:1409.4842 section 6.
    """

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        part = _crop(
            image, seed, lambda shape: _draw_inception_window(shape, seed, area, aspect_ratio)
        )
        return _resize(part, (size, size), "bilinear", antialias)

    return transform


def _draw_inception_window(
    shape: tf.Tensor, seed: tf.Tensor, area: tuple[float, float], aspect_ratio: tuple[float, float]
) -> tf.Tensor:
    """Draws a window: top, left, height, width."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4)),
        seed,
        min_object_covered=0.0,
        area_range=area,
        aspect_ratio_range=aspect_ratio,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], axis=0)


def _crop(
    image: tf.Tensor, seed: tf.Tensor, window_of: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Crops the window that `window_of` returns for the shape of the image."""
    image = tf.convert_to_tensor(image)
    if image.dtype == tf.string:
        return decode_window(image, window_of)
    pixels = decode(image, seed)
    return tf.ensure_shape(crop(pixels, window_of(tf.shape(pixels))), (None, None, 3))


def resize(size: int | tuple[int, int], *, antialias: bool = False) -> Transform:
    """Returns a transform that resizes the image bilinearly to a square or to (height, width).

    It is the paper's transform for evaluation.

    Example:
        >>> resize(384)(tf.zeros((500, 333, 3), tf.uint8), tf.constant([0, 0])).shape
        TensorShape([384, 384, 3])
    """
    sides = (size, size) if isinstance(size, int) else size
    return lambda image, seed: _resize(decode(image, seed), sides, "bilinear", antialias)


_RESIZE_METHODS = ("area", "bilinear", "bicubic")


def resize_shorter(size: int, method: str = "area", *, antialias: bool = False) -> Transform:
    """Returns a transform that resizes the shorter side to `size` and keeps the aspect ratio.

    Args:
        size: Length of the shorter side, in pixels. The longer side is rounded.
        method: "area", "bilinear" or "bicubic".
        antialias: Whether to average over all pixels. "area" always does.

    Raises:
        ValueError: If `method` is not one of the three.

    Example:
        >>> resize_shorter(256)(tf.zeros((500, 333, 3), tf.uint8), tf.constant([0, 0])).shape
        TensorShape([384, 256, 3])

    Source: google-research/big_vision, pp/ops_image.py, resize_small.
    """
    if method not in _RESIZE_METHODS:
        raise ValueError(
            f"`method` must be one of {', '.join(_RESIZE_METHODS)}. Received: {method!r}."
        )

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = decode(image, seed)
        sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
        sides = tf.cast(tf.round(sides * (size / tf.reduce_min(sides))), tf.int32)
        return _resize(pixels, sides, method, antialias)

    return transform


def _resize(
    image: tf.Tensor, sides: tuple[int, int] | tf.Tensor, method: str, antialias: bool
) -> tf.Tensor:
    # If the size does not change, `tf.image.resize` keeps the dtype, so cast.
    return tf.cast(tf.image.resize(image, sides, method, antialias=antialias), tf.float32)


def random_crop(size: int) -> Transform:
    """Returns a transform that crops a square at a random position. The dtype is kept.

    Raises:
        tf.errors.InvalidArgumentError: When an image is smaller than the square.

    Example:
        >>> random_crop(2)(tf.zeros((5, 3, 3), tf.uint8), tf.constant([0, 0])).shape
        TensorShape([2, 2, 3])
    """

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = _check_size(decode(image, seed), size)
        return tf.image.stateless_random_crop(pixels, (size, size, 3), seed)

    return transform


def central_crop(size: int) -> Transform:
    """Returns a transform that crops the central square. The dtype is kept.

    If the margin is odd, the bottom or right margin is larger by one pixel.

    Raises:
        tf.errors.InvalidArgumentError: When an image is smaller than the square.

    Example:
        >>> int(central_crop(1)(tf.reshape(tf.range(9), (3, 3, 1)), tf.constant([0, 0]))[0, 0, 0])
        4
    """

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = _check_size(decode(image, seed), size)
        top, left = tf.unstack((tf.shape(pixels)[:2] - size) // 2)
        return tf.ensure_shape(pixels[top : top + size, left : left + size], (size, size, 3))

    return transform


def share_crop(size: int, share: float) -> Transform:
    """Returns a transform that takes the central square of a share of the shorter side.

    The shorter side is resized to `size` / `share`, rounded down, bicubically with antialiasing;
    then the central square is cropped. Levels are kept between 0 and 255.

    Args:
        size: Side of the square, in pixels.
        share: Side of the square as a share of the shorter side, above 0 and up to 1.

    Example:
        >>> share_crop(224, 0.875)(tf.zeros((500, 333, 3), tf.uint8), tf.constant([0, 0])).shape
        TensorShape([224, 224, 3])

    Source: timm 1.0.31, data/transforms_factory.py; torchvision, transforms/functional.py (rounds
        the longer side down, and an odd margin to the nearest even half).
    """
    side = _side_of_share(size, share)

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = decode(image, seed)
        sides = tf.shape(pixels)[:2]
        sides = sides * side // tf.reduce_min(sides)
        levels = tf.clip_by_value(_resize(pixels, sides, "bicubic", antialias=True), 0.0, 255.0)
        # Half of an odd margin is rounded to an even number: 1 / 2 to 0, 3 / 2 to 2.
        top, left = tf.unstack(tf.cast(tf.round((sides - size) / 2), tf.int32))
        return tf.ensure_shape(levels[top : top + size, left : left + size], (size, size, 3))

    return transform


def _check_size(pixels: tf.Tensor, size: int) -> tf.Tensor:
    sides = tf.shape(pixels)[:2]
    message = (
        f"A crop of {size} by {size} pixels needs an image of at least this size. Apply "
        f"resize_shorter({size}), or a larger one, before it."
    )
    with tf.control_dependencies([tf.debugging.assert_greater_equal(sides, size, message=message)]):
        return tf.identity(pixels)


def flip_left_right(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flips an image horizontally with a probability of 1/2.

    Example:
        >>> image = tf.constant([[[1.0], [2.0]]])
        >>> sorted({int(flip_left_right(image, tf.constant([0, i]))[0, 0, 0]) for i in range(20)})
        [1, 2]
    """
    return tf.image.stateless_random_flip_left_right(decode(image, seed), seed)


def scale_to(low: float, high: float) -> Transform:
    """Returns a transform that scales pixels from [0, 255] to [low, high].

    To [-1, 1] it equals `keras_vit.preprocess_input` exactly.

    Example:
        >>> scale_to(-1, 1)(tf.constant([[0, 51, 255]], tf.uint8), tf.constant([0, 0]))[0, :, 0].numpy().tolist()
        [-1.0, -0.6000000238418579, 1.0]
    """
    levels = 255 / (high - low)
    return lambda image, seed: tf.cast(decode(image, seed), tf.float32) / levels + low


def to_uint8(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rounds pixels to uint8, a quarter of the bytes, for batches that are scaled on the device.

    Example:
        >>> to_uint8(tf.constant([[-1.0, 0.6, 300.0]]), tf.constant([0, 0]))[0, :, 0].numpy().tolist()
        [0, 1, 255]
    """
    pixels = decode(image, seed)
    return pixels if pixels.dtype == tf.uint8 else tf.saturate_cast(tf.round(pixels), tf.uint8)


def _enlarge(size: int) -> Transform:
    """Returns BiT's resize before a crop of `size`.

    Images of fewer than 96 * 96 pixels are resized by 160 / 128, others by 448 / 384; for a crop of
    480 (R152x4), to 512.
    """
    large = 512 if size == 480 else round(size * 448 / 384)

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = decode(image, seed)
        is_small = tf.reduce_prod(tf.shape(pixels)[:2]) < 96 * 96
        side = tf.where(is_small, round(size * 160 / 128), large)
        return _resize(pixels, tf.stack([side, side]), "bilinear", antialias=False)

    return transform


_TRAIN_CROPS: dict[str, Callable[[int, float], list[Transform]]] = {
    "inception": lambda size, smallest_area: [inception_crop(size, area=(smallest_area, 1.0))],
    "resize_crop": lambda size, _: [_enlarge(size), random_crop(size)],
    "resize": lambda size, _: [resize(size)],
}
_EVAL_CROPS: dict[str, Callable[[int], list[Transform]]] = {
    "resize": lambda size: [resize(size)],
    "resize_crop": lambda size: [resize(round(size * 256 / 224)), central_crop(size)],
    "resize_shorter": lambda size: [resize_shorter(round(size * 256 / 224)), central_crop(size)],
}
_IN_WORDS = {
    "resize": "the whole image to the size of the model, bilinear, without antialiasing",
    "resize_crop": "the whole image to a square of 8/7 of the model's, then the central crop",
    "resize_shorter": "the shorter side to 8/7 of the model's by area, then the central crop",
}
_CENTRAL = "central"
_SMALLEST_SHARE = 0.1


def train_crop(policy: str, size: int, *, smallest_area: float = 0.05) -> list[Transform]:
    """Returns the transforms from a file to a square, for training.

    Args:
        policy: "inception": `inception_crop`, for pre-training, and in the released code also for
            fine-tuning. "resize_crop": a random crop after a resize to a square that is larger by
            7/6, or by 5/4 if the image has fewer than 96 * 96 pixels (448 to 384, 160 to 128; 512
            to 480), for fine-tuning as in the paper and BiT-HyperRule. "resize": the whole image.
        size: Side of the square, in pixels.
        smallest_area: Smallest share of the image area in an Inception crop. Other policies ignore
            it.

    Raises:
        ValueError: If there is no such policy.

    Example:
        >>> len(train_crop("resize_crop", 384))
        2
    """
    if policy not in _TRAIN_CROPS:
        raise ValueError(f"`crop` must be one of {', '.join(_TRAIN_CROPS)}. Received: {policy!r}.")
    return _TRAIN_CROPS[policy](size, smallest_area)


def eval_crop(policy: str, size: int | tuple[int, int]) -> list[Transform]:
    """Returns the transforms from a file to a square, for evaluation.

    Args:
        policy: "resize": the whole image, as in the paper. "resize_shorter": the central crop after
            a resize of the shorter side to `size` * 256 / 224, as in AugReg. "resize_crop": the
            central crop after a resize to a square of that side, as in big_vision's few-shot
            evaluation. "central:SHARE", such as "central:0.875": the central crop of that share of
            the shorter side, as published for DINO, DeiT, CLIP and others, see `share_crop`.
        size: Side of the square, in pixels. "resize" also accepts (height, width).

    Raises:
        ValueError: If there is no such policy, or it does not support this size.

    Example:
        >>> len(eval_crop("resize_shorter", 224))
        2
    """
    check_eval_crop(policy)
    if policy != "resize" and not isinstance(size, int):
        if size[0] != size[1]:
            raise ValueError(f"`{policy}` gives squares. Received: size={size}. Use `resize`.")
        size = size[0]
    share = _find_share(policy)
    return _EVAL_CROPS[policy](size) if share is None else [share_crop(size, share)]


def check_eval_crop(policy: str) -> None:
    """Raises ValueError if `eval_crop` has no such policy."""
    if policy in _EVAL_CROPS:
        return
    share = _find_share(policy)
    if share is None or not _SMALLEST_SHARE <= share <= 1:
        raise ValueError(
            f"`eval_crop` must be one of {', '.join(_EVAL_CROPS)}, central:SHARE with a share from "
            f"{_SMALLEST_SHARE} to 1. Received: {policy!r}."
        )


def largest_side(policy: str, size: int) -> int:
    """Returns the length to which a policy of `eval_crop` resizes the shorter side of an image.

    Example:
        >>> largest_side("resize_shorter", 224), largest_side("central:0.9", 224)
        (256, 248)
    """
    share = _find_share(policy)
    if share is not None:
        return _side_of_share(size, share)
    return size if policy == "resize" else round(size * 256 / 224)


def describe_crop(policy: str) -> str:
    """Describes a policy of `eval_crop` in words.

    Example:
        >>> describe_crop("resize")
        'the whole image to the size of the model, bilinear, without antialiasing'
    """
    share = _find_share(policy)
    if share is not None:
        return f"the central square of {share:.3g} of the shorter side, bicubic, with antialiasing"
    return _IN_WORDS[policy]


def _find_share(policy: str) -> float | None:
    """Returns the share of "central:SHARE", or None for another policy."""
    name, _, share = policy.partition(":")
    if name != _CENTRAL:
        return None
    try:
        return float(share)
    except ValueError:
        return None


def _side_of_share(size: int, share: float) -> int:
    return math.floor(size / share)


def mixup(
    images: tf.Tensor,
    labels: tf.Tensor,
    rolled_images: tf.Tensor,
    rolled_labels: tf.Tensor,
    coefficient: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixes each example with its partner: coefficient * x + (1 - coefficient) * partner.

    The partners are arguments because another worker may have the partner of the first row.

    Args:
        images: (B, H, W, 3).
        labels: (B, Y), one-hot.
        rolled_images, rolled_labels: The partners; in big_vision `tf.roll(images, 1, axis=0)`.
        coefficient: Scalar, one for the batch.

    Returns:
        (images, labels), both float32.

    Example:
        >>> labels = tf.eye(2)
        >>> _, mixed = mixup(tf.zeros((2, 1, 1, 3)), labels, tf.zeros((2, 1, 1, 3)), labels[::-1], 0.75)
        >>> mixed.numpy().tolist()
        [[0.75, 0.25], [0.25, 0.75]]

    Source: arXiv:1710.09412 eq. 1-2.
    """
    return _mix(images, rolled_images, coefficient), _mix(labels, rolled_labels, coefficient)


def _mix(values: tf.Tensor, partners: tf.Tensor, coefficient: tf.Tensor) -> tf.Tensor:
    return coefficient * tf.cast(values, tf.float32) + (1 - coefficient) * tf.cast(
        partners, tf.float32
    )


def mixup_coefficient(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws max(a, 1 - a), a ~ Beta(alpha, alpha), so that the weight of an example is at least
    1/2.

    a = g / (g + h) for two Gamma(alpha) variates. For a small alpha both usually underflow, so
    their logarithms are drawn: log Gamma(alpha) is log Gamma(alpha + 1) + log(uniform) / alpha.

    Returns:
        Scalar float32 in [0.5, 1].

    Raises:
        ValueError: If `alpha` is not positive.

    Example:
        >>> bool(mixup_coefficient(0.2, tf.constant([0, 0])) >= 0.5)
        True

    Source: google-research/big_vision, utils.get_mixup; the logarithms are ours.
    """
    if not alpha > 0:
        raise ValueError(
            f"`alpha` must be positive. Received: {alpha}. To disable mixup, do not call this."
        )
    gamma_seed, uniform_seed = tf.unstack(tf.random.split(seed, 2))
    log_gammas = tf.math.log(
        tf.random.stateless_gamma((2,), gamma_seed, alpha + 1.0, dtype=tf.float64)
    )
    # Uniform draws u are in [0, 1), so log(1 - u) is always finite.
    log_gammas += (
        tf.math.log1p(-tf.random.stateless_uniform((2,), uniform_seed, dtype=tf.float64)) / alpha
    )
    return tf.cast(tf.sigmoid(tf.abs(log_gammas[0] - log_gammas[1])), tf.float32)
