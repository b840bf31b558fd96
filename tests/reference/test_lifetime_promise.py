"""Rule 14: what a purse promises for life, against planners in tiny worlds who see outputs (docs/ledger-proofs.md).

The right rule is that of `privypurse.ledger.lifetime`: its orders and limits. Probabilities, divergences and δ are
computed by `lifetime_worlds` alone. Every twin breaks one rule; the worst planner against it exceeds the promise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lifetime_worlds import (
    UNITS_PER_NAT,
    Account,
    Channel,
    Costs,
    Purse,
    Use,
    most_delta,
    most_excess,
    plus,
    randomised_response,
    told,
)
from privypurse.accounting import PureDP, gdp
from privypurse.accounting.filters import renyi_purse
from privypurse.accounting.rdp import ORDERS
from privypurse.ledger.lifetime import CEILING, ApproximateDP, Lifetime

DELTA = 1e-5
LIFETIME = Lifetime.of([(0.5, DELTA), (1.0, DELTA)])

# Channels that were found by maximising δ(1) against each twin at the orders 28 and 16 of this ladder; rounded.
WHOLE = Channel.of("0.0001628", "0.0000562158")  # the whole purse of ε = 1 at order 16
WHOLE_STRICT = Channel.of("0.00026764", "0.000156287")  # the whole purse of ε = 0.5 at order 28
FIRST = Channel.of("0.0004085466", "0.0002779033")
IF_RARE = Channel.of("0.6071", "0.31603")  # cheap at order 28 where FIRST gave its rare output
IF_USUAL = Channel.of("0.000145239", "0.0000501786")  # cheap at order 16 where it did not
BEFORE_RAISE = Channel.of("0.5134", "0.39665")
AFTER_RAISE = Channel.of("0.00753", "0.0033583")
SLIGHT = Channel.of("0.2089", "0.1917")
NEARLY_PURE = Channel.of("0.708", "0.274")
RESPONSE = randomised_response("5/4")
RESPONSES = randomised_response("7/5")
HALVES = (Channel.of("0.01253", "0.009506"), Channel.of("0.0121", "0.0071018"))  # of the purses of ε = 0.5 and ε = 1
MENU = (WHOLE, WHOLE_STRICT, FIRST, IF_RARE, IF_USUAL, BEFORE_RAISE, AFTER_RAISE, SLIGHT, NEARLY_PURE, RESPONSE)


def orders(lifetime: Lifetime) -> list[float]:
    return [rung.order for rung in lifetime.rungs]


def limits(lifetime: Lifetime) -> list[list[int | None]]:
    return [[None if limit >= CEILING else limit for limit in row] for row in lifetime.limits.tolist()]


def uses(*channels: Channel) -> list[Use]:
    return [Use.of(channel) for channel in channels]


# --- The right rule ------------------------------------------------------------------------------------------------


def test_the_channels_belong_to_these_orders() -> None:
    assert orders(LIFETIME) == [28.0, 16.0]


@pytest.mark.parametrize("rung", [0, 1])
def test_no_planner_gets_more_than_the_promise_and_the_best_one_gets_nearly_all(rung: int) -> None:
    """Every planner of five moves: any release of the menu, raise, lower. Never above ``rung``: its own promise."""
    purse = Purse(orders(LIFETIME), limits(LIFETIME)[: rung + 1], uses(*MENU))
    reached = most_delta(purse, LIFETIME.rungs[rung].epsilon, moves=5)
    assert 0.99 * DELTA < reached <= DELTA


def test_jointly_each_rung_has_its_own_epsilon_and_the_deltas_add_up() -> None:
    """Each transcript at the ε of the highest rung that it reached: one δ for all of them would not do."""
    purse = Purse(orders(LIFETIME), limits(LIFETIME), uses(*MENU, Channel.of("0.0000861", "0.0000297077")))
    reached = most_excess(purse, [rung.epsilon for rung in LIFETIME.rungs], moves=5)
    assert 1.5 * DELTA < reached <= 2 * DELTA


@pytest.mark.parametrize("rung", [0, 1])
def test_two_runs_at_once_that_settle_for_less_keep_the_promise(rung: int) -> None:
    """Runs of two steps: reserved whole, begun in any order, settled at any time, clipped to less than reserved."""
    of = LIFETIME.rungs[rung]
    little = Channel.of("0.0001", "0.00008")
    menu = [Use.of(HALVES[rung]), Use.of(HALVES[rung], little), Use.of(randomised_response("11/10"), little)]
    purse = Purse(orders(LIFETIME), limits(LIFETIME)[: rung + 1], menu, steps=2)
    reached = most_delta(purse, of.epsilon, moves=8)
    assert 0.8 * DELTA < reached <= DELTA


@pytest.mark.parametrize(
    "grants",
    [
        [(2.61, 1e-5), (2.62, 1e-5)],  # the limit falls from one rung to the next
        [(1.0, 1e-5), (1.1, 1e-6)],  # and here δ does
        [(0.3, 0.01), (0.5, 0.02), (0.8, 0.02)],
        [(0.1, 1e-3), (4.0, 1e-2), (6.0, 1e-6), (8.0, 1e-9)],
    ],
)
def test_random_menus_on_other_ladders(grants: list[tuple[float, float]]) -> None:
    lifetime = Lifetime.of(grants)
    rng = np.random.default_rng(7)
    for _ in range(3):
        for rung, of in enumerate(lifetime.rungs):
            menu = [random_channel(rng, of.order, of.limit / UNITS_PER_NAT) for _ in range(7)]
            purse = Purse(orders(lifetime), limits(lifetime)[: rung + 1], uses(*menu))
            assert most_delta(purse, of.epsilon, moves=4) <= of.delta


def random_channel(rng: np.random.Generator, order: float, held: float) -> Channel:
    """A channel that takes a random share of a purse at this order, up to the whole of it."""
    rare = 10 ** rng.uniform(-6, -0.3)
    share = held * rng.choice([1.0, 1.0, rng.uniform(0.05, 1)])
    likelier = np.geomspace(rare, 0.999, 4000)
    pairs = [(likelier, rare), (rare, likelier)]
    moments = [
        np.logaddexp(order * np.log(p) + (1 - order) * np.log(q), order * np.log1p(-p) + (1 - order) * np.log1p(-q))
        for p, q in pairs
    ]
    fits = likelier[np.maximum(*moments) <= (order - 1) * share]
    return Channel.of(repr(float(fits.max(initial=rare))), repr(rare))


@pytest.mark.parametrize("odds", ["2", "5/4", "101/100", "1000001/1000000", "1000"])
def test_randomised_responses_are_charged_their_divergence_rounded_up(odds: str) -> None:
    lifetime = Lifetime.of([(0.25, 1e-6), (1.0, 1e-5), (8.0, 1e-5)])
    epsilon = math.nextafter(math.log(Fraction(odds)), math.inf)
    charged = lifetime.charges_of([PureDP(epsilon)])[0]
    for order, units in zip(orders(lifetime), charged.tolist(), strict=True):
        least = randomised_response(odds).units(order)
        assert least <= units <= least * (1 + 1e-9) + 1


def leaking(epsilon_odds: str, delta: str) -> Channel:
    """The worst (ε, δ)-DP channel: randomised response, but with probability δ it tells (Kairouz et al. 2015)."""
    leak, truth = Fraction(delta), randomised_response(epsilon_odds).outputs[0][0]
    told = ((leak, Fraction(0)), (Fraction(0), leak))
    return Channel((*told, *(((1 - leak) * p, (1 - leak) * q) for p, q in ((truth, 1 - truth), (1 - truth, truth)))))


class WithAPartSetApart(Purse):
    """Columns beside the orders: ε and δ of releases that are known by them alone."""

    def costs(self, channel: Channel) -> Costs:
        if min(map(min, channel.outputs)) > 0:
            return (*(channel.units(order) for order in self.orders), 0, 0)
        (leak, _), *_, (_, _) = channel.outputs
        (p, q) = channel.outputs[2]
        epsilon = math.nextafter(math.log(p / q), math.inf)
        return tuple(SET_APART.charges_of([ApproximateDP(epsilon, math.nextafter(float(leak), 1))])[0].tolist())


SET_APART = Lifetime.of([(1.0, DELTA), (2.0, DELTA)], set_apart=0.4)


@pytest.mark.parametrize("rung", [0, 1])
def test_a_part_set_apart_pays_for_what_is_known_as_epsilon_and_delta(rung: int) -> None:
    of = SET_APART.rungs[rung]
    rng = np.random.default_rng(11)
    menu = [leaking("6/5", "0.000002"), leaking("29/20", "0.0000039"), leaking("11/5", "0.0000019")]
    menu += [random_channel(rng, of.order, of.limit / UNITS_PER_NAT) for _ in range(5)]
    reached = most_delta(
        WithAPartSetApart(orders(SET_APART), limits(SET_APART)[: rung + 1], uses(*menu)), of.epsilon, 4
    )
    assert 0.3 * DELTA < reached <= DELTA


# --- The twins -----------------------------------------------------------------------------------------------------


def purses(epsilon: float) -> list[int]:
    """What (ε, δ) holds at each order of the ladder."""
    return [math.floor(float(renyi_purse(np.array(order), epsilon, DELTA)) * UNITS_PER_NAT) for order in (28.0, 16.0)]


class BestOrderAtTheEnd(Purse):
    """Goes on while the sum at *some* order still gives (ε, δ)."""

    def fits(self, account: Account, sums: Costs) -> bool:
        return any(total <= limit for total, limit in zip(sums, purses(1.0), strict=True))


class OrderPerRun(Purse):
    """Keeps the share of the purse that is used up, each run's at the order that is best for it."""

    def costs(self, channel: Channel) -> Costs:
        held = renyi_purse(ORDERS, np.array(1.0), np.array(DELTA))
        of = [(order, purse) for order, purse in zip(ORDERS.tolist(), held.tolist(), strict=True) if purse > 0.01]
        return (min(math.ceil(channel.units(order) / purse) for order, purse in of),)


class OutputSpecific(Purse):
    """Charges what the output that came out cost, |log P/Q|, and gives the rest back."""

    def after(self, account: Account, use: int, output: int) -> Account:
        p, q = self.uses[use].made.outputs[output]
        told = math.ceil(abs(math.log(p / q)) * UNITS_PER_NAT)
        return replace(account, sums=plus(account.sums, tuple(min(told, cost) for cost in self.made[use])))


class Estimated(Purse):
    """Charges an estimate that is less than what was contributed, as every-K norms without clipping may be."""

    def after(self, account: Account, use: int, output: int) -> Account:
        return replace(account, sums=plus(account.sums, tuple(cost // 2 for cost in self.made[use])))


class OnlySinceTheRaise(Purse):
    """Compares the limit of a new rung with charges since the raise."""

    def on_rung(self, account: Account, rung: int) -> Account:
        moved = super().on_rung(account, rung)
        return replace(moved, sums=(0,) * len(account.sums)) if rung > account.rung else moved


class LostReservation(Purse):
    """Two runs that each look at the balance alone."""

    def fits(self, account: Account, sums: Costs) -> bool:
        reserved = account.sums
        for run in account.runs:
            reserved = plus(reserved, self.paid[run.use], -self.steps)
        return super().fits(account, plus(sums, tuple(a - b for a, b in zip(reserved, account.sums, strict=True))))


class DeltaAnew(Purse):
    """Ten runs that are each planned at (ε/10, δ): the ε add up, every run has the whole δ."""

    def costs(self, channel: Channel) -> Costs:
        return (UNITS_PER_NAT // 10,)


TOP: list[list[int | None]] = [[None, LIFETIME.rungs[1].limit]]
TWINS = {
    "the best order at the end": (BestOrderAtTheEnd([28.0, 16.0], TOP, uses(*MENU)), 3, 1.8e-5),
    "an order for each run, adding up shares of the purse": (
        OrderPerRun([], [[UNITS_PER_NAT]], uses(SLIGHT, NEARLY_PURE)),
        3,
        3.9e-3,
    ),
    "a refund by the output, ten releases": (OutputSpecific([28.0, 16.0], TOP, uses(IF_USUAL)), 10, 8.7e-5),
    "charges by an estimate of half the cost": (Estimated([28.0, 16.0], TOP, uses(*MENU)), 3, 1e-4),
    "the new rung's limit with charges only since the raise": (
        OnlySinceTheRaise([28.0, 16.0], limits(LIFETIME), uses(*MENU)),
        3,
        2.4e-4,
    ),
    "two runs that look at the balance alone, reservations not counted": (
        LostReservation([28.0, 16.0], TOP, uses(RESPONSES, RESPONSE, WHOLE), steps=1),
        5,
        4e-5,
    ),
    "δ anew for each of ten runs, at ε/10 each": (
        DeltaAnew([], [[UNITS_PER_NAT]], uses(Channel.of("0.00001", "0"))),
        10,
        9.99e-5,
    ),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_exceeds_the_promise(twin: str) -> None:
    purse, moves, at_least = TWINS[twin]
    reached = most_delta(purse, 1.0, moves)
    assert reached > at_least > DELTA
    assert told(twin) == pytest.approx(reached, rel=0.03)


OWN_RUNG = {
    "the limit falls": ([(2.61, 1e-5), (2.62, 1e-5)], ("0.0000624", "0.0000144397"), ("0.7325", "0.20061")),
    "δ falls": ([(1.0, 1e-5), (1.1, 1e-6)], ("0.0000327", "0.000010227"), ("0.5", "0.4")),
}


@pytest.mark.parametrize("case", OWN_RUNG)
def test_a_limit_at_ones_own_order_alone_breaks_the_promise_of_the_next_rung(case: str) -> None:
    """Stay on the lower rung after one output, be raised after the other: the best order at the end again."""
    grants, *pairs = OWN_RUNG[case]
    lifetime = Lifetime.of(grants)
    menu = uses(*(Channel.of(*pair) for pair in pairs), Channel.of("0.00004672", "0.00000293098"))
    own = [[limit if k == j else None for k, limit in enumerate(row)] for j, row in enumerate(limits(lifetime))]
    of = lifetime.rungs[1]
    assert most_delta(Purse(orders(lifetime), own, menu), of.epsilon, 4) > 1.2 * of.delta
    assert most_delta(Purse(orders(lifetime), limits(lifetime), menu), of.epsilon, 4) <= of.delta


def test_two_halves_of_a_purse_on_the_same_counts_are_more_than_one() -> None:
    """Why two ids cannot be merged: each half pays for a contribution of μ/√2; together it is √2·μ, not μ."""
    whole = float(gdp.mu(1.0, DELTA))
    assert float(gdp.epsilon(2 * whole / math.sqrt(2), DELTA)) == pytest.approx(1.465, abs=0.001)
