"""LiRA: it finds what is planted, nothing where nothing is, and sees no target in its own shadow models."""

import math

import numpy as np
import pytest
from scipy import special, stats

from privypurse.audit import lira
from privypurse.audit.by_group import by_group, paired_difference, score_difference
from privypurse.errors import InvalidInput

GROUP = np.arange(1500) % 2


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def planted(rng: np.random.Generator, models: int, shift: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that being a member raises by so many deviations, by group; and who is one."""
    member = lira.halves(GROUP, models, rng)
    middle, spread = rng.normal(0, 3, GROUP.size), rng.gamma(4, 0.25, GROUP.size)
    noise = rng.normal(size=member.shape)
    return middle + spread * (noise + member * np.array(shift)[GROUP]), member


def test_halves_share_all_records_two_by_two_and_every_group(rng: np.random.Generator) -> None:
    member = lira.halves(GROUP, 8, rng)
    assert (member[0::2] ^ member[1::2]).all()
    assert [member[:, one == GROUP].sum(axis=1).tolist() for one in (0, 1)] == [[375] * 8] * 2
    with pytest.raises(InvalidInput, match="models is 7"):
        lira.halves(GROUP, 7, rng)


def test_what_is_planted_is_found_by_group(rng: np.random.Generator) -> None:
    """The best that can be is Φ(shift/√2), with the normals known; few models come a little short of it."""
    phi, member = planted(rng, 32, (0.4, 1.2))
    for road, least in (("online", 0.90), ("offline", 0.96)):
        groups = by_group(lira.scores(phi, member, road), member, GROUP, ["strict", "relaxed"])
        for group, shift in zip(groups, (0.4, 1.2), strict=True):
            best = stats.norm.cdf(shift / math.sqrt(2))
            assert least * best < group.auc < best + 0.01
        difference, p_value = paired_difference(*groups)
        assert difference > 0.1
        assert p_value < 1e-6


def including_the_target(phi: np.ndarray, member: np.ndarray) -> np.ndarray:
    """The broken way: the target is one of its own shadow models."""
    inside = [np.where(mark, phi, np.nan) for mark in (member, ~member)]
    normals = [(np.nanmean(each, axis=0), np.nanstd(each, axis=0, ddof=1)) for each in inside]
    return stats.norm.logpdf(phi, *normals[0]) - stats.norm.logpdf(phi, *normals[1])


@pytest.mark.parametrize("road", ["online", "offline"])
def test_where_nothing_is_planted_nothing_is_found_and_the_broken_way_finds_some(
    road: str, rng: np.random.Generator
) -> None:
    phi, member = planted(rng, 16, (0.0, 0.0))
    for group in by_group(lira.scores(phi, member, road), member, GROUP, ["strict", "relaxed"]):
        assert abs(group.auc - 0.5) < 0.02
        assert group.interval[0] - 0.01 < 0.5 < group.interval[1] + 0.01
    broken = by_group(including_the_target(phi, member), member, GROUP, ["strict", "relaxed"])
    assert all(group.interval[0] > 0.53 for group in broken)


def test_variances_are_shrunk_as_far_as_they_are_alike(rng: np.random.Generator) -> None:
    degrees, prior = 6, 10.0
    true = prior * 2.0 / rng.chisquare(prior, 40_000)
    sample = true * rng.chisquare(degrees, true.size) / degrees
    found = lira.shrunk(sample, degrees)
    ideal = (prior * 2.0 + degrees * sample) / (prior + degrees)
    np.testing.assert_allclose(found, ideal, rtol=0.05)
    assert ((np.log(found / true)) ** 2).mean() < 0.6 * ((np.log(sample / true)) ** 2).mean()
    alike = lira.shrunk(3.0 * rng.chisquare(degrees, 40_000) / degrees, degrees)
    np.testing.assert_allclose(alike, 3.0, rtol=0.05)


def test_scaled_confidence_is_the_log_odds_of_the_label(rng: np.random.Generator) -> None:
    logits, labels = rng.normal(0, 2, (50, 4)), rng.integers(0, 4, 50)
    probability = special.softmax(logits, axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(lira.scaled_confidence(logits, labels), special.logit(probability), rtol=1e-9)
    sure = lira.scaled_confidence(np.array([[900.0, 0.0, -3.0]]), np.array([0]))
    assert 899 < sure[0] < 901  # where p is 1 to all digits


def test_the_t_test_between_groups_is_on_members(rng: np.random.Generator) -> None:
    scores, member = rng.normal(size=400), np.arange(400) < 200
    first, second = np.arange(400) % 2 == 0, np.arange(400) % 2 == 1
    scores[second & member] += 1.0
    t, p = score_difference(scores, member, first, second)
    assert t > 5
    assert p < 1e-5
    assert abs(score_difference(scores, ~member, first, second)[0]) < 4


def test_what_does_not_fit_is_refused(rng: np.random.Generator) -> None:
    phi, member = planted(rng, 6, (0.0, 0.0))
    with pytest.raises(InvalidInput, match="pairs of models"):
        lira.scores(phi, np.roll(member, 1, axis=0))
    with pytest.raises(InvalidInput, match="not finite"):
        lira.scores(np.where(member, phi, np.inf), member)
    with pytest.raises(InvalidInput, match="road is 'by air'"):
        lira.scores(phi, member, "by air")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no record"):
        by_group(phi, member, GROUP, ["strict", "relaxed", "nobody"])
