"""The command `analyze`: which photos are read and how, which model is built, and what it is said
to see.
"""

import csv
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from synthetic_checkpoint import checkpoint

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from keras_vit import models  # noqa: E402
from keras_vit.analyze import (
    inspection,  # noqa: E402
    report,  # noqa: E402
)
from keras_vit.analyze.inspection import find_photos, inspect  # noqa: E402
from keras_vit.analyze.subject import Photo, Subject  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shallow")]

ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32
)
RED, GREEN = (250, 5, 5), (5, 250, 5)


def save(
    path: Path, color: tuple[int, int, int] = RED, size: tuple[int, int] = (20, 30), **options
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path, **options)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a head that was not left at zero."""
    model = models.vision_transformer(ROW, keras.Input((32, 32, 3)), classes=3)
    head = model.get_layer("predictions")
    head.set_weights([np.random.default_rng(1).normal(size=(16, 3)), np.zeros(3)])
    path = tmp_path_factory.mktemp("tiny") / "model.keras"
    model.save(path)
    return path


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """What a report would be of; none is written, which is quicker."""
    seen = []

    def keep(subject: Subject, folder: Path) -> Path:
        seen.append(subject)
        return Path(folder) / "report.html"

    monkeypatch.setattr(inspection, "write_report", keep)
    return seen


# --- which photos
# ----------------------------------------------------------------------------------------------------


def test_photos_are_found_in_folders_below_and_hidden_ones_and_reports_are_not(tmp_path: Path):
    images = tmp_path / "images"
    for name in ("b.JPG", "a.png", "cats/x.webp", "cats/deep/y.bmp", ".hidden.png", ".cache/z.png"):
        save(images / name)
    save(images / "overlays.png")  # a photo of that name, if the report goes elsewhere
    (images / "notes.txt").write_text("no photo")
    (images / "folder.png").mkdir()
    found = [
        path.relative_to(images).as_posix()
        for path in find_photos(images, tmp_path / "report").photos
    ]
    assert found == ["a.png", "b.JPG", "cats/deep/y.bmp", "cats/x.webp", "overlays.png"]
    assert len(find_photos(images, images).photos) == 4
    assert (images / "overlays.png", "a figure of an earlier report") in find_photos(
        images, images
    ).left_out
    for name in report.FILES:
        (images / "report").mkdir(exist_ok=True)
        (images / "report" / name).write_bytes((images / "a.png").read_bytes())
    assert len(find_photos(images, images / "report").photos) == 5
    # Figures of another report, and of one that failed before it wrote its page.
    for left in ("report.html", "photos.csv"):
        folder = images / f"other of {left}"
        save(folder / "heads.png")
        save(folder / "cat.png")
        assert len(find_photos(images, tmp_path / "new").photos) == 7
        (folder / left).touch()
        assert len(find_photos(images, tmp_path / "new").photos) == 6
        (folder / "cat.png").unlink()


def test_a_single_photo_is_taken(tmp_path: Path):
    photo = save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    assert find_photos(photo, tmp_path / "out") == ([photo], [])


def test_what_is_no_folder_of_photos_is_an_error(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"There is no folder or photo .*nowhere\. Expected a folder of"
    ):
        find_photos(tmp_path / "nowhere", "out")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(
        ValueError, match=r"No photos \(\.jpg, .*\) in .*empty or its subfolders. Left out, 1"
    ):
        find_photos(tmp_path / "empty", "out")


def test_every_photo_is_analysed_and_some_from_all_over_the_folder_are_drawn(
    tiny: Path, tmp_path: Path, subjects: list[Subject]
):
    for number in range(10):
        save(tmp_path / "images" / f"{number}.png", (20 * number, 99, 5))
    done = []
    found = inspect(
        *(tiny, tmp_path / "images", tmp_path / "out"),
        num_shown=4,
        batch_size=3,
        progress=lambda count, total: done.append((count, total)),
    )
    [subject] = subjects
    assert [photo.name for photo in found.photos] == [f"{number}.png" for number in range(10)]
    assert [shown.photo.name for shown in subject.shown] == ["0.png", "3.png", "6.png", "9.png"]
    assert subject.attention.num_images == 10
    assert done == [(0, 10), (3, 10), (6, 10), (9, 10), (None, 10)]
    for shown in subject.shown:
        level = 20 * int(shown.photo.name[0])
        np.testing.assert_allclose(shown.seen[..., 0], level, atol=1e-4)
        np.testing.assert_allclose(shown.picture[..., 0], level / 127.5 - 1, atol=1e-6)


def test_more_patches_are_fewer_photos_per_step(
    tiny: Path, tmp_path: Path, subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
):
    for number in range(5):
        save(tmp_path / "images" / f"{number}.png")
    done = []
    inspect(
        *(tiny, tmp_path / "images", tmp_path / "all"),
        progress=lambda count, _: done.append(count),
    )
    assert done == [0, None]
    rows, columns = subjects[0].attention.grid
    monkeypatch.setattr(inspection, "_MOST_PAIRS", 2 * (rows * columns) ** 2)
    inspect(
        *(tiny, tmp_path / "images", tmp_path / "two"),
        progress=lambda count, _: done.append(count),
    )
    assert done[2:] == [0, 2, 4, None]


def test_the_name_of_weights_has_no_secret():
    named = inspection._name_weights("https://user:word@host/model.npz?token=secret")
    assert named.startswith("https://") and "host/model.npz" in named
    assert "word" not in named and "secret" not in named
    assert inspection._name_weights("None") == "random"


def test_a_photo_that_cannot_be_read_is_named_and_another_is_drawn(
    tiny: Path, tmp_path: Path, subjects: list[Subject]
):
    images = tmp_path / "images"
    for name in ("b.png", "c.png", "d.png"):
        save(images / name)
    (images / "a.jpg").write_bytes(b"no image")
    (images / "e.png").write_bytes((images / "b.png").read_bytes()[:60])
    found = inspect(tiny, images, tmp_path / "out", num_shown=3)
    assert [(photo.name, bool(photo.problem)) for photo in found.photos] == [
        *(("a.jpg", True), ("b.png", False), ("c.png", False), ("d.png", False), ("e.png", True)),
    ]
    assert (
        "cannot identify image file" in found.photos[0].problem
        and "BytesIO" not in found.photos[0].problem
    )
    assert [shown.photo.name for shown in subjects[0].shown] == ["b.png", "c.png", "d.png"]
    assert subjects[0].attention.num_images == 3
    for name in ("b.png", "c.png", "d.png"):
        (images / name).write_bytes(b"")
    with pytest.raises(
        ValueError,
        match=r"None of the 5 photographs can be read, such as .*a\.jpg: cannot identify",
    ):
        inspect(tiny, images, tmp_path / "out")


def test_a_black_photo_is_analysed_by_a_model_that_takes_levels(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    """Its levels are 0 and 1, and resizing makes fractions of them."""
    model = models.vision_transformer(
        ROW, keras.layers.Rescaling(1 / 127.5, -1.0)(pixels := keras.Input((32, 32, 3))), classes=3
    )
    keras.Model(pixels, model.output).save(tmp_path / "model.keras")
    black = np.random.default_rng(0).integers(0, 2, (50, 70, 3), dtype=np.uint8)
    (tmp_path / "black").mkdir()
    Image.fromarray(black).save(tmp_path / "black" / "a.png")
    found = inspect(tmp_path / "model.keras", tmp_path / "black", tmp_path / "out")
    assert not found.photos[0].problem and "from 0 to 255" in found.taken
    assert np.unique(subjects[0].shown[0].seen).tolist() == [0, 1]


def test_photos_are_shown_the_right_way_up_in_their_own_aspect(
    tiny: Path, tmp_path: Path, subjects: list[Subject]
):
    """EXIF 6: the camera was turned, and what is stored on the left is on top."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30] = RED
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "turned.png", exif=exif)
    Image.new("L", (3000, 100), 255).save(tmp_path / "images" / "wide.png")
    inspect(tiny, tmp_path / "images", tmp_path / "out")
    turned, wide = subjects[0].shown
    assert turned.picture.shape == (60, 40, 3) and turned.seen.shape == (32, 32, 3)
    for image in (turned.picture, turned.seen / 127.5 - 1):
        assert image[2, 2, 0] > 0.9 and image[-3, 2, 0] == -1
    assert wide.picture.shape == (21, 640, 3)
    np.testing.assert_allclose(wide.picture, 1.0, atol=1e-5)


# --- which model
# -----------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> Path:
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "images" / "b.png", GREEN)
    return tmp_path / "images"


def test_the_answers_are_those_of_the_model_under_its_names(
    tiny: Path, images: Path, tmp_path: Path, subjects: list[Subject]
):
    model = keras.models.load_model(tiny)
    pixels = np.stack(
        [np.full((32, 32, 3), color, np.float32) / 127.5 - 1 for color in (RED, GREEN)]
    )
    scores = keras.ops.convert_to_numpy(keras.ops.softmax(model(pixels)))
    found = inspect(tiny, images, tmp_path / "out").photos
    assert [photo.answer for photo in found] == [
        f"class {number}" for number in scores.argmax(axis=1)
    ]
    np.testing.assert_allclose(
        [photo.probability for photo in found], scores.max(axis=1), rtol=1e-5
    )
    named = tmp_path / "named" / "model.keras"
    named.parent.mkdir()
    named.write_bytes(tiny.read_bytes())
    (named.parent / "classes.txt").write_text("one\ntwo\nthree\n")
    (named.parent / "metrics.csv").write_text("step,metric,value\n5,train/loss,0.5\n")
    found = inspect(named, images, tmp_path / "out").photos
    assert [photo.answer for photo in found] == [
        ("one", "two", "three")[number] for number in scores.argmax(axis=1)
    ]
    assert subjects[0].curves == {} and subjects[1].curves == {"train/loss": [(5, 0.5)]}
    assert (subjects[1].title, subjects[1].variant) == ("named/model.keras", "")
    (named.parent / "metrics.csv").write_text("epoch,loss\n1,0.5\n")  # another program's
    inspect(named, images, tmp_path / "out")
    assert subjects[2].curves == {}


def test_probabilities_of_a_softmax_are_not_taken_for_logits(
    tiny: Path, images: Path, tmp_path: Path, subjects: list
):
    model = keras.models.load_model(tiny)
    model.layers[-1].activation = keras.activations.softmax
    model.save(tmp_path / "softmax.keras")
    found = [
        inspect(path, images, tmp_path / "out").photos
        for path in (tiny, tmp_path / "softmax.keras")
    ]
    for one, other in zip(*found, strict=True):
        assert one.answer == other.answer and one.probability == pytest.approx(
            other.probability, rel=1e-4
        )


def test_a_head_that_was_never_trained_gives_no_answers(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    models.vision_transformer(ROW, keras.Input((32, 32, 3)), classes=3).save(
        tmp_path / "zero.keras"
    )
    models.vision_transformer(ROW, keras.Input((32, 32, 3)), pooling="token").save(
        tmp_path / "headless.keras"
    )
    for name in ("zero.keras", "headless.keras"):
        assert [
            photo.answer for photo in inspect(tmp_path / name, images, tmp_path / "out").photos
        ] == ["", ""]
        assert "Predictions" in [absent.part for absent in subjects[-1].absent]


def test_attention_that_is_no_number_is_said(images: Path, tmp_path: Path):
    """The head is untrained, so that there are no predictions in which NaN would be noticed."""
    model = models.vision_transformer(ROW, keras.Input((32, 32, 3)), classes=3)
    kernel = model.get_layer("embedding").kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    model.save(tmp_path / "nan.keras")
    with pytest.raises(ValueError, match=r"attention of tiny is NaN or infinite on these photos"):
        inspect(tmp_path / "nan.keras", images, tmp_path / "out")


@pytest.mark.parametrize(
    ("outputs", "activation", "reason"),
    [
        (3, "sigmoid", None),
        (3, "relu", "ends in relu. Build it with"),
        (1, "sigmoid", "outputs one number for each image"),
    ],
)
def test_only_scores_of_classes_are_answers(
    images: Path, tmp_path: Path, subjects: list[Subject], outputs: int, activation: str, reason
):
    pixels = keras.Input((32, 32, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(pixels))
    keras.Model(pixels, keras.layers.Dense(outputs, activation)(pooled)).save(tmp_path / "m.keras")
    found = inspect(tmp_path / "m.keras", images, tmp_path / "out")
    assert [bool(photo.answer) for photo in found.photos] == [reason is None] * 2
    reasons = [absent.reason for absent in subjects[-1].absent if absent.part == "Predictions"]
    assert reasons == [] if reason is None else reason in reasons[0]


def test_a_model_is_given_the_declared_pixels_and_its_thousand_classes_have_names(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    """The graph does not tell the range of the pixels. Red is class 281 of ImageNet, green is class 1."""
    pixels = keras.Input((32, 32, 3))
    head = keras.layers.Dense(1000, "softmax")
    model = keras.Model(pixels, head(keras.layers.GlobalAveragePooling2D()(pixels)))
    kernel = np.zeros((3, 1000), np.float32)
    kernel[0, 281] = kernel[1, 1] = 9
    head.set_weights([kernel, np.zeros(1000, np.float32)])
    model.save(tmp_path / "model.keras")
    found = inspect(tmp_path / "model.keras", images, tmp_path / "out", pixels="0..1")
    assert "takes pixels from 0 to 1 (as declared)" in found.taken
    assert [photo.answer for photo in found.photos] == ["tabby", "goldfish"]
    high, low = np.exp(9 * np.array([250, 5]) / 255)
    for photo in found.photos:
        assert photo.probability == pytest.approx(high / (high + low + 998), rel=1e-5)


def test_random_weights_and_other_sizes_of_a_named_model(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    inspect("ViT_Ti16", images, tmp_path / "out", weights="none", image_size=(32, 48))
    [subject] = subjects
    assert (subject.title, subject.variant) == ("ViT_Ti16, random weights", "ViT_Ti16")
    assert subject.attention.grid == (2, 3) and subject.shown[0].seen.shape == (32, 48, 3)


def test_weights_with_and_without_a_trained_head(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    arrays = checkpoint(VIT_VARIANTS["ViT_Ti16"], image_size=32, classes=7)
    np.savez(tmp_path / "head.npz", **arrays)
    np.savez(
        tmp_path / "zeros.npz",
        **{k: np.zeros_like(v) if k.startswith("head/") else v for k, v in arrays.items()},
    )
    np.savez(
        tmp_path / "none.npz", **{k: v for k, v in arrays.items() if not k.startswith("head/")}
    )
    for name, has_answers in (("head.npz", True), ("zeros.npz", False), ("none.npz", False)):
        found = inspect(
            "ViT_Ti16", images, tmp_path / "out", weights=tmp_path / name, image_size=(32, 32)
        )
        assert [bool(photo.answer) for photo in found.photos] == [has_answers] * 2, name
        assert subjects[-1].attention.grid == (2, 2)


def test_a_resnet_is_analysed_without_attention(
    images: Path, tmp_path: Path, subjects: list[Subject]
):
    inspect("ResNet50x1", images, tmp_path / "out", weights="none", image_size=(32, 32))
    assert subjects[0].attention is None
    assert [absent.part for absent in subjects[0].absent] == ["Attention", "Predictions"]
    assert [photo.problem for photo in subjects[0].photos] == ["", ""]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("ViT_B17", {"weights": "imagenet"}, "ViT_B16"),
        ("ViT_B17", {"weights": "none"}, "ViT_B16"),
        ("ViT_B16", {}, "Weights are missing"),
        ("ViT_B16", {"weights": "no_such_tag"}, "no_such_tag"),
        ("ViT_B16", {"weights": "nowhere/model.npz"}, "there is no such file"),
        ("ViT_Ti16", {"weights": "none", "image_size": (33, 33)}, "multiple of 16|must be|33"),
        ("nowhere/model.keras", {}, "There is no file"),
        ("tiny", {"weights": "imagenet"}, "omit `weights`"),
        (
            "tiny",
            {"image_size": (64, 64)},
            "saved for images of 32 x 32 pixels.*Omit the image size",
        ),
        ("tiny", {"num_shown": 0}, "must be at least 1"),
        ("tiny", {"batch_size": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_built_is_said(
    tiny: Path, images: Path, tmp_path: Path, model: str, options, message: str
):
    with pytest.raises(ValueError, match=message):
        inspect(tiny if model == "tiny" else model, images, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_model_of_something_else_than_images_is_refused(images: Path, tmp_path: Path):
    keras.Sequential([keras.Input((10,)), keras.layers.Dense(2)]).save(tmp_path / "table.keras")
    with pytest.raises(
        ValueError,
        match=r"must take images \(B, H, W, C\), and nothing else. Its input shapes: \[\(None, 10\)\]",
    ):
        inspect(tmp_path / "table.keras", images, tmp_path / "out")


def test_a_model_for_any_size_is_told_which(images: Path, tmp_path: Path, subjects: list[Subject]):
    models.vision_transformer(ROW, keras.Input((None, None, 3)), classes=3).save(
        tmp_path / "any.keras"
    )
    with pytest.raises(ValueError, match="takes images of any size"):
        inspect(tmp_path / "any.keras", images, tmp_path / "out")
    inspect(tmp_path / "any.keras", images, tmp_path / "out", image_size=(16, 24))
    assert subjects[0].attention.grid == (2, 3)


def test_weights_of_another_shape_name_the_model_beside_them(
    tiny: Path, images: Path, tmp_path: Path
):
    np.savez(
        tmp_path / "model.npz", **checkpoint(VIT_VARIANTS["ViT_Ti16"], image_size=32, classes=7)
    )
    (tmp_path / "model.keras").write_bytes(tiny.read_bytes())
    with pytest.raises(ValueError, match=r"(?s)does not match the model.*--model=.*model\.keras$"):
        inspect("ViT_S16", images, tmp_path / "out", weights=tmp_path / "model.npz")


def test_a_whole_report_is_written(tiny: Path, images: Path, tmp_path: Path):
    found = inspect(tiny, images, tmp_path / "out")
    assert found.report == tmp_path / "out" / "report.html" and found.report.stat().st_size > 50_000
    with open(tmp_path / "out" / "photos.csv", encoding="utf-8", newline="") as file:
        assert [Photo(row["photo"], row["answer"])[:2] for row in csv.DictReader(file)] == [
            (photo.name, photo.answer) for photo in found.photos
        ]
