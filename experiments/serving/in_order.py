"""Concurrent jobs with results in the order of the jobs and bounded memory."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

# Number of results per thread that may wait for a slow job, so that it does not block the others.
# Results are small. Photographs are large, but each thread reads only the batch that it sends.
_AHEAD = 16


def in_order(
    jobs: Iterable[Job], work: Callable[[Job], Result], concurrency: int
) -> Iterator[Result]:
    """Runs jobs in threads and yields their results in the order of the jobs.

    The threads are daemons, so unlike those of an executor they do not delay the exit of an
    interrupted process.

    Args:
        jobs: Jobs, read when they are needed.
        work: Function that is called in a thread. Its exceptions are raised here.
        concurrency: Number of threads.

    Example:
        >>> list(in_order(range(4), lambda number: number * number, concurrency=2))
        [0, 1, 4, 9]
    """
    todo: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(concurrency):
        threading.Thread(target=_run_jobs, args=(todo, work), daemon=True).start()
    jobs, waiting = iter(jobs), deque()
    try:
        while True:
            for job in islice(jobs, concurrency * _AHEAD - len(waiting)):
                waiting.append(Future())
                todo.put((job, waiting[-1]))
            if not waiting:
                return
            yield waiting[0].result()
            waiting.popleft()
    finally:
        for future in waiting:
            future.cancel()
        for _ in range(concurrency):
            todo.put(None)


def _run_jobs(todo: queue.SimpleQueue, work: Callable) -> None:
    for job, future in iter(todo.get, None):
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(work(job))
        except BaseException as error:  # raised again by `result`
            future.set_exception(error)
