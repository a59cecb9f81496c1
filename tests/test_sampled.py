"""Which cases of a test that is marked `sampled(count)` are quick."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.once


def make_case(name: str, *places: int, count: int, is_slow: bool = False) -> pytest.Function:
    """A collected case of a parametrized test, without a module around it."""
    case = object.__new__(pytest.Function)
    case.parent, case.keywords = None, {}
    case.path, case.originalname = Path("test_file.py"), name
    case.callspec = SimpleNamespace(indices=dict(zip("ab", places, strict=False)))
    marks = [pytest.mark.sampled(count), *[pytest.mark.slow] * is_slow]
    case.own_markers = [mark.mark for mark in marks]
    return case


def find_quick(cases: list[pytest.Function]) -> list[tuple[int, ...]]:
    quick = [case for case in cases if not case.get_closest_marker("slow")]
    return sorted(tuple(case.callspec.indices.values()) for case in quick)


@pytest.fixture
def sample(request: pytest.FixtureRequest):
    path = Path(__file__).with_name("conftest.py")
    plugins = request.config.pluginmanager.get_plugins()
    (conftest,) = (each for each in plugins if getattr(each, "__file__", None) == str(path))
    return conftest.mark_all_but_a_sample


@pytest.mark.parametrize(
    ("num_cases", "count", "quick"),
    [(9, 3, [0, 4, 8]), (10, 2, [0, 9]), (5, 1, [0]), (3, 3, [0, 1, 2]), (2, 4, [0, 1])],
)
def test_the_first_the_last_and_others_at_equal_distances_are_quick(
    sample, num_cases: int, count: int, quick: list[int]
):
    cases = [make_case("test_a", index, count=count) for index in range(num_cases)]
    sample(cases)
    assert find_quick(cases) == [(index,) for index in quick]


def test_the_sample_does_not_depend_on_the_order_of_collection(sample):
    found = []
    for seed in range(5):
        places = [(first, second) for first in range(4) for second in range(5)]
        random.Random(seed).shuffle(places)
        cases = [make_case("test_a", *place, count=4) for place in places]
        sample(cases)
        found.append(find_quick(cases))
    assert found == [[(0, 0), (1, 1), (2, 3), (3, 4)]] * 5


def test_each_test_has_its_own_sample_and_slow_cases_are_left_out(sample):
    cases = [make_case("test_a", index, count=2) for index in range(4)]
    others = [make_case("test_b", index, count=2, is_slow=index == 0) for index in range(4)]
    sample([*cases, *others])
    assert (find_quick(cases), find_quick(others)) == ([(0,), (3,)], [(1,), (3,)])
