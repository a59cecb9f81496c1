"""Folders of images as people have them."""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")

from keras_vit.data.folders import to_measure_on, training_and_test  # noqa: E402

pytestmark = pytest.mark.tensorflow


def images(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (4, 4)).save(folder / name)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        *(("Train", test) for test in ("test", "val", "validation", "valid", "TEST")),
        ("training", "test"),
    ],
)
def test_a_test_set_of_its_own_is_found(tmp_path: Path, train: str, test: str):
    for name in ("cat", "dog"):
        images(tmp_path / train / name, "1.png", "2.JPG")
        images(tmp_path / test / name, "3.png")
    training, measured = training_and_test(tmp_path)
    assert (training.num_examples, measured.num_examples) == (4, 2)
    assert training.class_names == measured.class_names == ("cat", "dog")
    assert Path(measured.locate(0)) == tmp_path / test / "cat" / "3.png"


def test_the_test_set_is_preferred_to_a_validation_set(tmp_path: Path):
    for part in ("train", "val", "test"):
        for name in ("cat", "dog"):
            images(tmp_path / part / name, "1.png")
    assert Path(training_and_test(tmp_path)[1].locate(0)).parts[-3] == "test"


def test_without_a_test_set_there_is_none(tmp_path: Path):
    for name in ("cat", "dog"):
        images(tmp_path / "a" / "train" / name, "1.png")
        images(tmp_path / "b" / name, "1.png")
    assert training_and_test(tmp_path / "a")[1] is training_and_test(tmp_path / "b")[1] is None


def test_a_text_file_beside_one_class_is_no_photo(tmp_path: Path):
    images(tmp_path / "test" / "cat", "1.png")
    (tmp_path / "test" / "readme.txt").touch()
    assert to_measure_on(tmp_path) == tmp_path / "test"


def test_a_file_called_as_a_part_is_no_part(tmp_path: Path):
    for name in ("cat", "dog"):
        images(tmp_path / name, "1.png")
    for name in ("train", "test"):
        (tmp_path / name).touch()
    assert training_and_test(tmp_path)[0].class_names == ("cat", "dog")
    assert to_measure_on(tmp_path) == tmp_path


def test_photos_beside_one_folder_are_a_class(tmp_path: Path):
    images(tmp_path / "test", "1.png")
    images(tmp_path / "test" / "more", "2.png")
    assert to_measure_on(tmp_path) == tmp_path


def test_a_photo_beside_class_folders_makes_no_class_of_their_folder(tmp_path: Path):
    for part in ("train", "test"):
        images(tmp_path / part, "stray.png")
        for name in ("cat", "dog"):
            images(tmp_path / part / name, "1.png")
    training, measured = training_and_test(tmp_path)
    assert training.class_names == measured.class_names == ("cat", "dog")
    assert to_measure_on(tmp_path) == tmp_path / "test"


def test_a_class_may_be_called_train(tmp_path: Path):
    for name in ("train", "bus", "test"):
        images(tmp_path / name, "1.png")
    training, measured = training_and_test(tmp_path)
    assert training.class_names == ("bus", "test", "train") and measured is None


@pytest.mark.parametrize(
    "parts", [("training_set", "test_set"), ("val", "test"), ("fold1", "fold2", "fold3")]
)
def test_parts_of_a_data_set_are_no_classes(tmp_path: Path, parts: tuple[str, ...]):
    for part in parts:
        for name in ("cat", "dog"):
            images(tmp_path / part / name, "1.png")
        (tmp_path / part / "readme.txt").touch()
    with pytest.raises(
        ValueError, match="both hold the folders cat, dog. .*rename them to train and test"
    ) as raised:
        training_and_test(tmp_path)
    assert sum(part in str(raised.value).partition(" in ")[0] for part in parts) == 2


def test_classes_may_hold_folders(tmp_path: Path):
    """One shared name, or photos beside the folders: they are not parts of a data set."""
    for name in ("cat", "dog"):
        images(tmp_path / "one" / name / "2024", "1.png")
        images(tmp_path / "one" / name / f"more of a {name}", "2.png")
        images(tmp_path / "beside" / name, "1.png")
        for inner in ("2023", "2024"):
            images(tmp_path / "beside" / name / inner, "1.png")
    for case, count in (("one", 4), ("beside", 6)):
        training, _ = training_and_test(tmp_path / case)
        assert training.class_names == ("cat", "dog") and training.num_examples == count


@pytest.mark.parametrize("years", [("2023", "2024"), ("indoor", "outdoor", "studio")])
def test_nested_folders_of_equal_names_are_no_parts(tmp_path: Path, years: tuple[str, ...]):
    """As of a camera. Names such as "carnival" or "contest" only contain those of parts."""
    names = ("carnival", "cat", "contest", "dog", "strain")
    for name in names:
        for year in years:
            images(tmp_path / name / year, "1.png")
    training, measured = training_and_test(tmp_path)
    assert training.class_names == names and measured is None
    assert training.num_examples == len(names) * len(years)


@pytest.mark.parametrize("part", ["test_set", "TrainImages", "valset", "fold1", "my-val", "TEST2"])
def test_one_name_of_a_part_is_enough(tmp_path: Path, part: str):
    for folder in ("photos", part):
        for name in ("cat", "dog"):
            images(tmp_path / folder / name, "1.png")
    with pytest.raises(ValueError, match="look like parts of a data set"):
        training_and_test(tmp_path)


def test_a_test_set_without_classes_is_skipped_and_listed(tmp_path: Path):
    """As of a competition, whose test photos have no labels: flat, or in one folder."""
    for case, place in (("flat", "test"), ("one", "test/unknown")):
        for part in ("train", "val"):
            for name in ("cat", "dog"):
                images(tmp_path / case / part / name, "1.png")
        images(tmp_path / case / place, "1.png", "2.png")
        _, measured = training_and_test(tmp_path / case)
        assert Path(measured.name) == tmp_path / case / "val" and measured.num_examples == 2
        left = measured.left_out[-1]
        assert left.path == tmp_path / case / "test" and "no photos of the classes" in left.reason


def test_classes_beside_a_class_called_train_are_not_ignored(tmp_path: Path):
    """Its photos are in folders, so it might also be a training set."""
    for name in ("car", "plane", "train/diesel", "train/steam"):
        images(tmp_path / name, "1.png", "2.png")
    with pytest.raises(ValueError, match="folders of photos: car, plane. If train is the training"):
        training_and_test(tmp_path)


def test_folders_beside_both_sets_are_listed(tmp_path: Path, caplog):
    for name in ("train/a", "train/b", "test/a", "test/b", "extra/deep"):
        images(tmp_path / name, "1.png")
    (tmp_path / "notes").mkdir()
    (left,) = training_and_test(tmp_path)[0].left_out
    assert left.path == tmp_path / "extra"
    assert left.reason == "a folder beside train, not read, 1 photos"
    assert to_measure_on(tmp_path) == tmp_path / "test" and not caplog.records


def test_classes_beside_a_class_called_test_are_named(tmp_path: Path, caplog):
    for name in ("car", "test/diesel", "test/steam"):
        images(tmp_path / name, "1.png")
    assert to_measure_on(tmp_path) == tmp_path / "test"
    assert "a folder beside test, not read, 1 photos (1: car)" in caplog.text


@pytest.mark.parametrize("names", [("Train", "train"), ("Test", "test"), ("VAL", "val")])
def test_two_sets_that_differ_in_case_only_are_refused(tmp_path: Path, names: tuple[str, str]):
    for part in ("training", *names):
        for name in ("cat", "dog"):
            images(tmp_path / part / name, "1.png")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("the file system ignores case")
    for find in (training_and_test, to_measure_on):
        with pytest.raises(ValueError, match=f"{' and '.join(names)}, which differ in case only"):
            find(tmp_path)


def test_odd_names_are_names(tmp_path: Path):
    names = ["-v", "a b", "x" * 200, "é 猫", "🐱"]
    for name in names:
        images(tmp_path / name, "1.PNG", "ä b.Jpeg")
    (tmp_path / ".cache").mkdir()
    images(tmp_path / "-v", ".hidden.png")
    (tmp_path / "Thumbs.db").touch()
    training, _ = training_and_test(tmp_path)
    assert sorted(training.class_names) == sorted(names)
    assert training.num_examples == 10
    assert len(training.read(0)[0].numpy()) > 50


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([], "There is no folder .*data. Expected .*/<class>/.*jpg, or .*/train/<class>"),
        (["data/"], "data has no photos .*Expected: .*/<class>/.*jpg"),
        (
            ["data/1.png", "data/2.png"],
            "has no photos .* one folder for each class. Left out, 2: a photo outside the cl",
        ),
        (
            ["data/cat/1.png"],
            "has photos of a single class, cat. Training needs two or more classes",
        ),
        (
            ["data/cat/1.png", "data/dog/"],
            "single class, cat\\. .*Left out, 1: a class folder without photos .1: dog",
        ),
        (
            ["data/train/a/1.png", "data/train/b/1.png", "data/test/c/1.png"],
            "test has no photos .*of the classes a, b",
        ),
        (
            ["data/train/a/1.png", "data/test/c/"],
            "(?s)train has photos of a single class, a\\..*test has no photos",
        ),
    ],
)
def test_other_folders_are_refused_with_what_is_expected(
    tmp_path: Path, made: list[str], message: str
):
    for name in made:
        path = tmp_path / name
        images(path, *()) if name.endswith("/") else images(path.parent, path.name)
    with pytest.raises(ValueError, match=message):
        training_and_test(tmp_path / "data")


def test_a_file_is_no_folder(tmp_path: Path):
    images(tmp_path, "data.png")
    with pytest.raises(ValueError, match="data.png is a file. Expected"):
        training_and_test(tmp_path / "data.png")


def test_what_cannot_be_learned_from_is_left_out_with_its_reason(tmp_path: Path):
    images(tmp_path / "train" / "cat", "1.png", "2.BMP")
    images(tmp_path / "train" / "dog", "1.png")
    for name in ("train/cat/notes.txt", "train/dog/no suffix", "train/1.png", "test/cow/5.png"):
        images((tmp_path / name).parent, *())
        Image.new("RGB", (4, 4)).save(tmp_path / name, "PNG")
    (tmp_path / "train" / "empty").mkdir()
    images(tmp_path / "test" / "cat", "3.png")
    training, test = training_and_test(tmp_path)
    assert training.class_names == test.class_names == ("cat", "dog")
    assert (training.num_examples, test.num_examples) == (3, 1)
    found = {
        str(left.path.relative_to(tmp_path)): left.reason
        for left in (*training.left_out, *test.left_out)
    }
    assert found == {
        "train/cat/notes.txt": "not a photo by its suffix, .txt",
        "train/dog/no suffix": "no suffix",
        "train/1.png": "a photo outside the class folders",
        "train/empty": "a class folder without photos",
        "test/cow": "not a class of the training set, 1 photos",
    }
