"""What `fit` is given of budgets, as `Budgets`: everybody alike, one ε for each row, or people by id."""

from __future__ import annotations

from typing import Any

import numpy as np

from privypurse._validate import real
from privypurse.budgets import Budgets
from privypurse.budgets.budgets import LARGEST, SMALLEST
from privypurse.errors import InvalidInput


def budgets_of_rows(budgets: Any, ids: Any, rows: int, epsilon: Any, delta: Any) -> Budgets:
    """``budgets`` by id (`Budgets` with ``person=``) or an array of one ε for each row; else ``epsilon`` for all."""
    if budgets is None:
        if epsilon is None:
            raise InvalidInput("neither epsilon nor budgets is given; give epsilon= for all, or fit(…, budgets=…)")
        alike = real(epsilon, "epsilon", least=SMALLEST, most=LARGEST)
        return Budgets(np.full(rows, alike), delta, person=ids)
    if epsilon is not None:
        raise InvalidInput(f"epsilon is {epsilon!r} for everybody, and budgets are given too; leave one of them out")
    budgets = _whole(budgets)
    if isinstance(budgets, Budgets):
        _require_fitting(budgets, ids, rows)
        return budgets if ids is None else budgets.for_rows(ids)
    if not hasattr(budgets, "__array__"):
        # A search cuts what has as many entries as there are rows, and a mapping from ids by numbers of rows, to a
        # list: of other people's ε.
        raise InvalidInput(
            f"budgets is a {type(budgets).__name__}; give pp.Budgets(…, person=…), or an array of one ε for each row"
        )
    made = Budgets(budgets, delta, person=ids if np.size(ids) == np.size(budgets) else None)
    if len(made) != rows:
        raise InvalidInput(f"budgets has {len(made):,} entries and X {rows:,} rows; give one ε for each row")
    if ids is not None and made.person is None:
        raise InvalidInput(f"ids has {np.size(ids):,} entries and X {rows:,} rows; give each row's owner")
    return made


def _whole(budgets: Any) -> Any:
    """`Budgets` that scikit-learn cut by rows (`Budgets.__array__`), or ``budgets`` as they are.

    By id they serve any rows, so they come back whole. Without ids nobody can say any more whose each one is.
    """
    if not isinstance(budgets, np.ndarray) or budgets.dtype != object or not budgets.size:
        return budgets
    first = budgets.flat[0]
    if not isinstance(first, Budgets):
        return budgets
    if first.person is None or set(map(id, budgets.flat)) != {id(first)}:
        raise InvalidInput(
            "budgets are pp.Budgets without ids, or several of them, which cannot be cut by rows; give "
            "pp.Budgets(…, person=…) and ids=, or an array of one ε for each row"
        )
    return first


def _require_fitting(budgets: Budgets, ids: Any, rows: int) -> None:
    if budgets.person is not None and ids is None:
        raise InvalidInput("budgets are of people by id; give ids=, the id of each row's owner in the order of X")
    if budgets.person is None and ids is not None:
        raise InvalidInput("ids are given, but budgets have none; give pp.Budgets(…, person=ids)")
    if budgets.person is None and len(budgets) != rows:
        raise InvalidInput(f"budgets has {len(budgets):,} entries and X {rows:,} rows; give one ε for each row")
