"""The learning rate of an arm: the grid of rates, its widening, and the choice of the winner.

What lives here: arithmetic on rates and on accuracies on held-out images. What does not: the runs
that measure them (`ablations/runs.py`), and their order (`ablations/schedule.py`).

The grid is the rate of the arm's config times 1/3, 1 and 3. While the smallest or the largest rate
tried is the best, or equals the best, one more rate beyond it is tried.

Source: arXiv:2010.11929, B.1: learning rates are chosen on a held-out part of the training set.
"""

from collections.abc import Mapping, Sequence

from ablations.arms import Study
from ablations.rows import HELD_OUT, Row

FACTOR = 3
WIDENINGS = 4  # number of rates beyond the grid after which a study stops

Tried = Mapping[float, float | None]  # rate to accuracy on the held-out part; None if it diverged


def make_grid(rate: float) -> tuple[float, ...]:
    """Returns the rates to try first: a third of the rate, the rate, and three times the rate."""
    return tuple(_round(each) for each in (rate / FACTOR, rate, FACTOR * rate))


def find_best(tried: Tried) -> set[float]:
    """Returns the rates with the highest accuracy. The set is empty if all diverged."""
    best = max((accuracy for accuracy in tried.values() if accuracy is not None), default=None)
    return {rate for rate, accuracy in tried.items() if best is not None and accuracy == best}


def choose(tried: Tried) -> float | None:
    """Returns the rate with the highest accuracy (of equals, the smaller one), or None if all
    diverged.
    """
    return min(find_best(tried), default=None)


def next_rates(center: float, tried: Tried) -> tuple[float, ...]:
    """Returns the rates to try next. There are none if the winner is known, or if the grid was
    widened `WIDENINGS` times.

    Args:
        center: The rate of the arm's config.
        tried: The rates so far.
    """
    grid = make_grid(center)
    if missing := tuple(rate for rate in grid if rate not in tried):
        return missing
    if len(tried) - len(grid) >= WIDENINGS or not _is_at_edge(tried):
        return ()
    if max(tried) in find_best(tried):
        return (_round(FACTOR * max(tried)),)
    # also if all diverged: only a smaller rate can help
    return (_round(min(tried) / FACTOR),)


def find_winner(center: float, tried: Tried) -> float | None:
    """Returns the winning rate, or None if there are rates left to try.

    Raises:
        ValueError: If the grid was widened `WIDENINGS` times, and the winner is still at its edge.
    """
    if next_rates(center, tried):
        return None
    if _is_at_edge(tried):
        rates, best = (
            ", ".join(f"{rate:g}" for rate in sorted(each)) for each in (tried, find_best(tried))
        )
        raise ValueError(
            f"the best learning rate is not inside the grid after {WIDENINGS} widenings: of "
            f"{rates}, best: {best or 'none, all diverged'}. Change the learning rate in the config "
            "of the arm."
        )
    return choose(tried)


def find_tried(rows: Sequence[Row], arm: str) -> Tried:
    """Returns the rates of an arm so far, with their accuracies on the held-out images."""
    return {
        row["learning_rate"]: row[HELD_OUT]
        for row in rows
        if (row["arm"], row["kind"]) == (arm, "rate")
    }


def find_rate(study: Study, rows: Sequence[Row], arm: str) -> float | None:
    """Returns the winning rate of an arm, or of the arm whose rate it uses. It is None as long as
    there are rates to try.

    Raises:
        ValueError: As `find_winner`.
    """
    source = study.arms[arm].rate_of or arm
    center = study.arms[source].config.run.optimizer.learning_rate
    return find_winner(center, find_tried(rows, source))


def list_stuck(study: Study, rows: Sequence[Row]) -> list[str]:
    """Returns a line for each arm whose grid was widened too often."""
    lines = []
    for name in study.arms:
        try:
            find_rate(study, rows, name)
        except ValueError as error:
            lines.append(f"{name}: {error}")
    return lines


def _is_at_edge(tried: Tried) -> bool:
    """Whether a better rate may lie beyond those tried, also if all diverged."""
    best = find_best(tried)
    return not best or bool(best & {min(tried), max(tried)})


def _round(rate: float) -> float:
    """Rounds to two significant digits."""
    return float(f"{rate:.1e}")
