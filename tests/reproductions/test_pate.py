"""Individualised PATE: what a vote costs, who pays it, who falls silent; each broken twin is caught."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from privypurse.accounting.filters import Filter, RenyiCurrency
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.randomness import SeededRandomness
from reproductions import results
from reproductions.choice import Unfinished
from reproductions.pate import __main__ as command
from reproductions.pate import student, teams
from reproductions.pate.experiment import METHODS, SETUPS, Experiment
from reproductions.pate.images import oriented_gradients
from reproductions.pate.ridge import Ridge, votes
from reproductions.pate.student import Spreading
from reproductions.pate.voting import ConfidentVotes, NobodyVotes, Shares, fixed_orders, membership

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
DELTA = 1e-5
ORDER = 8.0


class Still:
    """No noise: tests pass where the counts say so."""

    def normal(self, count, device="cpu", deviation=1.0):
        return torch.zeros(count, dtype=torch.float64)


def seeded(seed):
    with pytest.warns(PrivyPurseWarning):
        return SeededRandomness(seed)


def at(order, people=1):
    return RenyiCurrency(np.full(people, order))


# What one query costs: the law of what is released, computed for every way to vote.


def released(counts, shares, total):
    """The chances of "none" and of each of two labels, by the normal law alone."""
    passed = special.ndtr((max(counts) - shares.threshold * total) / (shares.test * total))
    first = special.ndtr((counts[0] - counts[1]) / (math.sqrt(2) * shares.label * total))
    return np.array([1 - passed, passed * first, passed * (1 - first)])


def divergence(p, q):
    return math.log(float(np.sum(p**ORDER * q ** (1 - ORDER)))) / (ORDER - 1)


def worst(held, weights, shares):
    """The largest divergence over all votes of all teachers and all that held ones could vote without a person."""
    total, others = float(sum(weights)), [k for k in range(len(weights)) if k not in held]
    largest = 0.0
    for rest in product((0, 1), repeat=len(others)):
        counts = np.bincount(rest, [weights[k] for k in others], 2)
        ways = [
            released(counts + np.bincount(own, [weights[k] for k in held], 2), shares, total)
            for own in product((0, 1), repeat=len(held))
        ]
        largest = max(largest, *(divergence(p, q) for p, q in product(ways, repeat=2)))
    return largest


WEIGHTS = (1.0, 1.0, 1.0, 2.0, 0.5, 1.5)
CALM = Shares(label=1.5, test=4.0, threshold=0.5)


@pytest.mark.parametrize("held", [(0,), (0, 1), (0, 1, 2), (3, 4), (0, 3, 5)])
@pytest.mark.parametrize("shares", [CALM, Shares(0.5, 0.7, 0.8)])
def test_a_query_costs_at_least_what_it_tells(held, shares):
    touched = np.array([sum(WEIGHTS[k] for k in held)])
    test, label = shares.costs(at(ORDER), touched, sum(WEIGHTS))
    assert worst(held, WEIGHTS, shares) <= (test + label)[0]


def test_a_cost_that_grows_with_copies_and_not_with_their_square_is_too_little():
    """Twin: five copies that pay five times what one pays."""
    shares = Shares(label=6.0, test=50.0, threshold=0.1)
    told = worst(range(5), [1.0] * 6, shares)
    (one,), (five,) = (sum(shares.costs(at(ORDER), np.array([each]), 6.0)) for each in (1.0, 5.0))
    assert 5 * one < told <= five, (one, told, five)


def test_costs_are_the_divergences_of_the_noise():
    """By quadrature for the test; the label's noise is turned so that the move lies along one axis."""
    touched, total = 3.0, 25.0
    test, label = CALM.costs(at(ORDER), np.array([touched]), total)
    for cost, moved, deviation in (
        (test, touched, CALM.test * total),
        (label, math.hypot(touched, touched), CALM.label * total),
    ):
        p, q = stats.norm(0, deviation).logpdf, stats.norm(moved, deviation).logpdf
        ends = (-60 * deviation, 60 * deviation)
        moment, _ = integrate.quad(
            lambda x, p=p, q=q: math.exp(ORDER * p(x) + (1 - ORDER) * q(x)),
            *ends,
            limit=500,
            points=[0.0, -8 * moved],
        )
        assert cost[0] == pytest.approx(math.log(moment) / (ORDER - 1), rel=1e-6)


def test_counts_move_by_the_root_of_two_times_the_weight_and_the_largest_by_the_weight():
    weights, held = np.array([1.0, 2.0, 1.5, 1.5]), [0, 1]
    lengths, largest = [], []
    for cast in product(range(3), repeat=4):
        before = np.bincount(cast, weights, 3)
        for other in product(range(3), repeat=2):
            turned = np.array(cast)
            turned[held] = other
            after = np.bincount(turned, weights, 3)
            lengths.append(np.linalg.norm(after - before))
            largest.append(abs(after.max() - before.max()))
    assert max(lengths) == pytest.approx(math.sqrt(2) * 3.0)
    assert max(largest) == pytest.approx(3.0)


# Everybody's account, against loops that know formulas and nothing of the library.

PEOPLE, TEACHERS, CLASSES = 7, 5, 3
SHARDS = [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2), (3, 3), (3, 1), (4, 2), (5, 3), (6, 4), (4, 2)]
EPSILON = np.array([1.0, 2.0, 1.5, 3.0, 2.0, 1.0, 0.5])
HEAVY = np.array([1.0, 1.5, 0.5, 2.0, 1.0])
TINY_SHARES = Shares(label=9.0, test=20.0, threshold=0.7)


def by_hand(present_by_query, outcomes):
    """Spent and silent after these queries: one person and one teacher at a time."""
    order = fixed_orders(EPSILON, DELTA).order
    purse = [
        e - math.log(1 - 1 / a) + (math.log(DELTA) + math.log(a)) / (a - 1)
        for e, a in zip(EPSILON, order, strict=True)
    ]
    spent, silent, holds = [0.0] * PEOPLE, set(), set(SHARDS)
    for present, outcome in zip(present_by_query, outcomes, strict=True):
        while True:
            voters = [j for j in range(TEACHERS) if present[j] and j not in silent]
            total = sum(HEAVY[j] for j in voters)
            if not voters:
                break
            touched = [sum(HEAVY[j] for j in voters if (i, j) in holds) for i in range(PEOPLE)]
            test = [a * s**2 / (2 * (TINY_SHARES.test * total) ** 2) for a, s in zip(order, touched, strict=True)]
            label = [a * s**2 / (TINY_SHARES.label * total) ** 2 for a, s in zip(order, touched, strict=True)]
            poor = [i for i in range(PEOPLE) if spent[i] + test[i] + label[i] > purse[i] * (1 - 1e-8)]
            if not poor:
                break
            silent |= {j for j in voters if any((i, j) in holds for i in poor)}
        assert (not voters) == (outcome == "nobody")
        for i in range(PEOPLE if voters else 0):
            spent[i] += test[i] + (label[i] if outcome != "none" else 0.0)
    return spent, silent


def ballot(source, kind=ConfidentVotes, purse_kind=Filter):
    purses = purse_kind(EPSILON, np.full(PEOPLE, DELTA), fixed_orders(EPSILON, DELTA))
    person, teacher = np.array(SHARDS).T
    return kind(membership(person, teacher, PEOPLE, TEACHERS), HEAVY, purses, TINY_SHARES, source), purses


def held_until_the_end(voting, seed):
    rng = np.random.default_rng(seed)
    presents, outcomes = [], []
    for _ in range(500):
        presents.append(rng.random(TEACHERS) < 0.9)
        try:
            label = voting.ask(rng.integers(0, CLASSES, TEACHERS), CLASSES, presents[-1])
        except NobodyVotes:
            outcomes.append("nobody")
            if voting.silent.all():
                break
        else:
            outcomes.append("none" if label is None else label)
    return presents, outcomes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everybody_pays_what_was_computed_by_hand(seed):
    voting, purses = ballot(seeded(seed))
    presents, outcomes = held_until_the_end(voting, seed)
    spent, silent = by_hand(presents, outcomes)
    assert "none" in outcomes
    assert voting.answered == sum(isinstance(each, int) for each in outcomes) > 5
    assert purses.spent == pytest.approx(spent, rel=1e-9)
    assert set(np.flatnonzero(voting.silent)) == silent == set(range(TEACHERS))
    assert (purses.spent <= purses.total).all()


class FreeRefusals(ConfidentVotes):
    """Twin: a test that does not pass is given back."""

    def ask(self, votes, classes, present=None):
        before = self._purses.spent
        label = super().ask(votes, classes, present)
        if label is None:
            self._purses.spent = before
        return label


class Aliased(Filter):
    """Twin: the sum with a cost is the account itself, so that who only asks what they could afford has paid."""

    def charge(self, cost):
        after = self.spent
        after += cost
        super().charge(cost)


@pytest.mark.parametrize(("kind", "purse_kind"), [(FreeRefusals, Filter), (ConfidentVotes, Aliased)])
def test_uncharged_refusals_and_aliased_costs_are_seen(kind, purse_kind):
    voting, purses = ballot(seeded(1), kind, purse_kind)
    rng = np.random.default_rng(1)
    presents, outcomes = [np.ones(TEACHERS, dtype=bool)] * 6, []
    for _ in presents:
        label = voting.ask(rng.integers(0, CLASSES, TEACHERS), CLASSES)
        outcomes.append("none" if label is None else label)
    assert "none" in outcomes
    assert purses.spent != pytest.approx(by_hand(presents, outcomes)[0], rel=1e-3)


def test_who_is_alone_with_a_poor_one_pays_nothing_for_their_silent_teacher():
    """Person 0 grants next to nothing: teacher 0 is silent from the start, and person 1 pays for teacher 1 alone."""
    epsilon = np.array([0.01, 3.0, 3.0])
    purses = Filter(epsilon, np.full(3, DELTA), fixed_orders(epsilon, DELTA))
    holds = membership(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2]), 3, 3)
    voting = ConfidentVotes(holds, np.ones(3), purses, Shares(5.0, 9.0, 0.5), Still())
    assert voting.ask(np.array([1, 0, 0]), 2) == 0
    assert voting.silent.tolist() == [True, False, False]
    assert purses.spent[0] == 0
    assert purses.spent[1] == pytest.approx(purses.spent[2])


def test_costs_and_silence_do_not_follow_from_votes():
    accounts = []
    for share in (1.0, 0.8):
        voting, purses = ballot(Still())
        cast = np.where(np.arange(TEACHERS) < share * TEACHERS, 0, 1)
        for _ in range(4):
            assert voting.ask(cast, CLASSES) == 0
        accounts.append((purses.spent.tolist(), voting.silent.tolist()))
    assert accounts[0] == accounts[1]


def test_chances_are_those_of_the_noise_that_was_charged():
    """Of 4,000 seeded queries: within five deviations of the law, and not of one with a tenth less noise."""
    purses = Filter(np.array([1e6]), np.array([DELTA]), at(2.0))
    shares = Shares(label=0.5, test=0.4, threshold=0.9)
    holds = membership(np.zeros(1, dtype=int), np.zeros(1, dtype=int), 1, 10)
    voting = ConfidentVotes(holds, np.ones(10), purses, shares, seeded(5))
    asked = 4_000
    found = [voting.ask(np.array([0] * 8 + [1] * 2), 2) for _ in range(asked)]

    def far(noise):
        expected = released((8, 2), Shares(noise * 0.5, noise * 0.4, 0.9), 10.0)
        seen = np.array([sum(each is None for each in found), found.count(0), found.count(1)]) / asked
        return float((np.abs(seen - expected) / np.sqrt(expected * (1 - expected) / asked)).max())

    assert far(1.0) < 5 < far(0.7)


# Shards.


def budgets(people=10_000, shares=(0.34, 0.43, 0.23)):
    return np.random.default_rng(0).permutation(np.repeat([1.0, 2.0, 3.0], (np.array(shares) * people).astype(int)))


def labels_of(method, epsilon):
    """How many labels there are when all agree, and how full purses are in the end."""
    made = teams.teams(method, epsilon, DELTA, 250, np.random.default_rng(1))
    purses = Filter(epsilon, np.full(epsilon.shape, DELTA), fixed_orders(epsilon, DELTA))
    holds = membership(made.person, made.teacher, epsilon.size, made.teachers)
    voting = ConfidentVotes(holds, made.weights, purses, Shares(), Still())
    try:
        for query in range(1_000):
            voting.ask(np.zeros(made.teachers, dtype=int), 10, made.present(query))
    except NobodyVotes:
        pass
    return voting.answered, purses


def most_labels(epsilon):
    """Of one teacher among 250, by the conversion of Canonne et al. at the best of many orders."""
    alpha = 1 + np.geomspace(0.1, 200, 20_000)
    held = epsilon - np.log1p(-1 / alpha) + (math.log(DELTA) + np.log(alpha)) / (alpha - 1)
    return float((held / (alpha * (1 / 40**2 + 1 / (2 * 150**2)))).max())


def test_how_many_labels_there_are():
    epsilon = budgets()
    one, two, three = map(most_labels, (1.0, 2.0, 3.0))
    expected = {
        "plain": one,
        "exclude": 0.66**2 * two,
        "copies": 1.89**2 * min(one, two / 4, three / 9),
        "weighting": (0.34 * one**0.5 + 0.43 * two**0.5 + 0.23 * three**0.5) ** 2,
    }
    found = {method: labels_of(method, epsilon)[0] for method in expected}
    for method, labels in expected.items():
        assert labels - 3 < found[method] <= labels + 1.5, method  # whole teachers; orders of the library's list
    assert found["copies"] / found["plain"] >= 2.9
    assert found["weighting"] / found["plain"] >= 3.1


@pytest.mark.parametrize("method", teams.METHODS)
def test_nobody_is_overdrawn(method):
    answered, purses = labels_of(method, budgets())
    assert answered > 20
    assert (purses.spent <= purses.total).all()


def test_shards():
    epsilon = budgets()
    rng = np.random.default_rng(2)
    for method, per_level in {
        "plain": (1, 1, 1), "exclude": (0, 1, 1), "copies": (1, 2, 3), "weighting": (1, 1, 1), "vanishing": (1, 1, 1)
    }.items():  # fmt: skip
        made = teams.teams(method, epsilon, DELTA, 50, rng)
        pairs = set(zip(made.person.tolist(), made.teacher.tolist(), strict=True))
        assert len(pairs) == made.person.size, "a teacher holds somebody twice"
        copies = np.bincount(made.person, minlength=epsilon.size)
        for level, number in zip((1.0, 2.0, 3.0), per_level, strict=True):
            assert (copies[epsilon == level] == number).all(), method
        sizes = np.bincount(made.teacher, minlength=made.teachers)
        assert 190 <= sizes.min() <= sizes.max() <= 220, method


def test_weights_are_roots_of_purses_and_vanishing_teachers_come_as_often_as_they_can_pay():
    epsilon = budgets()
    one, three = most_labels(1.0), most_labels(3.0)
    weights = teams.teams("weighting", epsilon, DELTA, 50, np.random.default_rng(0)).weights
    assert weights.mean() == pytest.approx(1)
    assert weights[-1] / weights[0] == pytest.approx(math.sqrt(three / one), rel=0.01)
    vanishing = teams.teams("vanishing", epsilon, DELTA, 50, np.random.default_rng(0))
    often = np.mean([vanishing.present(query) for query in range(1_000)], axis=0)
    assert often[-1] == 1
    assert often[0] == pytest.approx(one / three, rel=0.02)


def test_errors_name_what_to_mend():
    purses = Filter(np.ones(2), np.full(2, DELTA), at(2.0, 2))
    holds = membership(np.array([0, 1]), np.array([0, 1]), 2, 2)
    with pytest.raises(InvalidInput, match="weights must be 2 numbers"):
        ConfidentVotes(holds, np.ones(3), purses, Shares(), Still())
    with pytest.raises(InvalidInput, match="purses has 2 purses"):
        ConfidentVotes(membership(np.array([0]), np.array([0]), 3, 2), np.ones(2), purses, Shares(), Still())
    with pytest.raises(InvalidInput, match="make it by membership"):
        ConfidentVotes(2 * holds, np.ones(2), purses, Shares(), Still())
    with pytest.raises(InvalidInput, match=r"Shares\.label is 0"):
        Shares(label=0.0)
    with pytest.raises(InvalidInput, match="copies; take more teachers"):
        teams.teams("copies", np.repeat([0.5, 30.0], [100, 1]), DELTA, 3, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=r"ε = 1e-07 at δ = 1e-09 pays for nothing"):
        teams.teams("weighting", np.array([1e-7, 1.0]), 1e-9, 3, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="3 levels of ε for 2 teachers"):
        teams.teams("weighting", np.array([1.0, 2.0, 3.0]), DELTA, 2, np.random.default_rng(0))


# Teachers and students.


def points(seed, count, classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    x = rng.normal(size=(count, 6)) + 4 * np.eye(classes, 6)[y]
    return torch.nn.functional.normalize(torch.as_tensor(x), dim=1), y


def test_teachers_side_by_side_are_those_one_by_one():
    x, y = points(0, 90)
    inputs, _ = points(1, 40)
    teacher = np.random.default_rng(0).integers(0, 20, 90)  # shards of different sizes
    found = votes(Ridge(3.0, 0.05), x, torch.as_tensor(y), np.arange(90), teacher, 20, inputs, 3).numpy()
    kernel = lambda a, b: np.exp(3.0 * (a @ b.T - 1))  # noqa: E731
    for each in range(20):
        mine = x[teacher == each].numpy()
        target = np.eye(3)[y[teacher == each]] - 1 / 3
        by_hand = np.linalg.solve(kernel(mine, mine) + 0.05 * np.eye(len(mine)), target)
        assert (found[each] == (kernel(inputs.numpy(), mine) @ by_hand).argmax(axis=1)).all()


def test_labels_spread_as_the_inverse_says():
    x, y = points(2, 60)
    spreading = Spreading(neighbours=5, sharpness=2.0, reach=0.9, rounds=400)
    cosine = (x @ x.T).numpy() - 2 * np.eye(60)
    near = np.zeros((60, 60))
    for k in range(60):
        best = np.argsort(-cosine[k])[:5]
        near[k, best] = np.exp(2.0 * (cosine[k, best] - 1))
    both = np.maximum(near, near.T)
    root = 1 / np.sqrt(both.sum(axis=1))
    place, labels = np.arange(6), y[:6]
    known = np.zeros((60, 3))
    known[place, labels] = 1
    expected = np.linalg.inv(np.eye(60) - 0.9 * root[:, None] * both * root) @ known
    found = spreading.spread(spreading.graph(x), place, labels, 3)
    assert found == pytest.approx(expected / expected.sum(axis=0), rel=1e-6)
    new, truth = points(3, 50)
    assert (spreading.of_new(x, found, new) == truth).mean() > 0.9
    assert (student.supervised(Ridge(), x, y, new, 3) == truth).mean() > 0.9


def test_features_are_each_image_s_own_and_see_directions():
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28)).astype(np.uint8)
    found = oriented_gradients(images)
    assert torch.equal(found[2:3], oriented_gradients(images[2:3]))
    assert found.norm(dim=1).tolist() == pytest.approx([1.0] * 5)
    bar = np.zeros((1, 1, 28, 28), dtype=np.uint8)
    bar[..., 12:16, :] = 255  # a horizontal bar has ink that begins downwards and upwards
    energy = oriented_gradients(bar).view(8, -1).pow(2).sum(dim=1)
    assert energy[[2, 6]].min() > 2 * energy[[1, 3, 5, 7]].max() / 1.2 > 10 * energy[[0, 4]].max()


# The figures.


def test_nobody_looks_at_the_test_file_before_settings_are_chosen():
    experiment = Experiment()
    lines = results.read(command.FILE)
    final = next(line for line in lines if line["purpose"] == "final")
    chosen = experiment.chosen(lines)
    choice = [line for line in lines if line["purpose"] != "final"]
    with pytest.raises(Unfinished, match="1 scores are missing"):
        experiment.chosen(choice[:-1])
    assert final["settings"] == chosen.plain()
    job = next(job for job in experiment.left(choice) if job.place["purpose"] == "final")
    other = type(job)(job.place, type(chosen)(Ridge(1.0, 0.3), chosen.student), job.seed)
    with pytest.raises(Unfinished, match="chosen on validation records"):
        experiment.run(other, choice)
    assert experiment.left(lines) == []


def test_nobody_s_purse_was_overdrawn_in_what_is_shown():
    lines = [line for line in results.read(command.FILE) if line["purpose"] == "final"]
    assert len(lines) == 5 * len(METHODS) * len(SETUPS)
    assert all(share <= 1 for line in lines for share in line["spent"].values())


def test_the_page_tells_the_figures():
    lines = results.read(command.FILE)
    for line in command.tables(lines):
        assert line in PAGE, line
    with pytest.raises(InvalidInput, match="4 of 5 seeds"):
        command.tables(lines[:-1])
