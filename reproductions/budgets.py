"""Who grants what, and the threshold at which it pays to leave people out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import privypurse as pp
from privypurse.assignment import Exclude
from privypurse.budgets import preferences
from privypurse.errors import InfeasibleBudget, InvalidInput


def epsilon_of(spec: Mapping[str, Any], records: int, seed: int) -> np.ndarray:
    """Everybody's simulated ε, assigned at random by the seed."""
    rng = np.random.default_rng([seed, 3])
    match spec["kind"]:
        case "levels":
            return preferences.levels(records, spec["epsilon"], spec["shares"], rng)
        case "skewed":
            return preferences.skewed_groups(records, spec["skew"], rng)
    raise InvalidInput(f"budgets have kind {spec['kind']!r}; choose levels or skewed")


def best_threshold(budgets: pp.Budgets, *, steps: int, batch_size: int) -> float:
    """The threshold of `Exclude` with the largest expected signal to noise.

    Those with ε ≥ t train as if all had t. A step's signal is the sum of about B clipped gradients, its noise σ(t)·C:
    so B/σ(t) is compared, which for many steps is n(t)·μ(t)/√T, with n(t) people left and μ(t) the Gaussian-DP
    parameter of (t, δ). Only budgets go in, so the rival costs nobody anything.
    """
    best, ratio = 0.0, 0.0
    for threshold in np.unique(budgets.epsilon):
        if int((budgets.epsilon >= threshold).sum()) < batch_size:
            break
        try:
            made = pp.plan(budgets, Exclude(float(threshold)), steps=steps, batch_size=batch_size)
        except InfeasibleBudget:
            continue
        if batch_size / made.noise_multiplier > ratio:
            best, ratio = float(threshold), batch_size / made.noise_multiplier
    if not best:
        raise InvalidInput(f"no threshold leaves {batch_size:,} people to draw from; lower batch_size")
    return best


def plan_of(
    method: str, epsilon: np.ndarray, delta: float, *, steps: int, batch_size: int, clip_norm: float
) -> pp.Plan:
    """The plan of a row: a method of Privy Purse, "ceiling" (all at the largest ε), or "exclude@2" at that ε."""
    budgets = pp.Budgets(epsilon, delta=delta)
    how: Any = method
    if method == "ceiling":
        budgets, how = pp.Budgets(np.full_like(epsilon, epsilon.max()), delta=delta), "uniform"
    elif method == "exclude":
        how = Exclude(best_threshold(budgets, steps=steps, batch_size=batch_size))
    elif method.startswith("exclude@"):
        how = Exclude(float(method.removeprefix("exclude@")))
    return pp.plan(budgets, how, steps=steps, batch_size=batch_size, clip_norm=clip_norm)
