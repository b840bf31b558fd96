"""A purse in two parts, for two uses one after the other: what the first is given, and all that it leaves.

Basic composition (Dwork et al. 2006, "Our data, ourselves", Theorem 1), with a purse of one's own for each person: if
the first use is (ε′, δ′)-DP for a person, and the second, whatever the first told, is (ε - ε′, δ - δ′)-DP for them,
both together are (ε, δ)-DP for that person. The second may depend on everything that the first released.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privypurse._validate import real
from privypurse.arrays import FloatArray
from privypurse.budgets import ladder
from privypurse.budgets.budgets import Budgets


@dataclass(frozen=True, eq=False)
class Split:
    """Guarantee: for each record the two ε add up to no more than the whole one's, and so do the two δ, exactly.

    Where a public cap was given, the first ε and the smaller of the second and ``rest_at_most`` keep that too.
    """

    first: Budgets
    rest: Budgets
    rest_at_most: float | None


def split(budgets: Budgets, share: float, at_most: float | None = None) -> Split:
    """A share of every ε and δ, and what is left of them; everybody's own follows from their own purse alone.

    ``at_most``: a public cap on what both may cost anybody; the share is then one of no more than that.
    """
    real(share, "share", above=0, most=0.5, hint="the first part of every purse, as in 0.05")
    whole = budgets.epsilon if at_most is None else np.minimum(budgets.epsilon, real(at_most, "at_most", above=0))
    epsilon = _rung(share * whole)
    one = budgets.delta[:1] if budgets.one_delta else budgets.delta
    delta = share * one if budgets.one_delta else ladder.one_digit_floor(share * one)
    deltas, left = (each[0] if budgets.one_delta else each for each in (delta, _less(one, delta)))
    cap = None if at_most is None else float(_less(np.asarray(at_most), _rung(np.asarray(share * at_most))))
    return Split(
        Budgets(epsilon, delta=deltas, person=budgets.person),
        Budgets(_less(budgets.epsilon, epsilon), delta=left, person=budgets.person),
        cap,
    )


def _rung(epsilon: FloatArray) -> FloatArray:
    """Rounded down as `Budgets.promised` would: what the first use does not take is the second's."""
    return ladder.rung_value(ladder.rung_below(epsilon))


def _less(whole: FloatArray, part: FloatArray) -> FloatArray:
    """``whole - part``, rounded down, for parts of at most a half: ``whole - rest`` is then exact (Sterbenz)."""
    rest = whole - part
    return np.where(whole - rest < part, np.nextafter(rest, 0.0), rest)
