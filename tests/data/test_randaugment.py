"""The sixteen operations against Pillow and NumPy, and how they are drawn."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

tf = pytest.importorskip("tensorflow")

from keras_vit.data import randaugment  # noqa: E402

NAMES = (
    *(
        "AutoContrast",
        "Equalize",
        "Invert",
        "Rotate",
        "Posterize",
        "Solarize",
        "Color",
        "Contrast",
        "Brightness",
    ),
    *("Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout", "SolarizeAdd"),
)
MAGNITUDES = [0, 4, 9, 10, 15, 20, 30]
NOISE = np.random.default_rng(0).integers(0, 256, (56, 112, 3), np.uint8)
# Unlike noise, it has few levels in red, neither black nor white, and one level in blue.
_ROWS, _COLUMNS = np.mgrid[:56, :112]
SMOOTH = np.stack([40 + _ROWS // 9, 60 + _COLUMNS, 0 * _ROWS + 77], axis=-1).astype(np.uint8)
ONE_WAY, OTHER_WAY = tf.constant([0.3, 0.5, 0.25]), tf.constant([0.7, 0.5, 0.25])


def operate(name, magnitude, image, draw=ONE_WAY):
    result = randaugment.operations(magnitude)[name](tf.constant(image), draw)
    assert (result.dtype, result.shape) == (tf.uint8, image.shape)
    return result.numpy()


def pillow(name, magnitude, image):
    """What the operation is called in Pillow, at the strengths of RandAugment's source."""
    image, factor = Image.fromarray(image), 1.8 * magnitude / 10 + 0.1
    return np.asarray(
        {
            "AutoContrast": lambda: ImageOps.autocontrast(image),
            "Equalize": lambda: ImageOps.equalize(image),
            "Invert": lambda: ImageOps.invert(image),
            "Posterize": lambda: ImageOps.posterize(image, min(max(int(0.4 * magnitude), 1), 8)),
            "Solarize": lambda: ImageOps.solarize(image, min(int(25.6 * magnitude), 256)),
            "Color": lambda: ImageEnhance.Color(image).enhance(factor),
            "Contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
            "Brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
            "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        }[name]()
    )


def test_the_sixteen():
    assert tuple(randaugment.operations(10)) == NAMES


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize(
    "name",
    [
        "AutoContrast",
        "Equalize",
        "Invert",
        "Posterize",
        "Solarize",
        "Color",
        "Contrast",
        "Brightness",
        "Sharpness",
    ],
)
def test_levels_are_those_of_pillow(name, magnitude):
    for image in (NOISE, SMOOTH, SMOOTH[:1], SMOOTH[:2, :2]):
        # AutoContrast: Pillow's table is computed in floats that may fall short of a whole number.
        atol = 1 if name == "AutoContrast" else 0
        np.testing.assert_allclose(
            operate(name, magnitude, image), pillow(name, magnitude, image).astype(int), atol=atol
        )


def test_auto_contrast_reaches_black_and_white():
    for highest in range(41, 256):
        image = np.array([[[40, 0, 255], [highest, 255, 0]]], np.uint8)
        assert operate("AutoContrast", 10, image)[:, :, 0].tolist() == [[0, 255]]


@pytest.mark.parametrize(("magnitude", "addition"), [(0, 0), (9, 99), (10, 110), (30, 330)])
def test_solarize_add_brightens_the_darker_half(magnitude, addition):
    expected = np.where(NOISE < 128, np.minimum(NOISE.astype(int) + addition, 255), NOISE)
    np.testing.assert_array_equal(operate("SolarizeAdd", magnitude, NOISE), expected)


def affine(image, a, b, c, d, e, f):
    # Pillow's coordinates are those of corners, ours of centres.
    coefficients = (a, b, c + 0.5 * (1 - a - b), d, e, f + 0.5 * (1 - d - e))
    return np.asarray(
        Image.fromarray(image).transform(
            image.shape[1::-1],
            Image.Transform.AFFINE,
            coefficients,
            Image.Resampling.NEAREST,
            fillcolor=(128,) * 3,
        )
    )


# Magnitudes at which no two pixels are equally near: there, either could be taken.
@pytest.mark.parametrize("magnitude", [0, 9.05, 15.05, 29.65])
@pytest.mark.parametrize(("draw", "sign"), [(ONE_WAY, 1), (OTHER_WAY, -1)])
@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
def test_moves_are_those_of_pillow(name, magnitude, draw, sign):
    level, height, width = sign * magnitude / 10, 56, 112
    expected = {
        "Rotate": lambda: np.asarray(
            Image.fromarray(NOISE).rotate(30 * level, fillcolor=(128,) * 3)
        ),
        "ShearX": lambda: affine(NOISE, 1, 0.3 * level, 0, 0, 1, 0),
        "ShearY": lambda: affine(NOISE, 1, 0, 0, 0.3 * level, 1, 0),
        "TranslateX": lambda: affine(NOISE, 1, 0, 100 * level * width / 224, 0, 1, 0),
        "TranslateY": lambda: affine(NOISE, 1, 0, 0, 0, 1, 100 * level * height / 224),
    }[name]()
    differs = (operate(name, magnitude, NOISE, draw) != expected).any(axis=-1)
    assert differs.mean() < 0.002  # 12 pixels, for rounding in float32


def test_a_translation_by_hand():
    # 22.5 pixels at 224 are 11.25 at 112: 11.
    moved = operate("TranslateX", 2.25, NOISE)
    np.testing.assert_array_equal(moved[:, :-11], NOISE[:, 11:])
    np.testing.assert_array_equal(moved[:, -11:], np.full((56, 11, 3), 128))


@pytest.mark.parametrize(
    ("magnitude", "rows", "columns"),
    [(10, (18, 38), (8, 48)), (20, (8, 48), (0, 68)), (0, (0, 0), (0, 0))],
)
def test_cutout_by_hand(magnitude, rows, columns):
    # The centre is drawn at 0.5 and 0.25: row 28 of 56, column 28 of 112. At 10, it reaches 40 /
    # 224 of the sides.
    expected = NOISE.copy()
    expected[slice(*rows), slice(*columns)] = 128
    np.testing.assert_array_equal(operate("Cutout", magnitude, NOISE), expected)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 9, 3), (9, 1, 3), (2, 2, 3)])
def test_tiny_images(shape, magnitude):
    for name in NAMES:
        operate(name, magnitude, NOISE[: shape[0], : shape[1]])


def test_inputs_are_not_modified():
    image = tf.constant(NOISE)
    for operation in randaugment.operations(10).values():
        operation(image, ONE_WAY)
    np.testing.assert_array_equal(image, NOISE)


@pytest.mark.slow
def test_every_operation_is_drawn_as_often():
    image = NOISE[:16, :16]
    outcomes = {}
    for name in NAMES:
        for draw in (ONE_WAY, OTHER_WAY):
            outcomes[operate(name, 7, image, draw).tobytes()] = name
    transform = randaugment.rand_augment(1, 7)
    # Cutouts are all different, so what is not in the table is one.
    drawn = [
        outcomes.get(transform(image, tf.constant([5, i])).numpy().tobytes(), "Cutout")
        for i in range(480)
    ]
    counts = [drawn.count(name) for name in NAMES]
    # 30 of 480 each, with a standard error of 5.3.
    assert min(counts) >= 30 - 4 * 5.3 and max(counts) <= 30 + 4 * 5.3


def test_each_operation_can_be_drawn_in_both_directions(monkeypatch):
    """The first and the last too: with 400 draws, one of 32 is missed once in 10^4."""

    def fill(number: int):
        def operate(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
            outcome = number + 16 * tf.cast(draw[0] >= 0.5, tf.int32)
            return tf.fill(tf.shape(image), tf.cast(outcome, tf.uint8))

        return operate

    fake = {name: fill(number) for number, name in enumerate(NAMES)}
    monkeypatch.setattr(randaugment, "operations", lambda _: fake)
    transform = tf.function(randaugment.rand_augment(1, 7))
    image = tf.zeros((1, 1, 3), tf.uint8)
    drawn = [int(transform(image, tf.constant([5, i]))[0, 0, 0]) for i in range(400)]
    assert sorted(set(drawn)) == list(range(32))


def test_each_operation_has_draws_of_its_own(monkeypatch):
    def note(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        """Moves the columns to the left, and writes the draw into the last one."""
        level = tf.cast(256 * draw[0], tf.uint8)
        return tf.concat([image[:, 1:], tf.fill((1, 1, 3), level)], axis=1)

    monkeypatch.setattr(randaugment, "operations", lambda _: dict.fromkeys(NAMES, note))
    transform, image = randaugment.rand_augment(3, 7), tf.zeros((1, 3, 3), tf.uint8)
    for number in range(4):
        noted = transform(image, tf.constant([5, number])).numpy()[0, :, 0]
        assert len(set(noted.tolist())) == 3


def test_operations_follow_each_other():
    image = NOISE[:16, :16]
    transform = randaugment.rand_augment(2, 0)
    # Cutout at magnitude 0 and the like do nothing; two inversions do nothing either.
    results = {transform(image, tf.constant([5, i])).numpy().tobytes() for i in range(100)}
    once = {operate(name, 0, image).tobytes() for name in NAMES}
    assert len(results - once) > 20


@pytest.mark.parametrize("is_static", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_same_eagerly_and_in_tf_data_however_parallel(is_static):
    transform = randaugment.rand_augment(2, 20)
    images = [NOISE, SMOOTH] if is_static else [NOISE, SMOOTH[:30, :40]]
    eager = [transform(images[i % 2], tf.constant([3, i])).numpy() for i in range(40)]
    shape = NOISE.shape if is_static else (None, None, 3)
    for calls in (None, tf.data.AUTOTUNE):
        dataset = tf.data.Dataset.from_generator(
            lambda: images * 20, output_signature=tf.TensorSpec(shape, tf.uint8)
        )
        mapped = dataset.enumerate().map(
            lambda i, image: transform(image, tf.stack([3, tf.cast(i, tf.int32)])),
            num_parallel_calls=calls,
        )
        assert mapped.element_spec == tf.TensorSpec(shape, tf.uint8)
        for got, expected in zip(mapped.as_numpy_iterator(), eager, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_draws_follow_the_seed_alone():
    transform = randaugment.rand_augment()
    first, again = (
        [transform(NOISE, tf.constant([1, i])).numpy().tobytes() for i in range(20)]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 15


def test_no_operations_leave_the_image_as_it_is():
    np.testing.assert_array_equal(randaugment.rand_augment(0)(NOISE, tf.constant([0, 0])), NOISE)


def test_files_are_decoded():
    file = io.BytesIO()
    Image.fromarray(NOISE).save(file, "PNG")
    seed, transform = tf.constant([0, 1]), randaugment.rand_augment(2, 15)
    np.testing.assert_array_equal(transform(file.getvalue(), seed), transform(NOISE, seed))


def test_scaled_pixels_are_refused():
    with pytest.raises(
        ValueError, match="RandAugment needs uint8. Received: float32. Put `to_uint8` before it"
    ):
        randaugment.rand_augment()(NOISE.astype("float32"), tf.constant([0, 0]))


@pytest.mark.parametrize(("num_ops", "magnitude"), [(-1, 10), (2, -0.5)])
def test_negative_arguments_are_refused(num_ops, magnitude):
    with pytest.raises(
        ValueError, match=f"must not be negative. Received: {num_ops} and {magnitude}"
    ):
        randaugment.rand_augment(num_ops, magnitude)


@pytest.mark.parametrize("draw", [ONE_WAY, OTHER_WAY], ids=["one way", "other way"])
@pytest.mark.parametrize(
    "magnitude", [9, *(pytest.param(each, marks=pytest.mark.slow) for each in (4, 30))]
)
@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY"])
def test_an_image_whose_size_is_known_is_turned_as_one_whose_size_is_not(name, magnitude, draw):
    operation = randaugment.operations(magnitude)[name]
    signature = [tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec(3)]
    of_any_size = tf.function(lambda image, draw: operation(image, draw), input_signature=signature)
    np.testing.assert_array_equal(operate(name, magnitude, NOISE, draw), of_any_size(NOISE, draw))
