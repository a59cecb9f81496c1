"""Many jobs at once, their results in the order of the jobs, and never more in memory than was
agreed.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

# One slow job must not stop the others: results of this many jobs for each thread may wait for it.
# They are small; what is large, the photographs, is read by the thread that sends them, so there is
# one batch for each thread.
_AHEAD = 16


def in_order(
    jobs: Iterable[Job], work: Callable[[Job], Result], concurrency: int
) -> Iterator[Result]:
    """Does jobs in threads and gives their results in the order of the jobs.

    The threads are daemons: unlike those of an executor, they do not hold up the end of a process
        that was interrupted.

    Args:
        jobs: Taken as they are needed.
        work: Called in a thread. What it raises is raised here.
        concurrency: Threads.

    Example:
        >>> list(in_order(range(4), lambda number: number * number, concurrency=2))
        [0, 1, 4, 9]
    """
    todo: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(concurrency):
        threading.Thread(target=_work_off, args=(todo, work), daemon=True).start()
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


def _work_off(todo: queue.SimpleQueue, work: Callable) -> None:
    for job, future in iter(todo.get, None):
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(work(job))
        except BaseException as error:  # it belongs to whoever waits for the result
            future.set_exception(error)
