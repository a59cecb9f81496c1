"""The answer for a photograph, and the two kinds of errors of a request."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK = "ok"
# The server reports unreadable photographs as empty, unsupported, too_large or damaged. The client
# sets these:
UNREADABLE = "unreadable"  # the client cannot read the file, and did not send it
REFUSED = "refused"  # the server refused the request, and a retry would not help
UNANSWERED = "unanswered"  # no answer in time

COLUMNS = ("labels", "scores", "class_ids", "status")


class Passing(Exception):
    """A temporary error: the server is unavailable, overloaded or late."""


class Refused(Exception):
    """A permanent error, such as an unknown model, another signature or no permission."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one photograph.

    Attributes:
        status: "ok", or the kind of problem.
        labels: Names of the best classes, best first.
        scores: Their probabilities.
        class_ids: Their numbers.
        reason: Message of the problem.
    """

    status: str
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    class_ids: tuple[int, ...] = ()
    reason: str = ""


def from_columns(columns: Mapping[str, Sequence], num_images: int) -> list[Answer]:
    """Converts the outputs of a model, one column each, to answers.

    Args:
        columns: `labels`, `scores`, `class_ids` (B, k) and `status` (B,), as Python values.
        num_images: B, number of images in the request.

    Raises:
        Refused: If outputs or rows are missing, or they are not labels, finite scores, class numbers
            and a status.

    Example:
        >>> columns = {"labels": [["cat", "dog"]], "scores": [[0.9, 0.1]], "class_ids": [[3, 5]], "status": ["ok"]}
        >>> from_columns(columns, 1)[0].labels
        ('cat', 'dog')
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise Refused(
            f"The model returns {', '.join(sorted(columns))}. Missing: {', '.join(missing)}."
        )
    strange = [name for name in COLUMNS if not isinstance(columns[name], list)]
    if strange:
        raise Refused(f"These outputs are not lists of rows: {', '.join(strange)}.")
    lengths = {name: len(columns[name]) for name in COLUMNS}
    if set(lengths.values()) != {num_images}:
        raise Refused(f"{num_images} images were sent. Received: {lengths} rows.")
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    return [_make_answer(*row) for row in rows]


def _make_answer(labels: Any, scores: Any, class_ids: Any, status: Any) -> Answer:
    is_right = isinstance(status, str) and all(
        isinstance(values, list) for values in (labels, scores, class_ids)
    )
    if is_right:
        is_right = (
            len(labels) == len(scores) == len(class_ids)
            and all(isinstance(label, str) for label in labels)
            and all(type(score) in (int, float) and math.isfinite(score) for score in scores)
            and all(type(number) is int for number in class_ids)
        )
    if not is_right:
        raise Refused(f"A row is invalid: {(labels, scores, class_ids, status)!r:.200}.")
    return Answer(status, tuple(labels), tuple(scores), tuple(class_ids))
