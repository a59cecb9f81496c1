"""Transforms against Pillow, NumPy and hand computation; and the same on every path through
tf.data.
"""

import io
import math

import numpy as np
import pytest
from PIL import Image

tf = pytest.importorskip("tensorflow")

import keras_vit  # noqa: E402
from keras_vit.data import transforms  # noqa: E402

SEED = tf.constant([0, 0])
NOISE = np.random.default_rng(0).integers(0, 256, (41, 57, 3), np.uint8)
ALL = {
    "decode": transforms.decode,
    "inception_crop": transforms.inception_crop(16),
    "inception_crop antialiased": transforms.inception_crop(16, antialias=True),
    "resize": transforms.resize(16),
    "resize antialiased": transforms.resize(16, antialias=True),
    "resize_shorter": transforms.resize_shorter(16),
    "resize_shorter bilinear": transforms.resize_shorter(16, "bilinear"),
    "random_crop": transforms.random_crop(16),
    "central_crop": transforms.central_crop(16),
    "share_crop": transforms.share_crop(16, 0.875),
    "flip_left_right": transforms.flip_left_right,
    "scale_to": transforms.scale_to(-1, 1),
    "to_uint8": transforms.to_uint8,
}
RANDOM = ("inception_crop", "random_crop", "flip_left_right")
SQUARE = (
    "inception_crop",
    "inception_crop antialiased",
    "resize",
    "resize antialiased",
    "random_crop",
    "central_crop",
    "share_crop",
)


def encoded(pixels, file_format="PNG", mode=None, **options):
    file, image = io.BytesIO(), Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(file, file_format, **options)
    return file.getvalue()


def pillow(file):
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def coordinates(height, width):
    """An image whose pixels say where they are: (row, column, 0)."""
    rows, columns = np.mgrid[:height, :width].astype("float32")
    return tf.constant(np.stack([rows, columns, 0 * rows], axis=-1))


def seeds(count):
    return [tf.constant([7, number]) for number in range(count)]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.sampled(6)
def test_the_same_eagerly_and_in_tf_data_however_parallel(name):
    files = [
        encoded(NOISE, "JPEG"),
        encoded(NOISE),
        encoded(NOISE[:20, :, 0], "JPEG"),
        encoded(NOISE[:, :19], "BMP"),
    ]
    eager = [ALL[name](files[i % 4], tf.constant([3, i])).numpy() for i in range(12)]
    dataset = tf.data.Dataset.from_tensor_slices(files).repeat(3).enumerate()
    for calls in (None, tf.data.AUTOTUNE):
        mapped = dataset.map(
            lambda i, file: ALL[name](file, tf.stack([3, tf.cast(i, tf.int32)])),
            num_parallel_calls=calls,
        )
        for got, expected in zip(mapped.as_numpy_iterator(), eager, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ALL)
def test_shapes_are_known_before_anything_runs(name):
    dataset = tf.data.Dataset.from_tensors(encoded(NOISE, "JPEG")).map(
        lambda file: ALL[name](file, SEED)
    )
    assert dataset.element_spec.shape.as_list() == (
        [16, 16, 3] if name in SQUARE else [None, None, 3]
    )


@pytest.mark.parametrize(
    "name", [name for name in ALL if name not in ("random_crop", "central_crop")]
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (3, 2)])
@pytest.mark.parametrize("file_format", ["PNG", "JPEG", None])
def test_tiny_images(name, shape, file_format):
    pixels = NOISE[: shape[0], : shape[1]]
    image = ALL[name](
        tf.constant(pixels) if file_format is None else encoded(pixels, file_format), SEED
    )
    assert np.isfinite(image.numpy().astype("float32")).all()
    if name.startswith("resize_shorter"):
        assert min(image.shape[:2]) == 16
    else:
        assert image.shape == ((16, 16, 3) if name in SQUARE else (*shape, 3))


@pytest.mark.parametrize("name", RANDOM)
def test_draws_follow_the_seed_alone(name):
    first, again = (
        [ALL[name](NOISE, seed).numpy().tobytes() for seed in seeds(8)] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 1


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(RANDOM)])
def test_the_others_ignore_the_seed(name):
    assert len({ALL[name](NOISE, seed).numpy().tobytes() for seed in seeds(8)}) == 1


@pytest.mark.parametrize(
    ("file_format", "mode"),
    [
        *(("JPEG", mode) for mode in ("RGB", "L")),
        *(("PNG", mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")),
        *(("GIF", mode) for mode in ("RGB", "L")),
        *(("BMP", mode) for mode in ("RGB", "L")),
    ],
)
def test_decoding_gives_the_pixels_of_pillow(file_format, mode):
    file = encoded(NOISE, file_format, mode)
    image = transforms.decode(file, SEED)
    assert image.dtype == tf.uint8
    np.testing.assert_array_equal(image, pillow(file))


def test_decoding_cmyk():
    file = encoded(NOISE, "JPEG", "CMYK")
    # Both multiply two bytes and divide by 255, but round differently.
    np.testing.assert_allclose(transforms.decode(file, SEED), pillow(file).astype(int), atol=1)


def test_decoding_16_bits_keeps_the_upper_8():
    deep = np.random.default_rng(0).integers(0, 65536, (5, 4), np.uint16)
    image = transforms.decode(encoded(deep), SEED)
    np.testing.assert_array_equal(image, np.repeat((deep >> 8)[..., None], 3, axis=-1))


def test_decoding_an_animation_takes_the_first_frame():
    frames, file = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")], io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert transforms.decode(file.getvalue(), SEED).numpy().tolist() == [[[255, 0, 0]] * 3] * 2


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_pass_and_grey_ones_get_three_channels(dtype):
    pixels = NOISE.astype(dtype)
    for image, expected in [
        (pixels, pixels),
        *((x, pixels[..., [1, 1, 1]]) for x in (pixels[..., 1:2], pixels[..., 1])),
    ]:
        decoded = transforms.decode(image, SEED)
        assert decoded.dtype == dtype
        np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("shape", [(4, 5, 2), (4, 5, 4), (2, 4, 5, 3), (4,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(
        ValueError, match=r"\(H, W\), \(H, W, 1\) or \(H, W, 3\)\. Received: \(4,|Received: \(2, 4"
    ):
        transforms.decode(tf.zeros(shape), SEED)


@pytest.mark.parametrize("name", ["decode", "inception_crop"])
@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "empty"),
        (b"text", "cannot identify image"),
        (b"\xff\xd8\xff", "cannot identify image"),
    ],
)
def test_what_is_no_image_is_refused(name, file, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ALL[name](file, SEED)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(tf.data.Dataset.from_tensors(file).map(lambda file: ALL[name](file, SEED))))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])  # colour at full, half and quarter resolution
@pytest.mark.sampled(5)
def test_cropping_while_decoding_is_cropping_afterwards(mode, subsampling):
    crop = transforms.inception_crop(16, area=(0.01, 1.0))
    for width in (1, 2, 16, 17, 57):
        options = {} if mode == "L" else {"subsampling": subsampling}
        file = encoded(NOISE[:, :width], "JPEG", mode, **options)
        whole = tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE")
        for seed in seeds(20):
            np.testing.assert_array_equal(crop(file, seed), crop(whole, seed))


def bilinear(image, height, width):
    """Half-pixel centres, the two nearest pixels on each axis, edges repeated: in float64."""
    for axis, size in enumerate((height, width)):
        places = (np.arange(size) + 0.5) * image.shape[axis] / size - 0.5
        below = np.floor(places).astype(int)
        weights = np.expand_dims(places - below, (1, 2) if axis == 0 else (0, 2))
        lower, upper = (
            np.take(image, np.clip(below + k, 0, image.shape[axis] - 1), axis) for k in (0, 1)
        )
        image = (1 - weights) * lower + weights * upper
    return image


@pytest.mark.parametrize("size", [16, 41, 100])
def test_resizing_is_bilinear_with_half_pixel_centres(size):
    image = transforms.resize(size)(NOISE, SEED)
    assert image.dtype == tf.float32
    # In float32, a place near 57 is off by up to 4e-6, and neighbours differ by up to 255 levels.
    np.testing.assert_allclose(image, bilinear(NOISE.astype(float), size, size), atol=2e-3)


@pytest.mark.parametrize(
    ("transform", "image", "sides"),
    [
        (transforms.resize(16, antialias=True), NOISE, (16, 16)),
        (transforms.resize(100, antialias=True), NOISE, (100, 100)),
        (transforms.resize_shorter(20, "bilinear", antialias=True), NOISE, (20, 28)),
        # one row admits no part within the limits, so the whole is taken
        (transforms.inception_crop(16, antialias=True), NOISE[:1], (16, 16)),
    ],
    ids=["resize 16", "resize 100", "resize_shorter", "inception_crop"],
)
def test_resizing_antialiased_is_that_of_pillow(transform, image, sides):
    expected = np.asarray(Image.fromarray(image).resize(sides[::-1], Image.Resampling.BILINEAR))
    # Pillow computes in integers and rounds after each axis.
    np.testing.assert_allclose(transform(image, SEED), expected.astype(float), atol=1.1)


def test_resizing_to_the_size_it_has_gives_float_too():
    image = transforms.resize(41)(NOISE[:, :41], SEED)
    assert image.dtype == tf.float32
    np.testing.assert_array_equal(image, NOISE[:, :41])


def inception_windows(count, **options):
    """(top, left, height, width), read off an image of coordinates, 300 by 400."""
    crop, image = transforms.inception_crop(64, **options), coordinates(300, 400)
    for seed in seeds(count):
        part = crop(image, seed).numpy()
        height, width = ((part[32, 32, k] - part[31, 31, k]) * 64 for k in (0, 1))
        yield (
            part[31, 31, 0] + 0.5 - 31.5 * height / 64,
            part[31, 31, 1] + 0.5 - 31.5 * width / 64,
            height,
            width,
        )


def test_inception_crops_keep_to_their_limits_and_cover_them():
    top, left, height, width = np.array(list(inception_windows(600))).T
    area, aspect_ratio = height * width / 120_000, width / height
    # Whole pixels: the least side is 67, so one pixel more or less is 1.5 %.
    assert area.min() > 0.05 * 0.98 and area.max() < 1.001
    assert aspect_ratio.min() > 0.75 * 0.97 and aspect_ratio.max() < 4 / 3 * 1.03
    assert area.min() < 0.07 and area.max() > 0.9
    assert (
        top.min() > -0.1
        and (top + height).max() < 300.1
        and left.min() > -0.1
        and (left + width).max() < 400.1
    )
    # The ratio is uniform: of 600, each quarter of the range holds a quarter, +- 0.071 at 4
    # standard errors.
    quarters, _ = np.histogram(np.clip(aspect_ratio, 0.75, 1.333), np.linspace(0.75, 4 / 3, 5))
    np.testing.assert_allclose(quarters / 600, 0.25, atol=0.075)


def test_inception_crops_with_limits_of_your_own():
    windows = np.array(list(inception_windows(50, area=(0.2, 0.3), aspect_ratio=(1.0, 1.1))))
    area, aspect_ratio = windows[:, 2] * windows[:, 3] / 120_000, windows[:, 3] / windows[:, 2]
    assert area.min() > 0.195 and area.max() < 0.305
    assert aspect_ratio.min() > 0.98 and aspect_ratio.max() < 1.12


def test_an_inception_crop_is_resized_bilinearly():
    # One row admits no part within the limits, so the whole is taken.
    image = transforms.inception_crop(16)(NOISE[:1], SEED)
    np.testing.assert_allclose(image, bilinear(NOISE[:1].astype(float), 16, 16), atol=2e-3)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(500, 333, (384, 256)), (333, 500, (256, 384)), (3, 2, (384, 256))],
)
def test_the_shorter_side_gets_the_size_and_the_other_follows(height, width, expected):
    image = transforms.resize_shorter(256)(tf.zeros((height, width, 3), tf.uint8), SEED)
    assert image.shape == (*expected, 3)


def test_resizing_by_area_averages_blocks():
    image = transforms.resize_shorter(10)(NOISE[:40, :56], SEED)
    blocks = NOISE[:40, :56].reshape(10, 4, 14, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(image, blocks, atol=1e-4)


def test_resizing_the_shorter_side_bilinearly():
    image = transforms.resize_shorter(20, "bilinear")(NOISE, SEED)
    np.testing.assert_allclose(image, bilinear(NOISE.astype(float), 20, 28), atol=2e-3)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="one of area, bilinear, bicubic. Received: 'nearest'"):
        transforms.resize_shorter(256, "nearest")


def test_random_crops_are_parts_of_the_image_and_reach_every_place():
    image, seen = coordinates(6, 5), set()
    for seed in seeds(120):
        part = transforms.random_crop(4)(image, seed).numpy()
        top, left, _ = part[0, 0].astype(int)
        np.testing.assert_array_equal(part, image[top : top + 4, left : left + 4])
        seen.add((top, left))
    # Of 6 places, each is missed with a chance of (5/6) ** 120 = 3e-10.
    assert seen == {(top, left) for top in range(3) for left in range(2)}


def test_the_central_crop_leaves_the_odd_pixel_below_and_on_the_right():
    np.testing.assert_array_equal(transforms.central_crop(4)(NOISE[:9, :8], SEED), NOISE[2:6, 2:6])


@pytest.mark.parametrize("crop", [transforms.random_crop(20), transforms.central_crop(20)])
@pytest.mark.parametrize("shape", [(19, 30), (30, 19)])
def test_images_smaller_than_the_crop_are_refused(crop, shape):
    message = r"A crop of 20 by 20 pixels needs an image of at least this size. Apply resize_shorter\(20\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        crop(NOISE[: shape[0], : shape[1]], SEED)
    dataset = tf.data.Dataset.from_tensors(encoded(NOISE[: shape[0], : shape[1]])).map(
        lambda file: crop(file, SEED)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(dataset))


def test_half_the_images_are_mirrored():
    flipped = []
    for seed in seeds(400):
        image = transforms.flip_left_right(NOISE, seed).numpy()
        flipped.append(not np.array_equal(image, NOISE))
        np.testing.assert_array_equal(image, NOISE[:, ::-1] if flipped[-1] else NOISE)
    assert abs(np.mean(flipped) - 0.5) < 0.1  # 4 standard errors


def test_scaling_is_that_of_preprocess_input_bit_for_bit():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 256)
    image = transforms.scale_to(-1, 1)(levels, SEED)
    assert image.dtype == tf.float32
    np.testing.assert_array_equal(image[..., 0], keras_vit.preprocess_input(levels))


def test_scaling_to_other_ranges():
    image = transforms.scale_to(0, 1)(np.array([[0, 51, 255]], np.uint8), SEED)
    np.testing.assert_allclose(image[0, :, 0], [0.0, 0.2, 1.0], rtol=1e-6)


def test_whole_levels_are_rounded_and_clipped():
    image = transforms.to_uint8(
        np.array([[-0.6, 0.49, 0.51, 127.6, 254.7, 300.0]], "float32"), SEED
    )
    assert image.dtype == tf.uint8
    assert image[0, :, 0].numpy().tolist() == [0, 0, 1, 128, 255, 255]


def apply(steps, image):
    for place, step in enumerate(steps):
        image = step(image, tf.constant([5, place]))
    return image.numpy()


@pytest.mark.parametrize(
    ("policy", "size"), [(p, s) for p in ("inception", "resize_crop", "resize") for s in (48, 96)]
)
def test_every_policy_for_training_gives_the_square(policy, size):
    image = apply(transforms.train_crop(policy, size), encoded(NOISE, "JPEG"))
    assert (image.shape, image.dtype) == ((size, size, 3), np.float32)


def test_the_smallest_area_of_a_crop_is_yours():
    image = transforms.decode(encoded(NOISE, "JPEG"), SEED)[:16, :16]
    whole = transforms.resize(32)(image, SEED)
    np.testing.assert_allclose(
        apply(transforms.train_crop("inception", 32, smallest_area=1.0), image), whole, atol=1e-3
    )
    assert np.abs(apply(transforms.train_crop("inception", 32), image) - whole).max() > 10


@pytest.mark.parametrize(
    ("shape", "size", "enlarged"),
    [((95, 96), 128, 160), ((96, 96), 384, 448), ((40, 300), 192, 224), ((300, 200), 480, 512)],
)
def test_the_rule_of_bit_crops_from_a_larger_square(shape, size, enlarged):
    image = apply(transforms.train_crop("resize_crop", size), coordinates(*shape))
    middle = size // 2
    slope = (image[middle + 9, middle + 9] - image[middle, middle])[:2] / 9
    np.testing.assert_allclose(slope, np.array(shape) / enlarged, rtol=1e-3)


def test_the_policies_for_evaluation():
    image = coordinates(300, 600)
    np.testing.assert_array_equal(
        apply(transforms.eval_crop("resize", 224), image), transforms.resize(224)(image, SEED)
    )
    # 256 by 512, of which the middle 224 by 224.
    middle = transforms.resize_shorter(256)(image, SEED)[16:240, 144:368]
    np.testing.assert_array_equal(apply(transforms.eval_crop("resize_shorter", 224), image), middle)
    # the whole image to 256 by 256
    middle = transforms.resize(256)(image, SEED)[16:240, 16:240]
    np.testing.assert_array_equal(apply(transforms.eval_crop("resize_crop", 224), image), middle)


@pytest.mark.parametrize(
    ("shape", "size", "share", "sides", "corner"),
    [
        # height and width, after the resize and of the corner of the crop, by hand
        ((80, 120), 32, 0.875, (36, 54), (2, 11)),
        ((120, 80), 32, 0.875, (54, 36), (11, 2)),
        ((90, 113), 32, 0.9, (35, 43), (2, 6)),  # margins of 3 and 11: 1.5 to 2, 5.5 to 6
        ((90, 91), 30, 0.95, (31, 31), (0, 0)),  # a margin of 1: 0.5 to 0
        ((20, 30), 32, 1.0, (32, 48), (0, 8)),
    ],
)
def test_a_share_of_the_image_is_that_of_pillow(shape, size, share, sides, corner):
    random = np.random.default_rng(3)
    image = random.integers(0, 256, (*shape, 3), np.uint8)
    # In floating point, Pillow does not round between its two passes.
    planes = [Image.fromarray(image[..., color].astype("float32")) for color in range(3)]
    large = [plane.resize(sides[::-1], Image.Resampling.BICUBIC) for plane in planes]
    top, left = corner
    expected = np.stack(large, axis=-1)[top : top + size, left : left + size].clip(0, 255)
    [crop] = transforms.eval_crop(f"central:{share}", size)
    found = crop(image, SEED).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_the_largest_side_is_that_of_the_first_resize(monkeypatch):
    seen, resize = [], tf.image.resize

    def watched(image, sides, *args, **kwargs):
        seen.append([int(side) for side in sides])
        return resize(image, sides, *args, **kwargs)

    monkeypatch.setattr(tf.image, "resize", watched)
    for policy in ("resize", "resize_crop", "resize_shorter", "central:0.9", "central:1"):
        apply(transforms.eval_crop(policy, 40), NOISE)
        assert min(seen[-1]) == transforms.largest_side(policy, 40), policy
        assert transforms.describe_crop(policy)


def test_an_unknown_policy_is_refused():
    message = "`crop` must be one of inception, resize_crop, resize. Received: 'middle'"
    with pytest.raises(ValueError, match=message):
        transforms.train_crop("middle", 224)


@pytest.mark.parametrize(
    "policy",
    ["middle", "central", "central:", "central:x", "central:0", "central:1.1", "central:nan"],
)
def test_an_unknown_policy_of_evaluation_is_refused(policy):
    message = "`eval_crop` must be one of resize, resize_crop, resize_shorter, central:SHARE with a"
    with pytest.raises(ValueError, match=f"{message} .*Received: '{policy}'"):
        transforms.eval_crop(policy, 224)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_mixup_by_hand(dtype):
    images = np.array([[[[10, 20, 30]]], [[[50, 60, 70]]]], dtype)
    labels = np.eye(2, dtype="float32")
    mixed_images, mixed_labels = transforms.mixup(
        images, labels, images[::-1], labels[::-1], tf.constant(0.75)
    )
    assert mixed_images.dtype == mixed_labels.dtype == tf.float32
    assert mixed_images.numpy().reshape(2, 3).tolist() == [[20, 30, 40], [40, 50, 60]]
    assert mixed_labels.numpy().tolist() == [[0.75, 0.25], [0.25, 0.75]]


def coefficients(alpha, count):
    draws = tf.data.Dataset.range(count).map(
        lambda i: transforms.mixup_coefficient(alpha, tf.stack([11, tf.cast(i, tf.int32)]))
    )
    return np.array(list(draws.as_numpy_iterator()))


@pytest.mark.parametrize(
    "alpha",
    [
        0.1,
        pytest.param(0.2, marks=pytest.mark.slow),
        pytest.param(1.0, marks=pytest.mark.slow),
        8.0,
    ],
)
def test_the_coefficient_has_the_moments_of_beta(alpha):
    count = 4000
    drawn = coefficients(alpha, count)
    assert drawn.dtype == np.float32 and drawn.min() >= 0.5 and drawn.max() <= 1
    # max(a, 1 - a) - 1/2 = |a - 1/2|: its square averages to the variance of Beta(alpha, alpha),
    # itself to the mean absolute deviation, 4 ** -alpha / (alpha B(alpha, alpha)).
    variance = 1 / (4 * (2 * alpha + 1))
    deviation = 4**-alpha / alpha * math.gamma(2 * alpha) / math.gamma(alpha) ** 2
    for values, expected in [((drawn - 0.5) ** 2, variance), (drawn - 0.5, deviation)]:
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(count)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.01])
def test_a_tiny_alpha_gives_numbers(alpha):
    drawn = coefficients(alpha, 200)
    assert ((drawn >= 0.5) & (drawn <= 1)).all()
    # 1 - alpha log 2 for small alpha: the mean deviation above, expanded
    assert drawn.mean() > 0.97


def test_the_coefficient_follows_the_seed_eagerly_and_in_tf_data():
    eager = [
        float(transforms.mixup_coefficient(1.0, tf.constant([11, number]))) for number in range(5)
    ]
    assert eager == coefficients(1.0, 5).tolist()
    assert len(set(eager)) == 5


@pytest.mark.parametrize("alpha", [0.0, -0.1, math.nan])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(ValueError, match="`alpha` must be positive. Received:"):
        transforms.mixup_coefficient(alpha, SEED)
