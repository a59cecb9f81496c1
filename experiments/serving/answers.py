"""What comes back for a photograph, and the two ways in which a request can fail. Nothing here
knows a network.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK = "ok"
# What the server says of a photograph it cannot read: empty, unsupported, too_large, damaged. What
# the client says:
UNREADABLE = "unreadable"  # the file could not be read here, and was not sent
REFUSED = "refused"  # the server will not answer this request, however often it is asked
UNANSWERED = "unanswered"  # no answer came within the patience of the caller

COLUMNS = ("labels", "scores", "class_ids", "status")


class Passing(Exception):
    """The same request may go well the next time: the server is away, busy or late."""


class Refused(Exception):
    """The same request would fail again: an unknown model, another signature, no permission."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one photograph.

    Attributes:
        status: "ok", or why there is nothing else.
        labels: Names of the best classes, best first.
        scores: Their probabilities.
        class_ids: Their numbers.
        reason: What went wrong, in the words of who noticed.
    """

    status: str
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    class_ids: tuple[int, ...] = ()
    reason: str = ""


def from_columns(columns: Mapping[str, Sequence], num_images: int) -> list[Answer]:
    """Makes answers of the outputs of a model, one column for each.

    Args:
        columns: `labels`, `scores`, `class_ids` (B, k) and `status` (B,), as Python values.
        num_images: B, as it was sent.

    Raises:
        Refused: If outputs or rows are missing, so that nobody knows which answer belongs to which
            photograph; or they hold something else than labels, finite scores, numbers of classes
            and a status.

    Example:
        >>> columns = {"labels": [["cat", "dog"]], "scores": [[0.9, 0.1]], "class_ids": [[3, 5]], "status": ["ok"]}
        >>> from_columns(columns, 1)[0].labels
        ('cat', 'dog')
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise Refused(
            f"The model gives {', '.join(sorted(columns))}; what is missing: {', '.join(missing)}."
        )
    strange = [name for name in COLUMNS if not isinstance(columns[name], list)]
    if strange:
        raise Refused(f"These outputs are no lists of rows: {', '.join(strange)}.")
    lengths = {name: len(columns[name]) for name in COLUMNS}
    if set(lengths.values()) != {num_images}:
        raise Refused(f"{num_images} images were sent, and this many rows came back: {lengths}.")
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    return [_answer(*row) for row in rows]


def _answer(labels: Any, scores: Any, class_ids: Any, status: Any) -> Answer:
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
        raise Refused(f"This is no row of an answer: {(labels, scores, class_ids, status)!r:.200}.")
    return Answer(status, tuple(labels), tuple(scores), tuple(class_ids))
