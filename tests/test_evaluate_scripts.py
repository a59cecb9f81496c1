"""Few-shot, the linear probe and evaluation through their scripts, as a user starts them: what
comes out, what is kept.

The images are plain colours and the model tells which channel is strongest, so all numbers are
known beforehand.
"""

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest
import warm
from scipy.stats import rankdata
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow", warm.UNOPTIMIZED: "1"}
# in the order of the folders
COLORS = {"blue": (5, 5, 250), "green": (5, 250, 5), "red": (250, 5, 5)}
CHANNELS = {"red": 0, "green": 1, "blue": 2}


def run(script: str, *options: str) -> subprocess.CompletedProcess:
    line = [sys.executable, f"{ROOT}/experiments/{script}.py", *options]
    return warm.run(line, env=ENV, capture_output=True, text=True, timeout=HUNG_SECONDS)


def done(script: str, *options: str) -> subprocess.CompletedProcess:
    process = run(script, *options)
    assert process.returncode == 0, process.stderr[-3000:]
    return process


def refused(script: str, *options: str) -> str:
    """What is said, in one line."""
    process = run(script, *options)
    assert process.returncode == 1 and "Traceback" not in process.stderr, process.stderr[-3000:]
    said = process.stderr.splitlines()[-1]
    assert said.startswith("ValueError: "), process.stderr[-3000:]
    return said


def save(path: Path, color: Iterable[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, np.full((16, 16, 3), color), scale=False)


def save_colors(root: Path, count: int) -> None:
    for name, color in COLORS.items():
        for number in range(count):
            save(root / name / f"{number}.png", color)


def save_model(path: Path, order: Iterable[str], classes: int = 3) -> Path:
    """A model that says which colour is strongest, with its classes in the order that is given."""
    kernel = np.zeros((3, classes), np.float32)
    for place, name in enumerate(order):
        kernel[CHANNELS[name], place] = 3.0
    images = keras.Input((8, 8, 3))
    head, centred = (
        keras.layers.Dense(classes, name="predictions"),
        keras.layers.Rescaling(1 / 127.5, offset=-1),
    )
    model = keras.Model(images, head(keras.layers.GlobalAveragePooling2D()(centred(images))))
    head.set_weights([kernel, np.zeros(classes, np.float32)])
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    return path


def rows(table: bytes | Path) -> list[dict[str, str]]:
    text = (table.read_bytes() if isinstance(table, Path) else table).decode()
    return list(csv.DictReader(io.StringIO(text)))


def stamps(folder: Path, *patterns: str) -> dict[str, tuple[int, int]]:
    """What would differ if a file had been written again."""
    paths = [path for pattern in patterns for path in folder.glob(pattern)]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colours, of whose ten test images one is in the wrong folder; shades, without a test set;
    damaged ones.

    The shades differ far more in brightness than in colour, so what one sees of a few depends on
    the ridge constant.
    """
    folder, draws = tmp_path_factory.mktemp("scripts"), np.random.default_rng(0)
    save_colors(folder / "colors" / "train", 12)
    save_colors(folder / "colors" / "test", 3)
    save(folder / "colors" / "test" / "green" / "wrong.png", COLORS["red"])
    for name in COLORS:
        for number in range(30):
            brightness = draws.uniform(20, 230)
            save(
                folder / "shades" / name / f"{number}.png",
                brightness + 12 * np.eye(3)[CHANNELS[name]],
            )
    save_colors(folder / "damaged", 2)
    (folder / "damaged" / "red" / "broken.png").write_bytes(b"no image")
    save_colors(folder / "four", 1)
    save(folder / "four" / "white" / "0.png", (255, 255, 255))
    save_model(folder / "right" / "model.keras", COLORS)
    save_model(folder / "wrong" / "model.keras", reversed(COLORS))
    return folder


@dataclass
class Outcome:
    said: str
    page: str
    table: bytes
    features: dict[str, tuple[int, int]]


@dataclass
class Fewshot:
    workdir: Path
    first: Outcome
    again: Outcome
    sweep: Outcome


@pytest.fixture(scope="module")
def few(root: Path) -> Fewshot:
    """The same command twice, then with another ridge constant, all in one folder."""
    workdir, data = root / "few", f"--data={root}/colors,{root}/shades"

    def outcome(*options: str) -> Outcome:
        process = done(
            "fewshot",
            f"--model={root}/right/model.keras",
            data,
            f"--workdir={workdir}",
            "--shots=1,5",
            *options,
        )
        page, table = (workdir / "fewshot.md").read_text(), (workdir / "fewshot.csv").read_bytes()
        return Outcome(process.stdout, page, table, stamps(workdir, "features/*/*/*.npy"))

    return Fewshot(workdir, outcome(), outcome(), outcome("--ridge=sweep"))


def test_fewshot_gives_the_numbers_known_beforehand(few: Fewshot):
    assert (
        "| colors | 90.00 ± 0.00 | 90.00 ± 0.00 |" in few.first.page
        and few.first.page in few.first.said
    )
    assert "# Few-shot: " in few.first.page and "right/model.keras, pre_logits\n" in few.first.page
    assert "over 3 draws of the images" in few.first.page
    assert "| data | 1 per class | 5 per class |" in few.first.page
    colors = [row for row in rows(few.first.table) if row["data"] == "colors"]
    assert [(row["shots"], row["ridge"], row["seed"]) for row in colors] == [
        (shots, "1024", seed) for shots in "15" for seed in "012"
    ]
    assert {row["accuracy"] for row in colors} == {"0.900000"}
    assert (few.workdir / "fewshot.png").read_bytes().startswith(
        b"\x89PNG"
    ) and "](fewshot.png)" in few.first.page


def test_fewshot_reports_the_mean_and_the_deviation_of_what_is_in_the_table(few: Fewshot):
    found = [float(row["accuracy"]) for row in rows(few.first.table) if row["data"] == "shades"]
    one, five = 100 * np.array(found).reshape(2, 3)
    assert one.std() > 0 and five.mean() > one.mean()
    cells = [f"{draws.mean():.2f} ± {draws.std(ddof=1):.2f}" for draws in (one, five)]
    assert f"| shades | {' | '.join(cells)} |" in few.first.page


def test_features_are_the_mean_colours_of_all_images(few: Fewshot):
    features = few.workdir / "features"
    first = np.load(features / "colors" / "train" / "features.npy")
    means = np.repeat(list(COLORS.values()), 12, axis=0) / 127.5 - 1
    np.testing.assert_allclose(first, means, atol=1e-6)
    held_out = [np.load(features / "shades" / part / "labels.npy") for part in ("test", "train")]
    # a fifth
    assert [np.bincount(labels).tolist() for labels in held_out] == [[6, 6, 6], [24, 24, 24]]


def test_fewshot_computes_no_feature_again(few: Fewshot):
    assert (
        len(few.first.features) == 12
        and few.first.features == few.again.features == few.sweep.features
    )
    assert few.first.table == few.again.table


def test_a_sweep_selects_the_ridge_constant_of_the_best_mean_rank(few: Fewshot):
    table = rows(few.sweep.table)
    shape = (2, 2, 30, 3)  # data, shots, constants, seeds
    means = np.array([float(row["accuracy"]) for row in table]).reshape(shape).mean(axis=3).round(9)
    ridges = np.array([float(row["ridge"]) for row in table]).reshape(shape)[0, 0, :, 0]
    # six digits are written
    np.testing.assert_allclose(ridges, 2.0 ** np.arange(-10, 20), rtol=1e-5)
    best = rankdata(means, axis=2).mean(axis=0).argmax(axis=1)  # the smallest of equals
    chosen = ", ".join(
        f"{shots} shots: {ridges[place]:g}" for shots, place in zip((1, 5), best, strict=True)
    )
    assert f"Ridge constants: {chosen}." in few.sweep.page
    of_shades = [means[1, shots, place] for shots, place in enumerate(best)]
    assert all(
        f" {100 * mean:.2f} ± " in few.sweep.page.split("| shades |")[1] for mean in of_shades
    )
    assert (of_shades > means[1, :, -1]).all()  # there was something to choose


@dataclass
class Probe:
    workdir: Path
    page: str
    table: list[dict[str, str]]
    weights: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def probe(root: Path) -> Probe:
    """On two data sets."""
    workdir, model = root / "probe", f"--model={root}/right/model.keras"
    done("probe", model, f"--data={root}/colors,{root}/shades", f"--workdir={workdir}")
    page, table = (workdir / "probe.md").read_text(), rows(workdir / "probe.csv")
    return Probe(workdir, page, table, dict(np.load(workdir / "colors.npz")))


def test_the_probe_gives_the_numbers_known_beforehand(probe: Probe):
    colors = [row for row in probe.table if row["data"] == "colors"]
    # all are right on the held-out images, and the weakest is surest of them
    assert [row["test_accuracy"] for row in colors] == [""] * 16 + ["0.900000"]
    assert {row["dev_accuracy"] for row in colors} == {"1.000000"} and colors[-1][
        "regularization"
    ] == "0.01"
    assert "| colors | 90.00 | 0.01 | " in probe.page and "at the edge" not in probe.page
    assert "| shades | 100.00 | " in probe.page and "chosen on 10% of each class" in probe.page
    assert "not converged" not in probe.page
    assert (
        len([row for row in probe.table if row["data"] == "shades" and row["test_accuracy"]]) == 1
    )


def test_the_weights_of_the_probe_are_those_that_were_measured(probe: Probe):
    by_hand = np.array([*COLORS.values(), COLORS["red"]]) / 127.5 - 1
    answers = (by_hand @ probe.weights["kernel"] + probe.weights["bias"]).argmax(axis=1)
    assert answers.tolist() == [0, 1, 2, 2]  # the last one lies among the greens
    values, labels = (
        np.load(probe.workdir / f"features/colors/test/{name}.npy")
        for name in ("features", "labels")
    )
    head = keras.layers.Dense(3)
    head.build((None, 3))
    head.set_weights([probe.weights["kernel"], probe.weights["bias"]])
    assert np.mean(
        keras.ops.convert_to_numpy(head(values)).argmax(axis=1) == labels
    ) == pytest.approx(0.9)


@pytest.mark.slow
def test_the_probe_from_the_disk_gives_the_same(probe: Probe, root: Path, tmp_path: Path):
    workdir = shutil.copytree(probe.workdir, tmp_path / "probe")
    before = stamps(workdir, "features/*/*/*.npy")
    done(
        "probe",
        f"--model={root}/right/model.keras",
        f"--data={root}/colors",
        f"--workdir={workdir}",
        "--streaming",
    )
    assert stamps(workdir, "features/*/*/*.npy") == before  # no feature is computed again

    def keys(table: list[dict[str, str]]) -> list[tuple[str, str]]:
        return [
            (row["regularization"], row["test_accuracy"])
            for row in table
            if row["data"] == "colors"
        ]

    assert keys(rows(workdir / "probe.csv")) == keys(probe.table)
    weights = np.load(workdir / "colors.npz")
    # The weakest regularization is chosen. The classes are separable, so its optimum is flat.
    np.testing.assert_allclose(
        weights["kernel"], probe.weights["kernel"], atol=5e-3 * abs(weights["kernel"]).max()
    )


def test_knn_gives_the_number_known_beforehand(root: Path, tmp_path: Path):
    """One of the ten test images is in the wrong folder."""
    command = [f"--model={root}/right/model.keras", f"--data={root}/colors"]
    options = [f"--workdir={tmp_path}/knn", "--neighbors=1,12"]
    said = done("knn", *command, *options).stdout
    page = (tmp_path / "knn" / "knn.md").read_text()
    assert "| colors | 90.00 | 90.00 |" in page and page in said
    assert "| data | k = 1 | k = 12 |" in page and "temperature 0.07" in page
    assert [list(row.values()) for row in rows((tmp_path / "knn" / "knn.csv").read_bytes())] == [
        ["colors", "1", "0.07", "0.900000"],
        ["colors", "12", "0.07", "0.900000"],
    ]


def test_reports_state_their_images_and_how_they_were_read(few: Fewshot, probe: Probe, root: Path):
    """All colours are plain, so each of the ten test images has the features of a training image."""

    def count_equal(data: str) -> int:
        train, test = (
            np.load(few.workdir / "features" / data / part / "features.npy")
            for part in ("train", "test")
        )
        return int((test[:, None] == train[None]).all(axis=2).any(axis=1).sum())

    assert count_equal("colors") == 10
    for page in (few.first.page, few.again.page, probe.page):
        assert "Images: 8 x 8 pixels, `--crop=resize_crop` (the whole image to a square" in page
        assert "then the central crop), float32." in page
        header = (
            "| data | training images | test images | unreadable | test images also in training |"
        )
        assert header in page and "| colors | 36 | 10 | 0 | 10 |" in page
        assert f"| shades | 72 | 18 | 0 | {count_equal('shades')} |" in page
        assert "features exactly equal to those of a training image: probably the same" in page
        assert "Left out" not in page


def test_what_was_left_out_is_said(root: Path, tmp_path: Path):
    data = tmp_path / "messy"
    shutil.copytree(root / "colors", data)
    save(data / "test" / "white" / "0.png", (255, 255, 255))
    (data / "train" / "red" / "notes.txt").touch()
    (data / "train" / "red" / "broken.png").write_bytes(b"no image")
    (data / "test" / "blue" / "broken too.png").write_bytes(b"no image")
    model = f"--model={root}/right/model.keras"
    options = [model, f"--data={data}", f"--workdir={tmp_path}/knn", "--neighbors=1"]
    for crop in ("--crop=central:0.875", "--crop=central:0.875"):  # computed, and read again
        said = done("knn", *options, crop).stdout
        page = (tmp_path / "knn" / "knn.md").read_text()
        assert "| messy | 90.00 |" in page and "| messy | 36 | 10 | 2 | 10 |" in page
        assert "`--crop=central:0.875` (the central square of 0.875 of the shorter side" in page
        for text in (page, said.removesuffix(page + "\n")):
            (line,) = (one for one in text.splitlines() if one.startswith("messy: Left out, 4: "))
            for name in ("notes.txt", "broken.png", "broken too.png"):
                assert name in line
            assert "not a class of the training set, 1 photos" in line


def test_random_weights_are_those_of_the_run_before(root: Path, tmp_path: Path):
    options = ["--model=ViT_Ti16", "--weights=none", "--image_size=16", "--neighbors=1"]
    command = [*options, f"--data={root}/colors", f"--workdir={tmp_path}"]
    done("knn", *command)
    before = stamps(tmp_path, "features/*/*/*.npy")
    done("knn", *command)
    assert len(before) == 6 and stamps(tmp_path, "features/*/*/*.npy") == before


FROZEN_MISTAKES = {
    "a precision": (
        "knn",
        "{root}/colors",
        ["--precision=mixed_bfloat16"],
        "model.keras computes in the precision with which it was saved: omit `--precision`.",
    ),
    "neighbors": ("knn", "{root}/colors", ["--neighbors=1,few"], "`--neighbors` takes integers"),
    "too many neighbors": (
        "knn",
        "{root}/colors",
        ["--neighbors=10,200"],
        "from 1 to the number of training examples, 36. Received: 10, 200",
    ),
    "a layer": (
        "fewshot",
        "{root}/colors",
        ["--layer=pre_logit"],
        "has no layer 'pre_logit'. Did you mean pre_logits",
    ),
    "a model": (
        *("fewshot", "{root}/colors", ["--model=ViT_B15", "--weights=none"]),
        "Unknown model 'ViT_B15'. Did you mean",
    ),
    "a folder": ("probe", "{root}/absent", [], "There is no folder"),
    "two of a name": (
        *("probe", "{root}/colors,{root}/right/../colors", []),
        "must have different short names. Received: colors, ",
    ),
    "no data": ("fewshot", "", [], "`--data` is empty"),
    "few images": (
        *("fewshot", "{root}/colors", ["--per_class=4", "--shots=1,5"]),
        "3 of the 3 classes have fewer than 5 training examples: blue (4), green (4), red (4)",
    ),
    "a ridge": (
        "fewshot",
        "{root}/colors",
        ["--ridge=much"],
        "`--ridge` must be a number or `sweep`. Received: 'much'",
    ),
    "shots": ("fewshot", "{root}/colors", ["--shots=1,few"], "`--shots` must be integers"),
    "words": (
        "probe",
        "tfds:cifar100",
        [],
        "must have the form tfds:NAME:TRAIN:TEST. Received: 'tfds:cifar100'",
    ),
    "a part": (
        "probe",
        "tfds:cifar100:train:test",
        ["--per_class=4"],
        "`--per_class` works for folders only",
    ),
}


@pytest.mark.parametrize("case", FROZEN_MISTAKES)
@pytest.mark.sampled(6)
def test_mistakes_are_told_in_a_line(case: str, root: Path, tmp_path: Path):
    script, data, options, message = FROZEN_MISTAKES[case]
    data, model = f"--data={data.format(root=root)}", f"--model={root}/right/model.keras"
    assert message in refused(script, model, data, f"--workdir={tmp_path}/run", *options)
    assert (
        not (tmp_path / "run" / "fewshot.csv").exists()
        and not (tmp_path / "run" / "probe.csv").exists()
    )


@dataclass
class Evaluation:
    workdir: Path
    options: list[str]
    page: str
    table: bytes
    files: dict[str, tuple[int, int]]
    again: subprocess.CompletedProcess
    table_again: bytes  # read at once: a command that is refused half-way writes what it has


@pytest.fixture(scope="module")
def evaluation(root: Path) -> Evaluation:
    """Two checkpoints and two test sets; then the same in other batches."""
    workdir = root / "evaluation"
    models = f"--checkpoints={root}/right/model.keras,{root}/wrong/model.keras"
    options = [models, f"--data={root}/colors,{root}/damaged", f"--workdir={workdir}"]
    done("evaluate", *options)
    page, table = (workdir / "evaluation.md").read_text(), (workdir / "evaluation.csv").read_bytes()
    files = stamps(workdir, "*/*")
    again = done("evaluate", *options, "--batch_size=2")
    return Evaluation(
        workdir, options, page, table, files, again, (workdir / "evaluation.csv").read_bytes()
    )


def test_evaluation_gives_the_numbers_known_beforehand(root: Path, evaluation: Evaluation):
    right, wrong = f"{root}/right/model.keras", f"{root}/wrong/model.keras"
    # images, right ones, unreadable ones; in the wrong order only green is in its place
    expected = [
        *((right, "colors", 10, 9, 0), (right, "damaged", 6, 6, 1)),
        *((wrong, "colors", 10, 3, 0), (wrong, "damaged", 6, 2, 1)),
    ]
    for row, (model, data, images, correct, unreadable) in zip(
        rows(evaluation.table), expected, strict=True
    ):
        assert (row["checkpoint"], row["data"]) == (model, f"{root}/{data}")
        assert float(row["top1"]) == pytest.approx(correct / images)
        assert (row["images"], row["unreadable"]) == (str(images), str(unreadable))
        line = f"| {model} | {root}/{data} | {images} | {100 * correct / images:.2f} |  |  |"
        assert line in evaluation.page


def test_each_measurement_has_its_report(evaluation: Evaluation):
    reports = sorted(evaluation.workdir.glob("*/report.md"))
    assert len(reports) == 4
    for report in reports:
        page = report.read_text()
        assert f"python {ROOT}/experiments/evaluate.py --checkpoints=" in page
        is_damaged = report.parent.name.endswith("damaged")
        assert ("## Skipped files" in page) == ("red/broken.png`" in page) == is_damaged
        assert ("| unreadable | 1 |" in page) == is_damaged


def test_nothing_is_measured_again(evaluation: Evaluation):
    assert evaluation.files and stamps(evaluation.workdir, "*/*") == evaluation.files
    assert evaluation.table_again == evaluation.table
    assert "top-1 accuracy" not in evaluation.again.stdout  # nothing was measured


def test_only_what_would_give_other_numbers_is_refused_in_the_same_folder(evaluation: Evaluation):
    said = refused("evaluate", *evaluation.options, "--crop=resize_shorter")
    assert (
        "holds a measurement with other settings" in said
        and "'resize'" in said
        and "'resize_shorter'" in said
    )
    said = refused("evaluate", *evaluation.options, "--strict")
    assert "damaged was measured without unreadable images" in said
    assert stamps(evaluation.workdir, "*/*") == evaluation.files


@pytest.mark.parametrize("changed", ["image", "image of ReaL", "weights", "class names"])
@pytest.mark.sampled(2)
def test_what_was_replaced_under_its_name_is_not_answered_for(tmp_path: Path, changed: str):
    if changed == "image of ReaL":
        save(tmp_path / "ILSVRC2012_val_00000001.png", COLORS["red"])
        (tmp_path / "real.json").write_text("[[0]]")
        data, classes = f"real:{tmp_path}:{tmp_path}/real.json", {"classes": 1000}
    else:
        save_colors(tmp_path / "colors", 2)
        data, classes = f"{tmp_path}/colors", {}
    model = save_model(tmp_path / "model.keras", COLORS, **classes)
    names = tmp_path / "classes.txt"
    if changed == "class names":
        names.write_text("".join(f"{name}\n" for name in reversed(sorted(COLORS))))
    options = [f"--checkpoints={model}", f"--data={data}", f"--workdir={tmp_path}/out"]
    done("evaluate", *options)
    if changed == "image":
        save(tmp_path / "colors" / "red" / "0.png", COLORS["green"])
    elif changed == "image of ReaL":
        save(tmp_path / "ILSVRC2012_val_00000001.png", COLORS["green"])
    elif changed == "class names":
        names.write_text("".join(f"{name}\n" for name in sorted(COLORS)))
    else:
        save_model(model, reversed(COLORS))
    before = stamps(tmp_path / "out", "*/*")
    said = refused("evaluate", *options)
    assert "holds a measurement with other settings" in said and "images, sha256" in said
    assert stamps(tmp_path / "out", "*/*") == before


TITLE = f"""
import sys
sys.path.insert(0, "{ROOT}/experiments")
from absl import flags
from command_line import frozen_features
flags.FLAGS(sys.argv)
print(frozen_features.title())
"""


def test_titles_show_no_passwords(tmp_path: Path):
    options = [
        "--data=x",
        f"--workdir={tmp_path}",
        "--weights=https://me:secret@a.org/b.npz?s=secret",
    ]
    run = warm.run([sys.executable, "-c", TITLE, *options], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "ViT_B16 from https://***@a.org/b.npz?***, pre_logits", (
        run.stderr[-2000:]
    )


def test_strict_is_an_error_of_the_first_unreadable_image(
    root: Path, evaluation: Evaluation, tmp_path: Path
):
    said = refused("evaluate", *evaluation.options[:2], f"--workdir={tmp_path}/run", "--strict")
    assert f"{root}/damaged/red/broken.png cannot be read: " in said
    # before it
    assert [row["data"] for row in rows(tmp_path / "run" / "evaluation.csv")] == [f"{root}/colors"]


def test_what_an_interrupted_measurement_could_not_read_is_forgotten(root: Path, tmp_path: Path):
    """It has been repaired since; and a path may be longer than the name of a file."""
    data = tmp_path / ("very_long_" * 20) / "colors"
    save_colors(data, 2)
    options = [
        f"--checkpoints={root}/right/model.keras",
        f"--data={data}",
        f"--workdir={tmp_path}/run",
    ]
    done("evaluate", *options)
    (folder,) = (path for path in (tmp_path / "run").iterdir() if path.is_dir())
    (folder / "asked.json").unlink()
    (folder / "unreadable.txt").write_text(f"{data}/red/0.png\n")
    done("evaluate", *options)
    assert "could not be read" not in (folder / "report.md").read_text()
    assert len(folder.name) < 255 and (folder / "asked.json").exists()


def test_reassessed_labels_and_what_is_published(root: Path, tmp_path: Path):
    for number, color in enumerate(("red", "green", "blue"), start=1):
        save(tmp_path / "val" / f"ILSVRC2012_val_{number:08}.png", COLORS[color])
    # red is 0, green is 1, and blue is not counted
    (tmp_path / "real.json").write_text("[[0, 7], [2], []]")
    model = save_model(tmp_path / "ViT_B16.keras", ["red", "green", "blue"], classes=1000)
    data = f"real:{tmp_path}/val:{tmp_path}/real.json"
    done("evaluate", f"--checkpoints={model}", f"--data={data}", f"--workdir={tmp_path}/run")
    (row,) = rows(tmp_path / "run" / "evaluation.csv")
    found = {
        name: float(row[f"real/{name}"])
        for name in ("top1", "top5", "images", "excluded", "unreadable")
    }
    assert found == {"top1": 0.5, "top5": 0.5, "images": 2, "excluded": 1, "unreadable": 0}
    page = (tmp_path / "run" / "evaluation.md").read_text()
    assert f"| {model} | {data} | 2 | 50.00 | 50.00 | " in page
    assert "88.35 % (Table 5, 384 px) pre-trained on imagenet21k" in page


EVALUATE_MISTAKES = {
    "no weights": (
        *("ViT_B16", "{root}/colors"),
        "must be NAME=WEIGHTS or a file model.keras. Received: 'ViT_B16'",
    ),
    "no file": ("{root}/absent.keras", "{root}/colors", "There is no file"),
    "no real.json": (
        "{model}",
        "{root}/colors,real:{root}/colors",
        "must be given as real:FOLDER:real.json",
    ),
    "no folder": ("{model}", "{root}/absent", "There is no folder"),
    "other classes": ("{model}", "{root}/four", "The model outputs 3 values for each image;"),
    "no data": ("{model}", "", "`--checkpoints` and `--data` must each name at least one"),
}


@pytest.mark.parametrize("case", EVALUATE_MISTAKES)
def test_mistakes_of_an_evaluation_are_told_in_a_line(case: str, root: Path, tmp_path: Path):
    checkpoint, data, message = (
        words.format(root=root, model=f"{root}/right/model.keras")
        for words in EVALUATE_MISTAKES[case]
    )
    said = refused(
        "evaluate", f"--checkpoints={checkpoint}", f"--data={data}", f"--workdir={tmp_path}/run"
    )
    assert message in said
    # the words are looked at before anything is measured
    assert not (tmp_path / "run" / "evaluation.csv").exists()
