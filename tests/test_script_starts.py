"""What scripts in experiments/ print when they start: no native log line of TensorFlow's; in --help
all their flags.

`experiments/serving/` loads no framework, and the processes in `experiments/benchmarks/rivals/` are
started by scripts.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warm
from warm import HUNG_SECONDS

pytestmark = [pytest.mark.tensorflow, pytest.mark.once]

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
FILES = [
    path for folder in (".", "benchmarks") for path in sorted((EXPERIMENTS / folder).glob("*.py"))
]
SCRIPTS = [
    path for path in FILES if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
]
FIRST = [EXPERIMENTS / folder / "native_logs.py" for folder in ("command_line", "benchmarks")]
each_script = pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda path: str(path.relative_to(EXPERIMENTS))
)


def imported(source: str) -> Iterator[str]:
    """The modules that a file imports before it runs, in order; those that load no framework are
    left out.
    """
    for node in ast.parse(source).body:
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
        yield from (
            name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, "absl"}
        )


def test_there_are_scripts():
    assert {"pretrain.py", "vtab.py", "models.py", "scaling.py"} < {path.name for path in SCRIPTS}


@each_script
def test_nothing_can_load_tensorflow_before_its_log_lines_are_held_back(script: Path):
    modules = list(imported(script.read_text(encoding="utf-8")))
    of_folder = "native_logs" if script.parent.name == "benchmarks" else "command_line.native_logs"
    assert modules[0] == of_folder


def test_the_level_is_set_in_one_place_of_each_folder():
    files = [
        path
        for path in EXPERIMENTS.rglob("*.py")
        if "TF_CPP_MIN" in path.read_text(encoding="utf-8")
    ]
    assert sorted(files) == sorted(FIRST)
    for path in FIRST:
        code = [
            "import os",
            "os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')",
            "import keras_vit",
        ]
        assert [
            ast.unparse(node) for node in ast.parse(path.read_text(encoding="utf-8")).body[1:]
        ] == code


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("pretrain", "config"),
        ("finetune", "config"),
        ("masked_patches", "config"),
        ("mae", "config"),
        ("sweep", "config parallel"),
    ]
    + [("fewshot", "data model shots"), ("probe", "data model streaming")],
)
def test_help_shows_the_flags_that_scripts_share(name: str, flags: str):
    done = warm.run(
        [sys.executable, str(EXPERIMENTS / f"{name}.py"), "--help"], capture_output=True, text=True
    )
    shown = set(re.findall(r"^  --(?:\[no\])?(\w+):", done.stdout, re.MULTILINE))
    assert {*flags.split(), "workdir"} <= shown, done.stderr


def shown_by_help(script: Path, start: Callable, tmp_path: Path) -> subprocess.CompletedProcess:
    environment = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    command = [sys.executable, str(script), "--help"]
    pipes = {"capture_output": True, "text": True, "timeout": HUNG_SECONDS}
    return start(command, cwd=tmp_path, env=environment, **pipes)


@each_script
def test_help_begins_with_the_title_of_the_script(script: Path, tmp_path: Path):
    done = shown_by_help(script, warm.run, tmp_path)
    assert done.stderr == "" and done.returncode == 1  # absl's exit code of --help
    title = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))).splitlines()[0]
    assert title in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrain.py", "benchmarks/training.py"])  # one of each folder
def test_the_native_log_of_the_import_is_silent(name: str, tmp_path: Path):
    done = shown_by_help(EXPERIMENTS / name, subprocess.run, tmp_path)
    assert done.stderr == "" and done.returncode == 1
