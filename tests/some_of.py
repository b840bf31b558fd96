"""Cases of which the fast gate runs some, and the full gate all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def some_of(cases: Sequence[tuple[Any, ...]], quick: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All cases as parameters; marked slow but for those that are named, in which each value comes at least once."""
    for place, values in enumerate(zip(*cases, strict=True)):
        left_out = set(values) - {case[place] for case in quick}
        assert not left_out, f"the fast gate would never see {left_out}"
    assert set(quick) <= set(cases), f"no such cases: {set(quick) - set(cases)}"
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases]
