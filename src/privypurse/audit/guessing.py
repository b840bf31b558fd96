"""From scores to guesses: who of the canaries was in, said of the highest and the lowest scores alone.

How many guesses are made is fixed beforehand, by the number of canaries alone: choosing it by what the scores show
would have to be paid for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privypurse._validate import real
from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput

SHARE = 0.06
"""Of all canaries, at either end. Near the best for ε from 1 to 8 with 2,000 or 5,000 canaries."""


@dataclass(frozen=True)
class Guesses:
    """What an attacker says about canaries that were in or out by a fair coin each."""

    canaries: int
    made: int
    correct: int


def guesses_at_either_end(canaries: int, share: float) -> int:
    """How many of so many canaries are said to be in, and how many out."""
    return max(1, round(share * canaries))


def guesses_of(scores_in: FloatArray, scores_out: FloatArray, share: float | None = None) -> Guesses:
    """The highest scores are said to be in, the lowest out. Among equal scores wrong guesses come first.

    So ties cannot help, and the number of right guesses is at most what any rule that is blind to the truth finds.
    ``share`` of them at either end (default: `SHARE`) may follow from their number, and from nothing else.
    """
    canaries = scores_in.size + scores_out.size
    each = guesses_at_either_end(canaries, SHARE if share is None else share)
    scores, is_in = np.concatenate([scores_in, scores_out]), np.repeat([1, 0], [scores_in.size, scores_out.size])
    highest = np.lexsort((is_in, -scores))[:each]
    lowest = np.lexsort((1 - is_in, scores))[:each]
    return Guesses(canaries, 2 * each, int(is_in[highest].sum() + (1 - is_in[lowest]).sum()))


def checked(scores_in: FloatArray, scores_out: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """The scores as float64, or an error: an audit needs canaries on both sides, and scores that are numbers."""
    real(confidence, "confidence", above=0, below=1)
    both = []
    for name, given in (("scores_in", scores_in), ("scores_out", scores_out)):
        scores = np.asarray(given, dtype=np.float64)
        if scores.ndim != 1 or scores.size < 2:
            raise InvalidInput(f"{name} has shape {scores.shape}; give one score for each of at least two canaries")
        if np.isnan(scores).any():
            raise InvalidInput(f"{name} holds {int(np.isnan(scores).sum()):,} values that are no number")
        both.append(scores)
    return both[0], both[1]
