"""Retries of a request, with exponential backoff.

The limit of the waits doubles, and each wait is drawn at random between zero and the limit ("full
jitter"). So clients that failed at the same time, because the server stopped, do not retry at the
same time. Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from answers import Answer, Passing
from transports import Transport

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 10.0


class GaveUp(Exception):
    """There was no answer in time.

    Attributes:
        retries: Number of retries.
    """

    def __init__(self, words: str, retries: int):
        super().__init__(words)
        self.retries = retries


class Stopped(Exception):
    """The caller has stopped the request."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits of one request.

    Attributes:
        deadline_s: Time limit of one attempt, in seconds.
        retries: Maximum number of retries.
        total_s: Time limit of all attempts and waits, in seconds.
    """

    deadline_s: float
    retries: int
    total_s: float


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Answers, with their times.

    Attributes:
        answers: One for each file, in their order.
        retries: Number of retries.
        latency_s: Time of the successful attempt, in seconds.
        waited_s: Time from the first attempt to the answer, in seconds.
    """

    answers: list[Answer]
    retries: int
    latency_s: float
    waited_s: float


def wait_s(retry: int, draw: float) -> float:
    """Returns the time to wait before a retry, in seconds.

    Args:
        retry: Index of the retry, from 0.
        draw: Random number from 0 to 1.

    Example:
        >>> [wait_s(retry, 1.0) for retry in (0, 1, 2, 10)]
        [0.2, 0.4, 0.8, 10.0]
    """
    return draw * min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(retry, 30))


def ask(
    transport: Transport, files: Sequence[bytes], patience: Patience, stop: threading.Event
) -> Reply:
    """Sends a request, and repeats it after temporary errors.

    Args:
        transport: The connection to the server.
        files: Bytes of JPEG or PNG files.
        patience: Limits of the request.
        stop: An event that ends the waiting.

    Raises:
        GaveUp: If no attempt succeeded. The message contains the error of the last attempt.
        Refused: If the error is permanent.
        Stopped: If `stop` was set.
    """
    start, retry = time.monotonic(), 0
    while True:
        begun = time.monotonic()
        try:
            # At least a millisecond, since some libraries take zero as no deadline.
            left = max(1e-3, patience.total_s - (begun - start))
            answers = transport.ask(files, min(patience.deadline_s, left))
        except Passing as error:
            pause = wait_s(retry, random.random())
            passed = time.monotonic() - start
            if retry == patience.retries or passed + pause >= patience.total_s:
                raise GaveUp(
                    f"{error} (tried {retry + 1} times in {passed:.1f} s)", retry
                ) from error
            if stop.wait(pause):
                raise Stopped from error
            retry += 1
            continue
        end = time.monotonic()
        return Reply(answers=answers, retries=retry, latency_s=end - begun, waited_s=end - start)
