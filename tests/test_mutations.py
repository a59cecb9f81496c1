"""The table of faults fits the package and covers all of it; a fault that is noticed is told from
one that is not.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

CAMPAIGNS = Path(__file__).parent / "campaigns"
sys.path.append(str(CAMPAIGNS))  # where a script finds what lies beside it

import mutations  # noqa: E402
from mutation_table import MUTATIONS, Mutation  # noqa: E402

pytestmark = pytest.mark.tensorflow

EXPERIMENTS = {
    "experiments",
    *(f"experiments/{name}" for name in ("ablations", "command_line", "serving")),
}


def test_every_row_fits_the_package():
    mutations.check_table(MUTATIONS)
    assert len({(row.file, row.old, row.new) for row in MUTATIONS}) == len(MUTATIONS)


def test_every_part_of_the_package_has_faults():
    folders = Counter(str(Path(row.file).parent) for row in MUTATIONS)
    expected = {
        str(path.parent.relative_to(mutations.ROOT))
        for path in mutations.ROOT.glob("keras_vit/**/*.py")
    }
    missing = {name for name in expected | EXPERIMENTS if folders[name] < 2}
    assert not missing


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            Mutation("keras_vit/grid.py", "no such text", "", ("tests/test_grid.py",)),
            "occurs 0 times, expected once",
        ),
        (
            Mutation("keras_vit/grid.py", "import", "", ("tests/test_grid.py",)),
            "times, expected once",
        ),
        (
            Mutation("keras_vit/absent.py", "a", "b", ("tests/test_grid.py",)),
            "there is no such file",
        ),
        (
            Mutation(
                "keras_vit/grid.py", "def square_grid", "def x", ("tests/test_absent.py::test_a",)
            ),
            "no test file",
        ),
        (
            Mutation(
                "keras_vit/grid.py", "def square_grid", "def square_grid", ("tests/test_grid.py",)
            ),
            "nothing changes",
        ),
    ],
)
def test_a_row_that_does_not_fit_any_more_is_named(
    row: Mutation, words: str, capsys: pytest.CaptureFixture
):
    with pytest.raises(SystemExit, match="2"):
        mutations.check_table([row])
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_faults_are_noticed():
    environment = {
        name: value for name, value in os.environ.items() if name != "KERAS_VIT_TESTS_WARM"
    }
    command = [sys.executable, str(CAMPAIGNS / "mutations.py"), "--only=keras_vit/writing.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("tried 4, caught 4, survived 0\n"), (
        done.stderr[-3000:]
    )
