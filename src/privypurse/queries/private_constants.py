"""Ends and categories that nobody knows, asked of the people in the data: each pays with a share of their own purse.

A person's weight wᵢ is what their share of (ε, δ) is worth as a contribution to noise of deviation 1. Noise, bins and
the threshold of categories are public constants and a weight follows from that person's own (ε, δ), so nothing here
is solved from all budgets (rule 7). Sums are of weights, not of people: who grants more is heard more.

*Ends.* A histogram on public bins, by the Gaussian mechanism: person i contributes a vector of norm wᵢ at most for
each column, and pays for it out of a filter in Gaussian DP (`noisy_sums`).

*Categories.* The words that people have are not public, so which sums are looked at follows from the data: a
stability-based histogram (Korolova et al. 2009; Bun, Nissim & Stemmer 2016, arXiv 1511.08552; with Gaussian noise
Lebeda & Retschmeier 2024, arXiv 2412.10357). In each column a person says one word, the one in most of their rows, of
several the first of their own; all other words are not looked at, since noise alone would tell one of many. Its
weights are added up with noise, and words whose sum reaches the threshold T are told. Why this is (ε′, δ_G + δ_T)-DP
for person i: let D′ be the data without i. Words that somebody else says too are looked at in D and in D′, and i
moves their sums, with those of all bins, by a vector that the filter has charged: (ε′, δ_G). A word that only i says
is told in D with probability Φ(wᵢ - T) and never in D′. Let H be D with these words left out and H′ be D′ with them
put in. The words' noise is independent of all else, so D and H differ by at most Σ Φ(wᵢ - T) ≤ δ_T in total
variation, and so do H′ and D′; H against D′ and D against H′ is the charged shift. Then P_D(E) ≤ P_H(E) + δ_T ≤ e^ε′
P_D′(E) + δ_G + δ_T, and P_D′(E) ≤ P_H′(E) + δ_T ≤ e^ε′ P_D(E) + δ_G + δ_T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from privypurse.accounting import gdp
from privypurse.accounting.filters import Filter
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.queries.contributions import Sparse, in_bins
from privypurse.queries.ledger_purses import LedgerPurses
from privypurse.queries.noise import Noise
from privypurse.queries.noisy_sums import Purses, noisy_sum

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

NOISE = 1.0
_HEAVIEST = 0.5
"""No weight is larger; it makes the threshold that much larger for everybody."""
_PUBLIC_DELTA = 1e-8
"""What the threshold is made for where everybody has a δ of their own."""
_INSIDE = 1 - 1e-9
"""More than the rounding of costs, which are compared with the purse."""
_GRID = 1e-6
"""More than the rounding of noise and sums to their grid."""


class PrivateConstants:
    """The people of some data, ready to be asked once about all columns.

    Guarantee: everything that it tells is (ε, δ)-DP for each person at the (ε, δ) of their share; under a ledger it
    is what the ledger was charged. Charged before anything is told.
    """

    def __init__(
        self,
        budgets: Budgets,
        owner: IntArray | None,
        purses: Purses,
        weights: FloatArray,
        categories: int,
        seed: int | None,
    ) -> None:
        self._owner = budgets.owner if owner is None else owner
        self._people = budgets.people
        self.purses, self.weights = purses, weights
        """Sensitive: they follow from everybody's budget."""
        self.threshold = math.inf
        self._left = categories
        self._source = Noise(seed)

    @classmethod
    def by_share(
        cls,
        part: Budgets,
        *,
        owner: IntArray | None = None,
        numbers: int,
        categories: int,
        seed: int | None = None,
    ) -> PrivateConstants:
        """Out of ``part``, everybody's share, to be asked about so many columns of either kind.

        ``owner``: for each row, whose of these purses pays for it; None where the rows are those of ``part``.
        """
        first = part.first_record
        delta = part.delta[first]
        by_noise, by_threshold = (delta / 2, delta / 2 / categories) if categories else (delta, delta)
        purses = Filter(part.promised, by_noise, "gdp")
        weights = np.minimum(np.sqrt(purses.total / (numbers + categories)) * _INSIDE, _HEAVIEST)
        made = cls(part, owner, purses, weights, categories, seed)
        if categories:
            public = float(delta[0]) if part.one_delta else _PUBLIC_DELTA
            made.threshold = float(_above(np.asarray(public / 2 / categories))) + _HEAVIEST
            # Whose δ is smaller than the public one speaks more softly: wᵢ ≤ T - Φ⁻¹(1 - δ).
            made.weights = np.clip(made.threshold - _above(by_threshold), 0.0, weights)
        return made

    @classmethod
    def by_ledger(
        cls,
        ledger: Ledger,
        budgets: Budgets,
        *,
        owner: IntArray | None = None,
        epsilon: float,
        delta: float,
        numbers: int,
        purpose: str = "",
        seed: int | None = None,
    ) -> PrivateConstants:
        """Charged for life: everybody alike, at most (ε, δ) by itself; who has less left contributes nothing.

        About ends alone: what a threshold takes of δ is nothing that a ledger can charge.
        """
        weight = min(float(gdp.mu(epsilon, delta)) / math.sqrt(numbers), _HEAVIEST) * _INSIDE
        purses = LedgerPurses(ledger, budgets, purpose)
        return cls(budgets, owner, purses, np.full(budgets.people, weight), 0, seed)

    def counts(self, places: Sequence[tuple[IntArray, int]]) -> list[FloatArray]:
        """For each column, of each row its bin (-1: none) and how many bins there are: the noisy weight in each bin.

        Several rows of one person count as one: what they add up to is clipped to norm 1 before it is weighted.
        """
        person, place, value = [], [], []
        ends = np.cumsum([0, *(size for _, size in places)])
        for (rows, size), begin in zip(places, ends, strict=False):
            one = in_bins(rows, self._owner, self._people, size).clipped(1.0)
            person.append(one.person)
            place.append(one.place + begin)
            value.append(one.value * self.weights[one.person])
        owners, bins, weights = map(np.concatenate, (person, place, value))
        whole = Sparse(owners, bins, weights, self._people, int(ends[-1]))
        return np.split(self._told(whole, self._most() * math.sqrt(len(places))), ends[1:-1])

    def common(self, words: IntArray, size: int) -> IntArray:
        """Of each row its word (-1: none) and how many words there are: the words that many people say.

        Which words there are is not public: only what is returned may be told.
        """
        if self._left < 1:
            raise InvalidInput("no column of categories is left to be asked about; name as many as there are")
        self._left -= 1
        person, word = said_most(words, self._owner)
        heard = self.weights[person] > 0  # whose δ is too small for the threshold says nothing
        person, word = person[heard], word[heard]
        sums = self._told(Sparse(person, word, self.weights[person], self._people, size), self._most())
        said = np.bincount(word, minlength=size) > 0  # a word of which nobody's δ knows is not looked at
        return np.flatnonzero(said & (sums >= self.threshold)).astype(np.int64)

    def _most(self) -> float:
        """The largest norm there can be in one column: a public number."""
        return _HEAVIEST if isinstance(self.purses, Filter) else float(self.weights[0])

    def _told(self, parts: Sparse, clip: float) -> FloatArray:
        return noisy_sum(parts, self.purses, clip=clip, noise=NOISE, source=self._source)


def _above(probability: AnyArray) -> FloatArray:
    """How far above a sum a threshold must lie so that noise reaches it with at most this probability."""
    return np.asarray(-special.ndtri(probability * _INSIDE) + _GRID)


def said_most(words: IntArray, owner: IntArray) -> tuple[IntArray, IntArray]:
    """Each person who says any word, and the one that most of their rows say; of several, the first in their rows.

    It follows from that person's rows alone (rule 12): the number of a word does not, and decides nothing.
    """
    rows = np.flatnonzero(words >= 0)
    size = int(words.max(initial=0)) + 1
    pairs, first, times = np.unique(owner[rows] * size + words[rows], return_index=True, return_counts=True)
    person = pairs // size
    order = np.lexsort((first, -times, person))
    begins = np.unique(person[order], return_index=True)[1]
    chosen = order[begins]
    return person[chosen], pairs[chosen] % size
