"""Confident votes of teachers, for which everyone pays out of a purse of their own.

Teachers are trained on shards of people's records, without noise, and vote on public inputs. Confident-GNMax
(Papernot et al. 2018, arXiv 1802.08908, Algorithm 1): with n the counts of votes by class, the test asks whether
max n + N(0, σ₁²) ≥ T. If so, argmax(n + N(0, σ²·1)) is the label; if not, it is said that there is none.

**What a query costs one person.** Neighbours are "the person's records are in the shards" and "they contribute
nothing"; everybody's budget and place in the shards stay. Teacher j's vote weighs w_j. Taking a person out may turn
the votes of the teachers that hold a record of theirs, each from one class to any other, and no other vote. Let s be
the sum of w_j over those of these teachers that vote.

- No count moves by more than s, so the largest does not either. The test is post-processing of N(max n, σ₁²). At
  order α it costs α·s²/(2σ₁²) (Mironov 2017, arXiv 1702.07476, Proposition 7), *passed or not*.
- Teacher j moves the counts by w_j·(e_b - e_a), whose length is √2·w_j, so that all together move them by √2·s at
  most, and by as much where all turn alike. The label is post-processing of N(n, σ²·1): α·(√2·s)²/(2σ²) = α·s²/σ².

A record in k teachers of weight 1 pays k² times what one in a single teacher does (Boenisch et al. 2023, arXiv
2202.10517, for their upsampling). Nothing of this depends on how teachers voted. The cost that does (Papernot et al.
2018, Theorem 6) is lower where they agree, but it is a function of the data: a stop that follows from it tells about
them, and so does the cost itself.

**Composition.** s follows from who still votes, and that from which earlier tests passed: costs that are chosen as
one goes along. So they are added up at one order for each person, fixed beforehand (`RenyiCurrency`; Feldman & Zrnic
2021, arXiv 2008.11193, Theorem 4.3), and a filter lets nobody pay more than their purse holds: a teacher that holds
somebody who could not pay for test and label is silent from then on, and nobody pays for it any more. Who is silent
follows from the budgets, the shards and what was published, never from a record. The promise is about people's data,
given the list of all budgets (rule 7).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from privypurse.accounting.filters import Currency, Filter, RenyiCurrency, renyi_purse
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.randomness import Randomness

_ORDERS = 1 + np.geomspace(0.1, 1e5, 3_000)


class NobodyVotes(PrivyPurseError):
    """Every teacher holds somebody who cannot pay for another query."""


@dataclass(frozen=True)
class Shares:
    """Noise and threshold as shares of the votes that are cast, so that labels are as good however many vote.

    The default is Boenisch et al.'s for MNIST: σ = 40, σ₁ = 150 and T = 200 for 250 votes.
    """

    label: float = 40 / 250
    test: float = 150 / 250
    threshold: float = 200 / 250

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"Shares.{name} is {value}; it must be a number above 0")

    def costs(self, currency: Currency, touched: FloatArray, cast: float) -> tuple[FloatArray, FloatArray]:
        """What the test and the label cost who could turn votes that weigh ``touched`` of the ``cast`` ones."""
        share = touched / cast
        return currency.gaussian(share / self.test), currency.gaussian(math.sqrt(2) * share / self.label)


def fixed_orders(epsilon: FloatArray, delta: float) -> RenyiCurrency:
    """Everyone's order for a filter of Gaussian releases alone: a function of their own (ε, δ) and nothing else.

    The cost grows as the order, so a purse pays for most where purse / order is largest.
    """
    levels, place = np.unique(np.asarray(epsilon, dtype=np.float64), return_inverse=True)
    best = (renyi_purse(_ORDERS, levels[:, None], np.full((1, 1), delta)) / _ORDERS).argmax(axis=1)
    return RenyiCurrency(_ORDERS[best][place])


def membership(person: AnyArray, teacher: AnyArray, people: int, teachers: int) -> sparse.csr_array:
    """Who is in whose shard, [people, teachers], from pairs; several records in one shard count once."""
    holds = sparse.csr_array((np.ones(len(person)), (person, teacher)), shape=(people, teachers))
    holds.sum_duplicates()
    holds.data[:] = 1.0
    return holds


class ConfidentVotes:
    """Confident-GNMax under everyone's own purse.

    Guarantee: whatever inputs are asked about and however they were chosen, nobody's queries cost more than their
    (ε, δ) holds in the filter's currency; test and label are charged before their noise is drawn.
    """

    def __init__(
        self, holds: sparse.csr_array, weights: FloatArray, purses: Filter, shares: Shares, source: Randomness
    ) -> None:
        people, teachers = holds.shape
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (teachers,) or not (np.isfinite(weights) & (weights > 0)).all():
            raise InvalidInput(f"weights must be {teachers} numbers above 0, one for each teacher")
        if purses.total.shape != (people,):
            raise InvalidInput(f"purses has {purses.total.size:,} purses; the teachers hold {people:,} people")
        if not (holds.data == 1).all():
            raise InvalidInput("holds must be 0 or 1; make it by membership()")
        self._holds, self._weights, self._purses, self._shares, self._source = holds, weights, purses, shares, source
        self._priced: tuple[FloatArray, FloatArray, FloatArray] | None = None  # votes as last cast, and their costs
        self.silent = np.zeros(teachers, dtype=bool)
        self.asked = self.answered = 0

    def ask(self, votes: AnyArray, classes: int, present: AnyArray | None = None) -> int | None:
        """The label of one public input, or None where the test does not pass; `NobodyVotes` once all are silent.

        ``votes`` is every teacher's class; ``present`` says who may vote this time, by a public rule.
        """
        cast = self._who_votes(np.ones_like(self.silent) if present is None else np.asarray(present, dtype=bool))
        total = float(cast.sum())
        test, label = self._costs(cast)
        counts = np.bincount(votes, weights=cast, minlength=classes)
        self._purses.charge(test)
        self.asked += 1
        noise = float(self._source.normal(1, deviation=self._shares.test * total)[0])
        if counts.max() + noise < self._shares.threshold * total:
            return None
        self._purses.charge(label)
        self.answered += 1
        noisy = counts + self._source.normal(classes, deviation=self._shares.label * total).numpy()
        return int(noisy.argmax())

    def _who_votes(self, present: AnyArray) -> FloatArray:
        """The weight of every vote that is cast, 0 for who is silent.

        Noise is a share of the votes, so with fewer of them each weighs and costs more: until all can pay.
        """
        while True:
            cast = np.where(present & ~self.silent, self._weights, 0.0)
            if not cast.any():
                raise NobodyVotes("every teacher holds somebody who cannot pay for another query")
            test, label = self._costs(cast)
            poor = self._purses.spent + test + label > self._purses.total
            if not poor.any():
                return cast
            self.silent |= (self._holds.T @ poor.astype(np.float64) > 0) & (cast > 0)

    def _costs(self, cast: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What test and label cost everyone; mostly the same votes are cast as before."""
        if self._priced is None or not np.array_equal(cast, self._priced[0]):
            touched, total = self._holds @ cast, float(cast.sum())
            self._priced = cast, *self._shares.costs(self._purses.currency, touched, total)
        return self._priced[1:]
