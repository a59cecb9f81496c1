"""The client as a user starts it, against servers that stand in for TensorFlow Serving and run the
exported model.
"""

import http.server
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from free_ports import free_ports
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")
pytest.importorskip("grpc")
pytest.importorskip("requests")
pytest.importorskip("tensorflow_serving")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.tensorflow

SERVING = Path(__file__).parents[2] / "experiments" / "serving"
BOTH = pytest.mark.parametrize("transport", ["grpc", "rest"])
CONCURRENT, BATCH = 32, 4
BAD = {"bad.jpg": (b"\xff\xd8\xff\xe0 and no more", "damaged"), "empty.png": (b"", "empty")}
BAD |= {"moving.jpg": (b"GIF89a", "unreadable")}


def photograph(number: int) -> Image.Image:
    draws = np.random.default_rng(number)
    return Image.fromarray(draws.integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60))


def save_photographs(folder: Path, numbers: Iterable[int], **options) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05}.jpg" for number in numbers]
    for path in paths:
        photograph(int(path.stem)).save(path, **options)
    return paths


def linked(folder: Path, originals: list[Path], count: int) -> None:
    """A large folder that takes no room: names for files that are there already."""
    folder.mkdir()
    for number in range(count):
        os.link(
            originals[number % len(originals)],
            folder / f"{number:06}_{originals[number % len(originals)].name}",
        )


def reported(process: subprocess.CompletedProcess) -> dict[str, float]:
    """The table at the end."""
    found = re.findall(r"^(\S.*?) {2,}([\d,.]+)$", process.stdout, re.MULTILINE)
    return {name: float(value.replace(",", "")) for name, value in found}


def is_equal(row: Mapping[str, str], expected: Mapping[str, np.ndarray]) -> bool:
    """Whether a row of answers is what the model itself gives."""
    places = range(1, len(expected["labels"]) + 1)
    labels = [row[f"label_{place}"] for place in places]
    ids = [int(row[f"class_id_{place}"]) for place in places]
    scores = [float(row[f"score_{place}"]) for place in places]
    same = (
        labels == [label.decode() for label in expected["labels"]]
        and ids == expected["class_ids"].tolist()
    )
    return row["status"] == "ok" and same and np.allclose(scores, expected["scores"], atol=1e-5)


@BOTH
def test_each_photograph_has_the_answer_of_a_direct_call(
    transport, server, client, direct, rows, tmp_path
):
    paths = save_photographs(tmp_path / "images" / "b", range(21)) + save_photographs(
        tmp_path / "images", [99]
    )
    photograph(50).save(tmp_path / "images" / "a LAST.PNG")
    result = client(
        tmp_path / "images",
        server.address(transport),
        "--batch_size=4",
        f"--output={tmp_path / 'answers.csv'}",
    )
    assert result.returncode == 0, result.stderr
    answers = rows(tmp_path / "answers.csv")
    expected = sorted([*paths, tmp_path / "images" / "a LAST.PNG"])
    assert [row["file"] for row in answers] == [
        str(path.relative_to(tmp_path / "images")) for path in expected
    ]
    assert all(
        is_equal(row, direct(path.read_bytes()))
        for row, path in zip(answers, expected, strict=True)
    )
    assert len({row["score_1"] for row in answers}) == len(paths) + 1  # they do differ
    table = reported(result)
    assert (table["images"], table["ok"], table["requests answered"], table["retries"]) == (
        23,
        23,
        6,
        0,
    )
    assert 0 < table["latency p50, ms"] <= table["latency p95, ms"] <= table["latency p99, ms"]


@BOTH
def test_one_bad_image_costs_only_itself(transport, server, client, direct, rows, tmp_path):
    images = tmp_path / "images"
    good = save_photographs(images, range(5))
    for name, (content, _) in BAD.items():
        (images / name).write_bytes(content)
    (images / "gone.jpg").symlink_to(tmp_path / "nowhere")
    result = client(
        images, server.address(transport), "--batch_size=16", f"--output={tmp_path / 'answers.csv'}"
    )
    assert result.returncode == 1
    statuses = {name: status for name, (_, status) in BAD.items()}
    assert "(1: gone.jpg)" in result.stdout + result.stderr  # a link that leads nowhere is left out
    told = dict(re.findall(rf"^{re.escape(str(images))}/(\S+): (\w+)", result.stdout, re.MULTILINE))
    assert told == statuses
    answers = {row["file"]: row for row in rows(tmp_path / "answers.csv")}
    assert {name: answers[name]["status"] for name in statuses} == statuses
    assert {answers[name]["label_1"] for name in statuses} == {""}
    assert all(is_equal(answers[path.name], direct(path.read_bytes())) for path in good)
    assert reported(result)["damaged"] == 1


@BOTH
def test_a_busy_server_is_asked_again_until_it_answers(transport, server, client, tmp_path):
    save_photographs(tmp_path, range(100, 103))
    photograph(103).save(tmp_path / "busy.jpg", comment=f"stand-in:busy-once {transport}".encode())
    result = client(tmp_path, server.address(transport), "--batch_size=1")
    assert result.returncode == 0, result.stdout
    assert reported(result)["retries"] == 1
    assert reported(result)["with retries p99, ms"] > reported(result)["latency p50, ms"]


@BOTH
def test_a_request_beyond_its_deadline_is_tried_again_and_then_reported(
    transport, server, client, rows, tmp_path
):
    images = tmp_path / "images"
    save_photographs(images, range(200, 204))
    photograph(204).save(images / "once.jpg", comment=f"stand-in:slow-once {transport}".encode())
    photograph(205).save(images / "ever.jpg", comment=b"stand-in:slow")
    # the first request of a server takes longest
    save_photographs(tmp_path / "first", range(199, 200))
    assert client(tmp_path / "first", server.address(transport)).returncode == 0
    options = [
        "--batch_size=1",
        "--deadline_s=2",
        "--retries=1",
        f"--output={tmp_path / 'answers.csv'}",
    ]
    result = client(images, server.address(transport), *options)
    assert result.returncode == 1
    statuses = {row["file"]: row["status"] for row in rows(tmp_path / "answers.csv")}
    assert [name for name, status in statuses.items() if status != "ok"] == ["ever.jpg"], (
        result.stdout
    )
    assert re.search(
        r"ever\.jpg: unanswered \(.*(DEADLINE_EXCEEDED|Timeout).*tried 2 times", result.stdout
    )


@BOTH
def test_what_the_server_refuses_is_told_once_and_nothing_is_sent(
    transport, server, client, tmp_path
):
    save_photographs(tmp_path, range(3))
    asked = json.loads(server.get("/stand_in/statistics"))["requests"]
    output = tmp_path / "answers.csv"
    result = client(tmp_path, server.address(transport), "--model=unknown", f"--output={output}")
    assert (
        result.returncode == 1
        and "Servable not found" in result.stderr
        and "unknown" in result.stderr
    )
    result = client(tmp_path, server.address(transport), "--label=canary")
    assert result.returncode == 1 and "Unrecognized servable version label: canary" in result.stderr
    result = client(tmp_path, server.address(transport), "--model=numbers")
    assert result.returncode == 1 and 'signature key "serving_default" not found' in result.stderr
    assert json.loads(server.get("/stand_in/statistics"))["requests"] == asked
    assert not output.exists() and "Traceback" not in result.stderr


class OneWrong(http.server.BaseHTTPRequestHandler):
    """Answers as a model would, but for the second request: its scores are words."""

    protocol_version = "HTTP/1.1"
    count = itertools.count()

    def do_POST(self):  # noqa: N802
        """Answers."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = len(asked["inputs"]["image_bytes"])
        score = "high" if next(self.count) == 1 else 1.0
        outputs = {"labels": [["a"]] * rows, "scores": [[score]] * rows, "class_ids": [[0]] * rows}
        body = json.dumps({"outputs": outputs | {"status": ["ok"] * rows}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Says nothing."""


def test_an_answer_of_another_form_costs_its_own_photographs(client, rows, tmp_path):
    save_photographs(tmp_path / "images", range(6))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneWrong) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--batch_size=2", "--concurrency=1", f"--output={tmp_path / 'answers.csv'}"]
        result = client(tmp_path / "images", f"http://127.0.0.1:{server.server_port}", *options)
        server.shutdown()
    assert result.returncode == 1 and result.stderr == ""
    assert [row["status"] for row in rows(tmp_path / "answers.csv")] == ["refused"] * 2 + ["ok"] * 4
    assert "A row is invalid" in result.stdout


@BOTH
def test_a_label_stands_for_a_version(transport, server, client, tmp_path):
    save_photographs(tmp_path, range(3))
    result = client(tmp_path, server.address(transport), "--label=stable")
    assert result.returncode == 0, result.stderr


@BOTH
def test_a_server_that_is_not_there_is_told_in_a_line(transport, client, tmp_path):
    save_photographs(tmp_path, range(3))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    result = client(tmp_path, address if transport == "grpc" else f"http://{address}")
    assert result.returncode == 1
    assert result.stderr.startswith("No answer from ") and address in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_without_photographs_is_an_error(client, tmp_path):
    result = client(tmp_path, "127.0.0.1:1")
    assert result.returncode == 1 and "No photos (.jpg, " in result.stderr


@BOTH
def test_a_photograph_that_lies_on_its_side_is_turned(
    transport, server, client, direct, rows, tmp_path
):
    images = tmp_path / "images"
    images.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees clockwise to see it upright
    lying = photograph(7).transpose(Image.Transpose.ROTATE_90)
    lying.save(images / "phone.png", exif=exif)
    photograph(7).save(tmp_path / "upright.png")
    lying.save(images / "phone.tiff", exif=exif)
    (images / "notes.txt").touch()
    result = client(images, server.address(transport), f"--output={tmp_path / 'answers.csv'}")
    assert result.returncode == 0, result.stderr
    assert "Left out, 1: not a photo by its suffix, .txt (1: notes.txt)." in result.stdout
    expected = direct((tmp_path / "upright.png").read_bytes())
    assert [is_equal(row, expected) for row in rows(tmp_path / "answers.csv")] == [True, True]


@BOTH
def test_an_interrupted_client_ends_soon_with_its_report(
    transport, server, start_client, rows, tmp_path
):
    images, output = tmp_path / "images", tmp_path / "answers.csv"
    linked(images, save_photographs(tmp_path / "originals", range(300, 320)), 20_000)
    # Threads that are cut off in the middle of a request leave their sockets to the system.
    options = [f"--output={output}", "--batch_size=1"]
    process = start_client(
        images, server.address(transport), *options, warnings="error,ignore::ResourceWarning"
    )
    wait_for(lambda: output.exists() and output.stat().st_size > 30_000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HUNG_SECONDS)  # all 20,000 would take minutes
    assert process.returncode == 130 and err == ""
    answered = len(rows(output))
    table = reported(subprocess.CompletedProcess([], 130, out, err))
    assert 0 < answered < 20_000
    assert table["ok"] + table["not sent"] == 20_000
    # the interrupt may come between the table and the count
    assert answered - 1 <= table["ok"] <= answered


def test_the_health_check_of_the_composition_tells_whether_the_model_is_there(server):
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((SERVING / "compose.yaml").read_text(encoding="utf-8"))
    script = compose["services"]["cpu"]["healthcheck"]["test"][-1].replace(
        "8501", str(server.rest_port)
    )
    assert (
        subprocess.run(
            ["bash", "-c", script.replace("vit_b16", "tiny")], timeout=HUNG_SECONDS
        ).returncode
        == 0
    )
    assert subprocess.run(["bash", "-c", script], timeout=HUNG_SECONDS).returncode != 0
    away = script.replace(str(server.rest_port), str(free_ports(1)[0]))
    assert (
        subprocess.run(
            ["bash", "-c", away], stderr=subprocess.DEVNULL, timeout=HUNG_SECONDS
        ).returncode
        != 0
    )


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("This never came true.")


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "least_seconds"), [("rest", 6), ("grpc", 4)])
def test_nothing_is_lost_of_32_requests_at_once(
    transport, least_seconds, own_server, client, direct, rows, tmp_path
):
    originals = save_photographs(tmp_path / "originals", range(400, 600))
    for name, (content, _) in BAD.items():
        originals.append(tmp_path / "originals" / name)
        originals[-1].write_bytes(content)
    expected = {path.name: direct(path.read_bytes()) for path in originals}
    options = [f"--concurrency={CONCURRENT}", f"--batch_size={BATCH}"]
    linked(tmp_path / "first", originals, 500)
    rate = reported(client(tmp_path / "first", own_server.address(transport), *options))["images/s"]
    seconds, retries = 0.0, 0.0
    for turn in itertools.count():  # once, unless the machine became faster
        images, output = tmp_path / f"images_{turn}", tmp_path / f"answers_{turn}.csv"
        linked(images, originals, int(rate * max(5, 1.1 * least_seconds - seconds)))
        result = client(images, own_server.address(transport), *options, f"--output={output}")
        answers = rows(output)
        assert [row["file"] for row in answers] == sorted(path.name for path in images.iterdir())
        check(answers, expected, result)
        seconds, retries = (
            seconds + reported(result)["seconds"],
            retries + reported(result)["retries"],
        )
        if seconds >= least_seconds:
            break
    at_once = json.loads(own_server.get("/stand_in/statistics"))["most_at_once"]
    # What was given up and sent again may still be computed, beside its successor.
    assert CONCURRENT * 3 // 4 <= at_once <= CONCURRENT + retries


@pytest.mark.slow
@BOTH
def test_a_killed_server_that_comes_back_costs_nothing(
    transport, own_server, start_client, direct, rows, tmp_path
):
    originals = save_photographs(tmp_path / "originals", range(600, 650))
    expected = {path.name: direct(path.read_bytes()) for path in originals}
    images, output = tmp_path / "images", tmp_path / "answers.csv"
    linked(images, originals, 1_000)
    options = [f"--concurrency={CONCURRENT}", "--batch_size=1", "--retries=100", "--total_s=300"]
    process = start_client(images, own_server.address(transport), *options, f"--output={output}")
    wait_for(lambda: output.exists() and output.stat().st_size > 20_000)
    own_server.kill()
    assert process.poll() is None
    own_server.start()
    out, err = process.communicate(timeout=HUNG_SECONDS)
    result = subprocess.CompletedProcess([], process.returncode, out, err)
    answers = rows(output)
    assert [row["file"] for row in answers] == sorted(path.name for path in images.iterdir())
    check(answers, expected, result)
    assert process.returncode == 0 and reported(result)["retries"] >= CONCURRENT


def check(
    answers: list[Mapping[str, str]],
    expected: Mapping[str, Mapping],
    result: subprocess.CompletedProcess,
) -> None:
    """Every photograph has one answer, that of a direct call; every bad one has its line."""
    good, bad = [], []
    for row in answers:
        (bad if row["file"].partition("_")[2] in BAD else good).append(row)
    wrong = [
        row["file"] for row in good if not is_equal(row, expected[row["file"].partition("_")[2]])
    ]
    assert wrong == []
    assert all(row["status"] == BAD[row["file"].partition("_")[2]][1] for row in bad)
    told = re.findall(r"/(\d{6}_\S+): (\w+)(?: \(.*\))?$", result.stdout, re.MULTILINE)
    assert sorted(told) == sorted((row["file"], row["status"]) for row in bad)
    table, counts = reported(result), Counter(row["status"] for row in answers)
    assert {name: table[name] for name in counts} == counts
    assert result.returncode == (1 if bad else 0) and result.stderr == ""
