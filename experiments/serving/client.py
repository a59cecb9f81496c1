"""Asks a server about all photographs in a folder: a table of answers, and how fast they came.

    python experiments/serving/client.py --images=DIR [--server=localhost:8500] [--model=vit_b16] [--output=answers.csv]
    python experiments/serving/client.py --images=DIR --server=http://localhost:8501

`--server=http://...` speaks REST, anything else gRPC. `README.md` beside this file tells how a
server comes up.

Photographs are sent in batches, `--concurrency` of them at once; no more than that is in memory. A
request that fails because the server is away, busy or late is repeated, within `--retries` and
`--total_s`. A photograph that cannot be read costs only itself: a line with its path and what is
wrong with it. The answers are in the order of the files' names.

Exit codes: 0 all photographs were answered, 1 not all were or the server could not be asked, 130
interrupted; what had been answered by then is in the output.
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

# its log lines of lost connections: the client tells of them itself
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# the reader of photos alone: the client waits for no framework
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

_IMAGES = flags.DEFINE_string("images", None, "Folder with photographs.", required=True)
_SERVER = flags.DEFINE_string(
    "server", "localhost:8500", "host:port for gRPC, http://host:port for REST."
)
_MODEL = flags.DEFINE_string("model", "vit_b16", "Name of the model on the server.")
_LABEL = flags.DEFINE_string(
    "label", "", "Version label, such as stable or canary. Default: the newest version."
)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images of a request.", lower_bound=1)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 32, "Requests at once.", lower_bound=1)
_DEADLINE = flags.DEFINE_float(
    "deadline_s", 10.0, "Seconds that one try of a request may take.", lower_bound=1e-3
)
_RETRIES = flags.DEFINE_integer("retries", 20, "Tries of a request after the first.", lower_bound=0)
_TOTAL = flags.DEFINE_float(
    "total_s", 120.0, "Seconds for a request with all its retries.", lower_bound=1e-3
)
_OUTPUT = flags.DEFINE_string("output", None, "CSV file for the answers.")

# An empty file costs the server nothing, and its answer tells that model, signature and outputs are
# what is expected.
_PROBE, _PROBE_RETRIES = b"", 2
_INTERRUPTED = 130  # as shells count: 128 and the number of SIGINT


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Answers for some photographs, and the reply that they came with, if one came."""

    paths: Sequence[Path]
    answers: Sequence[Answer]
    reply: Reply | None = None
    retries: int = 0


def main(_: Sequence[str]) -> int:
    """Returns the exit code."""
    # of odd photographs; what matters about them the server says
    warnings.filterwarnings("ignore", module="PIL")
    try:
        paths, left_out = find_photographs(Path(_IMAGES.value).expanduser())
        with contextlib.closing(
            make_transport(_SERVER.value, model=_MODEL.value, label=_LABEL.value)
        ) as transport:
            code = _ask_about(paths, transport)
        if left_out:
            print(group_by_reason(left_out))
        return code
    except GaveUp as error:
        print(
            f"Nobody answers at {_SERVER.value}: {error}. Is the server up, and its model loaded?",
            file=sys.stderr,
        )
        return 1
    except Refused as error:
        print(
            f"{_SERVER.value} does not answer about {_MODEL.value} {_LABEL.value}: {error}",
            file=sys.stderr,
        )
        return 1
    except (ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _ask_about(paths: Sequence[Path], transport: Transport) -> int:
    stop, summary, interrupted = threading.Event(), Summary(), False
    num_classes = _num_classes(transport, stop)
    start = time.monotonic()
    with _table(num_classes) as table, tqdm(total=len(paths), unit=" images", disable=None) as bar:
        batches = (
            paths[first : first + _BATCH.value] for first in range(0, len(paths), _BATCH.value)
        )
        try:
            work = functools.partial(
                _answered, num_classes=num_classes, transport=transport, stop=stop
            )
            for batch in in_order(batches, work, _CONCURRENCY.value):
                _note(batch, summary, table)
                bar.update(len(batch.paths))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
    print(*summary.lines(time.monotonic() - start, len(paths)), sep="\n", flush=True)
    return _INTERRUPTED if interrupted else 0 if summary.all_ok else 1


def _num_classes(transport: Transport, stop: threading.Event) -> int:
    """Asks about nothing, so that a mistake is told once and at once, not for each photograph."""
    patience = Patience(deadline_s=_DEADLINE.value, retries=_PROBE_RETRIES, total_s=_TOTAL.value)
    (answer,) = ask(transport, [_PROBE], patience, stop).answers
    return len(answer.labels)


def _answered(
    paths: Sequence[Path], *, num_classes: int, transport: Transport, stop: threading.Event
) -> _Batch:
    """Reads, sends and waits, in a thread; what goes wrong is in the answers."""
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
                f"The model named {num_classes} classes at first and now {counts.pop()}: it is "
                f"another one."
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


def _note(batch: _Batch, summary: Summary, table: AnswerTable | None) -> None:
    """Whoever interrupts may do so in here: then the table has an answer that the summary has
    not.
    """
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
def _table(num_classes: int) -> Iterator[AnswerTable | None]:
    if not _OUTPUT.value:
        yield None
        return
    with open(Path(_OUTPUT.value).expanduser(), "w", encoding="utf-8", newline="") as file:
        yield AnswerTable(file, root=Path(_IMAGES.value).expanduser(), num_classes=num_classes)


if __name__ == "__main__":
    app.run(main)
