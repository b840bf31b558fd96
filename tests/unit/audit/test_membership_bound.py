"""What answers prove about membership holds for groups of a few records too, and rules that looked alike do not."""

from functools import cache

import numpy as np
import pytest
from scipy import special, stats

from privypurse.accounting import gdp
from privypurse.audit import lira, membership_bound, readings
from privypurse.audit.by_group import by_group
from privypurse.audit.families import Family, scaled_epsilon, scaled_gaussian
from privypurse.errors import InvalidInput

DELTA, MODELS, REPEATS, SIZES = 1e-5, 16, 60, (2, 3, 4, 7, 12, 20)
MOST = int(stats.binom.isf(1e-6, REPEATS * len(SIZES), 0.05))
"""Of all repeats, flagged at confidence 0.95: more have a chance of one in a million."""


@cache
def gaussian(mu: float) -> tuple[Family, float]:
    return scaled_gaussian(mu, DELTA), float(gdp.epsilon(mu, DELTA))


@cache
def responses(epsilon: float) -> tuple[Family, float]:
    return scaled_epsilon(epsilon, DELTA), epsilon


def normal_answers(mu: float, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Being in shifts an answer by μ of its own noise. Records differ, and so do whole models."""
    models, records = member.shape
    of_records, of_models = rng.normal(0, 3, (1, records)), rng.normal(0, 0.5, (models, 1))
    return of_records + of_models + rng.normal(size=member.shape) + mu * member


def random_answers(epsilon: float, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Randomised response, the worst that ε allows, in unequal confidences."""
    honest = rng.random(member.shape) < special.expit(epsilon)
    return np.where(member == honest, 1.0, -1.0) + 1e-3 * rng.normal(size=member.shape)


def flagged(claim, answers, attack: str, seed: int, sizes=SIZES, repeats: int = REPEATS, coins=lira.coins) -> int:
    """How many of the repeats refute the claim, over these numbers of records."""
    (family, epsilon), rng, found = claim, np.random.default_rng(seed), 0
    for records in sizes:
        for _ in range(repeats):
            member = coins(records, MODELS, rng)
            scores, inside = membership_bound.target_scores(answers(member, rng), member, attack)
            found += membership_bound.proved(scores, inside, family, 0.95) > epsilon
    return found


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["lira", "loss"])
def test_of_sound_trainings_no_more_are_flagged_than_is_said(attack: str) -> None:
    """At the claim itself, for groups of 2 to 20 records: where nothing is told, a little, and much."""
    for seed, mu in enumerate((0.02, 0.5, 2.0)):
        assert flagged(gaussian(mu), lambda *of, mu=mu: normal_answers(mu, *of), attack, seed) <= MOST
    for seed, epsilon in enumerate((0.05, 1.0)):
        assert flagged(responses(epsilon), lambda *of, e=epsilon: random_answers(e, *of), attack, seed) <= MOST


@pytest.mark.slow
def test_what_is_above_the_claim_is_flagged() -> None:
    """Else the test above could not fail: randomised response at ε = 3, claimed to be 1, with 20 records."""
    assert flagged(responses(1.0), lambda *of: random_answers(3.0, *of), "loss", 1, (20,), 20) >= 18


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["lira", "loss"])
@pytest.mark.parametrize("records", [5, 10, 20])
def test_a_blatant_leak_is_flagged_as_soon_as_there_are_coins_enough(attack: str, records: int) -> None:
    claim = responses(1.0)
    assert flagged(claim, lambda *of: normal_answers(60.0, *of), attack, 2, (records,), 10) >= 9
    coins = records * 4  # targets of LiRA
    assert membership_bound.can_refute(coins, claim[0], 0.95)


def test_too_few_coins_refute_nothing_and_say_so() -> None:
    family, epsilon = responses(1.0)
    for coins in (2, 8, 16):
        assert not membership_bound.can_refute(coins, family, 0.95)
    member = np.array([[True, False, True, False, True, False, True, False]] * 2)
    assert membership_bound.proved(member * 1.0, member, family, 0.95) <= epsilon
    assert membership_bound.proved(np.zeros((1, 2)), np.array([[True, True]]), family, 0.95) == 0
    # By hand: of c coins all right, a quarter at either end; (e/(e+1))^(c/2) has to be below 0.05.
    least = next(c for c in range(4, 100, 4) if special.expit(1.0) ** (c / 2) < 0.05)
    assert membership_bound.can_refute(least, family, 0.95)
    assert not membership_bound.can_refute(least - 4, family, 0.95)


# --- Twins that were flagged, or would be, more often than they say.


def by_student(member: np.ndarray, rng: np.random.Generator, mu: float) -> bool:
    """The former rule: the lower end of the AUC's interval over targets, against the area under the claimed curve."""
    scores = lira.scores(normal_answers(mu, member, rng), member, "offline")
    (group,) = by_group(scores, member, np.zeros(member.shape[1], dtype=int), ["all"], 0.95)
    return bool(group.interval[0] > stats.norm.cdf(mu / np.sqrt(2)))


@pytest.mark.slow
def test_the_interval_of_an_area_flags_tiny_groups_by_chance() -> None:
    """Two in and two out, six models: all areas are 1, and an interval over targets has no width."""
    rng, repeats = np.random.default_rng(3), 100
    found = sum(by_student(lira.halves(np.zeros(4), 6, rng), rng, 3.0) for _ in range(repeats))
    assert found > stats.binom.isf(1e-3, repeats, 0.05)


@pytest.mark.slow
def test_targets_that_look_at_each_others_coins_are_no_bound() -> None:
    """Answers are noise. A guess by the parity of all others' coins is right for all targets of a record, or none."""
    (family, epsilon), rng, found, repeats = gaussian(0.02), np.random.default_rng(4), 0, 200
    for _ in range(repeats):
        member = rng.random((4, 10)) < 0.5
        parity = (member.sum(axis=0) - member) % 2
        scores = parity + 1e-3 * rng.random(member.shape)
        found += membership_bound.proved(scores, member, family, 0.95) > epsilon
    assert found > stats.binom.isf(1e-3, repeats, 0.05)


@pytest.mark.slow
def test_coins_that_add_up_to_a_half_are_no_bound() -> None:
    """Two records, one of them in: noise that says one is likelier is right about both, or about none."""
    (family, epsilon), rng, found, repeats = gaussian(0.02), np.random.default_rng(5), 0, 400
    for _ in range(repeats):
        first, noise = rng.random(16) < 0.5, rng.normal(size=16)
        member, scores = np.stack([first, ~first], axis=1), np.stack([noise, -noise], axis=1)
        found += membership_bound.proved(scores, member, family, 0.95) > epsilon
    assert found > stats.binom.isf(1e-3, repeats, 0.05)


# --- How it is put together.


def test_everybody_is_in_one_model_of_each_pair_by_a_coin_of_their_own() -> None:
    member = lira.coins(4000, 8, np.random.default_rng(6))
    assert (member[0::2] ^ member[1::2]).all()
    assert (member.sum(axis=0) == 4).all()
    of_people = member[0::2].mean(axis=1)
    assert (np.abs(of_people - 0.5) < 5.5 * 0.5 / np.sqrt(4000)).all()
    together = np.corrcoef(member[0::2])
    assert np.abs(together - np.eye(4)).max() < 5.5 / np.sqrt(4000)
    assert lira.coins(2, 400, np.random.default_rng(7)).sum(axis=1).min() == 0  # unlike halves: no sum is fixed
    with pytest.raises(InvalidInput, match="models is 7"):
        lira.coins(10, 7, np.random.default_rng(0))


@pytest.mark.parametrize("attack", ["lira", "loss"])
def test_no_score_follows_from_other_targets_or_partners(attack: str) -> None:
    rng = np.random.default_rng(8)
    member = lira.coins(30, MODELS, rng)
    phi = normal_answers(1.0, member, rng)
    scores, inside = membership_bound.target_scores(phi, member, attack)
    first = 2 * membership_bound.shadow_pairs(MODELS) if attack == "lira" else 0
    assert np.array_equal(inside, member[first::2])
    assert len(scores) == (4 if attack == "lira" else 8)
    for target in range(len(scores)):
        other = phi.copy()
        kept = [*range(first), first + 2 * target]
        other[[k for k in range(MODELS) if k not in kept]] = rng.normal(size=(MODELS - len(kept), 30))
        flipped = member.copy()
        flipped[first:] = ~flipped[first:]
        again, _ = membership_bound.target_scores(other, flipped, attack)
        assert np.array_equal(again[target], scores[target])


def test_the_normal_is_that_of_shadow_models_without_the_record() -> None:
    rng = np.random.default_rng(9)
    member = lira.coins(50, 12, rng)
    shadows, targets = rng.normal(2, 1, (12, 50)), rng.normal(2, 1, (3, 50))
    found = lira.above_others(targets, shadows, member)
    variance = np.array([np.var(shadows[~member[:, k], k], ddof=1) for k in range(50)])
    mean = np.array([shadows[~member[:, k], k].mean() for k in range(50)])
    expected = stats.norm.logcdf(targets, mean, np.sqrt(lira.shrunk(variance, 5)))
    np.testing.assert_allclose(found, expected)


def test_a_person_counts_once_with_all_their_records() -> None:
    person = np.array([7, 3, 7, 3, 3, 9])
    scores = np.array([[1.0, 2.0, 3.0, 4.0, 6.0, 5.0]])
    assert membership_bound.of_people(scores, person).tolist() == [[4.0, 2.0, 5.0]]  # of 3, 7 and 9


def test_the_number_of_guesses_follows_from_the_number_of_coins() -> None:
    assert [membership_bound.share_of(coins) for coins in (8, 96, 200, 4000)] == [0.25, 0.25, 0.12, 0.06]
    rng = np.random.default_rng(10)
    for inside, outside in (rng.normal(size=(2, 48)), np.zeros((2, 48))):
        made = readings.guesses_of(inside, outside, membership_bound.share_of(96))
        assert (made.canaries, made.made) == (96, 48)
