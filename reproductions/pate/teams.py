"""Who teaches whom, by method: shards, what a teacher's vote weighs, and in which queries it votes.

Noise is a share of the votes that are cast (`voting.Shares`), so a person whose teachers weigh s of V votes pays
(s/V)² a query. All methods have teachers of the same size, about people / teachers records: a label is as good by all
of them, and what differs is how many there are. If everyone's s is in proportion to the root of their purse P, all
are empty at once, and there are (Σ√P / n)² / min P times as many labels as with one teacher for each record.

No way to share votes gives more. With m records a teacher the shares s_it/V_t of query t add up to m over all people.
L labels leave Σ_t (s_it/V_t)² ≤ P_i/c, so Σ_t s_it/V_t ≤ √(L·P_i/c) (Cauchy-Schwarz), and the sum over people says
L·m ≤ √(L/c)·Σ√P_i.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privypurse._validate import one_of
from privypurse.accounting.filters import Filter
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput
from reproductions.pate.voting import fixed_orders


@dataclass(frozen=True, eq=False)
class Teams:
    """Shards as pairs (person, teacher), and every teacher's weight and frequency."""

    person: AnyArray
    teacher: AnyArray
    weights: FloatArray
    frequency: FloatArray
    """The share of queries in which a teacher votes."""

    @property
    def teachers(self) -> int:
        return int(self.weights.size)

    def present(self, query: int) -> AnyArray:
        """Who votes on this query: everyone as often as their frequency says, evenly spread, by numbers alone."""
        phase = np.arange(self.teachers) * 0.6180339887498949 % 1
        return np.floor((query + 1) * self.frequency + phase) > np.floor(query * self.frequency + phase)


def purses(epsilon: FloatArray, delta: float) -> FloatArray:
    """What each (ε, δ) holds, in Gaussian releases of one size: the Rényi purse over its order."""
    currency = fixed_orders(epsilon, delta)
    held = Filter(epsilon, np.full(epsilon.shape, delta), currency).total / currency.order
    if not held.all():
        raise InvalidInput(f"ε = {epsilon[held == 0][0]} at δ = {delta} pays for nothing; leave such budgets out")
    return held


def _shards(people: AnyArray, copies: AnyArray, teachers: int, rng: np.random.Generator) -> tuple[AnyArray, AnyArray]:
    """Deal everyone's copies to teachers in turn, people in random order: no teacher gets one twice."""
    if copies.max(initial=1) > teachers:
        raise InvalidInput(f"there are {teachers} teachers for up to {copies.max()} copies; take more teachers")
    order = rng.permutation(people.size)
    person = np.repeat(people[order], copies[order])
    return person, np.arange(person.size) % teachers


def _alike(person: AnyArray, teacher: AnyArray, teachers: int) -> Teams:
    return Teams(person, teacher, np.ones(teachers), np.ones(teachers))


def plain(epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator) -> Teams:
    """Papernot et al. (2018): disjoint shards. Every teacher is silent once its strictest member has to be."""
    everybody = np.arange(epsilon.size)
    return _alike(*_shards(everybody, np.ones_like(everybody), teachers, rng), teachers)


def exclude(epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator) -> Teams:
    """Those below a threshold teach nobody: the one with the most labels, n(t)² · P(t). Fewer teachers, as large."""
    levels = np.unique(epsilon)
    left = np.array([(epsilon >= level).mean() for level in levels])
    best = int(np.argmax(left**2 * purses(levels, delta)))
    people = np.flatnonzero(epsilon >= levels[best])
    fewer = max(round(teachers * left[best]), 1)
    return _alike(*_shards(people, np.ones_like(people), fewer, rng), fewer)


def copies(epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator, multiple: int = 1) -> Teams:
    """Boenisch et al. (2023), upsampling: records in several shards, as many more teachers of the same size.

    In proportion to √P, rounded, where the paper has ε: 1, 2 and 3 copies for ε 1, 2, 3 by both. ``multiple`` comes
    nearer to the proportion, with as many times more teachers.
    """
    purse = purses(epsilon, delta)
    each = np.maximum(np.rint(multiple * np.sqrt(purse / purse.min())), 1).astype(np.int64)
    more = round(teachers * float(each.mean()))
    return _alike(*_shards(np.arange(epsilon.size), each, more, rng), more)


def _by_level(epsilon: FloatArray, teachers: int, rng: np.random.Generator) -> tuple[AnyArray, AnyArray, FloatArray]:
    """Disjoint shards of people with the same ε: pairs, and every teacher's ε."""
    levels, people = np.unique(epsilon, return_counts=True)
    if levels.size > teachers:
        raise InvalidInput(f"there are {levels.size} levels of ε for {teachers} teachers; take more teachers")
    exact = people / people.sum() * teachers
    number = np.maximum(np.floor(exact), 1).astype(np.int64)
    number[np.argsort(number - exact)[: max(teachers - int(number.sum()), 0)]] += 1
    person, teacher, first = [], [], 0
    for level, count in zip(levels, number.tolist(), strict=True):
        some = np.flatnonzero(epsilon == level)
        who, where = _shards(some, np.ones_like(some), count, rng)
        person.append(who)
        teacher.append(where + first)
        first += count
    return np.concatenate(person), np.concatenate(teacher), np.repeat(levels, number)


def weighting(epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator) -> Teams:
    """Boenisch et al. (2023), weighting: shards of equal budgets, votes that weigh √P, 1 on average."""
    person, teacher, level = _by_level(epsilon, teachers, rng)
    root = np.sqrt(purses(level, delta))
    return Teams(person, teacher, root / root.mean(), np.ones(level.size))


def vanishing(epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator) -> Teams:
    """The third way in Boenisch et al.'s code: shards of equal budgets that vote in a share P / max P of queries."""
    person, teacher, level = _by_level(epsilon, teachers, rng)
    purse = purses(level, delta)
    return Teams(person, teacher, np.ones(level.size), purse / purse.max())


METHODS: dict[str, Callable[[FloatArray, float, int, np.random.Generator], Teams]] = {
    "plain": plain,
    "exclude": exclude,
    "copies": copies,
    "weighting": weighting,
    "vanishing": vanishing,
}


def teams(method: str, epsilon: FloatArray, delta: float, teachers: int, rng: np.random.Generator) -> Teams:
    """Shards and weights by the name of a method."""
    one_of(method, "method", METHODS)
    return METHODS[method](epsilon, delta, teachers, rng)
