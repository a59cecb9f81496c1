"""The page says what was measured, and the picture shows it."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit.train import report
from keras_vit.train.logs import MetricsLog
from keras_vit.train.report import write_report

pytest.importorskip("matplotlib")

WORDS = {"title": "ViT-Ti/16 on digits", "facts": {"Keras": "3.15.1"}, "command": "python train.py"}
TRAIN_BLUE, VALIDATION_ORANGE = (0, 114, 178), (213, 94, 0)


def page_of(workdir: Path, rows: dict[int, dict[str, float]], **words) -> str:
    with MetricsLog(workdir, resume_step=0) as log:
        for step, metrics in rows.items():
            log.write(step, metrics)
    path = write_report(workdir, **{**WORDS, **words})
    assert path == workdir / "report.md"
    return path.read_text(encoding="utf-8")


def pixels_of(workdir: Path) -> np.ndarray:
    with Image.open(workdir / "learning_curve.png") as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def count(pixels: np.ndarray, color: tuple[int, int, int]) -> int:
    return int((np.abs(pixels - color).max(axis=-1) < 8).sum())


def curve(steps: int = 200) -> dict[int, dict[str, float]]:
    """A run as it would be: noisy in training, measured on held-out images at every twentieth
    row.
    """
    random = np.random.default_rng(0)
    rows: dict[int, dict[str, float]] = {}
    for step in range(10, 10 * steps + 1, 10):
        loss = 0.3 + 2 * math.exp(-step / 400)
        rows[step] = {
            "train/loss": loss + random.normal(0, 0.1),
            "train/learning_rate": 1e-3 * math.exp(-step / 900),
        }
        rows[step] |= {"train/accuracy": 1 - loss / 2.5}
        if step % 200 == 0:
            rows[step] |= {"validation/loss": loss + 0.2, "validation/accuracy": 0.9 - loss / 2.5}
    return rows


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("whole_run")
    page_of(
        workdir,
        curve(),
        facts={"Keras": "3.15.1", "devices": "2 CPUs"},
        command="python a.py \\\n  --b",
    )
    return workdir


def test_the_page_has_the_title_the_command_the_facts_and_the_picture(whole_run: Path):
    page = (whole_run / "report.md").read_text()
    assert page.startswith("# ViT-Ti/16 on digits\n\n```sh\npython a.py \\\n  --b\n```\n")
    assert "| fact | value |\n| --- | --- |\n| Keras | 3.15.1 |\n| devices | 2 CPUs |\n" in page
    assert "](learning_curve.png)" in page and "](metrics.csv)" in page
    for name in ("learning_curve.png", "metrics.csv", "tensorboard"):
        assert (whole_run / name).exists()


def test_the_results_are_the_last_and_the_best_of_each_metric(tmp_path: Path):
    rows = {
        10: {
            "train/loss": 2.5,
            "validation/loss": 2.0,
            "validation/accuracy": 0.25,
            "real/top1": 0.5,
        },
        1020: {
            "train/loss": 0.123456,
            "validation/loss": 1.0,
            "validation/accuracy": 0.75,
            "real/top1": 0.5,
        },
        2030: {
            "train/loss": 0.5,
            "validation/loss": 1.5,
            "validation/accuracy": 0.70125,
            "calibration/error": 0.03,
        },
    }
    page = page_of(tmp_path, rows)
    assert "| metric | last | at step | best | at step |" in page
    # the best of the training batches would be luck
    assert "| train/loss | 0.5 | 2,030 |  |  |" in page
    assert "| validation/loss | 1.5 | 2,030 | 1 | 1,020 |" in page
    assert "| validation/accuracy | 70.12% | 2,030 | 75.00% | 1,020 |" in page
    assert "| real/top1 | 50.00% | 1,020 | 50.00% | 10 |" in page
    assert "| calibration/error | 0.03 | 2,030 | 0.03 | 2,030 |" in page


@pytest.mark.parametrize("kind", report._BETTER)
def test_every_kind_knows_its_better_direction(kind):
    expected = {"loss": 20, "error": 20, "accuracy": 30, "top1": 30, "top5": 30}[kind]
    assert (
        report._find_best(f"validation/{kind}", [(10, 0.5), (20, 0.25), (30, 0.75)])[0] == expected
    )


def test_the_speed_is_of_the_whole_run(tmp_path: Path):
    speeds, waits, memory = (3.0, 1000.0, 1100.0), (1.0, 0.0, 0.0), (1.0, 2.5, 2.0)
    rows = {
        step: {"train/images_per_second": speed, "train/input_bound": wait, "train/memory_gb": most}
        for step, speed, wait, most in zip((1, 2, 3), speeds, waits, memory, strict=True)
    }
    page = page_of(tmp_path, rows)
    # the first, which compiles, does not count as the mean's
    assert "| images per second, median | 1,000.0 |" in page
    assert "| share of the time spent waiting for images, mean | 33.3% |" in page
    assert "| memory in GB, maximum | 2.50 |" in page
    assert "learning_curve.png" not in page and not (tmp_path / "learning_curve.png").exists()


def test_the_picture_shows_both_curves(whole_run: Path):
    pixels = pixels_of(whole_run)
    assert pixels.shape[1] == 1350 and pixels.shape[0] > 1000
    assert count(pixels, TRAIN_BLUE) > 2000 and count(pixels, VALIDATION_ORANGE) > 2000


def test_without_validation_there_is_one_curve(tmp_path: Path):
    rows = {
        step: {k: v for k, v in row.items() if k.startswith("train/")}
        for step, row in curve().items()
    }
    page_of(tmp_path, rows)
    pixels = pixels_of(tmp_path)
    assert count(pixels, TRAIN_BLUE) > 2000 and count(pixels, VALIDATION_ORANGE) == 0


def test_one_row_is_one_visible_point_in_each_panel(tmp_path: Path):
    page = page_of(
        tmp_path, {1: {"train/loss": 2.0, "train/accuracy": 0.5, "train/learning_rate": 0.0}}
    )
    assert "| train/loss | 2 | 1 |  |  |" in page
    pixels = pixels_of(tmp_path)
    in_panels = [count(part[:, -200:], TRAIN_BLUE) for part in np.split(pixels, [520, 940])]
    assert min(in_panels) > 20


def test_a_panel_without_a_metric_is_left_out(tmp_path: Path, whole_run: Path):
    page_of(tmp_path, {step: {"train/loss": row["train/loss"]} for step, row in curve().items()})
    assert pixels_of(tmp_path).shape[0] < 0.6 * pixels_of(whole_run).shape[0]


@pytest.mark.parametrize(("broken", "steps"), [(math.nan, 200), (math.inf, 20), (-math.inf, 200)])
def test_what_is_not_finite_is_marked_and_never_best(tmp_path: Path, broken, steps):
    """In the middle of a long run, and as the last row of a short one."""
    rows = curve(steps)
    for step in (100, 200):
        rows[step] |= {"train/loss": broken, "validation/loss": broken}
    rows[150]["validation/loss"] = 1.25
    page = page_of(tmp_path, rows)
    [line] = [line for line in page.splitlines() if line.startswith("| validation/loss")]
    assert (f" {broken:.4g} |" in line) == (steps == 20)
    assert line.endswith("| 1.25 | 150 |") == (steps == 20)
    assert (
        count(pixels_of(tmp_path), (0, 0, 0)) > 500 and count(pixels_of(tmp_path), TRAIN_BLUE) > 500
    )


def test_a_run_that_only_diverged_has_a_page_too(tmp_path: Path):
    page = page_of(tmp_path, {1: {"train/loss": math.nan, "validation/accuracy": math.nan}})
    assert (
        "| train/loss | nan | 1 |  |  |" in page
        and "| validation/accuracy | nan | 1 |  |  |" in page
    )
    assert pixels_of(tmp_path).std() > 1


def test_a_run_without_a_row_says_so(tmp_path: Path):
    page = page_of(tmp_path, {}, facts={})
    assert "There are no metrics yet." in page and "fact" not in page
    assert not (tmp_path / "learning_curve.png").exists()


def test_words_cannot_break_the_page_or_the_picture(tmp_path: Path):
    page = page_of(tmp_path, curve(20), title="5 $ |x|\nper $\\run_1", facts={"a|b": "c\n| d |"})
    assert "# 5 $ \\|x\\| per $\\run_1\n" in page
    assert "| a\\|b | c \\| d \\| |" in page
    assert count(pixels_of(tmp_path), TRAIN_BLUE) > 500


def test_a_new_report_takes_the_place_of_the_old_and_leaves_nothing_else(tmp_path: Path):
    page_of(tmp_path, {1: {"train/loss": 2.0}}, title="First")
    page = page_of(tmp_path, {1: {"train/loss": 2.0}}, title="Second")
    assert "First" not in page
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"metrics.csv", "tensorboard", "learning_curve.png", "report.md"}


def test_matplotlib_is_asked_for_by_name_before_anything_is_written(tmp_path: Path, monkeypatch):
    MetricsLog(tmp_path, resume_step=0).close()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="needs matplotlib: pip install .*matplotlib"):
        write_report(tmp_path, **WORDS)
    assert not (tmp_path / "report.md").exists()


def test_a_folder_without_metrics_has_no_report(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="metrics.csv"):
        write_report(tmp_path, **WORDS)
