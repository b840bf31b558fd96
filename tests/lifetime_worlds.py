"""Tiny worlds in which the probability of every transcript is known exactly.

A *channel* is a release with a few outputs and rational probabilities, with the person and without them. A *purse*
says which moves are allowed and what they take; a planner who sees every output chooses among them. `worst_planner`
finds the choices that overspend most, by dynamic programming over every move, and `true_delta` measures them in exact
rationals. Nothing here uses the library's accounting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import mpmath as mp

UNITS_PER_NAT = 2**40
DIGITS = 50


def exact(value: Fraction) -> mp.mpf:
    return mp.mpf(value.numerator) / value.denominator


@dataclass(frozen=True)
class Channel:
    """The outputs of one release: pairs of their probabilities with the person and without."""

    outputs: tuple[tuple[Fraction, Fraction], ...]

    def __post_init__(self) -> None:
        assert [sum(column) for column in zip(*self.outputs, strict=True)] == [1, 1]

    @classmethod
    def of(cls, with_person: str, without: str) -> Channel:
        """Two outputs, by the probability of the first."""
        p, q = Fraction(with_person), Fraction(without)
        return cls(((p, q), (1 - p, 1 - q)))

    @cache  # noqa: B019 (a few dozen channels in all)
    def divergence(self, order: float) -> mp.mpf:
        """Rényi divergence, the worse of both directions, to 50 digits."""
        with mp.workdps(DIGITS):
            alpha = mp.mpf(order)
            one = sum(exact(p) ** alpha * exact(q) ** (1 - alpha) for p, q in self.outputs)
            other = sum(exact(q) ** alpha * exact(p) ** (1 - alpha) for p, q in self.outputs)
            return mp.log(max(one, other)) / (alpha - 1)

    def units(self, order: float) -> int:
        """The divergence in units of 2^-40 nats, rounded up."""
        with mp.workdps(DIGITS):
            return int(mp.ceil(self.divergence(order) * UNITS_PER_NAT))


def randomised_response(odds: str) -> Channel:
    """The truth with probability odds/(odds + 1): pure DP with ε = log(odds)."""
    truth = Fraction(odds) / (Fraction(odds) + 1)
    return Channel(((truth, 1 - truth), (1 - truth, truth)))


@dataclass(frozen=True)
class Use:
    """What a planner may do: a channel is paid for, and the person's data make one that costs no more."""

    paid: Channel
    made: Channel

    @classmethod
    def of(cls, paid: Channel, made: Channel | None = None) -> Use:
        return cls(paid, made or paid)


@dataclass(frozen=True)
class Run:
    """An open run: which use, how many of its reserved steps were made, how many not yet."""

    use: int
    done: int
    left: int


@dataclass(frozen=True)
class Account:
    rung: int
    sums: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    highest: int = 0
    """The highest rung reached."""


Move = tuple[Channel | None, tuple[Account, ...]]
"""A release and the account after each of its outputs; or no release, and the account after it."""
Costs = tuple[int, ...]


def plus(sums: Costs, costs: Costs, times: int = 1) -> Costs:
    return tuple(total + times * cost for total, cost in zip(sums, costs, strict=True))


class Purse:
    """The rule of docs/ledger-proofs.md: a use must fit at the order of one's own rung and of every rung above.

    ``limits[rung][column]`` in units; None where nothing limits. Moves: a use by itself (reserved at what is paid,
    settled at what was made), a raise, a lowering. With ``steps``, uses come in runs of so many steps instead:
    reserve, each step, settle at any time, at most two open. Twins override what they get wrong.
    """

    def __init__(
        self, orders: Sequence[float], limits: Sequence[Sequence[int | None]], uses: Sequence[Use], steps: int = 0
    ) -> None:
        self.orders, self.limits, self.uses, self.steps = tuple(orders), limits, tuple(uses), steps
        self.paid = [self.costs(use.paid) for use in self.uses]
        self.made = [self.costs(use.made) for use in self.uses]
        for made, paid in zip(self.made, self.paid, strict=True):
            assert all(one <= other for one, other in zip(made, paid, strict=True)), (
                "made must cost no more than paid"
            )

    def costs(self, channel: Channel) -> Costs:
        return tuple(channel.units(order) for order in self.orders)

    def start(self) -> Account:
        return Account(0, (0,) * len(self.costs(self.uses[0].paid)))

    def fits(self, account: Account, sums: Costs) -> bool:
        limits = self.limits[account.rung]
        return all(limit is None or total <= limit for total, limit in zip(sums, limits, strict=True))

    def after(self, account: Account, use: int, output: int) -> Account:
        return replace(account, sums=plus(account.sums, self.made[use]))

    def on_rung(self, account: Account, rung: int) -> Account:
        return replace(account, rung=rung, highest=max(rung, account.highest))

    def moves(self, account: Account) -> Iterator[Move]:
        for use, (paid, how) in enumerate(zip(self.paid, self.uses, strict=True)):
            reserved = plus(account.sums, paid, self.steps or 1)
            if len(account.runs) == 2 or not self.fits(account, reserved):
                continue
            if self.steps:
                yield None, (replace(account, sums=reserved, runs=(*account.runs, Run(use, 0, self.steps))),)
            else:
                yield how.made, tuple(self.after(account, use, output) for output in range(len(how.made.outputs)))
        for place, run in enumerate(account.runs):
            others = account.runs[:place] + account.runs[place + 1 :]
            if run.left:
                begun = replace(account, runs=(*others, Run(run.use, run.done + 1, run.left - 1)))
                made = self.uses[run.use].made
                yield made, (begun,) * len(made.outputs)
            spent = plus(account.sums, self.paid[run.use], -self.steps)
            yield None, (replace(account, sums=plus(spent, self.made[run.use], run.done), runs=others),)
        for rung in {account.rung - 1, account.rung + 1} & set(range(len(self.limits))):
            yield None, (self.on_rung(account, rung),)


@dataclass(frozen=True)
class Tree:
    """A planner: its next release, and how it goes on after each output; in the end the highest rung reached."""

    channel: Channel
    then: tuple[Tree | int, ...]


Transcript = tuple[Fraction, Fraction, int]
"""Its probabilities with the person and without, and the highest rung reached."""


def worst_planner(purse: Purse, epsilons: Sequence[float], moves: int, swapped: bool = False) -> Tree | int:
    """Of all planners with so many moves, the one with the largest `excess`; ``swapped``: in the other direction.

    It is a sum over transcripts, so the best way on from each account and likelihood ratio is found by itself.
    Searched in doubles; what is found is then measured exactly.
    """
    bounds = [math.exp(epsilon) for epsilon in epsilons]

    @cache
    def ways(account: Account) -> tuple[Move, ...]:
        return tuple(purse.moves(account))

    @cache
    def best(account: Account, seen: tuple[tuple[float, float], ...], left: int) -> tuple[float, Tree | int]:
        p, q = math.prod(pair[0] for pair in seen), math.prod(pair[1] for pair in seen)
        if swapped:
            p, q = q, p
        most: tuple[float, Tree | int] = (max(p - bounds[account.highest] * q, 0.0), account.highest)
        for channel, afters in ways(account) if left else ():
            if channel is None:
                found = best(afters[0], seen, left - 1)
            else:
                pairs = [tuple(sorted((*seen, (float(p), float(q))))) for p, q in channel.outputs]
                parts = [best(after, pair, left - 1) for after, pair in zip(afters, pairs, strict=True)]
                found = sum(value for value, _ in parts), Tree(channel, tuple(tree for _, tree in parts))
            if found[0] > most[0]:
                most = found
        return most

    return best(purse.start(), (), moves)[1]


def transcripts(tree: Tree | int, p: Fraction = Fraction(1), q: Fraction = Fraction(1)) -> Iterator[Transcript]:
    """Every transcript of a planner."""
    if isinstance(tree, int):
        yield p, q, tree
    else:
        for (with_person, without), then in zip(tree.channel.outputs, tree.then, strict=True):
            yield from transcripts(then, p * with_person, q * without)


def excess(found: Sequence[Transcript], epsilons: Sequence[float], swapped: bool = False) -> float:
    """The largest P(O) - Σ_k e^{ε_k}·Q(O, highest rung k) over all sets O; ``swapped``: with P and Q exchanged."""
    assert [sum(column) for column in list(zip(*found, strict=True))[:2]] == [1, 1]
    with mp.workdps(DIGITS):
        bounds = [mp.exp(mp.mpf(epsilon)) for epsilon in epsilons]
        pairs = [(exact(q), exact(p), rung) if swapped else (exact(p), exact(q), rung) for p, q, rung in found]
        return float(sum(max(p - bounds[rung] * q, mp.mpf(0)) for p, q, rung in pairs))


def true_delta(pairs: Sequence[tuple[Fraction, Fraction]], epsilon: float) -> float:
    """The smallest δ for which these transcripts are (ε, δ)-DP, in both directions."""
    found = [(p, q, 0) for p, q in pairs]
    return max(excess(found, [epsilon], swapped) for swapped in (False, True))


def most_excess(purse: Purse, epsilons: Sequence[float], moves: int) -> float:
    """What the worst planner reaches, in either direction."""
    both = (False, True)
    return max(excess(list(transcripts(worst_planner(purse, epsilons, moves, way))), epsilons, way) for way in both)


def most_delta(purse: Purse, epsilon: float, moves: int) -> float:
    """As `most_excess`, at one ε whichever rung was reached."""
    return most_excess(purse, [epsilon] * len(purse.limits), moves)


def told(twin: str) -> float:
    """What docs/ledger-proofs.md says that this twin reaches."""
    page = (Path(__file__).parents[1] / "docs" / "ledger-proofs.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    return next(float(cells[1]) for cells in rows if cells[0] == twin)
