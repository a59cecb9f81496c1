"""The notebooks of docs/tutorials/: their code runs, and they are stored with the outputs of one whole
execution.

`make tutorials` executes them at full length. Here the constants of their first code cell are
replaced by small ones. Models are trained on one batch and evaluated on one, without tracing, which
takes longer than a few steps.
"""

import ast
import contextlib
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import keras
import pytest
import warm

TUTORIALS = sorted((Path(__file__).parents[1] / "docs/tutorials").glob("*.ipynb"))
LARGEST = 600_000  # bytes
# Small values for the constants of the first code cell.
SMALL: dict[str, dict[str, Any]] = {
    "checkpoint_to_server_and_phone": {
        "IMAGES": 64,
        "STEPS": 2,
        "PHOTOS": 40,
        "FLAVOURS": "dynamic_int8",
        "MIN_AGREEMENT": 0.0,
    },
    "figure_of_the_paper": {"STEPS": 5, "BATCH_SIZE": 32, "SEEDS": (0,)},
    "fine_tune_on_photos": {"PHOTOS": 20, "FRACTALS": 2, "PRETRAINING_STEPS": 8, "STEPS": 2},
    "first_vit": {"IMAGES": 64, "STEPS": 2},
    "what_it_looks_at": {"IMAGES": 64, "STEPS": 2, "TEST_IMAGES": 24},
}


def read(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in read(path) if cell["cell_type"] == "code"]


def name_of(path: Path) -> str:
    return path.stem


@pytest.mark.once
def test_every_notebook_has_small_constants():
    assert TUTORIALS and [path.stem for path in TUTORIALS] == list(SMALL)


@pytest.mark.once
@pytest.mark.parametrize("path", TUTORIALS, ids=name_of)
def test_a_notebook_is_stored_as_it_was_executed(path: Path):
    cells = [cell for cell in read(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert path.stat().st_size < LARGEST
    assert not re.search(r"/(root|home|Users|tmp)/", path.read_text(encoding="utf-8"))


@pytest.mark.once
@pytest.mark.parametrize("path", TUTORIALS, ids=name_of)
def test_the_first_cell_says_what_is_learned_and_how_to_run_it(path: Path):
    first = read(path)[0]
    text = "".join(first["source"])
    assert first["cell_type"] == "markdown" and text.startswith("# ")
    assert "minute" in text


def constants(code: str) -> dict[str, Any]:
    """The constants that a cell assigns."""
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(code).body
        if isinstance(statement, ast.Assign)
    }


def patch_defaults(monkeypatch: pytest.MonkeyPatch, name: str, defaults: dict[str, Any]) -> None:
    """Gives a method of `keras.Model` other default values of its options."""
    method = getattr(keras.Model, name)
    monkeypatch.setattr(
        keras.Model, name, lambda *words, **options: method(*words, **{**defaults, **options})
    )


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("path", TUTORIALS, ids=name_of)
def test_the_code_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(subprocess, "Popen", warm.Child)
    for name, small in (
        ("compile", {"run_eagerly": True}),
        ("fit", {"steps_per_epoch": 1}),
        ("evaluate", {"steps": 1}),
    ):
        patch_defaults(monkeypatch, name, small)
    first, *others = code_of(path)
    assert set(SMALL[path.stem]) <= set(constants(first))
    small = "\n".join(f"{name} = {value!r}" for name, value in SMALL[path.stem].items())
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for number, code in enumerate([f"{first}\n{small}", *others], start=1):
            exec(compile(code, f"{path.stem}, cell {number}", "exec"), names)
