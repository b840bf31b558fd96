"""Filters: purses for releases whose parameters are chosen as one goes along (rule 5).

A filter adds up what each person's releases cost in one currency and lets nobody go on who cannot pay. The sum is
compared with what the person's (ε, δ) holds in that currency, fixed before the first release. Sound although the
next release may depend on all earlier outputs, for three currencies:

- "rdp": Rényi divergence at *one* order for each person, fixed beforehand (Feldman & Zrnic 2021, arXiv 2008.11193,
  Theorem 4.3). Taking the best order in the end is not sound: later releases may have been chosen by which order
  still had room.
- "zcdp": ρ of zero-concentrated DP, which bounds every order at once (their Remark 4.4).
- "gdp": μ² of Gaussian DP, for unsampled Gaussian releases (Smith & Thakurta 2022, arXiv 2210.17520;
  Koskela, Tobaben & Honkela 2023, arXiv 2209.15596).
"""

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from privypurse.accounting import gdp
from privypurse.accounting.accountant import ROUND_UP
from privypurse.accounting.rdp import ORDERS, randomised_response
from privypurse.accounting.sampled_gaussian import TINY
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.errors import InvalidInput, PrivyPurseError

_SUMMING = 1 - 1e-8  # of a purse: what adding up ten million costs in double precision may hide


@dataclass(frozen=True)
class GaussianCurrency:
    """μ² of Gaussian DP: the exact currency for unsampled Gaussian releases."""

    name: str = "gdp"

    def purse(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        """How much a sum of costs may reach so that (ε, δ) holds, rounded down."""
        return _by_pair(epsilon, delta, lambda e, d: gdp.mu(e, d) ** 2 / ROUND_UP)

    def gaussian(self, ratio: FloatArray) -> FloatArray:
        """The cost, rounded up, of a contribution of ``ratio`` times the standard deviation of the noise on it."""
        return _square(ratio) * ROUND_UP

    def pure(self, epsilon: float) -> FloatArray:
        """The cost of an ε-DP release with δ = 0, rounded up: ε-DP implies μ-GDP with μ = 2Φ⁻¹(e^ε/(1+e^ε)).

        The trade-off function of randomised response, the worst of them, is two straight lines that meet where both
        errors are 1/(1+e^ε). That of μ-GDP goes through the same three points and is convex, so it lies below.
        """
        # The same number in two ways: each keeps its digits where the other would round them off.
        small = max(math.sqrt(2) * special.erfinv(math.tanh(min(epsilon, 1.0) / 2)), TINY)
        return _square(2 * (small if epsilon < 1 else -special.ndtri(special.expit(-epsilon)))) * ROUND_UP


@dataclass(frozen=True)
class ConcentratedCurrency:
    """ρ of zero-concentrated DP (Bun & Steinke 2016, arXiv 1605.02065): ratio²/2 if Gaussian, ε²/2 if ε-DP."""

    name: str = "zcdp"

    def purse(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        return _by_pair(epsilon, delta, _zcdp_within)

    def gaussian(self, ratio: FloatArray) -> FloatArray:
        return _square(ratio) / 2 * ROUND_UP

    def pure(self, epsilon: float) -> FloatArray:
        return _square(epsilon) / 2 * ROUND_UP


@dataclass(frozen=True, eq=False)
class RenyiCurrency:
    """Rényi divergence at an order of one's own: one for each person, fixed before the first release."""

    order: FloatArray
    name: str = "rdp"

    def __post_init__(self) -> None:
        order = np.asarray(self.order, dtype=np.float64)
        if not (np.isfinite(order) & (order > 1)).all():
            raise InvalidInput("orders must be finite and above 1")
        object.__setattr__(self, "order", frozen(order))

    def purse(self, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
        return renyi_purse(self.order, epsilon, delta)

    def gaussian(self, ratio: FloatArray) -> FloatArray:
        """Mironov (2017, arXiv 1702.07476), Proposition 7: α · ratio² / 2."""
        return self.order * _square(ratio) / 2 * ROUND_UP

    def pure(self, epsilon: float) -> FloatArray:
        return np.maximum(randomised_response(epsilon, self.order), TINY) * ROUND_UP


def _square(value: FloatArray | float) -> FloatArray:
    """Never 0 but for 0: a cost that is too small for a float is rounded up to one. ∞ where it is too large."""
    each = np.asarray(value, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        return np.where(each == 0, 0.0, np.maximum(each**2, 2 * TINY))


def renyi_purse(order: FloatArray, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """The Rényi divergence at this order from which (ε, δ) follows; 0 where none does.

    Canonne, Kamath & Steinke (2020, arXiv 2004.00010), Proposition 12, solved for ρ: ε - log((α-1)/α) + (log δ + log
    α)/(α-1).
    """
    held = epsilon - np.log1p(-1.0 / order) + (np.log(delta) + np.log(order)) / (order - 1.0)
    # Numbers of size ε and log(1/δ)/(α-1) are subtracted: lean down by more than their rounding.
    size = epsilon + 1.0 + np.abs(np.log(delta)) / (order - 1.0)
    return np.asarray(np.maximum(held - 1e-14 * size, 0.0), dtype=np.float64)


def best_order(cost: FloatArray, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """For each row of ``cost``, a release's divergence at each of `ORDERS`, the order at which a purse pays for most
    of it. Uses what is known beforehand alone, so a filter may fix it.
    """
    purses = renyi_purse(ORDERS, np.asarray(epsilon)[:, None], np.asarray(delta)[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(cost > 0, purses / cost, np.where(purses > 0, np.inf, 0.0))
    return np.asarray(ORDERS[np.argmax(times, axis=1)], dtype=np.float64)


Currency = GaussianCurrency | ConcentratedCurrency | RenyiCurrency
"""What a filter counts in. Costs add up."""
CURRENCIES: dict[str, Currency] = {"gdp": GaussianCurrency(), "zcdp": ConcentratedCurrency()}


def full_purse(currency: Currency, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """What a `Filter` lets somebody with (ε, δ) spend in all."""
    return currency.purse(epsilon, delta) * _SUMMING


class Filter:
    """Everyone's purse in one currency, and what was taken out of it.

    Guarantee: whatever was asked and however it was chosen, nobody's costs add up to more than their (ε, δ) holds in
    the filter's currency; a charge that would is refused whole, before anything is released. Check and charge are one
    step under ``lock``, whichever thread asks; who checks first and charges later holds it meanwhile.

    What is left, and whose purse is empty, is sensitive (rule 6).
    """

    def __init__(self, epsilon: FloatArray, delta: FloatArray, currency: str | Currency = "gdp") -> None:
        """``currency`` is "gdp", "zcdp", or a `RenyiCurrency`."""
        if isinstance(currency, str):
            if currency not in CURRENCIES:
                raise InvalidInput(
                    f"currency is {currency!r}; choose 'gdp', 'zcdp', or RenyiCurrency(order) with an order fixed "
                    "beforehand for each person"
                )
            currency = CURRENCIES[currency]
        self.currency = currency
        eps, dlt = np.broadcast_arrays(np.atleast_1d(np.asarray(epsilon, np.float64)), np.asarray(delta, np.float64))
        if not ((eps >= 0) & np.isfinite(eps) & (dlt > 0) & (dlt < 1)).all():
            raise InvalidInput("a filter needs ε ≥ 0 and δ in (0, 1) for everyone")
        self.total = frozen(full_purse(currency, eps, dlt))
        self.lock, self._process = threading.RLock(), os.getpid()
        self.spent = np.zeros(self.total.shape)

    def __getstate__(self) -> dict[str, object]:
        raise PrivyPurseError("a filter cannot be copied or pickled: its purses would be spent twice")

    @property
    def left(self) -> FloatArray:
        return np.asarray(np.maximum(self.total - self.spent, 0.0))

    def affords(self, cost: FloatArray) -> AnyArray:
        """Who can pay this much. Sensitive."""
        return np.asarray(self.spent + cost <= self.total)

    def charge(self, cost: FloatArray) -> None:
        """Take this out of everyone's purse, or raise and take nothing."""
        each = np.broadcast_to(np.asarray(cost, dtype=np.float64), self.total.shape)
        if not (each >= 0).all():
            raise InvalidInput("a cost must be a number from 0 on")
        if os.getpid() != self._process:
            raise PrivyPurseError(
                "this filter belongs to the process that this one was forked from: its purses would be spent twice"
            )
        with self.lock:
            after = self.spent + each
            if (after > self.total).any():
                raise PrivyPurseError("a charge would overdraw a purse; ask affords() first")
            self.spent = after

    def restore(self, spent: FloatArray) -> None:
        """Go on from what was spent before. Purses never fill up again."""
        before = np.asarray(spent, dtype=np.float64)
        if before.shape != self.total.shape or not ((before >= 0) & (before <= self.total)).all():
            raise InvalidInput("what was spent before does not fit these purses")
        with self.lock:
            self.spent = np.maximum(self.spent, before)


def _zcdp_within(epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """A ρ that gives (ε, δ): the best over a fine grid of orders, each of which proves its own."""
    centre = 2 * np.log(1 / delta) / np.maximum(epsilon, 1e-12)
    shares = np.geomspace(1e-2, 1e2, 2001)
    # Where ε is small beside δ the best order is small too, and ε hangs on it more.
    small = np.broadcast_to(np.geomspace(5, 500, 4001), (centre.size, 4001))
    orders = 1 + np.concatenate([centre[:, None] * shares, small], axis=1)
    return np.asarray((renyi_purse(orders, epsilon[:, None], delta[:, None]) / orders).max(axis=1) / ROUND_UP)


def _by_pair(
    epsilon: FloatArray, delta: FloatArray, solve: Callable[[FloatArray, FloatArray], FloatArray]
) -> FloatArray:
    """Solve once for each different (ε, δ): a million people have few."""
    epsilons, first = np.unique(np.ravel(epsilon), return_inverse=True)
    deltas, second = np.unique(np.ravel(delta), return_inverse=True)
    pairs, place = np.unique(first * deltas.size + second, return_inverse=True)
    pieces = np.array_split(pairs, max(1, pairs.size // 1000))
    parts = [solve(epsilons[some // deltas.size], deltas[some % deltas.size]) for some in pieces]
    return np.concatenate(parts)[place].reshape(np.shape(epsilon))
