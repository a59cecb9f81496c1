"""README.md and the pages of the site: every block runs and prints what the page shows; commands and
links exist.

Published weights cannot be downloaded in a test: `stand_ins.py` puts small models with random
weights under the published names. `documents.py` finds the blocks, `page_python.py` is `python` in
shell blocks.
"""

import contextlib
import doctest
import fnmatch
import functools
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import documents
import keras
import numpy as np
import pytest
import stand_ins
import warm
from documents import PAGES, README, ROOT, Block
from PIL import Image

import keras_vit
from keras_vit import applications, cli
from keras_vit.variants import FAMILY_VARIANTS, RESNET_VARIANTS, VARIANTS, VIT_VARIANTS
from keras_vit.weights import download

LINKING = [*PAGES, ROOT / "CONTRIBUTING.md"]
# The others, which take longer, run in `make test-all`.
QUICK = ("docs/index.md", "docs/models.md", "docs/checkpoints.md")
COLUMNS = 100
SHALLOW = {"depth": 1, "mlp_dim": 32}
# For pages that train or export, and print no shapes.
NARROW = {**SHALLOW, "width": 192}
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("docs/export.md", *(f"docs/how_to/{name}.md" for name in ("my_photos", "phone", "serve"))),
        NARROW,
    ),
    # It prints all layers and heads of this model, and costs of others.
    "docs/analysis.md": {"depth": 12, "width": 36, "mlp_dim": 32, "only": ["ViT_B16"]},
    # Real files of transformers 4, of a small model.
    "docs/from_tfvitmodel.md": {
        "patch_size": 8,
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 24,
        "only": ["ViT_B16"],
    },
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype="uint8")
    Image.fromarray(pixels).save(path, format="JPEG")


@pytest.fixture
def changes(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """What is changed in the row of each model."""
    page = request.node.callspec.params.get("page")
    return CHANGES.get(name_of(page) if page else "", SHALLOW)


@pytest.fixture
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files in place of downloads, the same for all pages."""
    folder = tmp_path_factory.getbasetemp().parent / "stand_ins"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes, downloads, request) -> Path:
    """A folder with the files that the pages read, and small models under the published names."""
    for table in (VIT_VARIANTS, FAMILY_VARIANTS, RESNET_VARIANTS, VARIANTS):
        for name, row in table.items():
            monkeypatch.setitem(table, name, row)  # undone at the end
    for name in keras_vit.list_models():
        monkeypatch.setattr(applications, name, getattr(applications, name))
        monkeypatch.setattr(keras_vit, name, getattr(keras_vit, name), raising=False)
    monkeypatch.setattr(download, "fetch", download.fetch)
    published = VIT_VARIANTS["ViT_Ti16"]
    # This page prints costs of a model whose attention maps it draws.
    page = request.node.callspec.params["page"]
    in_table = page.name != "analysis.md"
    stand_ins.install(downloads, changes, in_table=in_table)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    tiny = replace(published, width=24, depth=1, num_heads=2, mlp_dim=32)
    small = applications.application(tiny)(weights=None, input_shape=(32, 32, 3), classes=2)
    for folder, golden in (("my_vit", "vit"), ("my_classifier", "vit_classifier")):
        shutil.copytree(ROOT / "tests/golden/transformers_h5" / golden, tmp_path / folder)
    photo(tmp_path / "photo.jpg", 0)
    for i in range(20):
        photo(tmp_path / f"photos/{i}.jpg", 200 + i)
    for number, kind in enumerate(("daisy", "tulip")):
        for i in range(8):
            photo(tmp_path / f"flowers/train/{kind}/{i}.jpg", 8 * number + i)
        for i in range(4):
            photo(tmp_path / f"flowers/test/{kind}/{i}.jpg", 80 + 8 * number + i)
    for label in range(10):
        for i in range(3):
            photo(tmp_path / f"cifar10/train/{label}/{i}.jpg", 300 + 3 * label + i)
            photo(tmp_path / f"cifar10/test/{label}/{i}.jpg", 400 + 3 * label + i)
    photo(tmp_path / "imagenet/val/n01440764/ILSVRC2012_val_00000001.JPEG", 0)
    (tmp_path / "real.json").write_text(json.dumps([[0]]))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    pixels = keras.Input((224, 224, 3))
    scaled = keras.layers.Rescaling(1 / 255)(pixels)
    mine = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling2D()(scaled))
    models = {"flowers_vit": small, "mine": keras.Model(pixels, mine, name="mine")}
    if "\npython -m keras_vit finetune --data=flowers --output=flowers_vit" in page.read_text():
        del models["flowers_vit"]  # the page makes it
    for folder, model in models.items():
        (tmp_path / folder).mkdir()
        model.save(tmp_path / folder / "model.keras")
        (tmp_path / folder / "classes.txt").write_text("daisy\ntulip\n")
    if "flowers_vit" in models:
        keras_vit.save_checkpoint(small, tmp_path / "flowers_vit/model.npz")
    large = keras_vit.ViT_B16(weights=None)
    head = large.get_layer("predictions").kernel  # zeros are refused
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    keras_vit.save_checkpoint(large, tmp_path / "ViT-B_16.npz")
    return tmp_path


@pytest.fixture
def shell(tmp_path_factory, monkeypatch, changes, downloads) -> None:
    """`python` of the tests, and a `pip` and a `make` that check their arguments, on the PATH."""
    folder = tmp_path_factory.mktemp("bin")
    tests = ROOT / "tests"
    start = shlex.join(
        [sys.executable, str(tests / "page_python.py"), str(downloads), json.dumps(dict(changes))]
    )
    programs = {
        "python": f'exec {start} "$PAGE_FLAGS" "$@"',
        "keras-vit": f'exec {start} "$PAGE_FLAGS" -m keras_vit "$@"',
        "pip": f'exec {sys.executable} {tests / "page_pip.py"} "$@"',
        "make": f'exec /usr/bin/env -u MAKEFLAGS LC_ALL=C make -n -C {ROOT} "$@" > /dev/null',
    }
    outside = os.environ["PATH"]
    programs["make"] = f"PATH={shlex.quote(outside)} {programs['make']}"
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{outside}")


def ids(pages: list[Path]) -> list:
    return [
        pytest.param(
            page, id=name_of(page), marks=() if name_of(page) in QUICK else pytest.mark.slow
        )
        for page in pages
    ]


def run(blocks: list[Block], monkeypatch: pytest.MonkeyPatch) -> int:
    """Executes blocks in order, and returns how many."""
    names: dict = {}
    executed = [block for block in blocks if block.is_executed]
    for block in executed:
        where = f"{block.page}:{block.line}"
        printed = (
            run_python(block, names, monkeypatch)
            if block.language == "python"
            else run_shell(block)
        )
        if block.output is not None:
            pattern = re.sub(r"\[(?!\[\])|(?<!\[)\]", lambda m: f"[{m[0]}]", block.output)
            pattern = pattern.replace("?", "[?]").replace("*", "[*]").replace("...", "*")
            assert fnmatch.fnmatchcase(printed, pattern), f"{where} printed:\n{printed}"
    return len(executed)


def run_python(block: Block, names: dict, monkeypatch: pytest.MonkeyPatch) -> str:
    printed = io.StringIO()
    if block.flags:  # such as finetune(steps=1): arguments that are added to the user's
        name, arguments = re.fullmatch(r"(\w+)\((.*)\)", block.flags).groups()
        shortened = functools.partial(getattr(keras_vit, name), **eval(f"dict({arguments})"))
        monkeypatch.setattr(keras_vit, name, shortened, raising=False)
    # Lines of a traceback are those of the page.
    code = compile("\n" * block.line + block.text, block.page, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_shell(block: Block) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        env={**os.environ, "PAGE_FLAGS": block.flags, warm.UNOPTIMIZED: "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    where = f"{block.page}:{block.line}"
    assert done.returncode == 0, f"{where}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


WITH_BLOCKS = [
    page for page in PAGES if any(block.is_executed for block in documents.read_blocks(page))
]


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", ids(WITH_BLOCKS))
def test_blocks_run_and_print_what_the_page_says(page, user, shell, monkeypatch):
    if documents.has_doctests(page):
        failures, tries = doctest.testfile(str(page), module_relative=False)
        assert tries > 20 and failures == 0
    else:
        assert run(documents.read_blocks(page), monkeypatch) > 0


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_first_steps_run_with_the_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    first = next(block for block in documents.read_blocks(README) if block.language == "python")
    assert "ViT_Ti16" in first.text and first.output
    run([first], monkeypatch)


BROKEN = {
    "```python\nkeras_vit_does_not_exist\n```": "not defined",
    "```python\nprint(1)\n```\n```text\n2\n```": "printed:\n  1",
    "```sh\nfalse\n```": "broken.md:1: 1",
    "```sh\necho 1\n```\n\nIt prints:\n\n```text\n1...2\n```": "printed:\n  1",
    "```sh\npip install '.[nothing]'\n```": "no extra `nothing`",
    "```sh\nmake nothing\n```": "No rule to make target",
    "```\nls\n```": "the language of a block",
    "```sh\nls\n": "1 fences",
}


@pytest.mark.once
@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_block_fails(text, tmp_path, shell, monkeypatch):
    (tmp_path / "broken.md").write_text(f"{text}\n")
    with pytest.raises((AssertionError, NameError, ValueError), match=re.escape(BROKEN[text])):
        run(documents.read_blocks(tmp_path / "broken.md"), monkeypatch)


@pytest.mark.once
def test_blocks_that_are_not_run_are_few_and_say_why():
    blocks = [block for page in PAGES for block in documents.read_blocks(page)]
    executed = [block for block in blocks if block.is_executed]
    left_out = [block for block in blocks if block.reason]
    assert len(executed) > 100 and len(left_out) < 0.2 * len(executed)
    assert [block for block in left_out if len(block.reason.split()) < 2] == []
    assert len(documents.list_blocks().splitlines()) == len(executed) + len(left_out) + 2


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
            if file.resolve().parent == ROOT / "docs/reference":  # a page that the site makes
                continue
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
        if len(line) > COLUMNS and not line.startswith(("|", "<img", "![", "<!--"))
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
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert [name for name in pages if f"](docs/{name})" not in text] == []


@pytest.mark.once
def test_every_figure_is_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in LINKING)
    figures = [path for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".jpg")]
    assert figures and [path.name for path in figures if path.name not in shown] == []
