"""Classifies all photographs in a folder with a server, and prints counts and latencies.

    python experiments/serving/client.py --images=DIR [--server=localhost:8500] [--model=vit_b16] [--output=answers.csv]
    python experiments/serving/client.py --images=DIR --server=http://localhost:8501

With `--server=http://...` the client uses REST, otherwise gRPC. `README.md` in this folder explains
how to start a server.

Photographs are sent in batches, with `--concurrency` batches at the same time; only these are in
memory. If the server is unavailable, overloaded or late, a request is repeated, within `--retries`
and `--total_s`. An unreadable photograph does not affect others; its path and problem are printed.
Answers are in the order of the file names.

Exit codes: 0 if all photographs were classified, 1 if some were not or the server cannot be reached,
130 if interrupted; the output then contains the answers received so far.
"""

import contextlib
import functools
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# No log lines of gRPC on lost connections: the client reports them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Imports only the reader of photos, so that the client does not load a framework.
os.environ["KERAS_VIT_IMPORT"] = "parts"

try:
    from absl import app, flags
    from answers import OK, REFUSED, UNANSWERED, UNREADABLE, Answer, Refused
    from in_order import in_order
    from patience import GaveUp, Patience, Reply, ask
    from photographs import as_served, find_photographs
    from summary import AnswerTable, Summary
    from tqdm import tqdm
    from transports import Transport, make_transport

    from keras_vit.writing import group_by_reason, to_one_line
except ImportError as error:
    sys.exit(f"{error}. The client needs a few packages: pip install '.[serving]', in a clone")

_IMAGES = flags.DEFINE_string("images", None, "Folder of photographs.", required=True)
_SERVER = flags.DEFINE_string(
    "server", "localhost:8500", "host:port for gRPC, http://host:port for REST."
)
_MODEL = flags.DEFINE_string("model", "vit_b16", "Name of the model on the server.")
_LABEL = flags.DEFINE_string(
    "label", "", "Version label, such as stable or canary. Default: the newest version."
)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images per request.", lower_bound=1)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 32, "Concurrent requests.", lower_bound=1)
_DEADLINE = flags.DEFINE_float(
    "deadline_s", 10.0, "Time limit of one attempt, in seconds.", lower_bound=1e-3
)
_RETRIES = flags.DEFINE_integer("retries", 20, "Maximum number of retries.", lower_bound=0)
_TOTAL = flags.DEFINE_float(
    "total_s", 120.0, "Time limit of a request with all retries, in seconds.", lower_bound=1e-3
)
_OUTPUT = flags.DEFINE_string("output", None, "CSV file for the answers.")

# An empty file costs the server no work, and its answer shows whether model, signature and outputs
# are right.
_PROBE, _PROBE_RETRIES = b"", 2
_INTERRUPTED = 130  # convention of shells: 128 plus the number of SIGINT


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Answers for some photographs, and the reply of the server, if there was one."""

    paths: Sequence[Path]
    answers: Sequence[Answer]
    reply: Reply | None = None
    retries: int = 0


def main(_: Sequence[str]) -> int:
    """Runs the client and returns the exit code."""
    # Pillow warns about unusual photographs; the server reports problems that matter.
    warnings.filterwarnings("ignore", module="PIL")
    try:
        paths, left_out = find_photographs(Path(_IMAGES.value).expanduser())
        with contextlib.closing(
            make_transport(_SERVER.value, model=_MODEL.value, label=_LABEL.value)
        ) as transport:
            code = _classify_all(paths, transport)
        if left_out:
            print(group_by_reason(left_out))
        return code
    except GaveUp as error:
        print(
            f"No answer from {_SERVER.value}: {error}. Check that the server is running and the "
            f"model is loaded.",
            file=sys.stderr,
        )
        return 1
    except Refused as error:
        print(
            f"{_SERVER.value} refuses requests for {_MODEL.value} {_LABEL.value}: {error}",
            file=sys.stderr,
        )
        return 1
    except (ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _classify_all(paths: Sequence[Path], transport: Transport) -> int:
    stop, summary, interrupted = threading.Event(), Summary(), False
    num_classes = _probe_num_classes(transport, stop)
    start = time.monotonic()
    with (
        _open_table(num_classes) as table,
        tqdm(total=len(paths), unit=" images", disable=None) as bar,
    ):
        batches = (
            paths[first : first + _BATCH.value] for first in range(0, len(paths), _BATCH.value)
        )
        try:
            work = functools.partial(
                _classify_batch, num_classes=num_classes, transport=transport, stop=stop
            )
            for batch in in_order(batches, work, _CONCURRENCY.value):
                _record(batch, summary, table)
                bar.update(len(batch.paths))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
    print(*summary.lines(time.monotonic() - start, len(paths)), sep="\n", flush=True)
    return _INTERRUPTED if interrupted else 0 if summary.all_ok else 1


def _probe_num_classes(transport: Transport, stop: threading.Event) -> int:
    """Sends a probe, so that a wrong setting is reported once, and returns the number of classes."""
    patience = Patience(deadline_s=_DEADLINE.value, retries=_PROBE_RETRIES, total_s=_TOTAL.value)
    (answer,) = ask(transport, [_PROBE], patience, stop).answers
    return len(answer.labels)


def _classify_batch(
    paths: Sequence[Path], *, num_classes: int, transport: Transport, stop: threading.Event
) -> _Batch:
    """Reads and sends a batch, in a thread. Errors are reported in the answers."""
    read = [_read(path) for path in paths]
    files = [file for file in read if isinstance(file, bytes)]
    patience = Patience(deadline_s=_DEADLINE.value, retries=_RETRIES.value, total_s=_TOTAL.value)
    reply, retries = None, 0
    try:
        reply = ask(transport, files, patience, stop) if files else None
        answers, retries = reply.answers if reply else [], reply.retries if reply else 0
        counts = {len(answer.labels) for answer in answers} - {num_classes}
        if counts:
            raise Refused(
                f"The model returned {num_classes} classes at first, and now {counts.pop()}: the "
                f"server has replaced the model."
            )
    except Refused as error:
        answers = [Answer(REFUSED, reason=str(error))] * len(files)
    except GaveUp as error:
        answers, retries = [Answer(UNANSWERED, reason=str(error))] * len(files), error.retries
    rest = iter(answers)
    every = [next(rest) if isinstance(file, bytes) else file for file in read]
    return _Batch(paths=paths, answers=every, reply=reply, retries=retries)


def _read(path: Path) -> bytes | Answer:
    try:
        return as_served(path.read_bytes())
    except OSError as error:
        return Answer(UNREADABLE, reason=error.strerror or str(error))
    except (ValueError, ImportError) as error:
        return Answer(UNREADABLE, reason=str(error))


def _record(batch: _Batch, summary: Summary, table: AnswerTable | None) -> None:
    """Prints problems, and adds the answers to the table and the summary."""
    # After an interrupt in this function, the table may have one answer more than the summary.
    for path, answer in zip(batch.paths, batch.answers, strict=True):
        if answer.status != OK:
            tqdm.write(
                to_one_line(f"{path}: {answer.status}{answer.reason and f' ({answer.reason})'}")
            )
        if table:
            table.add(path, answer)
        summary.statuses[answer.status] += 1
    summary.retries += batch.retries
    if batch.reply:
        summary.latencies_s.append(batch.reply.latency_s)
        summary.waits_s.append(batch.reply.waited_s)


@contextlib.contextmanager
def _open_table(num_classes: int) -> Iterator[AnswerTable | None]:
    if not _OUTPUT.value:
        yield None
        return
    with open(Path(_OUTPUT.value).expanduser(), "w", encoding="utf-8", newline="") as file:
        yield AnswerTable(file, root=Path(_IMAGES.value).expanduser(), num_classes=num_classes)


if __name__ == "__main__":
    app.run(main)
