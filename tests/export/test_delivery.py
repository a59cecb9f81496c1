"""The command `export`: several formats in one go, and the check that what was delivered is the
model.
"""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import warm

import keras_vit
from keras_vit import cli
from keras_vit.data import sources
from keras_vit.evaluate import measure
from keras_vit.export import acceptance, delivery
from keras_vit.export.checksums import write_checksums
from keras_vit.export.delivery import find_examples
from keras_vit.export.examples import take
from keras_vit.export.metadata import read_facts

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shallow")]

SIZE, NAMES = 32, ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose answers differ from image to image, with the names of its classes beside
    it.
    """
    keras.utils.set_random_seed(1)
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(SIZE, SIZE, 3), classes=3)
    head = model.get_layer("predictions")
    head.kernel.assign(np.random.default_rng(0).normal(0, 0.3, head.kernel.shape))
    path = tmp_path_factory.mktemp("weights") / "mine.npz"
    keras_vit.save_checkpoint(model, path)
    path.with_name("classes.txt").write_text("\n".join(NAMES) + "\n")
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures in three folders, in three formats, of as many sizes; one more cannot be
    read.
    """
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    for number in range(12):
        coarse = generator.uniform(0, 255, (1, 4, 5, 3))
        image = keras.ops.image.resize(coarse, (30 + number, 50), interpolation="bilinear")[0]
        path = folder / NAMES[number % 3] / f"{number}.{'jpg' if number % 2 else 'png'}"
        path.parent.mkdir(exist_ok=True)
        keras.utils.save_img(path, keras.ops.convert_to_numpy(image), scale=False)
    (folder / NAMES[0] / "broken.jpg").write_bytes(b"\xff\xd8\xff rubbish")
    (folder / NAMES[1] / "notes.txt").write_text("not a photo")
    return folder


@pytest.fixture(scope="module")
def delivered(
    weights: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("saved_models") / "mine"
    code, said = _export(
        *("--model=ViT_Ti16", f"--weights={weights}", f"--image_size={SIZE}", f"--images={photos}"),
        *(
            "--format=saved_model,tflite,onnx",
            "--flavours=float32,dynamic_int8",
            f"--output={output}",
        ),
    )
    assert code == 0
    return output, said


def _export(*flags: str) -> tuple[int, str]:
    """The exit code and what was printed. In this process, where the models are shallow."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = cli.main(["export", *flags])
    return code, said.getvalue()


def _edit(facts: Path, old: str, new: str) -> None:
    """Edits what an export says of itself, as its maker might."""
    facts.write_text(facts.read_text().replace(old, new))
    write_checksums(
        facts.parent.parent if facts.parent.name == "assets.extra" else facts.parent, facts.parent
    )


def test_every_format_is_there_and_was_judged_on_the_images_that_can_be_read(
    delivered: tuple[Path, str],
):
    output, said = delivered
    files = [
        "1/saved_model.pb",
        "tflite/1/float32.tflite",
        "tflite/1/dynamic_int8.tflite",
        "onnx/1/model.onnx",
    ]
    assert [name for name in files if not (output / name).is_file()] == []
    assert ": 12 images, the same for every format." in said
    assert "Left out, 2: " in said and "broken.jpg" in said and "notes.txt" in said
    judged = read_facts(output / "1")["judged"]
    broken, notes = sorted(judged["left_out"])
    assert "broken.jpg: " in broken and "notes.txt: not a photo by its suffix" in notes
    rows = [line.split() for line in said.splitlines() if line.split()[:1] and "%" in line]
    assert len(rows) == 4 and all("12" in row for row in rows), said
    assert said.count("100.00%") >= 3  # of float32 in three formats
    assert (output / "1" / "assets" / "classes.txt").read_text().split() == NAMES


def test_the_check_passes_and_says_against_what(delivered: tuple[Path, str], photos: Path):
    code, said = _export(f"--check={delivered[0]}")
    assert code == 0, said
    assert said.count("OK ") == 4
    # on the images that the export was judged on
    assert said.count("compared with the model on 12 images: ") == 4


def _facts(output: Path) -> dict[str, dict]:
    return {
        str(path.relative_to(output)): json.loads(path.read_text())
        for path in output.rglob("keras_vit.json")
    }


@pytest.mark.slow
def test_with_int8_every_format_is_judged_on_the_images_that_set_no_ranges(
    weights: Path, photos: Path, tmp_path: Path
):
    """Of twelve images six set ranges; the table and the facts of each format are about the six
    others.
    """
    wanted = delivery.Wanted(
        formats=("saved_model", "tflite", "onnx"), flavours=("int8", "float32"), min_agreement=0
    )
    said: list[str] = []
    options = {"weights": weights, "images": photos, "image_size": (SIZE, SIZE), "say": said.append}
    assert delivery.deliver("ViT_Ti16", tmp_path, wanted, **options) == []
    facts = _facts(tmp_path)
    assert len(facts) == 3
    first = facts["tflite/1/keras_vit.json"]
    assert len(first["calibrated_on"]) == 6 and first["judged"]["num_images"] == 6
    assert all(each["judged"] == first["judged"] for each in facts.values())
    assert all(each["calibrated_on"] == first["calibrated_on"] for each in facts.values())
    rows = [line.split() for line in "\n".join(said).splitlines() if "%" in line]
    assert len(rows) == 4 and all("6" in row for row in rows)
    checked = list(acceptance.check(tmp_path))
    assert [(each.problem, each.verdict.num_images) for each in checked] == [("", 6)] * 4
    assert all("not the images" not in each.against for each in checked)


@pytest.mark.slow
def test_the_check_takes_as_many_images_as_the_export_and_says_so_if_they_are_others(
    weights: Path, photos: Path, tmp_path: Path
):
    options = {
        "weights": weights,
        "images": photos,
        "image_size": (SIZE, SIZE),
        "num_images": 5,
        "say": lambda _: None,
    }
    delivery.deliver("ViT_Ti16", tmp_path, **options)
    (same,) = acceptance.check(tmp_path)
    assert same.verdict.num_images == 5 and "not the images" not in same.against
    (other,) = acceptance.check(tmp_path, images=photos / NAMES[0])
    assert other.problem == "" and "not the images that it was judged on at export" in other.against


def test_the_check_has_the_thresholds_of_the_export(delivered: tuple[Path, str], tmp_path: Path):
    """A recorded threshold of 0 is met by an exact file alone; `--check` names what was recorded.
    The error of int8 is never 0.
    """
    folder = tmp_path / "mine"
    shutil.copytree(delivered[0], folder)
    for name, facts in _facts(folder).items():
        bound = facts["accepted"]["max_error"]
        facts["accepted"]["max_error"] = (
            dict.fromkeys(bound, 0.0) if isinstance(bound, dict) else 0.0
        )
        (folder / name).write_text(json.dumps(facts))
        version = (folder / name).parent
        write_checksums(version.parent if version.name == "assets.extra" else version, version)
    checked = list(acceptance.check(folder))
    assert len(checked) == 4 and any(each.problem for each in checked)
    assert all(("above 0" in each.problem) == (each.verdict.max_error > 0) for each in checked)
    assert all(each.accepted.startswith("max error 0") for each in checked)


def test_a_failed_check_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"rubbish")
    assert cli.main(["export", f"--check={tmp_path}"]) == 1
    assert "was not exported by keras_vit" in capsys.readouterr().out


def test_a_check_fails_if_any_file_fails(monkeypatch: pytest.MonkeyPatch, capsys):
    for problems, code in ((("", "", ""), 0), (("", "changed", ""), 1), (("changed", ""), 1)):
        checked = [SimpleNamespace(problem=each, text=lambda: "a line") for each in problems]
        monkeypatch.setattr(acceptance, "check", lambda *_, each=checked, **__: iter(each))
        assert cli.main(["export", "--check=a"]) == code
        assert capsys.readouterr().out.splitlines() == ["a line"] * len(problems)


def test_a_file_that_is_not_the_model_any_more_fails(delivered: tuple[Path, str], tmp_path: Path):
    """The int8 file under the name of float32: of another hash, and further off than float32 may
    be.
    """
    folder = tmp_path / "mine"
    shutil.copytree(delivered[0] / "tflite" / "1", folder / "1")
    shutil.copyfile(folder / "1" / "dynamic_int8.tflite", folder / "1" / "float32.tflite")
    assert [each.problem for each in acceptance.check(folder)] == [
        "",
        "changed since the export: float32.tflite is changed",
    ]
    write_checksums(folder / "1", folder / "1")
    right, wrong = acceptance.check(folder)
    assert right.problem == "" and "above" in wrong.problem


def test_a_damaged_file_fails_and_the_others_are_checked(
    delivered: tuple[Path, str], tmp_path: Path
):
    folder = tmp_path / "mine"
    shutil.copytree(delivered[0], folder)
    variables = next((folder / "1" / "variables").glob("variables.data*"))
    variables.write_bytes(variables.read_bytes()[: variables.stat().st_size // 2])
    (folder / "onnx" / "1" / "model.onnx").write_bytes(b"rubbish")
    checked = list(acceptance.check(folder))
    # the SavedModel, ONNX, two of TFLite
    assert [each.problem != "" for each in checked] == [True, True, False, False]
    assert all("is changed" in each.problem for each in checked[:2])
    assert checked[0].text().startswith("FAILED") and checked[2].text().startswith("OK ")
    for version, place in (("1", "1/assets.extra"), ("onnx/1", "onnx/1")):
        write_checksums(folder / version, folder / place)
        (alone,) = acceptance.check(folder / version)
        assert "cannot be run" in alone.problem


def test_without_the_weights_the_answers_of_then_are_taken(
    delivered: tuple[Path, str], weights: Path, tmp_path: Path
):
    folder = tmp_path / "mine"
    shutil.copytree(delivered[0], folder)
    for facts in folder.rglob("keras_vit.json"):
        _edit(facts, str(weights), str(tmp_path / "gone.npz"))
    checked = list(acceptance.check(folder))
    assert [each.problem for each in checked] == [""] * 4
    assert all(
        "recorded at export, on 8 images; the model cannot be rebuilt" in each.against
        for each in checked
    )
    asked = list(acceptance.check(folder, images=tmp_path))
    assert all("The model cannot be run on" in each.problem for each in asked)


def test_other_weights_under_the_same_name_are_found_out(
    delivered: tuple[Path, str], weights: Path, tmp_path: Path
):
    model = keras_vit.ViT_Ti16(weights=weights, input_shape=(SIZE, SIZE, 3), classes=3)
    model.get_layer("predictions").bias.assign([0.0, 0.1, 0.0])
    keras_vit.save_checkpoint(model, tmp_path / "mine.npz")
    shutil.copytree(delivered[0] / "1", tmp_path / "1")
    _edit(
        tmp_path / "1" / "assets.extra" / "keras_vit.json", str(weights), str(tmp_path / "mine.npz")
    )
    (checked,) = acceptance.check(tmp_path / "1")
    assert checked.problem == ""
    assert "have changed since the export" in checked.against


@pytest.mark.slow
def test_one_format_that_fails_does_not_keep_back_the_others(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    wanted = delivery.Wanted(formats=("onnx", "saved_model"))
    options = {"weights": weights, "images": photos, "image_size": (SIZE, SIZE)}
    (problem,) = delivery.deliver("ViT_Ti16", tmp_path / "mine", wanted, **options)
    assert problem.startswith("onnx: ") and 'pip install "onnx' in problem and "tf2onnx" in problem
    assert (tmp_path / "mine" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--output=FOLDER must be given"),
        (
            ("--output=x", "--format=pickle"),
            "Formats are saved_model, tflite, onnx, openvino. Received: pickle",
        ),
        (("--output=x", "--model=ViT_B17"), "ViT_B17"),
        (("--check=nowhere",), "nowhere contains no export"),
        (("--output=x", "--weights=gone.npz"), "there is no such file"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(flags: tuple[str, ...], said: str, tmp_path: Path):
    done = warm.run(
        [sys.executable, "-m", "keras_vit", "export", *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode in (1, 2) and said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_photos_without_classes_and_what_was_left_out(photos: Path, tmp_path: Path):
    for name in ("0.png", "broken.jpg"):
        (tmp_path / name).write_bytes((photos / NAMES[0] / name).read_bytes())
    (tmp_path / "notes.txt").touch()
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(SIZE, SIZE, 3), classes=3)
    found = find_examples(tmp_path, model, [], 10, (SIZE, SIZE))
    assert len(found.images) == 1 and found.labels is None
    (notes, why), (broken, _) = found.left_out
    assert (Path(notes).name, why) == ("notes.txt", "not a photo by its suffix, .txt")
    assert Path(broken).name == "broken.jpg"


def test_fewer_photos_than_there_are_come_from_the_whole_folder(tmp_path: Path):
    for number in range(7):
        level = np.full((SIZE, SIZE, 3), 30 * number)
        keras.utils.save_img(tmp_path / f"{number}.png", level, scale=False)
    network = SimpleNamespace(output_shape=(None, 3))
    for count, expected in ((3, [0, 90, 180]), (7, range(0, 210, 30)), (50, range(0, 210, 30))):
        found = find_examples(tmp_path, network, [], count, (SIZE, SIZE))
        assert found.pixels()[:, 0, 0, 0].tolist() == list(expected)


def _draw(path: Path, number: int = 0, side: int = 40) -> None:
    """A picture whose content depends on the number, brighter in the middle."""
    pixels = np.random.default_rng(number).integers(0, 99, (side, 2 * side, 3))
    pixels[side // 4 : -side // 4, side // 2 : -side // 2] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, pixels, scale=False)


@pytest.mark.parametrize(
    ("folders", "num_classes"),
    [
        (("paris", "rome"), 1000),  # albums
        (("paris", "rome"), 3),
        (("2023", "2024"), 1000),  # years
        (("1", "2"), 1000),  # numbers, but not those of all classes
        (("edited", ""), 1),  # photos beside a folder
        (("n01440764", "paris"), 1000),
        (("n01440764", "n01443537"), 3),
    ],
)
def test_folders_that_are_not_the_classes_give_no_labels_and_all_photos(
    folders: tuple[str, ...], num_classes: int, tmp_path: Path, caplog
):
    for number in range(8):
        _draw(tmp_path / folders[number % 2] / f"{number}.png", number)
    network = SimpleNamespace(output_shape=(None, num_classes))
    found = find_examples(tmp_path, network, [], 10, (SIZE, SIZE))
    assert found.labels is None and len(found.images) == 8 and found.left_out == ()
    said = caplog.text
    assert "used without labels" in said and f"the model has {num_classes:,} classes" in said
    assert "classes.txt" in said and folders[0] in said


@pytest.mark.parametrize(
    ("folders", "num_classes", "labels"),
    [
        (("paris", "rome"), 2, {0, 1}),
        (("n01440764", "n01443537"), 1000, {0, 1}),
        (("n01443537", "n01484850"), 1000, {1, 2}),
    ],
)
def test_folders_of_all_classes_or_of_wordnet_ids_give_labels(
    folders: tuple[str, ...], num_classes: int, labels: set[int], tmp_path: Path, caplog
):
    for number in range(8):
        _draw(tmp_path / folders[number % 2] / f"{number}.png", number)
    network = SimpleNamespace(output_shape=(None, num_classes))
    found = find_examples(tmp_path, network, [], 10, (SIZE, SIZE))
    assert set(found.labels.tolist()) == labels and len(found.images) == 8
    assert "without labels" not in caplog.text


def test_a_data_set_of_other_classes_gives_no_labels(monkeypatch, caplog):
    pixels = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE, 3), np.uint8)
    source = sources.arrays(pixels, np.arange(6) % 2, ["cat", "dog"], name="pets test")
    monkeypatch.setattr(measure.sources, "tfds", lambda *_: source)
    for num_classes, labels in ((2, [0, 1, 0, 1, 0, 1]), (1000, None)):
        network = SimpleNamespace(output_shape=(None, num_classes))
        found = find_examples("tfds:pets:test", network, [], 10, (SIZE, SIZE))
        assert (found.labels if labels is None else found.labels.tolist()) == labels
    assert "tfds:pets:test has 2 classes, and the model has 1,000" in caplog.text


def test_photos_are_cropped_as_the_export_crops_them(tmp_path: Path):
    """With and without labels, which are read in the same way."""
    for folder in ("paris", "rome"):
        _draw(tmp_path / folder / "1.png", len(folder))
    (one, whole), found = ((2, "central:0.5"), (2, "resize")), []
    for num_classes, crop in (one, (3, "central:0.5"), whole):
        network = SimpleNamespace(output_shape=(None, num_classes))
        found.append(find_examples(tmp_path, network, [], 10, (SIZE, SIZE), crop).images)
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].min() > 0 > found[2].min()  # the bright middle, and the whole


def test_what_is_judged_on_and_checked_is_cropped_as_the_weights_ask(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch
):
    mine = tmp_path / "weights"
    shutil.copytree(weights.parent, mine)
    (mine / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "do_resize": True,
                "size": {"shortest_edge": 2 * SIZE},
                "do_center_crop": True,
                "crop_size": {"height": SIZE, "width": SIZE},
            }
        )
    )
    said: list[str] = []
    options = {"weights": mine / weights.name, "images": photos, "image_size": (SIZE, SIZE)}
    output = tmp_path / "out"
    assert delivery.deliver("ViT_Ti16", output, **options, say=said.append) == []
    facts = read_facts(output / "1")
    assert facts["input"]["resize"] == "central:0.5"
    source = sources.image_folder(photos)
    judged = take(source, (SIZE, SIZE), 100, crop="central:0.5").fingerprint()
    assert facts["judged"]["sha256"] == judged
    (checked,) = acceptance.check(output)
    assert checked.problem == "" and "not the images" not in checked.against


def test_an_export_into_the_folder_of_the_photos_is_refused(tmp_path: Path, monkeypatch):
    _draw(tmp_path / "shots" / "1.png")
    monkeypatch.setattr(delivery.classifier, "build", lambda *_: pytest.fail("built"))
    for output in ("shots", "shots/exported"):
        with pytest.raises(ValueError, match="inside the folder of the images, .*Choose another"):
            delivery.deliver("ViT_Ti16", tmp_path / output, images=tmp_path / "shots")
    assert [path.name for path in (tmp_path / "shots").iterdir()] == ["1.png"]


@pytest.mark.parametrize("folders", [("", ""), ("cat", "dog")])
def test_photos_that_cannot_be_read_are_explained(folders: tuple[str, str], tmp_path: Path):
    """Without labels, and in class folders."""
    for number in range(8):
        path = tmp_path / folders[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff\xe0 rubbish")
    network = SimpleNamespace(output_shape=(None, 2))
    expected = "8 of the 8 images of .* could not be read. The most frequent reason, 8: Truncated"
    with pytest.raises(ValueError, match=expected):
        find_examples(tmp_path, network, [], 10, (SIZE, SIZE))


def test_one_photo_calibrates_nothing_and_the_check_passes(
    weights: Path, photos: Path, tmp_path: Path
):
    _draw(tmp_path / "one" / "1.png")
    wanted = delivery.Wanted(formats=("saved_model", "tflite"), flavours=("float32", "int8"))
    said: list[str] = []
    options = {"weights": weights, "images": tmp_path / "one", "image_size": (SIZE, SIZE)}
    (problem,) = delivery.deliver("ViT_Ti16", tmp_path / "out", wanted, **options, say=said.append)
    assert "int8: it needs at least 8 different images" in problem and "0 and 1" in problem
    assert any("1 images, the same for every format. None is left for the" in line for line in said)
    assert all(facts["calibrated_on"] == [] for facts in _facts(tmp_path / "out").values())
    checked = list(acceptance.check(tmp_path / "out"))
    assert [each.problem for each in checked] == ["", ""]
    assert all(each.verdict.num_images == 1 for each in checked)


def test_labels_are_those_of_the_class_names_of_the_model(photos: Path):
    """The model has its classes in another order than the folders."""
    network, names = SimpleNamespace(output_shape=(None, 3)), ["cat", "ant", "bee"]
    by_folder, ours = (
        delivery.find_examples(photos, network, order, 12, (SIZE, SIZE)) for order in (NAMES, names)
    )
    for label, name in enumerate(names):
        chosen = ours.images[ours.labels == label]
        expected = by_folder.images[by_folder.labels == NAMES.index(name)]
        np.testing.assert_array_equal(chosen, expected)
        assert len(chosen) >= 3
