"""Rates by a fitted curve that is taken for a bound, as in Liu et al. (2024), Algorithm 2: it keeps NO promise.

A fit is no bound: on the settings of their Figure 5 a record with budget 0.2 gets a rate whose tightest Rényi bound
is 0.94. `privypurse.assignment.CurveFit` checks every fitted rate; this does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privypurse.accounting import CertifiedTable, SampledGaussian, accountant_named
from privypurse.assignment import curve_fit
from privypurse.assignment.method import Assignment, Calibrator
from privypurse.assignment.sample import solved_noise
from privypurse.budgets.levels import Levels
from privypurse.federated.terms import Terms


@dataclass(frozen=True)
class TrustedCurve:
    """A method for `pp.plan`, whose plan promises nothing; σ is given, or the one that Sample would solve."""

    name: ClassVar[str] = "curve-fit-as-published"

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        given, steps = calibrator.shape.noise_multiplier, calibrator.shape.steps
        sigma = solved_noise(levels, calibrator) if given is None else given
        rate = np.empty(levels.epsilon.size)
        for delta in np.unique(levels.delta):
            rows = levels.delta == delta
            curve = curve_fit.fit(lambda q: SampledGaussian(q, sigma, steps), float(delta))
            rate[rows] = curve.rate(levels.epsilon[rows])
        return Assignment(
            noise_multiplier=sigma,
            rate=rate,
            clip_norm=np.full(rate.size, calibrator.shape.clip_norm),
            capped=rate >= 1.0,
            from_budgets=given is None,
            keeps_budgets=False,
            notes=("rates trust a fitted curve",),
        )


@dataclass(frozen=True)
class Compared:
    """Rates by the certified table and by the trusted curve, for the same budgets and terms."""

    records: int
    overspent_certified: int
    overspent_published: int
    left_certified: float
    """Mean share of ε that is left."""
    left_published: float
    worst_published: float
    """The largest ε spent over the ε granted."""


def compare_rates(terms: Terms, epsilon: np.ndarray, table: CertifiedTable | None = None) -> Compared:
    """What federated records spend by either, against the adversary of the terms."""
    certified = (terms.table() if table is None else table).within(epsilon)
    fitted = curve_fit.fit(terms.faced, terms.delta).rate(epsilon)
    accountant = accountant_named(terms.accountant)

    def spent(rates: np.ndarray) -> np.ndarray:
        values, place = np.unique(rates, return_inverse=True)
        return np.asarray(accountant.epsilons([terms.faced(r) for r in values.tolist()], terms.delta)[place])

    ours, theirs = spent(certified), spent(_three_digits(fitted))
    return Compared(
        int(epsilon.size),
        int((ours > epsilon).sum()),
        int((theirs > epsilon).sum()),
        float((1 - ours / epsilon).mean()),
        float(np.maximum(1 - theirs / epsilon, 0).mean()),
        float((theirs / epsilon).max()),
    )


def _three_digits(rates: np.ndarray) -> np.ndarray:
    """So that a million rates are a few thousand different ones."""
    size = np.power(10.0, np.floor(np.log10(np.maximum(rates, 1e-12))) - 2)
    return np.asarray(np.minimum(np.round(rates / size) * size, 1.0))
