"""The command line: what it prints, what it returns, and that it is quick and quiet about it."""

import csv
import dataclasses
import io
import json
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from synthetic_checkpoint import checkpoint
from warm import HUNG_SECONDS

import keras_vit
from keras_vit import cli, predict, verify
from keras_vit.analyze.subject import Photo
from keras_vit.commands.flags import default_weights
from keras_vit.evaluate import classifier
from keras_vit.variants import VIT_VARIANTS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "ti16.npz"
    np.savez(path, **checkpoint(VIT_VARIANTS["ViT_Ti16"], image_size=32, classes=7))
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.fromarray(np.full((40, 30, 3), 99, np.uint8)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


# --- the frame
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_shows_every_command_with_an_example(
    argv: list[str], capsys: pytest.CaptureFixture
):
    assert cli.main(argv) == 0
    shown = capsys.readouterr()
    for name in cli.COMMANDS:
        assert f"\n  {name} " in shown.out
        assert f"$ python -m keras_vit {name}" in shown.out
    assert shown.err == ""


def test_the_commands_are_those_of_this_release():
    expected = [
        "quickstart",
        "info",
        "predict",
        "evaluate",
        "analyze",
        "finetune",
        "export",
        "verify",
    ]
    assert list(cli.COMMANDS) == expected


FLAGS = {
    "quickstart": ["output", "help"],
    "info": ["image_size", "classes", "markdown", "help"],
    "predict": ["model", "weights", "top", "format", "image_size", "pixels", "help"],
    "evaluate": [
        *(
            "data",
            "model",
            "weights",
            "output",
            "real",
            "objectnet",
            "image_size",
            "pixels",
            "crop",
            "batch_size",
            "strict",
        ),
        *("devices", "precision", "help"),
    ],
    "analyze": [
        "images",
        "output",
        "model",
        "weights",
        "image_size",
        "pixels",
        "photos",
        "batch_size",
        "help",
    ],
    "finetune": [
        *(
            "data",
            "output",
            "model",
            "weights",
            "image_size",
            "pixels",
            "steps",
            "batch_size",
            "learning_rate",
            "seed",
        ),
        "help",
    ],
    "export": [
        *(
            "output",
            "check",
            "model",
            "weights",
            "format",
            "images",
            "num_images",
            "image_size",
            "pixels",
            "precision",
            "attention",
        ),
        *("any_size", "top", "flavours", "fixed_batch", "preprocessing", "min_agreement", "help"),
    ],
    "verify": ["model", "help"],
}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_its_flags(name: str, capsys: pytest.CaptureFixture):
    assert cli.main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: python -m keras_vit {name}")
    shown = [
        line.split()[0].removeprefix("--").split("=")[0]
        for line in lines
        if line.startswith("  --")
    ]
    assert sorted(shown) == sorted(FLAGS[name])
    assert lines[-1].startswith(f"example: python -m keras_vit {name}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["vrify", "x.npz"], "there is no command 'vrify'. Did you mean verify?"),
        (["info", "--imagesize=4"], "Did you mean: image_size"),
        (
            ["info", "--image_size=224px"],
            "--image_size=224px: expected 384, or height,width such as 224,384",
        ),
        (
            ["info", "--image_size=big"],
            "--image_size=big: expected 384, or height,width such as 224,384",
        ),
        (["info", "--image_size=0"], "--image_size=0: expected 384"),
        (["info", "--classes=many"], "classes"),
        (["info", "--markdown"], "--markdown prints the card of one model"),
        (["info", "ViT_B16", "ViT_B32"], "expected [MODEL], received ['ViT_B16', 'ViT_B32']"),
        (["verify"], "expected FILE, received none"),
        (["predict", "--top=0", "a.jpg"], "top"),
        (["finetune"], "--data=FOLDER and --output=FOLDER must be given"),
        (["finetune", "--data=a"], "--output=FOLDER must be given"),
        (["finetune", "--data=a", "--output=b", "--steps=0"], "steps"),
        (["finetune", "--data=a", "--output=b", "--image_size=224,384"], "image_size"),
        (["evaluate"], "--data=FOLDER must be given"),
        (["analyze"], "--images=FOLDER and --output=FOLDER must be given"),
        (["analyze", "--output=b"], "--images=FOLDER must be given"),
        (["analyze", "--images=a"], "--output=FOLDER must be given"),
        (["analyze", "--images=a", "--output=b", "--photos=0"], "photos"),
        (["analyze", "--images=a", "--output=b", "--batch_size=0"], "batch_size"),
        (
            ["analyze", "--images=a", "--output=b", "--image_size=big"],
            "expected 384, or height,width",
        ),
        (["analyze", "holiday", "--output=b"], "expected no arguments, received ['holiday']"),
        (["export"], "--output=FOLDER must be given"),
        (["export", "--output=b", "--precision=float8"], "precision"),
        (["export", "--output=b", "--min_agreement=1.5"], "min_agreement"),
        (["export", "--output=b", "--image_size=big"], "expected 384, or height,width"),
        (["quickstart", "now"], "expected no arguments, received ['now']"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    argv: list[str], message: str, capsys: pytest.CaptureFixture
):
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.splitlines()[-1].startswith("Help: python -m keras_vit")
    assert shown.out == ""


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), OSError("disk full"), ImportError("install it")]
)
def test_an_error_is_one_message_without_a_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def fail(*_):
        raise error

    monkeypatch.setattr(verify, "verify", fail)
    assert cli.main(["verify", "x.npz"]) == 1
    assert capsys.readouterr().err == f"python -m keras_vit verify: {error}\n"


def test_a_message_of_hundreds_of_lines_is_shortened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def fail(*_):
        raise ValueError("\n".join(f"line {number}" for number in range(200)))

    monkeypatch.setattr(verify, "verify", fail)
    assert cli.main(["verify", "x.npz"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[11:14] == ["line 11", "  ... (184 lines more)", "line 196"]
    assert lines[-1] == "line 199"


def test_a_mistake_in_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(verify, "verify", fail)
    with pytest.raises(KeyError, match="a bug"):
        cli.main(["verify", "x.npz"])


# --- the commands
# ----------------------------------------------------------------------------------------------------


def test_info_takes_a_rectangle_and_a_number_of_classes(capsys: pytest.CaptureFixture):
    assert cli.main(["info", "ViT_B16", "--image_size", "224,384", "--classes=0"]) == 0
    shown = capsys.readouterr().out
    assert "14 x 24 patches" in shown
    assert "without a head" in shown
    for flags, words in (([], "with 512 outputs"), (["--classes=10"], "with 10 classes")):
        assert cli.main(["info", "CLIP_B16", *flags]) == 0
        assert words in capsys.readouterr().out


def test_info_without_a_model_shows_them_all(capsys: pytest.CaptureFixture):
    assert cli.main(["info"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in keras_vit.list_models() if f"\n{name} " not in shown] == []


def test_info_prints_a_model_card(capsys: pytest.CaptureFixture):
    assert cli.main(["info", "ViT_B16", "--markdown", "--image_size=384", "--classes=0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ViT_B16\n")
    assert "without a head, at 384 x 384 pixels" in shown


def test_info_of_an_unknown_model_names_its_neighbours(capsys: pytest.CaptureFixture):
    assert cli.main(["info", "vit_b16"]) == 1
    assert "Did you mean ViT_B16" in capsys.readouterr().err


def test_verify_reports_and_tells_what_it_computes(weights: Path, capsys: pytest.CaptureFixture):
    assert cli.main(["verify", str(weights), "--model=ViT_Ti16"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == str(weights)
    assert shown.out.splitlines()[-1].startswith("VERIFIED: ")
    assert shown.err.startswith("computing ViT_Ti16 at 32 x 32 in NumPy")


def test_a_bad_verdict_is_an_exit_code(weights: Path, capsys: pytest.CaptureFixture):
    assert cli.main(["verify", "--model=ViT_S16", str(weights)]) == 1
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "FAILED: the file contains ViT_Ti16, not ViT_S16."
    )


def test_predict_names_the_best_classes_of_each_photo(
    weights: Path, photo: Path, capsys: pytest.CaptureFixture
):
    argv = [
        "predict",
        str(photo),
        str(photo.parent),
        "--model=ViT_Ti16",
        f"--weights={weights}",
        "--top=2",
    ]
    assert cli.main([*argv, "--image_size=48"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == lines[3] == str(photo)
    scores = [float(line.split()[0]) for line in lines[1:3]]
    assert 1 >= scores[0] >= scores[1] >= 0
    assert lines[1].split()[1] == "class"
    assert shown.err == ""


def test_predict_shows_scores_names_and_wordnet_ids(
    photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    guesses = [
        predict.Guess(0.75, "tench", "n01440764"),
        predict.Guess(0.25, "great_white_shark", "n01484850"),
    ]
    built = []
    monkeypatch.setattr(classifier, "build", lambda *options: built.append(options))
    monkeypatch.setattr(predict, "predict", lambda *_: [predict.Answer(photo, guesses, None)])
    assert cli.main(["predict", str(photo)]) == 0
    assert built == [("ViT_B16", "imagenet", None, None)]
    assert capsys.readouterr().out.splitlines() == [
        str(photo),
        "  0.7500  tench              n01440764",
        "  0.2500  great_white_shark  n01484850",
    ]


@pytest.mark.parametrize("name", ["two\nlines.png", "bytes\udce9.png", "line\u2028.png"])
def test_predict_names_a_photo_of_any_name_in_one_line(
    name: str, photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    odd, broken = photo.with_name(name), photo.with_name("b" + name)
    answers = [
        predict.Answer(odd, [predict.Guess(1.0, "tench", "")], None),
        predict.Answer(broken, [], "cut short"),
    ]
    monkeypatch.setattr(classifier, "build", lambda *_: None)
    monkeypatch.setattr(predict, "predict", lambda *_: answers)
    assert cli.main(["predict", str(photo)]) == 1
    shown = capsys.readouterr()
    assert (
        shown.out.splitlines()[0].startswith(str(photo.parent)) and len(shown.out.splitlines()) == 2
    )
    said, total, reasons = shown.err.splitlines()
    assert said.endswith(": cut short") and total == "1 of 2 photos were read"
    assert reasons.startswith("Left out, 1: cut short (1: ")


def test_predict_goes_on_after_a_broken_photo_and_fails_at_the_end(
    weights: Path, photo: Path, capsys: pytest.CaptureFixture
):
    broken = photo.parent / "broken.jpg"
    broken.touch()
    assert (
        cli.main(["predict", str(broken), str(photo), "--model=ViT_Ti16", f"--weights={weights}"])
        == 1
    )
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == str(photo)
    assert f"cannot read {broken}: the file is empty\n" in shown.err
    assert shown.err.endswith(
        "1 of 2 photos were read\nLeft out, 1: the file is empty (1: broken.jpg).\n"
    )


def test_quickstart_is_given_its_folder(monkeypatch: pytest.MonkeyPatch):
    outputs = []
    program = types.ModuleType("keras_vit.quickstart")
    program.main = outputs.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras_vit.quickstart", program)
    monkeypatch.setattr(keras_vit, "quickstart", program, raising=False)
    assert cli.main(["quickstart"]) == 0
    assert cli.main(["quickstart", "--output=elsewhere"]) == 0
    assert outputs == ["quickstart_output", "elsewhere"]


def test_predict_reads_class_names_beside_the_weights(
    weights: Path, photo: Path, capsys: pytest.CaptureFixture
):
    names = [f"my class {letter}" for letter in "abcdefg"]
    (weights.parent / "classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    try:
        assert (
            cli.main(["predict", str(photo), "--model=ViT_Ti16", f"--weights={weights}", "--top=7"])
            == 0
        )
    finally:
        (weights.parent / "classes.txt").unlink()
    shown = capsys.readouterr().out.splitlines()[1:]
    assert sorted(line.split(maxsplit=1)[1] for line in shown) == names


def test_predict_takes_a_model_of_ones_own(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """A saved classifier with its scaling and its softmax: the scores are those that it gives
    itself.
    """
    images = keras.Input((8, 8, 3))
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))
    model = keras.Model(images, keras.layers.Dense(3, activation="softmax")(features))
    model.save(tmp_path / "mine.keras")
    (tmp_path / "classes.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    assert cli.main(["predict", str(photo), f"--model={tmp_path / 'mine.keras'}", "--top=3"]) == 0
    shown = dict(reversed(line.split()) for line in capsys.readouterr().out.splitlines()[1:])
    levels = (predict.read_photo(photo, (8, 8)) + 1) * 127.5
    expected = dict(
        zip(["red", "green", "blue"], model.predict(levels[None], verbose=0)[0], strict=True)
    )
    assert {name: float(score) for name, score in shown.items()} == pytest.approx(
        expected, abs=1e-4
    )
    assert cli.main(["predict", str(photo), f"--model={tmp_path / 'nowhere.keras'}"]) == 1
    assert "There is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["two\nlines, a.png", 'quo"ted.png', "bytes\udce9,.png", "line\u2028,.png"]
)
def test_predict_writes_tables_that_machines_read(
    name: str, photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    odd, guesses = (
        photo.with_name(name),
        [predict.Guess(0.75, "red, or pink", "n1"), predict.Guess(0.25, "blue", "")],
    )
    answers = [predict.Answer(odd, guesses, None), predict.Answer(Path("b.png"), [], "cut short")]
    monkeypatch.setattr(classifier, "build", lambda *_: None)
    monkeypatch.setattr(predict, "predict", lambda *_: answers)
    assert cli.main(["predict", str(photo), "--format=csv"]) == 1
    shown = capsys.readouterr()
    written = str(odd).encode("utf-8", "backslashreplace").decode()
    rows = list(csv.DictReader(io.StringIO(shown.out, newline="")))
    assert [tuple(row.values()) for row in rows] == [
        (written, "1", "red, or pink", "0.75", ""),
        (written, "2", "blue", "0.25", ""),
        ("b.png", "", "", "", "cut short"),
    ]
    assert "cannot read b.png: cut short" in shown.err
    assert cli.main(["predict", str(photo), "--format=json"]) == 1
    shown = capsys.readouterr()
    first, second = (json.loads(line) for line in shown.out.removesuffix("\n").split("\n"))
    assert os.fsencode(first["file"]) == os.fsencode(odd) and first["problem"] is None
    assert first["guesses"][0] == {"class": "red, or pink", "score": 0.75, "wordnet_id": "n1"}
    assert second == {"file": "b.png", "guesses": [], "problem": "cut short"}


@pytest.fixture
def finetuning(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the command passes on; it answers with 75 %."""
    from keras_vit.train import finetune as module

    passed = []

    def finetune(*arguments, **options):
        passed.append((arguments, options))
        return types.SimpleNamespace(accuracy=0.75, report="out/report.md")

    monkeypatch.setattr(module, "finetune", finetune)
    return passed


def test_finetune_is_given_what_the_flags_say(finetuning: list, capsys: pytest.CaptureFixture):
    assert cli.main(["finetune", "--data=flowers", "--output=out"]) == 0
    said = "Validation accuracy: 75.00%. How to use the model: out/report.md\n"
    assert capsys.readouterr().out == said
    flags = [
        "--weights=none",
        "--image_size=64",
        "--steps=5",
        "--batch_size=4",
        "--learning_rate=0.03",
        "--seed=2",
        "--pixels=0..1",
    ]
    assert cli.main(["finetune", "--data=flowers", "--output=out", "--model=ViT_Ti16", *flags]) == 0
    defaults = {
        "weights": "imagenet21k",
        "image_size": None,
        "pixels": None,
        "steps": None,
        "batch_size": None,
    }
    chosen = {
        "weights": None,
        "image_size": 64,
        "pixels": "0..1",
        "steps": 5,
        "batch_size": 4,
        "learning_rate": 0.03,
        "seed": 2,
    }
    assert finetuning == [
        (("ViT_B16", "flowers", "out"), {**defaults, "learning_rate": 0.01, "seed": 0}),
        (("ViT_Ti16", "flowers", "out"), chosen),
    ]


@pytest.mark.parametrize(("error", "code"), [("Stopped", 75), ("Diverged", 1)])
def test_finetune_that_was_stopped_can_be_told_from_one_that_failed(
    error: str,
    code: int,
    finetuning: list,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    from keras_vit import train

    def fail(*_, **__):
        raise getattr(train, error)("what happened")

    monkeypatch.setattr(train.finetune, "finetune", fail)
    assert cli.main(["finetune", "--data=flowers", "--output=out"]) == code
    assert "what happened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "model", "expected"),
    [
        ("~/mine.npz", "ViT_B16", "{home}/mine.npz"),
        ("imagenet21k", "ViT_B16", "imagenet21k"),
        (None, "ViT_B16", "imagenet"),
        (None, "~/model.keras", None),
    ],
)
def test_weights_of_the_home_folder_need_no_shell(
    monkeypatch: pytest.MonkeyPatch, given: str | None, model: str, expected: str | None
):
    """A shell leaves the `~` of `--weights=~/mine.npz` as it is."""
    monkeypatch.setenv("HOME", "/home/me")
    found = default_weights(types.SimpleNamespace(weights=given, model=model))
    assert found == (expected and expected.format(home="/home/me"))


@pytest.mark.tensorflow
def test_evaluate_is_given_what_the_flags_say(monkeypatch: pytest.MonkeyPatch):
    from keras_vit.devices import DevicesConfig
    from keras_vit.evaluate import measure

    passed = []
    monkeypatch.setattr(
        measure, "measure", lambda *arguments, **options: passed.append((arguments, options))
    )
    flags = [
        "--weights=a.npz",
        "--output=out",
        "--real=real.json",
        "--objectnet",
        "--image_size=32,48",
        "--strict",
        "--pixels=-1..1",
    ]
    flags += [
        "--crop=resize_shorter",
        "--batch_size=2",
        "--devices=one",
        "--precision=mixed_bfloat16",
    ]
    for more in ([], ["--model=run/model.keras"], ["--model=ViT_Ti16", *flags]):
        assert cli.main(["evaluate", "--data=flowers", *more]) == 0
    defaults = {
        "weights": "imagenet",
        "output": None,
        "real": None,
        "is_objectnet": False,
        "image_size": None,
        "pixels": None,
    }
    defaults |= {
        "eval_crop": "resize",
        "batch_size": None,
        "devices": DevicesConfig(),
        "strict": False,
    }
    chosen = {
        "weights": "a.npz",
        "output": "out",
        "real": "real.json",
        "is_objectnet": True,
        "image_size": (32, 48),
        "pixels": "-1..1",
    }
    chosen |= {"eval_crop": "resize_shorter", "batch_size": 2, "strict": True}
    chosen |= {"devices": DevicesConfig(kind="one", precision="mixed_bfloat16")}
    assert passed == [
        (("ViT_B16", "flowers"), defaults),
        (("run/model.keras", "flowers"), {**defaults, "weights": None}),
        (("ViT_Ti16", "flowers"), chosen),
    ]


@pytest.mark.tensorflow
def test_export_is_given_what_the_flags_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    from keras_vit.export import delivery

    passed, problems = [], []

    def deliver(*arguments, **options) -> list[str]:
        passed.append((arguments, options))
        return problems

    monkeypatch.setattr(delivery, "deliver", deliver)
    flags = [
        "--model=ViT_Ti16",
        "--weights=a.npz",
        "--format=tflite,onnx",
        "--images=cats",
        "--num_images=7",
        "--top=3",
        "--pixels=0..255",
    ]
    flags += [
        "--image_size=64",
        "--precision=bfloat16",
        "--attention",
        "--any_size",
        "--flavours=int8,float32",
    ]
    flags += ["--fixed_batch", "--preprocessing", "--min_agreement=0.5"]
    for more in ([], ["--model=run/model.keras"], flags):
        assert cli.main(["export", "--output=out", *more]) == 0
    problems += ["onnx: no such package"]
    assert (
        cli.main(["export", "--output=out"]) == 1
        and capsys.readouterr().err == "onnx: no such package\n"
    )
    wanted = delivery.Wanted(
        formats=["tflite", "onnx"],
        flavours=["int8", "float32"],
        precision="bfloat16",
        attention=True,
        any_size=True,
        fixed_batch=True,
        preprocessing=True,
        min_agreement=0.5,
        top=3,
    )
    defaults = {
        "weights": "imagenet",
        "images": None,
        "image_size": None,
        "pixels": None,
        "num_images": 100,
    }
    standard = (("ViT_B16", "out", delivery.Wanted(formats=["saved_model"])), defaults)
    assert passed == [
        standard,
        (
            ("run/model.keras", "out", delivery.Wanted(formats=["saved_model"])),
            {**defaults, "weights": None},
        ),
        (
            ("ViT_Ti16", "out", wanted),
            {
                "weights": "a.npz",
                "images": "cats",
                "image_size": (64, 64),
                "pixels": "0..255",
                "num_images": 7,
            },
        ),
        standard,
    ]


def test_ctrl_c_has_its_own_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(
        cli.COMMANDS, "info", dataclasses.replace(cli.COMMANDS["info"], run=interrupted)
    )
    assert cli.main(["info"]) == 130 and "interrupted" in capsys.readouterr().err


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the command passes on; one photo could not be read."""
    from keras_vit.analyze import inspection

    passed = []

    def inspect(*arguments, progress, **options):
        progress(0, 2)
        passed.append((arguments, options))
        photos = [Photo("a.png", "cat", 0.5), Photo("b.png", problem="cut short")]
        return inspection.Inspection(Path("out/report.html"), photos)

    monkeypatch.setattr(inspection, "inspect", inspect)
    return passed


@pytest.mark.tensorflow
def test_analyze_is_given_what_the_flags_say(analysis: list, capsys: pytest.CaptureFixture):
    assert cli.main(["analyze", "--images=holiday", "--output=out"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("out/report.html\n", "cannot read b.png: cut short\n")
    flags = [
        "--model=ViT_Ti16",
        "--weights=none",
        "--image_size=32,48",
        "--photos=3",
        "--batch_size=2",
        "--pixels=0..1",
    ]
    assert cli.main(["analyze", "--images=holiday", "--output=out", *flags]) == 0
    assert cli.main(["analyze", "--images=holiday", "--output=out", "--model=run/model.keras"]) == 0
    defaults = {
        "weights": "imagenet",
        "image_size": None,
        "pixels": None,
        "num_shown": 8,
        "batch_size": None,
    }
    chosen = {
        "weights": "none",
        "image_size": (32, 48),
        "pixels": "0..1",
        "num_shown": 3,
        "batch_size": 2,
    }
    assert analysis == [
        (("ViT_B16", "holiday", "out"), defaults),
        (("ViT_Ti16", "holiday", "out"), chosen),
        (("run/model.keras", "holiday", "out"), {**defaults, "weights": None}),
    ]


@pytest.mark.tensorflow
def test_analyze_says_what_is_wrong_with_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "nowhere", "There is no folder"),
        (tmp_path / "empty", "No photos (.jpg, "),
    ):
        argv = [
            "analyze",
            f"--images={folder}",
            f"--output={tmp_path}/out",
            "--model=ViT_Ti16",
            "--weights=none",
        ]
        assert cli.main(argv) == 1
        shown = capsys.readouterr()
        assert message in shown.err and "Traceback" not in shown.err and shown.out == ""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_analyze_from_a_folder_to_a_page(weights: Path, photo: Path, tmp_path: Path):
    (photo.parent / "broken.jpg").touch()
    flags = ["--model=ViT_Ti16", f"--weights={weights}", "--image_size=48"]
    done = run(
        ["-m", "keras_vit", "analyze", f"--images={tmp_path}", f"--output={tmp_path}/out", *flags]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{tmp_path}/out/report.html\n"
    assert done.stderr == "cannot read broken.jpg: the file is empty\n"
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 5 and "photo.png" in page and "class " in page


@pytest.mark.slow
def test_finetune_from_a_checkpoint_to_an_answer(weights: Path, tmp_path: Path):
    for number, name in enumerate(["a cat", "-dog"]):
        (tmp_path / "data" / name).mkdir(parents=True)
        for count in range(4):
            pixels = (
                np.random.default_rng(8 * number + count)
                .integers(0, 256, (20 + count, 30, 3))
                .astype(np.uint8)
            )
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{count}.JPG")
    flags = ["--model=ViT_Ti16", f"--weights={weights}", "--image_size=48", "--steps=2"]
    done = run(
        [
            "-m",
            "keras_vit",
            "finetune",
            f"--data={tmp_path}/data",
            f"--output={tmp_path}/out",
            *flags,
        ]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("Fine-tuning ViT_Ti16 (")
    assert done.stdout.splitlines()[-1].endswith(f"How to use the model: {tmp_path}/out/report.md")
    commands = re.findall(
        r"```sh\n(.*?)\n```", (tmp_path / "out" / "report.md").read_text(), re.DOTALL
    )
    again, ask = (shlex.split(command) for command in commands)
    done = run(again[1:])  # without "python"
    assert done.returncode == 0 and "it is finished" in done.stdout, done.stderr[-3000:]
    done = run(ask[1:])
    assert done.returncode == 0, done.stderr[-3000:]
    assert {line.split(maxsplit=1)[1] for line in done.stdout.splitlines()[1:]} == {"a cat", "-dog"}


# --- as a program
# ----------------------------------------------------------------------------------------------------

# The command line on its own: with a package whose `__init__` has imported nothing.
ALONE = """
import sys, types
package = types.ModuleType("keras_vit")
package.__path__ = ["keras_vit"]
sys.modules["keras_vit"] = package
from keras_vit.cli import main
code = main(sys.argv[1:])
"""


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess:
    environment = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )


def test_info_needs_no_framework():
    loaded = 'print("loaded:", *(name for name in ("keras", "tensorflow", "jax") if name in sys.modules))'
    done = run(["-c", ALONE + loaded, "info", "ViT_B16"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "86,567,656" in done.stdout
    assert done.stdout.endswith("loaded:\n")


@pytest.mark.slow
def test_verify_prints_its_report_and_nothing_of_tensorflow_s(weights: Path):
    done = run(["-c", ALONE + "sys.exit(code)", "verify", str(weights)])
    assert done.returncode == 0
    assert "VERIFIED" in done.stdout
    assert [line for line in done.stderr.splitlines() if not line.startswith("computing ")] == []


def test_the_module_runs_as_a_program_and_returns_the_exit_code(tmp_path: Path):
    (tmp_path / "empty.npz").touch()
    done = run(["-m", "keras_vit", "verify", str(tmp_path / "empty.npz")])
    assert done.returncode == 1
    assert done.stdout == ""
    assert "it is empty (0 bytes)" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_output_that_nobody_reads_any_more_is_no_error():
    # As in `keras-vit info | head -1`: the reader has closed its end.
    closed = "import os\nreader, writer = os.pipe()\nos.close(reader)\nos.dup2(writer, 1)\n"
    done = run(["-c", closed + ALONE + "sys.exit(code)", "info"])
    assert (done.returncode, done.stderr) == (1, "")


def test_predict_builds_and_asks_as_the_flags_say(
    photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (photo.parent / "notes.txt").write_text("no photo")
    built, asked = [], []
    monkeypatch.setattr(classifier, "build", lambda *all_: built.append(all_) or "the model")
    monkeypatch.setattr(classifier, "names_for", lambda *_: ["a", "b"])
    answers = [predict.Answer(photo, [], "cut short")] * 2
    monkeypatch.setattr(predict, "predict", lambda *all_: asked.append(all_) or answers)
    flags = ("--model=ViT_Ti16", "--weights=none", "--image_size=32,48", "--top=2")
    assert cli.main(["predict", str(photo.parent), "--pixels=-1..1", *flags]) == 1
    assert built == [("ViT_Ti16", "none", (32, 48), "-1..1")]
    ((model, photos, top, _, names, size),) = asked
    assert (model, top, names, size) == ("the model", 2, ["a", "b"], (32, 48))
    assert [Path(path).name for path in photos] == ["photo.png"]
    assert "Left out, 3" in capsys.readouterr().err  # and the file that is no photo


def test_export_checks_on_the_images_of_the_flags(monkeypatch, capsys: pytest.CaptureFixture):
    acceptance = pytest.importorskip("keras_vit.export.acceptance")
    asked = []
    monkeypatch.setattr(
        acceptance, "check", lambda *given, **named: asked.append((given, named)) or []
    )
    assert cli.main(["export", "--check=x", "--images=y", "--num_images=3"]) == 0
    assert cli.main(["export", "--check=x"]) == 0
    named, by_default = {"images": "y", "num_images": 3}, {"images": None, "num_images": None}
    assert asked == [(("x",), named), (("x",), by_default)]


def test_the_table_of_models_is_that_of_the_size_and_the_classes(capsys: pytest.CaptureFixture):
    assert cli.main(["info", "--image_size=240", "--classes=0"]) == 0
    shown = capsys.readouterr().out
    assert "240 x 240 pixels" in shown and "without a head" in shown
    assert cli.main(["info"]) == 0
    assert "224 x 224 pixels" in capsys.readouterr().out
