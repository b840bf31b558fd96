"""Ends and categories out of everybody's share: what one person moves, what is told of a word that one says."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import privypurse as pp
from privypurse.accounting.filters import Filter
from privypurse.budgets.split import split
from privypurse.queries import private_constants
from privypurse.queries.contributions import Sparse
from privypurse.queries.private_constants import PrivateConstants, said_most
from privypurse.queries.ranges import ends_of, outer_grid

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: a test
N = 300
RANDOM = np.random.default_rng(0)
EPSILON = RANDOM.choice([0.5, 1.0, 8.0, 40.0], N)
OWNER = np.repeat(np.arange(N), 1 + np.arange(N) % 3)


def people(numbers=1, categories=0, delta=1e-3, share=0.2, seed=0, owner=OWNER):
    part = split(pp.Budgets(EPSILON[owner], delta=delta, person=owner), share).first
    return PrivateConstants.by_share(part, numbers=numbers, categories=categories, seed=seed)


def gaussian_delta(mu, epsilon):
    """Balle & Wang (2018, arXiv 1805.06530), Theorem 8, plainly."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("numbers", "categories"), [(1, 0), (3, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("delta", [1e-3, np.where(OWNER % 2, 1e-3, 2e-5)], ids=["one", "own"])
def test_everybodys_share_pays_for_what_they_move_and_for_what_only_they_say(numbers, categories, delta):
    made = people(numbers, categories, delta)
    first = np.unique(OWNER, return_index=True)[1]
    allowed = 0.2 * np.broadcast_to(delta, OWNER.shape)[first]
    moved = made.weights * math.sqrt(numbers + categories)
    spent = gaussian_delta(moved, 0.2 * EPSILON)
    alone = categories * norm.sf(made.threshold - made.weights) if categories else 0.0
    assert (spent + alone <= allowed).all()
    assert (made.weights > 0).all()
    assert made.weights[EPSILON == 8].max() > 2 * made.weights[EPSILON == 0.5].max()  # who grants more is heard more
    # The twin: a threshold that noise alone seldom reaches, for which nobody's own weight was reckoned.
    twin = norm.isf(allowed.max() / 2 / max(categories, 1))
    assert not categories or (spent + categories * norm.sf(twin - made.weights) > allowed).any()


def test_one_person_moves_the_sums_by_no_more_than_they_pay_for(monkeypatch):
    places = [(RANDOM.integers(-1, 5, OWNER.size), 5), (RANDOM.integers(-1, 2, OWNER.size), 2)]
    paid = people(2).weights * math.sqrt(2) * (1 + 1e-9) + 1e-9

    def too_far():
        """Of some people, who moves the sums by more than they pay for; the noise is the same, and falls out."""
        whole = np.concatenate(people(2).counts(places))
        found = []
        for one in range(2, N, 33):  # each with three rows
            without = [(np.where(one == OWNER, -1, rows), size) for rows, size in places]
            found.append(np.linalg.norm(np.concatenate(people(2).counts(without)) - whole) > paid[one])
        return any(found)

    assert not too_far()
    monkeypatch.setattr(Sparse, "clipped", lambda self, limit: self)  # the twin: every row counts
    assert too_far()


def test_several_rows_count_as_one():
    once = np.arange(N)
    bins = RANDOM.integers(0, 4, N)
    [few] = people(owner=once).counts([(bins, 4)])
    [many] = people().counts([(bins[OWNER], 4)])
    assert few == pytest.approx(many, abs=1e-6)


def test_a_word_that_one_person_says_is_told_as_seldom_as_their_delta_allows():
    """Twenty thousand people with a word of their own each: so many draws of the same small chance."""
    count, delta = 20_000, 0.02
    part = pp.Budgets(np.full(count, 50.0), delta=delta)

    def told(threshold=None):
        made = PrivateConstants.by_share(part, numbers=0, categories=1, seed=1)
        made.threshold = made.threshold if threshold is None else threshold
        return made.common(np.arange(count), count).size / count

    limit = delta / 2 + 4 * math.sqrt(delta / 2 / count)
    assert delta / 4 < told() <= limit  # and the bound is nearly reached: nothing is given away
    assert told(0.0) > 0.5  # the twin that forgets the threshold
    assert told(norm.isf(delta / 2)) > limit  # and one that forgets that a person has a weight


def test_words_of_many_are_told_and_words_of_few_are_not():
    made = people(0, 1, owner=np.arange(N))
    words = np.where(np.arange(N) < 120, 0, np.where(np.arange(N) < 240, 1, np.arange(N) + 2))
    assert made.common(words, N + 2).tolist() == [0, 1]
    with pytest.raises(pp.InvalidInput, match="no column of categories is left"):
        made.common(words, N + 2)


def test_only_the_one_word_that_a_person_says_can_be_told():
    """With a threshold that noise always reaches: what is looked at is what is told."""
    owner = np.array([0, 0, 0, 0, 1, 1, 2])
    words = np.array([0, 1, 2, 1, 3, 4, 5])  # 1 in most rows of the first, 3 before 4, and 5
    part = pp.Budgets(np.full(owner.size, 4.0), delta=[*[1e-6] * 6, 1e-12], person=owner)
    made = PrivateConstants.by_share(part, numbers=0, categories=1, seed=0)
    assert made.weights[2] == 0  # noise alone would tell their word more often than their δ allows
    assert norm.sf(made.threshold) > 1e-12 / 2
    made.threshold = -100.0
    assert made.common(words, 6).tolist() == [1, 3]
    # The twin: every word of the column is looked at. Of a person with many, noise alone tells one too often.
    usual = people(0, 1, owner=np.arange(N), delta=1e-5)
    assert 100 * norm.sf(usual.threshold) > 0.2 * 1e-5 / 2


def by_number(words, owner):
    """The twin: of equally many rows the smallest number of a word decides, and that hangs on who came first."""
    size = words.max() + 1
    table = np.zeros((owner.max() + 1, size))
    np.add.at(table, (owner, words), 1)
    return np.arange(owner.max() + 1), table.argmax(axis=1)


def test_what_a_person_says_most_follows_from_their_own_rows():
    owner = np.array([0, 1, 1, 2, 2, 2, 3])
    text = np.array(["b", "a", "b", "c", "a", "c", "?"])

    def said(how, rows):
        seen, numbers = {}, []
        for word in text[rows]:
            numbers.append(seen.setdefault(word, len(seen)) if word != "?" else -1)
        who, word = how(np.array(numbers), owner[rows])
        return dict(zip(who.tolist(), np.array(list(seen))[word].tolist(), strict=True))

    everybody = np.arange(owner.size)
    assert said(said_most, everybody) == {0: "b", 1: "a", 2: "c"}
    assert said(said_most, everybody[1:]) == {1: "a", 2: "c"}  # without the first person, words are numbered anew
    known = everybody[:-1]
    assert said(by_number, known)[1] == "b"
    assert said(by_number, known[1:])[1] == "a"


def test_nothing_is_told_of_whom_nothing_was_taken(monkeypatch):
    rows = np.zeros(OWNER.size, dtype=np.int64)

    def emptied():
        made = people()
        made.purses.charge(made.purses.total)
        return made

    nobody = people().counts([(rows - 1, 3)])[0]
    assert emptied().counts([(rows, 3)])[0].tolist() == nobody.tolist()

    def charged_after(parts, purses, *, clip, noise, source):
        """The twin: the sum of all, and then whoever can pays."""
        return parts.total(np.ones(parts.people, dtype=bool)) + noise * source.normal(parts.size)

    monkeypatch.setattr(private_constants, "noisy_sum", charged_after)
    assert emptied().counts([(rows, 3)])[0][0] > nobody[0] + 1


def test_a_charge_that_fails_tells_nothing(monkeypatch):
    def fails(self, cost):
        raise OSError("the disk is full")

    monkeypatch.setattr(Filter, "charge", fails)
    with pytest.raises(OSError, match="disk"):
        people().counts([(np.zeros(OWNER.size, dtype=np.int64), 3)])


def test_everybody_can_pay_for_all_that_is_asked():
    made = people(2, 2)
    bins = RANDOM.integers(0, 4, OWNER.size)
    made.counts([(bins, 4), (bins, 4)])
    made.common(bins, 4)
    made.common(bins, 4)
    assert made.purses.spent == pytest.approx(made.weights**2 * 4, rel=1e-6)
    assert (made.purses.spent <= made.purses.total).all()


@pytest.mark.parametrize(("low", "high"), [(0, 1e7), (-300, 50), (17, 120), (0.001, 0.5)])
def test_the_outer_grid_holds_everything_and_ends_lie_on_it(low, high):
    grid = outer_grid(low, high)
    assert (grid[0], grid[-1]) == (low, high)
    assert (np.diff(grid) > 0).all()
    assert grid.size < 130
    counts = np.zeros(grid.size - 1)
    counts[[3, 4, 5]] = 100
    assert ends_of(counts, 1.0, grid, 0.01) == (grid[3], grid[6])
    assert ends_of(np.zeros(grid.size - 1), 1.0, grid, 0.01) == (low, high)
