"""What the fast gate leaves out of many combinations."""

import itertools
from types import SimpleNamespace

from some_of import mark_combinations


def items(*lists, marked=True, name="test"):
    """As pytest collects them: one for each combination."""
    found = []
    for values in itertools.product(*lists):
        marks = []
        found.append(
            SimpleNamespace(
                parent="module",
                originalname=name,
                callspec=SimpleNamespace(params=dict(zip("abc", values, strict=False))),
                get_closest_marker=lambda _: True if marked else None,
                add_marker=marks.append,
                marks=marks,
            )
        )
    return found


def left(found):
    mark_combinations(found)
    return [tuple(item.callspec.params.values()) for item in found if not item.marks]


def test_every_value_comes_and_few_combinations_do():
    lists = ["NaN", "∞", "large"], [None, 4], ["loss", "model", "backward", "data"]
    quick = left(items(*lists))
    assert len(quick) == 4
    assert [set(values) for values in zip(*quick, strict=True)] == [set(each) for each in lists]


def test_tests_are_taken_one_by_one_and_others_are_left_alone():
    both = [*items([1, 2], [3, 4]), *items([1, 2, 5], [3, 4], name="another")]
    assert len(left(both)) == 2 + 3
    assert len(left(items([1, 2], [3, 4], marked=False))) == 4


def test_a_single_case_that_somebody_asks_for_is_run():
    assert left(items([1], [4])) == [(1, 4)]
