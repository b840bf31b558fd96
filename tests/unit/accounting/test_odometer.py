"""The odometer and its filter: an adversary who knows everything makes nobody overdraw, and every count is right."""

import functools
import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

import privypurse as pp
from privypurse.accounting import PLD, RDP, Composed, Odometer, SampledGaussian, odometer, sampled_step_filter
from privypurse.accounting.filters import renyi_purse
from privypurse.accounting.odometer import FOREVER, Reading
from privypurse.accounting.sampled_step_filter import StepFilter

GRID = 5
FINE = 2 * GRID  # norms are whole multiples of 1/FINE of a clip norm: so few that quadratures can be remembered


# --- The truth: Rényi divergence of the two mixtures by quadrature --------------------------------------------------


@functools.cache
def divergence(order, rate, noise):
    """The larger of both directions of N(0, σ²) and (1-q)·N(0, σ²) + q·N(1, σ²), at a real order."""
    if rate == 0 or math.isinf(noise):
        return 0.0
    return max(_log_moment(power, rate, noise) for power in (order, 1 - order)) / (order - 1)


def _log_moment(power, rate, noise):
    """log E[r^a] for the ratio r of the two densities, by E[r^a - 1 - a(r-1)] ≥ 0: E[r] is 1, and nothing cancels."""
    log_norm = math.log(noise * math.sqrt(2 * math.pi))

    def logs(z):
        exponent = (2 * z - 1) / (2 * noise**2)
        base = exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
        return exponent, base, -0.5 * (z / noise) ** 2 - log_norm

    grid = np.linspace(-15 * noise, abs(power) + 15 * noise, 4001)
    _, base, density = logs(grid)
    peak = float(grid[np.argmax(power * base + density)])
    scale = max(0.0, float((power * base + density).max()))

    def excess(z):
        exponent, base, density = logs(z)
        if abs(exponent) < 1 or (rate < 1 and rate * math.exp(min(exponent, 700.0)) < 1):  # r is not far from 1
            more = rate * math.expm1(exponent)
            return math.exp(density - scale) * (math.expm1(power * math.log1p(more)) - power * more)
        straight = math.exp(density - scale) * (1 - power) + power * math.exp(density + base - scale)
        return math.exp(power * base + density - scale) - straight

    cuts = sorted({-15 * noise, -4 * noise, 0.0, 1.0, 4 * noise, peak - 4 * noise, peak, peak + 4 * noise, grid[-1]})
    inside = [cut for cut in cuts if grid[0] <= cut <= grid[-1]]
    total = sum(
        integrate.quad(excess, a, b, epsrel=1e-10, epsabs=1e-300, limit=200)[0] for a, b in itertools.pairwise(inside)
    )
    return scale + math.log(math.exp(-scale) + total) if scale > 0 else math.log1p(total)


def spent_at(order, rate, noise, norms):
    """The divergence of steps with these norms (whole numbers of 1/FINE), added up."""
    sizes, times = np.unique(norms[norms > 0], return_counts=True)
    each = [divergence(order, rate, noise * FINE / size) for size in sizes.tolist()]
    return math.fsum(np.repeat(each, times).tolist())


def converted(order, divergence_, delta):
    """Canonne, Kamath & Steinke (2020), Proposition 12."""
    return divergence_ + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 2.0), (0.01, 1.0), (0.3, 0.7), (1e-3, 20.0), (0.9, 5.0)])
@pytest.mark.parametrize("order", [1.5, 2, 7.3, 30])
def test_the_truth_itself(rate, noise, order):
    """Against a sum (integer orders), a closed form (rate 1), and quadrature with 40 digits."""
    with mp.workdps(40):
        q, s, a = mp.mpf(rate), mp.mpf(noise), mp.mpf(order)
        if rate == 1:
            exact = a / (2 * s**2)
        elif order == int(order):
            terms = (
                mp.binomial(order, k) * (1 - q) ** (a - k) * q**k * mp.exp(k * (k - 1) / (2 * s**2))
                for k in range(order + 1)
            )
            exact = mp.log(mp.fsum(terms)) / (a - 1)
        else:

            def term(z):
                return mp.npdf(z, 0, s) * (1 - q + q * mp.exp((2 * z - 1) / (2 * s**2))) ** a

            exact = mp.log(mp.quad(term, [-20 * s, -5 * s, 0, 1, 5 * s, a, a + 5 * s, a + 20 * s])) / (a - 1)
        assert divergence(order, rate, noise) == pytest.approx(float(exact), rel=1e-9)


# --- The harness: what an adversary makes of the looks, and what it really cost -----------------------------------


class Adversary:
    """Chooses everyone's gradient norm before every step, knowing all that the odometer knows."""

    def __init__(self, seed, people):
        self.rng = np.random.default_rng(seed)
        self.mood = self.rng.integers(0, 5, people)
        self.modest = self.rng.integers(0, FINE + 1, people)

    def norms(self, step, meter, looks):
        random = self.rng.integers(0, FINE + 1, meter.people)
        return np.select(
            [self.mood == kind for kind in range(5)],
            [
                np.full(meter.people, FINE),  # greedy
                self.modest if looks else np.full(meter.people, FINE),  # modest when looked at
                random,
                np.where(step % 2, self.modest, FINE),
                self._just_too_much(meter),
            ],
        )

    def _just_too_much(self, meter):
        """The smallest norm that what is left cannot pay for once."""
        if meter.purses is None:
            return self.modest
        beyond = meter.purses.cost[meter.level_of] > meter.purses.left[:, None]
        grid_norm = np.where(beyond.any(axis=1), beyond.argmax(axis=1), GRID)
        return np.minimum(2 * grid_norm, FINE)


def play(meter, adversary, *, fixed, steps, looks):
    """Train for so many steps; the norm that each person contributed to each, as [steps, people].

    A look sees the norms of the very next step. Training clips to the shares that the odometer allows.
    """
    taken = np.zeros((steps, meter.people), dtype=np.int64)
    for step in range(steps):
        due = step in looks or (step == fixed and meter.purses is not None)
        norms = adversary.norms(step, meter, due)
        if due:
            meter.new_norms(norms / FINE, filtering=meter.purses is not None and step >= fixed)
        allowed = np.rint(meter.shares() * FINE).astype(np.int64)
        taken[step] = np.minimum(norms, allowed)
        meter.advance()
    return taken


def overdrawn(purses, table, level_of, taken, fixed, reserve=0.0):
    """Who took part after the fixed steps although all their steps together do not fit their purse."""
    out = []
    for person, level in enumerate(np.asarray(level_of).tolist()):
        if not taken[fixed:, person].any():
            continue
        order, delta = float(purses.order[level]), float(table["delta"][level])
        cost = spent_at(order, float(table["rate"][level]), float(table["noise"][level]), taken[:, person]) + reserve
        if converted(order, cost, delta) > table["epsilon"][level]:
            out.append(person)
    return out


def a_table(seed, kinds):
    """Rates, noise, δ, and an ε that pays for about so many steps in full as ``steps`` says."""
    rng = np.random.default_rng(seed)
    rate = np.where(rng.random(kinds) < 0.15, 1.0, 10 ** rng.uniform(-3, -0.3, kinds))
    noise, delta = 2 ** rng.uniform(-0.7, 3, kinds), 10 ** rng.uniform(-9, -2, kinds)
    steps = np.ceil(10 ** rng.uniform(0, 1.6, kinds)).astype(int)
    releases = [SampledGaussian(*row) for row in zip(rate, noise, steps.tolist(), strict=True)]
    return {"rate": rate, "noise": noise, "delta": delta, "epsilon": RDP().epsilons(releases, delta)}


def filter_of(table, level_of, kind=StepFilter, grid_size=GRID):
    return kind(table["rate"], table["noise"], table["epsilon"], table["delta"], level_of, grid_size)


def meter_of(table, level_of, purses, kind=Odometer, grid_size=GRID):
    return kind(table["rate"], table["noise"], level_of, grid_size=grid_size, purses=purses)


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    kinds=st.integers(1, 3),
    fixed=st.integers(0, 15),
    extra=st.integers(1, 40),
    looks=st.one_of(st.integers(1, 20), st.sets(st.integers(0, 55), max_size=12)),
    settles=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_nobody_overdraws_whatever_the_adversary_does(seed, kinds, fixed, extra, looks, settles):
    table, people = a_table(seed, kinds), 12
    level_of = np.random.default_rng(seed).integers(0, kinds, people).astype(np.uint8)
    purses = filter_of(table, level_of)
    meter = meter_of(table, level_of, purses)
    times = set(range(0, fixed + extra, looks)) if isinstance(looks, int) else looks
    adversary = Adversary(seed, people)
    if settles:  # a checkpoint before every step changes nothing
        ask = adversary.norms
        adversary.norms = lambda *arguments: (meter.settle(), meter.state(), ask(*arguments))[2]
    taken = play(meter, adversary, fixed=fixed, steps=fixed + extra, looks=times)
    assert overdrawn(purses, table, level_of, taken, fixed) == []
    # And every step is charged at no less than it was.
    for person in range(people):
        sizes = np.repeat(np.arange(GRID + 1), meter.counts[person])
        assert sizes.size == fixed + extra
        assert (np.sort(taken[:, person])[::-1] <= 2 * np.sort(sizes)[::-1]).all()


PLANS = [
    ("sample", "rdp", {"steps": 12, "batch_size": 2}),
    ("scale", "rdp", {"steps": 7, "batch_size": 3}),
    ("sample", "pld", {"steps": 20, "batch_size": 1}),
]


@functools.cache
def planned(which, seed):
    method, accountant, shape = PLANS[which]
    rng = np.random.default_rng(seed)
    budgets = pp.Budgets(rng.choice([0.5, 1.0, 2.0, 6.0], 8), delta=float(rng.choice([1e-6, 1e-3])))
    return pp.plan(budgets, method, extra_steps=30, accountant=accountant, **shape)


def peer_epsilon(rate, noise, norms, delta):
    """A lower bound on the true ε of steps with these norms, by dp_accounting."""
    sizes, times = np.unique(norms[norms > 0], return_counts=True)
    parts = [
        privacy_loss_distribution.from_gaussian_mechanism(
            noise * FINE / size,
            sampling_prob=rate,
            pessimistic_estimate=False,
            use_connect_dots=False,
            value_discretization_interval=1e-3,
        ).self_compose(count)
        for size, count in zip(sizes.tolist(), times.tolist(), strict=True)
    ]
    if not parts:
        return 0.0
    return functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta)


@pytest.mark.parametrize("which", range(len(PLANS)))
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_nobody_overdraws_a_plan(which, seed):
    """Fixed steps within (ε, 0.9·δ), whoever goes on within (ε, 0.1·δ) from the first step on."""
    plan = planned(which, seed)
    levels = plan.levels
    noise = plan.noise_multiplier * plan.clip_norm / levels.clip_norm
    table = {"rate": levels.rate, "noise": noise, "epsilon": levels.epsilon, "delta": plan.filter_delta}
    purses = filter_of(table, plan.level_of)
    meter = meter_of(table, plan.level_of, purses)
    adversary = Adversary(seed, plan.people)
    adversary.mood[:5] = np.arange(5)
    taken = play(
        meter, adversary, fixed=plan.steps, steps=plan.all_steps, looks=set(range(0, plan.all_steps, 3 + seed))
    )
    assert overdrawn(purses, table, plan.level_of, taken, plan.steps) == []
    assert taken[plan.steps :].any()  # somebody did go on
    assert (plan.spent_by_level() <= levels.epsilon).all()
    for person, level in enumerate(plan.level_of.tolist()):
        fixed = taken[: plan.steps, person]
        below = peer_epsilon(float(levels.rate[level]), float(noise[level]), fixed, 0.9 * float(levels.delta[level]))
        assert below <= levels.epsilon[level]


def test_a_purse_is_used_up_and_not_more():
    """So the property is no empty one: greedy people end with less left than the smallest grid norm costs."""
    table, level_of = a_table(5, 3), np.array([0, 1, 2])
    purses = filter_of(table, level_of)
    meter = meter_of(table, level_of, purses)
    adversary = Adversary(0, 3)
    adversary.mood[:] = 0
    taken = play(meter, adversary, fixed=0, steps=600, looks=set(range(0, 600, 10)))
    assert overdrawn(purses, table, level_of, taken, 0) == []
    for person in range(3):
        order = float(purses.order[person])
        cost = spent_at(order, table["rate"][person], table["noise"][person], taken[:, person])
        smallest = divergence(order, table["rate"][person], table["noise"][person] * GRID)
        held = renyi_purse(purses.order[person], table["epsilon"][person], table["delta"][person])
        assert 0 <= held - cost <= smallest * (1 + 1e-6)
    assert not taken[-10:].any()


# --- Broken twins: the same harness sees each of them --------------------------------------------------------------


def seen(twin_filter=StepFilter, twin_meter=Odometer, *, looks=4, fixed=5, steps=60, reserve=0.0):
    """How many people overdraw in twenty games, with the honest ones and with a twin."""
    out = []
    for filter_kind, meter_kind in ((StepFilter, Odometer), (twin_filter, twin_meter)):
        count = 0
        for seed in range(20):
            table, level_of = a_table(seed, 2), np.arange(10) % 2
            purses = filter_of(table, level_of, filter_kind)
            price = purses.total * reserve
            purses.set_aside(price)
            meter = meter_of(table, level_of, purses, meter_kind)
            taken = play(
                meter,
                Adversary(seed, 10),
                fixed=fixed,
                steps=fixed + steps,
                looks=set(range(0, fixed + steps, looks)),
            )
            for level in (0, 1):
                some = np.flatnonzero(level_of == level)
                count += len(overdrawn(purses, table, level_of[some], taken[:, some], fixed, float(price[level])))
        out.append(count)
    return tuple(out)


class OneStepTooMany(StepFilter):
    def affordable(self, grid_norm):
        allowed, last = super().affordable(grid_norm)
        return np.minimum(allowed + 1, 2**40), last


class RoundsUp(StepFilter):
    """Takes the nearest whole number of steps instead of the one below."""

    def affordable(self, grid_norm):
        cost, left = self._cost_of(grid_norm), self.left
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(cost > 0, np.rint(left / cost), 2**40)
        return np.minimum(times, 2**40).astype(np.int64), np.zeros(grid_norm.size, dtype=np.uint16)


class BestInTheEnd(StepFilter):
    """Goes on while the sum fits at *some* order: rule 5."""

    def __init__(self, rate, noise, epsilon, delta, level_of, grid_size):
        super().__init__(rate, noise, epsilon, delta, level_of, grid_size)
        honest, self.others = sampled_step_filter.best_order, []
        try:
            for factor in (0.5, 0.7, 1.4, 2.0):
                orders = np.maximum(np.round(self.order * factor), 2.0)
                sampled_step_filter.best_order = lambda *_, orders=orders: orders
                self.others.append(StepFilter(rate, noise, epsilon, delta, level_of, grid_size))
        finally:
            sampled_step_filter.best_order = honest

    def affordable(self, grid_norm):
        allowed, last = super().affordable(grid_norm)
        for other in self.others:
            more, rest = other.affordable(grid_norm)
            last = np.where(more > allowed, rest, np.where(more == allowed, np.maximum(last, rest), last))
            allowed = np.maximum(allowed, more)
        return allowed, last.astype(np.uint16)

    def charge(self, grid_norm, steps, who=slice(None)):
        super().charge(grid_norm, steps, who)
        for other in self.others:
            other.charge(grid_norm, steps, who)


class ForgetsTheFixedSteps(StepFilter):
    """Counts from where the filter takes over: what it saw before, it forgets."""

    asked = False

    def affordable(self, grid_norm):
        if not self.asked:
            self.asked, self.spent = True, np.zeros_like(self.spent)
        return super().affordable(grid_norm)


class ForgetsTheReserve(StepFilter):
    def set_aside(self, reserve):
        pass


class ForgetsTheLastDrop(Odometer):
    def _settle_limited(self, purses):
        before, full = purses.spent.copy(), np.clip(self.allowed, 0, self.elapsed)
        super()._settle_limited(purses)
        purses.spent = before
        purses.charge(self.grid_norm, full)


class NeverStops(Odometer):
    """After the last drop it goes on at the grid norm of before."""

    def shares(self):
        return np.asarray(np.where(self.elapsed <= self.allowed, super().shares(), self.grid_norm / self.grid_size))


class ChargesTheDrawn(Odometer):
    """Rule 1 broken: who was not drawn since the last norm pass pays nothing."""

    coins = np.random.default_rng(0)

    def _settle_limited(self, purses):
        before = purses.spent.copy()
        super()._settle_limited(purses)
        drawn = self.coins.random(self.people) < 1 - (1 - self.rate[self.level_of]) ** self.elapsed
        purses.spent = np.where(drawn, purses.spent, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "twin", [OneStepTooMany, RoundsUp, BestInTheEnd, ForgetsTheFixedSteps], ids=lambda kind: kind.__name__
)
def test_broken_filters_are_seen(twin):
    honest, broken = seen(twin_filter=twin)
    assert honest == 0 < broken


@pytest.mark.slow
@pytest.mark.parametrize("twin", [ForgetsTheLastDrop, NeverStops, ChargesTheDrawn], ids=lambda kind: kind.__name__)
def test_broken_odometers_are_seen(twin):
    honest, broken = seen(twin_meter=twin)
    assert honest == 0 < broken


def test_a_forgotten_reserve_is_seen():
    honest, broken = seen(twin_filter=ForgetsTheReserve, reserve=0.2)
    assert honest == 0 < broken


class RoundsToNearest(Odometer):
    def new_norms(self, shares, *, filtering=False):
        super().new_norms(np.rint(np.asarray(shares) * self.grid_size) / self.grid_size, filtering=filtering)


@pytest.mark.parametrize(("kind", "kept"), [(Odometer, True), (RoundsToNearest, False)])
def test_norms_are_rounded_up(kind, kept):
    """An estimate that looks before every step is charged no less than the truth; rounding to nearest is (rule 4)."""
    rate, noise, order = 0.2, 1.5, 8.0
    rng = np.random.default_rng(3)
    norms = rng.integers(0, FINE + 1, (30, 6))
    norms[:, 0] = 1 + 2 * rng.integers(0, GRID, 30)  # always between two grid norms
    meter = kind(np.array([rate]), np.array([noise]), np.zeros(6, dtype=np.uint8), grid_size=GRID, exact=False)
    for step in norms:
        meter.new_norms(step / FINE)
        assert (meter.shares() == 1).all()  # an estimate limits nothing
        meter.advance()
    charged = meter.counts @ [divergence(order, rate, n) for n in meter.noise_multipliers(0).tolist()]
    truth = [spent_at(order, rate, noise, norms[:, person]) for person in range(6)]
    assert bool((charged >= np.array(truth) * (1 - 1e-12)).all()) == kept


# --- The last drop --------------------------------------------------------------------------------------------------


def test_the_last_drop_is_used():
    """On a fine grid and after a few norm passes a purse has less left than the smallest grid norm costs."""
    table, people = a_table(11, 4), 200
    rng = np.random.default_rng(0)
    level_of = rng.integers(0, 4, people).astype(np.uint8)
    purses = filter_of(table, level_of, grid_size=1000)
    meter = meter_of(table, level_of, purses, grid_size=1000)
    shares = rng.uniform(0.05, 1, people)
    for _ in range(30):
        meter.new_norms(shares, filtering=True)
        allowed, last = meter.allowed.copy(), meter.last.copy()
        finite = allowed < 10**6
        before = purses.left.copy()
        meter.advance(10**6)
        meter.settle()
        rest = before - allowed * purses._cost_of(meter.grid_norm)
        assert (purses.left <= np.maximum(rest, 0) + 1e-12)[finite].all()
        took = finite & (last > 0)
        dearer = purses.cost[level_of, np.minimum(last + 1, 1000)]
        assert (rest < dearer + 1e-9 * purses.total[level_of])[took].all()
    assert (purses.left < purses.cost[level_of, 1]).all()
    assert (purses.spent / purses.total[level_of] > 0.9999).all()
    assert (purses.spent <= purses.total[level_of]).all()


def test_nobody_contributes_after_their_last_drop_until_the_next_norm_pass():
    table, level_of = a_table(7, 1), np.zeros(GRID + 1, dtype=np.uint8)
    purses = filter_of(table, level_of)
    meter = meter_of(table, level_of, purses)
    meter.new_norms(np.arange(GRID + 1) / GRID, filtering=True)
    assert meter.grid_norm.tolist() == list(range(GRID + 1))
    allowed, last = meter.allowed.copy(), meter.last.copy()
    for step in range(int(allowed[1:].max()) + 5):
        shares = np.rint(meter.shares() * GRID)
        expected = np.where(step < allowed, np.arange(GRID + 1), np.where(step == allowed, last, 0))
        np.testing.assert_array_equal(shares, expected)
        np.testing.assert_array_equal(meter.active, (step < allowed) | ((step == allowed) & (last > 0)))
        meter.advance()
    assert not meter.active[1:].any()
    left = purses.left.copy()
    meter.settle()
    assert (purses.left < left)[1:].all()
    assert meter.counts[0, 0] == meter.counts.sum(axis=1)[0]  # a norm of 0 costs nothing, for ever
    assert meter.active[0]


# --- Counts against a plain simulation ------------------------------------------------------------------------------


def simulate(purses, level_of, looks, steps, fixed):
    """One person, one step at a time. ``looks`` maps a step to the grid norms seen."""
    counts = np.zeros((len(level_of), GRID + 1), dtype=int)
    contributed = np.zeros((steps, len(level_of)), dtype=int)
    for person, plan_level in enumerate(level_of):
        cost = purses.cost[plan_level].tolist()
        left, grid_norm, stopped = float(purses.total[plan_level]), GRID, False
        for step in range(steps):
            if step in looks:
                grid_norm, stopped = int(looks[step][person]), False
            now = grid_norm
            if step >= fixed:
                if stopped:
                    now = 0
                elif cost[grid_norm] > left:
                    now = max(k for k in range(grid_norm + 1) if cost[k] <= left) if left > 0 else 0
                    stopped = True
            left -= cost[now]
            counts[person, now] += 1
            contributed[step, person] = now
    return counts, contributed


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("every", [1, 7])
def test_counts_against_a_plain_simulation(seed, every):
    rng = np.random.default_rng(seed)
    table, fixed, steps = a_table(seed, 3), int(rng.integers(0, 10)), 80
    level_of = rng.integers(0, 3, 20).astype(np.uint8)
    purses = filter_of(table, level_of)
    looks = {step: rng.integers(0, GRID + 1, 20) for step in range(2, steps) if step % every == 0 or step == fixed}
    looks.setdefault(fixed, rng.integers(0, GRID + 1, 20))
    expected, contributed = simulate(purses, level_of.tolist(), looks, steps, fixed)
    meter = meter_of(table, level_of, purses)
    for step in range(steps):
        if step in looks:
            meter.new_norms(looks[step] / GRID, filtering=step >= fixed)
        np.testing.assert_array_equal(np.rint(meter.shares() * GRID), contributed[step])
        meter.advance()
    np.testing.assert_array_equal(meter.counts, expected)
    paid = (expected * purses.cost[level_of]).sum(axis=1)
    np.testing.assert_allclose(purses.spent, paid, rtol=1e-12)


def test_many_looks_of_many_people_are_written_down_as_one_by_one():
    """More people than are near at once, and more looks than are kept unwritten."""
    rng = np.random.default_rng(0)
    people, looks = 2 * odometer._PEOPLE + 17, 2 * odometer._PASSES + 3
    meter = Odometer(np.array([0.1]), np.array([1.0]), np.zeros(people, dtype=np.uint8), grid_size=9)
    expected = np.zeros((people, 10), dtype=int)
    expected[:, 9] += 2
    meter.advance(2)
    for look in range(looks):
        grid_norm = rng.integers(0, 10, people)
        meter.new_norms(grid_norm / 9)
        meter.advance(look % 4)
        expected[np.arange(people), grid_norm] += look % 4
        if look == 20:
            np.testing.assert_array_equal(meter.counts, expected)
    np.testing.assert_array_equal(meter.counts, expected)


@pytest.mark.parametrize("filtering", [False, True])
def test_settling_in_between_and_going_on_from_a_state_change_nothing(filtering):
    table, level_of = a_table(3, 2), np.arange(12, dtype=np.uint8) % 2
    rng = np.random.default_rng(5)
    shares = rng.random((6, 12))

    def run(settles, restores):
        purses = filter_of(table, level_of)
        meter = meter_of(table, level_of, purses)
        seen_shares = []
        for step in range(60):
            if step % 11 == 0:
                meter.new_norms(shares[step // 11], filtering=filtering)
            seen_shares.append(meter.shares())
            meter.advance()
            for _ in range(settles):
                meter.settle()
            if restores and step % 5 == 3:
                state = meter.state()
                purses = filter_of(table, level_of)
                meter = meter_of(table, level_of, purses)
                meter.restore(state)
        return np.array(seen_shares), meter.counts, purses.spent, meter.epsilon(1e-5, "rdp")

    plain = run(0, False)
    for other in (run(1, False), run(3, False), run(0, True), run(2, True)):
        for one, two in zip(plain, other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12)
    assert not filtering or (plain[0][-1] == 0).any()


def test_a_state_is_a_copy():
    table, level_of = a_table(3, 1), np.zeros(3, dtype=np.uint8)
    meter = meter_of(table, level_of, filter_of(table, level_of))
    meter.new_norms(np.full(3, 0.5), filtering=True)
    meter.advance(2)
    state = meter.state()
    before = {name: np.copy(value) for name, value in state.items()}
    meter.advance(5)
    meter.new_norms(np.full(3, 0.9), filtering=True)
    meter.advance(3)
    meter.settle()
    for name, value in state.items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(ValueError, match="read-only"):
        meter.counts[0, 0] = 9


def test_a_state_of_others_is_refused():
    table, level_of = a_table(3, 1), np.zeros(3, dtype=np.uint8)
    meter = meter_of(table, level_of, filter_of(table, level_of))
    state = meter.state()
    fewer = meter_of(table, level_of[:2], filter_of(table, level_of[:2]))
    coarser = meter_of(table, level_of, filter_of(table, level_of, grid_size=2), grid_size=2)
    for other in (fewer, coarser):
        with pytest.raises(pp.InvalidInput, match="other people, or other grid norms"):
            other.restore(state)
    for name in ("spent", "grid_norm", "allowed", "last"):
        with pytest.raises(pp.InvalidInput, match="not whole"):
            meter.restore({**state, name: state[name][:2]})
    with pytest.raises(pp.InvalidInput, match="not whole"):
        meter.restore({name: value for name, value in state.items() if name != "spent"})
    meter_of(table, level_of, None).restore(state)  # an odometer without a filter needs no purses


@pytest.mark.parametrize("filtering", [False, True])
def test_steps_of_which_only_the_number_is_known(filtering):
    table, level_of = a_table(4, 2), np.array([0, 1, 0, 1])
    purses = filter_of(table, level_of)
    meter = meter_of(table, level_of, purses)
    meter.new_norms(np.array([0.0, 0.3, 0.6, 1.0]), filtering=filtering)
    meter.advance(2)
    counted, spent = meter.counts.copy(), purses.spent.copy()
    meter.charge_in_full(3)
    np.testing.assert_array_equal(meter.counts - counted, np.eye(GRID + 1)[[GRID] * 4] * 3)
    np.testing.assert_allclose(purses.spent - spent, purses.cost[level_of, GRID] * 3)
    # A filter lets nobody go on before it was asked again; fixed steps go on as they were.
    assert (meter.shares() > 0).any() == (not filtering)
    assert meter.active.any() == (not filtering)
    meter.new_norms(np.full(4, 0.2), filtering=filtering)
    meter.advance()
    assert (purses.spent <= np.maximum(purses.total[level_of], spent + purses.cost[level_of, GRID] * 3)).all()


def test_an_odometer_that_overspent_in_full_lets_nobody_go_on():
    table, level_of = a_table(4, 2), np.array([0, 1])
    purses = filter_of(table, level_of)
    meter = meter_of(table, level_of, purses)
    meter.charge_in_full(10**6)
    meter.new_norms(np.array([1.0, 1e-9]), filtering=True)
    assert not meter.active.any()
    assert not meter.shares().any()
    meter.advance(10)
    assert meter.counts[:, 0].tolist() == [10, 10]


# --- Looks and steps that are none ----------------------------------------------------------------------------------


def test_what_is_no_norm_counts_in_full():
    meter = Odometer(np.array([0.1]), np.array([1.0]), np.zeros(9, dtype=np.uint8), grid_size=10)
    assert meter.grid_norm.tolist() == [10] * 9  # before the first norm pass
    shares = [0.0, 1e-300, 0.1, 0.1 + 1e-9, 1.0, 7.0, math.nan, math.inf, -1e-3]
    meter.new_norms(np.array(shares))
    assert meter.grid_norm.tolist() == [0, 1, 1, 2, 10, 10, 10, 10, 10]
    meter.new_norms(np.full(9, -math.inf))
    assert meter.grid_norm.tolist() == [10] * 9
    meter.new_norms(np.full(9, -0.0))
    assert meter.grid_norm.tolist() == [0] * 9
    assert meter.shares().tolist() == [0.0] * 9


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=20), grid_size=st.sampled_from([1, 3, 7, 100, 65_535]))
@settings(max_examples=100, deadline=None)
def test_a_grid_norm_is_never_below_its_norm(shares, grid_size):
    meter = Odometer(np.array([0.1]), np.array([1.0]), np.zeros(len(shares), dtype=np.uint8), grid_size=grid_size)
    meter.new_norms(np.array(shares))
    allowed = meter.shares()
    assert (allowed >= np.array(shares) * (1 - 1e-15)).all()
    assert (allowed <= np.minimum(np.array(shares) + 1 / grid_size, 1) + 1e-15).all()


def test_wrong_looks_change_nothing():
    table, level_of = a_table(0, 1), np.zeros(3, dtype=np.uint8)
    meter = meter_of(table, level_of, None)
    meter.new_norms(np.full(3, 0.5))
    grid_norm = meter.grid_norm.copy()
    for shares in (np.ones(2), np.ones((3, 1)), 1.0):
        with pytest.raises(pp.InvalidInput, match="one share for each of 3"):
            meter.new_norms(shares)
    with pytest.raises(pp.InvalidInput, match="no filter"):
        meter.new_norms(np.ones(3), filtering=True)
    np.testing.assert_array_equal(meter.grid_norm, grid_norm)
    filtered = meter_of(table, level_of, filter_of(table, level_of))
    filtered.new_norms(np.ones(3), filtering=True)
    with pytest.raises(pp.InvalidInput, match="overdraw"):
        filtered.new_norms(np.ones(3))


@pytest.mark.parametrize("grid_size", [0, -1, 65_536, True])
def test_grid_norms_that_cannot_be_kept_apart(grid_size):
    with pytest.raises(pp.InvalidInput, match="grid_size must be"):
        Odometer(np.array([0.1]), np.array([1.0]), np.zeros(1, dtype=np.uint8), grid_size=grid_size)


def test_a_filter_needs_clipping():
    table, level_of = a_table(0, 1), np.zeros(3, dtype=np.uint8)
    with pytest.raises(pp.InvalidInput, match="an estimate bounds nothing"):
        Odometer(
            table["rate"], table["noise"], level_of, grid_size=GRID, exact=False, purses=filter_of(table, level_of)
        )
    assert Odometer(table["rate"], table["noise"], level_of).reading is Reading.EXACT
    assert Odometer(table["rate"], table["noise"], level_of, exact=False).reading is Reading.ESTIMATE
    assert "no guarantee" in Reading.EXACT.text
    assert "estimate" in Reading.ESTIMATE.text


def test_counts_do_not_overflow():
    """More steps than a count holds are refused: they would begin again at 0."""
    meter = Odometer(np.array([0.1]), np.array([1.0]), np.zeros(2, dtype=np.uint8), grid_size=2)
    meter.advance(2**32 - 10)
    for wrong in (10, 2**40, -1):
        with pytest.raises(pp.InvalidInput, match="counts hold"):
            meter.advance(wrong)
        with pytest.raises(pp.InvalidInput, match="counts hold"):
            meter.charge_in_full(wrong)
    meter.charge_in_full(4)
    meter.new_norms(np.array([0.4, 0.9]))
    again = Odometer(np.array([0.1]), np.array([1.0]), np.zeros(2, dtype=np.uint8), grid_size=2)
    again.restore(meter.state())
    with pytest.raises(pp.InvalidInput, match="counts hold"):
        again.advance(6)
    again.advance(5)
    assert again.counts.tolist() == [[0, 5, 2**32 - 6], [0, 0, 2**32 - 1]]


def test_a_filter_that_pays_for_ever():
    """Costs so small that a purse pays for more steps than will ever be taken."""
    purses = StepFilter(np.array([1e-9]), np.array([50.0]), np.array([5.0]), np.array([1e-5]), np.zeros(1, int), 100)
    meter = Odometer(np.array([1e-9]), np.array([50.0]), np.zeros(1, int), purses=purses)
    meter.new_norms(np.array([0.01]), filtering=True)
    assert 2**32 < meter.allowed[0] <= 2**40 < FOREVER
    meter.advance(2**31)
    assert meter.shares()[0] == 0.01
    meter.advance(2**30)
    assert meter.counts[0, 1] == 2**31 + 2**30
    assert 0 < purses.spent[0] < purses.total[0]


# --- ε of a trajectory ----------------------------------------------------------------------------------------------

RATES, NOISE = np.array([0.01, 0.1, 0.0, 1.0, 0.1]), np.array([1.0, 2.5, 1.0, 12.0, 6.0])


def counted(people=40, grid_size=8, steps=300, seed=0):
    rng = np.random.default_rng(seed)
    level_of = (np.arange(people) % RATES.size).astype(np.uint8)
    meter = Odometer(RATES, NOISE, level_of, grid_size=grid_size)
    for look in range(4):
        meter.new_norms(rng.random(people) ** 2 * (np.arange(people) >= 5))
        meter.advance(steps // 4 + look)
    return meter


def release_of(meter, person):
    level = int(meter.level_of[person])
    steps = meter.counts[person]
    return Composed(
        tuple(
            SampledGaussian(float(RATES[level]), float(NOISE[level] * meter.grid_size / k), int(steps[k]))
            for k in range(1, meter.grid_size + 1)
            if steps[k]
        )
    )


def test_renyi_readings_are_those_of_the_composed_release():
    meter = counted()
    delta = 10 ** np.random.default_rng(1).uniform(-8, -3, meter.people)
    ours = meter.epsilon(delta, "rdp")
    theirs = RDP().epsilons([release_of(meter, person) for person in range(meter.people)], delta)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert (ours[:5] == 0).all()  # never more than a norm of 0
    assert (ours[meter.level_of == 2] == 0).all()  # a rate of 0
    assert (np.delete(ours, np.flatnonzero((meter.level_of == 2) | (np.arange(40) < 5))) > 0).all()


def test_loss_distribution_readings_are_those_of_the_composed_release():
    meter = counted(people=15)
    delta = np.full(15, 1e-5)
    ours = meter.epsilon(1e-5, "pld")
    theirs = PLD().epsilons([release_of(meter, person) for person in range(15)], delta)
    np.testing.assert_allclose(ours, theirs, rtol=2e-3)
    in_full = [
        SampledGaussian(float(RATES[k]), float(NOISE[k]), int(meter.counts[0].sum())) for k in meter.level_of.tolist()
    ]
    worst = PLD().epsilons(in_full, delta)
    assert (ours <= worst).all()
    assert (ours[:5] == 0).all()
    # The tighter of the two accountants, and at the largest norms the worst case itself.
    assert (ours <= meter.epsilon(1e-5, "rdp") * 1.002).all()
    full = Odometer(RATES, NOISE, meter.level_of, grid_size=8)
    full.advance(int(meter.counts[0].sum()))
    np.testing.assert_allclose(full.epsilon(1e-5, "pld"), worst, rtol=2e-3)
    assert (full.epsilon(1e-5, "pld") <= worst).all()


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_readings_of_some_are_those_of_all(accountant):
    meter = counted()
    delta = np.where(np.arange(meter.people) % 3, 1e-5, 1e-6)
    everyone = meter.epsilon(delta, accountant)
    for who in ([7], [3, 12, 38, 12], [], list(range(39, -1, -1))):
        some = meter.epsilon(delta[who], accountant, np.array(who, dtype=np.int64))
        np.testing.assert_allclose(some, everyone[who], rtol=1e-6, atol=1e-9)
    said = []
    meter.epsilon(1e-5, accountant, np.array([0, 1, 5]), progress=lambda done, total: said.append((done, total)))
    assert said == [(1, 2), (2, 2)]


def test_people_in_any_order_have_the_same_readings():
    meter = counted()
    shuffled = np.random.default_rng(0).permutation(meter.people)
    other = Odometer(RATES, NOISE, meter.level_of[shuffled], grid_size=8)
    other.restore({**meter.state(), **{k: v[shuffled] for k, v in meter.state().items() if k != "filtering"}})
    for accountant in ("rdp", "pld"):
        np.testing.assert_allclose(
            other.epsilon(1e-5, accountant), meter.epsilon(1e-5, accountant)[shuffled], rtol=1e-6, atol=1e-9
        )


def test_readings_rise_with_steps_and_norms():
    for accountant in ("rdp", "pld"):
        before = counted(steps=100).epsilon(1e-5, accountant)
        assert (counted(steps=400).epsilon(1e-5, accountant) >= before).all()
    small, large = (Odometer(RATES, NOISE, np.arange(5), grid_size=8) for _ in range(2))
    small.new_norms(np.full(5, 0.3))
    large.new_norms(np.full(5, 0.8))
    small.advance(50)
    large.advance(50)
    assert (small.epsilon(1e-5)[[0, 1, 3, 4]] < large.epsilon(1e-5)[[0, 1, 3, 4]]).all()


def test_nothing_was_spent_before_the_first_step():
    meter = Odometer(RATES, NOISE, np.arange(5), grid_size=8)
    for accountant in ("rdp", "pld"):
        assert meter.epsilon(1e-5, accountant).tolist() == [0.0] * 5
    with pytest.raises(pp.InvalidInput, match="accountant is 'gdp'"):
        meter.epsilon(1e-5, "gdp")


def test_one_person_and_one_grid_norm():
    meter = Odometer(np.array([0.05]), np.array([1.0]), np.zeros(1, dtype=np.uint8), grid_size=1)
    meter.new_norms(np.array([0.001]))
    meter.advance(100)
    assert meter.counts.tolist() == [[0, 100]]
    release = SampledGaussian(0.05, 1.0, 100)
    assert meter.epsilon(1e-5, "rdp")[0] == pytest.approx(RDP().epsilons([release], 1e-5)[0], rel=1e-9)
    assert meter.epsilon(1e-5, "pld")[0] == pytest.approx(PLD().epsilons([release], 1e-5)[0], rel=2e-3)
    meter.new_norms(np.array([0.0]))
    meter.advance(5)
    assert meter.counts.tolist() == [[5, 100]]


def test_many_people_are_read_in_pieces(monkeypatch):
    meter = counted()
    whole = meter.epsilon(1e-5, "rdp")
    monkeypatch.setattr(odometer, "_ELEMENTS", 300)
    np.testing.assert_allclose(meter.epsilon(1e-5, "rdp"), whole, rtol=1e-12)
