"""Cases of which the fast gate runs some, and the full gate all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some_of(cases: Sequence[tuple[Any, ...]], quick: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All cases as parameters; marked slow but for those that are named, in which each value comes at least once."""
    for place, values in enumerate(zip(*cases, strict=True)):
        left_out = set(values) - {case[place] for case in quick}
        assert not left_out, f"the fast gate would never see {left_out}"
    assert set(quick) <= set(cases), f"no such cases: {set(quick) - set(cases)}"
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def mark_combinations(items: Iterable[pytest.Item]) -> None:
    """Of tests marked ``each_value_once`` all combinations are marked slow but for so many that every value of every
    parameter comes at least once: the first values together, the second ones, and so on, shorter lists anew."""
    tests: dict[Any, list[tuple[pytest.Item, dict[str, int]]]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("each_value_once") is not None:
            values: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined]
            which = {name: id(value) for name, value in values.items()}
            tests[item.parent, item.originalname].append((item, which))  # type: ignore[attr-defined]
    for cases in tests.values():
        lists = {name: list(dict.fromkeys(which[name] for _, which in cases)) for name in cases[0][1]}
        most = max(map(len, lists.values()))
        quick = [{name: each[place % len(each)] for name, each in lists.items()} for place in range(most)]
        for item, which in cases:
            if which not in quick:
                item.add_marker(pytest.mark.slow)
