"""The report on an export: what its files and the table for a terminal say. How the picture looks
is judged by eye.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keras_vit.export.report import draw_trade, text_table, write_report
from keras_vit.export.verdicts import Verdict

pytestmark = pytest.mark.tensorflow

FACTS = {
    "name": "int8.tflite",
    "size_bytes": 458_000,
    "num_images": 2000,
    "top1_agreement": 0.9825,
    "max_error": 0.4361,
    "mean_error": 0.05354,
    "latency_ms": 1.07,
    "accuracy": 0.6445,
}


def verdict(**facts) -> Verdict:
    return Verdict(**(FACTS | facts))


LARGE = verdict(
    name="float32.tflite", size_bytes=1_317_000, top1_agreement=1.0, max_error=0.0, latency_ms=0.58
)


def write(
    folder: Path, verdicts: list[Verdict], title: str = "A ViT", images_name: str = "CIFAR-10"
) -> str:
    write_report(folder, verdicts, title=title, images_name=images_name)
    return (folder / "report.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_file_and_says_how_it_was_measured(tmp_path: Path):
    page = write(tmp_path, [LARGE, verdict()])
    assert page.startswith("# A ViT\n")
    assert "| int8.tflite | 0.458 | 2,000 | 98.25% | 0.44 | 0.054 | 1.07 | 64.45% |" in page
    assert page.index("| float32.tflite | 1.32 | 2,000 | 100.00% | 0 |") < page.index(
        "| int8.tflite"
    )
    for words in (
        "the same 2,000 images: CIFAR-10",
        "One image is 0.05 percentage points",
        "median time for one image, on two threads",
    ):
        assert words in page


def test_the_numbers_in_the_csv_are_whole(tmp_path: Path):
    write(tmp_path, [LARGE, verdict(latency_ms=float("nan"), accuracy=None)])
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert {name: first[name] for name in FACTS if name != "name"} == {
        name: str(getattr(LARGE, name)) for name in FACTS if name != "name"
    }
    assert first["file"] == "float32.tflite" and second["file"] == "int8.tflite"
    assert (
        second["latency_ms"] == second["accuracy"] == "" and float(second["mean_error"]) == 0.05354
    )


def test_what_was_not_measured_is_not_spoken_of(tmp_path: Path):
    page = write(tmp_path, [verdict(accuracy=None, latency_ms=float("nan"))])
    assert "| int8.tflite | 0.458 | 2,000 | 98.25% | 0.44 | 0.054 | - |\n" in page
    assert "ccuracy" not in page and "Latency" not in page
    page = write(tmp_path, [verdict(accuracy=None), LARGE])
    assert "| 1.07 | - |\n" in page and "| 0.58 | 64.45% |\n" in page and "Latency" in page


def test_the_table_for_a_terminal_is_aligned():
    lines = text_table([LARGE, verdict(size_bytes=1_234_567_890)]).splitlines()
    assert [line.split()[0] for line in lines] == ["file", "float32.tflite", "int8.tflite"]
    assert len({len(line) for line in lines}) == 1
    assert "1,235   " in lines[2] and lines[2].endswith("64.45%")
    for column in (
        "size, MB",
        "images",
        "top-1 agreement",
        "max error",
        "mean error",
        "latency, ms",
        "accuracy",
    ):
        end = lines[0].index(column) + len(column)
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in lines)


def test_names_do_not_break_the_table(tmp_path: Path):
    page = write(tmp_path, [verdict(name="a|b\nc.tflite")], title="one\ntwo", images_name="x\ny")
    assert (
        page.startswith("# one two\n")
        and r"| a\|b c.tflite | 0.458 |" in page
        and "images: x y." in page
    )
    assert len(text_table([verdict(name="a\nb")]).splitlines()) == 2


def test_one_table_is_about_the_same_images(tmp_path: Path):
    for write_or_print in (text_table, lambda verdicts: write(tmp_path, verdicts)):
        with pytest.raises(
            ValueError, match=r"measured on the same images. Received: 0 verdicts, on \[\]"
        ):
            write_or_print([])
        with pytest.raises(ValueError, match=r"Received: 2 verdicts, on \[8, 2000\] images"):
            write_or_print([verdict(), verdict(num_images=8)])
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_there_is_no_picture_and_nothing_points_to_one(
    tmp_path: Path, monkeypatch
):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write(tmp_path, [verdict()])
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.md",
        "report.csv",
    } and "png" not in page


# ── the picture ──


@pytest.fixture
def pixels() -> Callable[[Path], np.ndarray]:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")

    def read(path: Path) -> np.ndarray:
        with image.open(path) as picture:
            return np.asarray(picture.convert("RGB")).astype(int)

    return read


BLUE, RED = (0, 114, 178), (213, 94, 0)  # of the first and of the second file


def middles(found: np.ndarray, color: tuple[int, int, int]) -> list[tuple[float, float]]:
    """(x, y) of the mark of a color, in the left and in the right half of a picture."""
    rows, columns = np.nonzero((found == color).all(axis=-1))
    half = found.shape[1] / 2
    sides = (columns < half, columns >= half)
    return [(columns[side].mean(), rows[side].mean()) for side in sides if side.any()]


def test_the_picture_shows_what_a_smaller_file_costs(tmp_path: Path, pixels):
    assert "report.png" in write(tmp_path, [LARGE, verdict()])
    found = pixels(tmp_path / "report.png")
    (large_x, large_y), (large_time_x, large_time_y) = middles(found, BLUE)
    (small_x, small_y), (small_time_x, small_time_y) = middles(found, RED)
    assert small_x < large_x and small_time_x < large_time_x  # smaller
    assert small_y > large_y  # agrees less often: lower
    assert small_time_y < large_time_y  # takes longer: higher


def test_files_that_were_not_timed_have_one_panel(tmp_path: Path, pixels):
    untimed = [
        verdict(latency_ms=float("nan")),
        verdict(name="other", size_bytes=9_000, latency_ms=float("nan")),
    ]
    draw_trade(tmp_path / "one.png", untimed, "title")
    draw_trade(tmp_path / "two.png", [untimed[0], LARGE], "title")
    one, two = pixels(tmp_path / "one.png"), pixels(tmp_path / "two.png")
    assert one.shape[1] < 0.6 * two.shape[1]
    assert len(middles(two, RED)) == 2 and len(middles(two, BLUE)) == 1


def test_odd_names_are_drawn_without_a_warning(tmp_path: Path, pixels):
    names = ["猫.tflite", "a_{$x$}^2", "x" * 200, "line\nbreak"]
    draw_trade(
        tmp_path / "odd.png",
        [verdict(name=name) for name in names],
        "$\\frac{1}$ 猫 " + "long " * 60,
    )
    assert pixels(tmp_path / "odd.png").shape == (690, 1650, 3)
