"""What a run of the client leaves behind: every status is counted, every answer has its row."""

import csv
import io
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

SERVING = Path(__file__).parents[2] / "experiments" / "serving"
sys.path.append(str(SERVING))  # where a script finds what lies beside it

from answers import OK, REFUSED, UNANSWERED, UNREADABLE, Answer  # noqa: E402
from summary import AnswerTable, Summary  # noqa: E402

from keras_vit.export.image_bytes import STATUSES  # noqa: E402

pytestmark = pytest.mark.tensorflow


def lines(summary: Summary, seconds: float, asked: int) -> dict[str, str]:
    return {line[:22].strip(): line[22:].strip() for line in summary.lines(seconds, asked)}


def test_every_status_is_counted_by_itself():
    # those of the server's model, and those of the client
    statuses = [*STATUSES, UNREADABLE, REFUSED, UNANSWERED]
    assert statuses[0] == OK and len(set(statuses)) == 8
    summary = Summary()
    for count, status in enumerate(statuses, start=1):
        summary.statuses[status] += count
    summary.retries = 1234
    found = lines(summary, 2.0, 40)
    expected = {status: str(count) for count, status in enumerate(statuses, start=1)}
    assert {name: found[name] for name in expected} == expected
    assert summary.num_images == 36 and (found["images"], found["not sent"]) == ("40", "4")
    assert (found["retries"], found["requests answered"], found["seconds"], found["images/s"]) == (
        *("1,234", "0", "2.0", "0.5"),
    )
    assert not summary.all_ok


@pytest.mark.parametrize("bad", [*STATUSES[1:], UNREADABLE, REFUSED, UNANSWERED])
def test_one_that_was_not_answered_is_not_all_ok(bad: str):
    summary = Summary()
    summary.statuses[OK] = 99
    assert summary.all_ok and "not sent" not in lines(summary, 1.0, 99)
    summary.statuses[bad] += 1
    assert not summary.all_ok


def test_times_are_percentiles_in_milliseconds_and_waits_only_where_there_were_retries():
    summary = Summary(latencies_s=[number / 1000 for number in range(101)], waits_s=[2.0] * 101)
    summary.statuses[OK] = 101
    found = lines(summary, 0.0, 101)
    assert [found[f"latency p{part}, ms"] for part in (50, 95, 99)] == ["50.0", "95.0", "99.0"]
    assert not any(name.startswith("with retries") for name in found)
    summary.retries = 1
    assert lines(summary, 1.0, 101)["with retries p99, ms"] == "2000.0"
    assert lines(Summary(), 1.0, 0)["latency p50, ms"] == "-"


def test_a_row_has_the_classes_best_first_or_stays_empty(tmp_path: Path):
    file = io.StringIO(newline="")
    table = AnswerTable(file, root=tmp_path, num_classes=2)
    table.add(tmp_path / "a" / "1.jpg", Answer(OK, ("cat", "dog"), (0.75, 0.25), (3, 5)))
    table.add(tmp_path / "2.jpg", Answer("damaged", ("cat", "dog"), (0.0, 0.0), (-1, -1)))
    table.add(
        tmp_path / os.fsdecode(b"na\xefve.jpg"), Answer(REFUSED, reason="NOT_FOUND: no model")
    )
    header, *rows = csv.reader(io.StringIO(file.getvalue()))
    assert header == [
        "file",
        "status",
        "reason",
        "label_1",
        "score_1",
        "class_id_1",
        "label_2",
        "score_2",
        "class_id_2",
    ]
    assert rows == [
        ["a/1.jpg", "ok", "", "cat", "0.75", "3", "dog", "0.25", "5"],
        ["2.jpg", "damaged", "", *[""] * 6],
        ["na\\udcefve.jpg", "refused", "NOT_FOUND: no model", *[""] * 6],
    ]
