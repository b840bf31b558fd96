"""When to end a filtered run: by private measurements whose price is set aside before training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from privypurse.accounting.filters import Currency
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput
from privypurse.training.looks import Looks, Right, most_likely
from privypurse.training.randomness import Randomness

_STREAM = 2**20 + 1  # of a seeded run's random numbers: none of its processes has such a rank


@dataclass(frozen=True)
class StopAtPlateau:
    """Ask every few steps how many people the model gets right, stop when that no longer rises, keep the best model.

    Each of at most ``most`` questions is a count with Gaussian noise of deviation ``noise`` (in people), the first
    when the filter takes over. Training ends after ``patience`` questions in a row whose answer did not exceed the
    best one before, and leaves the model that had the best answer: all of them were released, so choosing is free.
    Everyone who answers pays 1/noise deviations a question, set aside for all of them beforehand; whose purse cannot
    do that answers nothing.
    """

    noise: float
    every: int = 5
    most: int = 10
    patience: int = 2
    right: Right = most_likely

    def __post_init__(self) -> None:
        _check_positive("noise", self.noise)
        for name in ("every", "most", "patience"):
            _check_whole(name, getattr(self, name))


@dataclass(frozen=True)
class StopWhenFew:
    """Stop when fewer than about ``below`` people still contribute: the sparse vector technique.

    One comparison every few steps, all of them together for one price: the first time that the noisy number falls
    below the noisy threshold is ``epsilon``-DP, however often was asked (Dwork & Roth 2014, Theorem 3.23).
    """

    below: int
    epsilon: float
    every: int = 10

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        for name in ("below", "every"):
            _check_whole(name, getattr(self, name))


Stop = StopAtPlateau | StopWhenFew


class Watch:
    """A stopping rule at work. What it tells is released, and paid for."""

    def __init__(self, rule: Stop | None, looks: Looks, first_step: int) -> None:
        self._rule, self._looks, self._first = rule, looks, first_step
        self.told: list[tuple[int, float]] = []
        """(step, noisy answer): public."""
        self._threshold: float | None = None
        self._over, self._asked, self._silent = False, 0, False
        self._best: dict[str, Tensor] | None = None

    def price(self, currency: Currency) -> FloatArray:
        """What all its questions together cost whoever answers them."""
        match self._rule:
            case None:
                return np.asarray(0.0)
            case StopAtPlateau(noise=noise, most=most):
                return np.asarray(most * currency.gaussian(np.asarray(1.0 / noise)))
            case StopWhenFew(epsilon=epsilon):
                return np.asarray(currency.pure(epsilon))

    def goes_on(self, steps_taken: int, answers: AnyArray, active: Callable[[], AnyArray]) -> bool:
        """Whether another step may follow. ``answers`` says whose reserve is there. Asks at public times only."""
        since = steps_taken - self._first
        if self._rule is None or self._over or self._silent or since % self._rule.every:
            return not self._over
        if self.told and self.told[-1][0] == steps_taken:
            return True  # asked already: nobody pays twice for the same
        source = self._looks.run.source.for_step(steps_taken, _STREAM)
        match self._rule:
            case StopAtPlateau() as rule:
                self._ask_how_many_right(rule, steps_taken, answers, source)
            case StopWhenFew() as rule:
                self._compare(rule, steps_taken, answers & active(), source)
        self._over = self._looks.run.processes.same(self._over)
        return not self._over

    def _ask_how_many_right(self, rule: StopAtPlateau, step: int, answers: AnyArray, source: Randomness) -> None:
        if self._asked >= rule.most:
            return
        self._asked += 1
        right = float(self._looks.right(np.flatnonzero(answers), rule.right).sum())
        noisy = right + rule.noise * float(source.normal(1)[0])
        self.told.append((step, self._looks.run.processes.same(noisy)))
        values = [value for _, value in self.told]
        since = len(values) - 1 - int(np.argmax(values))
        if since == 0:
            state = self._looks.run.recorder.model.state_dict()
            self._best = {name: value.detach().clone() for name, value in state.items()}
        self._over = since >= rule.patience

    def finish(self) -> None:
        """The run is over: leave the model that had the best answer."""
        if self._best is not None:
            self._looks.run.recorder.model.load_state_dict(self._best)

    def _compare(self, rule: StopWhenFew, step: int, active: AnyArray, source: Randomness) -> None:
        if self._threshold is None:
            self._threshold = rule.below + _laplace(2 / rule.epsilon, source)
        few = int(np.count_nonzero(active)) + _laplace(4 / rule.epsilon, source) < self._threshold
        self.told.append((step, float(few)))
        self._over = few

    def resumed(self, saved: int, now: int) -> None:
        """What may have been asked between a checkpoint and a crash is not asked again: it would cost once more."""
        if self._rule is None:
            return
        known = {step for step, _ in self.told}
        times = range(self._first, now + 1, self._rule.every)
        missing = sum(saved <= step and step not in known for step in times)
        self._asked += missing
        self._silent |= missing > 0 and isinstance(self._rule, StopWhenFew)

    def state(self) -> dict[str, Any]:
        """The noisy threshold is as secret as the purses beside it."""
        return {
            "told": self.told,
            "threshold": self._threshold,
            "over": self._over,
            "asked": self._asked,
            "silent": self._silent,
            "best": self._best,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.told = [(int(step), float(value)) for step, value in state["told"]]
        self._threshold, self._over = state["threshold"], bool(state["over"])
        self._asked, self._silent, self._best = int(state["asked"]), bool(state["silent"]), state["best"]


def _laplace(scale: float, source: Randomness) -> float:
    """The difference of two exponentials."""
    one, other = source.uniform(2).tolist()
    return scale * (math.log(other) - math.log(one))


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} is {value!r}; it must be finite and positive")


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, at least 1")
