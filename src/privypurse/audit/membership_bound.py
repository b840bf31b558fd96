"""What a model's answers prove about membership: a lower bound of ε, however few records there are.

Models come in pairs. Each person is in one model of a pair by a fair coin of their own (`lira.coins`). Some pairs are
shadow models alone; of each other pair the first model is a target, and its partner is not looked at. The attacker
scores every person in every target by that target's answers and by the shadow models, whose members are known, and
guesses of the highest and the lowest scores.

Why it is a bound, with a stated chance of a false alarm: take all targets together as one release, with a coin for
each target and person. The coins are fair and independent, also of the shadow models, for every pair has coins of its
own. With all other coins and the shadow models fixed, one coin decides whether one person is in one training, and
nothing else: a partner, which has the person if the target has not, plays no part. So the release has the plan's
curve for each coin, as a training with canaries has for its canaries, and what `readings.f_dp` proves of canaries it
proves of these coins (Mahloujifar, Melis & Chaudhuri 2025, arXiv 2410.22235; Steinke, Nasr & Jagielski 2023, arXiv
2305.08846, §5). Nothing is supposed of the scores: neither that they are normal, nor that records or models of a
group answer independently. At confidence P a sound training is above its claim with probability at most 1 - P.

It would be no bound if targets were each other's shadow models (two guesses that each look at the other's coin are
both right or both wrong), if exactly half of a group were in (coins that add up are not independent), or if the
number of guesses followed from the scores.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.audit import lira, readings
from privypurse.audit.families import Family
from privypurse.audit.guessing import SHARE, Guesses, guesses_at_either_end

_FEW, _MOST_SHARE = 24, 0.25  # guesses at either end for which a small pool gives up to a quarter


def shadow_pairs(models: int) -> int:
    """How many pairs, from the first on, are shadow models of LiRA's alone: half of them, two at least."""
    return max(2, models // 4)


def target_scores(phi: FloatArray, member: AnyArray, attack: Literal["lira", "loss"]) -> tuple[FloatArray, AnyArray]:
    """Of each target and record the score, and whether it was in: [targets, records] both.

    ``phi`` and ``member`` are models × records, two by two as `lira.coins` makes them. By LiRA the score says how far
    above the shadow models without the record a target's confidence lies; by the loss it is that confidence.
    """
    if attack == "loss":
        return phi[0::2], member[0::2]
    first = 2 * shadow_pairs(len(phi))
    targets = phi[first::2]
    return lira.above_others(targets, phi[:first], member[:first]), member[first::2]


def of_people(values: FloatArray, person: IntArray) -> FloatArray:
    """The mean of each person's records, whose coin is one: [targets, people]."""
    _, place, records = np.unique(person, return_inverse=True, return_counts=True)
    return np.stack([np.bincount(place, row) / records for row in values])


def proved(scores: FloatArray, member: AnyArray, family: Family, confidence: float) -> float:
    """The ε that is refuted, at this confidence; 0 for none.

    ``scores`` and ``member`` are targets × people, of one budget group, the curve of which is of the family.
    """
    inside, outside = scores[member], scores[~member]
    if min(inside.size, outside.size) < 2:
        return 0.0
    return readings.f_dp(inside, outside, family, confidence, share_of(scores.size))


def share_of(coins: int) -> float:
    """Of so many coins, what is guessed at either end: fixed beforehand, by their number alone.

    As of canaries where there are many. Of few more is guessed, for a handful of guesses proves nothing.
    """
    return max(SHARE, min(_MOST_SHARE, _FEW / coins))


def can_refute(coins: int, family: Family, confidence: float) -> bool:
    """Whether so many coins could refute the claim at all: if every guess were right."""
    made = 2 * guesses_at_either_end(coins, share_of(coins))
    return readings.refuted(family.curve(1.0), Guesses(coins, made, made), confidence)
