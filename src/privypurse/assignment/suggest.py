"""suggest: steps, batch, clip norm and learning rate from public numbers. Nothing is trained, nobody is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from privypurse._validate import integer, is_integer, is_real, one_of, real
from privypurse.accounting import accountant_named
from privypurse.assignment.coarse_levels import coarse
from privypurse.assignment.hyperparameters import (
    MOMENTUM,
    NUMBER_RATE,
    learning_rate,
    noise_of_all_steps,
    sizes,
    total_signal,
    walk_of,
)
from privypurse.assignment.method import Calibrator, require_budgets, require_people
from privypurse.assignment.methods import METHODS
from privypurse.assignment.outlook import ChosenByGrants
from privypurse.assignment.suggestion import Suggestion
from privypurse.budgets import Budgets
from privypurse.budgets.budgets import DEFAULT_DELTA, LARGEST, SMALLEST
from privypurse.budgets.levels import Levels
from privypurse.errors import InvalidInput

TARGETS = ("classes", "number", "flags")
_LEVELS = 40
_KEEP_NOISE = ("sample", "curve-fit")
"""Methods with which a given noise multiplier protects presence."""


def suggest(
    *,
    people: int | None = None,
    levels: Mapping[float, float] | float | None = None,
    parameters: Any,
    delta: float = DEFAULT_DELTA,
    method: str = "sample",
    steps: int | None = None,
    batch_size: int | None = None,
    fixed_noise: bool = False,
    budgets: Budgets | None = None,
    ledger: Any = None,
    accountant: str = "pld",
    target: str = "classes",
) -> Suggestion:
    """Steps, batch size, clip norm and learning rate for private training, from a public guess.

    ``people`` is about how many there are, ``levels`` the share of them that holds each ε, {1.0: 0.7, 4.0: 0.3}, or
    one ε for all; ``parameters`` how many the model trains, or the model. ``steps`` and ``batch_size`` are kept
    where they are given, and the rest follows from them.

    ``fixed_noise`` puts the noise multiplier into the plan too: then all that is one for everybody was fixed
    beforehand, and a plan by it protects presence and declared ε.

    ``target`` is what is learned: "classes" or "flags", for which the rule of the learning rate is, or "number".

    ``budgets`` instead of people and levels looks at the grants themselves. What follows is internal, and a plan by
    it promises `data`, whatever else it is given. What people have left decides nothing: ``ledger`` is refused.
    """
    _refuse_balances(ledger)
    one_of(method, "method", METHODS)
    one_of(target, "target", TARGETS)
    guessed = _levels(people, levels, delta, budgets)
    if fixed_noise:
        _require_public_noise(method, budgets)
    weights = _count(parameters)
    shape = sizes(guessed, method, weights, steps, batch_size)
    require_people(shape, guessed, "lower it")
    chosen = METHODS[method]
    sigma = chosen.assign(guessed, Calibrator(shape, accountant_named(accountant))).noise_multiplier
    shape = shape.with_noise(float(f"{sigma:.4g}"))
    return Suggestion(
        shape=shape,
        learning_rate=NUMBER_RATE if target == "number" else learning_rate(shape, weights),
        momentum=0.0 if target == "number" else MOMENTUM,
        walk=NUMBER_RATE * noise_of_all_steps(shape) if target == "number" else walk_of(shape, weights),
        signal=total_signal(guessed, method),
        method=chosen if budgets is None else ChosenByGrants(chosen),
        levels=guessed,
        parameters=weights,
        from_grants=budgets is not None,
        fixed_noise=fixed_noise,
        target=target,
    )


def _refuse_balances(ledger: Any) -> None:
    if ledger is not None:
        raise InvalidInput(
            "ledger is given, and what people have left in it may decide nothing that is one for all (steps, batch, "
            "clip norm, learning rate). Give people= and levels=, a public guess, or budgets=, what they granted"
        )


def _levels(
    people: int | None, levels: Mapping[float, float] | float | None, delta: float, budgets: Budgets | None
) -> Levels:
    """The guess, or the grants, as levels; of many grants neighbours are taken together."""
    if budgets is not None:
        if people is not None or levels is not None:
            raise InvalidInput("budgets are given beside people= or levels=; give the grants, or a guess of them")
        require_budgets(budgets)
        return coarse(budgets.levels()[0], _LEVELS)
    if people is None or levels is None:
        raise InvalidInput(
            "people or levels is missing; give about how many there are, and the share that holds each ε, as in "
            "people=10_000, levels={1.0: 0.7, 4.0: 0.3}"
        )
    count = integer(people, "people", hint="about how many there are, a public number")
    shares: Any = {levels: 1.0} if is_real(levels) else levels
    if not isinstance(shares, Mapping) or not shares or not all(map(is_real, shares)):
        raise InvalidInput(
            f"levels is {levels!r}; give one ε, or the share that holds each, as in {{1.0: 0.7, 4.0: 0.3}}"
        )
    epsilon = [real(each, "an ε of levels", least=SMALLEST, most=LARGEST) for each in sorted(shares)]
    parts = np.array([real(shares[each], f"levels[{each!r}]", least=0, hint="a share") for each in sorted(shares)])
    if abs(parts.sum() - 1) > 0.01:
        raise InvalidInput(f"the shares of levels add up to {parts.sum():.4g}; they must add up to 1")
    held = np.diff(np.round(np.cumsum(parts) / parts.sum() * count), prepend=0.0).astype(np.int64)
    some = held > 0
    deltas = np.full(len(epsilon), real(delta, "delta", above=0, below=1))
    return Levels(np.array(epsilon)[some], deltas[some], held[some])


def _count(parameters: Any) -> int:
    """How many numbers are trained: given, or those of a model that require a gradient."""
    if is_integer(parameters):
        return integer(parameters, "parameters")
    if not callable(getattr(parameters, "parameters", None)):
        raise InvalidInput(f"parameters is {parameters!r}; give how many numbers the model trains, or the model")
    return integer(
        sum(each.numel() for each in parameters.parameters() if each.requires_grad),
        "the number of the model's trainable parameters",
    )


def _require_public_noise(method: str, budgets: Budgets | None) -> None:
    if budgets is not None:
        raise InvalidInput(
            "fixed_noise is asked for beside budgets: a noise multiplier that follows from the grants protects "
            "nobody's presence. Give people= and levels=, a public guess"
        )
    if method not in _KEEP_NOISE:
        raise InvalidInput(f"fixed_noise is for the methods {' and '.join(_KEEP_NOISE)}, not {method}; leave it out")
