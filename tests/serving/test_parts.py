"""The parts of the client that need no server: messages, patience, order, photographs."""

import contextlib
import http.server
import json
import os
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import warm
from turned_photos import KINDS, photo
from warm import HUNG_SECONDS

pytest.importorskip("grpc")
pytest.importorskip("requests")
pytest.importorskip("tensorflow_serving")
tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow

SERVING = Path(__file__).parents[2] / "experiments" / "serving"
sys.path.append(str(SERVING))  # where a script finds what lies beside it

import deadlines  # noqa: E402
import in_order  # noqa: E402
import patience  # noqa: E402
import photographs  # noqa: E402
import summary  # noqa: E402
import tensor_protos  # noqa: E402
import transports  # noqa: E402
from answers import Answer, Passing, Refused, from_columns  # noqa: E402

from keras_vit.photos import read_pixels  # noqa: E402

FINE = [Answer("ok")]


class Line:
    """A way to a server that fails as it is told."""

    def __init__(self, *outcomes):
        self.outcomes, self.timeouts = list(outcomes), []

    def ask(self, files, timeout_s):
        self.timeouts.append(timeout_s)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self):
        pass


class Waits(threading.Event):
    """Notes how long it should have waited, and does not."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def wait(self, timeout=None):
        self.seconds.append(timeout)
        return self.is_set()


def asked(
    line: Line, waits: threading.Event, *, retries: int = 20, total_s: float = 1000.0
) -> patience.Reply:
    return patience.ask(
        line, [b""], patience.Patience(deadline_s=7.0, retries=retries, total_s=total_s), waits
    )


def test_what_may_go_well_the_next_time_is_tried_again():
    line, waits = Line(Passing("away"), Passing("busy"), FINE), Waits()
    reply = asked(line, waits)
    assert (reply.answers, reply.retries, len(waits.seconds)) == (FINE, 2, 2)
    assert line.timeouts == [7.0] * 3


def test_what_is_refused_is_not_tried_again():
    line = Line(Refused("unknown model"), FINE)
    with pytest.raises(Refused, match="unknown model"):
        asked(line, Waits())
    assert line.outcomes == [FINE]


def test_retries_have_an_end_and_the_last_failure_is_told():
    line = Line(*[Passing(f"number {number}") for number in range(9)])
    with pytest.raises(patience.GaveUp, match="number 3.*tried 4 times") as caught:
        asked(line, Waits(), retries=3)
    assert (caught.value.retries, len(line.outcomes)) == (3, 5)


def test_no_try_and_no_wait_goes_beyond_the_total(monkeypatch):
    """On a clock that only the waiting and the tries advance."""
    now, waits, tries = [0.0], Waits(), []

    def wait(timeout=None):
        now[0] += timeout

    def ask(files, timeout_s):
        tries.append((now[0], timeout_s))
        now[0] += min(timeout_s, 0.01)
        raise Passing("away")

    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(waits, "wait", wait)
    with pytest.raises(patience.GaveUp):
        asked(SimpleNamespace(ask=ask), waits, retries=1000, total_s=0.5)
    assert now[0] <= 0.5 and len(tries) > 2
    assert all(start + timeout_s <= 0.5 + 1e-9 for start, timeout_s in tries)


def test_the_last_try_has_what_is_left_of_the_total(monkeypatch):
    clock = iter([0.0, 0.0, 5.0, 6.0, 9.0])  # start; begin and failure; begin and answer
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(patience, "wait_s", lambda *_: 1.0)
    line = Line(Passing("away"), FINE)
    reply = asked(line, Waits(), total_s=10.0)
    assert line.timeouts == [7.0, 4.0]
    assert (reply.latency_s, reply.waited_s) == (3.0, 9.0)


def test_waits_are_spread_from_zero_to_a_bound_that_doubles():
    lists = []
    for _ in range(300):
        waits = Waits()
        asked(Line(*[Passing("away")] * 8, FINE), waits)
        lists.append(waits.seconds)
    bounds = np.minimum(10.0, 0.2 * 2.0 ** np.arange(8))
    shares = np.array(lists) / bounds
    assert shares.min() >= 0 and shares.max() <= 1
    # 0.5 if uniform; deviation of the mean 0.017
    assert np.allclose(shares.mean(axis=0), 0.5, atol=0.1)
    assert (shares.std(axis=0) > 0.2).all()


def test_a_stop_ends_the_waiting():
    waits = Waits()
    waits.set()
    with pytest.raises(patience.Stopped):
        asked(Line(Passing("away"), FINE), waits)


def test_results_come_in_order_and_no_more_jobs_run_than_were_agreed():
    lock, counts, taken = threading.Lock(), {"now": 0, "most": 0}, []

    def jobs():
        for number in range(1000):
            taken.append(number)
            yield number

    def work(number):
        with lock:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        time.sleep(0.02 if number % 50 == 0 else 0.0005)
        with lock:
            counts["now"] -= 1
        return number

    given = []
    for result in in_order.in_order(jobs(), work, concurrency=4):
        given.append(result)
        assert len(taken) - len(given) <= 4 * 16  # neither all jobs nor all results are kept
    assert given == list(range(1000)) and counts["most"] == 4


def test_what_goes_wrong_in_a_job_is_raised_where_its_result_is_wanted():
    results = in_order.in_order(range(5), lambda number: 1 // (2 - number), concurrency=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_request_is_what_tensorflow_would_write():
    files = [b"\xff\xd8\x00", b"", b"x" * 100_000]
    request = tensor_protos.predict_request("vit", "stable", files)
    spec = request.model_spec
    assert (spec.name, spec.signature_name, spec.version_label) == (
        "vit",
        "serving_default",
        "stable",
    )
    assert request.inputs["image_bytes"] == tf.make_tensor_proto(files, tf.string)


@pytest.mark.parametrize("kind", ["float32", "int32", "int64"])
def test_numbers_are_read_in_both_forms_that_servers_write(kind):
    array = np.arange(-3, 3).reshape(2, 3).astype(kind) * (0.1 if kind == "float32" else 1)
    array = array.astype(kind)
    as_bytes = tf.make_tensor_proto(array)
    assert as_bytes.tensor_content and tensor_protos.to_list(as_bytes) == array.tolist()
    one_by_one = tensor_protos.TensorProto(dtype=as_bytes.dtype, tensor_shape=as_bytes.tensor_shape)
    {"float32": one_by_one.float_val, "int32": one_by_one.int_val, "int64": one_by_one.int64_val}[
        kind
    ].extend(array.ravel().tolist())
    assert tensor_protos.to_list(one_by_one) == array.tolist()


def test_strings_are_read():
    assert tensor_protos.to_list(tf.make_tensor_proto([["Bär", ""], ["x", "y"]])) == [
        ["Bär", ""],
        ["x", "y"],
    ]


def test_tensors_that_are_incomplete_or_of_another_type_are_errors():
    proto = tf.make_tensor_proto(np.zeros((2, 3), np.float32))
    proto.tensor_shape.dim[0].size = 5
    with pytest.raises(ValueError, match=r"shape \[5, 3\] has 6 values"):
        tensor_protos.to_list(proto)
    with pytest.raises(ValueError, match="DT_BOOL"):
        tensor_protos.to_list(tf.make_tensor_proto([True]))


def test_outputs_and_rows_that_are_missing_are_refused():
    columns = {"labels": [["a"]], "scores": [[1.0]], "class_ids": [[0]], "status": ["ok"]}
    assert from_columns(columns, 1) == [Answer("ok", ("a",), (1.0,), (0,))]
    with pytest.raises(Refused, match="2 images were sent"):
        from_columns(columns, 2)
    with pytest.raises(
        Refused, match="returns features, status. Missing: labels, scores, class_ids"
    ):
        from_columns({"features": [[0.0]], "status": ["ok"]}, 1)


GOOD = {"labels": [["a", "b"]], "scores": [[0.75, 0.25]], "class_ids": [[0, 1]], "status": ["ok"]}


@pytest.mark.parametrize(
    "columns",
    [
        *(
            {**GOOD, name: value}
            for name in GOOD
            for value in (None, 5, "x", {}, [None], [5], [[None, None]], [[[], []]])
        ),
        {**GOOD, "labels": [["a"]]},
        {**GOOD, "scores": [[0.75, float("nan")]]},
        {**GOOD, "scores": [["0.75", "0.25"]]},
        {**GOOD, "class_ids": [[0.5, 1]]},
        {**GOOD, "class_ids": [[True, False]]},
        {**GOOD, "status": [["ok"]]},
    ],
)
def test_outputs_of_another_form_are_refused(columns: dict):
    with pytest.raises(Refused):
        from_columns(columns, 1)


class Slow(socketserver.StreamRequestHandler):
    """Sends an answer byte by byte, and would be done after a minute."""

    def handle(self):
        body = json.dumps({"outputs": GOOD}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        if self.server.says_length:
            head += b"Content-Length: %d\r\n" % len(body)
        content = head + b"\r\n" + body
        at_once = content[: -len(body)] if self.server.quick_head else b""
        rest = content[len(at_once) :]
        with contextlib.suppress(OSError):  # the other side may hang up, as it should
            self.wfile.write(at_once)
            for place in range(len(rest)):
                time.sleep(60 / len(rest))
                self.wfile.write(rest[place : place + 1])
            self.server.was_patient.append(True)


@pytest.mark.parametrize("quick_head", [True, False])
@pytest.mark.parametrize("says_length", [True, False])
def test_a_server_that_sends_slowly_is_left_at_the_deadline(quick_head: bool, says_length: bool):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as server:
        server.quick_head, server.says_length, server.was_patient = quick_head, says_length, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        transport = transports.RestTransport(
            f"http://127.0.0.1:{server.server_address[1]}", model="m"
        )
        for _ in range(2):  # the second on a connection of its own
            with pytest.raises(Passing, match="Timeout: no complete answer within 0.3 s"):
                transport.ask([b""], 0.3)
        server.shutdown()
        assert not server.was_patient


class Canned(http.server.BaseHTTPRequestHandler):
    """Gives one answer after the other, on the same connection."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = self.server.answers.pop(0)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_answers_of_another_form_are_refused_one_by_one_and_the_connection_stays_of_use():
    strange = [
        b"",
        b"null",
        b"5",
        b"[]",
        b'"x"',
        b"{}",
        b'{"outputs": 5}',
        b'{"outputs": {}}',
        b"[" * 100_000,
        b"\xff",
    ]
    strange += [
        json.dumps({"outputs": {**GOOD, "scores": 5}}).encode(),
        b'{"outputs": {"labels": [NaN]}}',
    ]
    good = json.dumps({"outputs": GOOD}).encode()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        server.answers = [
            *((200, body) for body in strange),
            (400, b'{"error": ["two\\nlines"]}'),
            (200, good),
        ]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        transport = transports.RestTransport(f"http://127.0.0.1:{server.server_port}", model="m")
        for _ in range(len(strange) + 1):
            with pytest.raises(Refused) as raised:
                transport.ask([b""], 60)
            assert len(str(raised.value).splitlines()) == 1 and len(str(raised.value)) < 400
        assert transport.ask([b""], 60) == [Answer("ok", ("a", "b"), (0.75, 0.25), (0, 1))]
        server.shutdown()


BATCH = f"""
import json, sys
sys.path.append({str(SERVING)!r})
import client
from absl import flags
from answers import Answer
from pathlib import Path
from summary import Summary
flags.FLAGS(["client.py", "--images=a", "--server=b"])
answer = Answer("ok", ("a", "b"), (0.75, 0.25), (0, 1))
client.ask = lambda *_: client.Reply(answers=[answer], retries=2, latency_s=3.0, waited_s=9.0)
for num_classes in (2, 3):
    batch = client._classify_batch(
        [Path(sys.argv[1])], num_classes=num_classes, transport=None, stop=None
    )
    summary = Summary()
    client._record(batch, summary, None)
    print(json.dumps([batch.answers[0].status, batch.answers[0].reason, summary.retries,
                      summary.latencies_s, summary.waits_s]))
"""


def test_a_model_that_was_replaced_meanwhile_is_refused_and_times_are_those_of_the_reply(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(photo("jpg", 1))
    line = [sys.executable, "-c", BATCH, str(tmp_path / "photo.jpg")]
    done = warm.run(line, capture_output=True, text=True, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    same, other = map(json.loads, lines)
    assert same == ["ok", "", 2, [3.0], [9.0]]
    assert other[0] == "refused" and other[2:] == [2, [3.0], [9.0]]
    assert "The model returned 3 classes at first, and now 2: the server has replaced" in other[1]


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_what_passes_by_itself_may_be_asked_again(code: int):
    """These statuses mean too many requests, or that the server restarts behind a proxy."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        server.answers = [(code, b'{"error": "soon"}')]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        transport = transports.RestTransport(f"http://127.0.0.1:{server.server_port}", model="m")
        with pytest.raises(Passing, match=f"HTTP {code}: soon"):
            transport.ask([b""], 60)
        server.shutdown()


def test_only_photographs_that_were_answered_count_in_the_rate():
    found = summary.Summary()
    found.statuses.update(ok=30, refused=60, unanswered=10)
    assert "images/s 15.0" in [" ".join(line.split()) for line in found.lines(2.0, 100)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "heic"])
def test_files_are_sent_as_the_server_reads_them(kind):
    file = photo(kind, 6)
    sent = photographs.as_served(file)
    if "jpg" in kind or "png" in kind:
        assert sent is file  # the server turns it itself
    else:
        assert sent.startswith(b"\x89PNG")
        np.testing.assert_array_equal(read_pixels(sent), read_pixels(file))


def test_what_cannot_be_read_has_a_reason_and_is_not_sent():
    with pytest.raises(ValueError, match="cannot identify image file"):
        photographs.as_served(b"GIF89a")
    assert photographs.as_served(b"") == b""  # of which the server says that it is empty


def test_photographs_are_found_in_order_whatever_their_ending_looks_like(tmp_path):
    for name in ("b/z.JPG", "b/a.jpeg", "a.Png", "notes.txt", "c.jpg/inside.jpg", "._a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = photographs.find_photographs(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found.photos] == [
        "a.Png",
        "b/a.jpeg",
        "b/z.JPG",
        "c.jpg/inside.jpg",
    ]
    assert [left.path.name for left in found.left_out] == ["notes.txt"]
    with pytest.raises(ValueError, match="There is no folder"):
        photographs.find_photographs(tmp_path / "nowhere")


def test_the_client_waits_for_neither_tensorflow_nor_keras():
    code = (
        f"import sys; sys.path.append({str(SERVING)!r}); import photographs, transports; "
        "print([name for name in ('tensorflow.python', 'keras', 'keras_vit.layers') if name in "
        "sys.modules])"
    )
    # as the client says before it imports anything
    environment = os.environ | {"KERAS_VIT_IMPORT": "parts"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_a_socket_that_connects_after_the_deadline_is_shut():
    """Reading it would wait for as long as the server likes."""
    ours, theirs = socket.socketpair()
    with ours, theirs, deadlines.Deadline(0.01) as deadline:
        for _ in range(1000):
            if deadline.is_over:
                break
            time.sleep(0.01)
        assert deadline.is_over
        deadline.connected(ours)
        readable, _, _ = select.select([ours], [], [], 0)
        assert readable and ours.recv(1) == b""
