"""LiRA, the likelihood-ratio attack on membership: Carlini et al. (2022, arXiv 2112.03570), §IV and V.

Many shadow models are trained alike, each on half of the records. What a model says about a record is one number, its
scaled confidence φ, about normal over models. Whether a target model had the record follows from how likely its φ is
under the two normals of the shadow models with it and without it. Every model is the target in turn, and the others
are its shadow models. Models come in pairs that share no record and have them all; a target's partner is left out
with it, so that as many shadow models have a record as have not, whether the target has it or not. Else the numbers
of models alone would tell a little.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from scipy import special, stats

from privypurse._validate import one_of
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput

_LEAST_SPREAD = 1e-12
_NEWTON = 50


def scaled_confidence(logits: AnyArray, labels: AnyArray) -> FloatArray:
    """φ = log p/(1 - p) of the true label's probability (their Eq. 3): z_y less the log-sum-exp of the others."""
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2 or values.shape[0] != np.size(labels):
        raise InvalidInput(f"logits have shape {values.shape}; give a row for each of {np.size(labels)} labels")
    rows = np.arange(values.shape[0])
    own = values[rows, labels]
    others = values.copy()
    others[rows, labels] = -np.inf
    return np.asarray(own - special.logsumexp(others, axis=1))


def _require_pairs(models: int) -> None:
    if models < 6 or models % 2:
        raise InvalidInput(f"models is {models}; give an even number of at least 6: two normals are fitted to others")


def halves(group: AnyArray, models: int, rng: np.random.Generator) -> AnyArray:
    """Who is in which model, bool[models, records]: two by two they share all records, half of each group."""
    _require_pairs(models)
    of = np.asarray(group)
    member = np.zeros((models, of.size), dtype=bool)
    for pair in range(0, models, 2):
        for one in np.unique(of):
            some = rng.permutation(np.flatnonzero(of == one))
            member[pair, some[: some.size // 2]] = True
        member[pair + 1] = ~member[pair]
    return member


def coins(people: int, models: int, rng: np.random.Generator) -> AnyArray:
    """Who is in which model, bool[models, people]: of each pair in one, by a fair coin for each person and pair.

    Everybody is in half of the models. Unlike those of `halves` the coins are independent, which a bound asks for.
    """
    _require_pairs(models)
    first = rng.random((models // 2, people)) < 0.5
    return np.stack([first, ~first], axis=1).reshape(models, people)


def scores(confidence: AnyArray, member: AnyArray, road: Literal["online", "offline"] = "online") -> FloatArray:
    """For each target model and record the score that it was a member, float64[models, records].

    Online is log Λ = log p(φ | in) - log p(φ | out) (their Eq. 2, Algorithm 1). Offline asks models without the
    record alone, and how far above them φ lies: log Pr[Z ≤ φ] (their Eq. 4). The target and its partner are left out
    of the shadow models. Variances are shrunk towards that of all records, as far as few models demand (`shrunk`).
    """
    one_of(road, "road", ("online", "offline"))
    phi, inside = np.asarray(confidence, dtype=np.float64), np.asarray(member, dtype=bool)
    if phi.ndim != 2 or phi.shape != inside.shape:
        raise InvalidInput(f"confidence has shape {phi.shape} and member {inside.shape}; both are models × records")
    if not np.isfinite(phi).all():
        raise InvalidInput("confidence holds a value that is not finite; clip them before")
    if len(phi) < 6 or len(phi) % 2 or (inside[0::2] == inside[1::2]).any():
        raise InvalidInput(
            "member must hold at least three pairs of models that share all records, as halves makes them"
        )
    out_mean, out_variance = _without_target(phi, ~inside)
    out_spread = np.sqrt(out_variance)
    if road == "offline":
        return np.asarray(stats.norm.logcdf(phi, out_mean, out_spread))
    in_mean, in_variance = _without_target(phi, inside)
    found = stats.norm.logpdf(phi, in_mean, np.sqrt(in_variance)) - stats.norm.logpdf(phi, out_mean, out_spread)
    return np.asarray(found)


def above_others(phi: FloatArray, shadows: FloatArray, member: AnyArray) -> FloatArray:
    """The offline score of target models by other models that are their shadow models alone: targets × records.

    log Pr[Z ≤ φ] for the normal of those of ``shadows`` without the record, pair by pair one, as ``member`` says.
    """
    without = np.where(member, np.nan, shadows)
    mean, variance = np.nanmean(without, axis=0), np.nanvar(without, axis=0, ddof=1)
    spread = np.sqrt(shrunk(np.maximum(variance, _LEAST_SPREAD), len(shadows) // 2 - 1))
    return np.asarray(stats.norm.logcdf(phi, mean, spread))


def _without_target(phi: FloatArray, which: AnyArray) -> tuple[FloatArray, FloatArray]:
    """Mean and shrunk variance of each record's φ over marked models but the target's pair, for each target (row).

    In each pair one model is marked, so that all are means of the same number, and the same for both of a pair.
    """
    centre, count = phi.mean(axis=0), len(phi) // 2 - 1
    of_pair = np.where(which, phi - centre, 0.0).reshape(-1, 2, phi.shape[1]).sum(axis=1)
    mean = (of_pair.sum(axis=0) - of_pair) / count
    square = (of_pair**2).sum(axis=0) - of_pair**2
    variance = np.maximum((square - count * mean**2) / (count - 1), _LEAST_SPREAD)
    each = np.stack([shrunk(row, count - 1) for row in variance])
    return np.repeat(mean + centre, 2, axis=0), np.repeat(each, 2, axis=0)


def shrunk(variance: FloatArray, degrees: float) -> FloatArray:
    """Each variance drawn towards a common one, as strongly as their scatter says that they have one.

    Smyth (2004), Stat. Appl. Genet. Mol. Biol. 3(1), Article 3, §6.2: sample variances with d degrees of freedom
    around scaled inverse-χ² ones with d₀. log s² has variance ψ'(d/2) + ψ'(d₀/2), which gives d₀, and a variance
    becomes (d₀·s₀² + d·s²)/(d₀ + d), one over the posterior mean of its inverse. One variance for all, as Carlini et
    al. take it where models are few, is d₀ = ∞.
    """
    half = degrees / 2
    log = np.log(variance) - float(special.digamma(half)) + math.log(half)
    scatter = float(log.var(ddof=1)) if log.size > 1 else 0.0
    left = scatter - float(special.polygamma(1, half))
    if left <= 0:  # no more scatter than equal variances would show
        return np.full(variance.shape, float(variance.mean()))
    prior_half = _inverse_trigamma(left)
    common = math.exp(float(log.mean()) + float(special.digamma(prior_half)) - math.log(prior_half))
    return np.asarray((prior_half * common + half * variance) / (prior_half + half))


def _inverse_trigamma(value: float) -> float:
    """The x with ψ'(x) = value, by Newton on 1/ψ' (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(_NEWTON):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
