"""README.md and docs/: Python runs and prints what the page shows; commands and links exist.

Published weights cannot be downloaded in a test. `ViT_B16` and others are replaced by models with
the same arguments, a small MLP, few blocks and random weights. The blocks therefore test calls and
shapes, not the predictions of a published model.
"""

import contextlib
import doctest
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import applications, cli
from keras_vit.variants import VARIANTS, VIT_VARIANTS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
DOCTEST = ROOT / "docs" / "fine_tuning_with_keras.md"
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "experiments").rglob("README.md"))]
EXPENSIVE = ("evaluation.md", "export.md", "training.md")  # they train, evaluate or export
COLUMNS = 100


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype="uint8")
    Image.fromarray(pixels).save(path, format="JPEG")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with the files that the pages read, and small models under the published names."""
    page = request.getfixturevalue("page")
    # The page on analysis prints all layers and heads, others the width.
    change = {"depth": 12, "width": 36} if page.name == "analysis.md" else {"depth": 1}
    for name in ("ViT_Ti16", "ViT_S16", "ViT_B16"):
        row = replace(VIT_VARIANTS[name], mlp_dim=32, **change)

        def build(*, weights: str | None = "imagenet", row=row, **options) -> keras.Model:
            assert weights is None or weights in keras_vit.list_weights(row.name)
            return applications.application(row)(weights=None, **options)

        monkeypatch.setattr(keras_vit, name, build)
    tiny = replace(VIT_VARIANTS["ViT_Ti16"], width=24, depth=1, num_heads=2, mlp_dim=32)
    small = applications.application(tiny)(weights=None, input_shape=(32, 32, 3), classes=2)
    finetune = keras_vit.finetune
    monkeypatch.setattr(
        keras_vit,
        "finetune",
        lambda _, data, output: finetune(small, data, output, steps=1),
        raising=False,
    )
    monkeypatch.chdir(tmp_path)
    if page.name == "from_tfvitmodel.md":  # real files of transformers 4, of a small model
        row = replace(tiny, patch_size=8, width=16, depth=2, mlp_dim=24)
        monkeypatch.setattr(keras_vit, "ViT_B16", applications.application(row))
        for folder, golden in (("my_vit", "vit"), ("my_classifier", "vit_classifier")):
            shutil.copytree(ROOT / "tests/golden/transformers_h5" / golden, tmp_path / folder)
    photo(tmp_path / "photo.jpg", 0)
    for number, kind in enumerate(("daisy", "tulip")):
        for i in range(4):
            photo(tmp_path / f"flowers/train/{kind}/{i}.jpg", 8 * number + i)
            photo(tmp_path / f"flowers/test/{kind}/{i}.jpg", 80 + 8 * number + i)
    photo(tmp_path / "imagenet/val/n01440764/ILSVRC2012_val_00000001.JPEG", 0)
    (tmp_path / "real.json").write_text(json.dumps([[0]]))
    pixels = keras.Input((16, 16, 3))
    mine = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling2D()(pixels))
    for folder, model in (("flowers_vit", small), ("mine", keras.Model(pixels, mine))):
        (tmp_path / folder).mkdir()
        model.save(tmp_path / folder / "model.keras")
        (tmp_path / folder / "classes.txt").write_text("daisy\ntulip\n")
    return tmp_path


def ids(pages: list[Path]) -> list:
    return [
        pytest.param(
            page, id=name_of(page), marks=pytest.mark.slow if page.name in EXPENSIVE else ()
        )
        for page in pages
    ]


WITH_PYTHON = [
    page for page in PAGES if page != DOCTEST and any(kind == "python" for kind, _ in blocks(page))
]


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", ids(WITH_PYTHON))
def test_python_runs_and_prints_what_the_page_says(page: Path, user: Path):
    run(page, blocks(page))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_first_steps_run_with_the_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(README)
    first = [kind for kind, _ in found].index("python")
    assert "ViT_Ti16" in found[first][1]
    run(README, found[first : first + 2])


def run(page: Path, found: list[tuple[str, str]]) -> None:
    names: dict = {}
    found = [*found, ("", "")]
    for (kind, text), (next_kind, expected) in zip(found, found[1:], strict=False):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, name_of(page), "exec"), names)
            if next_kind == "text":
                assert printed.getvalue() == expected


@pytest.mark.tensorflow
def test_the_examples_of_fine_tuning_with_keras_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    failures, tries = doctest.testfile(str(DOCTEST), module_relative=False)
    assert tries > 20 and failures == 0


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command of the package or of a script, in blocks and between backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for found in re.findall(
        r"(?:python -m keras_vit [a-z]|(?:python )?experiments/[\w/]+\.py)[^`)\n]*", text
    ):
        yield shlex.split(found, comments=True)


def flags_of(words: list[str]) -> list[str]:
    return [re.split("[=.]", word[2:])[0] for word in words if word.startswith("--")]


@pytest.mark.once
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_the_package_have_these_flags(page: Path, capsys: pytest.CaptureFixture):
    for words in commands(page):
        if words[:3] == ["python", "-m", "keras_vit"]:
            assert cli.main([words[3], "--help"]) == 0, words
            known = capsys.readouterr().out
            assert [flag for flag in flags_of(words) if f"  --{flag}" not in known] == [], words


@pytest.mark.once
@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_scripts_exist_and_some_script_has_these_flags(page: Path):
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "experiments").rglob("*.py")
    )
    for words in commands(page):
        for script in words[:2]:
            assert not script.startswith("experiments/") or (ROOT / script).is_file(), words
        if words[:3] != ["python", "-m", "keras_vit"]:
            missing = [
                flag
                for flag in flags_of(words)
                if flag not in ("config", "help") and f'"{flag}"' not in sources
            ]
            assert missing == [], words


@pytest.mark.once
@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> list[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.once
@pytest.mark.parametrize(
    "page", [page for page in LINKING if page.name != "CONTRIBUTING.md"], ids=name_of
)
def test_prose_is_at_most_100_columns_wide(page: Path):
    prose = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    long = [
        line
        for line in prose.splitlines()
        if len(line) > COLUMNS and not line.startswith(("|", "<img", "!["))
    ]
    assert long == []


# One row of the table of models for each line of docs/checkpoints.md on position embeddings.
RESIZED = {
    "ViT": "ViT_B16",
    "hybrids": "R50_ViT_B16",
    "SigLIP": "SigLIP_B16",
    "CLIP": "CLIP_B16",
    "DeiT": "DeiT_B16",
    "DeiT-III": "DeiT3_B16",
    "MAE": "MAE_B16",
    "I-JEPA": "IJEPA_H14",
    "DINO": "DINO_B16",
    "DINOv2": "DINOv2_B14",
    "DINOv2 with registers": "DINOv2_B14_reg4",
    "TIPSv2": "TIPSv2_B14",
}


@pytest.mark.once
def test_the_rules_of_resizing_positions_are_those_of_the_table_of_models():
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| model | default here |")
    stated = dict(re.findall(r'^\| ([\w -]+) \| `"(\w+)"` \|', table, re.MULTILINE))
    assert stated == {model: VARIANTS[name].interpolation for model, name in RESIZED.items()}


@pytest.mark.once
def test_the_readme_is_short_and_names_every_page():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in text] == []


@pytest.mark.once
def test_every_figure_is_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in LINKING)
    figures = [path for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".jpg")]
    assert figures and [path.name for path in figures if path.name not in shown] == []
