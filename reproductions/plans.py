"""From simulated budgets to plans: who grants what, and the methods that the tables compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import privypurse as pp
from privypurse._validate import is_real, one_of
from privypurse.accounting import accountant_named
from privypurse.assignment import METHODS as SOUND
from privypurse.assignment import Exclude
from privypurse.assignment.best_threshold import best_threshold as threshold_for
from privypurse.assignment.method import Assignment, Calibrator, Method
from privypurse.assignment.round_planner import AdaPdp, Groups, InRounds, PdpSgd, Sampling
from privypurse.assignment.threshold_sampling import AdaptiveLoss, FixedLoss, Loss, PrintedLoss
from privypurse.budgets import preferences
from privypurse.budgets.levels import Levels
from privypurse.errors import InvalidInput
from privypurse.plans import TrainingShape
from reproductions.unsound.trusted_curve import TrustedCurve
from reproductions.weighted_sample import WeightedSample

_THRESHOLDED = {"pdp-sgd": (PdpSgd, "adaptive"), "adapdp": (AdaPdp, "fixed"), "sampling": (Sampling, "fixed")}
"""Threshold sampling in rounds, and the loss that chooses the threshold where a table says nothing."""
_OPTIONS = {
    "exclude": {"threshold"},
    "groups": {"order"},
    WeightedSample.name: {"gamma"},
    "sampling": {"loss", "weights"},
    "adapdp": {"loss", "weights", "rounds"},
    "pdp-sgd": {"loss", "weights", "rounds"},
}
PLANNERS = ("none", *SOUND, TrustedCurve.name, WeightedSample.name, "groups", *_THRESHOLDED)
AS_PUBLISHED = tuple(_THRESHOLDED)
"""Methods whose published bookkeeping is another: see `reproductions.unsound.drawn_pay`."""


def epsilon_of(budgets: Mapping[str, Any], labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Everybody's simulated ε."""
    given = dict(budgets)
    kind, n = given.pop("kind"), int(labels.size)
    try:
        match kind:
            case "levels":
                return preferences.levels(n, given["epsilon"], given["shares"], rng)
            case "skewed":
                return preferences.skewed_groups(n, given["skew"], rng)
            case "spaced":
                groups = given.get("groups", preferences.SKEWED_GROUPS)
                epsilon = np.linspace(given["low"], given["high"], groups)
                return preferences.levels(n, epsilon.tolist(), [1 / groups] * groups, rng)
            case "classes":
                return preferences.by_label(labels, dict(enumerate(map(float, given["epsilon"]))))
            case "same":
                return np.full(n, float(given["epsilon"]))
            case "pareto":
                return preferences.bounded_pareto(n, rng, **given)
            case "mixture":
                return preferences.bounded_gaussian_mixture(n, rng, **given)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"budgets of kind {kind!r} cannot be made: {error}") from None
    raise InvalidInput(f"budgets have kind {kind!r}; choose levels, skewed, spaced, classes, same, pareto or mixture")


def method_of(name: str, options: Mapping[str, Any]) -> str | Method | InRounds:
    """A method of `pp.plan` or of `pp.rounds.schedule`, by its name and options in a table's file."""
    known = _OPTIONS.get(name, set())
    if unknown := options.keys() - known:
        hint = f"; it has {', '.join(sorted(known))}" if known else ""
        raise InvalidInput(f"method {name} has no option {min(unknown)!r}{hint}")
    rest = dict(options)
    if name == "exclude":
        threshold = rest.get("threshold", "best")
        if threshold == "best":
            return ExcludeAtBest()
        if threshold != "mean" and not is_real(threshold):
            raise InvalidInput(f'options.threshold is {threshold!r}; give a number, "mean" or "best"')
        return Exclude(None if threshold == "mean" else float(threshold))
    if name == "groups":
        return Groups(**rest)
    if name == WeightedSample.name:
        return WeightedSample(**rest)
    if name in _THRESHOLDED:
        kind, usual = _THRESHOLDED[name]
        loss = _loss(rest.pop("loss", usual), rest.pop("weights", (0.7, 0.3)))
        made: InRounds = kind(loss, **rest)
        return made
    return TrustedCurve() if name == TrustedCurve.name else name


def _loss(name: str, weights: Any) -> Loss:
    if name == "fixed":
        try:
            first, second = map(float, weights)
        except (TypeError, ValueError):
            raise InvalidInput(f"options.weights are {weights!r}; give two numbers") from None
        return FixedLoss(first, second)
    one_of(name, "options.loss", ("adaptive", "fixed", "printed"))
    return AdaptiveLoss() if name == "adaptive" else PrintedLoss()


@dataclass(frozen=True)
class ExcludeAtBest:
    """`Exclude` at the threshold with the largest expected signal to noise: a function of the budgets alone."""

    name: ClassVar[str] = "exclude"

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        return Exclude(threshold_for(levels, calibrator)).assign(levels, calibrator)


def best_threshold(budgets: pp.Budgets, *, steps: int, batch_size: int) -> float:
    """That threshold, by loss distributions."""
    shape = TrainingShape(steps=steps, batch_size=batch_size, clip_norm=1.0)
    return threshold_for(budgets.levels()[0], Calibrator(shape, accountant_named("pld")))


def plan_of(
    method: str, epsilon: np.ndarray, delta: float, *, steps: int, batch_size: int, clip_norm: float
) -> pp.Plan:
    """The plan of a rival: a method of Privy Purse, "ceiling" (all at the largest ε), "exclude@2" or "exclude", which
    takes the best threshold."""
    budgets = pp.Budgets(epsilon, delta=delta)
    how: Any = method
    if method == "ceiling":
        budgets, how = pp.Budgets(np.full_like(epsilon, epsilon.max()), delta=delta), "uniform"
    elif method == "exclude":
        how = ExcludeAtBest()
    elif method.startswith("exclude@"):
        how = Exclude(float(method.removeprefix("exclude@")))
    return pp.plan(budgets, how, steps=steps, batch_size=batch_size, clip_norm=clip_norm)


def groups_of(epsilon: np.ndarray, people: np.ndarray, spent: np.ndarray) -> dict[str, Any]:
    """Groups of equal ε, ascending: of many a few, and of all how many people spent more than they granted."""
    some = np.unique(np.linspace(0, epsilon.size - 1, min(epsilon.size, 20)).round().astype(int))
    return {
        "groups": [
            {"epsilon": float(epsilon[k]), "people": int(people[k]), "spent": float(spent[k])} for k in some.tolist()
        ],
        "overspent": int(people[spent > epsilon].sum()),
    }
