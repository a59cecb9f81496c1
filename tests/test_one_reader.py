"""One reader of photos: every command sees the same photos, upright, and gives the same answers."""

import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from turned_photos import KINDS, ORIENTATIONS, photo, scene

tf = pytest.importorskip("tensorflow")

from keras_vit import predict  # noqa: E402
from keras_vit.analyze import inspection  # noqa: E402
from keras_vit.data import folders, sources  # noqa: E402
from keras_vit.data.pipeline import evaluation_batches  # noqa: E402
from keras_vit.data.reading import Unreadable  # noqa: E402
from keras_vit.evaluate.accuracy import answer  # noqa: E402
from keras_vit.evaluate.features import extract  # noqa: E402
from keras_vit.export.saved_model import saved_model  # noqa: E402
from keras_vit.pixels import declare  # noqa: E402
from keras_vit.train.config import DataConfig  # noqa: E402
from keras_vit.train.inputs import evaluation_transforms  # noqa: E402

pytestmark = pytest.mark.tensorflow

SERVING = Path(__file__).parents[1] / "experiments" / "serving"
sys.path.append(str(SERVING))  # where the client's files lie

import photographs  # noqa: E402

SIZE = 16
# the others reach a server through the client
SERVED = ("jpg", "progressive.jpg", "grey.jpg", "png", "palette.png")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Logits of three classes, sensitive to what lies where; of our own names, so that `extract`
    finds the head.
    """
    keras.utils.set_random_seed(0)
    image = keras.layers.Input((SIZE, SIZE, 3))
    features = keras.layers.Flatten()(
        keras.layers.Conv2D(4, 4, strides=4, activation="relu")(image)
    )
    network = keras.Model(image, keras.layers.Dense(3, name="predictions")(features))
    declare(network, "-1..1")
    return network


@pytest.fixture(scope="module")
def exported(model: keras.Model, tmp_path_factory: pytest.TempPathFactory):
    folder = saved_model(
        model, tmp_path_factory.mktemp("model"), class_names=["x", "y", "z"], top=3, warmup=False
    )
    return tf.saved_model.load(folder).signatures["serving_default"]


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.asarray(keras.ops.softmax(np.asarray(logits, np.float32)))


def messy(root: Path, count: int) -> tuple[set[str], set[str]]:
    """A folder as people have it, `count` photos in it; returns photos that can be read, and what
    is left out.
    """
    files = {
        kind: photo(kind, 1 + number % 8, scene(9, 13, number))
        for number, kind in enumerate(KINDS)
        if kind != "heic"
    }
    originals = []
    for kind, content in files.items():
        originals.append(root.parent / f"original.{kind}")
        originals[-1].write_bytes(content)
    places = ["a", "b\nb", "c.jpg", "a/2", "a/2/3/4/5", "b\nb/x.png/y"]
    photos = set()
    for number in range(count):
        folder, original = places[number % len(places)], originals[number % len(originals)]
        (root / folder).mkdir(parents=True, exist_ok=True)
        line_break = "\n" if number % 7 == 0 else ""
        name = f"{folder}/{number}{line_break}é{original.name.removeprefix('original')}"
        os.link(original, root / name)
        photos.add(name)
    for name in ("a/._1.jpg", "__MACOSX/a/1.jpg", "a/.DS_Store", "b\nb/Thumbs.db", ".git/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"left behind")
    left_out = {
        "a/notes.txt",
        "b\nb/no suffix",
        "a/broken.jpg",
        "c.jpg/loop",
        "empty",
        "d",
        "beside.png",
    }
    (root / "a/notes.txt").touch()
    (root / "b\nb/no suffix").touch()
    (root / "a/broken.jpg").symlink_to("nowhere")
    (root / "c.jpg/loop").symlink_to(root)
    (root / "empty").mkdir()
    (root / "d").symlink_to("a")
    (root / "a/link.jpg").symlink_to(originals[0])
    os.link(originals[0], root / "beside.png")
    return photos | {"a/link.jpg"}, left_out


@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.slow)])
def test_all_commands_see_the_same_photos_of_a_messy_folder(
    count: int, model: keras.Model, tmp_path: Path
):
    root = tmp_path / "photos"
    root.mkdir()
    photos, left_out = messy(root, count)
    damaged = {
        f"a/damaged {number}.{suffix}"
        for number, suffix in enumerate(("jpg", "png", "webp", "tiff", "heic"))
    }
    for name in damaged:
        (root / name).write_bytes(b"no photo")

    def named(paths) -> set[str]:
        return {Path(path).relative_to(root).as_posix() for path in paths}

    source = sources.image_folder(root)
    learned, test = folders.training_and_test(root)
    assert test is None and learned.class_names == source.class_names == ("a", "b\nb", "c.jpg")
    for found in (source, learned):
        assert named(map(found.locate, range(found.num_examples))) == photos | damaged
        assert named(left.path for left in found.left_out) == left_out
    measured, trained = learned.split_by_class(0.1)
    assert measured.num_examples + trained.num_examples == len(photos | damaged)
    # Without classes, a folder without photos is no matter, and a photo may lie anywhere.
    everywhere = photos | damaged | {"beside.png"}
    for found in (
        predict.find_photos([root]),
        inspection.find_photos(root, tmp_path),
        photographs.find_photographs(root),
    ):
        assert named(found.photos) == everywhere and len(found.photos) == len(everywhere)
        assert named(left.path for left in found.left_out) == left_out - {"beside.png", "empty"}

    unreadable = Unreadable(source)
    card = answer(model, source, unreadable=unreadable, batch_size=100)
    said = dict(
        zip(
            map(source.locate, card.indices),
            zip(card.answers, card.shares, strict=True),
            strict=True,
        )
    )
    answers = list(predict.predict(model, predict.find_photos([root]).photos, top=1))
    problems = {str(one.photo): one.problem for one in answers if one.problem}
    assert named(problems) == damaged and sorted(problems.values()) == sorted(
        unreadable.reasons.values()
    )
    differences = []
    for one in answers:
        if str(one.photo) in said:
            best, share = said.pop(str(one.photo))
            differences.append(abs(one.guesses[0].score - share))
            assert one.guesses[0].name == f"class {best}" or differences[-1] < 1e-3
    assert not said and len(differences) == len(photos) and max(differences) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("held", ORIENTATIONS)
def test_a_photo_gets_the_same_scores_from_every_reader(
    held: int, model: keras.Model, exported, tmp_path: Path
):
    kinds = [kind for kind in KINDS if kind != "heic" or _has_heic()]
    root = tmp_path / "photos"
    for number, kind in enumerate(kinds):
        (root / f"{min(number, 2)}").mkdir(parents=True, exist_ok=True)
        (root / f"{min(number, 2)}" / f"{number:02}.{kind}").write_bytes(
            photo(kind, held, scene(50, 80))
        )
    source = sources.image_folder(root)
    paths = [source.locate(index) for index in range(len(kinds))]
    expected = np.concatenate(
        [probabilities(model(predict.read_photo(path, (SIZE, SIZE))[None])) for path in paths]
    )
    # All are of one scene, so that a photo that lies on its side is found out.
    in_colour = [number for number, kind in enumerate(kinds) if kind != "grey.jpg"]
    assert np.abs(expected[in_colour] - expected[0]).max() < 0.05

    answers = list(predict.predict(model, [Path(path) for path in paths], top=3))
    scores = np.array(
        [
            [dict((g.name, g.score) for g in one.guesses)[f"class {y}"] for y in range(3)]
            for one in answers
        ]
    )
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    card = answer(model, source, batch_size=4)
    np.testing.assert_allclose(card.shares, expected.max(axis=1), atol=1e-3)
    features = extract(model, source, progress=False)
    head = model.get_layer("predictions")
    np.testing.assert_allclose(probabilities(head(features.values)), expected, atol=1e-3)
    transforms = evaluation_transforms(DataConfig(kind="digits", name="digits"), SIZE)
    batches = evaluation_batches(source, transforms, batch_size=len(kinds))
    (levels,) = (images.numpy() for images, _, _ in batches)
    np.testing.assert_allclose(probabilities(model(levels)), expected, atol=1e-3)

    for bytes_of, served in (
        (Path.read_bytes, SERVED),
        (lambda path: photographs.as_served(path.read_bytes()), kinds),
    ):
        chosen = [number for number, kind in enumerate(kinds) if kind in served]
        given = exported(tf.constant([bytes_of(Path(paths[number])) for number in chosen]))
        assert given["status"].numpy().tolist() == [b"ok"] * len(chosen)
        order = given["class_ids"].numpy()
        np.testing.assert_allclose(
            given["scores"], np.take_along_axis(expected[chosen], order, axis=1), atol=1e-3
        )


def _has_heic() -> bool:
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True
