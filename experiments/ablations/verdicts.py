"""The verdict on a claim, from one value for each seed.

The 95 % interval of the mean is mean ± t(0.975, n - 1) · s / √n, where s is the sample standard
deviation of the n values and t the quantile of Student's distribution. If the interval is above 0,
the claim "holds"; if it is below 0, it "does not hold"; otherwise it is "not visible at this size".
Values that are 0 for every seed decide nothing: the arms have the same runs, such as two arms whose
best learning rates are equal.

The interval covers the variation between seeds. It does not cover the choice of the test set, and
it is not corrected for the number of claims. Numbers have as many decimals as the ends of the
interval need to differ from 0, at most three.
"""

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t as student

LEAST_SEEDS = 3
CONFIDENCE = 0.95
MOST_DIGITS = 3
RULE = (
    "The verdict on a claim: its value is computed for each seed; the brackets are the 95 % interval "
    "of the mean, mean ± t(0.975, n - 1) · s / √n over n seeds. Above 0 the claim holds, below 0 it "
    "does not hold, and otherwise the difference is not visible at this size. Fewer than "
    f"{LEAST_SEEDS} seeds decide nothing."
)


def find_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the mean and both ends of its 95 % interval, by Student's distribution.

    Example:
        >>> mean, low, high = find_interval([1.0, 2.0, 3.0])  # 2 ± 4.303 * 1 / sqrt(3)
        >>> round(mean, 3), round(low, 3), round(high, 3)
        (2.0, -0.484, 4.484)
    """
    mean, count = statistics.fmean(values), len(values)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return mean, mean - half, mean + half


def judge(values: Sequence[float], unit: str, *, digits: int = 1, is_judged: bool = True) -> str:
    """Returns the verdict on a claim as text.

    Args:
        values: The value of the claim for each seed; above 0 if the claim holds.
        unit: Unit of the values.
        digits: Least number of decimals.
        is_judged: Whether the claim is judged; if not, the numbers alone are returned.

    Example:
        >>> judge([1.0, 1.5, 2.0], "points")
        'holds: +1.5 [+0.3, +2.7] points'
        >>> judge([1.0], "points")
        'not decided: 1 seed, at least 3 needed'
    """
    if len(values) < LEAST_SEEDS:
        number = f"{len(values)} seed{'s' * (len(values) != 1)}"
        return f"not decided: {number}, at least {LEAST_SEEDS} needed"
    if not any(values):
        return "not decided: the arms are equal in every run"
    interval = find_interval(values)
    _, low, high = interval
    answer = "holds" if low > 0 else "does not hold" if high < 0 else "not visible at this size"
    while digits < MOST_DIGITS and any(
        end and not float(f"{end:.{digits}f}") for end in (low, high)
    ):
        digits += 1
    mean, low, high = (_format_number(value, digits) for value in interval)
    numbers = f"{mean} [{low}, {high}] {unit}".rstrip()
    return f"{answer}: {numbers}" if is_judged else numbers


def _format_number(value: float, digits: int) -> str:
    """Returns a number with its sign, which a zero does not have."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]
