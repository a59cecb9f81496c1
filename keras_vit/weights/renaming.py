"""Renames and reshapes arrays by tables, in both directions.

`layouts.py`, `variables.py` and `dialects.py` contain the tables. A row of a table becomes rules,
and rules convert a dictionary of arrays into another. In a table, `{}` is the number of a block,
stage or unit. Unknown names are kept. Two arrays that get the same name are an error.
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

# (foreign module, canonical module, kind of module, parts of an array that is fused in the foreign
# module)
Row = tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]
Rows = tuple[Row, ...]


class Leaf(NamedTuple):
    """An array of a module: the suffixes of its two names, its two ranks, and both conversions.

    A rank of None means any rank.
    """

    theirs: str
    canonical: str
    ranks: tuple[int | None, int | None] = (None, None)
    read: Callable[[np.ndarray, int], np.ndarray] = lambda x, num_heads: x
    write: Callable[[np.ndarray], np.ndarray] = lambda x: x


class Rule(NamedTuple):
    """A foreign array and the canonical arrays that it contains: several if it is fused."""

    theirs: str
    canonical: tuple[str, ...]
    leaf: Leaf
    offset: int  # canonical number minus foreign number


class _Found(NamedTuple):
    rule: Rule
    place: int  # index among the parts of a fused array
    numbers: tuple[int, ...]


def make_rules(
    rows: Rows, leaves: Mapping[str, tuple[Leaf, ...]], prefix: str = "", offset: int = 0
) -> list[Rule]:
    """Makes a rule for each array of the modules in a table.

    Args:
        rows: The table.
        leaves: The arrays of each kind of module.
        prefix: Prefix of all foreign names.
        offset: Canonical block number minus foreign block number.
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
    """Converts foreign arrays to canonical ones, as views.

    Raises:
        ValueError: If arrays have a wrong rank or size (the message lists all of them), or if two
            arrays get the same name.
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
            f"Arrays have unexpected shapes, with num_heads={num_heads}: {join_sorted(problems)}."
        )
    return gather(entries)


def write(arrays: Mapping[str, np.ndarray], rules: Iterable[Rule]) -> dict[str, np.ndarray]:
    """Converts canonical arrays to foreign ones, as views except for fused arrays.

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
        f"{name} ({len(parts)} of {n} parts)"
        for (name, n), parts in fused.items()
        if len(parts) < n
    ]
    if problems:
        raise ValueError(
            f"Arrays have unexpected shapes, or are incomplete: {join_sorted(problems)}."
        )
    joined = {
        name: np.concatenate([parts[i] for i in range(n)]) for (name, n), parts in fused.items()
    }
    return gather(entries + [(name, name, x) for name, x in joined.items()])


def find_unknown_theirs(names: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """Returns the foreign names without a rule."""
    index = {rule.theirs: (rule.theirs, rule, 0) for rule in rules}
    return [name for name in names if _find(name, index) is None]


def find_unknown_canonical(names: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """Returns the canonical names without a rule."""
    index = _index_canonical(rules)
    return [name for name in names if _find(name, index) is None]


def gather(entries: Iterable[tuple[str, str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Collects triples (old name, new name, array) into {new name: array}.

    Raises:
        ValueError: If several arrays have the same new name. The message lists all such names.
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
            f"Several arrays of the checkpoint get the same name: {join_sorted(clashes)}. "
            "The file mixes layouts. Keep one array per name."
        )
    return result


def split_numbers(name: str) -> tuple[str, tuple[str, ...]]:
    """Splits a name into a template and the numbers of its blocks, stages and units.

    Example:
        >>> split_numbers("block1/unit02/gn3/bias")
        ('block{}/unit{}/gn3/bias', ('1', '02'))
    """
    return _NUMBER.sub("{}", name), tuple(_NUMBER.findall(name))


def join_sorted(items: Iterable[str], limit: int = 12) -> str:
    """Sorts and joins items for a message. Of a long list, the rest is counted.

    Example:
        >>> join_sorted(["b", "a", "c"], limit=2)
        'a, b and 1 more'
    """
    items = sorted(items)
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def split_first(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Reshapes (A * K, ...) to (A, K, ...)."""
    return x.reshape(num_heads, -1, *x.shape[1:])


def merge_first(x: np.ndarray) -> np.ndarray:
    """Reshapes (A, K, ...) to (A * K, ...)."""
    return x.reshape(-1, *x.shape[2:])


def split_last(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Reshapes (D, A * K) to (D, A, K)."""
    return x.reshape(x.shape[0], num_heads, -1)


def merge_last(x: np.ndarray) -> np.ndarray:
    """Reshapes (D, A, K) to (D, A * K)."""
    return x.reshape(x.shape[0], -1)


def use_two_digits(rows: Rows) -> Rows:
    """Returns the rows with two digits for the canonical number of a unit, as in BiT."""
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
    # Format the name again, so that `unit1` and `unit01` are never confused.
    return _Found(rule, place, numbers) if spelling.format(*numbers) == name else None


def _check_rank(x: np.ndarray, rank: int | None) -> None:
    if rank not in (None, x.ndim):
        raise ValueError(f"expected {rank} axes")
