"""How long, and how often, a request is tried.

Waits grow twofold and are drawn at random from zero up ("full jitter"): clients that failed
together, because the
server went away, do not come back together. Source: M. Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015.
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
    """No answer came in time.

    Attributes:
        retries: How often it was tried after the first time.
    """

    def __init__(self, words: str, retries: int):
        super().__init__(words)
        self.retries = retries


class Stopped(Exception):
    """The caller wants no answer any more."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Bounds of one request.

    Attributes:
        deadline_s: Seconds that one try may take.
        retries: Tries after the first.
        total_s: Seconds for all tries and the waits between them.
    """

    deadline_s: float
    retries: int
    total_s: float


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Answers, and what they took.

    Attributes:
        answers: One for each file, in their order.
        retries: Tries after the first.
        latency_s: Seconds that the try took that went well.
        waited_s: Seconds from the first try to the answer.
    """

    answers: list[Answer]
    retries: int
    latency_s: float
    waited_s: float


def wait_s(retry: int, draw: float) -> float:
    """Returns seconds to wait before a retry.

    Args:
        retry: 0 before the first retry.
        draw: From 0 to 1, at random.

    Example:
        >>> [wait_s(retry, 1.0) for retry in (0, 1, 2, 10)]
        [0.2, 0.4, 0.8, 10.0]
    """
    return draw * min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(retry, 30))


def ask(
    transport: Transport, files: Sequence[bytes], patience: Patience, stop: threading.Event
) -> Reply:
    """Asks until there is an answer, within the patience.

    Args:
        transport: The way to the server.
        files: Bytes of JPEG or PNG files.
        patience: When to give up.
        stop: Set from outside, it ends the waiting.

    Raises:
        GaveUp: If no try went well. What was the matter with the last is in the message.
        Refused: If another try would change nothing.
        Stopped: If `stop` was set.
    """
    start, retry = time.monotonic(), 0
    while True:
        begun = time.monotonic()
        try:
            # What is left of the total is at least a millisecond: a deadline of zero is none at all
            # to some.
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
