"""`experiments/benchmark.py`, run as its users run it, on the smallest model and its first step."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "benchmark.py"
pytestmark = pytest.mark.tensorflow


def _run(output: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), f"--output={output}", "--models=ViT_Ti16", "--tasks=inference"]
    command += ["--precisions=float32", "--batch_sizes=1", "--repeats=2", "--seconds=0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def _rows(output: Path) -> dict[str, dict[str, str]]:
    with (output / "benchmark.csv").open(newline="") as lines:
        return {row["rival"]: row for row in csv.DictReader(lines)}


@pytest.mark.slow
def test_ours_is_measured_an_absent_rival_is_named_and_a_second_run_measures_nothing_again(tmp_path):
    if importlib.util.find_spec("vit_keras") is not None:
        pytest.skip("vit-keras is installed here, and this test is about its absence.")
    done = _run(tmp_path, "--rivals=keras_vit,vit-keras")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = _rows(tmp_path)
    assert "vit_keras" in rows["vit-keras"]["absent"]
    assert rows["vit-keras"]["images_per_s"] == ""
    ours = rows["keras_vit"]
    assert float(ours["images_per_s"]) > 0
    assert int(ours["turns"]) == 2
    assert float(ours["gflop_per_image"]) == pytest.approx(2.51, abs=0.05)  # published: 1.26 GMACs
    # A share of the limit above 1 would say that the limit, or the FLOPs, are wrong.
    share = float(ours["images_per_s"]) * float(ours["gflop_per_image"]) / float(ours["limit_gflop_per_s"])
    assert 0.01 < share < 1
    assert "No module named 'vit_keras'" in (tmp_path / "benchmark.md").read_text()
    again = _run(tmp_path, "--rivals=keras_vit,vit-keras")
    assert again.returncode == 0, again.stderr[-2000:]
    assert _rows(tmp_path) == rows


def test_a_mistyped_rival_or_model_is_refused_with_the_names_that_there_are(tmp_path):
    done = _run(tmp_path, "--rivals=tim")
    assert done.returncode != 0
    assert "tim" in done.stderr and "timm compiled" in done.stderr
    done = _run(tmp_path, "--models=ViT_B17")
    assert done.returncode != 0
    assert "ViT_B17" in done.stderr and "ViT_B16" in done.stderr
