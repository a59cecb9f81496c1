"""The engine behind `layouts.py`, `variables.py` and `dialects.py`: tables of names, read in both
directions.

What lives here: rows become rules, rules turn a dictionary of arrays into another, and heads are
split and merged. What does not: any name of any vocabulary. In a table `{}` stands for the number
of a block, stage or unit. A name that no rule knows passes unchanged, and two arrays never end up
under one name in silence.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

_NUMBER = re.compile(
    r"(?<=encoderblock_)\d+|(?<=posembed_)\d+|(?<=block)\d+(?=[/_])|(?<=unit)\d+"
    r"|(?<=blocks\.)\d+|(?<=stages\.)\d+|(?<=layer\.)\d+|(?<=layers\.)\d+"
)

# (their module, canonical module, kind of module, parts of an array that is fused on their side).
Row = tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]
Rows = tuple[Row, ...]


class Leaf(NamedTuple):
    """One array of a module: the ends of its two names, its two ranks (None: any), the change each
    way.
    """

    theirs: str
    canonical: str
    ranks: tuple[int | None, int | None] = (None, None)
    read: Callable[[np.ndarray, int], np.ndarray] = lambda x, num_heads: x
    write: Callable[[np.ndarray], np.ndarray] = lambda x: x


class Rule(NamedTuple):
    """One array on their side, and the canonical arrays that it stands for (several where it is
    fused).
    """

    theirs: str
    canonical: tuple[str, ...]
    leaf: Leaf
    offset: int  # canonical number minus theirs


class _Found(NamedTuple):
    rule: Rule
    place: int  # among the parts of a fused array
    numbers: tuple[int, ...]


def make_rules(
    rows: Rows, leaves: Mapping[str, tuple[Leaf, ...]], prefix: str = "", offset: int = 0
) -> list[Rule]:
    """Makes one rule for each array of the modules in a table.

    Args:
        rows: The table.
        leaves: The arrays of each kind of module.
        prefix: Put before all names on their side.
        offset: Canonical block number minus theirs.
    """
    rules = []
    for theirs, canonical, kind, *fused in rows:
        for leaf in leaves[kind]:
            names = tuple(
                canonical + part + leaf.canonical for part in (fused[0] if fused else ("",))
            )
            rules.append(Rule(prefix + theirs + leaf.theirs, names, leaf, offset))
    return rules


def read(
    arrays: Mapping[str, np.ndarray], rules: Iterable[Rule], num_heads: int
) -> dict[str, np.ndarray]:
    """Turns their arrays into canonical ones, as views.

    Raises:
        ValueError: If arrays have a wrong rank or size (it lists them all), or if two meet under
            one name.
    """
    index = {rule.theirs: (rule.theirs, rule, 0) for rule in rules}
    entries, problems = [], []
    for name, x in arrays.items():
        if (found := _find(name, index)) is None:
            entries.append((name, name, x))
            continue
        rule = found.rule
        targets = [
            target.format(*(number + rule.offset for number in found.numbers))
            for target in rule.canonical
        ]
        try:
            _check_rank(x, rule.leaf.ranks[0])
            parts = np.split(x, len(targets)) if len(targets) > 1 else [x]
            entries += [
                (name, to, rule.leaf.read(part, num_heads))
                for to, part in zip(targets, parts, strict=True)
            ]
        except ValueError as error:
            problems.append(f"{name} {x.shape} ({error})")
    if problems:
        raise ValueError(
            f"Arrays of unexpected shape, read with num_heads={num_heads}: {join_sorted(problems)}."
        )
    return gather(entries)


def write(arrays: Mapping[str, np.ndarray], rules: Iterable[Rule]) -> dict[str, np.ndarray]:
    """Turns canonical arrays into theirs: views, except where several are fused into one.

    Raises:
        ValueError: If arrays have a wrong rank, or if parts of a fused array are missing.
    """
    index = _index_canonical(rules)
    entries, fused, problems = [], defaultdict(dict), []
    for name, x in arrays.items():
        if (found := _find(name, index)) is None:
            entries.append((name, name, x))
            continue
        rule = found.rule
        target = rule.theirs.format(*(number - rule.offset for number in found.numbers))
        try:
            _check_rank(x, rule.leaf.ranks[1])
        except ValueError as error:
            problems.append(f"{name} {x.shape} ({error})")
            continue
        if len(rule.canonical) == 1:
            entries.append((name, target, rule.leaf.write(x)))
        else:
            fused[target, len(rule.canonical)][found.place] = rule.leaf.write(x)
    problems += [
        f"{name} (of whose {n} parts {len(parts)} are here)"
        for (name, n), parts in fused.items()
        if len(parts) < n
    ]
    if problems:
        raise ValueError(f"Arrays of unexpected shape, or incomplete: {join_sorted(problems)}.")
    joined = {
        name: np.concatenate([parts[i] for i in range(n)]) for (name, n), parts in fused.items()
    }
    return gather(entries + [(name, name, x) for name, x in joined.items()])


def find_unknown_theirs(names: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """The names on their side that no rule knows."""
    index = {rule.theirs: (rule.theirs, rule, 0) for rule in rules}
    return [name for name in names if _find(name, index) is None]


def find_unknown_canonical(names: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """The canonical names that no rule knows."""
    index = _index_canonical(rules)
    return [name for name in names if _find(name, index) is None]


def gather(entries: Iterable[tuple[str, str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Collects (old name, new name, array) under the new names.

    Raises:
        ValueError: If two arrays would lie under one new name; it lists all such names.
    """
    result, sources = {}, defaultdict(list)
    for old, new, x in entries:
        sources[new].append(old)
        result[new] = x
    clashes = [
        f"{new} (from {', '.join(sorted(old))})" for new, old in sources.items() if len(old) > 1
    ]
    if clashes:
        raise ValueError(
            f"Several arrays of the checkpoint belong under one name: {join_sorted(clashes)}. "
            "The file mixes layouts; keep one array for each name."
        )
    return result


def split_numbers(name: str) -> tuple[str, tuple[str, ...]]:
    """Takes the numbers of blocks, stages and units out of a name.

    Example:
        >>> split_numbers("block1/unit02/gn3/bias")
        ('block{}/unit{}/gn3/bias', ('1', '02'))
    """
    return _NUMBER.sub("{}", name), tuple(_NUMBER.findall(name))


def join_sorted(items: Iterable[str], limit: int = 12) -> str:
    """Sorts and joins the items for a message; of a long list only the first, with the number of
    the rest.

    Example:
        >>> join_sorted(["b", "a", "c"], limit=2)
        'a, b and 1 more'
    """
    items = sorted(items)
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def split_first(x: np.ndarray, num_heads: int) -> np.ndarray:
    """(A * K, ...) to (A, K, ...)."""
    return x.reshape(num_heads, -1, *x.shape[1:])


def merge_first(x: np.ndarray) -> np.ndarray:
    """(A, K, ...) to (A * K, ...)."""
    return x.reshape(-1, *x.shape[2:])


def split_last(x: np.ndarray, num_heads: int) -> np.ndarray:
    """(D, A * K) to (D, A, K)."""
    return x.reshape(x.shape[0], num_heads, -1)


def merge_last(x: np.ndarray) -> np.ndarray:
    """(D, A, K) to (D, A * K)."""
    return x.reshape(x.shape[0], -1)


def use_two_digits(rows: Rows) -> Rows:
    """The rows with the canonical number of a unit in two digits, as BiT counts them."""
    return tuple((row[0], row[1].replace("unit{}", "unit{:02d}"), row[2]) for row in rows)


def _index_canonical(rules: Iterable[Rule]) -> dict[str, tuple[str, Rule, int]]:
    return {
        name.replace("{:02d}", "{}"): (name, rule, place)
        for rule in rules
        for place, name in enumerate(rule.canonical)
    }


def _find(name: str, index: Mapping[str, tuple[str, Rule, int]]) -> _Found | None:
    template, digits = split_numbers(name)
    if template not in index:
        return None
    spelling, rule, place = index[template]
    numbers = tuple(int(digit) for digit in digits)
    # Spelt again, so that `unit1` and `unit01` are never taken for each other.
    return _Found(rule, place, numbers) if spelling.format(*numbers) == name else None


def _check_rank(x: np.ndarray, rank: int | None) -> None:
    if rank not in (None, x.ndim):
        raise ValueError(f"expected {rank} axes")
