"""The scripts of a release: its notes, and distributions that are reproducible byte for byte.

`make distributions` builds whole distributions twice and compares them: that needs a new setuptools.
"""

import io
import os
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDEST = runpy.run_path(str(ROOT / "release/oldest.py"))
DISTRIBUTIONS = runpy.run_path(str(ROOT / "release/distributions.py"))
NOTES = runpy.run_path(str(ROOT / "release/notes.py"))
CHANGELOG = """# Changelog

## [Unreleased]

## [1.1.0] - 2026-11-25

### Added

- One thing that
  takes two lines.
- Another.

## [1.0.0] - 2026-01-02

- The first.
"""

pytestmark = pytest.mark.once


def test_notes_are_the_section_of_the_version_with_one_line_for_each_entry():
    expected = "### Added\n\n- One thing that takes two lines.\n- Another.\n"
    assert NOTES["write_notes"](CHANGELOG, "1.1.0", "v1.1.0") == expected
    assert NOTES["write_notes"](CHANGELOG, "1.0.0") == "- The first.\n"


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "reason"),
    [
        (CHANGELOG, "1.1.0", "v1.0.0", "The tag is v1.0.0, and `__version__` is 1.1.0"),
        (CHANGELOG, "1.1.0", "1.1.0", "expected v1.1.0"),
        (CHANGELOG, "2.0.0", None, r"no section '## \[2.0.0\]'. It has: Unreleased, 1.1.0, 1.0.0"),
        (CHANGELOG.replace("2026-11-25", "unreleased"), "1.1.0", "v1.1.0", "dated 'unreleased'"),
        (CHANGELOG.replace("- The first.\n", ""), "1.0.0", None, "is empty"),
        (
            CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n"),
            "1.1.0",
            "v1.1.0",
            r"Move the entries under \[Unreleased\]",
        ),
    ],
)
def test_what_is_not_ready_is_not_released(changelog, version, tag, reason):
    with pytest.raises(ValueError, match=reason):
        NOTES["write_notes"](changelog, version, tag)


def test_a_tag_that_is_not_ready_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["notes.py", "--tag=v99.0.0"])
    assert NOTES["main"]() == 1
    said = capsys.readouterr()
    assert said.out == "" and "The tag is v99.0.0" in said.err


def test_the_version_is_read_without_an_import():
    assert NOTES["read_version"]('import nothing\n__version__ = "1.2.3"\n') == "1.2.3"
    with pytest.raises(ValueError, match="must assign a literal"):
        NOTES["read_version"]("version = '1'\n")


def test_notes_of_this_version_are_printed():
    command = [sys.executable, str(ROOT / "release/notes.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("### ")


def write_archive(path: Path, files: dict[str, bytes], **facts: int | str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for fact, value in facts.items():
                setattr(member, fact, value)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_equal_files_are_equal_archives(tmp_path: Path):
    files = {"p-1/b.py": b"2", "p-1/a.py": b"1"}
    one = write_archive(tmp_path / "one.tar.gz", files, mtime=1e9, mode=0o600, uname="me", uid=1000)
    other = write_archive(tmp_path / "other.tar.gz", dict(reversed(files.items())), mtime=1.7e9)
    changed = write_archive(tmp_path / "changed.tar.gz", {**files, "p-1/a.py": b"3"})
    for path in (one, other, changed):
        DISTRIBUTIONS["normalize_sdist"](path, 1_600_000_000)
    assert one.read_bytes() == other.read_bytes() != changed.read_bytes()
    with tarfile.open(one) as archive:
        facts = [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in archive]
        assert archive.extractfile("p-1/b.py").read() == b"2"
    assert facts == [(f"p-1/{n}.py", 0o644, 1_600_000_000, 0, "") for n in "ab"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "a.py").write_text("1")
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "a.py"], [*who, "commit", "-qm", "one"]):
        env = {**os.environ, "GIT_COMMITTER_DATE": "1500000000 +0000"}
        subprocess.run(["git", *words], cwd=folder, check=True, env=env)
    return folder


def test_the_date_is_that_of_the_commit_or_the_one_that_is_asked_for(checkout, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert DISTRIBUTIONS["find_date"](checkout) == 1_500_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    assert DISTRIBUTIONS["find_date"](checkout) == 1_600_000_000
    for wrong, reason in (("yesterday", "is not a number of seconds"), ("12", "before 1980")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(ValueError, match=reason):
            DISTRIBUTIONS["find_date"](checkout)


def test_only_what_is_committed_is_built(checkout: Path, tmp_path: Path):
    (checkout / "left_over.py").write_text("2")
    DISTRIBUTIONS["check_committed"](checkout)
    DISTRIBUTIONS["copy_tracked"](checkout, tmp_path / "tree", 1_600_000_000)
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["a.py"]
    assert (tmp_path / "tree/a.py").stat().st_mtime == 1_600_000_000
    (checkout / "a.py").write_text("3")
    with pytest.raises(ValueError, match=r"Commit or undo these changes first:\n ?M a.py"):
        DISTRIBUTIONS["check_committed"](checkout)
    with pytest.raises(ValueError, match="must be a git checkout"):
        DISTRIBUTIONS["check_committed"](tmp_path)


def test_the_citation_names_the_licence_and_the_paper():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] in (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert "version" not in citation  # it is `__version__`
    assert [reference["year"] for reference in citation["references"]] == [2021]


def test_the_threat_model_names_modules_that_exist():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/]+\.py)`", text)
    folders = (ROOT, ROOT / "keras_vit", ROOT / "keras_vit/weights", ROOT / "tests/campaigns")
    assert len(names) > 5
    assert [n for n in names if not any((folder / n).is_file() for folder in folders)] == []


def test_the_oldest_versions_are_the_lower_bounds():
    setup = """
[options]
install_requires =
    absl-py
    keras >= 3.12
    numpy >= 1.26, < 3
[options.extras_require]
docs =
    package[train]
    mkdocstrings[python] >= 1.0
"""
    expected = ["keras==3.12", "mkdocstrings==1.0", "numpy==1.26"]
    assert OLDEST["list_oldest"](setup) == expected
    with pytest.raises(ValueError, match=r"keras has two lower bounds: 3.12 and 3.13"):
        OLDEST["list_oldest"](setup + "    keras >= 3.13\n")
    ours = OLDEST["list_oldest"]((ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert {"keras==3.13", "tensorflow==2.20"} <= set(ours)


def test_workflows_run_targets_that_exist_with_few_rights():
    yaml = pytest.importorskip("yaml")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folder = ROOT / ".github/workflows"
    for path in folder.iterdir():
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] <= 120, (path.name, name)
            for step in job["steps"]:
                for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                    # `brew install make`, then another word
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), (path.name, target)
                for script in re.findall(r"[\w/]+\.py", step.get("run", "")):
                    assert (ROOT / script).is_file()
                if step.get("uses", "").startswith("actions/checkout"):
                    assert step["with"] == {"persist-credentials": False}
    tests = yaml.safe_load((folder / "tests.yml").read_text(encoding="utf-8"))
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    for name in ("test", "wheel"):
        matrix = tests["jobs"][name]["strategy"]["matrix"]
        assert matrix == {"os": ["ubuntu-latest", "macos-latest"], "python": versions}


def test_forms_for_issues_ask_for_what_is_needed():
    yaml = pytest.importorskip("yaml")
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            continue
        assert form["name"] and form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert any(field.get("validations", {}).get("required") for field in fields)
        assert all(field["attributes"]["label"] for field in fields)
